// What both ways of attention share: shapes and masks, how a call is cut into tasks, what a task knows of its rows.
#pragma once

#include <type_traits>

#include "math.hpp"
#include "types.hpp"

namespace opsmith {

struct AttentionShape {
  i64 batch, heads, kv_heads, queries, keys, head_size, value_size;
  // element strides; head_size and value_size are contiguous
  i64 q_batch, q_head, q_row;
  i64 k_batch, k_head, k_row;
  i64 v_batch, v_head, v_row;
  i64 o_batch, o_head, o_row;
  float scale;
  bool causal;  // query i sees keys j <= i + keys - queries
  float cap = 0;  // scores become cap * tanh(score / cap); 0: they stay
  // what the tuner found, 0: the kernel decides
  i64 most_keys = 0;    // of a block
  i64 most_panels = 0;  // of a task
};

// Strides of the mask in elements, 0 where it is broadcast.
struct NoMask {};
struct BiasMask {  // added to the scores
  const float* p;
  i64 batch, head, row, col;
};
struct BoolMask {  // true: the key is seen
  const bool* p;
  i64 batch, head, row, col;
};

namespace detail {

inline constexpr i64 kKeyBlock = 96;  // keys at a time, at most: the tile of their scores stays within half of L1
inline constexpr i64 kScratch = 56 * 1024;  // floats of a task on the stack: 224 KB
inline constexpr i64 kMostPanels = 4;  // of a task
inline constexpr i64 kMostLanes = kMostPanels * attention_nv * W;
inline constexpr i64 kFewRows = max<i64>(1, W / 4);  // up to here the row path is cheaper than a mostly empty vector
inline constexpr i64 kMostSplits = 16;

// Blocks of keys and values are read in place, unless they must be widened to float, or lie a multiple of 4 KB apart, as
// in GPT-2, and crowd into a few sets of the cache. With the narrow panels of AVX2 that costs a sixth; a copy per block
// costs less if four panels share it.
template <class TK>
inline bool copies_blocks(const AttentionShape& s) {
  const i64 panels = s.batch * s.heads * s.queries / (attention_nv * W);
  return !__is_same(TK, float) || (attention_copies && (s.k_row % 1024 == 0 || s.v_row % 1024 == 0) && panels >= 64 * kMostPanels);
}
inline constexpr i64 padded_row(i64 size) { return round_up(size, 16) + 16; }  // an odd number of cache lines, mostly

// Keys of a block as v^T holds them: whole vectors of pairs.
inline constexpr i64 tile_keys(i64 key_block) { return round_up(key_block, 2 * W); }

// How a call is cut into tasks. Only `splits` depends on the number of threads.
struct AttentionPlan {
  i64 group;      // query heads per kv head
  i64 rows;       // of one kv head: group * queries; row = head in group * queries + query
  i64 key_block;  // keys at a time: blocks of equal size, whole tiles
  i64 vectors;    // of a panel, at most attention_nv
  bool by_row;    // row by row, lanes along D
  i64 task_rows;  // rows of a task
  i64 blocks;     // tasks of one kv head
  i64 tasks;      // of the call
  i64 splits;     // of the keys

  // copied: bytes per number where each block of keys and values is first copied to the stack, else 0. only_rows: never in tiles
  AttentionPlan(const AttentionShape& s, int threads, i64 copied, bool only_rows = false) {
    group = s.heads / max<i64>(s.kv_heads, 1);
    rows = group * s.queries;
    const i64 most = s.most_keys > 0 ? s.most_keys : kKeyBlock;
    key_block = min(most, round_up(ceil_div(s.keys, max<i64>(1, ceil_div(s.keys, most))), attention_mr));
    vectors = min<i64>(attention_nv, max<i64>(1, ceil_div(rows, W)));
    const i64 size = s.head_size + s.value_size;
    auto floats = [&](i64 panels) {
      return panels * (size + 2) * vectors * W + key_block * vectors * W + (key_block * padded_row(s.head_size) + tile_keys(key_block) * padded_row(s.value_size)) * copied / 4;
    };
    while (floats(1) > kScratch) {
      if (copied && key_block > 16)
        key_block /= 2;
      else if (vectors > 1)
        --vectors;
      else
        break;
    }
    by_row = only_rows || rows <= kFewRows || floats(1) > kScratch;
    if (by_row) {  // also the refuge of enormous heads
      key_block = 128;
      task_rows = max<i64>(1, min(min(rows, kFewRows), (kScratch - kFewRows * key_block) / max<i64>(1, size)));
    } else {
      // several panels per task reuse a block of keys from cache, but 64 tasks come first
      i64 panels = s.most_panels > 0 ? min(kMostPanels, s.most_panels) : min(kMostPanels, s.batch * s.kv_heads * ceil_div(rows, vectors * W) / 64);
      while (panels > 1 && floats(panels) > kScratch) --panels;
      task_rows = max<i64>(1, panels) * vectors * W;
    }
    blocks = ceil_div(rows, task_rows);
    tasks = s.batch * s.kv_heads * blocks;
    splits = 1;
    if (may_split(s) && threads > 1)
      splits = max<i64>(1, min(min(ceil_div(2 * threads, tasks), s.keys / 256), kMostSplits));
  }
  bool may_split(const AttentionShape& s) const { return tasks > 0 && tasks < 16 && s.keys >= 512; }
  i64 part_floats(const AttentionShape& s) const { return task_rows * (s.value_size + 2); }  // maximum, sum, o
  i64 workspace_bytes(const AttentionShape& s) const {
    return may_split(s) ? tasks * kMostSplits * part_floats(s) * i64(sizeof(float)) : 0;
  }
};

// Scores come in units of log2 where no bias is added (q holds the factor), else in natural units: finfo.min, a common bias,
// has no finite value in the other unit.
template <class Mask>
inline constexpr bool kBase2 = !__is_same(Mask, BiasMask);
template <class Mask, class V>
OPSMITH_INLINE V score_exp(V difference) {
  if constexpr (kBase2<Mask>)
    return exp2_small(difference);
  else
    return exp2_small(difference * kLog2e);
}
template <class V>
OPSMITH_INLINE V finite_maximum(V m) {  // -inf - -inf would be NaN; with 0 in its place the exponentials are 0
  return select(m == -kInfinity, V{}, m);
}

OPSMITH_INLINE F capped(F score, float cap) { return cap * tanh(score * (1.0f / cap)); }
OPSMITH_INLINE float masked(BiasMask, float score, float value) { return score + value; }
OPSMITH_INLINE F masked(BiasMask, F score, F value) { return score + value; }
OPSMITH_INLINE float masked(BoolMask, float score, float value) { return value != 0.0f ? score : -kInfinity; }
OPSMITH_INLINE F masked(BoolMask, F score, F value) { return select(value != 0.0f, score, all<F>(-kInfinity)); }
// bool is a byte of 0 or 1
OPSMITH_INLINE const float* readable(const float* p) { return p; }
OPSMITH_INLINE const uint8_t* readable(const bool* p) { return reinterpret_cast<const uint8_t*>(p); }

// What the mask hides at both ends of keys begin .. end from all lanes is not read: of a sliding window its window, of a shorter
// text in a batch its own keys. at[l] is where lane l's row of the mask begins.
OPSMITH_INLINE bool sees(const BoolMask& mask, i64 at) { return mask.p[at]; }
OPSMITH_INLINE bool sees(const BiasMask& mask, i64 at) { return mask.p[at] != -kInfinity; }
template <class Mask>
inline void narrow_to_seen(const Mask& mask, const i64* at, i64 lanes, i64& begin, i64& end) {
  if constexpr (!__is_same(Mask, NoMask)) {
    i64 first = end, last = begin;
    for (i64 l = 0; l < lanes; ++l) {
      if (l > 0 && at[l] == at[l - 1]) continue;
      i64 j = begin, e = end;
      if constexpr (__is_same(Mask, BoolMask))  // eight at a time
        if (mask.col == 1) {
          const bool* row = mask.p + at[l];
          uint64_t word;
          while (j + 8 <= first && (memcpy(&word, row + j, 8), word == 0)) j += 8;
          while (e - 8 >= last && (memcpy(&word, row + e - 8, 8), word == 0)) e -= 8;
        }
      while (j < first && !sees(mask, at[l] + j * mask.col)) ++j;
      while (e > last && !sees(mask, at[l] + (e - 1) * mask.col)) --e;
      first = min(first, j), last = max(last, e);
    }
    begin = first, end = max(first, last);
  }
}
// Whether any of the lanes sees one of n keys from k0 on.
template <class Mask>
inline bool any_seen(const Mask& mask, const i64* at, i64 lanes, i64 k0, i64 n) {
  i64 begin = k0, end = k0 + n;
  narrow_to_seen(mask, at, lanes, begin, end);
  return begin < end;
}

// What a task knows of its lanes, padding lanes repeating the first.
template <class TQ, class TO>
struct Lanes {
  i64 count;
  const TQ* q[kMostLanes];
  TO* out[kMostLanes];
  i64 mask_at[kMostLanes];
  int32_t limit[kMostLanes];  // the last key that the lane sees

  template <class Mask>
  Lanes(const AttentionShape& s, const AttentionPlan& plan, i64 b, i64 kv_head, i64 row0, i64 padded, const TQ* q_base,
        TO* out_base, const Mask& mask) {
    count = min(plan.task_rows, plan.rows - row0);
    i64 h = kv_head * plan.group + row0 / s.queries, i = row0 % s.queries;
    for (i64 l = 0; l < padded; ++l) {
      if (l >= count) {
        q[l] = q[0], mask_at[l] = mask_at[0], limit[l] = limit[0];
        continue;
      }
      q[l] = q_base + b * s.q_batch + h * s.q_head + i * s.q_row;
      out[l] = out_base + b * s.o_batch + h * s.o_head + i * s.o_row;
      mask_at[l] = 0;
      if constexpr (!__is_same(Mask, NoMask)) mask_at[l] = b * mask.batch + h * mask.head + i * mask.row;
      limit[l] = static_cast<int32_t>(s.causal ? i + s.keys - s.queries : s.keys - 1);
      if (++i == s.queries) ++h, i = 0;
    }
  }
};

// Where the result of a row goes: to the output, divided by its sum, or as a part (maximum, sum, o) to be merged.
template <bool ZeroMaskedRows, class V>
OPSMITH_INLINE V divisor(V sum) {
  if constexpr (ZeroMaskedRows) return 1.0f / select(sum == 0.0f, all<V>(1), sum);
  return 1.0f / sum;  // o is 0 as well where the sum is: 0 * inf is NaN
}

}  // namespace detail
}  // namespace opsmith
