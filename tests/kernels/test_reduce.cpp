// reduce.hpp against its scalar reference, and integers, NaN, empty axes and ties against what numpy gives.
#include "reduce.hpp"

#include "harness.hpp"

namespace opsmith {

using test::expect_close;

template <class Op, class T>
static void check(const char* name, const Pool& pool, i64 outer, i64 axis, i64 inner, double tolerance) {
  test::Random random(static_cast<uint64_t>(outer * 7919 + axis * 31 + inner));
  std::vector<T> x(static_cast<size_t>(outer * axis * inner));
  const bool product = __is_same(Op, op::Prod), positive = __is_same(Op, op::LogSum);
  for (auto& v : x) {
    float f = random.normal();
    if (product) f = 1 + f * 0.5f / static_cast<float>(axis);
    v = from_float<T>(positive ? f * f : f);
  }
  std::vector<float> y(static_cast<size_t>(outer * inner)), want(y.size());
  reduce<Op>(pool, outer, axis, inner, x.data(), y.data());
  reduce_reference<Op>(outer, axis, inner, x.data(), want.data());
  char what[100];
  snprintf(what, sizeof what, "%s [%d, %d, %d]", name, int(outer), int(axis), int(inner));
  // a sum's error is that of its largest partial sums, about the square root of their number
  expect_close(what, y.data(), want.data(), outer * inner, tolerance,
               tolerance * ::sqrt(static_cast<double>(axis) + 1));
}

template <class T>
static void check_all(const Pool& pool, i64 outer, i64 axis, i64 inner) {
  check<op::Sum, T>("sum", pool, outer, axis, inner, 2e-6);
  check<op::Mean, T>("mean", pool, outer, axis, inner, 2e-6);
  check<op::SumSquare, T>("sum_square", pool, outer, axis, inner, 2e-6);
  check<op::L1, T>("l1", pool, outer, axis, inner, 2e-6);
  check<op::L2, T>("l2", pool, outer, axis, inner, 2e-6);
  check<op::LogSum, T>("log_sum", pool, outer, axis, inner, 2e-6);
  check<op::LogSumExp, T>("log_sum_exp", pool, outer, axis, inner, 2e-6);
  check<op::Prod, T>("prod", pool, outer, axis, inner, 1e-5);
  check<op::Max, T>("max", pool, outer, axis, inner, 0);
  check<op::Min, T>("min", pool, outer, axis, inner, 0);
}

template <class T>
static void check_arg(const Pool& pool, i64 outer, i64 axis, i64 inner) {
  test::Random random(static_cast<uint64_t>(axis));
  std::vector<T> x(static_cast<size_t>(outer * axis * inner));
  for (auto& v : x) v = from_float<T>(static_cast<float>(random.below(7)));  // many ties
  std::vector<int64_t> y(static_cast<size_t>(outer * inner));
  for (bool largest : {true, false})
    for (bool last : {false, true}) {
      if (largest)
        argmax(pool, outer, axis, inner, x.data(), y.data(), last);
      else
        argmin(pool, outer, axis, inner, x.data(), y.data(), last);
      for (i64 o = 0; o < outer; ++o)
        for (i64 i = 0; i < inner; ++i) {
          auto at = [&](i64 a) { return to_float(x[static_cast<size_t>((o * axis + a) * inner + i)]); };
          i64 want = 0;
          for (i64 a = 1; a < axis; ++a) {
            const float v = largest ? at(a) : -at(a), best = largest ? at(want) : -at(want);
            if (v > best || (last && v == best)) want = a;
          }
          CHECK(y[static_cast<size_t>(o * inner + i)] == want);
        }
    }
}

static int run() {
  test::Threads threads(3);
  const Pool pool = threads.pool();
  const i64 sizes[][3] = {{1, 1, 1}, {3, 7, 1}, {5, 16, 1}, {2, 65, 1}, {9, 1000, 1}, {2, 5001, 1}, {2, 3, 5},
                          {3, 17, 16}, {2, 600, 37}, {40, 300, 64}, {0, 4, 1}, {2, 0, 3}, {3, 0, 1}, {2, 3, 0}};
  for (auto& s : sizes) {
    check_all<float>(pool, s[0], s[1], s[2]);
    check_all<f16>(test::serial(), s[0], s[1], s[2]);
    check<op::Mean, bf16>("mean of bf16", test::serial(), s[0], s[1], s[2], 2e-6);
    if (s[1] > 0) {
      check_arg<float>(pool, s[0], s[1], s[2]);
      check_arg<f16>(pool, s[0], s[1], s[2]);
      check_arg<int64_t>(pool, s[0], s[1], s[2]);
      check_arg<uint8_t>(pool, s[0], s[1], s[2]);
    }
  }
  check_all<float>(pool, 1, 300001, 1);  // one run, many threads

  {  // integers: exact, wrapping, signs
    const int32_t x[6] = {-7, 2, 3, 2147483647, 1, 5};
    int32_t y[3];
    reduce<op::Sum>(pool, 2, 3, 1, x, y);
    CHECK(y[0] == -2 && y[1] == INT32_MIN + 5);
    reduce<op::Max>(pool, 2, 3, 1, x, y);
    CHECK(y[0] == 3 && y[1] == INT32_MAX);
    reduce<op::Min>(pool, 1, 2, 3, x, y);
    CHECK(y[0] == -7 && y[1] == 1 && y[2] == 3);
    reduce<op::Prod>(pool, 2, 3, 1, x, y);
    CHECK(y[0] == -42);
    reduce<op::L1>(pool, 2, 3, 1, x, y);
    CHECK(y[0] == 12);
    reduce<op::SumSquare>(pool, 2, 3, 1, x, y);
    CHECK(y[0] == 62);
    reduce<op::L2>(pool, 2, 3, 1, x, y);
    CHECK(y[0] == 7);
    const int64_t z[4] = {INT64_MAX, -5, 4, 6};
    int64_t w[2];
    reduce<op::Mean>(pool, 2, 2, 1, z, w);
    CHECK(w[0] == (INT64_MAX - 5) / 2 && w[1] == 5);
    const uint8_t u[3] = {200, 100, 3};
    uint8_t v;
    reduce<op::Max>(pool, 1, 3, 1, u, &v);
    CHECK(v == 200);
    reduce<op::Sum>(pool, 1, 3, 1, u, &v);
    CHECK(v == 303 - 256);
    const double d[3] = {1, 1e-12, -1};
    double e;
    reduce<op::Sum>(pool, 1, 3, 1, d, &e);
    CHECK(e != 0 && ::fabs(e - 1e-12) < 1e-15);
  }
  {  // NaN, infinities, nothing
    std::vector<float> x(40, 1.0f);
    float y;
    x[17] = kNaN;
    reduce<op::Max>(pool, 1, 40, 1, x.data(), &y);
    CHECK(isnan(y));
    reduce<op::LogSumExp>(pool, 1, 40, 1, x.data(), &y);
    CHECK(isnan(y));
    int64_t at;
    argmin(pool, 1, 40, 1, x.data(), &at);
    CHECK(at == 0);  // as in ONNX Runtime: NaN beats nothing
    x[0] = kNaN;
    argmin(pool, 1, 40, 1, x.data(), &at);
    CHECK(at == 0);  // nor does anything beat a NaN that comes first
    x[0] = 1.0f;
    std::vector<int64_t> ats(8);
    argmax(pool, 1, 5, 8, x.data(), ats.data());
    CHECK(ats[1] == 0 && ats[0] == 0);
    x[17] = kInfinity;
    reduce<op::LogSumExp>(pool, 1, 40, 1, x.data(), &y);
    CHECK(y == kInfinity);
    x.assign(40, -kInfinity);
    reduce<op::LogSumExp>(pool, 1, 40, 1, x.data(), &y);
    CHECK(y == -kInfinity);
    x.assign(40, 1000.0f);
    reduce<op::LogSumExp>(pool, 1, 40, 1, x.data(), &y);
    CHECK(test::close(y, 1000 + ::log(40.0), 1e-6, 0));
    reduce<op::Max>(pool, 1, 0, 1, x.data(), &y);
    CHECK(y == -kInfinity);
    reduce<op::Mean>(pool, 1, 0, 1, x.data(), &y);
    CHECK(isnan(y));
  }
  return test::finish();
}

}  // namespace opsmith

int main() { return opsmith::run(); }
