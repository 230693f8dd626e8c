// Transposed 2-D convolution in NHWC, without ever scattering: every output pixel gathers what reaches it.
//
//   y[n][oh][ow][o] = ep(sum over kh, kw, c with oh = ih*sh - top + kh*dh, ow = iw*sw - left + kw*dw
//                        of x[n][ih][iw][c] * w[kh][kw][c][o])
//
// Output pixels with the same (oh + top) mod sh and (ow + left) mod sw, a phase, use the same kernel positions: each of
// the sh * sw phases is an ordinary stride-1 convolution over some of the taps, done by conv_block.
// ConvShape: height and width are those of x, stride, padding and dilation those of the ConvTranspose.
// Weights (compiler/pack.py: pack_conv_transposed): per group, per phase (row phase major), a packed B (gemm.hpp) whose
// rows are the taps of the phase in order, channel minor.
//
// conv2d_joint computes all phases at once, as the columns of one product: a phase of one channel alone would leave 15 of 16 lanes
// empty. The block of sh x sw output pixels at (qh, qw) reads the pixels (qh - t, qw - u) of x, t < ceil(kernel_h / sh) and u alike; a
// run of blocks is summed on the stack, and then handed to the epilogue line by line. For dilation 1 and one group.
// Weights (pack_conv_joint): a packed B of rows [t][u][c] and columns [phase row][phase column][o], zero where a phase has no such tap.
// Zero times NaN or an infinity is NaN, so a sum that is not finite is taken again over the taps that its phase has.
// With one output channel the epilogue sees lines, as in conv_narrow.hpp: row = n * out_height + oh, column = ow.
#pragma once

#include "conv.hpp"
#include "math.hpp"

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

inline constexpr i64 conv2d_transposed_workspace(const ConvShape& s) {  // one pixel of zeros
  return round_up(s.channels / max<i64>(1, s.groups), 16) * static_cast<i64>(sizeof(float));
}

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

struct JointPlan {
  i64 taps_h, taps_w, N, first_h, first_w, blocks_h, blocks_w, run;
  constexpr explicit JointPlan(const ConvShape& s)
      : taps_h(ceil_div(s.kernel_h, s.stride_h)), taps_w(ceil_div(s.kernel_w, s.stride_w)), N(s.stride_h * s.stride_w * s.out_channels),
        first_h(s.pad_top / s.stride_h), first_w(s.pad_left / s.stride_w),
        blocks_h(ceil_div(s.out_height + s.pad_top, s.stride_h) - first_h), blocks_w(ceil_div(s.out_width + s.pad_left, s.stride_w) - first_w),
        run(max<i64>(1, min<i64>(max_row_block, 16384 / max<i64>(1, N)))) {}  // blocks at a time: 64 KB of sums
};

// One sum of a block over all taps or those that its phase has; COLUMN of the packed weights, (h, w) the output pixel with its padding.
inline float joint_sum(const ConvShape& s, const JointPlan& plan, const float* x, const float* packed, i64 n, i64 h, i64 w, i64 column,
                       bool all) {
  const i64 K = plan.taps_h * plan.taps_w * s.channels, panel = column / gemm_nr;
  const float* b = packed + panel * gemm_nr * K + column % gemm_nr;
  float sum = 0;
  for (i64 k = 0; k < K; ++k) {
    const i64 tap = k / s.channels, t = tap / plan.taps_w, u = tap % plan.taps_w, ih = h / s.stride_h - t, iw = w / s.stride_w - u;
    const bool present = t * s.stride_h + h % s.stride_h < s.kernel_h && u * s.stride_w + w % s.stride_w < s.kernel_w;
    if (!present && !all) continue;
    if (ih < 0 || ih >= s.height || iw < 0 || iw >= s.width) continue;
    sum += x[((n * s.height + ih) * s.width + iw) * s.x_stride() + k % s.channels] * b[k * panel_vectors(plan.N, panel) * W];
  }
  return sum;
}

// Takes again what is not finite in the SUMS of COUNT blocks from (qh, q0) on.
inline void joint_without_absent_taps(const ConvShape& s, const JointPlan& plan, const float* x, const float* packed, i64 n, i64 qh, i64 q0,
                                      i64 count, float* sums) {
  F watch = {};
  for_lanes(count * plan.N, [&](i64 i, auto lanes) { watch += load(sums + i, lanes) * 0.0f; });
  if (lane_sum(watch) == 0) return;
  for (i64 i = 0; i < count * plan.N; ++i) {
    if (sums[i] * 0.0f == 0) continue;
    const i64 block = i / plan.N, column = i - block * plan.N, phase = column / s.out_channels;
    const i64 h = qh * s.stride_h + phase / s.stride_w, w = (q0 + block) * s.stride_w + phase % s.stride_w;
    sums[i] = joint_sum(s, plan, x, packed, n, h, w, column, false);
  }
}

inline constexpr i64 conv2d_joint_workspace(const ConvShape& s) {  // one pixel of zeros
  return round_up(s.channels, 16) * static_cast<i64>(sizeof(float));
}

template <class Ep>
void conv2d_joint(const Pool& pool, const ConvShape& s, const float* x, const float* packed, float* y, void* workspace, Ep ep) {
  const JointPlan plan(s);
  const i64 N = plan.N, O = s.out_channels, taps = plan.taps_h * plan.taps_w, runs = ceil_div(plan.blocks_w, plan.run);
  if (s.pixels() <= 0 || N <= 0) return;
  float* zeros = static_cast<float*>(workspace);
  memset(zeros, 0, static_cast<size_t>(s.channels) * sizeof(float));
  const i64 work = plan.run * round_up(N, W) * taps * s.channels / 50;  // nanoseconds
  pool.parallel_ranges(s.batch * plan.blocks_h * runs, max<i64>(1, 10000 / max<i64>(1, work)), [&](i64 begin, i64 end) {
    alignas(64) float sums[16384];
    for (i64 task = begin; task < end; ++task) {
      const i64 line = task / runs, n = line / plan.blocks_h, qh = plan.first_h + line - n * plan.blocks_h;
      const i64 q0 = plan.first_w + (task - line * runs) * plan.run, count = min(plan.run, plan.first_w + plan.blocks_w - q0);
      auto locate = [&](i64 first, i64 rows, i64 tap_begin, i64 tap_end, const float** table, Row* numbers) {
        number_rows(first, rows, 0, numbers);
        for (i64 tap = tap_begin; tap < tap_end; ++tap) {
          const i64 ih = qh - tap / plan.taps_w, iw = q0 + first - tap % plan.taps_w;
          const float* from = x + ((n * s.height + ih) * s.width + iw) * s.x_stride();
          for (i64 r = 0; r < rows; ++r)
            *table++ = ih >= 0 && ih < s.height && iw + r >= 0 && iw + r < s.width ? from + r * s.x_stride() : zeros;
        }
      };
      auto plain = [](F sum, Row, i64, auto) __attribute__((always_inline)) { return sum; };
      conv_block(0, count, 0, panel_count(N), N, s.channels, taps, packed, zeros, sums, N, 0, locate, plain);
      if (s.kernel_h % s.stride_h || s.kernel_w % s.stride_w) joint_without_absent_taps(s, plan, x, packed, n, qh, q0, count, sums);
      for (i64 ph = 0; ph < s.stride_h; ++ph) {
        const i64 oh = qh * s.stride_h + ph - s.pad_top, at = n * s.out_height + oh;
        if (oh < 0 || oh >= s.out_height) continue;
        const i64 ow0 = q0 * s.stride_w - s.pad_left;  // of the first block; may lie outside
        const i64 skip = max<i64>(0, -ow0), last = min(count * s.stride_w, s.out_width - ow0);
        const float* phase = sums + ph * s.stride_w * O;
        if (O > 1) {
          for (i64 i = skip; i < last; ++i) {
            const Row row{at * s.out_width + ow0 + i, n};
            const float* sum = phase + i / s.stride_w * N + i % s.stride_w * O;
            for_lanes(O, [&](i64 o, auto lanes) { store(y + row.index * s.y_stride() + o, ep(load(sum + o, lanes), row, o, lanes), lanes); });
          }
          continue;
        }
        float values[max_row_block];  // of one output line
        for (i64 i = skip; i < last;) {
          const i64 now = min<i64>(max_row_block, last - i);
          for (i64 k = 0, q = i / s.stride_w, pw = i % s.stride_w; k < now; ++k) {
            values[k] = phase[q * N + pw];
            if (++pw == s.stride_w) pw = 0, ++q;
          }
          for_lanes(now, [&](i64 k, auto lanes) {
            const i64 ow = ow0 + i + k;
            const F value = ep(load(values + k, lanes), Row{at, n}, ow, lanes);
            float* to = y + (at * s.out_width + ow) * s.y_stride();
            if (s.y_stride() == 1) {
              store(to, value, lanes);
            } else {
              for (i64 j = 0; j < lanes.count; ++j) to[j * s.y_stride()] = value[j];
            }
          });
          i += now;
        }
      }
    }
  });
}

template <class Ep>
void conv2d_joint_reference(const Pool&, const ConvShape& s, const float* x, const float* packed, float* y, void*, Ep ep) {
  const JointPlan plan(s);
  const i64 O = s.out_channels;
  for (i64 m = 0; m < s.pixels(); ++m) {
    const i64 ow = m % s.out_width, line = m / s.out_width, oh = line % s.out_height, n = line / s.out_height;
    const i64 h = oh + s.pad_top, w = ow + s.pad_left;
    for (i64 o = 0; o < O; ++o) {
      const i64 column = (h % s.stride_h * s.stride_w + w % s.stride_w) * O + o;
      const float sum = joint_sum(s, plan, x, packed, n, h, w, column, true);
      store(y + m * s.y_stride() + o, ep(splat(sum), O == 1 ? Row{line, n} : Row{m, n}, O == 1 ? ow : o, Tail{1}), Tail{1});
    }
  }
}

}  // namespace opsmith
