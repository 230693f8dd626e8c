// The four 8-bit floats of ONNX, as storage that can be read: they are cast to other types, nothing is computed in them.
#pragma once

#include "base.hpp"

namespace opsmith {

// Fnuz: no infinities, no negative zero, whose bits are NaN. E4M3FN has no infinities, E5M2 is like IEEE's.
template <int Exponent, int Bias, bool Fnuz>
struct Float8 {
  uint8_t bits;
};
using float8e4m3fn = Float8<4, 7, false>;
using float8e4m3fnuz = Float8<4, 8, true>;
using float8e5m2 = Float8<5, 15, false>;
using float8e5m2fnuz = Float8<5, 16, true>;

template <int Exponent, int Bias, bool Fnuz>
inline float to_float(Float8<Exponent, Bias, Fnuz> x) {
  constexpr int M = 7 - Exponent, top = (1 << Exponent) - 1;
  const int exponent = (x.bits >> M) & top, mantissa = x.bits & ((1 << M) - 1);
  const float sign = x.bits & 0x80 ? -1.0f : 1.0f;
  if (Fnuz ? x.bits == 0x80 : exponent == top && (Exponent == 5 ? mantissa != 0 : mantissa == (1 << M) - 1)) return __builtin_nanf("");
  if (!Fnuz && Exponent == 5 && exponent == top) return sign * __builtin_inff();
  const int power = (exponent ? exponent : 1) - Bias - M;  // of the last bit of the mantissa
  const float unit = __builtin_bit_cast(float, static_cast<uint32_t>(127 + power) << 23);
  return sign * static_cast<float>(exponent ? mantissa + (1 << M) : mantissa) * unit;
}

}  // namespace opsmith
