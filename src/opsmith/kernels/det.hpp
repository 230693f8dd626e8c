// Determinants, by elimination with pivots, in double.
#pragma once

#include "fold.hpp"

namespace opsmith {

inline i64 det_workspace(i64 n) { return n * n * 8; }

// x [batch][n][n] -> y [batch]
template <class T>
void det(i64 batch, i64 n, const T* x, T* y, void* workspace) {
  double* m = static_cast<double*>(workspace);
  for (i64 b = 0; b < batch; ++b) {
    for (i64 i = 0; i < n * n; ++i) m[i] = static_cast<double>(from_storage(x[b * n * n + i]));
    double product = 1;
    for (i64 k = 0; k < n; ++k) {
      i64 pivot = k;
      for (i64 r = k + 1; r < n; ++r)
        if (__builtin_fabs(m[r * n + k]) > __builtin_fabs(m[pivot * n + k])) pivot = r;
      const double top = m[pivot * n + k];
      product *= pivot == k ? top : -top;
      if (top == 0) break;
      for (i64 c = k; pivot != k && c < n; ++c) {
        const double other = m[k * n + c];
        m[k * n + c] = m[pivot * n + c], m[pivot * n + c] = other;
      }
      for (i64 r = k + 1; r < n; ++r) {
        const double factor = m[r * n + k] / top;
        for (i64 c = k + 1; c < n; ++c) m[r * n + c] -= factor * m[k * n + c];
      }
    }
    y[b] = narrow_scalar<T>(product);
  }
}

}  // namespace opsmith
