// conv_bytes and depthwise_bytes against their references, bit for bit.
#include "conv_bytes.hpp"
#include "depthwise_bytes.hpp"

#include "byte_cases.hpp"
#include "conv_cases.hpp"

using namespace opsmith;
using namespace opsmith::test;

template <class T>
void check(const Pool& pool, Random& random, ConvShape s, bool weight_zeros = true) {
  s.pixel_stride = s.channels + random.below(2) * 3;
  s.out_pixel_stride = s.out_channels + random.below(2) * 5;
  const i64 pixels = s.batch * s.height * s.width, N = s.out_channels / s.groups, C = s.channels / s.groups, K = s.taps() * round_up(C, 4);
  const auto x = bytes<T>(random, pixels ? (pixels - 1) * s.pixel_stride + s.channels : 0);
  const auto zero = bytes<T>(random, 1);
  auto packed = bytes<int8_t>(random, s.groups * packed_bytes(N, K));
  Array<int32_t> zeros(s.out_channels), sums(s.out_channels);
  Array<int16_t> shorts(s.taps() * s.channels);
  for (i64 i = 0; i < shorts.size; ++i) shorts.data[i] = static_cast<int16_t>(random.below(511) - 255);
  for (i64 o = 0; o < s.out_channels; ++o) {
    zeros.data[o] = weight_zeros ? static_cast<int32_t>(random.below(384)) - 256 : 0;
    const i64 column = o % N, panel = column / gemm_nr, width = panel_vectors(N, panel) * W;
    int8_t* b = packed.data + o / N * packed_bytes(N, K) + packed_bytes(panel * gemm_nr, K) + column % gemm_nr * 4;
    int32_t sum = 0;
    for (i64 k = 0; k < K; ++k) {
      int8_t& value = b[k / 4 * width * 4 + k % 4];
      if (k % round_up(C, 4) >= C) value = 0;  // the channels that fill up
      else sum += value - zeros.data[o];
    }
    sums.data[o] = sum;
  }
  const i64 size = s.pixels() ? (s.pixels() - 1) * s.out_pixel_stride + s.out_channels : 0;
  Array<float> got(size), want(size);
  for (i64 i = 0; i < size; ++i) got.data[i] = want.data[i] = 7;
  Array<char> workspace(conv_bytes_workspace(s));
  auto ep = [](I sum, Row row, i64 column, auto) {
    return __builtin_convertvector(sum, F) + splat(static_cast<float>(row.outer + row.index % 9) + 0.5f * static_cast<float>(column / W));
  };
  auto call = [&](auto f, Array<float>& y) {
    f(pool, s, x.data, zero.data, packed.data, sums.data, weight_zeros ? zeros.data : nullptr, y.data, static_cast<void*>(workspace.data), ep);
  };
  char name[200];
  snprintf(name, sizeof name, "%d %dx%dx%dx%d -> %dx%dx%d kernel %d stride %d pad %d dilation %d groups %d", is_signed_integer<T>, int(s.batch),
           int(s.height), int(s.width), int(s.channels), int(s.out_height), int(s.out_width), int(s.out_channels), int(s.kernel_h),
           int(s.stride_h), int(s.pad_top), int(s.dilation_h), int(s.groups));
  call([](auto&&... a) { conv_bytes(a...); }, got);
  call([](auto&&... a) { conv_bytes_reference(a...); }, want);
  expect_close(name, got.data, want.data, size, 0, 0);
  if (s.groups != s.channels || N != 1) return;
  depthwise_bytes(pool, s, x.data, zero.data, shorts.data, got.data, ep);
  depthwise_bytes_reference(pool, s, x.data, zero.data, shorts.data, want.data, ep);
  expect_close(name, got.data, want.data, size, 0, 0);
}

int main() {
  Random random;
  Threads threads(3);
  const Pool one = serial(), three = threads.pool();
  for (i64 kernel : {1, 2, 3, 5})
    for (i64 stride : {1, 2, 3})
      for (i64 pad : {0, 1, 3})
        for (i64 dilation : {1, 2})
          for (i64 channels : {1, 3, 4, 6, 37}) {
            if (9 + 2 * pad <= dilation * (kernel - 1)) continue;
            const Pool& pool = channels % 2 ? one : three;
            check<uint8_t>(pool, random, conv_shape(2, 9, 11, channels, 5, kernel, stride, pad, dilation), kernel % 2);
            check<int8_t>(pool, random, conv_shape(1, 9, 11, channels, 50, kernel, stride, pad, dilation), stride % 2);
            check<uint8_t>(pool, random, conv_shape(1, 9, 10, channels, channels, kernel, stride, pad, dilation, channels));
            check<int8_t>(pool, random, conv_shape(1, 9, 10, channels, channels, kernel, stride, pad, dilation, channels));
            check<uint8_t>(pool, random, conv_shape(1, 9, 10, 2 * channels, 6, kernel, stride, pad, dilation, 2));
          }
  check<uint8_t>(three, random, conv_shape(1, 2, 1, 8, 8, 3, 1, 1, 1, 8));  // nothing but border
  check<uint8_t>(three, random, conv_shape(0, 2, 2, 8, 8, 3, 1, 1));
  check<uint8_t>(three, random, conv_shape(1, 40, 41, 64, 100, 3, 1, 1));
  check<int8_t>(one, random, conv_shape(1, 120, 118, 1, 2, 113, 1, 0));  // more kernel positions than the table of rows holds
  return finish();
}
