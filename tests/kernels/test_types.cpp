// types.hpp and the half-precision part of base.hpp: every f16 and bf16 value, ties, and integers that do not fit.
#include "types.hpp"

#include <cmath>

#include "harness.hpp"
#include "math.hpp"

namespace opsmith {

// The f16 nearest to x, ties to the even bit pattern, by search over all finite ones.
static uint16_t nearest_half(double x, const std::vector<double>& positive) {
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  x = std::fabs(x);
  if (x >= 65520) return static_cast<uint16_t>(sign | 0x7c00);  // the border to infinity: 65504 + half a step
  size_t low = 0, high = positive.size() - 1;
  while (low < high) {
    const size_t middle = (low + high + 1) / 2;
    (positive[middle] <= x ? low : high) = positive[middle] <= x ? middle : middle - 1;
  }
  if (low + 1 < positive.size()) {
    const double below = x - positive[low], above = positive[low + 1] - x;
    if (above < below || (above == below && low % 2)) ++low;
  }
  return static_cast<uint16_t>(sign | low);
}

template <class T>
static void round_trips() {
  for (uint32_t b = 0; b < 0x10000; b += W) {
    T in[W], out[W];
    for (i64 i = 0; i < W; ++i) in[i].bits = static_cast<uint16_t>(b + static_cast<uint32_t>(i));
    const F v = load(in, Full{});
    store(out, v, Full{});
    for (i64 i = 0; i < W; ++i) {
      const float x = to_float(in[i]);
      if (std::isnan(x)) {
        CHECK(std::isnan(v[i]) && std::isnan(to_float(out[i])) && std::isnan(to_float(from_float<T>(x))));
      } else {
        CHECK(v[i] == x && out[i].bits == in[i].bits && from_float<T>(x).bits == in[i].bits);
      }
    }
  }
  for (i64 count = 1; count < W; ++count) {  // tails touch nothing beyond: the heap checks that under ASan
    std::vector<T> in(static_cast<size_t>(count), from_float<T>(1.5f)), out(static_cast<size_t>(count));
    const F v = load(in.data(), Tail{count});
    for (i64 i = 0; i < W; ++i) CHECK(v[i] == (i < count ? 1.5f : 0.0f));
    store(out.data(), v, Tail{count});
    for (auto x : out) CHECK(to_float(x) == 1.5f);
  }
}

static int run() {
  round_trips<f16>();
  round_trips<bf16>();
  std::vector<double> halves;
  for (uint16_t b = 0; b < 0x7c00; ++b) halves.push_back(to_float(f16{b}));
  test::Random random(3);
  for (int n = 0; n < 20000; ++n) {
    float x[W];
    for (i64 i = 0; i < W; ++i) {
      const double h = halves[static_cast<size_t>(random.below(static_cast<i64>(halves.size()) - 1))];
      const double step = halves[static_cast<size_t>(random.below(static_cast<i64>(halves.size()) - 1))];
      x[i] = n % 3 == 0 ? static_cast<float>(h + step * 1e-3) : static_cast<float>(std::exp(random.normal() * 8));
      if (n % 3 == 1) {  // exactly between two neighbours
        const size_t k = static_cast<size_t>(random.below(static_cast<i64>(halves.size()) - 1));
        x[i] = static_cast<float>((halves[k] + halves[k + 1]) / 2);
      }
      if (random.below(2)) x[i] = -x[i];
    }
    f16 y[W];
    store(y, load(x, Full{}), Full{});
    for (i64 i = 0; i < W; ++i) {
      const uint16_t want = nearest_half(x[i], halves);
      if (y[i].bits != want) printf("f16 of %.9g is %04x, want %04x\n", x[i], y[i].bits, want);
      CHECK(y[i].bits == want && from_float<f16>(x[i]).bits == want);
    }
    bf16 z[W];
    store(z, load(x, Full{}), Full{});
    for (i64 i = 0; i < W; ++i) CHECK(z[i].bits == from_float<bf16>(x[i]).bits);
  }
  CHECK(from_float<bf16>(1.00390625f).bits == 0x3f80);  // 1 + 2^-8, halfway: to even
  CHECK(from_float<bf16>(1.01171875f).bits == 0x3f82);  // 1 + 3 * 2^-8, halfway: to even, upwards
  CHECK(from_float<bf16>(3.4028235e38f).bits == 0x7f80);

  CHECK(from_float<int8_t>(1e9f) == 127 && from_float<int8_t>(-1e9f) == -128 && from_float<int8_t>(-3.9f) == -3);
  CHECK(from_float<uint8_t>(-1.0f) == 0 && from_float<uint8_t>(255.9f) == 255 && from_float<uint8_t>(256.0f) == 255);
  CHECK(from_float<int64_t>(9.3e18f) == (own_conversion<int64_t> ? INT64_MIN : INT64_MAX));
  CHECK(from_float<int64_t>(-9.3e18f) == INT64_MIN);
  CHECK(from_float<uint64_t>(1.9e19f) == UINT64_MAX && from_float<int32_t>(2147483648.0f) == (own_conversion<int32_t> ? INT32_MIN : INT32_MAX));
  CHECK(from_float<int32_t>(kNaN) == (own_conversion<int32_t> ? lowest_of<int32_t> : 0) && from_float<uint16_t>(kNaN) == 0);
  CHECK(from_float<bool>(0.5f) && !from_float<bool>(-0.0f) && from_float<bool>(kNaN));
  int64_t longs[W];
  int8_t bytes[W];
  for (i64 i = 0; i < W; ++i) longs[i] = 3 - i, bytes[i] = static_cast<int8_t>(3 - i);
  const F a = load(longs, Full{}), b = load(bytes, Full{}), c = load(longs, Tail{W - 1});
  for (i64 i = 0; i < W; ++i) CHECK(a[i] == static_cast<float>(3 - i) && b[i] == a[i]);
  CHECK(c[W - 1] == 0.0f && (W == 1 || c[0] == 3.0f));
  return test::finish();
}

}  // namespace opsmith

int main() { return opsmith::run(); }
