// Products of doubles and integers, in plain loops: graphs hold a few of them at most. (gemm.hpp is for floats.)
#pragma once

#include "elementwise.hpp"
#include "fold.hpp"
#include "sizes.hpp"

namespace opsmith {

// c (batch..., m, n), dense, = a @ b; batch strides are 0 where an operand is broadcast
template <class T>
void matmul_plain(const Pool& pool, const Sizes& batch, i64 m, i64 n, i64 k, const T* a, const Sizes& a_batch, i64 a_row, i64 a_col,
                  const T* b, const Sizes& b_batch, i64 b_row, i64 b_col, T* c) {
  i64 rows = m;
  for (int d = 0; d < batch.count; ++d) rows *= batch.at[d];
  pool.parallel_ranges(rows, max<i64>(1, 8192 / max<i64>(1, n * k)), [&](i64 begin, i64 end) {
    for (i64 r = begin; r < end; ++r) {
      i64 rest = r / m, at_a = r % m * a_row, at_b = 0;
      for (int d = batch.count - 1; d >= 0; --d) {
        at_a += rest % batch.at[d] * a_batch.at[d];
        at_b += rest % batch.at[d] * b_batch.at[d];
        rest /= batch.at[d];
      }
      for (i64 j = 0; j < n; ++j) {
        Wide<T> sum = 0;
        for (i64 i = 0; i < k; ++i) sum += widen_scalar(a[at_a + i * a_col]) * widen_scalar(b[at_b + i * b_row + j * b_col]);
        c[r * n + j] = narrow_scalar<T>(sum);
      }
    }
  });
}

}  // namespace opsmith
