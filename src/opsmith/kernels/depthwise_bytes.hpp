// Depthwise 2-D convolution of bytes in NHWC; sums of 32 bits. Weights (compiler/lower/quantized.py): [kernel_h][kernel_w][channels] in
// 16 bits, their zero points taken off.
//
// Channels are the lanes, four neighbouring pixels share each weight, as in depthwise.hpp. The zero point of x comes off at the end:
// sum (x - zero) w = sum x w - zero * sum w, where both sums leave out what is padding.
#pragma once

#include "conv.hpp"
#include "types.hpp"

namespace opsmith {

OPSMITH_INLINE I load_shorts(const int16_t* p, Full) {
  Vec<int16_t> v;
  memcpy(&v, p, sizeof v);
  return __builtin_convertvector(v, I);
}
OPSMITH_INLINE I load_shorts(const int16_t* p, Tail t) {
  I v{};
  for (i64 i = 0; i < t.count; ++i) v[i] = p[i];
  return v;
}

template <ByteStorage T, class TY, class Ep>
void depthwise_bytes(const Pool& pool, const ConvShape& s, const T* x, const T* x_zero, const int16_t* weights, TY* y, Ep ep) {
  constexpr int P = 4;  // pixels at a time
  const i64 C = s.channels, stride = s.x_stride(), rows = s.batch * s.out_height;
  const int32_t zero = x_zero ? *x_zero : 0;
  const i64 begin = min(s.out_width, ceil_div(max<i64>(0, s.pad_left), s.stride_w));  // columns [begin, end) see no padding
  const i64 room = s.width + s.pad_left - s.dilation_w * (s.kernel_w - 1) - 1;
  const i64 end = room < 0 ? begin : max(begin, min(s.out_width, room / s.stride_w + 1));
  pool.parallel_ranges(rows, max<i64>(1, 200000 / max<i64>(1, s.out_width * s.taps() * C)), [&](i64 first, i64 last) {
    for (i64 line = first; line < last; ++line) {
      const i64 n = line / s.out_height, oh = line - n * s.out_height, top = oh * s.stride_h - s.pad_top;
      // Kernel rows [kh_begin, kh_end) lie inside the picture.
      const i64 kh_begin = top >= 0 ? 0 : min(s.kernel_h, ceil_div(-top, s.dilation_h));
      const i64 kh_end = max(kh_begin, min(s.kernel_h, ceil_div(s.height - top, s.dilation_h)));
      auto put = [&](i64 ow, i64 c, I sum, auto lanes) {
        const Row row{line * s.out_width + ow, n};
        store(y + row.index * s.y_stride() + c, ep(sum, row, c, lanes), lanes);
      };
      auto one = [&](i64 ow, i64 c, auto lanes) {  // its neighbourhood may leave the picture
        I sum{};
        for (i64 kh = kh_begin; kh < kh_end; ++kh)
          for (i64 kw = 0; kw < s.kernel_w; ++kw)
            if (const T* source = conv_source(s, x, n, oh, ow, kh, kw))
              sum += (load_bytes(source + c, lanes) - zero) * load_shorts(weights + (kh * s.kernel_w + kw) * C + c, lanes);
        put(ow, c, sum, lanes);
      };
      auto four = [&](i64 ow, i64 c, auto lanes) {
        I sums[P] = {};
        I total{};
        const T* corner = x + ((n * s.height + top) * s.width + ow * s.stride_w - s.pad_left) * stride + c;
        for (i64 kh = kh_begin; kh < kh_end; ++kh) {
          const T* source = corner + kh * s.dilation_h * s.width * stride;
          const int16_t* w = weights + kh * s.kernel_w * C + c;
          for (i64 kw = 0; kw < s.kernel_w; ++kw, w += C, source += s.dilation_w * stride) {
            const I weight = load_shorts(w, lanes);
            total += weight;
#pragma GCC unroll 4
            for (int p = 0; p < P; ++p) sums[p] += load_bytes(source + p * s.stride_w * stride, lanes) * weight;
          }
        }
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) put(ow + p, c, sums[p] - zero * total, lanes);
      };
      auto along = [&](auto f) {
        i64 c = 0;
        for (; c + W <= C; c += W) f(c, Full{});
        if (c < C) f(c, Tail{C - c});
      };
      i64 ow = 0;
      for (; ow < begin; ++ow) along([&](i64 c, auto lanes) { one(ow, c, lanes); });
      for (; ow + P <= end; ow += P) along([&](i64 c, auto lanes) { four(ow, c, lanes); });
      for (; ow < s.out_width; ++ow) along([&](i64 c, auto lanes) { one(ow, c, lanes); });
    }
  });
}

template <ByteStorage T, class TY, class Ep>
void depthwise_bytes_reference(const Pool&, const ConvShape& s, const T* x, const T* x_zero, const int16_t* weights, TY* y, Ep ep) {
  for (i64 m = 0; m < s.pixels(); ++m) {
    const i64 ow = m % s.out_width, oh = m / s.out_width % s.out_height, n = m / s.out_width / s.out_height;
    for (i64 c = 0; c < s.channels; ++c) {
      int32_t sum = 0;
      for (i64 tap = 0; tap < s.taps(); ++tap)
        if (const T* source = conv_source(s, x, n, oh, ow, tap / s.kernel_w, tap % s.kernel_w))
          sum += (source[c] - (x_zero ? *x_zero : 0)) * weights[tap * s.channels + c];
      store(y + m * s.y_stride() + c, ep(splat(sum), Row{m, n}, c, Tail{1}), Tail{1});
    }
  }
}

}  // namespace opsmith
