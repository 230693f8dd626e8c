// Arrays for the tests of matrix and convolution kernels.
#pragma once

#include "harness.hpp"

namespace opsmith::test {

// Exactly n elements, 64-byte aligned as the runtime's buffers are, so that the address sanitizer sees every step
// beyond the end.
template <class T>
struct Array {
  explicit Array(i64 n) : size(n) {
    void* p = nullptr;
    if (posix_memalign(&p, 64, n > 0 ? static_cast<size_t>(n) * sizeof(T) : 1)) abort();
    data = static_cast<T*>(p);
  }
  Array(i64 n, Random& random) : Array(n) {
    for (i64 i = 0; i < n; ++i) {
      float x = static_cast<float>(2 * random.uniform() - 1);
      if constexpr (HalfStorage<T>)
        data[i] = {narrow(splat(x), T{})[0]};
      else if constexpr (__is_same(T, bf16x2))
        data[i] = {static_cast<uint32_t>(narrow_pairs(splat(x), splat(1.5f * x - 0.25f))[0])};
      else
        data[i] = x;
    }
  }
  Array(const Array& other) : Array(other.size) { memcpy(data, other.data, static_cast<size_t>(size) * sizeof(T)); }
  Array& operator=(const Array&) = delete;
  ~Array() { free(data); }
  i64 size;
  T* data;
};

// The largest difference must stay within `tolerance` of the largest magnitude: sums of many products have errors in
// proportion to what was summed, not to what is left of it. Returns the error.
template <class T>
double expect_near(const char* what, const Array<T>& got, const Array<T>& want, double tolerance) {
  double scale = 1e-30, worst = 0;
  i64 at = 0;
  for (i64 i = 0; i < want.size; ++i) scale = fmax(scale, fabs(static_cast<double>(to_float(want.data[i]))));
  for (i64 i = 0; i < want.size; ++i) {
    double d = fabs(static_cast<double>(to_float(got.data[i])) - static_cast<double>(to_float(want.data[i]))) / scale;
    if (!(d <= worst)) worst = d, at = i;
  }
  if (!(worst <= tolerance)) {
    ++failures();
    printf("%s: relative error %.3g at %lld of %lld (%g, want %g)\n", what, worst, static_cast<long long>(at),
           static_cast<long long>(want.size), static_cast<double>(to_float(got.data[at])),
           static_cast<double>(to_float(want.data[at])));
  }
  return worst;
}

}  // namespace opsmith::test
