// Resize: every output element is a weighted sum of input elements, with weights that are a product over the axes.
//
// Each axis has a table of taps (source index and weight) per output position, made once per run: 1 for nearest, 2 for linear, 4 for
// cubic, more when an image shrinks with antialiasing. An axis that keeps its size costs one tap of weight 1.
#pragma once

#include "elementwise.hpp"
#include "fold.hpp"
#include "sizes.hpp"

namespace opsmith {

enum class Interpolation { nearest, linear, cubic };
enum class Coordinate { half_pixel, half_pixel_symmetric, pytorch_half_pixel, align_corners, asymmetric, tf_crop_and_resize };
enum class Nearest { round_prefer_floor, round_prefer_ceil, floor, ceil };

struct ResizeMode {
  Interpolation interpolation;
  Coordinate coordinate;
  Nearest nearest;
  double cubic;          // the coefficient a of the cubic kernel
  bool exclude_outside;  // weights of taps outside the image become 0, the others are scaled to a sum of 1
  bool antialias;
};

struct ResizeAxis {
  i64 in, out;
  double scale;             // as given, or out / in
  double first = 0, last = 1;  // region of interest, for tf_crop_and_resize
};

// Where output position i lies in the input, in input pixels.
inline double resize_position(i64 i, const ResizeAxis& a, Coordinate mode) {
  const double in = static_cast<double>(a.in), wide = a.scale * in, x = static_cast<double>(i);
  switch (mode) {
    case Coordinate::align_corners:
      return wide == 1 ? 0 : x * (in - 1) / (wide - 1);
    case Coordinate::asymmetric:
      return x / a.scale;
    case Coordinate::tf_crop_and_resize:
      return (wide == 1 ? (a.last - a.first) * (in - 1) / 2 : x * (a.last - a.first) * (in - 1) / (wide - 1)) + a.first * (in - 1);
    case Coordinate::pytorch_half_pixel:
      return wide == 1 ? -0.5 : (x + 0.5) / a.scale - 0.5;
    case Coordinate::half_pixel_symmetric:
      return in / 2 * (1 - static_cast<double>(a.out) / wide) + (x + 0.5) / a.scale - 0.5;
    default:
      return (x + 0.5) / a.scale - 0.5;
  }
}

// Taps an axis needs at most.
inline i64 resize_taps(const ResizeAxis& a, const ResizeMode& mode) {
  if (mode.interpolation == Interpolation::nearest) return 1;
  const i64 reach = mode.interpolation == Interpolation::linear ? 1 : 2;
  if (!mode.antialias || !(a.scale < 1)) return 2 * reach;
  const double wide = __builtin_ceil(reach / a.scale);
  return 2 * (wide < 1e9 ? static_cast<i64>(wide) : 1);
}

struct Tap {
  i64 at;
  double weight;
};

inline double cubic_weight(double x, double a) {
  x = __builtin_fabs(x);
  if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
  return 0;
}

// `taps` entries for output position i; false if it lies outside and must be filled (tf_crop_and_resize only).
inline bool resize_table(i64 i, const ResizeAxis& a, const ResizeMode& mode, i64 taps, Tap* table) {
  const double x = resize_position(i, a, mode.coordinate);
  for (i64 t = 0; t < taps; ++t) table[t] = Tap{0, 0};
  if (mode.coordinate == Coordinate::tf_crop_and_resize && !(x >= 0 && x <= static_cast<double>(a.in - 1))) return false;
  const double limited = x < -1e15 ? -1e15 : x > 1e15 ? 1e15 : x == x ? x : 0;
  const double low = __builtin_floor(limited);
  const double ratio = limited - low;
  auto clamped = [&](double at) { return at < 0 ? 0 : at > static_cast<double>(a.in - 1) ? a.in - 1 : static_cast<i64>(at); };
  if (mode.interpolation == Interpolation::nearest) {
    double at = low;
    if (ratio > 0) {
      const bool up = mode.nearest == Nearest::ceil || (mode.nearest == Nearest::round_prefer_floor && ratio > 0.5) ||
                      (mode.nearest == Nearest::round_prefer_ceil && ratio >= 0.5);
      at += up;
    }
    table[0] = Tap{clamped(at), 1};
    return true;
  }
  const double shrink = mode.antialias && a.scale < 1 ? a.scale : 1;
  double sum = 0;
  for (i64 t = 0; t < taps; ++t) {
    const double at = low + static_cast<double>(t - taps / 2 + 1);
    const double distance = (at - limited) * shrink;
    double weight;
    if (mode.interpolation == Interpolation::linear)
      weight = max(0.0, 1 - __builtin_fabs(distance));
    else
      weight = cubic_weight(distance, mode.cubic);
    if (mode.exclude_outside && (at < 0 || at > static_cast<double>(a.in - 1))) weight = 0;
    table[t] = Tap{clamped(at), weight};
    sum += weight;
  }
  if ((mode.exclude_outside || shrink != 1) && sum != 0)
    for (i64 t = 0; t < taps; ++t) table[t].weight /= sum;
  return true;
}

struct ResizePlan {
  int rank;
  ResizeAxis axes[kSizesRank];

  bool empty() const {
    for (int d = 0; d < rank; ++d)
      if (axes[d].out <= 0 || axes[d].in <= 0) return true;
    return false;
  }
};

inline i64 resize_workspace(const ResizePlan& plan, const ResizeMode& mode) {
  if (plan.empty()) return 0;
  i64 bytes = 0;
  for (int d = 0; d < plan.rank; ++d) {
    const ResizeAxis& a = plan.axes[d];
    bytes += a.out * (resize_taps(a, mode) * static_cast<i64>(sizeof(Tap)) + 8);
  }
  return bytes;
}

// out (dense) from x with any strides; elements outside the region of interest become `fill`
template <class T>
void resize(const Pool& pool, const ResizePlan& plan, const ResizeMode& mode, const Sizes& strides, const T* x, double fill, T* out,
            void* workspace) {
  if (plan.empty()) return;
  const int rank = plan.rank;
  Tap* tables[kSizesRank];
  i64* inside[kSizesRank];
  i64 taps[kSizesRank];
  uint8_t* at = static_cast<uint8_t*>(workspace);
  i64 total = 1;
  for (int d = 0; d < rank; ++d) {
    const ResizeAxis& a = plan.axes[d];
    const bool same = a.in == a.out && a.scale == 1 && mode.coordinate != Coordinate::tf_crop_and_resize;
    taps[d] = same ? 1 : resize_taps(a, mode);
    tables[d] = reinterpret_cast<Tap*>(at);
    inside[d] = reinterpret_cast<i64*>(at + a.out * taps[d] * static_cast<i64>(sizeof(Tap)));
    at = reinterpret_cast<uint8_t*>(inside[d] + a.out);
    for (i64 i = 0; i < a.out; ++i) {
      if (same)
        tables[d][i] = Tap{i, 1}, inside[d][i] = 1;
      else
        inside[d][i] = resize_table(i, a, mode, taps[d], tables[d] + i * taps[d]);
    }
    total *= a.out;
  }
  pool.parallel_ranges(total, 2048, [&](i64 begin, i64 end) {
    for (i64 o = begin; o < end; ++o) {
      const Tap* rows[kSizesRank];
      i64 rest = o;
      bool in = true;
      for (int d = rank - 1; d >= 0; --d) {
        const i64 i = rest % plan.axes[d].out;
        rest /= plan.axes[d].out;
        rows[d] = tables[d] + i * taps[d];
        in = in && inside[d][i];
      }
      if (!in) {
        out[o] = narrow_scalar<T>(fill);
        continue;
      }
      if (mode.interpolation == Interpolation::nearest) {
        i64 from = 0;
        for (int d = 0; d < rank; ++d) from += rows[d]->at * strides.at[d];
        out[o] = x[from];
        continue;
      }
      i64 index[kSizesRank] = {};
      double sum = 0;
      for (;;) {  // over all combinations of taps
        i64 from = 0;
        double weight = 1;
        for (int d = 0; d < rank; ++d) {
          from += rows[d][index[d]].at * strides.at[d];
          weight *= rows[d][index[d]].weight;
        }
        if (weight != 0) sum += weight * static_cast<double>(from_storage(x[from]));
        int d = rank - 1;
        while (d >= 0 && ++index[d] == taps[d]) index[d--] = 0;
        if (d < 0) break;
      }
      if constexpr (IntegerStorage<T>)
        out[o] = to_number<T>(__builtin_rint(sum));
      else
        out[o] = narrow_scalar<T>(sum);
    }
  });
}

}  // namespace opsmith
