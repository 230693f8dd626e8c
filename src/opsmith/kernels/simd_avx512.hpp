// AVX-512F with FMA and F16C: 32 registers of 16 floats. (Intrinsics in their maskz form: the plain ones raise false
// "uninitialized" warnings in g++ 12.)
#pragma once

#include <immintrin.h>

namespace opsmith {

inline constexpr i64 W = 16;
// 8 x 3 accumulators = 24, 3 registers for B, the row value is an embedded broadcast. 11 loads per 24 FMAs. 8 rows also fit the
// 8 ways of L1 when rows lie a multiple of 4096 bytes apart; 12 or 14 rows by 2 vectors have the same arithmetic but fall to
// 75 % at K = 1024.
inline constexpr int gemm_mr = 8, gemm_nv = 3, attention_mr = 8, attention_nv = 3, attention_row_nv = 4;
inline constexpr int byte_mr = 8;  // the same tile for bytes: with one instruction for 4 k the registers are used alike
// Three lines of B per step: the hardware keeps up by itself, fetching ahead only costs.
inline constexpr bool gemm_fetch_ahead = false, attention_copies = false, scales_exponents = true;

}  // namespace opsmith

#include "simd_portable.hpp"

namespace opsmith {

OPSMITH_INLINE __mmask16 tail_mask(Tail t) { return static_cast<__mmask16>((1u << t.count) - 1); }
OPSMITH_INLINE F load(const float* p, Tail t) { return (F)_mm512_maskz_loadu_ps(tail_mask(t), p); }
OPSMITH_INLINE void store(float* p, F v, Tail t) { _mm512_mask_storeu_ps(p, tail_mask(t), (__m512)v); }

#if defined(__AVX512BW__) && defined(__AVX512VL__)
OPSMITH_INLINE H load_halves(const void* p, Tail t) { return (H)_mm256_maskz_loadu_epi16(tail_mask(t), p); }
OPSMITH_INLINE void store_halves(void* p, H h, Tail t) { _mm256_mask_storeu_epi16(p, tail_mask(t), (__m256i)h); }
#else
using portable::load_halves;
using portable::store_halves;
#endif

OPSMITH_INLINE float to_float(f16 x) { return _cvtsh_ss(x.bits); }
OPSMITH_INLINE f16 to_half(float x) { return f16{static_cast<uint16_t>(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT))}; }
OPSMITH_INLINE Vec<uint32_t> to_words(H h) {  // g++ 12 converts half a vector at a time
  return (Vec<uint32_t>)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)h);
}
OPSMITH_INLINE F widen(H h, f16) { return (F)_mm512_maskz_cvtph_ps(0xffff, (__m256i)h); }
OPSMITH_INLINE H narrow(F v, f16) {
  return (H)_mm512_maskz_cvtps_ph(0xffff, (__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

OPSMITH_INLINE F widen(Vec<int8_t> q) {  // g++ 12 converts int8 to int32 one by one
  return __builtin_convertvector((I)_mm512_maskz_cvtepi8_epi32(0xffff, (__m128i)q), F);
}
OPSMITH_INLINE F nibble(I words, int j) {
  // A permutation looks at the lowest 4 bits of each index: it is the mask, the sign and the conversion in one.
  const F table = {0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1};
  return (F)_mm512_maskz_permutexvar_ps(0xffff, (__m512i)(words >> (4 * j)), (__m512)table);
}

OPSMITH_INLINE bool any(I mask) { return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0; }
OPSMITH_INLINE F min_or_second(F a, F b) { return (F)_mm512_maskz_min_ps(0xffff, (__m512)a, (__m512)b); }
OPSMITH_INLINE F max_or_second(F a, F b) { return (F)_mm512_maskz_max_ps(0xffff, (__m512)a, (__m512)b); }
OPSMITH_INLINE F sqrt(F x) { return (F)_mm512_maskz_sqrt_ps(0xffff, (__m512)x); }
OPSMITH_INLINE F nearest_whole(F x) {
  return (F)_mm512_maskz_roundscale_ps(0xffff, (__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
OPSMITH_INLINE F scale_exponent(F x, F n) { return (F)_mm512_maskz_scalef_ps(0xffff, (__m512)x, (__m512)n); }

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
// See FixedPoint in quant.hpp.
struct Int4Dot {
  static constexpr bool fast = true;
  using Words = __m512i;  // as I, but g++ 12 moves an array of these about differently

  OPSMITH_INLINE static I larger(I x, I y) { return (I)_mm512_maskz_max_epi32(0xffff, (__m512i)x, (__m512i)y); }
  template <class Fn>
  OPSMITH_INLINE static int32_t over_lanes(I x, Fn f) {
    x = f(x, __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
    x = f(x, __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11));
    x = f(x, __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
    return f(x, __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14))[0];
  }
  OPSMITH_INLINE static I to_nearest(F x) { return (I)_mm512_maskz_cvtps_epi32(0xffff, (__m512)x); }
  // 16 k, as 2 x 8: high of k j and j + 4 for j = 0 .. 3, then low, two in a word
  OPSMITH_INLINE static I pairs(I high, I low) {
    const I first = {0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27};
    const I left = (I)_mm512_permutex2var_epi32((__m512i)high, (__m512i)first, (__m512i)low);
    const I right = (I)_mm512_permutex2var_epi32((__m512i)high, (__m512i)(first + 4), (__m512i)low);
    return (left & 0xffff) | (right << 16);
  }
  // The weights of k + j and k + j + 4; the permutation looks at 5 bits, of which the table ignores one.
  OPSMITH_INLINE static Words weights(Words words, int j) {
    const __m512i table = (__m512i)Vec<int16_t, 32>{0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1,
                                                    0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1};
    return _mm512_permutexvar_epi16((__m512i)((Vec<uint16_t, 32>)words >> (4 * j)), table);
  }
  OPSMITH_INLINE static Words byte_pairs(Vec<int8_t> first, Vec<int8_t> second) {
    const __m512i low = _mm512_maskz_cvtepi8_epi32(0xffff, (__m128i)first), high = _mm512_maskz_cvtepi8_epi32(0xffff, (__m128i)second);
    return _mm512_mask_blend_epi16(0xaaaaaaaa, low, (__m512i)((I)high << 16));
  }
  OPSMITH_INLINE static Words add_products(Words sum, Words weights, int32_t x) {
    return _mm512_dpwssd_epi32(sum, weights, _mm512_set1_epi32(x));
  }
};
#else
using portable::Int4Dot;
#endif

OPSMITH_INLINE Vec<uint8_t> low_bytes(I x) { return (Vec<uint8_t>)_mm512_maskz_cvtepi32_epi8(0xffff, (__m512i)x); }
OPSMITH_INLINE I from_bytes(Vec<uint8_t> x) { return (I)_mm512_maskz_cvtepu8_epi32(0xffff, (__m128i)x); }
OPSMITH_INLINE I from_bytes(Vec<int8_t> x) { return (I)_mm512_maskz_cvtepi8_epi32(0xffff, (__m128i)x); }

#if defined(__AVX512BF16__) && defined(__AVX512BW__)
struct PairDot {
  static constexpr bool fast = true;
  OPSMITH_INLINE static F add_products(F sum, I x, I b) {
    return (F)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)b);
  }
};
// Denormals become 0, as PairDot takes them.
OPSMITH_INLINE I narrow_pairs(F first, F second) {
  const __m512i order = (__m512i)Vec<uint16_t, 32>{0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23,
                                                   8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return (I)_mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first));
}
#else
using portable::narrow_pairs;
using portable::PairDot;
#endif
#ifdef __AVX512BF16__
OPSMITH_INLINE H narrow(F v, bf16) {
  if (__builtin_expect(_mm512_fpclass_ps_mask((__m512)v, 0x20) != 0, 0)) return portable::narrow(v, bf16{});  // it would lose denormals
  return (H)_mm512_cvtneps_pbh((__m512)v);
}
#else
OPSMITH_INLINE H narrow(F v, bf16) { return portable::narrow(v, bf16{}); }
#endif

#if defined(__AVX512VNNI__)
struct ByteDot {
  static constexpr bool x_signed = false;
  using Value = __m512i;
  using Columns = __m512i;
  OPSMITH_INLINE static Value value(I words) { return (__m512i)words; }
  OPSMITH_INLINE static Columns columns(I words) { return (__m512i)words; }
  OPSMITH_INLINE static I add_products(I sum, Value x, Columns b) { return (I)_mm512_dpbusd_epi32((__m512i)sum, x, b); }
};
#elif defined(__AVX512BW__)
struct ByteDot {  // as in simd_avx2.hpp
  static constexpr bool x_signed = false;
  struct Value {
    __m512i even, odd;
  };
  using Columns = Value;
  OPSMITH_INLINE static Value value(I words) {
    return {_mm512_and_si512((__m512i)words, _mm512_set1_epi16(255)), _mm512_srli_epi16((__m512i)words, 8)};
  }
  OPSMITH_INLINE static Columns columns(I words) {
    return {_mm512_srai_epi16(_mm512_slli_epi16((__m512i)words, 8), 8), _mm512_srai_epi16((__m512i)words, 8)};
  }
  OPSMITH_INLINE static I add_products(I sum, Value x, Columns b) {
    return sum + (I)_mm512_madd_epi16(x.even, b.even) + (I)_mm512_madd_epi16(x.odd, b.odd);
  }
};
#else
using portable::ByteDot;
#endif

}  // namespace opsmith

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__) && defined(__linux__)
#include "simd_amx.hpp"
#else
namespace opsmith {
using portable::Tiles;
}
#endif
