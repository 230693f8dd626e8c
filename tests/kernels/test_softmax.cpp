// softmax.hpp against its scalar reference: odd sizes, long rows, strides, axes, half storage, infinities.
#include "softmax.hpp"

#include "harness.hpp"

namespace opsmith {

using test::expect_close;

template <class T>
static std::vector<double> widened(const std::vector<T>& v) {
  std::vector<double> out;
  for (auto x : v) out.push_back(static_cast<double>(to_float(x)));
  return out;
}

template <class TX, class TY>
static void along_axis(const Pool& pool, i64 outer, i64 axis, i64 inner, bool logarithm, double tolerance) {
  test::Random random(static_cast<uint64_t>(outer * 1000003 + axis * 101 + inner));
  const size_t n = static_cast<size_t>(outer * axis * inner);
  std::vector<TX> x(n);
  for (auto& v : x) v = from_float<TX>(6 * random.normal());
  std::vector<TY> y(n), want(n);
  if (logarithm)
    log_softmax(pool, outer, axis, inner, x.data(), y.data());
  else
    softmax(pool, outer, axis, inner, x.data(), y.data());
  softmax_reference(outer, axis, inner, x.data(), want.data(), logarithm);
  const auto a = widened(y), b = widened(want);
  char what[80];
  snprintf(what, sizeof what, "%ssoftmax [%d, %d, %d]", logarithm ? "log_" : "", int(outer), int(axis), int(inner));
  expect_close(what, a.data(), b.data(), static_cast<i64>(n), tolerance, tolerance);
}

static int run() {
  test::Threads threads(3);
  const Pool pool = threads.pool();
  for (bool logarithm : {false, true}) {
    const i64 sizes[][3] = {{1, 1, 1}, {3, 7, 1}, {5, 16, 1}, {2, 33, 1}, {4, 77, 1}, {300, 128, 1}, {2, 1000, 1},
                            {1, 16385, 1}, {2, 20011, 1}, {2, 5, 3}, {3, 17, 31}, {2, 9, 16}, {1, 2500, 5},
                            {1, 3, 4097}, {0, 4, 1}, {2, 0, 3}, {2, 3, 0}};
    for (auto& s : sizes) {
      along_axis<float, float>(pool, s[0], s[1], s[2], logarithm, 4e-6);
      along_axis<f16, float>(test::serial(), s[0], s[1], s[2], logarithm, 4e-6);
      along_axis<float, f16>(test::serial(), s[0], s[1], s[2], logarithm, 1e-3);
      along_axis<bf16, bf16>(test::serial(), s[0], s[1], s[2], logarithm, 8e-3);
    }
  }

  // rows with strides, nothing written between them, in place
  test::Random random(5);
  auto x = random.normals(7 * 40);
  auto y = x;
  softmax(pool, 7, 37, y.data(), 40, y.data(), 40);
  for (i64 r = 0; r < 7; ++r) {
    float want[37];
    softmax_reference(1, 37, 1, x.data() + r * 40, want, false);
    expect_close("strided row", y.data() + r * 40, want, 37, 2e-6, 1e-7);
    for (i64 c = 37; c < 40; ++c) CHECK(y[static_cast<size_t>(r * 40 + c)] == x[static_cast<size_t>(r * 40 + c)]);
  }

  // masked elements are exactly 0; rows of -inf, +inf or NaN are NaN, long ones too
  for (i64 cols : {19, 20001}) {
    std::vector<float> in(static_cast<size_t>(cols), -kInfinity), out(in.size());
    in[11] = 3;
    softmax(pool, 1, cols, in.data(), cols, out.data(), cols);
    CHECK(out[11] == 1.0f && out[0] == 0.0f && out.back() == 0.0f);
    for (float bad : {-kInfinity, kInfinity, kNaN}) {
      in[11] = bad;
      softmax(pool, 1, cols, in.data(), cols, out.data(), cols);
      CHECK(isnan(out[0]) || bad == kInfinity);
      CHECK(isnan(out[11]));
    }
    in.assign(in.size(), 1e30f);  // far beyond the range of exp
    softmax(pool, 1, cols, in.data(), cols, out.data(), cols);
    CHECK(test::close(out[3], 1.0 / static_cast<double>(cols), 1e-5, 0));
  }
  return test::finish();
}

}  // namespace opsmith

int main() { return opsmith::run(); }
