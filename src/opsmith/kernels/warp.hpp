// Images read where data says: AffineGrid, the columns of a deformable convolution, MaxUnpool.
#pragma once

#include "elementwise.hpp"
#include "sizes.hpp"

namespace opsmith {

// theta [batch][rank][rank + 1], innermost axis first -> y [batch][out...][rank]: positions in [-1, 1], moved. rank is 2 or 3.
template <class T>
void affine_grid(const Pool& pool, i64 batch, const Sizes& out, bool align_corners, const T* theta, T* y) {
  const int rank = out.count;
  i64 pixels = 1;
  for (int d = 0; d < rank; ++d) pixels *= out.at[d];
  pool.parallel_ranges(batch * pixels, 1024, [&](i64 begin, i64 end) {
    for (i64 p = begin; p < end; ++p) {
      double at[4] = {0, 0, 0, 1};
      at[rank] = 1;
      i64 rest = p % pixels;
      for (int d = rank - 1; d >= 0; --d) {  // the last axis is coordinate 0
        const double i = static_cast<double>(rest % out.at[d]), n = static_cast<double>(out.at[d]);
        at[rank - 1 - d] = align_corners ? (n > 1 ? 2 * i / (n - 1) - 1 : -1) : (2 * i + 1) / n - 1;
        rest /= out.at[d];
      }
      const T* matrix = theta + p / pixels * rank * (rank + 1);
      for (int r = 0; r < rank; ++r) {
        double sum = 0;
        for (int c = 0; c <= rank; ++c) sum += static_cast<double>(from_storage(matrix[r * (rank + 1) + c])) * at[c];
        y[p * rank + r] = to_storage<T>(sum);
      }
    }
  });
}

struct DeformShape {
  i64 batch, channels, height, width, out_height, out_width, kernel_h, kernel_w, stride_h, stride_w, pad_top, pad_left, dilation_h,
      dilation_w, offset_groups;
};

// x [n][c][h][w] read bilinearly, 0 outside, at the kernel's positions moved by `offset` [n][offset group][kh][kw][2][oh][ow] and
// weighted by `mask` (may be null) -> y [n][oh][ow][c][kh][kw]
inline void deform_columns(const Pool& pool, const DeformShape& s, const float* x, const float* offset, const float* mask, float* y) {
  const i64 taps = s.kernel_h * s.kernel_w, pixels = s.out_height * s.out_width, per_group = s.channels / s.offset_groups;
  pool.parallel_ranges(s.batch * pixels, max<i64>(1, 1024 / max<i64>(1, s.channels * taps)), [&](i64 begin, i64 end) {
    for (i64 p = begin; p < end; ++p) {
      const i64 n = p / pixels, o = p % pixels;
      for (i64 g = 0; g < s.offset_groups; ++g) {
        for (i64 t = 0; t < taps; ++t) {
          const i64 from = (n * s.offset_groups + g) * taps + t;
          const float top = static_cast<float>(o / s.out_width * s.stride_h - s.pad_top + t / s.kernel_w * s.dilation_h) + offset[(2 * from) * pixels + o];
          const float left = static_cast<float>(o % s.out_width * s.stride_w - s.pad_left + t % s.kernel_w * s.dilation_w) + offset[(2 * from + 1) * pixels + o];
          float* out = y + (p * s.channels + g * per_group) * taps + t;
          const bool inside = top > -1 && left > -1 && top < static_cast<float>(s.height) && left < static_cast<float>(s.width);
          const float weight = mask ? mask[from * pixels + o] : 1.0f;
          const float low_y = __builtin_floorf(inside ? top : 0), low_x = __builtin_floorf(inside ? left : 0);
          const i64 i = static_cast<i64>(low_y), j = static_cast<i64>(low_x);
          const float fy = top - low_y, fx = left - low_x;
          for (i64 c = 0; c < per_group; ++c) {
            const float* image = x + (n * s.channels + g * per_group + c) * s.height * s.width;
            auto pixel = [&](i64 a, i64 b) { return a >= 0 && a < s.height && b >= 0 && b < s.width ? image[a * s.width + b] : 0.0f; };
            out[c * taps] = !inside ? 0.0f
                                    : weight * ((1 - fy) * ((1 - fx) * pixel(i, j) + fx * pixel(i, j + 1)) +
                                                fy * ((1 - fx) * pixel(i + 1, j) + fx * pixel(i + 1, j + 1)));
          }
        }
      }
    }
  });
}

// y is 0 but for x at its indices, which count through a tensor of `total` elements; false if one is outside.
template <class T>
bool max_unpool(i64 count, i64 total, const T* x, const i64* indices, T* y) {
  memset(y, 0, static_cast<size_t>(total) * sizeof(T));
  bool ok = true;
  for (i64 i = 0; i < count; ++i) {
    const bool inside = indices[i] >= 0 && indices[i] < total;
    if (inside) y[indices[i]] = x[i];
    ok &= inside;
  }
  return ok;
}

}  // namespace opsmith
