// conv2d_depthwise and its transpose against their references.
#include "conv_transpose.hpp"
#include "depthwise.hpp"

#include "conv_cases.hpp"

using namespace opsmith;
using namespace opsmith::test;

template <class TX = float, class TY = float>
static void check(const Pool& pool, Random& random, const ConvShape& s) {
  check_conv<float, TX, TY>(
      "depthwise", pool, random, s, s.taps() * s.channels, conv2d_depthwise_workspace(s), sizeof(TY) == 4 ? 2e-6 : 8e-3,
      [](auto&&... x) { conv2d_depthwise(x...); }, [](auto&&... x) { conv2d_depthwise_reference(x...); });
}

// The reference takes packed weights: one group per channel, each padded to a vector, phase after phase.
static void check_transposed(const Pool& pool, Random& random, i64 channels, i64 kernel, i64 stride, i64 pad, i64 dilation) {
  ConvShape s = conv_shape(2, 5, 6, channels, channels, kernel, stride, pad, dilation, channels);
  auto out = [&](i64 size) { return (size - 1) * stride + (kernel - 1) * dilation + 1 - 2 * pad; };
  s.out_height = out(5), s.out_width = out(6);
  if (s.out_height <= 0 || s.out_width <= 0) return;
  Array<float> plain(s.taps() * channels, random), packed(channels * packed_size(1, s.taps()));
  for (i64 c = 0, at = 0; c < channels; ++c)
    for (i64 phase = 0; phase < stride * stride; ++phase) {
      const PhaseTaps th = PhaseTaps::of(phase / stride, kernel, stride, dilation), tw = PhaseTaps::of(phase % stride, kernel, stride, dilation);
      for (i64 t = 0; t < th.count * tw.count; ++t, at += W) {
        const i64 kh = th.first + t / tw.count * th.step, kw = tw.first + t % tw.count * tw.step;
        for (i64 i = 0; i < W; ++i) packed.data[at + i] = i == 0 ? plain.data[(kh * kernel + kw) * channels + c] : 0;
      }
    }
  check_conv(
      "depthwise transposed", pool, random, s, 1, 64, 2e-6,
      [&](auto& p, auto& shape, auto* x, auto*, auto* y, auto* space, auto ep) { conv2d_depthwise_transposed(p, shape, x, plain.data, y, space, ep); },
      [&](auto& p, auto& shape, auto* x, auto*, auto* y, auto* space, auto ep) { conv2d_transposed_reference(p, shape, x, packed.data, y, space, ep); });
}

int main() {
  Random random;
  Threads threads(3);
  Pool one = serial(), three = threads.pool();
  for (i64 kernel : {1, 2, 3, 5, 7})
    for (i64 stride : {1, 2, 3})
      for (i64 pad : {0, 1, 3})
        for (i64 dilation : {1, 2})
          for (i64 channels : {1, 5, 16, 37}) {
            if (13 + 2 * pad <= dilation * (kernel - 1)) continue;
            check(channels % 2 ? one : three, random, conv_shape(2, 13, 14, channels, channels, kernel, stride, pad, dilation, channels));
          }
  for (i64 kernel : {3, 4, 7})  // images of other types, read and written
    for (i64 stride : {1, 2})
      for (i64 channels : {5, 37}) {
        const ConvShape s = conv_shape(2, 9, 14, channels, channels, kernel, stride, 1, 1, channels);
        check<bf16>(three, random, s);
        check<f16, f16>(one, random, s);
        check<bf16, bf16>(three, random, s);
        check<float, bf16>(one, random, s);
      }
  check(three, random, conv_shape(1, 2, 1, 8, 8, 3, 1, 1, 1, 8));        // nothing but border
  check(three, random, conv_shape(0, 2, 2, 8, 8, 3, 1, 1, 1, 8));
  check(three, random, conv_shape(1, 60, 60, 64, 64, 3, 1, 1, 1, 64));
  for (i64 channels : {1, 5, 37})
    for (i64 kernel : {1, 2, 4})
      for (i64 stride : {1, 2, 3})
        for (i64 dilation : {1, 2}) check_transposed(three, random, channels, kernel, stride, kernel / 3, dilation);
  return finish();
}
