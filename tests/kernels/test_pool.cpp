// pool_windows against the plain loops of window.hpp: both layouts, 1 to 3 spatial dims, every attribute, odd sizes.
#include "pool.hpp"

#include "arrays.hpp"

using namespace opsmith;
using namespace opsmith::test;

static i64 out_size(i64 in, i64 kernel, i64 stride, i64 before, i64 after, i64 dilation, bool ceil) {
  const i64 span = in + before + after - (kernel - 1) * dilation - 1;
  return span < 0 ? 0 : ceil ? min(ceil_div(span, stride) + 1, (in + before - 1) / stride + 1) : span / stride + 1;
}

// x and y channels-last inside wider pixels, or row-major; `plain` works on row-major copies.
template <class Op, class Plain>
static void check(const Pool& pool, Random& random, const char* what, const Window& w, const Sizes& after, bool include, bool channels_last,
                  double power, Plain plain) {
  const i64 in = w.pixels_in(), out = w.pixels_out(), images = w.batch * w.channels;
  if (out <= 0) return;
  Array<float> x(images * in, random), want(images * out);
  plain(x.data, want.data);
  const i64 xp = w.channels + 3, yp = w.channels + 5;
  Array<float> wide(w.batch * in * xp, random), got(w.batch * out * yp, random), before(got);
  if (channels_last) {
    for (i64 n = 0; n < w.batch; ++n)
      for (i64 c = 0; c < w.channels; ++c)
        for (i64 i = 0; i < in; ++i) wide.data[(n * in + i) * xp + c] = x.data[(n * w.channels + c) * in + i];
    pool_windows<Op>(pool, w, ImageLayout{w.batch, w.channels, in * xp, xp, out * yp, yp}, after, include, power, wide.data, got.data);
    for (i64 i = 0; i < w.batch * out; ++i)
      for (i64 c = 0; c < yp; ++c) {
        const i64 n = i / out;
        const float expected = c < w.channels ? want.data[(n * w.channels + c) * out + i % out] : before.data[i * yp + c];
        expect_close(what, got.data + i * yp + c, &expected, 1, 1e-5, 1e-6);
      }
  } else {
    Array<float> y(images * out);
    pool_windows<Op>(pool, w, ImageLayout{images, 1, in, 1, out, 1}, after, include, power, x.data, y.data);
    expect_close(what, y.data, want.data, images * out, 1e-5, 1e-6);
  }
}

int main() {
  Random random;
  Threads threads(3);
  const Pool one = serial(), three = threads.pool();
  for (int round = 0; round < 400; ++round) {
    const Pool& pool = round % 2 ? one : three;
    const bool ceil = random.below(2), include = random.below(2), channels_last = random.below(2), flat = random.below(3) == 0;
    Window w{1 + random.below(2), 1 + random.below(round % 7 == 0 ? 150 : 20), {}, {}, {}, {}, {}, {}};
    Sizes after{3, {}};
    for (int d = 0; d < 3; ++d) {
      const bool used = d == 2 || (d == 1 && !flat) || (d == 0 && random.below(4) == 0);
      w.in[d] = used ? 1 + random.below(d == 2 ? 60 : 13) : 1;
      w.kernel[d] = used ? 1 + random.below(min<i64>(w.in[d], random.below(3) ? 3 : 13)) : 1;
      w.stride[d] = used ? 1 + random.below(3) : 1;
      w.dilation[d] = used && random.below(4) == 0 ? 2 : 1;
      w.pad[d] = used ? random.below(w.kernel[d]) : 0;
      after.at[d] = used ? random.below(w.kernel[d]) : 0;
      w.out[d] = out_size(w.in[d], w.kernel[d], w.stride[d], w.pad[d], after.at[d], w.dilation[d], ceil);
    }
    auto compare = [&]<class Op>(const char* what, double power, auto plain) {
      check<Op>(pool, random, what, w, after, include, channels_last, power, plain);
    };
    compare.operator()<PoolMax>("max", 2, [&](const float* x, float* y) { max_pool(one, w, x, y, nullptr, false); });
    compare.operator()<PoolAverage>("average", 2, [&](const float* x, float* y) { average_pool(one, w, x, y, after, include); });
    for (double p : {1.0, 2.0, 3.0})
      compare.operator()<PoolLp>("lp", p, [&](const float* x, float* y) { lp_pool(one, w, x, y, p); });
  }
  // Global pools of one image: cut into blocks of channels, or one long window.
  for (i64 channels : {1, 16, 200, 515}) {
    const Window w{1, channels, {1, 31, 40}, {1, 1, 1}, {1, 31, 40}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1}};
    for (bool last : {false, true})
      check<PoolAverage>(three, random, "global", w, Sizes{3, {0, 0, 0}}, false, last, 2,
                         [&](const float* x, float* y) { average_pool(one, w, x, y, Sizes{3, {0, 0, 0}}, false); });
  }
  // A line longer than the buffer of merged rows, and a window longer than half of it.
  for (i64 kernel : {3, 29990}) {
    const Window w{1, 1, {1, 2, 30000}, {1, 1, 30000 - kernel + 1}, {1, 2, kernel}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1}};
    for (bool last : {false, true})
      check<PoolMax>(three, random, "long", w, Sizes{3, {0, 0, 0}}, false, last, 2,
                     [&](const float* x, float* y) { max_pool(one, w, x, y, nullptr, false); });
  }
  const uint8_t bytes[] = {3, 200, 255, 0, 1, 7};  // maxima of 8-bit integers are exact
  uint8_t most[2];
  pool_windows<PoolMax>(one, Window{1, 2, {1, 1, 3}, {1, 1, 1}, {1, 1, 3}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1}}, ImageLayout{2, 1, 3, 1, 1, 1},
                        Sizes{3, {0, 0, 0}}, false, 2.0, bytes, most);
  CHECK(most[0] == 255 && most[1] == 7);
  return finish();
}
