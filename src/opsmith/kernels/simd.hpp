// What differs from one instruction set to another, and the choice of one: the only header that asks what the compiler is
// building for. Each simd_<set>.hpp offers the same names, most of them in the plain form of simd_portable.hpp:
//
//   W                               floats in a vector
//   gemm_mr, gemm_nv                the microkernel's tile: rows, vectors of columns (gemm_micro.hpp)
//   gemm_fetch_ahead                whether the microkernel asks for B by hand
//   attention_mr, attention_nv      the same for attention_tiles.hpp
//   attention_row_nv                vectors of values at a time for several rows (attention_rows.hpp)
//   attention_copies                whether rows a multiple of 4 KB apart are worth a copy
//   load, store with a Tail         touch nothing beyond the last valid lane; what is not loaded is zero
//   load_halves, store_halves       the same for W numbers of 16 bits
//   to_float, to_half               f16 <-> float
//   to_words                        W numbers of 16 bits, zeros above them
//   widen, narrow                   W of them <-> F; widen(Vec<int8_t>) too
//   nibble(words, j)                value j (of 8) of W columns of 4-bit weights
//   any, min_or_second, max_or_second, sqrt
//   scales_exponents                whether there are nearest_whole(x), and scale_exponent(x, n) = x * 2^n
//   ByteDot                         sum + products of 4 bytes of x (signed or not: x_signed) with 4 signed bytes per column; x is the
//                                   same word in every lane. value and columns make of words what add_products takes
//   byte_mr                         rows of the tile that it is used in (gemm_bytes.hpp); the columns are gemm_nv vectors
//   low_bytes, from_bytes           W words <-> W bytes
//   PairDot                         sum + products of 2 bf16 of x with 2 of each column, in float; `fast`: by one instruction
//   narrow_pairs                    two F as W words of two bf16, for PairDot: denormals may become 0
//   Tiles                           registers that hold tiles and multiply them whole, if they `exist` (gemm_tiles.hpp)
//   Int4Dot                         products of 4-bit weights as integers, if Int4Dot::fast (quant.hpp)
//
// compiler/geometry.py has the numbers once more, and tests/kernels/test_geometry.py holds the two together. To add a set: its
// header, its row there, a line below (or -DOPSMITH_SIMD_HEADER='"simd_<set>.hpp"').
#pragma once

#include <stdint.h>
#include <string.h>

#define OPSMITH_INLINE [[gnu::always_inline]] inline

namespace opsmith {
using i64 = int64_t;
#if defined(__aarch64__)
using half_number = __fp16;  // g++ knows _Float16 in C++ only since version 13
inline constexpr bool converts_to_lowest = false;  // a float to an integer that does not hold it: to the nearest
#else
using half_number = _Float16;
inline constexpr bool converts_to_lowest = true;
#endif
}  // namespace opsmith

#if defined(OPSMITH_SIMD_HEADER)
#include OPSMITH_SIMD_HEADER
#elif defined(__AVX512F__) && defined(__FMA__) && defined(__F16C__)
#include "simd_avx512.hpp"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "simd_avx2.hpp"
#elif defined(__aarch64__)
#include "simd_neon.hpp"
#else
#include "simd_generic.hpp"
#endif
