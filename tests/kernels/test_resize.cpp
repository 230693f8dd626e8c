// resize_images against the plain loops of resize: both layouts, every mode, growing and shrinking, odd sizes.
#include "resize.hpp"

#include "arrays.hpp"

using namespace opsmith;
using namespace opsmith::test;

int main() {
  Random random;
  Threads threads(3);
  const Pool one = serial(), three = threads.pool();
  for (int round = 0; round < 600; ++round) {
    ResizeAxis axes[2];
    for (ResizeAxis& a : axes) {
      a.in = 1 + random.below(random.below(4) ? 12 : 300);
      a.out = 1 + random.below(random.below(4) ? 25 : 400);
      if (random.below(5) == 0) a.out = a.in;
      a.scale = static_cast<double>(a.out) / static_cast<double>(a.in);
    }
    const ResizeMode mode{static_cast<Interpolation>(random.below(3)), static_cast<Coordinate>(random.below(6)), static_cast<Nearest>(random.below(5)),
                          -0.75, random.below(2) == 0, random.below(3) == 0};
    const i64 in = axes[0].in * axes[1].in, out = axes[0].out * axes[1].out;
    const i64 most = round % 5 == 0 ? 140 : 20, fit = 60000 / (in + out);  // the plain loops of large images take long
    const i64 batch = 1 + random.below(2), channels = 1 + random.below(fit < most ? fit + 1 : most);
    Array<float> x(batch * in * channels, random), want(batch * out * channels), got(batch * out * channels);
    ResizePlan plan{4, {ResizeAxis{batch, batch, 1}, axes[0], axes[1], ResizeAxis{channels, channels, 1}}};
    Array<char> space(resize_workspace(plan, mode)), fast(resize_images_workspace(axes[0], axes[1], mode));
    const Sizes strides{4, {in * channels, axes[1].in * channels, channels, 1}};
    resize(one, plan, mode, strides, x.data, 0.0, want.data, space.data);
    const ImageLayout l{batch, channels, in * channels, channels, out * channels, channels};
    resize_images(round % 2 ? one : three, axes[0], axes[1], mode, l, x.data, got.data, fast.data);
    char name[120];
    snprintf(name, sizeof name, "channels-last %dx%d -> %dx%d of %d, mode %d %d %d", int(axes[0].in), int(axes[1].in), int(axes[0].out), int(axes[1].out),
             int(channels), int(mode.interpolation), int(mode.coordinate), int(mode.nearest));
    expect_near(name, got, want, 1e-5);  // up to thousands of taps, summed in float and in double
    // Row-major: the same numbers as images of one channel.
    plan = ResizePlan{3, {ResizeAxis{batch * channels, batch * channels, 1}, axes[0], axes[1]}};
    const Sizes rows{3, {in, axes[1].in, 1}};
    Array<char> plain_space(resize_workspace(plan, mode));
    resize(one, plan, mode, rows, x.data, 0.0, want.data, plain_space.data);
    resize_images(round % 2 ? one : three, axes[0], axes[1], mode, ImageLayout{batch * channels, 1, in, 1, out, 1}, x.data, got.data, fast.data);
    expect_near("row-major", got, want, 1e-5);
  }
  // A line longer than the buffer; bytes are picked exactly.
  ResizeAxis h{2, 3, 1.5}, w{20000, 30, 0.0015};
  const ResizeMode linear{Interpolation::linear, Coordinate::half_pixel, Nearest::floor, -0.75, false, true};
  Array<float> x(h.in * w.in, random), want(h.out * w.out), got(h.out * w.out);
  Array<char> space(resize_images_workspace(h, w, linear)), plain(resize_workspace(ResizePlan{2, {h, w}}, linear));
  resize(one, ResizePlan{2, {h, w}}, linear, Sizes{2, {w.in, 1}}, x.data, 0.0, want.data, plain.data);
  resize_images(three, h, w, linear, ImageLayout{1, 1, h.in * w.in, 1, h.out * w.out, 1}, x.data, got.data, space.data);
  expect_near("long line", got, want, 1e-5);
  const uint8_t bytes[] = {3, 200};
  uint8_t picked[4];
  const ResizeMode nearest{Interpolation::nearest, Coordinate::asymmetric, Nearest::floor, -0.75, false, false};
  resize_images(one, ResizeAxis{1, 1, 1}, ResizeAxis{2, 4, 2}, nearest, ImageLayout{1, 1, 2, 1, 4, 1}, bytes, picked, space.data);
  CHECK(picked[0] == 3 && picked[1] == 3 && picked[2] == 200 && picked[3] == 200);
  // In float, as ONNX Runtime: 384 / (512 / 300) is 225, in double just below it.
  ResizeAxis asymmetric{300, 512, 512.0 / 300.0};
  CHECK(resize_position(384, asymmetric, Coordinate::asymmetric) == 384.0f / (512.0f / 300.0f));
  return finish();
}
