// Reductions over the middle of (outer, axis, inner): y[o][i] = finish(merge over a of map(x[o][a][i])).
//
//   reduce<op::Sum>(pool, outer, axis, inner, x, y)     Sum Mean SumSquare L1 L2 LogSum Prod Max Min LogSumExp
//   argmax(pool, outer, axis, inner, x, y, last)        and argmin; `last` takes the last of equals instead of the first
//
// float, f16 and bf16 are reduced on float lanes, in blocks whose results are merged in double along a contiguous axis;
// double and integers one by one in their own arithmetic (integer sums wrap around, as in numpy). NaN wins a maximum or
// minimum. An empty axis gives what the operation starts from: 0, 1, -inf, inf, and NaN for the mean.
#pragma once

#include <type_traits>

#include "math.hpp"
#include "types.hpp"

namespace opsmith {

namespace op {

// start: the neutral element; map: applied to each element; merge: associative; finish: applied to the end, n elements.
// V is F, float, double or an integer. Integer arithmetic is that of uint64_t, which wraps.
struct Sum {
  static constexpr double start = 0;
  template <class V>
  OPSMITH_INLINE static V map(V x) {
    return x;
  }
  template <class V>
  OPSMITH_INLINE static V merge(V a, V b) {
    return a + b;
  }
  template <class V>
  OPSMITH_INLINE static V finish(V a, i64) {
    return a;
  }
};
struct Mean : Sum {
  template <class V>
  OPSMITH_INLINE static V finish(V a, i64 n) {
    if constexpr (__is_same(V, double)) return a / static_cast<double>(n);
    return n == 0 ? V(0) : static_cast<V>(a / static_cast<V>(n));
  }
};
struct SumSquare : Sum {
  template <class V>
  OPSMITH_INLINE static V map(V x) {
    return x * x;
  }
};
struct L2 : SumSquare {
  template <class V>
  OPSMITH_INLINE static V finish(V a, i64) {
    return static_cast<V>(::sqrt(static_cast<double>(a)));
  }
};
struct L1 : Sum {
  template <class V>
  OPSMITH_INLINE static V map(V x) {
    if constexpr (FloatLanes<V>)
      return abs(x);
    else
      return x < V(0) ? -x : x;
  }
};
struct LogSum : Sum {
  template <class V>
  OPSMITH_INLINE static V finish(V a, i64) {
    return static_cast<V>(::log(static_cast<double>(a)));
  }
};
struct Prod : Sum {
  static constexpr double start = 1;
  template <class V>
  OPSMITH_INLINE static V merge(V a, V b) {
    return a * b;
  }
};
struct Max : Sum {
  static constexpr double start = -__builtin_inf();
  template <class V>
  OPSMITH_INLINE static V merge(V a, V b) {
    if constexpr (FloatLanes<V>)
      return max(a, b);
    else
      return a != a || a > b ? a : b;
  }
};
struct Min : Sum {
  static constexpr double start = __builtin_inf();
  template <class V>
  OPSMITH_INLINE static V merge(V a, V b) {
    if constexpr (FloatLanes<V>)
      return min(a, b);
    else
      return a != a || a < b ? a : b;
  }
};
struct LogSumExp {};

}  // namespace op

namespace detail {

inline constexpr i64 kReduceGrain = 16384;  // elements that are worth a thread

template <class T>
concept FloatStorage = __is_same(T, float) || __is_same(T, f16) || __is_same(T, bf16);

// shift is subtracted and the exponential taken where Exp is set: the second pass of LogSumExp.
template <class Op, bool Exp, class V>
OPSMITH_INLINE V mapped(V x, V shift) {
  if constexpr (Exp)
    return exp(x - shift);
  else
    return Op::map(x);
}

// A contiguous run: four vectors of partial results per 4096 elements, merged in double.
template <class Op, bool Exp, class T>
inline double reduce_run(const T* x, i64 n, float shift) {
  constexpr float start = static_cast<float>(Op::start);
  const F shifts = all<F>(shift);
  double total = Op::start;
  for (i64 i0 = 0; i0 < n; i0 += 4096) {
    const i64 end = min(n, i0 + 4096);
    F a0 = all<F>(start), a1 = a0, a2 = a0, a3 = a0;
    i64 i = i0;
    for (; i + 4 * W <= end; i += 4 * W) {
      a0 = Op::merge(a0, mapped<Op, Exp>(load(x + i, Full{}), shifts));
      a1 = Op::merge(a1, mapped<Op, Exp>(load(x + i + W, Full{}), shifts));
      a2 = Op::merge(a2, mapped<Op, Exp>(load(x + i + 2 * W, Full{}), shifts));
      a3 = Op::merge(a3, mapped<Op, Exp>(load(x + i + 3 * W, Full{}), shifts));
    }
    for (; i + W <= end; i += W) a0 = Op::merge(a0, mapped<Op, Exp>(load(x + i, Full{}), shifts));
    if (i > i0) {  // a run shorter than a vector has nothing there: real and imaginary part, the coordinates of a point
      const F a = Op::merge(Op::merge(a0, a1), Op::merge(a2, a3));
      for (i64 l = 0; l < W; ++l) total = Op::merge(total, static_cast<double>(a[l]));
    }
    for (; i < end; ++i) total = Op::merge(total, static_cast<double>(mapped<Op, Exp>(to_float(x[i]), shift)));
  }
  return total;
}

// A band of up to kBand inner positions, its results in `total`: memory is read row by row, as it lies. 256 steps of the
// axis go into one partial result, so that sums stay short.
inline constexpr i64 kBand = 512;

template <class Op, bool Exp, class T>
inline void reduce_band(const T* x, i64 axis, i64 inner, i64 width, const float* shift, float* total) {
  alignas(64) float part[kBand];
  const F start = all<F>(static_cast<float>(Op::start));
  for_lanes(width, [&](i64 c, auto lanes) { store(total + c, start, lanes); });
  for (i64 a0 = 0; a0 < axis; a0 += 256) {
    for_lanes(width, [&](i64 c, auto lanes) { store(part + c, start, lanes); });
    const i64 end = min(axis, a0 + 256);
    i64 a = a0;
    for (; a + 2 <= end; a += 2) {
      const T* row = x + a * inner;
      for_lanes(width, [&](i64 c, auto lanes) {
        const F s = Exp ? load(shift + c, lanes) : F{};
        const F pair = Op::merge(mapped<Op, Exp>(load(row + c, lanes), s), mapped<Op, Exp>(load(row + inner + c, lanes), s));
        store(part + c, Op::merge(load(static_cast<const float*>(part) + c, lanes), pair), lanes);
      });
    }
    if (a < end)
      for_lanes(width, [&](i64 c, auto lanes) {
        const F v = mapped<Op, Exp>(load(x + a * inner + c, lanes), Exp ? load(shift + c, lanes) : F{});
        store(part + c, Op::merge(load(static_cast<const float*>(part) + c, lanes), v), lanes);
      });
    for_lanes(width, [&](i64 c, auto lanes) {
      const F merged = Op::merge(load(static_cast<const float*>(total) + c, lanes), load(static_cast<const float*>(part) + c, lanes));
      store(total + c, merged, lanes);
    });
  }
}

OPSMITH_INLINE float finite_or_zero(float m) { return abs(m) < kInfinity ? m : 0.0f; }  // also for NaN

template <class Op, class T>
inline double reduce_row(const T* x, i64 n) {
  if constexpr (__is_same(Op, op::LogSumExp)) {
    const float m = finite_or_zero(static_cast<float>(reduce_run<op::Max, false>(x, n, 0)));
    return static_cast<double>(m) + ::log(reduce_run<op::Sum, true>(x, n, m));
  } else {
    return Op::finish(reduce_run<Op, false>(x, n, 0), n);
  }
}

// One long run cut into 64 parts for the threads; LogSumExp merges maxima first.
template <class Op, bool Exp, class T>
inline double reduce_long_run(const Pool& pool, const T* x, i64 n, float shift) {
  constexpr i64 parts = 64;
  double part[parts];
  pool.parallel_for(parts, [&](i64 i) {
    const i64 begin = n * i / parts;
    part[i] = reduce_run<Op, Exp>(x + begin, n * (i + 1) / parts - begin, shift);
  });
  double total = Op::start;
  for (double p : part) total = Op::merge(total, p);
  return total;
}

template <class Op, class T, class TY>
inline void reduce_floats(const Pool& pool, i64 outer, i64 axis, i64 inner, const T* x, TY* y) {
  auto stored = [](double v) { return from_float<TY>(static_cast<float>(v)); };
  if (inner == 1 && outer == 1 && axis >= 8 * kReduceGrain && pool.threads > 1) {
    if constexpr (__is_same(Op, op::LogSumExp)) {
      const float m = finite_or_zero(static_cast<float>(reduce_long_run<op::Max, false>(pool, x, axis, 0)));
      y[0] = stored(static_cast<double>(m) + ::log(reduce_long_run<op::Sum, true>(pool, x, axis, m)));
    } else {
      y[0] = stored(Op::finish(reduce_long_run<Op, false>(pool, x, axis, 0), axis));
    }
    return;
  }
  if (inner == 1) {
    pool.parallel_ranges(outer, kReduceGrain / max<i64>(axis, 1), [&](i64 begin, i64 end) {
      for (i64 o = begin; o < end; ++o) y[o] = stored(reduce_row<Op>(x + o * axis, axis));
    });
    return;
  }
  const i64 bands = ceil_div(inner, kBand);
  pool.parallel_ranges(outer * bands, kReduceGrain / max<i64>(axis * min(inner, kBand), 1), [&](i64 begin, i64 end) {
    alignas(64) float total[kBand];
    for (i64 i = begin; i < end; ++i) {
      const i64 o = i / bands, c0 = i % bands * kBand, width = min(kBand, inner - c0);
      const T* in = x + o * axis * inner + c0;
      TY* out = y + o * inner + c0;
      if constexpr (__is_same(Op, op::LogSumExp)) {
        alignas(64) float shift[kBand];
        reduce_band<op::Max, false>(in, axis, inner, width, nullptr, shift);
        for (i64 c = 0; c < width; ++c) shift[c] = finite_or_zero(shift[c]);
        reduce_band<op::Sum, true>(in, axis, inner, width, shift, total);
        for (i64 c = 0; c < width; ++c) out[c] = from_float<TY>(shift[c] + log(total[c]));
      } else {
        reduce_band<Op, false>(in, axis, inner, width, nullptr, total);
        for (i64 c = 0; c < width; ++c) out[c] = stored(Op::finish(static_cast<double>(total[c]), axis));
      }
    }
  });
}

// double and integers, position by position.
template <class Op, class T>
inline void reduce_scalars(const Pool& pool, i64 outer, i64 axis, i64 inner, const T* x, T* y) {
  constexpr bool real = __is_same(T, double), extreme = __is_same(Op, op::Max) || __is_same(Op, op::Min);
  const i64 columns = ceil_div(inner, 64);
  pool.parallel_ranges(outer * columns, kReduceGrain / max<i64>(axis * min<i64>(inner, 64), 1), [&](i64 begin, i64 end) {
    for (i64 i = begin; i < end; ++i) {
      const i64 o = i / columns, c = i % columns * 64, count = min<i64>(64, inner - c);
      const T* in = x + o * axis * inner + c;
      for (i64 l = 0; l < count; ++l) {
        if constexpr (__is_same(Op, op::LogSumExp)) {
          double m = -__builtin_inf(), s = 0;
          for (i64 a = 0; a < axis; ++a) m = op::Max::merge(m, static_cast<double>(in[a * inner + l]));
          if (!(m - m == 0)) m = 0;
          for (i64 a = 0; a < axis; ++a) s += ::exp(static_cast<double>(in[a * inner + l]) - m);
          y[o * inner + c + l] = static_cast<T>(m + ::log(s));
        } else if constexpr (real) {
          double total = Op::start;
          for (i64 a = 0; a < axis; ++a) total = Op::merge(total, Op::map(in[a * inner + l]));
          y[o * inner + c + l] = Op::finish(total, axis);
        } else if constexpr (extreme) {
          T total = __is_same(Op, op::Max) ? lowest_of<T> : highest_of<T>;
          for (i64 a = 0; a < axis; ++a) total = Op::merge(total, in[a * inner + l]);
          y[o * inner + c + l] = total;
        } else {
          uint64_t total = static_cast<uint64_t>(Op::start);
          for (i64 a = 0; a < axis; ++a) {
            const T v = in[a * inner + l];
            const uint64_t wide = static_cast<uint64_t>(v);  // sign-extended
            total = Op::merge(total, __is_same(Op, op::L1) && v < T(0) ? -wide : Op::map(wide));
          }
          if constexpr (is_signed_integer<T>)
            y[o * inner + c + l] = static_cast<T>(Op::finish(static_cast<int64_t>(total), axis));
          else
            y[o * inner + c + l] = static_cast<T>(Op::finish(total, axis));
        }
      }
    }
  });
}

}  // namespace detail

template <class Op, class T, class TY>
void reduce(const Pool& pool, i64 outer, i64 axis, i64 inner, const T* x, TY* y) {
  if constexpr (detail::FloatStorage<T>)
    detail::reduce_floats<Op>(pool, outer, axis, inner, x, y);
  else
    detail::reduce_scalars<Op>(pool, outer, axis, inner, x, y);
}

// ---- the position of the largest or smallest -------------------------------------------------------------------------

namespace detail {

// Is a the better answer than b, where b comes earlier? As in ONNX Runtime, NaN beats nothing, and nothing beats a NaN that comes
// first. Of numbers or of vectors of them.
template <bool Largest, bool Last, class T>
OPSMITH_INLINE auto better(T a, T b) {
  if constexpr (Largest)
    return Last ? a >= b : a > b;
  else
    return Last ? a <= b : a < b;
}

template <class T>
OPSMITH_INLINE auto comparable(T x) {
  if constexpr (FloatStorage<T>)
    return to_float(x);
  else
    return x;
}

// A row of floats: the extreme by lanes, then a search for where it is, which ends early.
template <bool Largest, bool Last, class T>
inline i64 arg_run(const T* x, i64 n) {
  using Op = std::conditional_t<Largest, op::Max, op::Min>;
  const float m = static_cast<float>(reduce_run<Op, false>(x, n, 0));
  if (m != m) {
    i64 best = 0;
    for (i64 i = 1; i < n; ++i)
      if (better<Largest, Last>(to_float(x[i]), to_float(x[best]))) best = i;
    return best;
  }
  const i64 step = Last ? -1 : 1;
  for (i64 k = 0, i = Last ? n - 1 : 0; k < n; ++k, i += step)
    if (to_float(x[i]) == m) return i;
  return 0;
}

// Columns of floats, W at a time.
template <bool Largest, bool Last, class T>
inline void arg_columns(const T* in, i64 axis, i64 inner, i64 count, int64_t* y) {
  for_lanes(count, [&](i64 l, auto lanes) {
    F best = load(in + l, lanes);
    I at{};
    for (i64 a = 1; a < axis; ++a) {
      const F v = load(in + a * inner + l, lanes);
      const I wins = better<Largest, Last>(v, best);
      best = select(wins, v, best);
      at = (splat(static_cast<int32_t>(a)) & wins) | (at & ~wins);
    }
    for (i64 i = 0; i < lanes.count; ++i) y[l + i] = at[i];
  });
}

template <bool Largest, bool Last, class T>
inline void arg_reduce(const Pool& pool, i64 outer, i64 axis, i64 inner, const T* x, int64_t* y) {
  const i64 columns = ceil_div(inner, 64);
  pool.parallel_ranges(outer * columns, kReduceGrain / max<i64>(axis * min<i64>(inner, 64), 1), [&](i64 begin, i64 end) {
    for (i64 i = begin; i < end; ++i) {
      const i64 o = i / columns, c = i % columns * 64, count = min<i64>(64, inner - c);
      const T* in = x + o * axis * inner + c;
      if constexpr (FloatStorage<T>) {
        if (inner == 1)
          y[o] = arg_run<Largest, Last>(in, axis);
        else
          arg_columns<Largest, Last>(in, axis, inner, count, y + o * inner + c);
        continue;
      }
      decltype(comparable(in[0])) best[64];
      int64_t* at = y + o * inner + c;
      for (i64 l = 0; l < count; ++l) best[l] = comparable(in[l]), at[l] = 0;
      for (i64 a = 1; a < axis; ++a)
        for (i64 l = 0; l < count; ++l) {
          const auto v = comparable(in[a * inner + l]);
          if (better<Largest, Last>(v, best[l])) best[l] = v, at[l] = a;
        }
    }
  });
}

}  // namespace detail

template <class T>
void argmax(const Pool& pool, i64 outer, i64 axis, i64 inner, const T* x, int64_t* y, bool last = false) {
  if (axis <= 0) return;
  if (last)
    detail::arg_reduce<true, true>(pool, outer, axis, inner, x, y);
  else
    detail::arg_reduce<true, false>(pool, outer, axis, inner, x, y);
}
template <class T>
void argmin(const Pool& pool, i64 outer, i64 axis, i64 inner, const T* x, int64_t* y, bool last = false) {
  if (axis <= 0) return;
  if (last)
    detail::arg_reduce<false, true>(pool, outer, axis, inner, x, y);
  else
    detail::arg_reduce<false, false>(pool, outer, axis, inner, x, y);
}

// One element at a time, in double.
template <class Op, class T, class TY>
void reduce_reference(i64 outer, i64 axis, i64 inner, const T* x, TY* y) {
  for (i64 o = 0; o < outer; ++o)
    for (i64 i = 0; i < inner; ++i) {
      auto at = [&](i64 a) { return static_cast<double>(to_float(x[(o * axis + a) * inner + i])); };
      double r;
      if constexpr (__is_same(Op, op::LogSumExp)) {
        r = 0;
        for (i64 a = 0; a < axis; ++a) r += ::exp(at(a));
        r = ::log(r);
      } else {
        r = Op::start;
        for (i64 a = 0; a < axis; ++a) r = Op::merge(r, Op::map(at(a)));
        r = Op::finish(r, axis);
      }
      y[o * inner + i] = from_float<TY>(static_cast<float>(r));
    }
}

}  // namespace opsmith
