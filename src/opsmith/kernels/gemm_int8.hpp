// A product of floats computed in bytes: C[m][n] = ep(a_scale[m] * b_scale[n] * sum over k of (A[m][k] - a_zero[m]) * B[k][n]).
//
// A comes from quantize_rows.hpp, B is a weight in int8 with a scale per column (compiler/pack.py: int8_columns) packed as in
// gemm_bytes.hpp; its zero points are 0. The sum is exact in 32 bits. The epilogue is that of gemm.hpp: it gets floats.
#pragma once

#include "gemm_bytes.hpp"

namespace opsmith {

// The epilogue of a product of bytes that scales its sums and gives them to `ep`. `a_scale` gives the scale of a row.
template <class Scale, class Ep>
OPSMITH_INLINE auto scaled_sums(Scale a_scale, const float* b_scales, Ep ep) {
  return [=](I sum, Row row, i64 column, auto lanes) __attribute__((always_inline)) {
    return ep(__builtin_convertvector(sum, F) * (splat(a_scale(row)) * load(b_scales + column, lanes)), row, column, lanes);
  };
}

template <class TC, class Ep>
void gemm_int8(const Pool& pool, i64 M, i64 N, i64 K, const uint8_t* A, i64 lda, const float* a_scales, const uint8_t* a_zeros,
               const int8_t* packed, const int32_t* sums, const float* b_scales, TC* C, i64 ldc, Ep ep, i64 rows_per_item = 0) {
  auto a_scale = [=](Row row) __attribute__((always_inline)) { return a_scales[row.index]; };
  gemm_bytes(pool, M, N, K, A, lda, RowZeros<uint8_t>{a_zeros, 1}, packed, sums, nullptr, C, ldc, scaled_sums(a_scale, b_scales, ep),
             rows_per_item);
}

template <class TC, class Ep>
void gemm_int8_reference(const Pool&, i64 M, i64 N, i64 K, const uint8_t* A, i64 lda, const float* a_scales, const uint8_t* a_zeros,
                         const int8_t* packed, const int32_t*, const float* b_scales, TC* C, i64 ldc, Ep ep, i64 rows_per_item = 0) {
  for (i64 m = 0; m < M; ++m) {
    for (i64 n = 0; n < N; ++n) {
      const i64 panel = n / gemm_nr, width = panel_vectors(N, panel) * W;
      const int8_t* b = packed + packed_bytes(panel * gemm_nr, K) + n % gemm_nr * 4;
      i64 sum = 0;
      for (i64 k = 0; k < K; ++k) sum += (A[m * lda + k] - a_zeros[m]) * b[k / 4 * width * 4 + k % 4];
      const float value = static_cast<float>(sum) * (a_scales[m] * b_scales[n]);
      store(C + m * ldc + n, ep(splat(value), Row{m, rows_per_item > 0 ? m / rows_per_item : 0}, n, Tail{1}), Tail{1});
    }
  }
}

}  // namespace opsmith
