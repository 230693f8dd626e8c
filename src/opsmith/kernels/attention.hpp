// Scaled dot-product attention that never holds the score matrix:
//
//   out[b][h][i] = sum over j of softmax_j(scale * q[b][h][i] . k[b][h'][j] + mask) * v[b][h'][j],   h' = h / (heads / kv_heads)
//
// Queries lie across vector lanes. With the scores transposed, both products read K and V in place, as scalars that are
// multiplied into a vector of queries, so neither is ever packed, transposed or padded, and the softmax over keys is
// lane by lane, without a horizontal operation:
//
//   s  (keys, lanes) = k (keys, D) @ q^T (D, lanes)          rows of the tile are keys
//   p  (keys, lanes) = 2^(s - running maximum)               the scale of q holds log2(e)
//   o^T (Dv, lanes) += v^T (Dv, keys) @ p (keys, lanes)      rows of the tile are value columns
//
// A task takes some panels of lanes (a panel: as many vectors as the microkernel is wide) of one kv head and streams the
// keys past them, a block at a time; q^T, p and o^T stay in its cache. The query heads that share a kv head are lanes
// side by side, so grouped-query attention reads K and V once. Where that makes fewer rows than a quarter vector (decoding),
// a second path works row by row with the lanes along D. Where there are fewer tasks than threads, keys are split and the
// parts, each with its own maximum and sum, are merged.
//
// A row whose keys are all masked gives NaN, as softmax over -inf does, or 0 with attention<true>(...), as torch's guard
// around it does. No keys at all give 0.
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

// The microkernel holds kTileRows x kTileVectors accumulators (see gemm_micro.hpp for the register budget).
#if defined(__AVX512F__) || defined(__aarch64__)
inline constexpr int kTileRows = 8, kTileVectors = 3;
#elif defined(__AVX__)
inline constexpr int kTileRows = 6, kTileVectors = 2;
#else
inline constexpr int kTileRows = 4, kTileVectors = 2;
#endif
inline constexpr i64 kKeyBlock = 96;  // keys at a time, at most: the tile of their scores stays within half of L1
inline constexpr i64 kScratch = 56 * 1024;           // floats of a task on the stack: 224 KB
inline constexpr i64 kMostPanels = 4;                // of a task
inline constexpr i64 kMostLanes = kMostPanels * kTileVectors * W;
inline constexpr i64 kFewRows = W / 4;  // up to here the row path is cheaper than a mostly empty vector
inline constexpr i64 kMostSplits = 16;
inline constexpr float kMostSum = 0x1p40f;  // of exponentials about the maximum in use; beyond it a new maximum is taken

// Blocks of keys and values are read in place, unless they must be widened to float, or lie a multiple of 4 KB apart, as
// in GPT-2, and crowd into a few sets of the cache. With the narrow panels of AVX2 that costs a sixth; a copy per block
// costs less if four panels share it.
template <class TK>
inline bool copies_blocks(const AttentionShape& s) {
  const i64 panels = s.batch * s.heads * s.queries / (kTileVectors * W);
  return !__is_same(TK, float) || (W < 16 && (s.k_row % 1024 == 0 || s.v_row % 1024 == 0) && panels >= 64 * kMostPanels);
}
inline constexpr i64 padded_row(i64 size) { return round_up(size, 16) + 16; }  // an odd number of cache lines, mostly

// How a call is cut into tasks. Only `splits` depends on the number of threads.
struct AttentionPlan {
  i64 group;      // query heads per kv head
  i64 rows;       // of one kv head: group * queries; row = head in group * queries + query
  i64 key_block;  // keys at a time: blocks of equal size, whole tiles
  i64 vectors;    // of a panel, at most kTileVectors
  bool by_row;    // row by row, lanes along D
  i64 task_rows;  // rows of a task
  i64 blocks;     // tasks of one kv head
  i64 tasks;      // of the call
  i64 splits;     // of the keys

  // copied: each block of keys and values is first copied to the stack
  AttentionPlan(const AttentionShape& s, int threads, bool copied) {
    group = s.heads / max<i64>(s.kv_heads, 1);
    rows = group * s.queries;
    const i64 most = s.most_keys > 0 ? s.most_keys : kKeyBlock;
    key_block = min(most, round_up(ceil_div(s.keys, max<i64>(1, ceil_div(s.keys, most))), kTileRows));
    vectors = min<i64>(kTileVectors, max<i64>(1, ceil_div(rows, W)));
    const i64 size = s.head_size + s.value_size;
    auto floats = [&](i64 panels) {
      return panels * (size + 2) * vectors * W + key_block * vectors * W + (copied ? key_block * (padded_row(s.head_size) + padded_row(s.value_size)) : 0);
    };
    while (floats(1) > kScratch) {
      if (copied && key_block > 16)
        key_block /= 2;
      else if (vectors > 1)
        --vectors;
      else
        break;
    }
    by_row = rows <= kFewRows || floats(1) > kScratch;
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

// What a tile begins with, and what it does with its sums before they are stored, one column of vectors after the other.
struct AsTheyAre {
  OPSMITH_INLINE F first(int) { return F{}; }
  OPSMITH_INLINE F operator()(F x) { return x; }
  OPSMITH_INLINE void end(int) {}
};
// Scores less a maximum that is known (that is where the tile begins) become exponentials, and are summed. While they are made
// the products of the next tile are under way: the two need different units of the processor.
struct Exponentials {
  const float* maximum;
  float* sum;
  F s{};
  OPSMITH_INLINE F first(int v) { return -load(maximum + v * W, Full{}); }
  OPSMITH_INLINE F operator()(F x) {
    const F e = exp2_small<true>(x);
    s += e;
    return e;
  }
  OPSMITH_INLINE void end(int v) {
    store(sum + v * W, load(static_cast<const float*>(sum) + v * W, Full{}) + s, Full{});
    s = F{};
  }
};

// c (R, V vectors) (+)= a (R, K) @ b (K, V vectors). a[r][k] lies at a[r * stride + k], or transposed at a[k * stride + r].
template <int R, int V, bool Transposed, class Finish>
[[gnu::noinline]] void tile_product(const float* a, i64 stride, i64 K, const float* b, float* c, bool accumulate, Finish finish) {
  F acc[R][V];
#pragma GCC unroll 3
  for (int v = 0; v < V; ++v) {
    const F start = finish.first(v);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) acc[r][v] = accumulate ? load(static_cast<const float*>(c) + (r * V + v) * W, Full{}) : start;
  }
  const float* row[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) row[r] = Transposed ? a + r : a + r * stride;
#pragma GCC unroll 4
  for (i64 k = 0; k < K; ++k) {
    F bv[V];
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) bv[v] = load(b + v * W, Full{});
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const F x = splat(Transposed ? a[r] : row[r][k]);
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v) acc[r][v] += x * bv[v];
    }
    b += V * W;
    if constexpr (Transposed) a += stride;
  }
#pragma GCC unroll 3
  for (int v = 0; v < V; ++v) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) store(c + (r * V + v) * W, finish(acc[r][v]), Full{});
    finish.end(v);
  }
}

template <int V, bool Transposed, class Finish = AsTheyAre>
inline void panel_product(const float* a, i64 stride, i64 M, i64 K, const float* b, float* c, bool accumulate, Finish finish = {}) {
  i64 r = 0;
  auto step = [&]<int R>(std::integral_constant<int, R>) {
    tile_product<R, V, Transposed>(a + (Transposed ? r : r * stride), stride, K, b, c + r * V * W, accumulate, finish);
    r += R;
  };
  while (r + kTileRows <= M) step(std::integral_constant<int, kTileRows>{});
  if constexpr (kTileRows > 4)
    if (r + 4 <= M) step(std::integral_constant<int, 4>{});
  if (r + 2 <= M) step(std::integral_constant<int, 2>{});
  if (r < M) step(std::integral_constant<int, 1>{});
}

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

OPSMITH_INLINE float masked(BiasMask, float score, float value) { return score + value; }
OPSMITH_INLINE F masked(BiasMask, F score, F value) { return score + value; }
OPSMITH_INLINE float masked(BoolMask, float score, float value) { return value != 0.0f ? score : -kInfinity; }
OPSMITH_INLINE F masked(BoolMask, F score, F value) { return select(value != 0.0f, score, all<F>(-kInfinity)); }
// bool is a byte of 0 or 1
OPSMITH_INLINE const float* readable(const float* p) { return p; }
OPSMITH_INLINE const uint8_t* readable(const bool* p) { return reinterpret_cast<const uint8_t*>(p); }

// scores (n, V vectors) of keys k0 .. k0 + n; at[l] is where lane l's row of the mask begins.
template <int V, class Mask>
inline void apply_mask(float* scores, i64 n, i64 k0, const Mask& mask, const i64* at) {
  const auto* p = readable(mask.p);
  bool same = true;
  for (i64 l = 1; l < V * W; ++l) same &= at[l] == at[0];
  if (same) {
    for (i64 j = 0; j < n; ++j) {
      const F value = all<F>(to_float(p[at[0] + (k0 + j) * mask.col]));
      for (int v = 0; v < V; ++v) {
        float* x = scores + (j * V + v) * W;
        store(x, masked(mask, load(x, Full{}), value), Full{});
      }
    }
    return;
  }
  for (int v = 0; v < V; ++v)
    for (i64 j0 = 0; j0 < n; j0 += W) {
      const i64 count = min(W, n - j0);
      F r[W];
      for (i64 l = 0; l < W; ++l) {
        const auto* row = p + at[v * W + l] + (k0 + j0) * mask.col;
        if (mask.col != 1) {
          r[l] = F{};
          for (i64 j = 0; j < count; ++j) r[l][j] = to_float(row[j * mask.col]);
        } else {
          r[l] = count == W ? load(row, Full{}) : load(row, Tail{count});
        }
      }
      transpose(r);
      for (i64 j = 0; j < count; ++j) {
        float* x = scores + ((j0 + j) * V + v) * W;
        store(x, masked(mask, load(x, Full{}), r[j]), Full{});
      }
    }
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

// A block of keys or values as floats: in place, or copied into `room`.
template <class T>
OPSMITH_INLINE const float* as_floats(const T* p, i64& stride, i64 rows, i64 cols, bool copied, float* room) {
  if constexpr (__is_same(T, float))
    if (!copied) return p;
  const i64 padded = padded_row(cols);
  for (i64 r = 0; r < rows; ++r)
    for_lanes(cols, [&](i64 c, auto lanes) { store(room + r * padded + c, load(p + r * stride + c, lanes), lanes); });
  stride = padded;
  return room;
}

// One panel of V vectors of queries, and what it has accumulated.
struct Panel {
  float *q, *o, *maximum, *sum;  // (D, V), (Dv, V), (V), (V) vectors; o and sum are multiples of 2^maximum
  bool empty;                    // no key yet: o is not even zeroed
  bool settled;                  // every lane has seen a finite score
};

// q^T, scaled: the rows of the lanes become columns. The rows are many short streams, so they are fetched ahead by hand.
template <int V, class TQ>
inline void pack_queries(const TQ* const* rows, i64 D, float scale, float* out) {
  for (int l = 0; l < V * W; ++l)
    for (i64 d = 0; d < D; d += 64 / i64(sizeof(TQ))) __builtin_prefetch(rows[l] + d);
  for (int v = 0; v < V; ++v)
    for (i64 d0 = 0; d0 < D; d0 += W) {
      const i64 count = min(W, D - d0);
      F r[W];
      for (i64 l = 0; l < W; ++l) {
        const TQ* p = rows[v * W + l] + d0;
        r[l] = (count == W ? load(p, Full{}) : load(p, Tail{count})) * scale;
      }
      transpose(r);
      for (i64 d = 0; d < count; ++d) store(out + ((d0 + d) * V + v) * W, r[d], Full{});
    }
}

// o^T * factor, back to one row per lane, `count` lanes of them: write(lane, column, F, lanes)
template <int V, class Write>
inline void unpack_rows(const float* o, i64 Dv, i64 count, const F* factor, Write&& write) {
  for (int v = 0; v < V; ++v)
    for (i64 d0 = 0; d0 < Dv; d0 += W) {
      const i64 columns = min(W, Dv - d0);
      F r[W];
      for (i64 d = 0; d < W; ++d)
        r[d] = d < columns ? load(o + ((d0 + d) * V + v) * W, Full{}) * factor[v] : F{};
      transpose(r);
      const i64 lanes = min(W, count - v * W);
      for (i64 l = 0; l < lanes; ++l) {
        if (columns == W)
          write(v * W + l, d0, r[l], Full{});
        else
          write(v * W + l, d0, r[l], Tail{columns});
      }
    }
}

// One block of n keys for one panel.
template <int V, class Mask>
inline void panel_step(Panel& panel, const float* k, i64 k_stride, const float* v_block, i64 v_stride, i64 n,
                       i64 k0, i64 D, i64 Dv, const Mask& mask, const i64* mask_at, const int32_t* limit, bool cut,
                       float* p) {
  // The first keys give a maximum, and for the rest nearly any will do: far above it nothing is lost. So the exponentials can be
  // taken in the tile, before the block's own maximum is known. In the rare case that a sum becomes too large, or a score was not
  // finite, the block is made again.
  if constexpr (__is_same(Mask, NoMask))
    if (!cut && panel.settled) {
      float sum[V * W];
      memcpy(sum, panel.sum, sizeof sum);
      panel_product<V, false>(k, k_stride, n, D, panel.q, p, false, Exponentials{panel.maximum, sum});
      bool fits = true;
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v) fits &= !any(!(load(static_cast<const float*>(sum) + v * W, Full{}) < kMostSum));
      if (fits) {
        memcpy(panel.sum, sum, sizeof sum);
        panel_product<V, true>(v_block, v_stride, Dv, n, p, panel.o, true);
        return;
      }
    }
  panel_product<V, false>(k, k_stride, n, D, panel.q, p, false);
  if constexpr (!__is_same(Mask, NoMask)) apply_mask<V>(p, n, k0, mask, mask_at);
  if (cut) {  // some lanes do not see all of these keys
    for (int v = 0; v < V; ++v) {
      I last;
      memcpy(&last, limit + v * W, sizeof last);
      for (i64 j = 0; j < n; ++j) {
        float* x = p + (j * V + v) * W;
        store(x, select(last < static_cast<int32_t>(k0 + j), all<F>(-kInfinity), load(x, Full{})), Full{});
      }
    }
  }
  F old[V], m[V];
#pragma GCC unroll 3
  for (int v = 0; v < V; ++v) old[v] = m[v] = load(panel.maximum + v * W, Full{});
  for (i64 j = 0; j < n; ++j)
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) m[v] = max_or_second(load(p + (j * V + v) * W, Full{}), m[v]);
  F s[V], base[V];
  bool grown = false;
#pragma GCC unroll 3
  for (int v = 0; v < V; ++v) {
    base[v] = finite_maximum(m[v]);
    s[v] = load(panel.sum + v * W, Full{});
    grown |= any(m[v] > old[v]);
    store(panel.maximum + v * W, m[v], Full{});
  }
  if (grown && !panel.empty) {
    F shrink[V];
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) {
      shrink[v] = score_exp<Mask>(old[v] - base[v]);
      s[v] *= shrink[v];
    }
    for (i64 d = 0; d < Dv; ++d)
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v) {
        float* x = panel.o + (d * V + v) * W;
        store(x, load(x, Full{}) * shrink[v], Full{});
      }
  }
  for (i64 j = 0; j < n; ++j)
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) {
      float* x = p + (j * V + v) * W;
      const F e = score_exp<Mask>(load(x, Full{}) - base[v]);
      s[v] += e;
      store(x, e, Full{});
    }
#pragma GCC unroll 3
  for (int v = 0; v < V; ++v) store(panel.sum + v * W, s[v], Full{});
  panel_product<V, true>(v_block, v_stride, Dv, n, p, panel.o, !panel.empty);
  panel.empty = false;
  panel.settled = true;
#pragma GCC unroll 3
  for (int v = 0; v < V; ++v) panel.settled &= !any(m[v] == -kInfinity);
}

template <bool ZeroMaskedRows, int V, class TQ, class TO>
inline void finish_panel(const Panel& panel, const Lanes<TQ, TO>& lanes, i64 first, i64 Dv, float* part) {
  const i64 count = min<i64>(V * W, lanes.count - first);
  if (panel.empty) memset(panel.o, 0, static_cast<size_t>(Dv * V * W) * sizeof(float));
  F factor[V];
  for (int v = 0; v < V; ++v)
    factor[v] = part ? all<F>(1) : divisor<ZeroMaskedRows>(load(panel.sum + v * W, Full{}));
  if (!part) {
    unpack_rows<V>(panel.o, Dv, count, factor,
                   [&](i64 l, i64 d, F x, auto valid) { store(lanes.out[first + l] + d, x, valid); });
    return;
  }
  unpack_rows<V>(panel.o, Dv, count, factor, [&](i64 l, i64 d, F x, auto valid) {
    store(part + (first + l) * (Dv + 2) + 2 + d, x, valid);
  });
  for (i64 l = 0; l < count; ++l) {
    part[(first + l) * (Dv + 2)] = panel.maximum[l];
    part[(first + l) * (Dv + 2) + 1] = panel.sum[l];
  }
}

// f(std::integral_constant<int, V>) for V = vectors
template <class Fn>
OPSMITH_INLINE void with_vectors(i64 vectors, Fn&& f) {
  if constexpr (kTileVectors >= 3)
    if (vectors == 3) return f(std::integral_constant<int, 3>{});
  if (vectors == 2) return f(std::integral_constant<int, 2>{});
  f(std::integral_constant<int, 1>{});
}

// The rows row0 .. row0 + task_rows of one kv head over keys begin .. end.
template <bool ZeroMaskedRows, class TQ, class TK, class TO, class Mask>
inline void panel_task(const AttentionShape& s, const AttentionPlan& plan, i64 b, i64 kv_head, i64 row0, i64 begin,
                       i64 end, const TQ* q, const TK* k, const TK* v, TO* out, const Mask& mask, float* part) {
  alignas(64) float scratch[kScratch];
  const i64 D = s.head_size, Dv = s.value_size;
  const i64 padded = round_up(min(plan.task_rows, plan.rows - row0), W);
  const Lanes<TQ, TO> lanes(s, plan, b, kv_head, row0, padded, q, out, mask);
  const i64 panels = ceil_div(padded, plan.vectors * W);
  auto vectors_of = [&](i64 panel) { return min(plan.vectors, padded / W - panel * plan.vectors); };

  Panel panel[kMostPanels];
  int32_t first_cut[kMostPanels], last_seen[kMostPanels];
  float* free = scratch;
  auto take = [&](i64 floats) {
    float* p = free;
    free += floats;
    return p;
  };
  const float factor = s.scale * (kBase2<Mask> ? kLog2e : 1.0f);
  int32_t last = -1;
  for (i64 i = 0; i < panels; ++i) {
    const i64 width = vectors_of(i) * W, first = i * plan.vectors * W;
    panel[i] = {take(D * width), take(Dv * width), take(width), take(width), true, false};
    with_vectors(vectors_of(i), [&](auto V) { pack_queries<V.value>(lanes.q + first, D, factor, panel[i].q); });
    first_cut[i] = INT32_MAX, last_seen[i] = -1;
    for (i64 l = 0; l < width; ++l) {
      panel[i].maximum[l] = -kInfinity;
      panel[i].sum[l] = 0;
      first_cut[i] = min(first_cut[i], lanes.limit[first + l]);
      last_seen[i] = max(last_seen[i], lanes.limit[first + l]);
    }
    last = max(last, last_seen[i]);
  }
  float* scores = take(plan.key_block * plan.vectors * W);

  const bool copied = copies_blocks<TK>(s);
  end = min<i64>(end, i64{last} + 1);
  for (i64 k0 = begin; k0 < end; k0 += plan.key_block) {
    const i64 n = min(plan.key_block, end - k0);
    i64 k_stride = s.k_row, v_stride = s.v_row;
    const TK *k_block = k + b * s.k_batch + kv_head * s.k_head + k0 * s.k_row;
    const TK *v_block = v + b * s.v_batch + kv_head * s.v_head + k0 * s.v_row;
    const float* k_rows = as_floats(k_block, k_stride, n, D, copied, free);
    const float* v_rows = as_floats(v_block, v_stride, n, Dv, copied, free + plan.key_block * padded_row(D));
    for (i64 i = 0; i < panels; ++i) {
      const i64 seen = min<i64>(n, last_seen[i] - k0 + 1), first = i * plan.vectors * W;
      if (seen <= 0) continue;
      with_vectors(vectors_of(i), [&](auto V) {
        panel_step<V.value>(panel[i], k_rows, k_stride, v_rows, v_stride, seen, k0, D, Dv, mask, lanes.mask_at + first,
                            lanes.limit + first, k0 + seen - 1 > first_cut[i], scores);
      });
    }
  }
  for (i64 i = 0; i < panels; ++i)
    with_vectors(vectors_of(i), [&](auto V) {
      finish_panel<ZeroMaskedRows, V.value>(panel[i], lanes, i * plan.vectors * W, Dv, part);
    });
}

// ---- row by row ------------------------------------------------------------------------------------------------------

// Rows that come after the ones at hand, to be asked for one by one meanwhile. A block of keys and a block of values take turns,
// and the hardware looks ahead within one stream only: by itself it reads at 60 % of the memory's speed. Into L2, not L1: the
// lines that L1 can wait for at a time are too few.
template <class T>
struct Ahead {
  const T* rows;
  i64 stride, count, size;

  OPSMITH_INLINE void fetch(i64 row) const {
    if (row >= count) return;
    for (i64 d = 0; d < size; d += 64 / i64(sizeof(T))) __builtin_prefetch(rows + row * stride + d, 0, 2);
  }
};

// scores[r][j] = q[r] . k[j] for R rows at once, some keys at a time: each load serves several products.
template <int R, int Keys, class TK>
OPSMITH_INLINE void row_scores_of(const float* q, const TK* k, i64 stride, i64 D, float* scores, i64 key_block) {
  F a[R][Keys] = {};
  i64 d = 0;
  for (; d + W <= D; d += W) {
#pragma GCC unroll 4
    for (int j = 0; j < Keys; ++j) {
      const F y = load(k + j * stride + d, Full{});
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) a[r][j] += load(q + r * D + d, Full{}) * y;
    }
  }
  if (d < D) {
#pragma GCC unroll 4
    for (int j = 0; j < Keys; ++j) {
      const F y = load(k + j * stride + d, Tail{D - d});
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) a[r][j] += load(q + r * D + d, Tail{D - d}) * y;
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < Keys; ++j) scores[r * key_block + j] = lane_sum(a[r][j]);
}
template <int R, class TK>
inline void row_scores(const float* q, const TK* k, i64 stride, i64 n, i64 D, float* scores, i64 key_block, Ahead<TK> next) {
  constexpr int keys = R > 2 ? 2 : 4;
  i64 j = 0;
  for (; j + keys <= n; j += keys) {
#pragma GCC unroll 4
    for (int i = 0; i < keys; ++i) next.fetch(j + i);
    row_scores_of<R, keys>(q, k + j * stride, stride, D, scores + j, key_block);
  }
  for (; j < n; ++j) {
    next.fetch(j);
    row_scores_of<R, 1>(q, k + j * stride, stride, D, scores + j, key_block);
  }
}

// o[r] = o[r] * shrink[r] + sum over j of p[r][j] * v[j] for R rows at once, some vectors of columns at a time
template <int R, int Vectors, class TK, class Lanes>
OPSMITH_INLINE void row_values_of(const float* p, i64 key_block, const TK* v, i64 stride, i64 n, i64 Dv,
                                  const float* shrink, float* o, Lanes lanes, Ahead<TK> next) {
  F a[R][Vectors];  // every loop over it unrolled, or it lives in memory
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int i = 0; i < Vectors; ++i) a[r][i] = load(static_cast<const float*>(o) + r * Dv + i * W, lanes) * shrink[r];
  for (i64 j = 0; j < n; ++j) {
    next.fetch(j);
#pragma GCC unroll 4
    for (int i = 0; i < Vectors; ++i) {
      const F y = load(v + j * stride + i * W, lanes);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) a[r][i] += p[r * key_block + j] * y;
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int i = 0; i < Vectors; ++i) store(o + r * Dv + i * W, a[r][i], lanes);
}
template <int R, class TK>
inline void row_values(const float* p, i64 key_block, const TK* v, i64 stride, i64 n, i64 Dv, const float* shrink,
                       float* o, Ahead<TK> next) {
  constexpr int vectors = W == 8 && R > 1 ? 2 : 4;
  i64 d = 0;
  for (; d + vectors * W <= Dv; d += vectors * W, next.count = 0)  // the first pass asks for whole rows
    row_values_of<R, vectors>(p, key_block, v + d, stride, n, Dv, shrink, o + d, Full{}, next);
  for_lanes(Dv - d, [&](i64 c, auto lanes) {
    row_values_of<R, 1>(p, key_block, v + d + c, stride, n, Dv, shrink, o + d + c, lanes, next);
    next.count = 0;
  });
}

// The scores of one row become exponentials about its new maximum. Returns by how much what was summed before shrinks.
template <class Mask>
inline float row_softmax(float* scores, i64 n, float& maximum, float& sum) {
  F most = all<F>(-kInfinity);
  float m = maximum;
  i64 j = 0;
  for (; j + W <= n; j += W) most = max_or_second(load(static_cast<const float*>(scores) + j, Full{}), most);
  for (; j < n; ++j) m = max_or_second(scores[j], m);
  m = max_or_second(lane_max(most), m);
  const float base = finite_maximum(m), shrink = score_exp<Mask>(maximum - base);
  F total{};
  float rest = 0;
  for_lanes(n, [&](i64 i, auto lanes) {
    const F e = score_exp<Mask>(load(static_cast<const float*>(scores) + i, lanes) - base);
    store(scores + i, e, lanes);
    if constexpr (__is_same(decltype(lanes), Full))
      total += e;
    else
      for (i64 l = 0; l < lanes.count; ++l) rest += e[l];
  });
  maximum = m;
  sum = sum * shrink + lane_sum(total) + rest;
  return shrink;
}

template <bool ZeroMaskedRows, class TQ, class TK, class TO, class Mask>
inline void row_task(const AttentionShape& s, const AttentionPlan& plan, i64 b, i64 kv_head, i64 row0, i64 begin,
                     i64 end, const TQ* q, const TK* k, const TK* v, TO* out, const Mask& mask, float* part) {
  alignas(64) float scratch[kScratch];
  const i64 D = s.head_size, Dv = s.value_size, rows = min(plan.task_rows, plan.rows - row0);
  const Lanes<TQ, TO> lanes(s, plan, b, kv_head, row0, rows, q, out, mask);
  float *scores = scratch, *q_rows = scores + kFewRows * plan.key_block, *o_rows = q_rows + rows * D;
  float maximum[kFewRows], sum[kFewRows];
  const float factor = s.scale * (kBase2<Mask> ? kLog2e : 1.0f);
  for (i64 r = 0; r < rows; ++r) {
    for_lanes(D, [&](i64 d, auto l) { store(q_rows + r * D + d, load(lanes.q[r] + d, l) * factor, l); });
    memset(o_rows + r * Dv, 0, static_cast<size_t>(Dv) * sizeof(float));
    maximum[r] = -kInfinity, sum[r] = 0;
  }
  const TK* k_head = k + b * s.k_batch + kv_head * s.k_head;
  const TK* v_head = v + b * s.v_batch + kv_head * s.v_head;
  const i64 first_block = min(plan.key_block, end - begin);
  const Ahead<TK> first_values{v_head + begin * s.v_row, s.v_row, first_block, Dv};
  for (i64 j = 0; j < first_block; ++j) first_values.fetch(j);
  for (i64 k0 = begin; k0 < end; k0 += plan.key_block) {
    const TK *k_rows = k_head + k0 * s.k_row, *v_rows = v_head + k0 * s.v_row;
    // The next block; behind the last one the first of the next head, which is likely this thread's next task.
    const i64 left = end - k0 - plan.key_block;
    const bool another = left <= 0 && plan.splits == 1 && plan.blocks == 1 && kv_head + 1 < s.kv_heads;
    const i64 count = left > 0 ? min(plan.key_block, left) : another ? first_block : 0;
    Ahead<TK> keys{left > 0 ? k_rows + plan.key_block * s.k_row : k_head + s.k_head, s.k_row, count, D};
    Ahead<TK> values{left > 0 ? v_rows + plan.key_block * s.v_row : v_head + s.v_head, s.v_row, count, Dv};
    auto step = [&]<int R>(std::integral_constant<int, R>, i64 r0) {
      i64 n = 0;  // keys of the block that any of the rows sees
      for (i64 r = r0; r < r0 + R; ++r) n = max(n, min(min(plan.key_block, end - k0), lanes.limit[r] - k0 + 1));
      if (n <= 0) return;
      float shrink[R];
      row_scores<R>(q_rows + r0 * D, k_rows, s.k_row, n, D, scores, plan.key_block, keys);
      for (i64 r = r0; r < r0 + R; ++r) {
        float* row = scores + (r - r0) * plan.key_block;
        if constexpr (!__is_same(Mask, NoMask)) {
          const auto* mask_row = readable(mask.p) + lanes.mask_at[r] + k0 * mask.col;
          if (mask.col == 1)
            for_lanes(n, [&](i64 j, auto l) {
              store(row + j, masked(mask, load(static_cast<const float*>(row) + j, l), load(mask_row + j, l)), l);
            });
          else
            for (i64 j = 0; j < n; ++j) row[j] = masked(mask, row[j], to_float(mask_row[j * mask.col]));
        }
        for (i64 j = max<i64>(0, lanes.limit[r] - k0 + 1); j < n; ++j) row[j] = -kInfinity;
        shrink[r - r0] = row_softmax<Mask>(row, n, maximum[r], sum[r]);
      }
      row_values<R>(scores, plan.key_block, v_rows, s.v_row, n, Dv, shrink, o_rows + r0 * Dv, values);
      keys.count = values.count = 0;  // asked for once, not by every few rows
    };
    i64 r = 0;
    if constexpr (kFewRows >= 4)
      for (; r + 4 <= rows; r += 4) step(std::integral_constant<int, 4>{}, r);
    if constexpr (kFewRows >= 2)
      for (; r + 2 <= rows; r += 2) step(std::integral_constant<int, 2>{}, r);
    for (; r < rows; ++r) step(std::integral_constant<int, 1>{}, r);
  }
  for (i64 r = 0; r < rows; ++r) {
    const float* o = o_rows + r * Dv;
    if (part) {
      float* to = part + r * (Dv + 2);
      to[0] = maximum[r], to[1] = sum[r];
      memcpy(to + 2, o, static_cast<size_t>(Dv) * sizeof(float));
      continue;
    }
    const float inverse = divisor<ZeroMaskedRows>(sum[r]);
    for_lanes(Dv, [&](i64 d, auto l) { store(lanes.out[r] + d, load(o + d, l) * inverse, l); });
  }
}

// out = sum over parts of 2^(m_i - m) o_i, over the same of the sums
template <bool ZeroMaskedRows, class TO, class Mask>
inline void merge_parts(const float* parts, i64 splits, i64 part_floats, i64 row, i64 Dv, TO* out, const Mask&) {
  const float* at = parts + row * (Dv + 2);
  float m = -kInfinity, sum = 0, weight[kMostSplits];
  for (i64 i = 0; i < splits; ++i) m = max_or_second(at[i * part_floats], m);
  for (i64 i = 0; i < splits; ++i) {
    weight[i] = score_exp<Mask>(at[i * part_floats] - finite_maximum(m));
    sum += weight[i] * at[i * part_floats + 1];
  }
  const float inverse = divisor<ZeroMaskedRows>(sum);
  for_lanes(Dv, [&](i64 d, auto lanes) {
    F o{};
    for (i64 i = 0; i < splits; ++i) o += weight[i] * load(at + i * part_floats + 2 + d, lanes);
    store(out + d, o * inverse, lanes);
  });
}

}  // namespace detail

// Bytes of workspace (4-byte aligned), for any number of threads and any types.
inline i64 attention_workspace(const AttentionShape& shape) {
  return max(detail::AttentionPlan(shape, 1, false).workspace_bytes(shape),
             detail::AttentionPlan(shape, 1, true).workspace_bytes(shape));
}

template <bool ZeroMaskedRows = false, class TQ, class TK, class TO, class Mask>
void attention(const Pool& pool, const AttentionShape& shape, const TQ* q, const TK* k, const TK* v, TO* out,
               const Mask& mask, void* workspace) {
  const AttentionShape& s = shape;
  if (s.batch <= 0 || s.heads <= 0 || s.queries <= 0 || s.value_size <= 0) return;
  if (s.keys <= 0) {
    for (i64 i = 0; i < s.batch * s.heads * s.queries; ++i) {
      TO* row = out + i / (s.heads * s.queries) * s.o_batch + i / s.queries % s.heads * s.o_head + i % s.queries * s.o_row;
      for_lanes(s.value_size, [&](i64 d, auto lanes) { store(row + d, F{}, lanes); });
    }
    return;
  }
  const detail::AttentionPlan plan(s, pool.threads, detail::copies_blocks<TK>(s));
  float* parts = plan.splits > 1 ? static_cast<float*>(workspace) : nullptr;
  const i64 part_floats = plan.part_floats(s);
  pool.parallel_for(plan.tasks * plan.splits, [&](i64 i) {
    const i64 split = i % plan.splits, task = i / plan.splits;
    const i64 block = plan.blocks - 1 - task % plan.blocks;  // later queries first: under a causal mask they take longest
    const i64 kv_head = task / plan.blocks % s.kv_heads, b = task / plan.blocks / s.kv_heads;
    const i64 begin = s.keys * split / plan.splits, end = s.keys * (split + 1) / plan.splits;
    float* part = parts ? parts + i * part_floats : nullptr;
    if (plan.by_row)
      detail::row_task<ZeroMaskedRows>(s, plan, b, kv_head, block * plan.task_rows, begin, end, q, k, v, out, mask, part);
    else
      detail::panel_task<ZeroMaskedRows>(s, plan, b, kv_head, block * plan.task_rows, begin, end, q, k, v, out, mask,
                                         part);
  });
  if (!parts) return;
  pool.parallel_for(plan.tasks, [&](i64 task) {
    const i64 row0 = (plan.blocks - 1 - task % plan.blocks) * plan.task_rows;
    const i64 kv_head = task / plan.blocks % s.kv_heads, b = task / plan.blocks / s.kv_heads;
    for (i64 r = 0; r < min(plan.task_rows, plan.rows - row0); ++r) {
      const i64 h = kv_head * plan.group + (row0 + r) / s.queries, i = (row0 + r) % s.queries;
      detail::merge_parts<ZeroMaskedRows>(parts + task * plan.splits * part_floats, plan.splits, part_floats, r,
                                          s.value_size, out + b * s.o_batch + h * s.o_head + i * s.o_row, mask);
    }
  });
}

// The formula, one query at a time in double.
template <bool ZeroMaskedRows = false, class TQ, class TK, class TO, class Mask>
void attention_reference(const AttentionShape& s, const TQ* q, const TK* k, const TK* v, TO* out, const Mask& mask) {
  for (i64 b = 0; b < s.batch; ++b)
    for (i64 h = 0; h < s.heads; ++h)
      for (i64 i = 0; i < s.queries; ++i) {
        const i64 g = h / (s.heads / s.kv_heads);
        auto score = [&](i64 j) {
          double x = 0;
          for (i64 d = 0; d < s.head_size; ++d)
            x += static_cast<double>(to_float(q[b * s.q_batch + h * s.q_head + i * s.q_row + d])) *
                 static_cast<double>(to_float(k[b * s.k_batch + g * s.k_head + j * s.k_row + d]));
          x *= static_cast<double>(s.scale);
          if constexpr (__is_same(Mask, BiasMask))  // in float, where finfo.min swallows the score
            x = static_cast<double>(static_cast<float>(x) +
                                    mask.p[b * mask.batch + h * mask.head + i * mask.row + j * mask.col]);
          if constexpr (__is_same(Mask, BoolMask))
            if (!mask.p[b * mask.batch + h * mask.head + i * mask.row + j * mask.col]) x = -kInfinity;
          return s.causal && j > i + s.keys - s.queries ? -static_cast<double>(kInfinity) : x;
        };
        double m = -kInfinity, sum = 0;
        for (i64 j = 0; j < s.keys; ++j) {
          const double x = score(j);
          if (x > m) m = x;
        }
        const bool nothing = s.keys == 0 || (ZeroMaskedRows && m == -static_cast<double>(kInfinity));
        for (i64 j = 0; j < s.keys; ++j) sum += ::exp(score(j) - m);
        for (i64 d0 = 0; d0 < s.value_size; d0 += 256) {
          const i64 n = min<i64>(256, s.value_size - d0);
          double o[256] = {};
          for (i64 j = 0; j < s.keys; ++j) {
            const double p = ::exp(score(j) - m) / sum;
            const TK* row = v + b * s.v_batch + g * s.v_head + j * s.v_row + d0;
            for (i64 d = 0; d < n; ++d) o[d] += p * static_cast<double>(to_float(row[d]));
          }
          for (i64 d = 0; d < n; ++d)
            out[b * s.o_batch + h * s.o_head + i * s.o_row + d0 + d] =
                from_float<TO>(nothing ? 0.0f : static_cast<float>(o[d]));
        }
      }
}

}  // namespace opsmith
