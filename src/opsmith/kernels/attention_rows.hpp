// Attention row by row, with the lanes along D: for decoding, where a kv head has few queries.
#pragma once

#include "attention_plan.hpp"

namespace opsmith {

// Keys and values may be bytes with a scale per row (attention_scaled.hpp). Strides in elements; the scales of a head lie side by side.
struct NoScales {};
struct RowScales {
  const float* k;
  i64 k_batch, k_head;
  const float* v;
  i64 v_batch, v_head;
};

namespace detail {

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
  constexpr int vectors = R > 1 ? attention_row_nv : 4;
  i64 d = 0;
  for (; d + vectors * W <= Dv; d += vectors * W, next.count = 0)  // the first pass asks for whole rows
    row_values_of<R, vectors>(p, key_block, v + d, stride, n, Dv, shrink, o + d, Full{}, next);
  for_lanes(Dv - d, [&](i64 c, auto lanes) {
    row_values_of<R, 1>(p, key_block, v + d + c, stride, n, Dv, shrink, o + d + c, lanes, next);
    next.count = 0;
  });
}

// row[j] *= scales[j]
OPSMITH_INLINE void scale_row(float* row, const float* scales, i64 n) {
  for_lanes(n, [&](i64 j, auto l) { store(row + j, load(static_cast<const float*>(row) + j, l) * load(scales + j, l), l); });
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

template <bool ZeroMaskedRows, class TQ, class TK, class TO, class Mask, class Scales>
inline void row_task(const AttentionShape& s, const AttentionPlan& plan, i64 b, i64 kv_head, i64 row0, i64 begin,
                     i64 end, const TQ* q, const TK* k, const TK* v, TO* out, const Mask& mask, float* part,
                     [[maybe_unused]] const Scales& scales) {
  alignas(64) float scratch[kScratch];
  constexpr bool scaled = !__is_same(Scales, NoScales);
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
  const float cap = s.cap * (kBase2<Mask> ? kLog2e : 1.0f);
  narrow_to_seen(mask, lanes.mask_at, rows, begin, end);
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
    Ahead<TK> keys{left > 0 ? k_rows + plan.key_block * s.k_row : k_head + s.k_head + begin * s.k_row, s.k_row, count, D};
    Ahead<TK> values{left > 0 ? v_rows + plan.key_block * s.v_row : v_head + s.v_head + begin * s.v_row, s.v_row, count, Dv};
    auto step = [&]<int R>(std::integral_constant<int, R>, i64 r0) {
      i64 n = 0;  // keys of the block that any of the rows sees
      for (i64 r = r0; r < r0 + R; ++r) n = max(n, min(min(plan.key_block, end - k0), lanes.limit[r] - k0 + 1));
      if (n <= 0) return;
      float shrink[R];
      row_scores<R>(q_rows + r0 * D, k_rows, s.k_row, n, D, scores, plan.key_block, keys);
      for (i64 r = r0; r < r0 + R; ++r) {
        float* row = scores + (r - r0) * plan.key_block;
        if constexpr (scaled) scale_row(row, scales.k + b * scales.k_batch + kv_head * scales.k_head + k0, n);
        if (cap > 0)
          for_lanes(n, [&](i64 j, auto l) { store(row + j, capped(load(static_cast<const float*>(row) + j, l), cap), l); });
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
        if constexpr (scaled) scale_row(row, scales.v + b * scales.v_batch + kv_head * scales.v_head + k0, n);
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

}  // namespace detail
}  // namespace opsmith
