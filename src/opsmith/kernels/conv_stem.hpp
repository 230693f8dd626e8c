// 2-D convolution of few channels (a picture's 3, a spectrogram's 1) to NHWC.
//
//   y[n][oh][ow][o] = ep(sum over c, kh, kw of x[n][c][oh*sh - top + kh*dh][ow*sw - left + kw*dw] * w[c][kh][kw][o])
//
// As a matrix product it would have rows of 27 values, found through a table of pointers that costs as much as the products. Here the
// lines of x that a run of output pixels sees are laid out with their padding, one plane per channel, on the stack: neighbouring
// outputs then read at fixed distances from one pointer. Planar x (NCHW, as models take pictures) needs no copy in another layout.
//
// Weights (compiler/pack.py: pack_stem): a packed B (gemm.hpp) of K = channels * kernel_h * kernel_w rows in that order.
#pragma once

#include "conv.hpp"

namespace opsmith {

inline constexpr i64 stem_run = 48;              // output pixels at a time: whole tiles of every height below
inline constexpr i64 stem_floats = 12 * 1024;    // of the lines that they see
// Floats from a line to the next in that buffer, and whether all fit. compiler/lower/conv.py: _is_stem asks the same.
inline constexpr i64 stem_line(const ConvShape& s) { return (stem_run - 1) * s.stride_w + (s.kernel_w - 1) * s.dilation_w + 1; }

namespace detail {

// P pixels by V vectors of columns. S: stride of the convolution, or 0 where it is known only at run time.
template <int P, int V, int S, class Ep>
OPSMITH_INLINE void stem_tile(const ConvShape& s, const float* lines, const float* b, i64 count, i64 pixel, i64 item, i64 column, float* y,
                              Ep& ep) {
  const i64 step = S ? S : s.stride_w, line = stem_line(s), rows = s.channels * s.kernel_h;
  F acc[P][V] = {};
  for (i64 row = 0; row < rows; ++row)
    for (i64 k = 0; k < s.kernel_w; ++k, b += V * W) {
      const float* x = lines + row * line + k * s.dilation_w;
      F weights[V];
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v) weights[v] = load(b + v * W, Full{});
#pragma GCC unroll 24
      for (int p = 0; p < P; ++p) {
        const F value = splat(x[p * step]);
#pragma GCC unroll 3
        for (int v = 0; v < V; ++v) acc[p][v] += value * weights[v];
      }
    }
  const i64 columns = s.out_channels - column;
#pragma GCC unroll 24
  for (int p = 0; p < P; ++p) {
    if (p >= count) break;
    const Row at{pixel + p, item};
    float* out = y + at.index * s.y_stride() + column;
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) {
      if ((v + 1) * W <= columns)
        store(out + v * W, ep(acc[p][v], at, column + v * W, Full{}), Full{});
      else
        store(out + v * W, ep(acc[p][v], at, column + v * W, Tail{columns - v * W}), Tail{columns - v * W});
    }
  }
}

template <bool Planar>
void stem_lines(const ConvShape& s, const float* x, i64 top, i64 left, float* lines) {
  const i64 line = stem_line(s), pixel = Planar ? 1 : s.x_stride(), plane = Planar ? s.height * s.width : 1;
  const i64 begin = min(line, max<i64>(0, -left)), end = max(begin, min(line, s.width - left));
  for (i64 c = 0; c < s.channels; ++c)
    for (i64 kh = 0; kh < s.kernel_h; ++kh, lines += line) {
      const i64 h = top + kh * s.dilation_h;
      const bool inside = h >= 0 && h < s.height;
      const float* from = x + c * plane + (h * s.width + left) * pixel;
      for (i64 i = 0; i < (inside ? begin : line); ++i) lines[i] = 0;
      if (!inside) continue;
      if (Planar)
        memcpy(lines + begin, from + begin, static_cast<size_t>(end - begin) * sizeof(float));
      else
        for (i64 i = begin; i < end; ++i) lines[i] = from[i * pixel];
      for (i64 i = end; i < line; ++i) lines[i] = 0;
    }
}

template <bool Planar, int S, class Ep>
void stem(const Pool& pool, const ConvShape& s, const float* x, const float* packed, float* y, Ep& ep) {
  constexpr int tile = gemm_mr * gemm_nv;  // sums that the registers hold
  const i64 K = s.channels * s.taps(), lines = s.batch * s.out_height, work = s.out_width * K * round_up(s.out_channels, W) / 50;
  pool.parallel_ranges(lines, max<i64>(1, 10000 / max<i64>(1, work)), [&](i64 first, i64 last) {
    float seen[stem_floats];
    for (i64 at = first; at < last; ++at) {
      const i64 n = at / s.out_height, top = (at - n * s.out_height) * s.stride_h - s.pad_top;
      const float* image = x + n * s.height * s.width * (Planar ? s.channels : s.x_stride());
      for (i64 ow = 0; ow < s.out_width; ow += stem_run) {
        stem_lines<Planar>(s, image, top, ow * s.stride_w - s.pad_left, seen);
        const i64 count = min(stem_run, s.out_width - ow), pixel = at * s.out_width + ow;
        for (i64 p = 0; p < panel_count(s.out_channels); ++p) {
          const i64 column = p * gemm_nr, vectors = panel_vectors(s.out_channels, p);
          auto run = [&]<int V>() {
            constexpr int P = tile / V;
            for (i64 i = 0; i < count; i += P)
              stem_tile<P, V, S>(s, seen + i * s.stride_w, packed + column * K, count - i, pixel + i, n, column, y, ep);
          };
          if constexpr (gemm_nv > 2) {
            if (vectors == 3) {
              run.template operator()<3>();
              continue;
            }
          }
          if (vectors == 2)
            run.template operator()<2>();
          else
            run.template operator()<1>();
        }
      }
    }
  });
}

}  // namespace detail

template <bool Planar>
constexpr i64 conv2d_stem_workspace(const ConvShape&) {
  return 0;
}

template <bool Planar, class Ep>
void conv2d_stem(const Pool& pool, const ConvShape& s, const float* x, const float* packed, float* y, void*, Ep ep) {
  if (s.stride_w == 1) return detail::stem<Planar, 1>(pool, s, x, packed, y, ep);
  if (s.stride_w == 2) return detail::stem<Planar, 2>(pool, s, x, packed, y, ep);
  detail::stem<Planar, 0>(pool, s, x, packed, y, ep);
}

template <bool Planar, class Ep>
void conv2d_stem_reference(const Pool&, const ConvShape& s, const float* x, const float* packed, float* y, void*, Ep ep) {
  const i64 K = s.channels * s.taps();
  for (i64 m = 0; m < s.pixels(); ++m) {
    const i64 ow = m % s.out_width, oh = m / s.out_width % s.out_height, n = m / s.image();
    for (i64 o = 0; o < s.out_channels; ++o) {
      const i64 panel = o / gemm_nr, width = panel_vectors(s.out_channels, panel) * W;
      float sum = 0;
      for (i64 k = 0; k < K; ++k) {
        const i64 c = k / s.taps(), kh = k / s.kernel_w % s.kernel_h, kw = k % s.kernel_w;
        const i64 h = oh * s.stride_h - s.pad_top + kh * s.dilation_h, w = ow * s.stride_w - s.pad_left + kw * s.dilation_w;
        if (h < 0 || h >= s.height || w < 0 || w >= s.width) continue;
        const i64 from = Planar ? ((n * s.channels + c) * s.height + h) * s.width + w : ((n * s.height + h) * s.width + w) * s.x_stride() + c;
        sum += x[from] * packed[panel * gemm_nr * K + k * width + o % gemm_nr];
      }
      store(y + m * s.y_stride() + o, ep(splat(sum), Row{m, n}, o, Tail{1}), Tail{1});
    }
  }
}

}  // namespace opsmith
