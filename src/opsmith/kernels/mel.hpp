// The weights that turn a spectrum into mel bands.
#pragma once

#include "fold.hpp"

namespace opsmith {

// y [length / 2 + 1][bands]: triangles whose corners lie evenly in mel between two frequencies; false if they leave the spectrum.
template <class T>
bool mel_weights(i64 bands, i64 length, i64 rate, double low, double high, T* y) {
  const i64 bins = length / 2 + 1;
  for (i64 i = 0; i < bins * bands; ++i) y[i] = narrow_scalar<T>(0.0);
  const double from = 2595 * __builtin_log10(1 + low / 700), to = 2595 * __builtin_log10(1 + high / 700);
  const double step = (to - from) / static_cast<double>(bands + 2);
  auto corner = [&](i64 i) {
    const double hertz = 700 * (__builtin_pow(10.0, (from + static_cast<double>(i) * step) / 2595) - 1);
    const double bin = __builtin_floor(static_cast<double>(length + 1) * hertz / static_cast<double>(rate));
    return bin >= 0 && bin < static_cast<double>(bins) ? static_cast<i64>(bin) : i64(-1);
  };
  for (i64 b = 0; b < bands; ++b) {
    const i64 left = corner(b), center = corner(b + 1), right = corner(b + 2);
    if (left < 0 || center < left || right < center) return false;
    if (left == center) y[center * bands + b] = narrow_scalar<T>(1.0);
    for (i64 j = left; left < center && j <= center; ++j)
      y[j * bands + b] = narrow_scalar<T>(static_cast<double>(j - left) / static_cast<double>(center - left));
    for (i64 j = center; j < right; ++j)
      y[j * bands + b] = narrow_scalar<T>(static_cast<double>(right - j) / static_cast<double>(right - center));
  }
  return true;
}

}  // namespace opsmith
