// Reductions over any axes of a tensor of any element type, with axes that may only be known at run time: the plain form of
// every Reduce operator, CumSum and their kin. Sums of floats run in double, so the order of the axes does not matter.
// (reduce.hpp holds the vector forms for floats over one run of axes.)
#pragma once

#include "elementwise.hpp"
#include "sizes.hpp"

namespace opsmith {

// What a reduction keeps while it runs: doubles for floats, 64-bit integers for the rest.
template <class T>
inline constexpr bool is_whole = IntegerStorage<T> || __is_same(T, bool);
template <class T, bool Whole = is_whole<T>>
struct WideOf {
  using type = double;
};
template <class T>
struct WideOf<T, true> {
  using type = i64;
};
template <class T>
using Wide = typename WideOf<T>::type;

template <class T>
OPSMITH_INLINE Wide<T> widen_scalar(T x) {
  return static_cast<Wide<T>>(from_storage(x));
}
template <class T, class A>
OPSMITH_INLINE T narrow_scalar(A x) {
  if constexpr (__is_same(T, half) || __is_same(T, bfloat16))
    return from_float<T>(static_cast<float>(x));
  else if constexpr (__is_same(T, bool))
    return x != 0;
  else
    return static_cast<T>(x);
}

inline constexpr double kDoubleInfinity = __builtin_inf();

struct FoldSum {
  template <class A> static A start() { return A(0); }
  template <class A> static A step(A acc, A x) { return acc + x; }
  template <class A> static A finish(A acc, i64) { return acc; }
};
struct FoldMean : FoldSum {
  template <class A> static A finish(A acc, i64 n) {
    if constexpr (__is_same(A, i64))
      return n ? acc / n : 0;
    else
      return acc / static_cast<A>(n);
  }
};
struct FoldSumSquare : FoldSum {
  template <class A> static A step(A acc, A x) { return acc + x * x; }
};
struct FoldL1 : FoldSum {
  template <class A> static A step(A acc, A x) { return acc + (x < 0 ? -x : x); }
};
struct FoldL2 : FoldSumSquare {
  template <class A> static A finish(A acc, i64) { return static_cast<A>(__builtin_sqrt(static_cast<double>(acc))); }
};
struct FoldLogSum : FoldSum {
  template <class A> static A finish(A acc, i64) { return static_cast<A>(__builtin_log(static_cast<double>(acc))); }
};
struct FoldProd : FoldSum {
  template <class A> static A start() { return A(1); }
  template <class A> static A step(A acc, A x) { return acc * x; }
};
// Max and Min start with the identity of their type; NaN wins, as in numpy. The scale of uint64 is that of int64 with its top bit
// flipped, which folding does on the way in and out.
struct FoldMax : FoldSum {
  template <class A> static A start() {
    if constexpr (__is_same(A, i64))
      return INT64_MIN;
    else
      return -kDoubleInfinity;
  }
  template <class A> static A step(A acc, A x) { return acc != acc ? acc : x > acc || x != x ? x : acc; }
};
struct FoldMin : FoldSum {
  template <class A> static A start() {
    if constexpr (__is_same(A, i64))
      return INT64_MAX;
    else
      return kDoubleInfinity;
  }
  template <class A> static A step(A acc, A x) { return acc != acc ? acc : x < acc || x != x ? x : acc; }
};

// A tensor's dims split into those that stay and those that are folded, each with the input's strides.
struct FoldPlan {
  int kept = 0, folded = 0;
  i64 kept_dims[kSizesRank], kept_strides[kSizesRank], dims[kSizesRank], strides[kSizesRank];

  FoldPlan(const Sizes& all, const Sizes& steps, const Sizes& axes, bool every) {
    for (int d = 0; d < all.count; ++d) {
      if (every || has_axis(d, all.count, axes)) {
        dims[folded] = all.at[d];
        strides[folded++] = steps.at[d];
      } else {
        kept_dims[kept] = all.at[d];
        kept_strides[kept++] = steps.at[d];
      }
    }
  }
  i64 outputs() const {
    i64 n = 1;
    for (int d = 0; d < kept; ++d) n *= kept_dims[d];
    return n;
  }
  i64 inputs() const {
    i64 n = 1;
    for (int d = 0; d < folded; ++d) n *= dims[d];
    return n;
  }
  i64 base(i64 output) const {
    i64 at = 0;
    for (int d = kept - 1; d >= 0; --d) {
      at += output % kept_dims[d] * kept_strides[d];
      output /= kept_dims[d];
    }
    return at;
  }
  // f(offset) for every folded element, in row-major order
  template <class Fn>
  void each(i64 at, Fn&& f) const {
    if (folded == 0) return f(at);
    const int last = folded - 1;
    i64 index[kSizesRank] = {};
    for (;;) {
      for (i64 i = 0; i < dims[last]; ++i) f(at + i * strides[last]);
      int d = last - 1;
      for (; d >= 0; --d) {
        at += strides[d];
        if (++index[d] < dims[d]) break;
        at -= strides[d] * dims[d];
        index[d] = 0;
      }
      if (d < 0) return;
    }
  }
};

// Task size in elements: about 10 us of scalar work.
inline i64 fold_outputs_per_task(i64 inputs) { return max<i64>(1, 8192 / max<i64>(1, inputs)); }

// out (dense, the kept dims in order) = fold of x over `axes`; over all axes if `every`
template <class Op, class TO, class T>
void fold(const Pool& pool, const Sizes& dims, const Sizes& strides, const Sizes& axes, bool every, const T* x, TO* out) {
  const FoldPlan plan(dims, strides, axes, every);
  const i64 outputs = plan.outputs(), inputs = plan.inputs(), per_task = fold_outputs_per_task(inputs);
  constexpr uint64_t flip = __is_same(T, uint64_t) && (__is_same(Op, FoldMax) || __is_same(Op, FoldMin)) ? uint64_t(1) << 63 : 0;
  pool.parallel_for(ceil_div(outputs, per_task), [&](i64 t) {
    for (i64 o = t * per_task; o < min(outputs, (t + 1) * per_task); ++o) {
      auto acc = Op::template start<Wide<T>>();
      if (inputs > 0) plan.each(plan.base(o), [&](i64 at) {
        if constexpr (flip != 0)
          acc = Op::step(acc, static_cast<i64>(x[at] ^ flip));
        else
          acc = Op::step(acc, widen_scalar(x[at]));
      });
      if constexpr (flip != 0)
        out[o] = static_cast<TO>(static_cast<uint64_t>(acc) ^ flip);
      else if constexpr (IntegerStorage<T> && (__is_same(Op, FoldMax) || __is_same(Op, FoldMin)))
        out[o] = inputs ? static_cast<TO>(acc) : __is_same(Op, FoldMax) ? lowest_of<T> : highest_of<T>;
      else if constexpr (__is_same(T, bool))
        out[o] = inputs ? acc != 0 : __is_same(Op, FoldMin);
      else
        out[o] = narrow_scalar<TO>(Op::finish(acc, inputs));
    }
  });
}

// log(sum(exp(x))), shifted by the largest element seen so far
template <class TO, class T>
void fold_log_sum_exp(const Pool& pool, const Sizes& dims, const Sizes& strides, const Sizes& axes, bool every, const T* x, TO* out) {
  const FoldPlan plan(dims, strides, axes, every);
  const i64 outputs = plan.outputs(), inputs = plan.inputs(), per_task = fold_outputs_per_task(4 * inputs);
  pool.parallel_for(ceil_div(outputs, per_task), [&](i64 t) {
    for (i64 o = t * per_task; o < min(outputs, (t + 1) * per_task); ++o) {
      double top = -kDoubleInfinity, sum = 0;
      if (inputs > 0) plan.each(plan.base(o), [&](i64 at) {
        const double v = static_cast<double>(widen_scalar(x[at]));
        if (v == -kDoubleInfinity) return;
        if (v == top) {
          sum += 1;
        } else if (v > top) {
          sum = sum * __builtin_exp(top - v) + 1;
          top = v;
        } else {
          sum += __builtin_exp(v - top);
        }
      });
      out[o] = narrow_scalar<TO>(sum == 0 ? -kDoubleInfinity : top == kDoubleInfinity ? top : top + __builtin_log(sum));
    }
  });
}

// Running sums or products along an axis. x and out (outer, axis, inner), dense.
template <bool Product, class T>
void cumulate(const Pool& pool, i64 outer, i64 axis, i64 inner, bool exclusive, bool reverse, const T* x, T* out) {
  if (inner == 1) {
    pool.parallel_ranges(outer, max<i64>(1, 8192 / max<i64>(1, axis)), [&](i64 begin, i64 end) {
      for (i64 o = begin; o < end; ++o) {
        Wide<T> acc = Product ? 1 : 0;
        for (i64 k = 0; k < axis; ++k) {
          const i64 i = o * axis + (reverse ? axis - 1 - k : k);
          const Wide<T> v = widen_scalar(x[i]), next = Product ? acc * v : acc + v;
          out[i] = narrow_scalar<T>(exclusive ? acc : next);
          acc = next;
        }
      }
    });
    return;
  }
  constexpr i64 kColumns = 64;  // side by side
  const i64 bands = ceil_div(inner, kColumns);
  pool.parallel_ranges(outer * bands, max<i64>(1, 8192 / max<i64>(1, axis * min(inner, kColumns))), [&](i64 begin, i64 end) {
    for (i64 o = begin; o < end; ++o) {
      const i64 column = o % bands * kColumns, columns = min(kColumns, inner - column);
      const i64 at = o / bands * axis * inner + column;
      Wide<T> acc[kColumns];
      for (i64 c = 0; c < columns; ++c) acc[c] = Product ? 1 : 0;
      for (i64 k = 0; k < axis; ++k) {
        const i64 row = at + (reverse ? axis - 1 - k : k) * inner;
        for (i64 c = 0; c < columns; ++c) {
          const Wide<T> v = widen_scalar(x[row + c]);
          const Wide<T> next = Product ? acc[c] * v : acc[c] + v;
          out[row + c] = narrow_scalar<T>(exclusive ? acc[c] : next);
          acc[c] = next;
        }
      }
    }
  });
}

}  // namespace opsmith
