// conv2d_depthwise against its reference.
#include "depthwise.hpp"

#include "conv_cases.hpp"

using namespace opsmith;
using namespace opsmith::test;

static void check(const Pool& pool, Random& random, const ConvShape& s) {
  check_conv(
      "depthwise", pool, random, s, s.taps() * s.channels, conv2d_depthwise_workspace(s), 2e-6,
      [](auto&&... x) { conv2d_depthwise(x...); }, [](auto&&... x) { conv2d_depthwise_reference(x...); });
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
  check(three, random, conv_shape(1, 6, 5, 20, 20, 3, 1, 1, 1, 20, 2));  // nearest upsampling
  check(three, random, conv_shape(1, 2, 1, 8, 8, 3, 1, 1, 1, 8));        // nothing but border
  check(three, random, conv_shape(0, 2, 2, 8, 8, 3, 1, 1, 1, 8));
  check(three, random, conv_shape(1, 60, 60, 64, 64, 3, 1, 1, 1, 64));
  return finish();
}
