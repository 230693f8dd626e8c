// conv2d_stem against its reference: pictures in planes and in pixels, borders, strides, dilation, every width of a panel.
#include "conv_stem.hpp"

#include "conv_cases.hpp"

using namespace opsmith;
using namespace opsmith::test;

template <bool Planar>
static void check(const Pool& pool, Random& random, const ConvShape& s) {
  check_conv(
      Planar ? "stem planar" : "stem", pool, random, s, packed_size(s.out_channels, s.channels * s.taps()), 1, 3e-6,
      [](auto&&... x) { conv2d_stem<Planar>(x...); }, [](auto&&... x) { conv2d_stem_reference<Planar>(x...); });
}

int main() {
  Random random;
  Threads threads(3);
  Pool one = serial(), three = threads.pool();
  for (i64 channels : {1, 3, 4})
    for (i64 outputs : {1, 16, 20, 40, 64})
      for (i64 kernel : {2, 3, 7})
        for (i64 stride : {1, 2, 3})
          for (i64 pad : {0, 3})
            for (i64 dilation : {1, 2}) {
              if (15 + 2 * pad <= dilation * (kernel - 1)) continue;
              const ConvShape s = conv_shape(2, 15, 31, channels, outputs, kernel, stride, pad, dilation);
              check<true>(channels % 2 ? one : three, random, s);
              check<false>(channels % 2 ? three : one, random, s);
            }
  check<true>(three, random, conv_shape(1, 9, 230, 3, 24, 3, 2, 1));  // a line in several runs
  check<true>(one, random, conv_shape(1, 2, 2, 3, 5, 3, 1, 3));       // outputs that see nothing but padding
  return finish();
}
