// The plain kernels (fold, remap, window, indexing, resize, grid_sample, linear_quant): known values, and random shapes in buffers of exactly
// the right size, so that the sanitized build sees every step outside them. Their numbers are proven by ONNX's node suite.
#include "fold.hpp"
#include "grid_sample.hpp"
#include "indexing.hpp"
#include "linear_quant.hpp"
#include "remap.hpp"
#include "resize.hpp"
#include "window.hpp"

#include "harness.hpp"

namespace opsmith {
namespace {

using test::Random;

std::vector<char> bytes(i64 n) { return std::vector<char>(static_cast<size_t>(n < 0 ? 0 : n)); }

Sizes random_dims(Random& random, int rank, i64 most = 5) {
  Sizes d{rank, {}};
  for (int i = 0; i < rank; ++i) d.at[i] = random.below(most + 1);
  return d;
}
Sizes strides_of(const Sizes& dims) {
  Sizes s{dims.count, {}};
  dense_strides(dims, s.at);
  return s;
}

void folds(const Pool& pool) {
  const std::vector<float> x = {1, 2, 3, 4, 5, 6};
  const Sizes dims{2, {2, 3}}, strides{2, {3, 1}};
  std::vector<float> y(3);
  fold<FoldSum, float, float>(pool, dims, strides, Sizes{1, {0}}, false, x.data(), y.data());
  CHECK(y[0] == 5 && y[1] == 7 && y[2] == 9);
  fold<FoldMax, float, float>(pool, dims, strides, Sizes{1, {-1}}, false, x.data(), y.data());
  CHECK(y[0] == 3 && y[1] == 6);
  fold<FoldMean, float, float>(pool, dims, strides, Sizes{0, {}}, true, x.data(), y.data());
  CHECK(y[0] == 3.5f);
  fold_log_sum_exp<float, float>(pool, Sizes{1, {2}}, Sizes{1, {1}}, Sizes{0, {}}, true, x.data(), y.data());
  CHECK(fabs(y[0] - 2.3132617) < 1e-5);
  const uint64_t big[] = {uint64_t(1) << 63, 5};
  uint64_t most = 0;
  fold<FoldMax, uint64_t, uint64_t>(pool, Sizes{1, {2}}, Sizes{1, {1}}, Sizes{0, {}}, true, big, &most);
  CHECK(most == uint64_t(1) << 63);
  float none = 0;  // nothing at all: the identity of each operation
  fold<FoldMin, float, float>(pool, Sizes{1, {0}}, Sizes{1, {1}}, Sizes{0, {}}, true, x.data(), &none);
  CHECK(none == __builtin_inff());
  int8_t low = 0;
  fold<FoldMax, int8_t, int8_t>(pool, Sizes{1, {0}}, Sizes{1, {1}}, Sizes{0, {}}, true, &low, &low);
  CHECK(low == -128);
  const float ties[] = {2, 7, 7, 1};
  float sums[4];
  cumulate<false>(pool, 1, 4, 1, true, true, ties, sums);
  CHECK(sums[0] == 15 && sums[3] == 0);
}

void pads(const Pool& pool) {
  const float x[] = {1, 2, 3};
  float y[9];
  auto work = bytes(remap_workspace(Sizes{1, {9}}));
  auto run = [&](Border mode) { pad(pool, Sizes{1, {9}}, Sizes{1, {3}}, Sizes{1, {1}}, Sizes{1, {3}}, mode, x, -1.0f, y, work.data()); };
  run(Border::constant);
  CHECK(y[0] == -1 && y[3] == 1 && y[5] == 3 && y[8] == -1);
  run(Border::edge);
  CHECK(y[0] == 1 && y[8] == 3);
  run(Border::reflect);  // 2 3 2 | 1 2 3 | 2 1 2: reflections repeat
  CHECK(y[0] == 2 && y[1] == 3 && y[2] == 2 && y[6] == 2 && y[7] == 1 && y[8] == 2);
  run(Border::wrap);
  CHECK(y[0] == 1 && y[2] == 3 && y[6] == 1 && y[8] == 3);
  Random random(3);
  for (int i = 0; i < 200; ++i) {
    const int rank = static_cast<int>(random.below(4));
    Sizes from = random_dims(random, rank), begin{rank, {}}, dims{rank, {}};
    for (int d = 0; d < rank; ++d) {
      begin.at[d] = random.below(7) - 3;
      dims.at[d] = max<i64>(0, from.at[d] + begin.at[d] + random.below(7) - 3);
    }
    const auto mode = static_cast<Border>(random.below(4));
    std::vector<float> in(static_cast<size_t>(size_of(from)), 1.0f), out(static_cast<size_t>(size_of(dims)));
    auto space = bytes(remap_workspace(dims));
    pad(pool, dims, from, strides_of(from), begin, mode, in.data(), 0.0f, out.data(), space.data());
  }
}

Window random_window(Random& random) {
  Window w{};
  w.batch = random.below(3);
  w.channels = 2 * random.below(3);
  for (int d = 0; d < 3; ++d) {
    w.in[d] = 1 + random.below(6);
    w.kernel[d] = 1 + random.below(3);
    w.stride[d] = 1 + random.below(3);
    w.dilation[d] = 1 + random.below(2);
    w.pad[d] = random.below(4);
    w.out[d] = random.below(5);
  }
  return w;
}

void windows(const Pool& pool) {
  Random random(5);
  for (int i = 0; i < 200; ++i) {
    const Window w = random_window(random);
    const i64 planes = w.batch * w.channels;
    std::vector<float> x = random.normals(planes * w.pixels_in()), y(static_cast<size_t>(planes * w.pixels_out()));
    std::vector<i64> at(y.size());
    max_pool(pool, w, x.data(), y.data(), at.data(), random.below(2) == 1);
    for (i64 a : at) CHECK(a >= 0 && a < static_cast<i64>(x.size()));
    average_pool(pool, w, x.data(), y.data(), Sizes{3, {1, 0, 2}}, true);
    lp_pool(pool, w, x.data(), y.data(), 2.0);
    const i64 groups = w.channels ? 2 : 1, outputs = 4;
    std::vector<float> weights = random.normals(outputs * (w.channels / groups) * w.taps()), bias = random.normals(outputs);
    std::vector<float> z(static_cast<size_t>(w.batch * outputs * w.pixels_out()));
    conv_plain<float, float, float>(pool, w, outputs, groups, x.data(), weights.data(), bias.data(), z.data(), 0, nullptr, 0);
    // transposed: from w.out back to w.in
    std::vector<float> small = random.normals(planes * w.pixels_out()), large(static_cast<size_t>(w.batch * outputs * w.pixels_in()));
    std::vector<double> sums(large.size());
    std::vector<float> turned = random.normals(w.channels * (outputs / groups) * w.taps());
    conv_transposed_plain(pool, w, outputs, groups, small.data(), turned.data(), bias.data(), large.data(), sums.data());
    std::vector<float> columns = random.normals(planes * w.taps() * w.pixels_out()), image(static_cast<size_t>(planes * w.pixels_in()));
    col2im(pool, w, columns.data(), image.data());
    lrn(pool, w.batch, w.channels, w.pixels_in(), 3, 0.1, 0.75, 1.0, x.data(), image.data());
  }
}

void indices(const Pool& pool) {
  const float data[] = {1, 2, 3, 4};
  float out[4];
  const i64 good[] = {1, -1}, bad[] = {0, 2}, worse[] = {0, -3};
  CHECK(gather_elements(Sizes{2, {2, 2}}, Sizes{2, {1, 2}}, 0, data, good, out) && out[0] == 3 && out[1] == 4);
  CHECK(!gather_elements(Sizes{2, {2, 2}}, Sizes{2, {1, 2}}, 0, data, bad, out));
  CHECK(!gather_elements(Sizes{2, {2, 2}}, Sizes{2, {1, 2}}, 0, data, worse, out));
  const float updates[] = {10, 20};
  memcpy(out, data, sizeof data);
  CHECK((scatter_elements<Combine::add>(Sizes{2, {2, 2}}, Sizes{2, {1, 2}}, 0, good, updates, out)) && out[2] == 13 && out[3] == 24);
  CHECK(!(scatter_elements<Combine::none>(Sizes{2, {2, 2}}, Sizes{2, {1, 2}}, 0, bad, updates, out)));
  CHECK(gather_nd(Sizes{2, {2, 2}}, 0, 1, 1, 2, 1, data, good, out) && out[0] == 4);
  CHECK(!gather_nd(Sizes{2, {2, 2}}, 0, 1, 1, 2, 1, data, bad, out));
  memcpy(out, data, sizeof data);
  CHECK((scatter_nd<Combine::max>(Sizes{2, {2, 2}}, 1, 1, 2, good, updates, out)) && out[2] == 10 && out[3] == 20);
  CHECK(!(scatter_nd<Combine::max>(Sizes{2, {2, 2}}, 1, 2, 1, worse, updates, out)));
  const float x[] = {3, 1, 3, 2, 5};
  float values[3];
  i64 where[3];
  top_k<true>(pool, 1, 5, 1, 3, x, values, where);
  CHECK(values[0] == 5 && where[0] == 4 && where[1] == 0 && where[2] == 2);
  top_k<false>(pool, 1, 5, 1, 2, x, values, where);
  CHECK(values[0] == 1 && values[1] == 2);
  top_k<true>(pool, 1, 5, 1, 0, x, values, where);
  const i64 lengths[] = {2}, long_one[] = {5};
  CHECK(reverse_sequence(1, 4, 1, true, lengths, data, out) && out[0] == 2 && out[1] == 1 && out[2] == 3);
  CHECK(!reverse_sequence(1, 4, 1, true, long_one, data, out));
  trilu(pool, 1, 2, 2, INT64_MAX, true, data, out);
  CHECK(out[0] == 0 && out[3] == 0);
  const i64 hot[] = {1, -1, 7};
  float ones[6];
  one_hot(pool, 3, 2, 1, hot, 0.0f, 1.0f, ones);
  CHECK(ones[1] == 1 && ones[3] == 1 && ones[4] == 0 && ones[5] == 0);
}

void resizes(const Pool& pool) {
  Random random(9);
  for (int i = 0; i < 400; ++i) {
    ResizePlan plan{static_cast<int>(random.below(4)), {}};
    Sizes dims{plan.rank, {}}, to{plan.rank, {}};
    for (int d = 0; d < plan.rank; ++d) {
      dims.at[d] = 1 + random.below(6), to.at[d] = random.below(8);
      plan.axes[d] = ResizeAxis{dims.at[d], to.at[d], random.below(4) ? static_cast<double>(to.at[d]) / static_cast<double>(dims.at[d]) : 0.3, -0.2, 1.3};
      if (!(plan.axes[d].scale > 0)) plan.axes[d].scale = 1e-3;
    }
    const ResizeMode mode{static_cast<Interpolation>(random.below(3)), static_cast<Coordinate>(random.below(6)), static_cast<Nearest>(random.below(4)),
                          -0.75, random.below(2) == 1, random.below(2) == 1};
    std::vector<float> x(static_cast<size_t>(size_of(dims)), 2.0f), y(static_cast<size_t>(size_of(to)));
    auto work = bytes(resize_workspace(plan, mode));
    resize(pool, plan, mode, strides_of(dims), x.data(), 2.0, y.data(), work.data());
    if (!mode.exclude_outside)
      for (float v : y) CHECK(fabs(v - 2.0f) < 1e-4f);  // weights add up to 1
  }
  for (int i = 0; i < 200; ++i) {
    GridShape s{};
    s.batch = random.below(3), s.channels = random.below(3), s.spatial = 2 + static_cast<int>(random.below(2));
    for (int d = 0; d < 3; ++d) {
      const bool used = d >= 3 - s.spatial;
      s.in[d] = used ? 1 + random.below(4) : 1, s.out[d] = used ? random.below(4) : 1;
    }
    s.interpolation = static_cast<Interpolation>(random.below(3)), s.outside = static_cast<Outside>(random.below(3)), s.align_corners = random.below(2);
    std::vector<float> x = random.normals(s.batch * s.channels * s.in[0] * s.in[1] * s.in[2]);
    const i64 pixels = s.out[0] * s.out[1] * s.out[2];
    std::vector<float> grid = random.normals(s.batch * pixels * s.spatial, 3), y(static_cast<size_t>(s.batch * s.channels * pixels));
    if (!grid.empty()) grid[0] = __builtin_nanf("");
    if (grid.size() > 1) grid[1] = __builtin_inff();
    grid_sample(pool, s, x.data(), grid.data(), y.data());
  }
}

void quantized(const Pool& pool) {
  const float x[] = {-1, 0.5f, 300, __builtin_nanf("")}, scale[] = {0.5f};
  const uint8_t zero[] = {10};
  uint8_t q[4];
  quantize(pool, ScaleLayout{1, 1, 4, 1, 0, 0, 0}, x, scale, zero, q);
  CHECK(q[0] == 8 && q[1] == 11 && q[2] == 255);
  float back[4];
  dequantize(pool, ScaleLayout{1, 1, 4, 1, 0, 0, 0}, q, scale, zero, back);
  CHECK(back[0] == -1 && back[1] == 0.5f);
}

}  // namespace
}  // namespace opsmith

int main() {
  opsmith::test::Threads threads(3);
  for (const opsmith::Pool& pool : {opsmith::test::serial(), threads.pool()}) {
    opsmith::folds(pool);
    opsmith::pads(pool);
    opsmith::windows(pool);
    opsmith::indices(pool);
    opsmith::resizes(pool);
    opsmith::quantized(pool);
  }
  return opsmith::test::finish();
}
