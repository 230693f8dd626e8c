// What follows from W, and the plain form of every name in simd.hpp. An instruction set takes from `portable` what it has no
// better form of.
#pragma once

namespace opsmith {

template <class T, i64 N = W>
using Vec [[gnu::vector_size(N * sizeof(T))]] = T;

using F = Vec<float>;
using I = Vec<int32_t>;
using H = Vec<uint16_t>;  // the bits of W half-precision numbers

struct Full {
  static constexpr i64 count = W;
};
struct Tail {
  i64 count;  // 1 .. W-1
};

// Half precision is a storage format here: loads widen to float, stores round to nearest even.
struct f16 {
  uint16_t bits;
};
struct bf16 {
  uint16_t bits;
};
struct bf16x2 {  // two neighbours along the sum, the first in the low half: what packed weights of products in bf16 are made of
  uint32_t bits;
};

template <class T>
OPSMITH_INLINE Vec<T> splat(T x) {
  return x - Vec<T>{};
}

namespace portable {

OPSMITH_INLINE F load(const float* p, Tail t) {
  F v{};
  for (i64 i = 0; i < t.count; ++i) v[i] = p[i];
  return v;
}
OPSMITH_INLINE void store(float* p, F v, Tail t) {
  for (i64 i = 0; i < t.count; ++i) p[i] = v[i];
}

OPSMITH_INLINE H load_halves(const void* p, Tail t) {
  H h{};
  for (i64 i = 0; i < t.count; ++i) h[i] = static_cast<const uint16_t*>(p)[i];
  return h;
}
OPSMITH_INLINE void store_halves(void* p, H h, Tail t) {
  for (i64 i = 0; i < t.count; ++i) static_cast<uint16_t*>(p)[i] = h[i];
}

OPSMITH_INLINE float to_float(f16 x) { return static_cast<float>(__builtin_bit_cast(half_number, x.bits)); }
OPSMITH_INLINE f16 to_half(float x) { return f16{__builtin_bit_cast(uint16_t, static_cast<half_number>(x))}; }
OPSMITH_INLINE Vec<uint32_t> to_words(H h) { return __builtin_convertvector(h, Vec<uint32_t>); }
OPSMITH_INLINE F widen(H h, f16) { return __builtin_convertvector((Vec<half_number>)h, F); }
OPSMITH_INLINE H narrow(F v, f16) { return (H)__builtin_convertvector(v, Vec<half_number>); }

OPSMITH_INLINE F widen(Vec<int8_t> q) { return __builtin_convertvector(__builtin_convertvector(q, I), F); }
OPSMITH_INLINE F nibble(I words, int j) { return __builtin_convertvector((words << (28 - 4 * j)) >> 28, F); }

OPSMITH_INLINE bool any(I mask) {
  int32_t r = 0;
  for (i64 i = 0; i < W; ++i) r |= mask[i];
  return r != 0;
}
OPSMITH_INLINE F min_or_second(F a, F b) { return a < b ? a : b; }
OPSMITH_INLINE F max_or_second(F a, F b) { return a > b ? a : b; }
OPSMITH_INLINE F sqrt(F x) {
  for (i64 i = 0; i < W; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
}

// Pairs of 16 bits in a word, multiplied and added: see quant_rows.hpp.
struct Int4Dot {
  static constexpr bool fast = false;
  using Words = I;
  // The half bytes j and j + 4 of every word.
  OPSMITH_INLINE static Words weights(Words words, int j) {
    return (((words << (28 - 4 * j)) >> 28) & 0xffff) | (((words << (12 - 4 * j)) >> 28) << 16);
  }
  OPSMITH_INLINE static Words byte_pairs(Vec<int8_t> first, Vec<int8_t> second) {
    return (__builtin_convertvector(first, I) & 0xffff) | (__builtin_convertvector(second, I) << 16);
  }
  OPSMITH_INLINE static Words add_products(Words sum, Words weights, int32_t x) {
    return sum + ((weights << 16) >> 16) * static_cast<int32_t>(static_cast<int16_t>(x)) + (weights >> 16) * (x >> 16);
  }
};

// Byte j of every word times byte j of every word of x, exact in 32 bits.
struct ByteDot {
  static constexpr bool x_signed = false;
  using Value = I;
  using Columns = I;
  OPSMITH_INLINE static Value value(I words) { return words; }
  OPSMITH_INLINE static Columns columns(I words) { return words; }
  OPSMITH_INLINE static I add_products(I sum, Value x, Columns b) {
    for (int j = 0; j < 4; ++j) sum += (x >> (8 * j) & 255) * ((b << (24 - 8 * j)) >> 24);
    return sum;
  }
};
// Both halves of every word times those of x.
struct PairDot {
  static constexpr bool fast = false;
  OPSMITH_INLINE static F add_products(F sum, I x, I b) {
    sum += (F)(x << 16) * (F)(b << 16);
    return sum + (F)(x & -65536) * (F)(b & -65536);
  }
};
// No registers hold tiles.
struct Tiles {
  static constexpr bool exist = false;
  static constexpr i64 rows = 16, row_bytes = 64;
  static bool request() { return false; }
  static void begin() {}
  static void end() {}
};
// Two vectors as words of two bf16 each, rounded to nearest even.
OPSMITH_INLINE Vec<uint32_t> bf16_bits(F v) {
  // Adding half of the last kept bit (and that bit itself on a tie) rounds to nearest even; NaN must stay NaN.
  const Vec<uint32_t> u = (Vec<uint32_t>)v;
  const Vec<uint32_t> rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16, quiet_nan = (u >> 16) | 0x40u;
  const I is_number = v == v;
  return (Vec<uint32_t>)((I)rounded & is_number) | (Vec<uint32_t>)((I)quiet_nan & ~is_number);
}
OPSMITH_INLINE H narrow(F v, bf16) { return __builtin_convertvector(bf16_bits(v), H); }
OPSMITH_INLINE I narrow_pairs(F first, F second) { return (I)(bf16_bits(first) | bf16_bits(second) << 16); }

OPSMITH_INLINE Vec<uint8_t> low_bytes(I x) { return __builtin_convertvector(x, Vec<uint8_t>); }
OPSMITH_INLINE I from_bytes(Vec<uint8_t> x) { return __builtin_convertvector(x, I); }
OPSMITH_INLINE I from_bytes(Vec<int8_t> x) { return __builtin_convertvector(x, I); }

}  // namespace portable
}  // namespace opsmith
