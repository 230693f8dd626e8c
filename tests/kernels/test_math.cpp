// math.hpp against double precision: the errors that its table states, over all float magnitudes and special values.
#include "math.hpp"

#include <cmath>

#include "harness.hpp"

namespace opsmith {  // inside, so that exp(float) is ours and not libm's

using test::failures;

static constexpr float kLowestNormalExp = -87.33654f;
#if (defined(__FMA__) || defined(__aarch64__)) && !defined(__SANITIZE_ADDRESS__)  // instrumented code is not contracted
static constexpr double kRational = 5;
#else
static constexpr double kRational = 7;
#endif

static const float kSpecial[] = {0.0f, -0.0f, 1.0f, -1.0f, 0.5f, -0.5f, 1.5f, -1.5f, 2.0f, -2.0f, 2.5f, -2.5f, 3.0f,
    -3.0f, 1e-45f, -1e-45f, 1e-40f, -1e-40f, 1.17549435e-38f, -1.17549435e-38f, 1e-38f, 3.4028235e38f, -3.4028235e38f,
    88.0f, 88.72283f, 88.72284f, 88.8f, -87.0f, -87.33654f, -87.33655f, -87.4f, -103.9f, -103.97f, -103.98f, -104.1f,
    8192.0f, 8192.5f, 8388607.5f, 8388608.0f, 16777215.0f, 16777216.0f, 1e10f, -1e10f, 3.1415927f, 1.5707964f,
    0.99999994f, 1.0000001f, 3.92f, 3.94f, 9.0f, 9.1f, kInfinity, -kInfinity, kNaN};

static double ulp(double x) {
  x = std::fabs(x);
  if (!(x < 3.5e38)) x = 3.4e38;
  const int e = x < 0x1p-126 ? -126 : std::ilogb(x);
  return std::ldexp(1.0, e - 23);
}

// What one stated bound means: |got - want| <= ulps * ulp(want) + absolute + per_x * |x|.
struct Bound {
  double ulps, absolute = 0, per_x = 0;
};

struct Worst {
  double share = 0;
  float x = 0, y = 0;
};

static bool check_one(const char* name, float x, float y, float got, double want, Bound bound, Worst& worst) {
  const float want_float = static_cast<float>(want);
  if (std::isnan(want)) {
    if (std::isnan(got)) return true;
  } else if (std::isinf(want_float) || std::isinf(got)) {
    if (got == want_float) return true;
    // within the bound of the overflow border both are right
    if (std::fabs(want) > 3.40282e38 && std::fabs(got) > 3.40282e38 && (got > 0) == (want > 0)) return true;
  } else {
    const double limit = bound.ulps * ulp(want) + bound.absolute + (bound.per_x > 0 ? bound.per_x * std::fabs(x) : 0);
    const double error = std::fabs(got - want);
    if (error / limit > worst.share) worst = {error / limit, x, y};
    if (error <= limit) return true;
  }
  printf("%s(%.9g, %.9g) = %.9g, want %.9g\n", name, x, y, got, want);
  ++failures();
  return false;
}

// f: V -> V for V = float and F; reference: double -> double; x over [low, high] in steps of the bit pattern.
template <class Fn, class Ref>
static void sweep(const char* name, Fn f, Ref reference, Bound bound, float low = -kInfinity, float high = kInfinity) {
  std::vector<float> xs;
  for (float s : kSpecial)
    if (!(s < low) && !(s > high)) xs.push_back(s);
#ifdef __SANITIZE_ADDRESS__
  const uint64_t stride = 39119;
#else
  const uint64_t stride = 4999;
#endif
  for (uint64_t b = 0; b < (1ull << 32); b += stride) {
    const float x = __builtin_bit_cast(float, static_cast<uint32_t>(b));
    if (x >= low && x <= high) xs.push_back(x);
  }
  for (double x = -12; x < 12; x += 24.0 / 200000)  // dense where the functions bend
    if (x >= low && x <= high) xs.push_back(static_cast<float>(x));
  while (xs.size() % W) xs.push_back(0.25f);
  Worst worst;
  const int before = failures();
  for (size_t i = 0; i < xs.size() && failures() < before + 5; i += W) {
    const F x = load(&xs[i], Full{});
    const F y = f(x);
    for (i64 l = 0; l < W; ++l) {
      const double want = reference(static_cast<double>(x[l]));
      check_one(name, x[l], 0, y[l], want, bound, worst);
      if (i % (8 * W) == 0) check_one(name, x[l], 0, f(float(x[l])), want, bound, worst);
    }
  }
  printf("%-16s worst error is %5.2f of the stated bound, at x = %.9g\n", name, worst.share, worst.x);
}

template <class Fn, class Ref>
static void sweep2(const char* name, Fn f, Ref reference, Bound bound) {
  test::Random random(7);
  std::vector<float> xs, ys;
  for (float a : kSpecial)
    for (float b : kSpecial) xs.push_back(a), ys.push_back(b);
  for (int i = 0; i < 200000; ++i) {
    xs.push_back(std::exp(8 * random.normal()) * (i % 5 == 0 ? -1.0f : 1.0f));
    ys.push_back(i % 3 == 0 ? static_cast<float>(random.below(41) - 20) : 6 * random.normal());
  }
  while (xs.size() % W) xs.push_back(2), ys.push_back(3);
  Worst worst;
  const int before = failures();
  for (size_t i = 0; i < xs.size() && failures() < before + 5; i += W) {
    const F x = load(&xs[i], Full{}), y = load(&ys[i], Full{});
    const F z = f(x, y);
    for (i64 l = 0; l < W; ++l) {
      const double want = reference(x[l], y[l]);
      check_one(name, x[l], y[l], z[l], want, bound, worst);
      check_one(name, x[l], y[l], f(float(x[l]), float(y[l])), want, bound, worst);
    }
  }
  printf("%-16s worst error is %5.2f of the stated bound, at (%.9g, %.9g)\n", name, worst.share, worst.x, worst.y);
}

static double sigmoid_d(double x) { return 1 / (1 + std::exp(-x)); }

#define FN(expression) [](auto x) { return expression; }
#define REF(expression) [](double x) -> double { return expression; }

static int run() {
  sweep("exp", FN(exp(x)), REF(std::exp(x)), {2});
  sweep("exp_negative", FN(exp_negative(x)), REF(x < kLowestNormalExp ? 0 : std::exp(x)), {2}, -kInfinity, 0.0f);
  sweep("exp2_small", FN(exp2_small(x)), REF(x < -126 ? 0 : std::exp2(x)), {3, 1.2e-38}, -kInfinity, 100.0f);
  sweep("expm1", FN(expm1(x)), REF(std::expm1(x)), {2});
  sweep("log", FN(log(x)), REF(std::log(x)), {2});
  sweep("log1p", FN(log1p(x)), REF(std::log1p(x)), {3});
  sweep("erf", FN(erf(x)), REF(std::erf(x)), {kRational});
  sweep("tanh", FN(tanh(x)), REF(std::tanh(x)), {kRational});
  sweep("sigmoid", FN(sigmoid(x)), REF(sigmoid_d(x)), {4, 1e-38});
  sweep("silu", FN(silu(x)), REF(x * sigmoid_d(x)), {6, 2e-36});
  sweep("quick_gelu", FN(quick_gelu(x)), REF(x * sigmoid_d(1.702f * static_cast<float>(x))), {6, 2e-36});
  sweep("mish", FN(mish(x)), REF(x * std::tanh(std::log1p(std::exp(x)))), {6, 2e-36});
  sweep("gelu", FN(gelu(x)), REF(0.5 * x * (1 + std::erf(x * std::sqrt(0.5)))), {1, 0, 4e-7});
  sweep("gelu_tanh", FN(gelu_tanh(x)),
        REF(0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)))), {1, 0, 4e-7});
  sweep("softplus", FN(softplus(x)), REF((x > 0 ? x : 0) + std::log1p(std::exp(-std::fabs(x)))), {4, 0, 0});
  sweep("sin", FN(sin(x)), REF(std::sin(x)), {0, 2e-7});
  sweep("cos", FN(cos(x)), REF(std::cos(x)), {0, 2e-7});
  sweep("sin ulp", FN(sin(x)), REF(std::sin(x)), {2}, -1.5f, 1.5f);
  sweep("sqrt", FN(sqrt(x)), REF(std::sqrt(x)), {0.5001});
  sweep("rsqrt", FN(rsqrt(x)), REF(1 / std::sqrt(x)), {1.5});
  sweep("reciprocal", FN(reciprocal(x)), REF(1 / x), {0.5001});
  sweep("floor", FN(floor(x)), REF(std::floor(x)), {1e-9});
  sweep("ceil", FN(ceil(x)), REF(std::ceil(x)), {1e-9});
  sweep("trunc", FN(trunc(x)), REF(std::trunc(x)), {1e-9});
  sweep("round", FN(round(x)), REF(std::nearbyint(x)), {1e-9});
  sweep("abs", FN(abs(x)), REF(std::fabs(x)), {1e-9});
  sweep("sign", FN(sign(x)), REF(x > 0 ? 1 : x < 0 ? -1 : x), {1e-9});
  sweep("relu", FN(relu(x)), REF(x < 0 ? 0 : x), {1e-9});
  sweep("leaky_relu", FN(leaky_relu(x, 0.1f)), REF(x < 0 ? double(0.1f) * x : x), {1});
  sweep("elu", FN(elu(x, 0.7f)), REF(x < 0 ? double(0.7f) * std::expm1(x) : x), {3});
  sweep("selu", FN(selu(x)), REF(double(1.05070102f) * (x < 0 ? double(1.67326319f) * std::expm1(x) : x)), {4});
  sweep("celu", FN(celu(x, 1.3f)), REF(x < 0 ? double(1.3f) * std::expm1(x / double(1.3f)) : x), {4});
  sweep("hardsigmoid", FN(hardsigmoid(x)), REF(std::isnan(x) ? x : std::fmin(1, std::fmax(0, 0.2f * x + 0.5))),
        {1, 1e-7});
  sweep("hardswish", FN(hardswish(x)), REF(x * (std::isnan(x) ? x : std::fmin(1, std::fmax(0, x / 6 + 0.5)))),
        {3, 0, 1e-7});
  sweep("softsign", FN(softsign(x)), REF(std::isinf(x) ? NAN : x / (1 + std::fabs(x))), {2});
  sweep("atan", FN(atan(x)), REF(std::atan(x)), {2});
  sweep2("pow", [](auto x, auto y) { return pow(x, y); }, [](double x, double y) { return std::pow(x, y); }, {1});
  sweep2("max", [](auto x, auto y) { return max(x, y); },
         [](double x, double y) { return x != x || y != y ? NAN : x > y ? x : y; }, {1e-9});
  sweep2("min", [](auto x, auto y) { return min(x, y); },
         [](double x, double y) { return x != x || y != y ? NAN : x < y ? x : y; }, {1e-9});
  sweep2("fmod", [](auto x, auto y) { return fmod(x, y); }, [](double x, double y) { return std::fmod(x, y); }, {1e-9});

  // signs of zero, and saturation that downstream code relies on
  CHECK(std::signbit(sin(-0.0f)) && std::signbit(erf(-0.0f)) && std::signbit(tanh(-0.0f)) && std::signbit(expm1(-0.0f)));
  CHECK(std::signbit(ceil(-0.25f)) && std::signbit(round(-0.25f)) && std::signbit(log1p(-0.0f)));
  CHECK(erf(4.0f) == 1.0f && erf(-4.0f) == -1.0f && tanh(20.0f) == 1.0f && tanh(-20.0f) == -1.0f);
  CHECK(exp_negative(-kInfinity) == 0.0f && exp(0.0f) == 1.0f && exp_negative(0.0f) == 1.0f);
  CHECK(mod(-5.0f, 3.0f) == 1.0f && mod(5.0f, -3.0f) == -1.0f && mod(6.0f, 3.0f) == 0.0f);
  float lanes[W];
  float total = 0;
  for (i64 i = 0; i < W; ++i) total += lanes[i] = static_cast<float>((i * 5) % W);
  const F v = load(lanes, Full{});
  CHECK(lane_sum(v) == total && lane_max(v) == static_cast<float>(W - 1) && lane_min(v) == 0.0f);
  CHECK(any(v == static_cast<float>(W - 1)) && !any(v == static_cast<float>(W)));
  CHECK(exp2_small(0.0f) == 1.0f && exp2_small(-kInfinity) == 0.0f && exp2_small(-1.0f) == 0.5f);
  F square[W];
  for (i64 i = 0; i < W; ++i)
    for (i64 j = 0; j < W; ++j) square[i][j] = static_cast<float>(i * W + j);
  transpose(square);
  for (i64 i = 0; i < W; ++i)
    for (i64 j = 0; j < W; ++j) CHECK(square[i][j] == static_cast<float>(j * W + i));
  return test::finish();
}

}  // namespace opsmith

int main() { return opsmith::run(); }
