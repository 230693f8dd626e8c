// Storage types beyond float: what a tensor may hold while the arithmetic runs on float lanes.
//
// f16 and bf16 themselves, with load and store on lanes, are in base.hpp. Here: the names the generated code uses,
// scalar conversions that round to nearest even, and loads and stores of the integer types and bool.
//
//   from_float<T>(float)    rounds to nearest even for f16 and bf16; truncates towards zero and saturates for
//                           integers (NaN becomes 0), since C++ leaves what does not fit undefined
//   load(const T*, lanes)   F, values converted to float (exact for |x| <= 2^24)
//   store(T*, F, lanes)     the same conversion as from_float<T> on each lane
#pragma once

#include "base.hpp"

namespace opsmith {

using half = f16;
using bfloat16 = bf16;

template <class T>
concept IntegerStorage = __is_same(T, int8_t) || __is_same(T, uint8_t) || __is_same(T, int16_t) ||
    __is_same(T, uint16_t) || __is_same(T, int32_t) || __is_same(T, uint32_t) || __is_same(T, int64_t) ||
    __is_same(T, uint64_t);

template <class T>
inline constexpr bool is_signed_integer = T(-1) < T(0);
template <IntegerStorage T>
inline constexpr T lowest_of = is_signed_integer<T> ? T(uint64_t{1} << (8 * sizeof(T) - 1)) : T(0);
template <IntegerStorage T>
inline constexpr T highest_of = T(~lowest_of<T>);

template <class T>
OPSMITH_INLINE T from_float(float x) {
  if constexpr (__is_same(T, float)) {
    return x;
  } else if constexpr (__is_same(T, double)) {
    return static_cast<double>(x);
  } else if constexpr (__is_same(T, bool)) {
    return x != 0.0f;
  } else if constexpr (__is_same(T, bf16)) {
    const uint32_t u = __builtin_bit_cast(uint32_t, x);
    if (x != x) return bf16{static_cast<uint16_t>((u >> 16) | 0x40)};
    return bf16{static_cast<uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16)};
  } else if constexpr (__is_same(T, f16)) {
#if defined(__F16C__)
    return f16{static_cast<uint16_t>(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT))};
#else
    return f16{__builtin_bit_cast(uint16_t, static_cast<half_number>(x))};
#endif
  } else {
    // 2^k as float: the first value above the type's range
    constexpr float above = static_cast<float>(uint64_t{1} << (8 * sizeof(T) - 1)) * (is_signed_integer<T> ? 1 : 2);
    if (x >= above) return highest_of<T>;
    if (x > static_cast<float>(lowest_of<T>)) return static_cast<T>(x);
    return x != x ? T(0) : lowest_of<T>;
  }
}

// to_float(T) of the integer types; float, f16 and bf16 are in base.hpp
template <class T>
  requires(IntegerStorage<T> || __is_same(T, bool) || __is_same(T, double))
OPSMITH_INLINE float to_float(T x) {
  return static_cast<float>(x);
}

template <class T>
concept ConvertedStorage = IntegerStorage<T> || __is_same(T, bool) || __is_same(T, double);

template <ConvertedStorage T, class Lanes>
OPSMITH_INLINE F load(const T* p, Lanes lanes) {
  F v{};
  for (i64 i = 0; i < lanes.count; ++i) v[i] = static_cast<float>(p[i]);
  return v;
}
template <ConvertedStorage T, class Lanes>
OPSMITH_INLINE void store(T* p, F v, Lanes lanes) {
  for (i64 i = 0; i < lanes.count; ++i) p[i] = from_float<T>(v[i]);
}
OPSMITH_INLINE F load(const int32_t* p, Full) {
  I v;
  memcpy(&v, p, sizeof v);
  return __builtin_convertvector(v, F);
}
OPSMITH_INLINE F load(const int8_t* p, Full) {
  Vec<int8_t> v;
  memcpy(&v, p, sizeof v);
  return __builtin_convertvector(v, F);
}
OPSMITH_INLINE F load(const uint8_t* p, Full) {
  Vec<uint8_t> v;
  memcpy(&v, p, sizeof v);
  return __builtin_convertvector(v, F);
}

}  // namespace opsmith
