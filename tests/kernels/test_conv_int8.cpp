// conv_int8 against its reference: odd sizes, strides, padding, dilation and groups.
#include "conv_int8.hpp"

#include "byte_cases.hpp"
#include "conv_cases.hpp"

using namespace opsmith;
using namespace opsmith::test;

template <class TY>
void check(const Pool& pool, Random& random, ConvShape s) {
  s.out_pixel_stride = s.out_channels + random.below(2) * 5;
  const i64 N = s.out_channels / s.groups, C = s.channels / s.groups, K = s.taps() * round_up(C, 4);
  const auto x = bytes<uint8_t>(random, s.batch * s.height * s.width * s.channels), zero = bytes<uint8_t>(random, 1);
  auto packed = bytes<int8_t>(random, s.groups * packed_bytes(N, K));
  Array<int32_t> sums(s.out_channels);
  Array<float> scales(s.out_channels, random), x_scale(1, random);
  for (i64 o = 0; o < s.out_channels; ++o) {
    const i64 column = o % N, panel = column / gemm_nr, width = panel_vectors(N, panel) * W;
    int8_t* b = packed.data + o / N * packed_bytes(N, K) + packed_bytes(panel * gemm_nr, K) + column % gemm_nr * 4;
    sums.data[o] = 0;
    for (i64 k = 0; k < K; ++k) {
      int8_t& value = b[k / 4 * width * 4 + k % 4];
      if (k % round_up(C, 4) >= C) value = 0;  // the channels that fill up
      sums.data[o] += value;
    }
  }
  Array<TY> got(s.pixels() * s.out_pixel_stride, random), want(got);
  Array<char> workspace(conv_bytes_workspace(s));
  auto ep = [](F sum, Row row, i64, auto) { return sum + splat(static_cast<float>(row.outer)); };
  auto call = [&](auto f, Array<TY>& y) {
    f(pool, s, x.data, x_scale.data, zero.data, packed.data, sums.data, scales.data, y.data, static_cast<void*>(workspace.data), ep);
  };
  call([](auto&&... a) { conv_int8(a...); }, got);
  call([](auto&&... a) { conv_int8_reference(a...); }, want);
  char name[120];
  snprintf(name, sizeof name, "conv_int8 %d -> %d, %dx%d, stride %d, pad %d, groups %d", int(s.channels), int(s.out_channels), int(s.kernel_h),
           int(s.kernel_w), int(s.stride_h), int(s.pad_top), int(s.groups));
  expect_near(name, got, want, __is_same(TY, float) ? 1e-6 : 8e-3);
}

int main() {
  Random random;
  Threads threads(3);
  const Pool one = serial(), three = threads.pool();
  for (i64 kernel : {1, 3, 5})
    for (i64 stride : {1, 2})
      for (i64 pad : {0, 1, 2})
        for (i64 channels : {3, 8, 37}) {
          if (kernel == 1 && pad) continue;
          check<float>(channels % 2 ? one : three, random, conv_shape(2, 9, 11, channels, 50, kernel, stride, pad, 1));
          check<bf16>(three, random, conv_shape(1, 12, 11, channels, 17, kernel, stride, pad, 2));
        }
  check<float>(three, random, conv_shape(2, 9, 8, 36, 40, 3, 1, 1, 1, 2));
  return finish();
}
