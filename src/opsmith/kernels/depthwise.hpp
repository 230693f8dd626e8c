// Depthwise 2-D convolution in NHWC: every channel has its own filter (groups = channels = out_channels).
//
//   y[n][oh][ow][c] = ep(sum over kh, kw of x[n][oh*sh - top + kh*dh][ow*sw - left + kw*dw][c] * w[kh][kw][c])
//
// Weights (compile/pack.py: pack_depthwise): [kernel_h][kernel_w][channels].
//
// Channels are the lanes. Four neighbouring pixels share each load of a weight: 4 accumulators, 1 weight, the pixels are
// memory operands; more would not help, as x is read at one load per FMA in any case. Rows of pixels whose
// neighbourhood leaves the picture take the checked path.
#pragma once

#include "conv.hpp"

namespace opsmith {

// One pixel whose neighbourhood may leave the picture.
template <class Lanes>
OPSMITH_INLINE F depthwise_checked(const ConvShape& s, const float* x, const float* w, i64 n, i64 oh, i64 ow, i64 c,
                                   Lanes lanes) {
  F sum{};
  for (i64 kh = 0; kh < s.kernel_h; ++kh) {
    for (i64 kw = 0; kw < s.kernel_w; ++kw) {
      const float* source = conv_source(s, x, n, oh, ow, kh, kw);
      if (source) sum += load(source + c, lanes) * load(w + (kh * s.kernel_w + kw) * s.channels + c, lanes);
    }
  }
  return sum;
}

inline constexpr i64 conv2d_depthwise_workspace(const ConvShape&) { return 0; }

template <class Ep>
void conv2d_depthwise(const Pool& pool, const ConvShape& s, const float* x, const float* weights, float* y, void*,
                      Ep ep) {
  constexpr int P = 4;  // pixels at a time
  const i64 C = s.channels, stride = s.x_stride(), rows = s.batch * s.out_height;
  // Output columns [begin, end) see only pixels inside the picture.
  const i64 begin = min(s.out_width, ceil_div(max<i64>(0, s.pad_left), s.stride_w));
  const i64 room = s.width + s.pad_left - s.dilation_w * (s.kernel_w - 1) - 1;  // of the last column's left edge
  const i64 end = s.upsample != 1 || room < 0 ? begin : max(begin, min(s.out_width, room / s.stride_w + 1));
  const i64 work = s.out_width * s.taps() * C / 16;  // about nanoseconds per row
  const i64 run = max<i64>(1, min(max<i64>(1, rows / (4 * pool.threads)), 100000 / max<i64>(1, work)));
  pool.parallel_for(ceil_div(rows, run), [&](i64 task) {
    for (i64 line = task * run; line < min(rows, (task + 1) * run); ++line) {
      const i64 n = line / s.out_height, oh = line - n * s.out_height;
      const i64 top = oh * s.stride_h - s.pad_top, bottom = top + s.dilation_h * (s.kernel_h - 1);
      const bool inside = top >= 0 && bottom < s.height;
      auto put = [&](i64 ow, i64 c, F sum, auto lanes) {
        Row row{line * s.out_width + ow, n};
        store(y + row.index * s.y_stride() + c, ep(sum, row, c, lanes), lanes);
      };
      auto checked = [&](i64 ow) {
        i64 c = 0;
        for (; c + W <= C; c += W) put(ow, c, depthwise_checked(s, x, weights, n, oh, ow, c, Full{}), Full{});
        if (c < C) put(ow, c, depthwise_checked(s, x, weights, n, oh, ow, c, Tail{C - c}), Tail{C - c});
      };
      i64 ow = 0;
      for (; ow < (inside ? begin : s.out_width); ++ow) checked(ow);
      for (; ow + P <= end; ow += P) {
        const float* corner = x + ((n * s.height + top) * s.width + ow * s.stride_w - s.pad_left) * stride;
        auto four = [&](i64 c, auto lanes) {
          F sums[P] = {};
          const float* w = weights + c;
          for (i64 kh = 0; kh < s.kernel_h; ++kh) {
            const float* source = corner + kh * s.dilation_h * s.width * stride + c;
            for (i64 kw = 0; kw < s.kernel_w; ++kw, w += C, source += s.dilation_w * stride) {
              F weight = load(w, lanes);
#pragma GCC unroll 4
              for (int p = 0; p < P; ++p) sums[p] += load(source + p * s.stride_w * stride, lanes) * weight;
            }
          }
#pragma GCC unroll 4
          for (int p = 0; p < P; ++p) put(ow + p, c, sums[p], lanes);
        };
        i64 c = 0;
        for (; c + W <= C; c += W) four(c, Full{});
        if (c < C) four(c, Tail{C - c});
      }
      for (; ow < s.out_width; ++ow) checked(ow);
    }
  });
}

template <class Ep>
void conv2d_depthwise_reference(const Pool&, const ConvShape& s, const float* x, const float* weights, float* y, void*,
                                Ep ep) {
  for (i64 m = 0; m < s.pixels(); ++m) {
    i64 ow = m % s.out_width, oh = m / s.out_width % s.out_height, n = m / s.out_width / s.out_height;
    for (i64 c = 0; c < s.channels; ++c) {
      float sum = 0;
      for (i64 tap = 0; tap < s.taps(); ++tap) {
        const float* source = conv_source(s, x, n, oh, ow, tap / s.kernel_w, tap % s.kernel_w);
        if (source) sum += source[c] * weights[tap * s.channels + c];
      }
      store(y + m * s.y_stride() + c, ep(splat(sum), Row{m, n}, c, Tail{1}), Tail{1});
    }
  }
}

}  // namespace opsmith
