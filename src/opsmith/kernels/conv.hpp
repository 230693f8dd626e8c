// 2-D convolution in NHWC as an implicit matrix product: rows are output pixels, columns output channels, and the
// rows of A are never formed; the microkernel follows one pointer per pixel and kernel position into x.
//
//   y[n][oh][ow][o] = ep(sum over kh, kw, c of x[n][oh*sh - top + kh*dh][ow*sw - left + kw*dw][c] * w[kh][kw][c][o])
//
// Any kernel size, stride, padding, dilation and group count. 1-D convolution is height 1.
// Weights (compile/pack.py: pack_conv2d): for each group a packed B (gemm.hpp) of K = kernel_h * kernel_w * channels
// rows, kernel position major, channel minor; float, or half precision that is widened as it is read.
#pragma once

#include "gemm.hpp"

namespace opsmith {

struct ConvShape {
  i64 batch, height, width, channels, out_height, out_width, out_channels, kernel_h, kernel_w, stride_h, stride_w,
      pad_top, pad_left, dilation_h, dilation_w, groups;
  i64 pixel_stride = 0;      // floats from one pixel of x to the next; 0: channels
  i64 out_pixel_stride = 0;  // of y; 0: out_channels
  i64 upsample = 1;          // x is read as if every pixel were repeated this many times in both directions (nearest)
  Blocking blocking = {};

  constexpr i64 x_stride() const { return pixel_stride ? pixel_stride : channels; }
  constexpr i64 y_stride() const { return out_pixel_stride ? out_pixel_stride : out_channels; }
  constexpr i64 taps() const { return kernel_h * kernel_w; }
  constexpr i64 pixels() const { return batch * out_height * out_width; }
};

// The pixel of x that output (oh, ow) of image n sees at kernel position (kh, kw), or null where that is padding.
OPSMITH_INLINE const float* conv_source(const ConvShape& s, const float* x, i64 n, i64 oh, i64 ow, i64 kh, i64 kw) {
  i64 h = oh * s.stride_h - s.pad_top + kh * s.dilation_h, w = ow * s.stride_w - s.pad_left + kw * s.dilation_w;
  if (h < 0 || h >= s.height * s.upsample || w < 0 || w >= s.width * s.upsample) return nullptr;
  if (s.upsample != 1) h /= s.upsample, w /= s.upsample;
  return x + ((n * s.height + h) * s.width + w) * s.x_stride();
}

// What a task may hold on its stack: pointers of its rows, and sums where the kernel positions are taken in parts.
inline constexpr i64 conv_table_size = 12 * 1024;
// Bytes of one panel of weights that should meet all rows of a task before the next: half of the L2 of today's CPUs.
inline constexpr i64 conv_panel_bytes = 512 * 1024;

// Which kernel positions a tile of rows needs: not those where all its pixels are padding. An image of one pixel needs one
// position of a 3x3 kernel and reads one ninth of the weights.
OPSMITH_INLINE bool needs_tap(const float* const* sources, i64 rows, const float* zeros) {
  for (i64 r = 0; r < rows; ++r)
    if (sources[r] != zeros) return true;
  return false;
}

// Rows (output pixels of one group or phase) by columns, cut into tasks; locate(first, count, tap_begin, tap_end,
// table, rows) fills in where each row's pixels lie, tap after tap, `zeros` for padding, and which output row each one is.
template <class TB, class Locate, class Ep>
void conv_block(i64 row_begin, i64 row_end, i64 panel_begin, i64 panel_end, i64 N, i64 channels, i64 taps,
                const TB* packed, const float* zeros, float* y, i64 ldc, i64 first_column, Locate& locate, Ep& ep) {
  const float* table[conv_table_size];
  bool needed[conv_table_size];  // [tile][tap of those in the table]
  bool begun[max_row_block];     // a tile has its first sums
  Row rows[max_row_block];
  float sums[max_row_block * gemm_nr];
  const i64 row_step = min(max_row_block, row_end - row_begin);
  const i64 table_taps = max<i64>(1, min(taps, conv_table_size / max<i64>(1, row_step)));
  const i64 panel_taps = max<i64>(1, conv_panel_bytes / max<i64>(1, channels * gemm_nr * static_cast<i64>(sizeof(TB))));
  const i64 step = min(table_taps, panel_taps);
  for (i64 first = row_begin; first < row_end; first += row_step) {
    const i64 count = min(row_step, row_end - first);
    const bool whole = table_taps == taps;
    const TileRows heights(count);
    auto fill = [&](i64 tap, i64 now) {
      locate(first, count, tap, tap + now, table, rows);
      for (i64 i = 0, r = 0; i < heights.tiles; r += heights[i++])
        for (i64 t = 0; t < now; ++t) needed[i * now + t] = needs_tap(table + t * count + r, heights[i], zeros);
    };
    if (whole) fill(0, taps);
    for (i64 p = panel_begin; p < panel_end; ++p) {
      const i64 column = p * gemm_nr, vectors = panel_vectors(N, p), columns = min(gemm_nr, N - column);
      const i64 tap_size = channels * vectors * W;
      memset(begun, 0, static_cast<size_t>(heights.tiles));
      for (i64 tap = 0; tap < taps || tap == 0; tap += step) {
        const i64 now = min(step, taps - tap);
        if (!whole) fill(tap, now);
        const float* const* sources = table + (whole ? tap * count : 0);
        const TB* b = packed + column * taps * channels + tap * tap_size;
        for (i64 i = 0, r = 0; i < heights.tiles; r += heights[i++]) {
          const bool* need = needed + (whole ? i * taps + tap : i * now);
          float* tile = sums + r * gemm_nr;
          for (i64 t = 0; t < now;) {  // runs of needed positions
            i64 run = 0;
            while (t + run < now && need[t + run]) ++run;
            if (run > 0) {
              micro_for<float, TB>(heights[i], vectors)(sources + t * count + r, count, run, channels, b + t * tap_size,
                                                        tile, begun[i]);
              begun[i] = true;
            }
            t += max<i64>(1, run);
          }
          if (tap + now >= taps) {
            if (!begun[i]) memset(tile, 0, static_cast<size_t>(heights[i] * gemm_nr) * sizeof(float));
            finish_tile(tile, rows + r, heights[i], columns, first_column + column, y, ldc, ep);
          }
        }
      }
    }
  }
}

// Bytes: one pixel of zeros, which all padding points at.
inline constexpr i64 conv2d_workspace(const ConvShape& s) {
  return round_up(s.channels / max<i64>(1, s.groups), 16) * static_cast<i64>(sizeof(float));
}

template <class TB, class Ep>
void conv2d(const Pool& pool, const ConvShape& s, const float* x, const TB* packed, float* y, void* workspace, Ep ep) {
  const i64 M = s.pixels(), N = s.out_channels / s.groups, channels = s.channels / s.groups;
  const i64 image = s.out_height * s.out_width, K = s.taps() * channels;
  if (M <= 0 || N <= 0) return;
  const bool is_gemm = s.taps() == 1 && s.groups == 1 && s.stride_h == 1 && s.stride_w == 1 && s.upsample == 1 &&
                       s.pad_top == 0 && s.pad_left == 0 && s.out_height == s.height && s.out_width == s.width;
  if (is_gemm) return gemm(pool, M, N, K, x, s.x_stride(), packed, y, s.y_stride(), ep, image, s.blocking);

  float* zeros = static_cast<float*>(workspace);
  memset(zeros, 0, static_cast<size_t>(channels) * sizeof(float));
  const Tiling tiling = tile_work(pool, M, N, K, s.blocking);
  pool.parallel_for(s.groups * tiling.tasks(), [&](i64 i) {
    const i64 group = i / tiling.tasks();
    const Tiling::Task t = tiling[i % tiling.tasks()];
    auto locate = [&](i64 first, i64 count, i64 tap_begin, i64 tap_end, const float** table, Row* rows) {
      number_rows(first, count, image, rows);
      for (i64 r = 0; r < count; ++r) {
        i64 pixel = first + r - rows[r].outer * image, oh = pixel / s.out_width, ow = pixel - oh * s.out_width;
        i64 kh = tap_begin / s.kernel_w, kw = tap_begin - kh * s.kernel_w;
        for (i64 tap = tap_begin; tap < tap_end; ++tap) {
          const float* source = conv_source(s, x, rows[r].outer, oh, ow, kh, kw);
          table[(tap - tap_begin) * count + r] = source ? source + group * channels : zeros;
          if (++kw == s.kernel_w) kw = 0, ++kh;
        }
      }
    };
    conv_block(t.row_begin, t.row_end, t.panel_begin, t.panel_end, N, channels, s.taps(),
               packed + group * packed_size(N, K), zeros, y, s.y_stride(), group * N, locate, ep);
  });
}

template <class TB, class Ep>
void conv2d_reference(const Pool&, const ConvShape& s, const float* x, const TB* packed, float* y, void*, Ep ep) {
  const i64 N = s.out_channels / s.groups, channels = s.channels / s.groups, K = s.taps() * channels;
  for (i64 m = 0; m < s.pixels(); ++m) {
    i64 ow = m % s.out_width, oh = m / s.out_width % s.out_height, n = m / s.out_width / s.out_height;
    for (i64 o = 0; o < s.out_channels; ++o) {
      i64 group = o / N, column = o % N, panel = column / gemm_nr, width = panel_vectors(N, panel) * W;
      const TB* b = packed + group * packed_size(N, K) + panel * gemm_nr * K + column % gemm_nr;
      float sum = 0;
      for (i64 tap = 0; tap < s.taps(); ++tap) {
        const float* source = conv_source(s, x, n, oh, ow, tap / s.kernel_w, tap % s.kernel_w);
        for (i64 c = 0; source && c < channels; ++c)
          sum += source[group * channels + c] * to_float(b[(tap * channels + c) * width]);
      }
      store(y + m * s.y_stride() + o, ep(splat(sum), Row{m, n}, o, Tail{1}), Tail{1});
    }
  }
}

}  // namespace opsmith
