// Float functions on W lanes (F) and on one float, by one and the same code: template <class V>, V = F or float.
// No libm in the functions of the table; errors are measured against double precision by tests/kernels/test_math.cpp
// over dense sweeps, denormals, infinities and NaN included.
//
//   function                        error at most        notes
//   exp                             2 ulp                denormal results rounded properly
//   exp_negative                    2 ulp                for x <= 0, results below 2^-126 become 0 (softmax)
//   exp2_small                      3 ulp                2^x for x <= 100, results below 2^-126 become 0 (attention)
//   expm1, log, log1p               2 ulp, 3 ulp (log1p)
//   erf, tanh                       5 ulp, 7 without FMA rational, saturate to exactly +-1
//   sigmoid                         4 ulp                0 below -88.7 instead of a denormal
//   silu, quick_gelu, mish          6 ulp                quick_gelu: given the rounded 1.702 x
//   gelu, gelu_tanh                 4e-7 |x| + 1 ulp     cancellation for x < 0, as in the formula itself
//   softplus                        4 ulp
//   sin, cos                        2e-7 absolute        |x| > 8192 goes to libm, lane by lane
//   pow                             1 ulp                computed in double
//   sqrt, rsqrt, reciprocal         0.5, 1.5, 0.5 ulp    exact square root and division, never the estimates
//   floor, ceil, round, trunc       exact                round: halves to even
//   tan, asin ... atanh, fmod       libm                 lane by lane
//
// NaN comes out where NaN went in; min and max give NaN if either side is NaN, as ONNX's do.
#pragma once

#include <math.h>

#include <utility>

#include "base.hpp"

namespace opsmith {

// ---- one name for a vector and for a single value -------------------------------------------------------------------

template <class V>
struct VecTraits;
template <>
struct VecTraits<float> {
  using Int = int32_t;
  static constexpr i64 lanes = 1;
};
template <>
struct VecTraits<F> {
  using Int = I;
  static constexpr i64 lanes = W;
};
template <class V>
concept FloatLanes = requires { typename VecTraits<V>::Int; };
template <class V>
using IntOf = typename VecTraits<V>::Int;

template <FloatLanes V>
OPSMITH_INLINE V all(float x) {  // x in every lane
  return x - V{};
}
// One instruction where the target has it: compilers contract a product and a sum in one expression. B, C: V or float.
template <FloatLanes V, class B, class C>
OPSMITH_INLINE V mul_add(V a, B b, C c) {
  return a * b + c;
}
template <FloatLanes V>
OPSMITH_INLINE IntOf<V> bits_of(V x) {
  return __builtin_bit_cast(IntOf<V>, x);
}
OPSMITH_INLINE float float_of(int32_t bits) { return __builtin_bit_cast(float, bits); }
OPSMITH_INLINE F float_of(I bits) { return __builtin_bit_cast(F, bits); }
OPSMITH_INLINE float to_float(int32_t x) { return static_cast<float>(x); }
OPSMITH_INLINE F to_float(I x) { return __builtin_convertvector(x, F); }

// mask ? a : b. A vector comparison gives lanes of -1 and 0, a scalar one gives bool; ?: takes both.
OPSMITH_INLINE F select(I mask, F a, F b) { return mask ? a : b; }
OPSMITH_INLINE float select(bool mask, float a, float b) { return mask ? a : b; }
OPSMITH_INLINE F where(I mask, F a, F b) { return mask ? a : b; }
OPSMITH_INLINE float where(bool mask, float a, float b) { return mask ? a : b; }

OPSMITH_INLINE bool any(bool mask) { return mask; }

// c[0] + c[1] x + c[2] x^2 + ...
template <FloatLanes V, class... C>
OPSMITH_INLINE V polynomial(V x, float c0, C... rest) {
  if constexpr (sizeof...(rest) == 0)
    return all<V>(c0);
  else
    return mul_add(polynomial(x, rest...), x, c0);
}

// f(float) -> float on each lane, for what is not worth a vector form
template <class Fn>
OPSMITH_INLINE float per_lane(Fn f, float x) {
  return f(x);
}
template <class Fn>
OPSMITH_INLINE F per_lane(Fn f, F x) {
  for (i64 i = 0; i < W; ++i) x[i] = f(x[i]);
  return x;
}
template <class Fn>
OPSMITH_INLINE float per_lane(Fn f, float x, float y) {
  return f(x, y);
}
template <class Fn>
OPSMITH_INLINE F per_lane(Fn f, F x, F y) {
  for (i64 i = 0; i < W; ++i) x[i] = f(x[i], y[i]);
  return x;
}

// ---- exact and bitwise ----------------------------------------------------------------------------------------------

inline constexpr float kInfinity = __builtin_inff();
inline constexpr float kNaN = __builtin_nanf("");

template <FloatLanes V>
OPSMITH_INLINE V abs(V x) {
  return float_of(bits_of(x) & 0x7fffffff);
}
template <FloatLanes V>
OPSMITH_INLINE V copysign(V magnitude, V sign) {
  return float_of((bits_of(magnitude) & 0x7fffffff) | (bits_of(sign) & INT32_MIN));
}
template <FloatLanes V>
OPSMITH_INLINE V min(V a, V b) {
  return select(a != a, a, select(a < b, a, b));
}
template <FloatLanes V>
OPSMITH_INLINE V max(V a, V b) {
  return select(a != a, a, select(a > b, a, b));
}
// a < b ? a : b, so b where either is NaN: what one x86 instruction does (named, because g++ 12 misses it when one side
// is a constant). On lanes: simd.hpp.
OPSMITH_INLINE float min_or_second(float a, float b) { return a < b ? a : b; }
OPSMITH_INLINE float max_or_second(float a, float b) { return a > b ? a : b; }
template <FloatLanes V, class Low, class High>  // V or float; NaN stays
OPSMITH_INLINE V clip(V x, Low low, High high) {
  return min_or_second(high - V{}, max_or_second(low - V{}, x));
}
template <FloatLanes V>
OPSMITH_INLINE V sign(V x) {
  return select(x > 0.0f, all<V>(1), select(x < 0.0f, all<V>(-1), x));  // 0, -0 and NaN stay
}
template <FloatLanes V>
OPSMITH_INLINE V reciprocal(V x) {
  return 1.0f / x;
}

OPSMITH_INLINE float sqrt(float x) { return __builtin_sqrtf(x); }
template <FloatLanes V>
OPSMITH_INLINE V rsqrt(V x) {
  return 1.0f / sqrt(x);
}

// Adding and subtracting 2^23 rounds a smaller magnitude to an integer, halves to even; larger ones are integers.
template <FloatLanes V>
OPSMITH_INLINE V round(V x) {
  const V magnitude = abs(x);
  return copysign(select(magnitude < 0x1p23f, (magnitude + 0x1p23f) - 0x1p23f, magnitude), x);
}
template <FloatLanes V>
OPSMITH_INLINE V trunc(V x) {
  const V magnitude = abs(x), r = round(magnitude);
  return copysign(select(r > magnitude, r - 1.0f, r), x);
}
template <FloatLanes V>
OPSMITH_INLINE V floor(V x) {
  const V r = round(x);
  return copysign(select(r > x, r - 1.0f, r), x);
}
template <FloatLanes V>
OPSMITH_INLINE V ceil(V x) {
  const V r = round(x);
  return copysign(select(r < x, r + 1.0f, r), x);
}

// ---- exponentials and logarithms ------------------------------------------------------------------------------------

inline constexpr float kLog2e = 1.44269504f;
inline constexpr float kLn2High = 0.693359375f;  // few bits: times a small integer it is exact
inline constexpr float kLn2Low = -2.12194440e-4f;
inline constexpr float kRounder = 0x1.8p23f;  // x + kRounder holds round(x) in its low bits

// x = n ln2 + r, |r| <= ln2 / 2. For |x| < 2^21.
template <FloatLanes V>
struct ExpReduced {
  IntOf<V> n;
  V n_float, r;
};
template <FloatLanes V>
OPSMITH_INLINE ExpReduced<V> exp_reduce(V x) {
  const V k = mul_add(x, kLog2e, kRounder);
  const V n = k - kRounder;
  const V r = mul_add(n, -kLn2Low, mul_add(n, -kLn2High, x));
  return {bits_of(k) - 0x4b400000, n, r};
}
template <FloatLanes V>
OPSMITH_INLINE V exp_of_reduced(V r) {  // 1 + r + r^2 P(r), relative error 3e-9
  const V p = polynomial(r, 0.49999994f, 0.166665211f, 0.0416682735f, 0.00836868584f, 0.00138201355f);
  return mul_add(p, r * r, r) + 1.0f;
}
template <FloatLanes V>
OPSMITH_INLINE V power_of_two(IntOf<V> n) {  // 2^n for -126 <= n <= 127
  return float_of((n + 127) << 23);
}

template <FloatLanes V>
OPSMITH_INLINE V exp(V x) {
  x = clip(x, -104.0f, 89.0f);  // beyond, the result is 0 or inf in any case; NaN passes
  const auto [n, n_float, r] = exp_reduce(x);
  const V p = exp_of_reduced(r);
  if constexpr (scales_exponents && __is_same(V, F)) return scale_exponent(p, n_float);
  const auto half = n >> 1;  // two factors, so that neither overflows and denormals round once
  return p * power_of_two<V>(half) * power_of_two<V>(n - half);
}

template <FloatLanes V>
OPSMITH_INLINE V exp_negative(V x) {
  const V y = max_or_second(all<V>(-87.33654f), x);
  const auto [n, n_float, r] = exp_reduce(y);
  return select(x < -87.33654f, V{}, exp_of_reduced(r) * power_of_two<V>(n));
}

// Five multiply-adds and no logarithm's constants: the cheapest form, for the scores of attention.
// With Finite, any finite x is allowed: beyond 126 the result is some number above 2^100, or infinity.
// Rough: within 8e-5, for results that are rounded to bf16.
template <bool Finite = false, bool Rough = false, FloatLanes V>
OPSMITH_INLINE V exp2_small(V x) {
  constexpr float c1 = 0.693147004f, c2 = 0.240222469f, c3 = 0.0555071086f, c4 = 0.0096712932f, c5 = 0.00132695551f;
  if constexpr (scales_exponents && __is_same(V, F)) {
    const V y = Finite ? x : max_or_second(all<V>(-200), x);  // -inf - -inf would be NaN
    const V n = nearest_whole(y);
    if constexpr (Rough) return scale_exponent(polynomial(y - n, 0.999928074f, 0.693260986f, 0.242611122f, 0.0551716672f), n);
    return scale_exponent(polynomial(y - n, 1.0f, c1, c2, c3, c4, c5), n);
  }
  if constexpr (Finite) x = min_or_second(all<V>(126), x);
  const V y = max_or_second(all<V>(-126), x);
  const V k = y + kRounder;
  const V p = polynomial(y - (k - kRounder), 1.0f, c1, c2, c3, c4, c5);
  const V e = float_of(bits_of(p) + (bits_of(k) << 23));
  return select(x < -126.0f, V{}, e);
}

template <FloatLanes V>
OPSMITH_INLINE V expm1(V x) {
  const auto [n, n_float, r] = exp_reduce(clip(x, -20.0f, 89.0f));
  const V p = polynomial(r, 0.5f, 0.166666657f, 0.0416664928f, 0.00833354425f, 0.00139323424f, 0.000197633955f);
  const V e = mul_add(p, r * r, r);
  const V half_scale = power_of_two<V>(n - 1);
  const V y = 2.0f * mul_add(half_scale, e, half_scale - 0.5f);
  return select(abs(x) < 1e-10f, x, y);  // keeps -0 and denormals
}

template <FloatLanes V>
OPSMITH_INLINE V log(V x) {
  const auto denormal = x < 0x1p-126f;
  const V scaled = select(denormal, x * 0x1p23f, x);
  const auto bits = bits_of(abs(scaled));  // negative ones end as NaN below
  const auto exponent = (bits - 0x3f3504f3) >> 23;  // mantissa in [sqrt(1/2), sqrt(2))
  const V e = to_float(exponent) - select(denormal, all<V>(23), V{});
  const V f = float_of(bits - (exponent << 23)) - 1.0f;
  const V z = f * f;
  V y = polynomial(f, 0.333333135f, -0.250000089f, 0.200020745f, -0.166679993f, 0.142202795f, -0.124059141f,
                   0.118838966f, -0.11672511f, 0.0675150454f);
  y = mul_add(y, f * z, e * kLn2Low);
  y = mul_add(z, -0.5f, y);
  y = mul_add(e, kLn2High, f + y);
  y = select(x < kInfinity, y, x);  // inf and NaN
  y = select(x > 0.0f, y, select(x == 0.0f, all<V>(-kInfinity), all<V>(kNaN)));
  return y;
}

template <FloatLanes V>
OPSMITH_INLINE V log1p(V x) {
  const V u = 1.0f + x;
  const V lost = x - (u - 1.0f);  // what rounding 1 + x dropped
  const V y = log(u) + select(u < kInfinity, lost / u, V{});
  return select(u == 1.0f, x, select(u > 0.0f, y, log(u)));
}

// ---- erf, tanh and the activations ----------------------------------------------------------------------------------

namespace detail {
template <FloatLanes V>
OPSMITH_INLINE V saturate(V x, float limit, V y) {  // +-1 beyond the limit, never more than 1 before it
  return select(abs(x) > limit, copysign(all<V>(1), x), clip(y, -1.0f, 1.0f));
}
}  // namespace detail

// x P(x^2) / Q(x^2), relative error 2e-8 before rounding; all coefficients positive, so nothing cancels.
template <FloatLanes V>
OPSMITH_INLINE V erf(V x) {
  const V c = clip(x, -3.93f, 3.93f);  // 1 - erf(3.93) is below half an ulp of 1
  const V z = c * c;
  const V p =
      polynomial(z, 1.12837911f, 0.190783769f, 0.0527902767f, 0.00377960643f, 0.000284808571f, 2.04197158e-06f);
  const V q = polynomial(z, 1.0f, 0.502410412f, 0.114257492f, 0.0149974311f, 0.00116521213f, 3.80040801e-05f);
  return detail::saturate(x, 3.93f, c * p / q);
}

template <FloatLanes V>
OPSMITH_INLINE V tanh(V x) {
  const V c = clip(x, -9.02f, 9.02f);
  const V z = c * c;
  const V p = polynomial(z, 1.0f, 0.133797169f, 0.00349403406f, 2.05834749e-05f, 1.33190641e-08f);
  const V q = polynomial(z, 1.0f, 0.467130333f, 0.025871072f, 0.000328309223f, 7.76201603e-07f);
  return detail::saturate(x, 9.02f, c * p / q);
}

template <FloatLanes V>
OPSMITH_INLINE V sigmoid(V x) {
  return 1.0f / (1.0f + exp(-x));
}
template <FloatLanes V>
OPSMITH_INLINE V silu(V x) {
  return x / (1.0f + exp(-x));
}
template <FloatLanes V>
OPSMITH_INLINE V quick_gelu(V x) {
  return x / (1.0f + exp(-1.702f * x));
}
template <FloatLanes V>
OPSMITH_INLINE V gelu(V x) {
  const V half = 0.5f * x;
  return mul_add(half, erf(0.707106781f * x), half);
}
template <FloatLanes V>
OPSMITH_INLINE V gelu_tanh(V x) {
  const V half = 0.5f * x;
  return mul_add(half, tanh(0.797884561f * mul_add(x * x * x, 0.044715f, x)), half);
}
template <FloatLanes V>
OPSMITH_INLINE V relu(V x) {
  return max_or_second(V{}, x);
}
template <FloatLanes V>
OPSMITH_INLINE V softplus(V x) {
  return relu(x) + log1p(exp(-abs(x)));
}
template <FloatLanes V>
OPSMITH_INLINE V softsign(V x) {
  return x / (1.0f + abs(x));
}
template <FloatLanes V>
OPSMITH_INLINE V leaky_relu(V x, float alpha) {
  return select(x < 0.0f, alpha * x, x);
}
template <FloatLanes V>
OPSMITH_INLINE V elu(V x, float alpha) {
  return select(x < 0.0f, alpha * expm1(x), x);
}
template <FloatLanes V>
OPSMITH_INLINE V selu(V x, float alpha = 1.67326319f, float gamma = 1.05070102f) {
  return gamma * elu(x, alpha);
}
template <FloatLanes V>
OPSMITH_INLINE V celu(V x, float alpha) {
  return select(x < 0.0f, alpha * expm1(x / alpha), x);
}
template <FloatLanes V>
OPSMITH_INLINE V mish(V x) {  // tanh(log(1 + e)) = (e^2 + 2e) / (e^2 + 2e + 2), and 1 in float from e^20 on
  const V e = exp(min_or_second(all<V>(20), x));
  const V n = e * (e + 2.0f);
  return x * (n / (n + 2.0f));
}
template <FloatLanes V>
OPSMITH_INLINE V hardsigmoid(V x, float alpha = 0.2f, float beta = 0.5f) {
  return clip(mul_add(x, alpha, beta), 0.0f, 1.0f);
}
template <FloatLanes V>
OPSMITH_INLINE V hardswish(V x) {
  return x * hardsigmoid(x, 1.0f / 6.0f, 0.5f);
}
template <FloatLanes V>
OPSMITH_INLINE V thresholded_relu(V x, float alpha) {
  return select(x > alpha, x, V{});
}

// ---- sine and cosine ------------------------------------------------------------------------------------------------

namespace detail {

// sin(x + quarter turns): x = n pi/2 + r by three parts of pi/2 (each product exact up to |x| = 8192), then the sine or
// cosine polynomial of r by the parity of n.
template <FloatLanes V>
OPSMITH_INLINE V sin_quarters(V x, int32_t quarters) {
  const V k = mul_add(x, 0.636619772f, kRounder);
  const V n = k - kRounder;
  const auto turn = bits_of(k) - 0x4b400000 + quarters;
  V r = mul_add(n, -1.5703125f, x);
  r = mul_add(n, -4.837512969970703125e-4f, r);
  r = mul_add(n, -7.54978995489188e-8f, r);
  const V z = r * r;
  const V s = mul_add(polynomial(z, -0.166666538f, 0.00833210722f, -0.00019508072f), z * r, r);
  const V c = mul_add(polynomial(z, 0.0416666456f, -0.00138872978f, 2.44300863e-05f), z * z, 1.0f - 0.5f * z);
  const V y = select((turn & 1) == 0, s, c);
  return float_of(bits_of(y) ^ ((turn & 2) << 30));
}

}  // namespace detail

template <FloatLanes V>
inline V sin(V x) {
  if (any(abs(x) > 8192.0f)) [[unlikely]]
    return per_lane([](float v) { return static_cast<float>(::sin(static_cast<double>(v))); }, x);
  return select(abs(x) < 1e-10f, x, detail::sin_quarters(x, 0));
}
template <FloatLanes V>
inline V cos(V x) {
  if (any(abs(x) > 8192.0f)) [[unlikely]]
    return per_lane([](float v) { return static_cast<float>(::cos(static_cast<double>(v))); }, x);
  return detail::sin_quarters(x, 1);
}

// ---- powers ---------------------------------------------------------------------------------------------------------

namespace detail {

// 2^(y * log2(mantissa * 2^exponent)) in double: the product's error, up to 2^7 times that of the logarithm, must stay
// below a float's rounding. D = double or a vector of them, L its integer type.
template <class D, class L>
OPSMITH_INLINE D pow_positive(D mantissa, D exponent, D y) {
  const D t = (mantissa - 1.0) / (mantissa + 1.0), z = t * t;
  // log(m) = 2 atanh(t), relative error 3e-11
  const D atanh2 = t * (2.0 + z * (0.666666627 + z * (0.400009722 + z * (0.284988075 + z * 0.24278225))));
  D p = y * (exponent + atanh2 * 1.4426950408889634);
  const D limit = 200.0 - D{};
  p = limit < p ? limit : p;
  p = -limit > p ? -limit : p;
  const D k = p + 0x1.8p52;
  const D r = p - (k - 0x1.8p52);
  const D e = 1.0 + r * (0.69314718056 + r * (0.240226507 + r * (0.0555040501 + r * (0.00961808674 +
                    r * (0.00133379595 + r * (0.000154521855 + r * 1.4324939e-05))))));
  const L scale = (__builtin_bit_cast(L, k) + 1023) << 52;
  return e * __builtin_bit_cast(D, scale);
}

OPSMITH_INLINE float pow_positive(float mantissa, float exponent, float y) {
  return static_cast<float>(pow_positive<double, uint64_t>(mantissa, exponent, y));
}
OPSMITH_INLINE F pow_positive(F mantissa, F exponent, F y) {
  constexpr i64 N = max<i64>(1, W / 2);  // doubles in a vector
  using H = Vec<float, N>;
  using D = Vec<double, N>;
  using L = Vec<uint64_t, N>;
  F out;
  for (int i = 0; i < W / N; ++i) {
    H m, e, p;
    memcpy(&m, reinterpret_cast<const char*>(&mantissa) + i * sizeof(H), sizeof(H));
    memcpy(&e, reinterpret_cast<const char*>(&exponent) + i * sizeof(H), sizeof(H));
    memcpy(&p, reinterpret_cast<const char*>(&y) + i * sizeof(H), sizeof(H));
    const H r = __builtin_convertvector(
        (pow_positive<D, L>(__builtin_convertvector(m, D), __builtin_convertvector(e, D), __builtin_convertvector(p, D))),
        H);
    memcpy(reinterpret_cast<char*>(&out) + i * sizeof(H), &r, sizeof(H));
  }
  return out;
}

}  // namespace detail

template <FloatLanes V>
inline V pow(V x, V y) {
  const V a = abs(x);
  const auto denormal = a < 0x1p-126f;
  const auto bits = bits_of(select(denormal, a * 0x1p23f, a));
  const auto exponent = (bits - 0x3f3504f3) >> 23;
  const V e = to_float(exponent) - select(denormal, all<V>(23), V{});
  V r = detail::pow_positive(float_of(bits - (exponent << 23)), e, y);

  const V infinity = all<V>(kInfinity), one = all<V>(1), zero{};
  const V y_abs = abs(y);
  // |x| = 0 or inf, and y = +-inf
  r = select(a == 0.0f, select(y < 0.0f, infinity, zero), r);
  r = select(a == kInfinity, select(y < 0.0f, zero, infinity), r);
  r = select(y == kInfinity, select(a > 1.0f, infinity, zero), r);
  r = select(y == -kInfinity, select(a > 1.0f, zero, infinity), r);
  // x < 0 (or -0): only whole powers are real; odd ones keep the sign
  const auto whole = trunc(y) == y;
  const auto odd = whole & (y_abs < 0x1p24f) & (trunc(0.5f * y) != 0.5f * y);
  const auto negative = bits_of(x) < 0;
  r = select(negative & odd, -r, r);
  r = select((x < 0.0f) & (whole == 0) & (a < kInfinity), all<V>(kNaN), r);
  r = select((x != x) | (y != y), all<V>(kNaN), r);
  r = select((x == 1.0f) | (y == 0.0f) | ((a == 1.0f) & (y_abs == kInfinity)), one, r);
  return r;
}

// ---- lane by lane through libm --------------------------------------------------------------------------------------

#define OPSMITH_LIBM(name)                                      \
  template <FloatLanes V>                                       \
  inline V name(V x) {                                          \
    return per_lane([](float v) { return ::name##f(v); }, x);   \
  }
OPSMITH_LIBM(tan)
OPSMITH_LIBM(asin)
OPSMITH_LIBM(acos)
OPSMITH_LIBM(atan)
OPSMITH_LIBM(sinh)
OPSMITH_LIBM(cosh)
OPSMITH_LIBM(asinh)
OPSMITH_LIBM(acosh)
OPSMITH_LIBM(atanh)
#undef OPSMITH_LIBM

template <FloatLanes V>
inline V fmod(V x, V y) {  // sign of x, as C and numpy.fmod
  return per_lane([](float a, float b) { return ::fmodf(a, b); }, x, y);
}
template <FloatLanes V>
inline V mod(V x, V y) {  // sign of y, as Python and numpy.mod
  const V r = fmod(x, y);
  return select((r != 0.0f) & ((r < 0.0f) != (y < 0.0f)), r + y, r);
}

// ---- across lanes ---------------------------------------------------------------------------------------------------

namespace detail {
// Halves by shuffles: a memcpy of parts would force the vector, and the array of accumulators it comes from, to memory.
template <class Fn, i64 N>
OPSMITH_INLINE float fold(Fn f, Vec<float, N> v) {
  if constexpr (N == 1) {
    return v[0];
  } else if constexpr (N == 2) {
    return f(v[0], v[1]);
  } else {
    return [&]<int... L>(std::integer_sequence<int, L...>) __attribute__((always_inline)) {
      const Vec<float, N / 2> low = __builtin_shufflevector(v, v, L...), high = __builtin_shufflevector(v, v, (L + N / 2)...);
      return fold<Fn, N / 2>(f, f(low, high));
    }(std::make_integer_sequence<int, N / 2>{});
  }
}
}  // namespace detail
OPSMITH_INLINE float lane_sum(F v) {
  return detail::fold<decltype([](auto a, auto b) { return a + b; }), W>({}, v);
}
OPSMITH_INLINE float lane_max(F v) {  // a NaN lane may get lost
  return detail::fold<decltype([](auto a, auto b) { return a > b ? a : b; }), W>({}, v);
}
OPSMITH_INLINE float lane_min(F v) {
  return detail::fold<decltype([](auto a, auto b) { return a < b ? a : b; }), W>({}, v);
}

namespace detail {
// Lanes with bit H of their number set change places between rows i and i + H.
template <i64 H, int... L>
OPSMITH_INLINE void swap_quarters(F& a, F& b, std::integer_sequence<int, L...>) {
  const F low = __builtin_shufflevector(a, b, (L & H ? L - H + W : L)...);
  const F high = __builtin_shufflevector(a, b, (L & H ? L + W : L + H)...);
  a = low;
  b = high;
}
template <i64 H>
OPSMITH_INLINE void transpose_step(F (&r)[W]) {
#pragma GCC unroll 16
  for (i64 i = 0; i < W; ++i)
    if (!(i & H)) swap_quarters<H>(r[i], r[i + H], std::make_integer_sequence<int, W>{});
  if constexpr (H > 1) transpose_step<H / 2>(r);
}
}  // namespace detail
// Rows become columns: r[i][j] and r[j][i] change places. log2(W) shuffles per vector.
OPSMITH_INLINE void transpose(F (&r)[W]) {
  if constexpr (W > 1) detail::transpose_step<W / 2>(r);
}

}  // namespace opsmith
