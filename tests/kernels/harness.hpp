// What every kernel test shares: threads for a Pool, reproducible random numbers, and comparisons that print what
// differed. A test is one .cpp with a main() that ends in `return opsmith::test::finish();`; test_kernels.py compiles
// and runs it. Unlike the kernels, tests may use the C++ standard library.
#pragma once

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <atomic>
#include <thread>
#include <vector>

#include "base.hpp"

namespace opsmith::test {

inline int& failures() {
  static int count = 0;
  return count;
}

#define CHECK(condition)                                                        \
  do {                                                                          \
    if (!(condition)) {                                                         \
      ++opsmith::test::failures();                                              \
      printf("%s:%d: CHECK(%s) failed\n", __FILE__, __LINE__, #condition);      \
    }                                                                           \
  } while (0)

inline int finish() {
  if (failures()) printf("%d checks failed\n", failures());
  return failures() ? 1 : 0;
}

// Starts its threads anew for every parallel_for: slow, simple, and every index is a chance for a race to show.
struct Threads {
  int count;
  explicit Threads(int n) : count(n) {}
  Pool pool() { return Pool{&Threads::run, this, count}; }
  static void run(void* self, Pool::Task task, size_t total, void* user) {
    const int n = static_cast<Threads*>(self)->count;
    std::atomic<size_t> next{0};
    auto work = [&] {
      for (size_t i; (i = next++) < total;) task(user, i);
    };
    std::vector<std::thread> threads;
    for (int t = 1; t < n; ++t) threads.emplace_back(work);
    work();
    for (auto& t : threads) t.join();
  }
};

inline Pool serial() { return Pool{nullptr, nullptr, 1}; }

struct Random {
  uint64_t state;
  explicit Random(uint64_t seed = 1) : state(seed * 0x9E3779B97F4A7C15ull + 1) {}
  uint64_t bits() {  // xorshift64*
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 0x2545F4914F6CDD1Dull;
  }
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }  // [0, 1)
  float normal() { return static_cast<float>(::sqrt(-2 * ::log(1 - uniform())) * ::cos(6.283185307179586 * uniform())); }
  i64 below(i64 n) { return static_cast<i64>(bits() % static_cast<uint64_t>(n)); }
  std::vector<float> normals(i64 n, float scale = 1) {
    std::vector<float> v(static_cast<size_t>(n));
    for (auto& x : v) x = scale * normal();
    return v;
  }
};

// |got - want| <= atol + rtol * |want|, NaN equal to NaN, infinities equal to themselves.
inline bool close(double got, double want, double rtol, double atol) {
  if (isnan(want) || isnan(got)) return isnan(want) && isnan(got);
  if (isinf(want) || isinf(got)) return want == got;
  return ::fabs(got - want) <= atol + rtol * ::fabs(want);
}

template <class A, class B>
void expect_close(const char* what, const A* got, const B* want, i64 n, double rtol, double atol) {
  for (i64 i = 0; i < n; ++i) {
    const double g = static_cast<double>(got[i]), w = static_cast<double>(want[i]);
    if (close(g, w, rtol, atol)) continue;
    ++failures();
    printf("%s: element %lld of %lld is %.9g, want %.9g\n", what, static_cast<long long>(i), static_cast<long long>(n),
           g, w);
    return;  // one line per comparison is enough to find it
  }
}

}  // namespace opsmith::test
