// norm.hpp against its scalar reference: odd sizes, strides, residuals, half storage, means far from zero, epilogues.
#include "norm.hpp"

#include "harness.hpp"

namespace opsmith {

using test::expect_close;

struct Weights {
  double scale, bias;
};

template <class T>
static std::vector<T> stored(const std::vector<float>& v) {
  std::vector<T> out;
  for (float x : v) out.push_back(from_float<T>(x));
  return out;
}
template <class T>
static std::vector<float> widened(const std::vector<T>& v) {
  std::vector<float> out;
  for (auto x : v) out.push_back(to_float(x));
  return out;
}

template <class TX, class TS, class TY>
static void rows_case(const Pool& pool, i64 rows, i64 cols, bool rms, bool with_bias, float mean, double tolerance) {
  test::Random random(static_cast<uint64_t>(rows * 131 + cols));
  const i64 stride = cols + 3, y_stride = cols + 1;
  auto values = random.normals(rows * stride);
  for (auto& v : values) v += mean;
  const auto x = stored<TX>(values), skip = stored<TX>(random.normals(rows * stride));
  const auto scale = stored<TS>(random.normals(cols)), bias = stored<TS>(random.normals(cols));
  const TS* b = with_bias && !rms ? bias.data() : nullptr;
  const size_t size = static_cast<size_t>(rows * stride);
  std::vector<TY> y(static_cast<size_t>(rows * y_stride), from_float<TY>(7));
  const float eps = 1e-5f;
  auto ep = [](F v, Row row, i64 col, auto) { return v * 2.0f + static_cast<float>(row.outer + col % 2); };
  auto check = [&](const char* what, const std::vector<float>& in) {
    for (i64 r = 0; r < rows; ++r) {
      std::vector<float> want(static_cast<size_t>(cols));
      norm_reference(cols, in.data() + r * stride, want.data(), double(eps), rms, [](i64 i) { return i; },
                     [&](i64 i) {
                       const size_t c = static_cast<size_t>(i);
                       return Weights{to_float(scale[c]), b ? to_float(bias[c]) : 0.0f};
                     });
      for (i64 c = 0; c < cols; ++c) {  // the epilogue sees the first column of its vector
        auto& w = want[static_cast<size_t>(c)];
        w = w * 2 + static_cast<float>(r / 2 + (c / W * W) % 2);
      }
      const auto got = widened(std::vector<TY>(y.begin() + r * y_stride, y.begin() + r * y_stride + cols));
      expect_close(what, got.data(), want.data(), cols, tolerance, tolerance);
      CHECK(to_float(y[static_cast<size_t>(r * y_stride + cols)]) == 7.0f);
    }
  };
  if (rms)
    rms_norm(pool, rows, cols, x.data(), stride, scale.data(), eps, y.data(), y_stride, ep, 2);
  else
    layer_norm(pool, rows, cols, x.data(), stride, scale.data(), b, eps, y.data(), y_stride, ep, 2);
  check(rms ? "rms_norm" : "layer_norm", widened(x));

  std::vector<float> added(size), kept(size, 5.0f);
  for (size_t i = 0; i < size; ++i) added[i] = to_float(x[i]) + to_float(skip[i]);
  for (float* sum : {static_cast<float*>(nullptr), kept.data()}) {
    if (rms)
      skip_rms_norm(pool, rows, cols, x.data(), stride, skip.data(), stride, scale.data(), eps, y.data(), y_stride, sum,
                    stride, ep, 2);
    else
      skip_layer_norm(pool, rows, cols, x.data(), stride, skip.data(), stride, scale.data(), b, eps, y.data(), y_stride,
                      sum, stride, ep, 2);
    check(rms ? "skip_rms_norm" : "skip_layer_norm", added);
  }
  for (i64 r = 0; r < rows; ++r)
    for (i64 c = 0; c < stride; ++c) {
      const size_t i = static_cast<size_t>(r * stride + c);
      CHECK(kept[i] == (c < cols ? added[i] : 5.0f));
    }
}

template <class TX, class TY>
static void group_case(const Pool& pool, i64 batch, i64 pixels, i64 channels, i64 groups, float mean, double tolerance) {
  test::Random random(static_cast<uint64_t>(pixels * 7 + channels));
  const i64 n = batch * pixels * channels, width = channels / groups;
  const auto scale = random.normals(channels), bias = random.normals(channels);
  auto values = random.normals(n);
  for (i64 i = 0; i < n; ++i) values[static_cast<size_t>(i)] += mean * static_cast<float>(1 + i % 2 * 1e-3);
  const auto x = stored<TX>(values);
  const float eps = 1e-5f;
  std::vector<double> workspace(static_cast<size_t>(group_norm_workspace(batch, channels, groups)) / 8 + 1);
  auto ep = [](F v, Row row, i64, auto) { return silu(v) + static_cast<float>(row.outer); };
  char what[120];
  for (bool nchw : {false, true}) {
    std::vector<TY> y(static_cast<size_t>(n)), want(static_cast<size_t>(n));
    if (nchw)
      group_norm_nchw(pool, batch, pixels, channels, groups, x.data(), scale.data(), bias.data(), eps, y.data(),
                      workspace.data(), ep);
    else
      group_norm_nhwc(pool, batch, pixels, channels, groups, x.data(), pixels * channels, channels, scale.data(),
                      bias.data(), eps, y.data(), pixels * channels, channels, workspace.data(), ep);
    std::vector<float> reference(static_cast<size_t>(n));
    for (i64 b = 0; b < batch; ++b)
      for (i64 g = 0; g < groups; ++g) {
        auto channel = [&](i64 i) { return g * width + (nchw ? i / pixels : i % width); };
        auto index = [&](i64 i) {
          const i64 p = nchw ? i % pixels : i / width;
          return b * pixels * channels + (nchw ? channel(i) * pixels + p : p * channels + channel(i));
        };
        norm_reference(width * pixels, x.data(), reference.data(), double(eps), false, index, [&](i64 i) {
          return Weights{scale[static_cast<size_t>(channel(i))], bias[static_cast<size_t>(channel(i))]};
        });
      }
    for (i64 i = 0; i < n; ++i) {
      const double v = reference[static_cast<size_t>(i)];
      reference[static_cast<size_t>(i)] = static_cast<float>(v / (1 + ::exp(-v)) + double(i / (pixels * channels)));
    }
    snprintf(what, sizeof what, "group_norm_%s [%d, %d, %d] groups %d", nchw ? "nchw" : "nhwc", int(batch), int(pixels),
             int(channels), int(groups));
    expect_close(what, widened(y).data(), reference.data(), n, tolerance, tolerance);
  }
}

static void batch_norm_case(const Pool& pool, i64 batch, i64 pixels, i64 channels) {
  test::Random random(9);
  const i64 n = batch * pixels * channels;
  const auto x = random.normals(n), scale = random.normals(channels), bias = random.normals(channels);
  const auto mean = random.normals(channels);
  auto variance = random.normals(channels);
  for (auto& v : variance) v = v * v;
  for (bool nchw : {false, true}) {
    std::vector<float> y(x.size()), want(x.size());
    auto ep = [](F v, Row row, i64, auto) { return relu(v) + static_cast<float>(row.outer); };
    if (nchw)
      batch_norm_nchw(pool, batch, pixels, channels, x.data(), scale.data(), bias.data(), mean.data(), variance.data(),
                      1e-3f, y.data(), ep);
    else
      batch_norm_nhwc(pool, batch * pixels, channels, x.data(), channels, scale.data(), bias.data(), mean.data(),
                      variance.data(), 1e-3f, y.data(), channels, ep, pixels);
    for (i64 i = 0; i < n; ++i) {
      const size_t c = static_cast<size_t>(nchw ? i / pixels % channels : i % channels), k = static_cast<size_t>(i);
      const double v = (double(x[k]) - double(mean[c])) * double(scale[c]) / ::sqrt(double(variance[c]) + 1e-3) + double(bias[c]);
      want[k] = static_cast<float>((v > 0 ? v : 0) + double(i / (pixels * channels)));
    }
    expect_close(nchw ? "batch_norm_nchw" : "batch_norm_nhwc", y.data(), want.data(), n, 1e-5, 1e-5);
  }
}

static int run() {
  test::Threads threads(3);
  const Pool pool = threads.pool();
  for (i64 cols : {1, 3, 16, 31, 64, 77, 320, 1000})
    for (i64 rows : {1, 5, 130}) {
      rows_case<float, float, float>(pool, rows, cols, false, true, 0, 3e-5);
      rows_case<float, float, float>(pool, rows, cols, false, false, 0, 3e-5);
      rows_case<float, float, float>(pool, rows, cols, true, false, 0, 1e-5);
      rows_case<f16, f16, float>(pool, rows, cols, false, true, 0, 3e-5);
      rows_case<float, bf16, f16>(pool, rows, cols, true, false, 0, 4e-3);
    }
  rows_case<float, float, float>(pool, 3, 20000, false, true, 0, 3e-5);
  rows_case<float, float, float>(pool, 4, 512, false, true, 1000, 2e-3);  // x itself holds 6e-5 of a deviation
  rows_case<float, float, float>(pool, 0, 8, false, true, 0, 0);

  const i64 images[][4] = {{1, 1, 1, 1},  {2, 7, 6, 3},    {1, 64, 32, 32},  {2, 100, 40, 4},   {1, 1000, 33, 3},
                           {1, 63, 1100, 2}, {3, 17, 320, 32}, {1, 5000, 10, 5}, {1, 70000, 4, 2}};
  for (auto& s : images) {
    group_case<float, float>(pool, s[0], s[1], s[2], s[3], 0, 2e-5);
    group_case<f16, float>(test::serial(), s[0], s[1], s[2], s[3], 0, 2e-5);
    group_case<float, bf16>(test::serial(), s[0], s[1], s[2], s[3], 0, 1.2e-2);
  }
  group_case<float, float>(pool, 2, 1000, 32, 4, 300, 3e-3);
  group_case<float, float>(pool, 0, 10, 32, 4, 0, 0);

  {  // samples that mislead: the pixels that guess the mean are far from it, so the sums must be taken again
    const i64 pixels = 262144, channels = 2;
    test::Random random(11);
    auto x = random.normals(pixels * channels);
    for (i64 i = 0; i < 8; ++i)
      for (i64 c = 0; c < channels; ++c) x[static_cast<size_t>(pixels * i / 8 * channels + c)] = 3000.0f;
    std::vector<float> scale(channels, 1), bias(channels, 0), y(x.size()), want(x.size());
    std::vector<double> workspace(static_cast<size_t>(group_norm_workspace(1, channels, 1)) / 8 + 1);
    group_norm_nhwc(pool, 1, pixels, channels, 1, x.data(), 0, channels, scale.data(), bias.data(), 1e-5f, y.data(), 0,
                    channels, workspace.data());
    norm_reference(pixels * channels, x.data(), want.data(), 1e-5, false, [](i64 i) { return i; },
                   [](i64) { return Weights{1, 0}; });
    expect_close("misleading samples", y.data(), want.data(), pixels * channels, 2e-6, 1e-6);
  }

  {  // a slice of a wider tensor: pixel strides on both sides
    const i64 pixels = 50, channels = 12, xs = 20, ys = 15;
    test::Random random(12);
    const auto x = random.normals(pixels * xs), scale = random.normals(channels), bias = random.normals(channels);
    std::vector<float> y(static_cast<size_t>(pixels * ys), 9.0f), packed, want(static_cast<size_t>(pixels * channels));
    for (i64 p = 0; p < pixels; ++p) packed.insert(packed.end(), x.begin() + p * xs, x.begin() + p * xs + channels);
    std::vector<double> workspace(static_cast<size_t>(group_norm_workspace(1, channels, 3)) / 8 + 1);
    group_norm_nhwc(pool, 1, pixels, channels, 3, x.data(), 0, xs, scale.data(), bias.data(), 1e-6f, y.data(), 0, ys,
                    workspace.data());
    group_norm_nhwc(test::serial(), 1, pixels, channels, 3, packed.data(), 0, channels, scale.data(), bias.data(), 1e-6f,
                    want.data(), 0, channels, workspace.data());
    for (i64 p = 0; p < pixels; ++p) {
      expect_close("strided pixels", y.data() + p * ys, want.data() + p * channels, channels, 0, 0);
      CHECK(y[static_cast<size_t>(p * ys + channels)] == 9.0f);
    }
  }
  {  // NaN stays within its group
    std::vector<float> x(64, 1.0f), scale(4, 1), bias(4, 0), y(64);
    x[5] = kNaN;
    std::vector<double> workspace(static_cast<size_t>(group_norm_workspace(1, 4, 2)) / 8 + 1);
    group_norm_nchw(pool, 1, 16, 4, 2, x.data(), scale.data(), bias.data(), 1e-5f, y.data(), workspace.data());
    CHECK(isnan(y[0]) && isnan(y[31]) && y[32] == 0.0f && y[63] == 0.0f);
  }
  batch_norm_case(pool, 3, 37, 5);
  batch_norm_case(pool, 2, 5, 1100);
  return test::finish();
}

}  // namespace opsmith

int main() { return opsmith::run(); }
