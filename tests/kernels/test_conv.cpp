// conv2d against its reference: borders, strides, dilation, groups, upsampling, kernels too large for one pass, tiny images,
// weights in half precision.
#include "conv_cases.hpp"

using namespace opsmith;
using namespace opsmith::test;

template <class TB = float, class TX = float>
static void check(const Pool& pool, Random& random, const ConvShape& s) {
  const i64 columns = s.out_channels / s.groups, channels = s.channels / s.groups;
  const i64 run = conv_merges_rows(s) ? s.kernel_w * channels : channels;  // what the sum takes in one piece
  const i64 depth = s.taps() * channels / max<i64>(1, run) * round_up(run, step_k<TB>);
  check_conv<TB, TX>(
      "conv2d", pool, random, s, s.groups * packed_size<TB>(columns, depth), conv2d_workspace(s), step_k<TB> == 1 ? 3e-6 : 1e-5,
      [](auto&&... x) { conv2d(x...); }, [](auto&&... x) { conv2d_reference(x...); });
}

int main() {
  Random random;
  Threads threads(3);
  Pool one = serial(), three = threads.pool();
  for (i64 kernel : {1, 2, 3, 5})
    for (i64 stride : {1, 2, 3})
      for (i64 pad : {0, 1, 2})
        for (i64 dilation : {1, 2}) {
          check(one, random, conv_shape(1, 11, 10, 3, 5, kernel, stride, pad, dilation));
          check(three, random, conv_shape(2, 9, 13, 7, 50, kernel, stride, pad, dilation));
        }
  for (i64 groups : {1, 2, 4, 12}) check(three, random, conv_shape(2, 6, 7, 12, 24, 3, 2, 1, 1, groups));
  for (i64 kernel : {1, 3}) check(three, random, conv_shape(2, 5, 6, 9, 17, kernel, 1, kernel / 2, 1, 1, 2));
  check(three, random, conv_shape(1, 3, 4, 2, 3, 3, 1, 1, 1, 1, 3));
  check(three, random, conv_shape(1, 20, 20, 64, 100, 3, 1, 1));
  check(three, random, conv_shape(1, 5, 5, 1300, 20, 3, 1, 1));  // several passes over kernel positions
  check(three, random, conv_shape(1, 40, 40, 1, 3, 33, 1, 16));  // more pointers than one table holds
  // Images so small that whole kernel positions lie in the padding, and rows that see nothing else
  for (i64 size : {1, 2, 3})
    for (i64 pad : {1, 2, 4})
      for (i64 kernel : {3, 5}) {
        check(three, random, conv_shape(1, size, size, 33, 50, kernel, 1, pad));
        check(three, random, conv_shape(3, size, size + 1, 7, 20, kernel, 2, pad, 1, 1, 2));
      }
  check(one, random, conv_shape(1, 1, 1, 1300, 20, 3, 1, 1));  // several passes, the first of padding only
  // Weights in half precision
  for (i64 kernel : {1, 3}) {
    check<f16>(three, random, conv_shape(2, 9, 13, 7, 50, kernel, 1, kernel / 2));
    check<f16>(three, random, conv_shape(2, 2, 2, 130, 100, kernel, 1, kernel / 2));
    check<bf16>(one, random, conv_shape(1, 5, 5, 12, 24, kernel, 2, 1, 1, 4));
  }
  // Products in bf16: channels that are not whole pairs, rows of the kernel merged, groups
  for (i64 channels : {3, 7, 16, 33})
    for (i64 kernel : {1, 2, 3})
      for (i64 size : {1, 2, 9}) {
        check<bf16x2, bf16>(three, random, conv_shape(2, size, size + 2, channels, 50, kernel, 1, kernel / 2));
        check<bf16x2>(three, random, conv_shape(2, size, size + 2, channels, 50, kernel, 1, kernel / 2));
      }
  check<bf16x2, bf16>(one, random, conv_shape(1, 5, 5, 10, 24, 3, 2, 1, 1, 2));
  check<bf16x2, bf16>(one, random, conv_shape(1, 5, 5, 33, 24, 3, 1, 1, 1, 1, 2));
  check<bf16x2, bf16>(three, random, conv_shape(1, 5, 5, 1301, 20, 3, 1, 1));
  check(one, random, conv_shape(0, 5, 5, 4, 4, 3, 1, 1));
  check(one, random, conv_shape(1, 5, 5, 4, 0, 3, 1, 1));
  check(one, random, conv_shape(1, 5, 5, 0, 4, 3, 1, 1));  // no input channels: only the epilogue
  check(one, random, conv_shape(1, 4, 4, 4, 40, 1));
  ConvShape uneven = conv_shape(1, 8, 9, 5, 6, 3);
  uneven.kernel_w = 2, uneven.pad_left = 2, uneven.stride_w = 2, uneven.out_width = 6, uneven.out_height = 7, uneven.pad_top = 1;
  check(three, random, uneven);
  for (i64 channels : {3, 20})  // three spatial dims
    for (i64 kernel_d : {1, 2, 3})
      for (i64 stride : {1, 2}) {
        ConvShape deep = conv_shape(2, 7, 8, channels, 18, 3, stride, 1);
        deep.depth = 5, deep.kernel_d = kernel_d, deep.stride_d = stride, deep.pad_front = kernel_d / 2, deep.dilation_d = 3 - stride;
        deep.out_depth = (deep.depth + 2 * deep.pad_front - deep.dilation_d * (kernel_d - 1) - 1) / stride + 1;
        check(channels == 3 ? one : three, random, deep);
      }
  return finish();
}
