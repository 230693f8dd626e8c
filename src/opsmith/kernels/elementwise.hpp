// Elementwise maps over strided tensors: out[i, j, ...] = body(a[i, j, ...], b[i, j, ...], ...).
//
// A Grid holds the output's dims and every operand's strides (0 where it is broadcast). Neighbouring dims that all operands
// traverse evenly are merged first, so a dense map is one long row. Rows are cut into tasks; inside a row full vectors are
// followed by one tail. Operands whose innermost stride is 0 are read from a vector of copies, so the loop has no branches.
//
// map_scalar is the plain reference of the same meaning, and serves every element type that has no vector form.
#pragma once

#include "base.hpp"
#include "float8.hpp"
#include "math.hpp"
#include "types.hpp"

namespace opsmith {

inline constexpr int kGridRank = 10;

struct Operand {
  const void* data;
  i64 strides[kGridRank];
};

template <int N>
struct Grid {
  int rank;
  i64 dims[kGridRank];
  Operand out;
  Operand in[N > 0 ? N : 1];

  Operand& operand(int i) { return i == 0 ? out : in[i - 1]; }

  // Drop dims of size 1 and merge an outer dim into its inner neighbour where every operand steps evenly over both.
  void collapse() {
    int n = 0;
    for (int d = 0; d < rank; ++d) {
      if (dims[d] == 1) continue;
      bool merge = n > 0;
      for (int i = 0; merge && i <= N; ++i) merge = operand(i).strides[n - 1] == operand(i).strides[d] * dims[d];
      const int to = merge ? n - 1 : n;
      dims[to] = merge ? dims[to] * dims[d] : dims[d];
      for (int i = 0; i <= N; ++i) operand(i).strides[to] = operand(i).strides[d];
      n = to + 1;
    }
    if (n == 0) {
      dims[0] = 1;
      for (int i = 0; i <= N; ++i) operand(i).strides[0] = 0;
      out.strides[0] = 1;
      n = 1;
    }
    rank = n;
  }

  // f(first element offset of each operand, row length) for every row and every piece of a row, in parallel.
  template <class Fn>
  void rows(const Pool& pool, Fn&& f) {
    collapse();
    i64 outer = 1;
    for (int d = 0; d + 1 < rank; ++d) outer *= dims[d];
    const i64 inner = dims[rank - 1];
    if (outer <= 0 || inner <= 0) return;
    constexpr i64 kTask = 16384;  // elements a task should have at least: about 5 us of work
    if (outer == 1) {
      const i64 piece = max<i64>(kTask, round_up(ceil_div(inner, 4 * pool.threads), 64));
      pool.parallel_for(ceil_div(inner, piece), [&](i64 t) {
        i64 at[N + 1];
        for (int i = 0; i <= N; ++i) at[i] = operand(i).strides[rank - 1] * (t * piece);
        f(at, min(piece, inner - t * piece));
      });
      return;
    }
    const i64 per_task = max<i64>(1, max<i64>(ceil_div(kTask, inner), ceil_div(outer, 8 * pool.threads)));
    pool.parallel_for(ceil_div(outer, per_task), [&](i64 t) {
      const i64 end = min(outer, (t + 1) * per_task);
      i64 index[kGridRank];
      i64 at[N + 1] = {};
      i64 rest = t * per_task;
      for (int d = rank - 2; d >= 0; --d) {
        index[d] = rest % dims[d];
        rest /= dims[d];
        for (int i = 0; i <= N; ++i) at[i] += operand(i).strides[d] * index[d];
      }
      for (i64 row = t * per_task; row < end; ++row) {
        f(at, inner);
        for (int d = rank - 2; d >= 0; --d) {
          for (int i = 0; i <= N; ++i) at[i] += operand(i).strides[d];
          if (++index[d] < dims[d]) break;
          for (int i = 0; i <= N; ++i) at[i] -= operand(i).strides[d] * dims[d];
          index[d] = 0;
        }
      }
    });
  }
};

// --- vector form of each storage type: floats of all sizes are F, bools are masks of 0 or -1 ---

template <class T, class L>
OPSMITH_INLINE auto lanes_from(const T* p, L lanes) {
  if constexpr (__is_same(T, bool)) {
    I v{};
    for (i64 i = 0; i < lanes.count; ++i) v[i] = -static_cast<int32_t>(p[i]);
    return v;
  } else {
    return load(p, lanes);
  }
}
template <class T, class V, class L>
OPSMITH_INLINE void lanes_to(T* p, V v, L lanes) {
  if constexpr (__is_same(T, bool)) {
    for (i64 i = 0; i < lanes.count; ++i) p[i] = v[i] != 0;
  } else {
    store(p, v, lanes);
  }
}
OPSMITH_INLINE F splat_of(float x) { return splat(x); }
OPSMITH_INLINE F splat_of(half x) { return splat(to_float(x)); }
OPSMITH_INLINE F splat_of(bfloat16 x) { return splat(to_float(x)); }
OPSMITH_INLINE I splat_of(int32_t x) { return splat(x); }
template <IntegerStorage T>
OPSMITH_INLINE F splat_of(T x) {  // other integers on lanes are quantized numbers, which floats hold exactly
  return splat(static_cast<float>(x));
}
OPSMITH_INLINE I splat_of(bool x) { return splat(-static_cast<int32_t>(x)); }
OPSMITH_INLINE I mask_of(bool x) { return splat(-static_cast<int32_t>(x)); }

// --- the words of elementwise expressions, for vectors and for scalars of any type ---

OPSMITH_INLINE I both(I a, I b) { return a & b; }
OPSMITH_INLINE I either(I a, I b) { return a | b; }
OPSMITH_INLINE I differ(I a, I b) { return a ^ b; }
OPSMITH_INLINE I negate(I a) { return ~a; }
OPSMITH_INLINE bool both(bool a, bool b) { return a && b; }
OPSMITH_INLINE bool either(bool a, bool b) { return a || b; }
OPSMITH_INLINE bool differ(bool a, bool b) { return a != b; }
OPSMITH_INLINE bool negate(bool a) { return !a; }

template <class T>
inline constexpr bool is_vector = __is_same(T, F) || __is_same(T, I);

template <class T>
OPSMITH_INLINE auto equal(T a, T b) {
  if constexpr (__is_same(T, I))
    return ~(a ^ b);
  else
    return a == b;
}
template <class T>
OPSMITH_INLINE auto greater(T a, T b) {
  return a > b;
}
template <class T>
OPSMITH_INLINE auto greater_equal(T a, T b) {
  return a >= b;
}
template <class T>
OPSMITH_INLINE auto less(T a, T b) {
  return a < b;
}
template <class T>
OPSMITH_INLINE auto less_equal(T a, T b) {
  return a <= b;
}
OPSMITH_INLINE I select(I mask, I a, I b) { return (a & mask) | (b & ~mask); }
template <class T>
  requires(!is_vector<T> && !__is_same(T, float))
OPSMITH_INLINE T select(bool mask, T a, T b) {
  return mask ? a : b;
}
template <class T>
OPSMITH_INLINE auto isnan(T a) {
  return a != a;
}
template <class T>
OPSMITH_INLINE T zero_like(T) {
  return T{};
}
// ONNX Max and Min: NaN wins, as in numpy.
template <class T>
OPSMITH_INLINE T maximum(T a, T b) {
  if constexpr (FloatLanes<T>)
    return max(a, b);
  else
    return a != a ? a : b != b ? b : a < b ? b : a;
}
template <class T>
OPSMITH_INLINE T minimum(T a, T b) {
  if constexpr (FloatLanes<T>)
    return min(a, b);
  else
    return a != a ? a : b != b ? b : b < a ? b : a;
}
OPSMITH_INLINE F from_mask(I a) { return select(a, splat(1.0f), splat(0.0f)); }
OPSMITH_INLINE float from_mask(bool a) { return a ? 1.0f : 0.0f; }
template <class T>
OPSMITH_INLINE auto to_mask(T a) {
  if constexpr (__is_same(T, I))
    return a;
  else
    return a != T{};
}
// A value as it would be after being stored in T and read back.
template <class T, class V>
OPSMITH_INLINE V round_to(V a) {
  if constexpr (__is_same(V, F)) {
    T lanes[W];
    store(lanes, a, Full{});
    return load(lanes, Full{});
  } else {
    return to_float(from_float<T>(static_cast<float>(a)));
  }
}
// Linear quantization. Vectors hold the whole numbers of T as floats. The division is one, so that ties round as in ORT and numpy.
template <class T>
OPSMITH_INLINE F quantize_to(F x, F scale, F zero) {
  const F low = splat(static_cast<float>(lowest_of<T>)), high = splat(static_cast<float>(highest_of<T>));
  return min_or_second(max_or_second(round(x / scale) + zero, low), high);
}
template <class T>
OPSMITH_INLINE T quantize_to(float x, float scale, T zero) {
  return from_float<T>(__builtin_rintf(x / scale) + static_cast<float>(zero));
}
OPSMITH_INLINE F dequantized(F x, F scale, F zero) { return (x - zero) * scale; }
template <IntegerStorage T>
OPSMITH_INLINE float dequantized(T x, float scale, T zero) {
  return static_cast<float>(static_cast<i64>(x) - static_cast<i64>(zero)) * scale;
}
OPSMITH_INLINE F to_float(F x) { return x; }
// A number cut to an integer: the nearest one that fits, but where the CPU's own conversion says the lowest (types.hpp).
template <class T>
OPSMITH_INLINE T to_number(float a) {
  return from_float<T>(a);
}
template <class T>
OPSMITH_INLINE T to_number(double a) {
  if constexpr (__is_same(T, half) || __is_same(T, bfloat16) || __is_same(T, float) || __is_same(T, double)) {
    return static_cast<T>(a);
  } else {
    constexpr double above = static_cast<double>(uint64_t{1} << (8 * sizeof(T) - 1)) * (is_signed_integer<T> ? 1 : 2);
    if (a != a) return own_conversion<T> ? lowest_of<T> : T(0);
    if (a >= above) return own_conversion<T> ? lowest_of<T> : highest_of<T>;
    if (a <= static_cast<double>(lowest_of<T>)) return lowest_of<T>;
    return static_cast<T>(a);
  }
}
// The same as ORT's Cast says on x86: narrow types keep the low bits of an int32, uint32 those of an int64, and uint64 is an int64
// once 2^63 is taken off.
template <class T, class From>
OPSMITH_INLINE T cut_to(From a) {
  if constexpr (!converts_to_lowest || !IntegerStorage<T> || own_conversion<T>) {
    return to_number<T>(a);
  } else if constexpr (sizeof(T) < 4) {
    return static_cast<T>(to_number<int32_t>(a));
  } else if constexpr (sizeof(T) == 4) {
    return static_cast<T>(to_number<int64_t>(a));
  } else {
    constexpr From highest = static_cast<From>(uint64_t{1} << 63);
    if (a >= highest) return static_cast<T>(to_number<int64_t>(a - highest)) ^ (uint64_t{1} << 63);
    return static_cast<T>(to_number<int64_t>(a));
  }
}
// Integer arithmetic that is defined for every operand: x / 0 and x % 0 are 0, INT_MIN / -1 wraps.
template <class T>
OPSMITH_INLINE T divide(T a, T b) {
  if (b == T(0)) return T(0);
  if constexpr (T(-1) < T(0))
    if (b == T(-1)) return static_cast<T>(0 - static_cast<uint64_t>(a));
  return a / b;
}
template <class T>
OPSMITH_INLINE T modulo(T a, T b) {  // sign of the divisor, as numpy.mod
  if constexpr (FloatLanes<T>) {
    return mod(a, b);
  } else if constexpr (__is_same(T, double)) {
    const double r = __builtin_fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
  } else {
    if (b == T(0)) return T(0);
    if constexpr (T(-1) < T(0)) {
      if (b == T(-1)) return T(0);
    }
    const T r = a % b;
    if constexpr (T(-1) < T(0))
      return r != 0 && (r < 0) != (b < 0) ? r + b : r;
    else
      return r;
  }
}
template <class T>
  requires(IntegerStorage<T>)
OPSMITH_INLINE T fmod(T a, T b) {  // sign of the dividend
  if (b == T(0)) return T(0);
  if constexpr (T(-1) < T(0))
    if (b == T(-1)) return T(0);
  return a % b;
}
OPSMITH_INLINE double fmod(double a, double b) { return __builtin_fmod(a, b); }
template <class T>
  requires(IntegerStorage<T>)
OPSMITH_INLINE T abs(T a) {
  return a < T(0) ? static_cast<T>(0 - static_cast<uint64_t>(a)) : a;
}
template <class T>
  requires(IntegerStorage<T> || __is_same(T, double))
OPSMITH_INLINE T sign(T a) {
  return a > T(0) ? T(1) : a < T(0) ? static_cast<T>(-1) : a;  // 0, -0 and NaN stay
}
template <class T>
  requires(IntegerStorage<T> || __is_same(T, double))
OPSMITH_INLINE T relu(T a) {
  return a > T(0) ? a : a != a ? a : T(0);
}
// A shift by the width or more, or by a negative number, leaves nothing but the sign that a right shift fills with.
template <class T>
OPSMITH_INLINE T shift_left(T a, T b) {
  return static_cast<uint64_t>(b) >= 8 * sizeof(T) ? T(0) : static_cast<T>(a << b);
}
template <class T>
OPSMITH_INLINE T shift_right(T a, T b) {
  if (static_cast<uint64_t>(b) >= 8 * sizeof(T)) return a < T(0) ? static_cast<T>(-1) : T(0);
  return static_cast<T>(a >> b);
}
template <class T, class E>
  requires(IntegerStorage<T> || __is_same(T, double) || !__is_same(T, E))
OPSMITH_INLINE T pow(T a, E b) {
  if constexpr (__is_same(T, F) || __is_same(T, float)) {
    return pow(a, static_cast<T>(b));
  } else if constexpr (IntegerStorage<T> && IntegerStorage<E>) {
    if (b < E(0)) return a == T(1) ? T(1) : a == static_cast<T>(-1) ? ((b & 1) ? a : T(1)) : T(0);
    uint64_t result = 1, base = static_cast<uint64_t>(a);
    for (uint64_t e = static_cast<uint64_t>(b); e; e >>= 1, base *= base)
      if (e & 1) result *= base;
    return static_cast<T>(result);
  } else {
    return to_number<T>(__builtin_pow(static_cast<double>(a), static_cast<double>(b)));
  }
}
OPSMITH_INLINE double abs(double a) { return __builtin_fabs(a); }
OPSMITH_INLINE double reciprocal(double a) { return 1.0 / a; }
OPSMITH_INLINE double sigmoid(double a) { return 1.0 / (1.0 + __builtin_exp(-a)); }
OPSMITH_INLINE double softplus(double a) { return a > 0 ? a + __builtin_log1p(__builtin_exp(-a)) : __builtin_log1p(__builtin_exp(a)); }
OPSMITH_INLINE double round(double a) { return __builtin_rint(a); }
#define OPSMITH_DOUBLE(name) \
  OPSMITH_INLINE double name(double a) { return __builtin_##name(a); }
OPSMITH_DOUBLE(sqrt) OPSMITH_DOUBLE(floor) OPSMITH_DOUBLE(ceil) OPSMITH_DOUBLE(exp) OPSMITH_DOUBLE(log)
OPSMITH_DOUBLE(sin) OPSMITH_DOUBLE(cos) OPSMITH_DOUBLE(tan) OPSMITH_DOUBLE(asin) OPSMITH_DOUBLE(acos)
OPSMITH_DOUBLE(atan) OPSMITH_DOUBLE(sinh) OPSMITH_DOUBLE(cosh) OPSMITH_DOUBLE(tanh) OPSMITH_DOUBLE(asinh)
OPSMITH_DOUBLE(acosh) OPSMITH_DOUBLE(atanh) OPSMITH_DOUBLE(erf)
#undef OPSMITH_DOUBLE

template <class T>
struct Reader {
  const T* base;
  i64 mask;  // -1 walks along the row, 0 stays on the copies
  T copies[W];

  OPSMITH_INLINE void aim(const T* p, i64 stride) {
    mask = stride ? -1 : 0;
    base = p;
    if (!stride) {
      for (i64 i = 0; i < W; ++i) copies[i] = *p;
      base = copies;
    }
  }
  template <class L>
  OPSMITH_INLINE auto at(i64 i, L lanes) const {
    return lanes_from(base + (i & mask), lanes);
  }
};

template <class T>
struct StridedReader {  // any stride: lanes are collected one by one
  const T* base;
  i64 stride;
  OPSMITH_INLINE void aim(const T* p, i64 s) { base = p, stride = s; }
  OPSMITH_INLINE auto at(i64 i, Full) const { return collect(i, W); }
  OPSMITH_INLINE auto at(i64 i, Tail t) const { return collect(i, t.count); }
  OPSMITH_INLINE auto collect(i64 i, i64 n) const {
    T lanes[W] = {};
    for (i64 k = 0; k < n; ++k) lanes[k] = base[(i + k) * stride];
    return lanes_from(lanes, Full{});
  }
};

// Scalars of half precision are computed as float.
template <class T>
OPSMITH_INLINE auto from_storage(T x) {
  if constexpr (__is_same(T, half) || __is_same(T, bfloat16))
    return to_float(x);
  else
    return x;
}
template <class T, class V>
OPSMITH_INLINE T to_storage(V x) {
  if constexpr (__is_same(T, half) || __is_same(T, bfloat16))
    return from_float<T>(static_cast<float>(x));
  else
    return static_cast<T>(x);
}

namespace detail {

template <int... Index>
struct Sequence {};
template <int N, int... Index>
struct MakeSequence : MakeSequence<N - 1, N - 1, Index...> {};
template <int... Index>
struct MakeSequence<0, Index...> {
  using type = Sequence<Index...>;
};

template <class... T>
struct Pack;
template <>
struct Pack<> {};
template <class H, class... T>
struct Pack<H, T...> {
  H head;
  Pack<T...> tail;
};
template <int I, class P>
OPSMITH_INLINE auto& get(P& p) {
  if constexpr (I == 0)
    return p.head;
  else
    return get<I - 1>(p.tail);
}

template <template <class> class R, class TO, class... TI, int N, int... Index, class Body>
OPSMITH_INLINE void map_row(const Grid<N>& g, const i64* at, i64 n, Sequence<Index...>, Body& body) {
  Pack<R<TI>...> readers;
  (get<Index>(readers).aim(static_cast<const TI*>(g.in[Index].data) + at[Index + 1], g.in[Index].strides[g.rank - 1]), ...);
  TO* out = static_cast<TO*>(const_cast<void*>(g.out.data)) + at[0];
  const i64 step = g.out.strides[g.rank - 1];
  i64 i = 0;
  if (step == 1) {
    for (; i + W <= n; i += W) lanes_to(out + i, body(get<Index>(readers).at(i, Full{})...), Full{});
    if (i < n) lanes_to(out + i, body(get<Index>(readers).at(i, Tail{n - i})...), Tail{n - i});
    return;
  }
  for (; i < n; i += W) {
    const i64 count = min<i64>(W, n - i);
    TO lanes[W];
    lanes_to(lanes, body(get<Index>(readers).at(i, Tail{count})...), Full{});
    for (i64 k = 0; k < count; ++k) out[(i + k) * step] = lanes[k];
  }
}

template <class TO, class... TI, int N, int... Index, class Body>
void map_scalar_row(const Grid<N>& g, const i64* at, i64 n, Sequence<Index...>, Body& body) {
  TO* __restrict out = static_cast<TO*>(const_cast<void*>(g.out.data)) + at[0];
  const i64 last = g.rank - 1, step = g.out.strides[last];
  Pack<const TI*...> p;
  ((get<Index>(p) = static_cast<const TI*>(g.in[Index].data) + at[Index + 1]), ...);
  for (i64 i = 0; i < n; ++i) out[i * step] = to_storage<TO>(body(from_storage(get<Index>(p)[i * g.in[Index].strides[last]])...));
}

}  // namespace detail

template <class TO, class... TI, class Body>
void map(const Pool& pool, Grid<sizeof...(TI)> grid, Body body) {
  constexpr int N = sizeof...(TI);
  using Sequence = typename detail::MakeSequence<N>::type;
  grid.rows(pool, [&](const i64* at, i64 n) {
    bool even = true;
    for (int i = 0; i < N; ++i) {
      const i64 s = grid.in[i].strides[grid.rank - 1];
      even = even && (s == 0 || s == 1);
    }
    if (even)
      detail::map_row<Reader, TO, TI...>(grid, at, n, Sequence{}, body);
    else
      detail::map_row<StridedReader, TO, TI...>(grid, at, n, Sequence{}, body);
  });
}

template <class TO, class... TI, class Body>
void map_scalar(const Pool& pool, Grid<sizeof...(TI)> grid, Body body) {
  using Sequence = typename detail::MakeSequence<sizeof...(TI)>::type;
  grid.rows(pool, [&](const i64* at, i64 n) { detail::map_scalar_row<TO, TI...>(grid, at, n, Sequence{}, body); });
}

}  // namespace opsmith
