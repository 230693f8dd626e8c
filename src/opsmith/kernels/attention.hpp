// Scaled dot-product attention that never holds the score matrix:
//
//   out[b][h][i] = sum over j of softmax_j(scale * q[b][h][i] . k[b][h'][j] + mask) * v[b][h'][j],   h' = h / (heads / kv_heads)
//
// Many queries go in tiles, with the queries across vector lanes (attention_tiles.hpp). Where the query heads of a kv head make
// fewer rows than a quarter vector (decoding), a second path works row by row with the lanes along D (attention_rows.hpp). Where
// there are fewer tasks than threads, keys are split and the parts, each with its own maximum and sum, are merged.
//
// A row whose keys are all masked gives NaN, as softmax over -inf does, or 0 with attention<true>(...), as torch's guard
// around it does. No keys at all give 0.
#pragma once

#include "attention_rows.hpp"
#include "attention_tiles.hpp"

namespace opsmith {
namespace detail {

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
  i64 bytes = 0;
  for (i64 copied : {0, 2, 4}) bytes = max(bytes, detail::AttentionPlan(shape, 1, copied).workspace_bytes(shape));
  return bytes;
}

template <bool ZeroMaskedRows = false, bool Pairs = false, class TQ, class TK, class TO, class Mask, class Scales = NoScales>
void attention(const Pool& pool, const AttentionShape& shape, const TQ* q, const TK* k, const TK* v, TO* out,
               const Mask& mask, void* workspace, const Scales& scales = {}) {
  constexpr bool only_rows = !__is_same(Scales, NoScales);
  const AttentionShape& s = shape;
  if (s.batch <= 0 || s.heads <= 0 || s.queries <= 0 || s.value_size <= 0) return;
  if (s.keys <= 0) {
    for (i64 i = 0; i < s.batch * s.heads * s.queries; ++i) {
      TO* row = out + i / (s.heads * s.queries) * s.o_batch + i / s.queries % s.heads * s.o_head + i % s.queries * s.o_row;
      for_lanes(s.value_size, [&](i64 d, auto lanes) { store(row + d, F{}, lanes); });
    }
    return;
  }
  const detail::AttentionPlan plan(s, pool.threads, only_rows ? 0 : Pairs ? 2 : detail::copies_blocks<TK>(s) ? 4 : 0, only_rows);
  float* parts = plan.splits > 1 ? static_cast<float*>(workspace) : nullptr;
  const i64 part_floats = plan.part_floats(s);
  pool.parallel_for(plan.tasks * plan.splits, [&](i64 i) {
    const i64 split = i % plan.splits, task = i / plan.splits;
    const i64 block = plan.blocks - 1 - task % plan.blocks;  // later queries first: under a causal mask they take longest
    const i64 kv_head = task / plan.blocks % s.kv_heads, b = task / plan.blocks / s.kv_heads;
    const i64 begin = s.keys * split / plan.splits, end = s.keys * (split + 1) / plan.splits;
    float* part = parts ? parts + i * part_floats : nullptr;
    if (plan.by_row)
      detail::row_task<ZeroMaskedRows>(s, plan, b, kv_head, block * plan.task_rows, begin, end, q, k, v, out, mask, part,
                                       scales);
    else if constexpr (!only_rows)
      detail::panel_task<ZeroMaskedRows, Pairs>(s, plan, b, kv_head, block * plan.task_rows, begin, end, q, k, v, out, mask,
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

// Both products in bf16, where the CPU has them (attention_tiles.hpp): many queries; few of them are read as fast as they lie.
template <bool ZeroMaskedRows = false, class TQ, class TK, class TO, class Mask>
void attention_bf16(const Pool& pool, const AttentionShape& shape, const TQ* q, const TK* k, const TK* v, TO* out,
                    const Mask& mask, void* workspace) {
  attention<ZeroMaskedRows, PairDot::fast>(pool, shape, q, k, v, out, mask, workspace);
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
          if (s.cap > 0) x = static_cast<double>(s.cap) * ::tanh(x / static_cast<double>(s.cap));
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
