// Softmax and log-softmax, along the contiguous last dimension or along a strided one.
//
//   y[r][c] = exp(x[r][c] - m) / sum over c of exp(x[r][c] - m),   m = max over c of x[r][c]
//
// A row of up to 16384 elements is read from memory once: its exponentials wait in a stack buffer for their sum. Longer
// rows are read twice (a running maximum and sum, then the result). A row that is all -inf, or holds +inf or NaN, gives
// NaN, as the formula does. x and y may be the same memory.
#pragma once

#include "math.hpp"
#include "types.hpp"

namespace opsmith {

inline constexpr i64 kSoftmaxBuffer = 16384;  // floats on the stack: 64 KB
inline constexpr i64 kSoftmaxGrain = 8192;    // elements that are worth a thread: about 10 us

namespace detail {

template <class T>
OPSMITH_INLINE float row_max(const T* x, i64 n) {
  F m0 = all<F>(-kInfinity), m1 = m0, m2 = m0, m3 = m0;
  i64 i = 0;
  for (; i + 4 * W <= n; i += 4 * W) {
    m0 = max_or_second(load(x + i, Full{}), m0);
    m1 = max_or_second(load(x + i + W, Full{}), m1);
    m2 = max_or_second(load(x + i + 2 * W, Full{}), m2);
    m3 = max_or_second(load(x + i + 3 * W, Full{}), m3);
  }
  for (; i + W <= n; i += W) m0 = max_or_second(load(x + i, Full{}), m0);
  float m = lane_max(max_or_second(max_or_second(m0, m1), max_or_second(m2, m3)));
  for (; i < n; ++i) m = max_or_second(to_float(x[i]), m);
  return m;  // NaN elements are skipped here; they show in the sum
}

// The sum of exp(x - m), and the exponentials themselves in e unless it is null.
template <class T>
OPSMITH_INLINE float exp_sum(const T* x, i64 n, float m, float* e) {
  F s0{}, s1{};
  i64 i = 0;
  for (; i + 2 * W <= n; i += 2 * W) {
    const F a = exp_negative(load(x + i, Full{}) - m), b = exp_negative(load(x + i + W, Full{}) - m);
    if (e) {
      store(e + i, a, Full{});
      store(e + i + W, b, Full{});
    }
    s0 += a;
    s1 += b;
  }
  float s = 0;
  for (; i < n; i += W) {
    const i64 count = n - i < W ? n - i : W;
    const F a = count == W ? exp_negative(load(x + i, Full{}) - m) : exp_negative(load(x + i, Tail{count}) - m);
    if (count == W) {
      s0 += a;
      if (e) store(e + i, a, Full{});
    } else {
      for (i64 l = 0; l < count; ++l) s += a[l];
      if (e) store(e + i, a, Tail{count});
    }
  }
  return s + lane_sum(s0 + s1);
}

// Maximum and sum of exponentials of a row too long for the buffer: block by block, the sum rescaled when m grows.
template <class T>
inline float online_exp_sum(const T* x, i64 n, float& m) {
  constexpr i64 block = 4096;
  double s = 0;
  m = -kInfinity;
  for (i64 i = 0; i < n; i += block) {
    const i64 count = min(block, n - i);
    const float next = max_or_second(row_max(x + i, count), m);
    if (next == -kInfinity) {  // all -inf so far, or NaN: nothing to add unless NaN
      for (i64 j = 0; j < count; ++j)
        if (to_float(x[i + j]) != to_float(x[i + j])) s = kNaN;
      continue;
    }
    s = s * static_cast<double>(exp_negative(m - next)) + static_cast<double>(exp_sum(x + i, count, next, nullptr));
    m = next;
  }
  return static_cast<float>(s);
}

template <bool Log, class TX, class TY>
inline void softmax_row(const TX* x, i64 cols, TY* y, i64 x_stride) {
  if (!Log && cols <= kSoftmaxBuffer) {
    alignas(64) float e[kSoftmaxBuffer];
    const float m = row_max(x, cols);
    for (i64 i = 0; i < cols; i += 64 / i64(sizeof(TX))) __builtin_prefetch(x + x_stride + i);  // the next row
    const float r = 1.0f / exp_sum(x, cols, m, e);
    for_lanes(cols, [&](i64 i, auto lanes) { store(y + i, load(e + i, lanes) * r, lanes); });
    return;
  }
  float m, s;
  if (cols <= kSoftmaxBuffer) {
    m = row_max(x, cols);
    s = exp_sum(x, cols, m, nullptr);
  } else {
    s = online_exp_sum(x, cols, m);
  }
  if constexpr (Log) {
    const float log_sum = log(s);
    for_lanes(cols, [&](i64 i, auto lanes) { store(y + i, (load(x + i, lanes) - m) - log_sum, lanes); });
  } else {
    const float r = 1.0f / s;
    for_lanes(cols, [&](i64 i, auto lanes) { store(y + i, exp_negative(load(x + i, lanes) - m) * r, lanes); });
  }
}

// One vector of inner positions: the axis runs with a stride, the lanes are independent rows.
template <bool Log, class TX, class TY, class Lanes>
OPSMITH_INLINE void softmax_column(const TX* x, i64 axis, i64 inner, TY* y, Lanes lanes) {
  constexpr i64 buffered = kSoftmaxBuffer / W;
  alignas(64) float e[kSoftmaxBuffer];
  F m = all<F>(-kInfinity), s{};
  for (i64 a = 0; a < axis; ++a) m = max_or_second(load(x + a * inner, lanes), m);
  for (i64 a = 0; a < axis; ++a) {
    const F v = exp_negative(load(x + a * inner, lanes) - m);
    if (!Log && axis <= buffered) store(e + a * W, v, Full{});
    s += v;
  }
  if constexpr (Log) {
    const F log_sum = log(s);
    for (i64 a = 0; a < axis; ++a) store(y + a * inner, (load(x + a * inner, lanes) - m) - log_sum, lanes);
  } else {
    const F r = 1.0f / s;
    for (i64 a = 0; a < axis; ++a) {
      const F v = axis <= buffered ? load(e + a * W, Full{}) : exp_negative(load(x + a * inner, lanes) - m);
      store(y + a * inner, v * r, lanes);
    }
  }
}

template <bool Log, class TX, class TY>
inline void softmax_rows(const Pool& pool, i64 rows, i64 cols, const TX* x, i64 x_stride, TY* y, i64 y_stride) {
  pool.parallel_ranges(rows, kSoftmaxGrain / max<i64>(cols, 1), [&](i64 begin, i64 end) {
    for (i64 r = begin; r < end; ++r) softmax_row<Log>(x + r * x_stride, cols, y + r * y_stride, x_stride);
  });
}

template <bool Log, class TX, class TY>
inline void softmax_axis(const Pool& pool, i64 outer, i64 axis, i64 inner, const TX* x, TY* y) {
  if (inner == 1) return softmax_rows<Log>(pool, outer, axis, x, axis, y, axis);
  const i64 columns = ceil_div(inner, W);  // vectors of inner positions
  pool.parallel_ranges(outer * columns, kSoftmaxGrain / max<i64>(axis * W, 1), [&](i64 begin, i64 end) {
    for (i64 i = begin; i < end; ++i) {
      const i64 o = i / columns, c = i % columns * W, at = o * axis * inner + c;
      if (c + W <= inner)
        softmax_column<Log>(x + at, axis, inner, y + at, Full{});
      else
        softmax_column<Log>(x + at, axis, inner, y + at, Tail{inner - c});
    }
  });
}

}  // namespace detail

// x, y: [rows, cols] with the given strides between rows.
template <class TX, class TY>
void softmax(const Pool& pool, i64 rows, i64 cols, const TX* x, i64 x_stride, TY* y, i64 y_stride) {
  detail::softmax_rows<false>(pool, rows, cols, x, x_stride, y, y_stride);
}
template <class TX, class TY>
void log_softmax(const Pool& pool, i64 rows, i64 cols, const TX* x, i64 x_stride, TY* y, i64 y_stride) {
  detail::softmax_rows<true>(pool, rows, cols, x, x_stride, y, y_stride);
}

// x, y: [outer, axis, inner], contiguous; softmax over the axis.
template <class TX, class TY>
void softmax(const Pool& pool, i64 outer, i64 axis, i64 inner, const TX* x, TY* y) {
  detail::softmax_axis<false>(pool, outer, axis, inner, x, y);
}
template <class TX, class TY>
void log_softmax(const Pool& pool, i64 outer, i64 axis, i64 inner, const TX* x, TY* y) {
  detail::softmax_axis<true>(pool, outer, axis, inner, x, y);
}

// The formula, element by element in double.
template <class TX, class TY>
void softmax_reference(i64 outer, i64 axis, i64 inner, const TX* x, TY* y, bool logarithm) {
  for (i64 o = 0; o < outer; ++o)
    for (i64 i = 0; i < inner; ++i) {
      const TX* in = x + o * axis * inner + i;
      TY* out = y + o * axis * inner + i;
      double m = -kInfinity, s = 0;
      for (i64 a = 0; a < axis; ++a)
        if (to_float(in[a * inner]) > m) m = to_float(in[a * inner]);
      for (i64 a = 0; a < axis; ++a) s += ::exp(to_float(in[a * inner]) - m);
      for (i64 a = 0; a < axis; ++a) {
        const double d = to_float(in[a * inner]) - m;
        out[a * inner] = from_float<TY>(static_cast<float>(logarithm ? d - ::log(s) : ::exp(d) / s));
      }
    }
}

}  // namespace opsmith
