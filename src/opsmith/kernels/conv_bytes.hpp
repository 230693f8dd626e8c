// 2-D convolution of bytes in NHWC as an implicit matrix product, as conv.hpp does it for floats; sums of 32 bits.
//
//   y[n][oh][ow][o] = ep(sum over kh, kw, c of (x[...][c] - x_zero) * (w[kh][kw][c][o] - w_zero[o])), x = x_zero outside the picture
//
// Weights (compiler/pack.py: pack_conv_bytes): for each group a packed B (gemm_bytes.hpp); the channels of a kernel position
// are filled up to a multiple of 4 with zeros. `sums` and `zeros` are per output channel.
#pragma once

#include "conv.hpp"
#include "gemm_bytes.hpp"

namespace opsmith {

// Bytes: one pixel of zero points, which all padding points at, and where each kernel position lies from the first one.
inline constexpr i64 conv_bytes_workspace(const ConvShape& s) { return round_up(s.channels, 64) + round_up(s.taps() * 8, 64); }

// Where the pixels of `count` rows lie, for kernel positions [tap_begin, tap_end): table[tap][row].
template <class T>
void locate_bytes(const ConvShape& s, const T* x, const T* padding, const i64* offsets, const Row* rows, i64 count, i64 tap_begin, i64 tap_end,
                  i64 channel, const uint8_t** table) {
  const i64 image = s.out_height * s.out_width, stride = s.x_stride();
  i64 pixel = rows[0].index - rows[0].outer * image, oh = pixel / s.out_width, ow = pixel - oh * s.out_width;
  for (i64 r = 0; r < count; ++r) {
    const i64 h = oh * s.stride_h - s.pad_top, w = ow * s.stride_w - s.pad_left;
    const bool inside = h >= 0 && w >= 0 && h + (s.kernel_h - 1) * s.dilation_h < s.height && w + (s.kernel_w - 1) * s.dilation_w < s.width;
    if (inside) {
      const uint8_t* corner = reinterpret_cast<const uint8_t*>(x + ((rows[r].outer * s.height + h) * s.width + w) * stride + channel);
      for (i64 tap = tap_begin; tap < tap_end; ++tap) table[(tap - tap_begin) * count + r] = corner + offsets[tap];
    } else {
      for (i64 tap = tap_begin; tap < tap_end; ++tap) {
        const T* source = conv_source(s, x, rows[r].outer, oh, ow, tap / s.kernel_w, tap % s.kernel_w);
        table[(tap - tap_begin) * count + r] = reinterpret_cast<const uint8_t*>(source ? source + channel : padding);
      }
    }
    if (++ow == s.out_width) {
      ow = 0;
      if (++oh == s.out_height) oh = 0;
    }
  }
}

template <ByteStorage T, class TY, class Ep>
void conv_bytes(const Pool& pool, const ConvShape& s, const T* x, const T* x_zero, const int8_t* packed, const int32_t* sums,
                const int32_t* zeros, TY* y, void* workspace, Ep ep) {
  const i64 M = s.pixels(), N = s.out_channels / s.groups, channels = s.channels / s.groups, taps = s.taps();
  const i64 image = s.out_height * s.out_width, depth = round_up(channels, 4), K = taps * depth;
  if (M <= 0 || N <= 0) return;
  const RowZeros<T> zero{x_zero, 0};
  const bool is_gemm = taps == 1 && s.groups == 1 && s.stride_h == 1 && s.stride_w == 1 && s.pad_top == 0 && s.pad_left == 0 &&
                       s.out_height == s.height && s.out_width == s.width;
  if (is_gemm) return gemm_bytes(pool, M, N, channels, x, s.x_stride(), zero, packed, sums, zeros, y, s.y_stride(), ep, image);

  T* padding = static_cast<T*>(workspace);
  memset(padding, x_zero ? static_cast<uint8_t>(*x_zero) : 0, static_cast<size_t>(s.channels));
  i64* offsets = reinterpret_cast<i64*>(padding + round_up(s.channels, 64));
  for (i64 tap = 0; tap < taps; ++tap)
    offsets[tap] = (tap / s.kernel_w * s.dilation_h * s.width + tap % s.kernel_w * s.dilation_w) * s.x_stride();
  const Tiling tiling = tile_bytes(pool, M, N, K);
  constexpr bool flip = flips_x<T>;
  pool.parallel_for(s.groups * tiling.tasks(), [&](i64 i) {
    const i64 group = i / tiling.tasks();
    const Tiling::Task t = tiling[i % tiling.tasks()];
    const ByteMultiplier<flip> multiply;
    const uint8_t* table[conv_table_size];
    int32_t x_zeros[max_row_block], x_sums[max_row_block], tiles[max_row_block * gemm_nr];
    Row rows[max_row_block];
    const ByteColumns b{packed + group * packed_bytes(N, K), sums + group * N, zeros ? zeros + group * N : nullptr};
    // All kernel positions of a block of rows in one table, unless the kernel is huge.
    const i64 row_step = max<i64>(1, min(max_row_block, conv_table_size / taps)), step = min(taps, conv_table_size / row_step);
    for (i64 first = t.row_begin; first < t.row_end; first += row_step) {
      const i64 count = min(row_step, t.row_end - first);
      const TileRows heights = multiply.cut(count);
      number_rows(first, count, image, rows);
      for (i64 r = 0; r < count; ++r) x_zeros[r] = zero(0), x_sums[r] = 0;
      auto locate = [&](i64 tap, i64 now) { locate_bytes(s, x, padding, offsets, rows, count, tap, tap + now, group * channels, table); };
      if (b.zeros) {
        for (i64 tap = 0; tap < taps; tap += step) {
          const i64 now = min(step, taps - tap);
          locate(tap, now);
          for (i64 at = 0; at < now; ++at)
            for (i64 r = 0; r < count; ++r) x_sums[r] += sum_of_bytes<flip>(table[at * count + r], channels);
        }
      } else if (step == taps) {
        locate(0, taps);
      }
      for (i64 p = t.panel_begin; p < t.panel_end; ++p) {
        const i64 column = p * gemm_nr, vectors = panel_vectors(N, p), columns = min(gemm_nr, N - column);
        for (i64 tap = 0; tap < taps; tap += step) {
          const i64 now = min(step, taps - tap);
          if (step < taps) locate(tap, now);
          for (i64 h = 0, r = 0; h < heights.tiles; r += heights[h++]) {
            multiply(heights[h], vectors, table + r, count, now, channels,
                     b.packed + packed_bytes(column, K) + tap * depth * vectors * W, tiles + r * gemm_nr, tap > 0);
            if (tap + now == taps)
              finish_bytes(tiles + r * gemm_nr, rows + r, x_zeros + r, x_sums + r, heights[h], columns, group * N + column, column, b, y,
                           s.y_stride(), ep);
          }
        }
      }
    }
  });
}

template <ByteStorage T, class TY, class Ep>
void conv_bytes_reference(const Pool&, const ConvShape& s, const T* x, const T* x_zero, const int8_t* packed, const int32_t*,
                          const int32_t* zeros, TY* y, void*, Ep ep) {
  const i64 N = s.out_channels / s.groups, channels = s.channels / s.groups, depth = round_up(channels, 4), K = s.taps() * depth;
  for (i64 m = 0; m < s.pixels(); ++m) {
    const i64 ow = m % s.out_width, oh = m / s.out_width % s.out_height, n = m / s.out_width / s.out_height;
    for (i64 o = 0; o < s.out_channels; ++o) {
      const i64 group = o / N, column = o % N, panel = column / gemm_nr, width = panel_vectors(N, panel) * W;
      const int8_t* b = packed + group * packed_bytes(N, K) + packed_bytes(panel * gemm_nr, K) + column % gemm_nr * 4;
      i64 sum = 0;
      for (i64 tap = 0; tap < s.taps(); ++tap) {
        const T* source = conv_source(s, x, n, oh, ow, tap / s.kernel_w, tap % s.kernel_w);
        for (i64 c = 0; source && c < channels; ++c) {
          const i64 k = tap * depth + c;
          sum += (source[group * channels + c] - (x_zero ? *x_zero : 0)) * (b[k / 4 * width * 4 + k % 4] - (zeros ? zeros[o] : 0));
        }
      }
      store(y + m * s.y_stride() + o, ep(splat(static_cast<int32_t>(sum)), Row{m, n}, o, Tail{1}), Tail{1});
    }
  }
}

}  // namespace opsmith
