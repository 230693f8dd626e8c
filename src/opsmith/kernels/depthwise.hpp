// Depthwise 2-D convolution in NHWC: every channel has its own filter (groups = channels = out_channels).
//
//   y[n][oh][ow][c] = ep(sum over kh, kw of x[n][oh*sh - top + kh*dh][ow*sw - left + kw*dw][c] * w[kh][kw][c])
//
// Weights (compiler/pack.py: pack_depthwise): [kernel_h][kernel_w][channels]. x and y may be of any float type.
//
// Channels are the lanes. A block of P neighbouring output pixels is summed at once: for each row of the kernel its weights are
// held in registers, and each pixel of x is loaded once for all the outputs that see it. For a 3 x 3 kernel of stride 1 that is
// 8 sums, 3 weights and one pixel in registers, and 13 loads for 24 products. Only blocks at the left and right border ask whether
// a pixel lies inside; rows of the kernel outside the picture are left out.
#pragma once

#include "conv.hpp"

namespace opsmith {

inline constexpr i64 conv2d_depthwise_workspace(const ConvShape&) { return 0; }

namespace detail {

// The sums of outputs [ow, ow + P) of one line. K columns of the kernel and stride S known when compiling, or 0.
template <int P, int K, int S, bool Checked, class TX, class Lanes>
OPSMITH_INLINE void depthwise_block(const ConvShape& s, const TX* line, const float* weights, i64 kh_begin, i64 kh_end, i64 ow, Lanes lanes,
                                    F (&sums)[P]) {
  const i64 stride = s.x_stride(), left = ow * s.stride_w - s.pad_left;
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) sums[p] = F{};
  auto pixel = [&](const TX* row, i64 at) __attribute__((always_inline)) {
    if constexpr (Checked) {
      if (left + at < 0 || left + at >= s.width) return F{};
    }
    return load(row + at * stride, lanes);
  };
  for (i64 kh = kh_begin; kh < kh_end; ++kh) {
    const TX* row = line + (kh * s.dilation_h * s.width + left) * stride;
    const float* w = weights + kh * s.kernel_w * s.channels;
    if constexpr (K > 0) {
      F taps[K];
#pragma GCC unroll 8
      for (int k = 0; k < K; ++k) taps[k] = load(w + k * s.channels, lanes);
#pragma GCC unroll 32
      for (int at = 0; at < (P - 1) * S + K; ++at) {
        const F x = pixel(row, at);
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p)
          if (at - p * S >= 0 && at - p * S < K) sums[p] += x * taps[at - p * S];
      }
    } else {
      for (i64 k = 0; k < s.kernel_w; ++k, w += s.channels) {
        const F tap = load(w, lanes);
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) sums[p] += pixel(row, p * s.stride_w + k * s.dilation_w) * tap;
      }
    }
  }
}

template <int P, int K, int S, class TX, class TY, class Ep>
void depthwise_lines(const Pool& pool, const ConvShape& s, const TX* x, const float* weights, TY* y, Ep& ep) {
  const i64 C = s.channels, lines = s.batch * s.out_height;
  const i64 reach = (P - 1) * s.stride_w + (s.kernel_w - 1) * s.dilation_w + 1;  // columns that a block sees
  const i64 work = s.out_width * s.taps() * C / 16;                              // about nanoseconds per line
  const i64 run = max<i64>(1, min(max<i64>(1, lines / (4 * pool.threads)), 100000 / max<i64>(1, work)));
  auto block = [&](i64 at, i64 ow) __attribute__((always_inline)) {
    const i64 left = ow * s.stride_w - s.pad_left, count = min<i64>(P, s.out_width - ow);
    const bool inside = count == P && left >= 0 && left + reach <= s.width;
    const i64 n = at / s.out_height, top = (at - n * s.out_height) * s.stride_h - s.pad_top;
    const i64 kh_begin = top >= 0 ? 0 : min(s.kernel_h, ceil_div(-top, s.dilation_h));
    const i64 kh_end = top >= s.height ? kh_begin : max(kh_begin, min(s.kernel_h, (s.height - 1 - top) / s.dilation_h + 1));
    const TX* line = x + (n * s.height + top) * s.width * s.x_stride();
    TY* out = y + (at * s.out_width + ow) * s.y_stride();
    for_lanes(C, [&](i64 c, auto lanes) {
      F sums[P];
      auto finish = [&](int p) __attribute__((always_inline)) { return ep(sums[p], Row{at * s.out_width + ow + p, n}, c, lanes); };
      if (inside) {
        depthwise_block<P, K, S, false>(s, line + c, weights + c, kh_begin, kh_end, ow, lanes, sums);
        // Nothing is stored in between, so that what the epilogue reads for a channel is read once.
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) sums[p] = finish(p);
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) store(out + p * s.y_stride() + c, sums[p], lanes);
      } else {
        depthwise_block<P, K, S, true>(s, line + c, weights + c, kh_begin, kh_end, ow, lanes, sums);
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) {
          if (p >= count) break;
          store(out + p * s.y_stride() + c, finish(p), lanes);
        }
      }
    });
  };
  // Down the lines, what a block saw of the line above is still in the first cache, unless it is too much.
  const bool down = s.kernel_h * reach * C * i64{sizeof(TX)} <= 64 << 10;
  pool.parallel_for(ceil_div(lines, run), [&](i64 task) {
    const i64 first = task * run, count = min(lines - first, run), blocks = ceil_div(s.out_width, P);
    for (i64 i = 0; i < count * blocks; ++i) block(first + (down ? i % count : i / blocks), (down ? i / count : i % blocks) * P);
  });
}

}  // namespace detail

template <class TX, class TY, class Ep>
void conv2d_depthwise(const Pool& pool, const ConvShape& s, const TX* x, const float* weights, TY* y, void*, Ep ep) {
  auto run = [&]<int P, int K, int S>() { detail::depthwise_lines<P, K, S>(pool, s, x, weights, y, ep); };
  const bool plain = s.dilation_w == 1 && s.stride_w <= 2;
  if (plain && s.kernel_w == 3) return s.stride_w == 1 ? run.template operator()<8, 3, 1>() : run.template operator()<8, 3, 2>();
  if (plain && s.kernel_w == 5) return s.stride_w == 1 ? run.template operator()<8, 5, 1>() : run.template operator()<8, 5, 2>();
  if (plain && s.kernel_w == 7) return s.stride_w == 1 ? run.template operator()<6, 7, 1>() : run.template operator()<6, 7, 2>();
  run.template operator()<8, 0, 0>();
}

template <class TX, class TY, class Ep>
void conv2d_depthwise_reference(const Pool&, const ConvShape& s, const TX* x, const float* weights, TY* y, void*, Ep ep) {
  for (i64 m = 0; m < s.pixels(); ++m) {
    i64 ow = m % s.out_width, oh = m / s.out_width % s.out_height, n = m / s.out_width / s.out_height;
    for (i64 c = 0; c < s.channels; ++c) {
      float sum = 0;
      for (i64 tap = 0; tap < s.taps(); ++tap) {
        const TX* source = conv_source(s, x, n, oh, ow, tap / s.kernel_w, tap % s.kernel_w);
        if (source) sum += to_float(source[c]) * weights[tap * s.channels + c];
      }
      store(y + m * s.y_stride() + c, ep(splat(sum), Row{m, n}, c, Tail{1}), Tail{1});
    }
  }
}

// The transpose: y[n][oh][ow][c] = ep(sum over kh, kw with oh = ih*sh - top + kh*dh, ow = iw*sw - left + kw*dw of x[n][ih][iw][c] *
// w[kh][kw][c]). ConvShape as for conv2d_transposed, weights as above.
inline constexpr i64 conv2d_depthwise_transposed_workspace(const ConvShape&) { return 0; }

template <class Ep>
void conv2d_depthwise_transposed(const Pool& pool, const ConvShape& s, const float* x, const float* weights, float* y, void*, Ep ep) {
  const i64 C = s.channels, lines = s.batch * s.out_height;
  pool.parallel_ranges(lines, max<i64>(1, 65536 / max<i64>(1, s.out_width * C)), [&](i64 begin, i64 end) {
    for (i64 at = begin; at < end; ++at) {
      const i64 n = at / s.out_height, oh = at - n * s.out_height;
      for (i64 ow = 0; ow < s.out_width; ++ow) {
        const Row row{at * s.out_width + ow, n};
        for_lanes(C, [&](i64 c, auto lanes) {
          F sum{};
          for (i64 kh = 0; kh < s.kernel_h; ++kh) {
            const i64 h = oh + s.pad_top - kh * s.dilation_h;
            if (h < 0 || h % s.stride_h != 0 || h / s.stride_h >= s.height) continue;
            for (i64 kw = 0; kw < s.kernel_w; ++kw) {
              const i64 w = ow + s.pad_left - kw * s.dilation_w;
              if (w < 0 || w % s.stride_w != 0 || w / s.stride_w >= s.width) continue;
              sum += load(x + ((n * s.height + h / s.stride_h) * s.width + w / s.stride_w) * s.x_stride() + c, lanes) *
                     load(weights + (kh * s.kernel_w + kw) * C + c, lanes);
            }
          }
          store(y + row.index * s.y_stride() + c, ep(sum, row, c, lanes), lanes);
        });
      }
    }
  });
}

}  // namespace opsmith
