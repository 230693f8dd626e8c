// conv2d_transposed and conv2d_joint against their references.
#include "conv_transpose.hpp"

#include "conv_cases.hpp"

using namespace opsmith;
using namespace opsmith::test;

static void check(const Pool& pool, Random& random, i64 height, i64 width, i64 channels, i64 out, i64 kernel, i64 stride,
                  i64 pad, i64 dilation = 1, i64 groups = 1, i64 output_padding = 0) {
  auto size = [&](i64 in) { return (in - 1) * stride - 2 * pad + dilation * (kernel - 1) + 1 + output_padding; };
  if (size(height) <= 0 || size(width) <= 0) return;
  ConvShape s{2, height, width, channels, size(height), size(width), out, kernel, kernel, stride, stride, pad, pad,
              dilation, dilation, groups};
  check_conv(
      "transposed", pool, random, s, groups * packed_size(out / groups, s.taps() * channels / groups),
      conv2d_transposed_workspace(s), 2e-6, [](auto&&... x) { conv2d_transposed(x...); },
      [](auto&&... x) { conv2d_transposed_reference(x...); });
  const JointPlan plan(s);
  if (dilation > 1 || groups > 1) return;
  check_conv(
      "joint", pool, random, s, packed_size(plan.N, plan.taps_h * plan.taps_w * channels), conv2d_joint_workspace(s), 2e-6,
      along_lines([](auto&&... x) { conv2d_joint(x...); }), along_lines([](auto&&... x) { conv2d_joint_reference(x...); }));
}

int main() {
  Random random;
  Threads threads(3);
  Pool one = serial(), three = threads.pool();
  for (i64 kernel : {1, 2, 3, 4, 5})
    for (i64 stride : {1, 2, 3})
      for (i64 pad : {0, 1, 2})
        for (i64 dilation : {1, 2}) {
          check(one, random, 4, 5, 3, 5, kernel, stride, pad, dilation);
          check(three, random, 4, 5, 3, 1, kernel, stride, pad, dilation);
          check(three, random, 3, 2, 6, 52, kernel, stride, pad, dilation, 1, stride > 1);
        }
  for (i64 groups : {2, 6}) check(three, random, 5, 4, 12, 18, 4, 2, 1, 1, groups);
  check(one, random, 3, 3, 2, 2, 2, 3, 0);  // kernel smaller than stride: some pixels see nothing
  check(three, random, 16, 16, 40, 30, 4, 2, 1);
  check(three, random, 3, 260, 20, 1, 2, 2, 0);  // lines in several runs
  check(one, random, 2, 500, 4, 12, 3, 2, 1);
  return finish();
}
