// AVX2 with FMA and F16C: 16 registers of 8 floats.
#pragma once

#include <immintrin.h>

namespace opsmith {

inline constexpr i64 W = 8;
// 6 x 2 = 12 accumulators, 2 registers for B, 1 or 2 for the row value. 4 x 3 spills under g++ 12.
inline constexpr int gemm_mr = 6, gemm_nv = 2, attention_mr = 6, attention_nv = 2, attention_row_nv = 2;
// Bytes without VNNI: 4 x 2 accumulators, 4 registers for two halves of B, 2 for those of the row value, 1 for the product.
#if defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__))
inline constexpr int byte_mr = 6;
#else
inline constexpr int byte_mr = 4;
#endif
// One line of B per step: fetching 4 KiB ahead is worth 5 to 50 % from 4 rows on.
inline constexpr bool gemm_fetch_ahead = true, attention_copies = true, scales_exponents = false;

}  // namespace opsmith

#include "simd_portable.hpp"

namespace opsmith {

OPSMITH_INLINE __m256i tail_mask(Tail t) {
  return (__m256i)(I{0, 1, 2, 3, 4, 5, 6, 7} < splat(static_cast<int32_t>(t.count)));
}
OPSMITH_INLINE F load(const float* p, Tail t) { return (F)_mm256_maskload_ps(p, tail_mask(t)); }
OPSMITH_INLINE void store(float* p, F v, Tail t) { _mm256_maskstore_ps(p, tail_mask(t), (__m256)v); }

OPSMITH_INLINE float to_float(f16 x) { return _cvtsh_ss(x.bits); }
OPSMITH_INLINE f16 to_half(float x) { return f16{static_cast<uint16_t>(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT))}; }
OPSMITH_INLINE F widen(H h, f16) { return (F)_mm256_cvtph_ps((__m128i)h); }
OPSMITH_INLINE H narrow(F v, f16) {
  return (H)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

OPSMITH_INLINE F widen(Vec<int8_t> q) {  // g++ 12 converts int8 to int32 one by one
  return __builtin_convertvector((I)_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(__builtin_bit_cast(long long, q))), F);
}
using portable::load_halves;
using portable::nibble;
using portable::store_halves;
using portable::to_words;

OPSMITH_INLINE bool any(I mask) { return _mm256_movemask_ps((__m256)mask) != 0; }
OPSMITH_INLINE F min_or_second(F a, F b) { return (F)_mm256_min_ps((__m256)a, (__m256)b); }
OPSMITH_INLINE F max_or_second(F a, F b) { return (F)_mm256_max_ps((__m256)a, (__m256)b); }
OPSMITH_INLINE F sqrt(F x) { return (F)_mm256_sqrt_ps((__m256)x); }

using portable::Int4Dot;
using portable::narrow_pairs;
using portable::PairDot;
using portable::Tiles;
OPSMITH_INLINE H narrow(F v, bf16) { return portable::narrow(v, bf16{}); }

OPSMITH_INLINE Vec<uint8_t> low_bytes(I x) {
  const __m128i even = _mm_set1_epi64x(0x0c080400);  // the low byte of each word
  const __m128i low = _mm_shuffle_epi8(_mm256_castsi256_si128((__m256i)x), even);
  const __m128i high = _mm_shuffle_epi8(_mm256_extracti128_si256((__m256i)x, 1), even);
  return __builtin_bit_cast(Vec<uint8_t>, _mm_cvtsi128_si64(_mm_unpacklo_epi32(low, high)));
}
OPSMITH_INLINE I from_bytes(Vec<uint8_t> x) {
  return (I)_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(__builtin_bit_cast(long long, x)));
}
OPSMITH_INLINE I from_bytes(Vec<int8_t> x) {
  return (I)_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(__builtin_bit_cast(long long, x)));
}

#if defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__))
struct ByteDot {
  static constexpr bool x_signed = false;
  using Value = __m256i;
  using Columns = __m256i;
  OPSMITH_INLINE static Value value(I words) { return (__m256i)words; }
  OPSMITH_INLINE static Columns columns(I words) { return (__m256i)words; }
  OPSMITH_INLINE static I add_products(I sum, Value x, Columns b) {
#if defined(__AVXVNNI__)
    return (I)_mm256_dpbusd_avx_epi32((__m256i)sum, x, b);
#else
    return (I)_mm256_dpbusd_epi32((__m256i)sum, x, b);
#endif
  }
};
#else
// Bytes 0 and 2, and bytes 1 and 3, as 16-bit numbers whose products a vpmaddwd adds in 32 bits. (vpmaddubsw would save two
// instructions of five, but its sums saturate at 16 bits.)
struct ByteDot {
  static constexpr bool x_signed = false;
  struct Value {
    __m256i even, odd;
  };
  using Columns = Value;
  OPSMITH_INLINE static Value value(I words) {
    return {_mm256_and_si256((__m256i)words, _mm256_set1_epi16(255)), _mm256_srli_epi16((__m256i)words, 8)};
  }
  OPSMITH_INLINE static Columns columns(I words) {
    return {_mm256_srai_epi16(_mm256_slli_epi16((__m256i)words, 8), 8), _mm256_srai_epi16((__m256i)words, 8)};
  }
  OPSMITH_INLINE static I add_products(I sum, Value x, Columns b) {
    return sum + (I)_mm256_madd_epi16(x.even, b.even) + (I)_mm256_madd_epi16(x.odd, b.odd);
  }
};
#endif

}  // namespace opsmith
