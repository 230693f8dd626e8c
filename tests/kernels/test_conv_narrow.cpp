// conv2d_narrow against its reference: 1 to 4 outputs, few and many channels, borders, strides, dilation.
#include "conv_narrow.hpp"

#include "conv_cases.hpp"

using namespace opsmith;
using namespace opsmith::test;

static void check(const Pool& pool, Random& random, const ConvShape& s) {
  check_conv("narrow", pool, random, s, s.out_channels * s.taps() * s.channels, 1, 3e-6, along_lines([](auto&&... x) { conv2d_narrow(x...); }),
             along_lines([](auto&&... x) { conv2d_narrow_reference(x...); }));
}

int main() {
  Random random;
  Threads threads(3);
  Pool one = serial(), three = threads.pool();
  for (i64 outputs : {1, 2, 3, 4})
    for (i64 kernel : {1, 3, 4})
      for (i64 stride : {1, 2})
        for (i64 pad : {0, 2})
          for (i64 dilation : {1, 2})
            for (i64 channels : {1, 3, 16, 37})
              if (13 + 2 * pad > dilation * (kernel - 1))
                check(channels % 2 ? one : three, random, conv_shape(2, 13, 30, channels, outputs, kernel, stride, pad, dilation));
  check(three, random, conv_shape(1, 20, 300, 5, 1, 9, 1, 4));  // a line in several pieces
  check(three, random, conv_shape(1, 2, 2, 5, 3, 3, 1, 3));     // outputs that see nothing but padding
  return finish();
}
