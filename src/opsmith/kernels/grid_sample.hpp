// GridSample: an image read at positions that another tensor gives, between pixels by interpolation. 2 or 3 spatial dims.
#pragma once

#include "elementwise.hpp"
#include "fold.hpp"
#include "resize.hpp"

namespace opsmith {

enum class Outside { zeros, border, reflection };

struct GridShape {
  i64 batch, channels;
  int spatial;               // 2 or 3
  i64 in[3], out[3];         // sizes, outermost first; missing ones are 1 and in front
  Interpolation interpolation;
  Outside outside;
  bool align_corners;
};

inline double grid_reflect(double x, double low, double high) {  // mirrored at both ends until it lies between
  const double span = high - low;
  if (!(span > 0)) return 0;
  x = __builtin_fmod(__builtin_fabs(x - low), 2 * span);
  return low + (x > span ? 2 * span - x : x);
}

// A position along an axis, moved inside as the mode wants.
inline double grid_inside(double x, i64 size, Outside outside, bool align_corners) {
  const double last = static_cast<double>(size - 1);
  if (outside == Outside::border) return x < 0 ? 0 : x > last ? last : x;
  if (outside == Outside::reflection) return align_corners ? grid_reflect(x, 0, last) : grid_reflect(x, -0.5, last + 0.5);
  return x;
}

// The pixel for a whole position; -1 for zero padding.
inline i64 grid_pixel(double at, i64 size, Outside outside, bool align_corners) {
  if (outside != Outside::zeros) {
    at = grid_inside(at, size, outside, align_corners);
    at = at < 0 ? 0 : at > static_cast<double>(size - 1) ? static_cast<double>(size - 1) : at;
  }
  return at >= 0 && at < static_cast<double>(size) ? static_cast<i64>(__builtin_rint(at)) : -1;
}

// x (N, C, in...), grid (N, out..., spatial) with the innermost axis first -> y (N, C, out...)
template <class T, class TG>
void grid_sample(const Pool& pool, const GridShape& s, const T* x, const TG* grid, T* y) {
  const i64 pixels_in = s.in[0] * s.in[1] * s.in[2], pixels = s.out[0] * s.out[1] * s.out[2];
  constexpr i64 kPixels = 16, kTaps = 64;
  const i64 bands = ceil_div(pixels, kPixels);
  // Positions and weights of a few pixels, then all channels: what is written lies together.
  pool.parallel_ranges(s.batch * bands, max<i64>(1, 8 / max<i64>(1, s.channels)), [&](i64 begin, i64 end) {
    for (i64 band = begin; band < end; ++band) {
      const i64 n = band / bands, first = band % bands * kPixels, count = min(kPixels, pixels - first);
      i64 taken[kPixels], offset[kPixels][kTaps];
      double share[kPixels][kTaps];
      for (i64 q = 0; q < count; ++q) {
        const i64 o = first + q;
        i64 at[3][4];
        double weight[3][4];
        i64 taps[3] = {1, 1, 1};
        at[0][0] = at[1][0] = at[2][0] = 0;
        weight[0][0] = weight[1][0] = weight[2][0] = 1;
        for (int d = 3 - s.spatial; d < 3; ++d) {
          const double g = static_cast<double>(from_storage(grid[(n * pixels + o) * s.spatial + (2 - d)]));
          const i64 size = s.in[d];
          const double wide = static_cast<double>(size);
          double v = s.align_corners ? (g + 1) / 2 * (wide - 1) : ((g + 1) * wide - 1) / 2;
          if (!(v > -1e9 && v < 1e9)) v = v != v ? -1e9 : v < 0 ? -1e9 : 1e9;
          if (s.interpolation == Interpolation::nearest) {
            v = grid_inside(v, size, s.outside, s.align_corners);
            at[d][0] = grid_pixel(__builtin_rint(v), size, s.outside, s.align_corners);
            continue;
          }
          if (s.interpolation == Interpolation::linear) v = grid_inside(v, size, s.outside, s.align_corners);
          const i64 reach = s.interpolation == Interpolation::linear ? 1 : 2;
          const double low = __builtin_floor(v);
          taps[d] = 2 * reach;
          for (i64 t = 0; t < taps[d]; ++t) {
            const double position = low + static_cast<double>(t - reach + 1);
            at[d][t] = grid_pixel(position, size, s.outside, s.align_corners);
            const double distance = position - v;
            weight[d][t] = reach == 1 ? 1 - __builtin_fabs(distance) : cubic_weight(distance, -0.75);
          }
        }
        taken[q] = 0;
        for (i64 i = 0; i < taps[0]; ++i)
          for (i64 j = 0; j < taps[1]; ++j)
            for (i64 k = 0; k < taps[2]; ++k) {
              if (at[0][i] < 0 || at[1][j] < 0 || at[2][k] < 0) continue;
              offset[q][taken[q]] = (at[0][i] * s.in[1] + at[1][j]) * s.in[2] + at[2][k];
              share[q][taken[q]++] = weight[0][i] * weight[1][j] * weight[2][k];
            }
      }
      for (i64 c = 0; c < s.channels; ++c) {
        const T* plane = x + (n * s.channels + c) * pixels_in;
        T* out = y + (n * s.channels + c) * pixels + first;
        for (i64 q = 0; q < count; ++q) {
          if (s.interpolation == Interpolation::nearest) {
            out[q] = taken[q] ? plane[offset[q][0]] : T{};
            continue;
          }
          auto part = [&](i64 k) { return share[q][k] * static_cast<double>(from_storage(plane[offset[q][k]])); };
          double sum = 0;
          if (taken[q] == 4)  // linear, not at the border
            sum = part(0) + part(1) + part(2) + part(3);
          else
            for (i64 k = 0; k < taken[q]; ++k) sum += part(k);
          out[q] = narrow_scalar<T>(sum);
        }
      }
    }
  });
}

}  // namespace opsmith
