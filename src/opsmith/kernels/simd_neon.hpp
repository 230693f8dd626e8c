// NEON: 32 registers of 4 floats.
#pragma once

#include <arm_neon.h>

namespace opsmith {

inline constexpr i64 W = 4;
// 8 x 3 = 24 accumulators, 3 registers for B, the rest for row values.
inline constexpr int gemm_mr = 8, gemm_nv = 3, attention_mr = 8, attention_nv = 3, attention_row_nv = 4;
inline constexpr int byte_mr = 8;
inline constexpr bool gemm_fetch_ahead = false, attention_copies = true, scales_exponents = false;

}  // namespace opsmith

#include "simd_portable.hpp"

namespace opsmith {

OPSMITH_INLINE F sqrt(F x) { return (F)vsqrtq_f32((float32x4_t)x); }

using portable::any;
using portable::load;
using portable::load_halves;
using portable::max_or_second;
using portable::min_or_second;
using portable::narrow;
using portable::nibble;
using portable::store;
using portable::store_halves;
using portable::to_float;
using portable::to_half;
using portable::to_words;
using portable::widen;
using portable::Int4Dot;
using portable::from_bytes;
using portable::low_bytes;
using portable::narrow_pairs;
using portable::Tiles;

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
struct PairDot {
  static constexpr bool fast = true;
  OPSMITH_INLINE static F add_products(F sum, I x, I b) {
    return (F)vbfdotq_f32((float32x4_t)sum, (bfloat16x8_t)x, (bfloat16x8_t)b);
  }
};
#else
using portable::PairDot;
#endif

struct ByteDot {
  static constexpr bool x_signed = true;
  using Value = int8x16_t;
  using Columns = int8x16_t;
  OPSMITH_INLINE static Value value(I words) { return (int8x16_t)words; }
  OPSMITH_INLINE static Columns columns(I words) { return (int8x16_t)words; }
  OPSMITH_INLINE static I add_products(I sum, Value x, Columns b) {
#if defined(__ARM_FEATURE_DOTPROD)
    return (I)vdotq_s32((int32x4_t)sum, x, b);
#else
    const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(x), vget_low_s8(b)));
    const int32x4_t high = vpaddlq_s16(vmull_s8(vget_high_s8(x), vget_high_s8(b)));
    return sum + (I)vpaddq_s32(low, high);
#endif
  }
};

}  // namespace opsmith
