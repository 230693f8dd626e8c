// 2-D convolution in NHWC as an implicit matrix product: rows are output pixels, columns output channels, and the
// rows of A are never formed; the microkernel follows one pointer per pixel and kernel position into x.
//
//   y[n][oh][ow][o] = ep(sum over kh, kw, c of x[n][oh*sh - top + kh*dh][ow*sw - left + kw*dw][c] * w[kh][kw][c][o])
//
// Any kernel size, stride, padding, dilation and group count. 1-D convolution is height 1; a third dim (depth) lies outside the
// other two in x, y and the weights.
// Few channels (a picture's 3) make short runs of k and many pointers: x is then copied once with its padding around it, so that a
// row of the kernel, kernel_w * channels values, lies in one piece and is one tap.
// Weights (compiler/pack.py: pack_conv2d): for each group a packed B (gemm.hpp) of K = kernel_h * kernel_w * channels
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
  i64 depth = 1, out_depth = 1, kernel_d = 1, stride_d = 1, pad_front = 0, dilation_d = 1;

  constexpr i64 x_stride() const { return pixel_stride ? pixel_stride : channels; }
  constexpr i64 y_stride() const { return out_pixel_stride ? out_pixel_stride : out_channels; }
  constexpr i64 taps() const { return kernel_d * kernel_h * kernel_w; }
  constexpr i64 image() const { return out_depth * out_height * out_width; }  // output pixels
  constexpr i64 pixels() const { return batch * image(); }
};

// The pixel of x that output (oh, ow) of image n sees at kernel position (kh, kw), or null where that is padding.
template <class T>
OPSMITH_INLINE const T* conv_source(const ConvShape& s, const T* x, i64 n, i64 oh, i64 ow, i64 kh, i64 kw) {
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
template <class TX>
OPSMITH_INLINE bool needs_tap(const TX* const* sources, i64 rows, const TX* zeros) {
  for (i64 r = 0; r < rows; ++r)
    if (sources[r] != zeros) return true;
  return false;
}

// Rows (output pixels of one group or phase) by columns, cut into tasks; locate(first, count, tap_begin, tap_end,
// table, rows) fills in where each row's pixels lie, tap after tap, `zeros` for padding, and which output row each one is.
template <class TX, class TB, class TY, class Locate, class Ep>
void conv_block(i64 row_begin, i64 row_end, i64 panel_begin, i64 panel_end, i64 N, i64 channels, i64 taps,
                const TB* packed, const TX* zeros, TY* y, i64 ldc, i64 first_column, Locate& locate, Ep& ep) {
  const Multiplier<TX, TB> multiply;
  const TX* table[conv_table_size];
  bool needed[conv_table_size];  // [tile][tap of those in the table]
  bool begun[max_row_block];     // a tile has its first sums
  Row rows[max_row_block];
  float sums[max_row_block * gemm_nr];
  const i64 row_step = min(max_row_block, row_end - row_begin);
  const i64 table_taps = max<i64>(1, min(taps, conv_table_size / max<i64>(1, row_step)));
  const i64 panel_taps = max<i64>(1, conv_panel_bytes / max<i64>(1, steps<TB>(channels) * gemm_nr * static_cast<i64>(sizeof(TB))));
  const i64 step = min(table_taps, panel_taps);
  for (i64 first = row_begin; first < row_end; first += row_step) {
    const i64 count = min(row_step, row_end - first);
    const bool whole = table_taps == taps;
    const TileRows heights = multiply.cut(count);
    auto fill = [&](i64 tap, i64 now) {
      locate(first, count, tap, tap + now, table, rows);
      for (i64 i = 0, r = 0; i < heights.tiles; r += heights[i++])
        for (i64 t = 0; t < now; ++t) needed[i * now + t] = needs_tap(table + t * count + r, heights[i], zeros);
    };
    if (whole) fill(0, taps);
    for (i64 p = panel_begin; p < panel_end; ++p) {
      const i64 column = p * gemm_nr, vectors = panel_vectors(N, p), columns = min(gemm_nr, N - column);
      const i64 tap_size = steps<TB>(channels) * vectors * W;
      memset(begun, 0, static_cast<size_t>(heights.tiles));
      for (i64 tap = 0; tap < taps || tap == 0; tap += step) {
        const i64 now = min(step, taps - tap);
        if (!whole) fill(tap, now);
        const TX* const* sources = table + (whole ? tap * count : 0);
        const TB* b = packed + column * taps * steps<TB>(channels) + tap * tap_size;
        for (i64 i = 0, r = 0; i < heights.tiles; r += heights[i++]) {
          const bool* need = needed + (whole ? i * taps + tap : i * now);
          float* tile = sums + r * gemm_nr;
          for (i64 t = 0; t < now;) {  // runs of needed positions
            i64 run = 0;
            while (t + run < now && need[t + run]) ++run;
            if (run > 0) {
              multiply(heights[i], vectors, sources + t * count + r, count, run, channels, b + t * tap_size, tile, begun[i]);
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

// Where the rows of an output block read: each pixel's corner is computed once, the taps are offsets from it.
struct ConvCorners {
  i64 offset[max_row_block];  // of tap 0 in x
  bool inside[max_row_block];
  i64 d[max_row_block], h[max_row_block], w[max_row_block];

  void locate(const ConvShape& s, i64 first, i64 count) {
    i64 ow = first % s.out_width, line = first / s.out_width, oh = line % s.out_height, plane = line / s.out_height;
    i64 od = plane % s.out_depth, n = plane / s.out_depth;
    for (i64 r = 0; r < count; ++r) {
      d[r] = od * s.stride_d - s.pad_front, h[r] = oh * s.stride_h - s.pad_top, w[r] = ow * s.stride_w - s.pad_left;
      offset[r] = (((n * s.depth + d[r]) * s.height + h[r]) * s.width + w[r]) * s.x_stride();
      inside[r] = w[r] >= 0 && w[r] + (s.kernel_w - 1) * s.dilation_w < s.width && h[r] >= 0 &&
                  h[r] + (s.kernel_h - 1) * s.dilation_h < s.height && d[r] >= 0 && d[r] + (s.kernel_d - 1) * s.dilation_d < s.depth;
      if (++ow < s.out_width) continue;
      ow = 0;
      if (++oh < s.out_height) continue;
      oh = 0;
      if (++od == s.out_depth) od = 0, ++n;
    }
  }
  template <class TX>
  void point(const ConvShape& s, i64 count, i64 tap, const TX* x, const TX* zeros, const TX** table) const {
    const i64 kw = tap % s.kernel_w * s.dilation_w, kh = tap / s.kernel_w % s.kernel_h * s.dilation_h;
    const i64 kd = tap / (s.kernel_w * s.kernel_h) * s.dilation_d;
    const TX* from = x + ((kd * s.height + kh) * s.width + kw) * s.x_stride();
    for (i64 r = 0; r < count; ++r) table[r] = from + offset[r];
    for (i64 r = 0; r < count; ++r) {
      if (inside[r]) continue;
      const i64 z = d[r] + kd, y = h[r] + kh, c = w[r] + kw;
      if (z < 0 || z >= s.depth || y < 0 || y >= s.height || c < 0 || c >= s.width) table[r] = zeros;
    }
  }
};

// x with its padding, where rows of the kernel become single taps.
inline constexpr i64 conv_merged_channels = 16;
inline constexpr bool conv_merges_rows(const ConvShape& s) {
  return s.groups == 1 && s.upsample == 1 && s.dilation_w == 1 && s.kernel_w > 1 && s.channels <= conv_merged_channels;
}
inline constexpr ConvShape conv_padded(const ConvShape& s) {
  auto reach = [](i64 out, i64 stride, i64 kernel, i64 dilation) { return (out - 1) * stride + (kernel - 1) * dilation + 1; };
  ConvShape p = s;
  p.depth = max(s.depth + s.pad_front, reach(s.out_depth, s.stride_d, s.kernel_d, s.dilation_d));
  p.height = max(s.height + s.pad_top, reach(s.out_height, s.stride_h, s.kernel_h, s.dilation_h));
  p.width = max(s.width + s.pad_left, reach(s.out_width, s.stride_w, s.kernel_w, s.dilation_w));
  p.pad_front = p.pad_top = p.pad_left = 0, p.pixel_stride = s.channels;
  return p;
}
template <class TX>
void conv_pad(const Pool& pool, const ConvShape& s, const ConvShape& p, const TX* x, TX* padded) {
  const i64 lines = s.batch * p.depth * p.height, C = s.channels;
  pool.parallel_ranges(lines, max<i64>(1, 16384 / max<i64>(1, p.width * C)), [&](i64 begin, i64 end) {
    for (i64 line = begin; line < end; ++line) {
      const i64 h = line % p.height - s.pad_top, d = line / p.height % p.depth - s.pad_front, n = line / p.height / p.depth;
      TX* to = padded + line * p.width * C;
      const bool inside = h >= 0 && h < s.height && d >= 0 && d < s.depth;
      const i64 left = inside ? s.pad_left : p.width, right = inside ? p.width - s.pad_left - s.width : 0;
      for (i64 i = 0; i < left * C; ++i) to[i] = TX{};
      if (!inside) continue;
      to += left * C;
      const TX* from = x + ((n * s.depth + d) * s.height + h) * s.width * s.x_stride();
      if (s.x_stride() == C) {
        memcpy(to, from, static_cast<size_t>(s.width * C) * sizeof(TX));
      } else {
        for (i64 w = 0; w < s.width; ++w)
          for (i64 c = 0; c < C; ++c) to[w * C + c] = from[w * s.x_stride() + c];
      }
      to += s.width * C;
      for (i64 i = 0; i < right * C; ++i) to[i] = TX{};
    }
  });
}

// Bytes: one pixel of zeros, which all padding points at, or the padded picture.
inline constexpr i64 conv2d_workspace(const ConvShape& s) {
  const ConvShape p = conv_padded(s);
  const i64 copy = conv_merges_rows(s) ? s.batch * p.depth * p.height * p.width * s.channels : 0;
  return max(copy, round_up(s.channels / max<i64>(1, s.groups), 16)) * static_cast<i64>(sizeof(float));
}

template <class TX, class TB, class TY, class Ep>
void conv2d(const Pool& pool, const ConvShape& s, const TX* x, const TB* packed, TY* y, void* workspace, Ep ep) {
  const i64 M = s.pixels(), N = s.out_channels / s.groups, channels = s.channels / s.groups;
  const i64 image = s.image();
  if (M <= 0 || N <= 0) return;
  const bool is_gemm = s.taps() == 1 && s.groups == 1 && s.stride_d == 1 && s.stride_h == 1 && s.stride_w == 1 && s.upsample == 1 &&
                       s.pad_front == 0 && s.pad_top == 0 && s.pad_left == 0 && s.out_depth == s.depth && s.out_height == s.height &&
                       s.out_width == s.width;
  if (is_gemm) return gemm(pool, M, N, channels, x, s.x_stride(), packed, y, s.y_stride(), ep, image, s.blocking);

  TX* zeros = static_cast<TX*>(workspace);
  const bool merges = conv_merges_rows(s);
  const i64 taps = merges ? s.kernel_d * s.kernel_h : s.taps(), run = merges ? s.kernel_w * channels : channels;
  const i64 K = taps * steps<TB>(run);  // steps of the sum
  const Tiling tiling = tile_work(pool, M, N, K, s.blocking, Multiplier<TX, TB>::unit());
  if (merges) {
    ConvShape p = conv_padded(s);
    conv_pad(pool, s, p, x, zeros);
    p.kernel_w = 1;  // its taps follow each other
    pool.parallel_for(tiling.tasks(), [&](i64 i) {
      const Tiling::Task t = tiling[i];
      ConvCorners corners;
      auto locate = [&](i64 first, i64 count, i64 tap_begin, i64 tap_end, const TX** table, Row* rows) {
        number_rows(first, count, image, rows);
        corners.locate(p, first, count);
        for (i64 tap = tap_begin; tap < tap_end; ++tap)
          corners.point<TX>(p, count, tap, zeros, nullptr, table + (tap - tap_begin) * count);
      };
      conv_block<TX>(t.row_begin, t.row_end, t.panel_begin, t.panel_end, N, run, taps, packed, nullptr, y, s.y_stride(), 0, locate, ep);
    });
    return;
  }
  memset(zeros, 0, static_cast<size_t>(channels) * sizeof(TX));
  pool.parallel_for(s.groups * tiling.tasks(), [&](i64 i) {
    const i64 group = i / tiling.tasks();
    const Tiling::Task t = tiling[i % tiling.tasks()];
    ConvCorners corners;
    auto locate = [&](i64 first, i64 count, i64 tap_begin, i64 tap_end, const TX** table, Row* rows) {
      number_rows(first, count, image, rows);
      if (s.upsample == 1) {
        corners.locate(s, first, count);
        for (i64 tap = tap_begin; tap < tap_end; ++tap)
          corners.point<TX>(s, count, tap, x + group * channels, zeros, table + (tap - tap_begin) * count);
        return;
      }
      for (i64 r = 0; r < count; ++r) {
        i64 pixel = first + r - rows[r].outer * image, oh = pixel / s.out_width, ow = pixel - oh * s.out_width;
        i64 kh = tap_begin / s.kernel_w, kw = tap_begin - kh * s.kernel_w;
        for (i64 tap = tap_begin; tap < tap_end; ++tap) {
          const TX* source = conv_source(s, x, rows[r].outer, oh, ow, kh, kw);
          table[(tap - tap_begin) * count + r] = source ? source + group * channels : zeros;
          if (++kw == s.kernel_w) kw = 0, ++kh;
        }
      }
    };
    conv_block<TX>(t.row_begin, t.row_end, t.panel_begin, t.panel_end, N, channels, taps, packed + group * packed_size(N, K), zeros, y,
                   s.y_stride(), group * N, locate, ep);
  });
}

// Weights of bf16 in pairs: the sum goes over runs of channels, or of rows of the kernel where those are merged, each filled up to
// whole pairs (compiler/pack.py: pack_conv_pairs).
template <class TX, class TY, class Ep>
void conv2d_bf16(const Pool& pool, const ConvShape& s, const TX* x, const bf16* packed, TY* y, void* workspace, Ep ep) {
  conv2d(pool, s, x, reinterpret_cast<const bf16x2*>(packed), y, workspace, ep);
}
inline constexpr i64 conv2d_bf16_workspace(const ConvShape& s) { return conv2d_workspace(s); }

template <class TX, class TB, class TY, class Ep>
void conv2d_reference(const Pool&, const ConvShape& s, const TX* x, const TB* packed, TY* y, void*, Ep ep) {
  const i64 N = s.out_channels / s.groups, channels = s.channels / s.groups;
  const i64 run = conv_merges_rows(s) ? s.kernel_w * channels : channels, filled = round_up(run, step_k<TB>);
  const i64 K = s.taps() * channels / max<i64>(1, run) * filled;
  const i64 plane = s.kernel_h * s.kernel_w;
  for (i64 m = 0; m < s.pixels(); ++m) {
    i64 ow = m % s.out_width, oh = m / s.out_width % s.out_height, od = m / s.out_width / s.out_height % s.out_depth, n = m / s.image();
    for (i64 o = 0; o < s.out_channels; ++o) {
      const i64 group = o / N;
      const TB* b = packed + group * packed_size<TB>(N, K);
      float sum = 0;
      for (i64 tap = 0; tap < s.taps(); ++tap) {
        const i64 d = od * s.stride_d - s.pad_front + tap / plane * s.dilation_d;
        if (d < 0 || d >= s.depth) continue;
        const TX* source = conv_source(s, x, n * s.depth + d, oh, ow, tap % plane / s.kernel_w, tap % s.kernel_w);
        for (i64 c = 0; source && c < channels; ++c) {
          const i64 k = tap * channels + c;
          sum += to_float(source[group * channels + c]) * packed_at(b, N, K, k / run * filled + k % run, o % N);
        }
      }
      store(y + m * s.y_stride() + o, ep(splat(sum), Row{m, n}, o, Tail{1}), Tail{1});
    }
  }
}

}  // namespace opsmith
