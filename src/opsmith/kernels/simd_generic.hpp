// Vectors of 4 floats in 16 registers: x86 before AVX2, and whatever else the compiler has vectors for.
#pragma once

namespace opsmith {

inline constexpr i64 W = 4;
inline constexpr int gemm_mr = 4, gemm_nv = 3, attention_mr = 4, attention_nv = 2, attention_row_nv = 4;
inline constexpr int byte_mr = 2;
inline constexpr bool gemm_fetch_ahead = false, attention_copies = true, scales_exponents = false;

}  // namespace opsmith

#include "simd_portable.hpp"

namespace opsmith {

using namespace portable;

}  // namespace opsmith
