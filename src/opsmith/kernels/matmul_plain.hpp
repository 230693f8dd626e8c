// Products of doubles and integers, in plain loops. (gemm.hpp is for floats.)
#pragma once

#include "elementwise.hpp"
#include "fold.hpp"
#include "sizes.hpp"

namespace opsmith {

// A tile of R rows by V vectors of columns, in registers over the whole of k. (Loops over vectors are unrolled by pragma, or they
// would lie in memory.)
template <int R, int V, class T>
void plain_tile(i64 k, const T* a, i64 a_row, i64 a_col, const T* b, i64 b_row, i64 b_col, T* c, i64 n) {
  constexpr int L = 8;
  using Sum = Vec<Wide<T>, L>;
  Sum sum[R][V] = {};
  for (i64 i = 0; i < k; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      const T* from = b + i * b_row + v * L * b_col;
      Sum y;
      if (b_col == 1) {
        Vec<T, L> narrow;
        memcpy(&narrow, from, sizeof narrow);
        y = __builtin_convertvector(narrow, Sum);
      } else {
#pragma GCC unroll 8
        for (int j = 0; j < L; ++j) y[j] = static_cast<Wide<T>>(from[j * b_col]);
      }
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) sum[r][v] += static_cast<Wide<T>>(a[r * a_row + i * a_col]) * y;
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v)
      for (int j = 0; j < L; ++j) c[r * n + v * L + j] = narrow_scalar<T>(sum[r][v][j]);
}

template <class T>
T plain_dot(i64 k, const T* a, i64 a_col, const T* b, i64 b_row) {
  Wide<T> sum = 0;
  for (i64 i = 0; i < k; ++i) sum += widen_scalar(a[i * a_col]) * widen_scalar(b[i * b_row]);
  return narrow_scalar<T>(sum);
}

// c (batch..., m, n), dense, = a @ b; batch strides are 0 where an operand is broadcast
template <class T>
void matmul_plain(const Pool& pool, const Sizes& batch, i64 m, i64 n, i64 k, const T* a, const Sizes& a_batch, i64 a_row, i64 a_col,
                  const T* b, const Sizes& b_batch, i64 b_row, i64 b_col, T* c) {
  constexpr i64 R = 4, C = 16;  // 8 vectors of doubles, 16 where vectors are narrow
  const i64 bands = ceil_div(m, R);
  i64 items = 1;
  for (int d = 0; d < batch.count; ++d) items *= batch.at[d];
  pool.parallel_ranges(items * bands, max<i64>(1, 4096 / max<i64>(1, n * k)), [&](i64 begin, i64 end) {
    for (i64 t = begin; t < end; ++t) {
      const i64 first = t % bands * R, rows = min(R, m - first);
      i64 rest = t / bands, at_a = first * a_row, at_b = 0;
      T* out = c + (rest * m + first) * n;
      for (int d = batch.count - 1; d >= 0; --d) {
        at_a += rest % batch.at[d] * a_batch.at[d];
        at_b += rest % batch.at[d] * b_batch.at[d];
        rest /= batch.at[d];
      }
      i64 j = 0;
      if constexpr (!HalfStorage<T> && !__is_same(T, bool))
        for (; j + C <= n; j += C) {
          if (rows == R)
            plain_tile<R, 2>(k, a + at_a, a_row, a_col, b + at_b + j * b_col, b_row, b_col, out + j, n);
          else
            for (i64 r = 0; r < rows; ++r)
              plain_tile<1, 2>(k, a + at_a + r * a_row, a_row, a_col, b + at_b + j * b_col, b_row, b_col, out + r * n + j, n);
        }
      for (; j < n; ++j)
        for (i64 r = 0; r < rows; ++r)
          out[r * n + j] = plain_dot(k, a + at_a + r * a_row, a_col, b + at_b + j * b_col, b_row);
    }
  });
}

}  // namespace opsmith
