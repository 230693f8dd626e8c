// Transposed 2-D convolution in NHWC, without ever scattering: every output pixel gathers what reaches it.
//
//   y[n][oh][ow][o] = ep(sum over kh, kw, c with oh = ih*sh - top + kh*dh, ow = iw*sw - left + kw*dw
//                        of x[n][ih][iw][c] * w[kh][kw][c][o])
//
// Output pixels with the same (oh + top) mod sh and (ow + left) mod sw, a phase, use the same kernel positions: each of
// the sh * sw phases is an ordinary stride-1 convolution over some of the taps, done by conv_block.
// ConvShape: height and width are those of x, stride, padding and dilation those of the ConvTranspose.
// Weights (compile/pack.py: pack_conv_transposed): per group, per phase (row phase major), a packed B (gemm.hpp) whose
// rows are the taps of the phase in order, channel minor.
#pragma once

#include "conv.hpp"

namespace opsmith {

// Kernel positions along one axis that belong to a phase: first, first + step, ...
struct PhaseTaps {
  i64 first, step, count;
  static constexpr PhaseTaps of(i64 phase, i64 kernel, i64 stride, i64 dilation) {
    PhaseTaps t{0, 1, 0};
    for (i64 k = 0; k < kernel; ++k) {
      if (k * dilation % stride != phase) continue;
      if (t.count == 0) t.first = k;
      if (t.count == 1) t.step = k - t.first;
      ++t.count;
    }
    return t;
  }
};

inline constexpr i64 conv2d_transposed_workspace(const ConvShape& s) { return conv2d_workspace(s); }

template <class Ep>
void conv2d_transposed(const Pool& pool, const ConvShape& s, const float* x, const float* packed, float* y,
                       void* workspace, Ep ep) {
  const i64 N = s.out_channels / s.groups, channels = s.channels / s.groups;
  if (s.pixels() <= 0 || N <= 0) return;
  const i64 group_size = packed_size(N, s.taps() * channels);  // of weights; all phases together hold every tap once
  float* zeros = static_cast<float*>(workspace);
  memset(zeros, 0, static_cast<size_t>(channels) * sizeof(float));
  i64 phase_start = 0;
  for (i64 phase_h = 0; phase_h < s.stride_h; ++phase_h) {
    for (i64 phase_w = 0; phase_w < s.stride_w; ++phase_w) {
      const PhaseTaps taps_h = PhaseTaps::of(phase_h, s.kernel_h, s.stride_h, s.dilation_h);
      const PhaseTaps taps_w = PhaseTaps::of(phase_w, s.kernel_w, s.stride_w, s.dilation_w);
      const i64 taps = taps_h.count * taps_w.count, K = taps * channels;
      // The first output row and column of this phase, and how many of each there are.
      auto wrap = [](i64 a, i64 b) { return (a % b + b) % b; };
      const i64 oh0 = wrap(phase_h - s.pad_top, s.stride_h), ow0 = wrap(phase_w - s.pad_left, s.stride_w);
      const i64 lines = oh0 < s.out_height ? ceil_div(s.out_height - oh0, s.stride_h) : 0;
      const i64 columns = ow0 < s.out_width ? ceil_div(s.out_width - ow0, s.stride_w) : 0;
      const i64 image = lines * columns, M = s.batch * image;
      const float* weights = packed + phase_start;
      phase_start += packed_size(N, K);
      if (M <= 0) continue;
      const Tiling tiling = tile_work(pool, M, N, K);
      pool.parallel_for(s.groups * tiling.tasks(), [&](i64 i) {
        const i64 group = i / tiling.tasks();
        const Tiling::Task t = tiling[i % tiling.tasks()];
        auto locate = [&](i64 first, i64 count, i64 tap_begin, i64 tap_end, const float** table, Row* rows) {
          for (i64 r = 0; r < count; ++r) {
            const i64 n = (first + r) / image, pixel = first + r - n * image, line = pixel / columns;
            const i64 oh = oh0 + line * s.stride_h, ow = ow0 + (pixel - line * columns) * s.stride_w;
            rows[r] = {(n * s.out_height + oh) * s.out_width + ow, n};
            for (i64 tap = tap_begin; tap < tap_end; ++tap) {
              const i64 kh = taps_h.first + tap / taps_w.count * taps_h.step;
              const i64 kw = taps_w.first + tap % taps_w.count * taps_w.step;
              const i64 h = oh + s.pad_top - kh * s.dilation_h, w = ow + s.pad_left - kw * s.dilation_w;
              const i64 ih = h / s.stride_h, iw = w / s.stride_w;  // exact, but for negative h or w, which are outside
              const bool inside = h >= 0 && ih < s.height && w >= 0 && iw < s.width;
              table[(tap - tap_begin) * count + r] =
                  inside ? x + ((n * s.height + ih) * s.width + iw) * s.x_stride() + group * channels : zeros;
            }
          }
        };
        conv_block(t.row_begin, t.row_end, t.panel_begin, t.panel_end, N, channels, taps,
                   weights + group * group_size, zeros, y, s.y_stride(), group * N, locate, ep);
      });
    }
  }
}

template <class Ep>
void conv2d_transposed_reference(const Pool&, const ConvShape& s, const float* x, const float* packed, float* y, void*,
                                 Ep ep) {
  const i64 N = s.out_channels / s.groups, channels = s.channels / s.groups;
  for (i64 m = 0; m < s.pixels(); ++m) {
    i64 ow = m % s.out_width, oh = m / s.out_width % s.out_height, n = m / s.out_width / s.out_height;
    for (i64 o = 0; o < s.out_channels; ++o) {
      float sum = 0;
      const float* start = packed + o / N * packed_size(N, s.taps() * channels);
      for (i64 phase = 0; phase < s.stride_h * s.stride_w; ++phase) {
        PhaseTaps th = PhaseTaps::of(phase / s.stride_w, s.kernel_h, s.stride_h, s.dilation_h);
        PhaseTaps tw = PhaseTaps::of(phase % s.stride_w, s.kernel_w, s.stride_w, s.dilation_w);
        i64 K = th.count * tw.count * channels, panel = o % N / gemm_nr, width = panel_vectors(N, panel) * W;
        for (i64 k = 0; k < K; ++k) {
          i64 tap = k / channels, kh = th.first + tap / tw.count * th.step, kw = tw.first + tap % tw.count * tw.step;
          for (i64 ih = 0; ih < s.height; ++ih) {
            if (ih * s.stride_h - s.pad_top + kh * s.dilation_h != oh) continue;
            for (i64 iw = 0; iw < s.width; ++iw) {
              if (iw * s.stride_w - s.pad_left + kw * s.dilation_w != ow) continue;
              sum += x[((n * s.height + ih) * s.width + iw) * s.x_stride() + o / N * channels + k % channels] *
                     start[panel * gemm_nr * K + k * width + o % N % gemm_nr];
            }
          }
        }
        start += packed_size(N, K);
      }
      store(y + m * s.y_stride() + o, ep(splat(sum), Row{m, n}, o, Tail{1}), Tail{1});
    }
  }
}

}  // namespace opsmith
