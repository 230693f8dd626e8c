// One float at a time, no intrinsics: what the library computes, without anything that an instruction set adds. Not chosen by
// itself; see simd.hpp.
#pragma once

namespace opsmith {

inline constexpr i64 W = 1;
inline constexpr int gemm_mr = 4, gemm_nv = 3, attention_mr = 4, attention_nv = 2, attention_row_nv = 4;
inline constexpr int byte_mr = 4;
inline constexpr bool gemm_fetch_ahead = false, attention_copies = false, scales_exponents = false;

}  // namespace opsmith

#include "simd_portable.hpp"

namespace opsmith {

using namespace portable;

}  // namespace opsmith
