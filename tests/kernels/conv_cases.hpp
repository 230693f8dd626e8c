// Convolution shapes that the tests of several kernels share.
#pragma once

#include "arrays.hpp"
#include "conv.hpp"

namespace opsmith::test {

inline ConvShape conv_shape(i64 batch, i64 height, i64 width, i64 channels, i64 out_channels, i64 kernel, i64 stride = 1,
                            i64 pad = 0, i64 dilation = 1, i64 groups = 1, i64 upsample = 1) {
  auto out = [&](i64 size) { return (size * upsample + 2 * pad - dilation * (kernel - 1) - 1) / stride + 1; };
  ConvShape s{batch, height, width, channels, out(height), out(width), out_channels, kernel, kernel, stride, stride,
              pad, pad, dilation, dilation, groups};
  s.upsample = upsample;
  return s;
}

// x and y inside wider buffers, a bias per channel, a value per image and one per pixel in the epilogue; floats
// between the channels of y and its stride must stay as they were.
template <class TB = float, class TX = float, class TY = float, class Kernel, class Reference>
double check_conv(const char* kernel, const Pool& pool, Random& random, ConvShape s, i64 packed_floats, i64 workspace_bytes,
                  double tolerance, Kernel run, Reference reference) {
  s.pixel_stride = s.channels + random.below(2) * 3;
  s.out_pixel_stride = s.out_channels + random.below(2) * 5;
  i64 x_pixels = s.batch * s.depth * s.height * s.width;
  Array<TX> x(x_pixels ? (x_pixels - 1) * s.pixel_stride + s.channels : 0, random);
  Array<TB> packed(packed_floats, random);
  Array<float> bias(s.out_channels, random), image(s.batch, random);
  Array<TY> got(s.pixels() ? (s.pixels() - 1) * s.out_pixel_stride + s.out_channels : 0, random), want(got);
  Array<char> workspace(workspace_bytes);
  auto ep = [bias = bias.data, image = image.data](F sum, Row row, i64 column, auto lanes) {
    return sum + load(bias + column, lanes) + splat(image[row.outer] + 0.125f * static_cast<float>(row.index % 9));
  };
  run(pool, s, x.data, packed.data, got.data, static_cast<void*>(workspace.data), ep);
  reference(pool, s, x.data, packed.data, want.data, static_cast<void*>(workspace.data), ep);
  char name[200];
  snprintf(name, sizeof name, "%s %dx%dx%dx%d -> %dx%dx%d kernel %dx%d stride %d pad %d,%d dilation %d groups %d up %d", kernel,
           int(s.batch), int(s.height), int(s.width), int(s.channels), int(s.out_height), int(s.out_width),
           int(s.out_channels), int(s.kernel_h), int(s.kernel_w), int(s.stride_h), int(s.pad_top), int(s.pad_left),
           int(s.dilation_h), int(s.groups), int(s.upsample));
  return expect_near(name, got, want, tolerance);
}

// A kernel whose epilogue runs along lines of pixels where there is one output channel: the bias of check_conv, read by column, would
// be too short for it.
template <class Kernel>
auto along_lines(Kernel kernel) {
  return [kernel](auto& pool, auto& s, auto* x, auto* w, auto* y, auto* space, auto ep) {
    if (s.out_channels > 1) return kernel(pool, s, x, w, y, space, ep);
    kernel(pool, s, x, w, y, space, [](F sum, Row row, i64 column, auto) {
      F at{};
      for (i64 i = 0; i < W; ++i) at[i] = static_cast<float>((column + i) % 7);
      return sum + at + splat(static_cast<float>(row.index % 5 + row.outer));
    });
  };
}

}  // namespace opsmith::test
