// 2-D convolution in NHWC to few output channels (1 to 4): a picture from features, a mask, a blur.
//
//   y[n][oh][ow][o] = ep(sum over kh, kw, c of x[n][oh*sh - top + kh*dh][ow*sw - left + kw*dw][c] * w[o][kh][kw][c])
//
// A product with so few columns would leave most lanes of a vector empty. Here the lanes are the values that one output sums: the
// channels of a pixel, or of a whole row of the kernel where its pixels lie side by side. Four output pixels share each load of a
// weight; the lanes are added up once per output.
// With one output channel, whose images are plain rows of pixels, the epilogue sees lines: row = n * out_height + oh, column = ow.
//
// Weights (compiler/pack.py: pack_narrow): [out_channels][kernel_h][kernel_w][channels].
#pragma once

#include "conv.hpp"

namespace opsmith {

inline constexpr i64 conv2d_narrow_workspace(const ConvShape&) { return 0; }

namespace detail {

OPSMITH_INLINE float add_lanes(F v) {
  float part[W];
  store(part, v, Full{});
  for (i64 n = W / 2; n > 0; n /= 2)
    for (i64 i = 0; i < n; ++i) part[i] += part[i + n];
  return part[0];
}

// P output pixels of a line from ow on, their sums in out[o * stride + p]; columns [kw_begin, kw_end) of the kernel lie inside.
template <int P, int O>
OPSMITH_INLINE void narrow_pixels(const ConvShape& s, const float* line, const float* weights, i64 kh_begin, i64 kh_end, i64 kw_begin, i64 kw_end,
                                  i64 ow, float* out, i64 stride) {
  const i64 C = s.channels, pixel = s.x_stride(), step = s.stride_w * pixel;
  const bool merged = pixel == C && s.dilation_w == 1;  // a row of the kernel is one run of values
  const i64 runs = merged ? (kw_end > kw_begin) : kw_end - kw_begin, length = merged ? (kw_end - kw_begin) * C : C;
  F acc[P][O] = {};
  for (i64 kh = kh_begin; kh < kh_end; ++kh)
    for (i64 run = 0; run < runs; ++run) {
      const i64 kw = kw_begin + run;
      const float* from = line + (kh * s.dilation_h * s.width + ow * s.stride_w - s.pad_left + kw * s.dilation_w) * pixel;
      const float* w = weights + (kh * s.kernel_w + kw) * C;
      for_lanes(length, [&](i64 i, auto lanes) __attribute__((always_inline)) {
        F x[P];
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) x[p] = load(from + p * step + i, lanes);
#pragma GCC unroll 4
        for (int o = 0; o < O; ++o) {
          const F weight = load(w + o * s.taps() * C + i, lanes);
#pragma GCC unroll 4
          for (int p = 0; p < P; ++p) acc[p][o] += x[p] * weight;
        }
      });
    }
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p)
#pragma GCC unroll 4
    for (int o = 0; o < O; ++o) out[o + p * stride] = add_lanes(acc[p][o]);
}

template <int O, class Ep>
void narrow_lines(const Pool& pool, const ConvShape& s, const float* x, const float* weights, float* y, Ep& ep) {
  constexpr i64 piece = 256;  // output pixels at a time
  const i64 lines = s.batch * s.out_height, work = s.out_width * s.taps() * s.channels * O / 16;
  pool.parallel_ranges(lines, max<i64>(1, 10000 / max<i64>(1, work)), [&](i64 begin, i64 end) {
    float sums[piece * O];  // [pixel][o]
    for (i64 at = begin; at < end; ++at) {
      const i64 n = at / s.out_height, top = (at - n * s.out_height) * s.stride_h - s.pad_top;
      const i64 kh_begin = top >= 0 ? 0 : min(s.kernel_h, ceil_div(-top, s.dilation_h));
      const i64 kh_end = top >= s.height ? kh_begin : max(kh_begin, min(s.kernel_h, (s.height - 1 - top) / s.dilation_h + 1));
      const float* line = x + (n * s.height + top) * s.width * s.x_stride();
      for (i64 first = 0; first < s.out_width; first += piece) {
        const i64 last = min(s.out_width, first + piece);
        for (i64 ow = first; ow < last;) {
          const i64 left = ow * s.stride_w - s.pad_left, right = left + (s.kernel_w - 1) * s.dilation_w;
          float* out = sums + (ow - first) * O;
          if (ow + 4 <= last && left >= 0 && right + 3 * s.stride_w < s.width) {
            narrow_pixels<4, O>(s, line, weights, kh_begin, kh_end, 0, s.kernel_w, ow, out, O);
            ow += 4;
            continue;
          }
          const i64 kw_begin = left >= 0 ? 0 : min(s.kernel_w, ceil_div(-left, s.dilation_w));
          const i64 kw_end = left >= s.width ? kw_begin : max(kw_begin, min(s.kernel_w, (s.width - 1 - left) / s.dilation_w + 1));
          narrow_pixels<1, O>(s, line, weights, kh_begin, kh_end, kw_begin, kw_end, ow++, out, O);
        }
        if constexpr (O == 1) {
          for_lanes(last - first, [&](i64 i, auto lanes) {
            float* to = y + (at * s.out_width + first + i) * s.y_stride();
            const F value = ep(load(sums + i, lanes), Row{at, n}, first + i, lanes);
            if (s.y_stride() == 1) {
              store(to, value, lanes);
            } else {
              for (i64 k = 0; k < lanes.count; ++k) to[k * s.y_stride()] = value[k];
            }
          });
        } else {
          for (i64 ow = first; ow < last; ++ow) {
            const Row row{at * s.out_width + ow, n};
            if constexpr (O >= W) {
              for_lanes(O, [&](i64 o, auto lanes) { store(y + row.index * s.y_stride() + o, ep(load(sums + (ow - first) * O + o, lanes), row, o, lanes), lanes); });
            } else {
              store(y + row.index * s.y_stride(), ep(load(sums + (ow - first) * O, Tail{O}), row, 0, Tail{O}), Tail{O});
            }
          }
        }
      }
    }
  });
}

}  // namespace detail

template <class Ep>
void conv2d_narrow(const Pool& pool, const ConvShape& s, const float* x, const float* weights, float* y, void*, Ep ep) {
  switch (s.out_channels) {
    case 1: return detail::narrow_lines<1>(pool, s, x, weights, y, ep);
    case 2: return detail::narrow_lines<2>(pool, s, x, weights, y, ep);
    case 3: return detail::narrow_lines<3>(pool, s, x, weights, y, ep);
    case 4: return detail::narrow_lines<4>(pool, s, x, weights, y, ep);
  }
}

template <class Ep>
void conv2d_narrow_reference(const Pool&, const ConvShape& s, const float* x, const float* weights, float* y, void*, Ep ep) {
  for (i64 m = 0; m < s.pixels(); ++m) {
    const i64 ow = m % s.out_width, line = m / s.out_width, oh = line % s.out_height, n = line / s.out_height;
    for (i64 o = 0; o < s.out_channels; ++o) {
      float sum = 0;
      for (i64 tap = 0; tap < s.taps(); ++tap) {
        const float* source = conv_source(s, x, n, oh, ow, tap / s.kernel_w, tap % s.kernel_w);
        for (i64 c = 0; source && c < s.channels; ++c) sum += source[c] * weights[(o * s.taps() + tap) * s.channels + c];
      }
      const bool lines = s.out_channels == 1;
      store(y + m * s.y_stride() + o, ep(splat(sum), lines ? Row{line, n} : Row{m, n}, lines ? ow : o, Tail{1}), Tail{1});
    }
  }
}

}  // namespace opsmith
