// Storage types beyond float: what a tensor may hold while the arithmetic runs on float lanes.
//
// f16 and bf16 themselves, with load and store on lanes, are in base.hpp. Here: the names the generated code uses,
// scalar conversions that round to nearest even, and loads and stores of the integer types and bool.
//
//   from_float<T>(float)    rounds to nearest even for f16 and bf16; truncates towards zero and saturates for
//                           integers (NaN becomes 0), since C++ leaves what does not fit undefined. On x86 an int32 or
//                           int64 that does not fit is the lowest, as the CPU's own conversion and so ORT's Cast says
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

// Where it does not fit: the lowest, or the nearest.
template <class T>
inline constexpr bool own_conversion = converts_to_lowest && (__is_same(T, int32_t) || __is_same(T, int64_t));

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
    return to_half(x);
  } else {
    constexpr bool as_cpu = own_conversion<T>;
    // 2^k as float: the first value above the type's range
    constexpr float above = static_cast<float>(uint64_t{1} << (8 * sizeof(T) - 1)) * (is_signed_integer<T> ? 1 : 2);
    if (x >= above) return as_cpu ? lowest_of<T> : highest_of<T>;
    if (x > static_cast<float>(lowest_of<T>)) return static_cast<T>(x);
    return x != x && !as_cpu ? T(0) : lowest_of<T>;
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
template <class T>
concept ByteStorage = __is_same(T, int8_t) || __is_same(T, uint8_t);
template <ByteStorage T>
OPSMITH_INLINE I load_bytes(const T* p, Full) {
  Vec<T> v;
  memcpy(&v, p, sizeof v);
  return from_bytes(v);
}
template <ByteStorage T>
OPSMITH_INLINE I load_bytes(const T* p, Tail t) {
  I v{};
  for (i64 i = 0; i < t.count; ++i) v[i] = p[i];
  return v;
}
template <ByteStorage T>
OPSMITH_INLINE F load(const T* p, Full) {
  return __builtin_convertvector(load_bytes(p, Full{}), F);
}
template <ByteStorage T>
OPSMITH_INLINE void store(T* p, F v, Full) {
  const F low = splat(static_cast<float>(lowest_of<T>)), high = splat(static_cast<float>(highest_of<T>));
  v = v == v ? v : F{};
  const Vec<uint8_t> bytes = low_bytes(__builtin_convertvector(min_or_second(max_or_second(v, low), high), I));
  memcpy(p, &bytes, sizeof bytes);
}
// Integers as they are, for kernels whose sums are integers.
OPSMITH_INLINE I load_words(const int32_t* p, Full) {
  I v;
  memcpy(&v, p, sizeof v);
  return v;
}
OPSMITH_INLINE I load_words(const int32_t* p, Tail t) {
  I v{};
  for (i64 i = 0; i < t.count; ++i) v[i] = p[i];
  return v;
}
OPSMITH_INLINE void store(int32_t* p, I v, Full) { memcpy(p, &v, sizeof v); }
OPSMITH_INLINE void store(int32_t* p, I v, Tail t) {
  for (i64 i = 0; i < t.count; ++i) p[i] = v[i];
}

}  // namespace opsmith
