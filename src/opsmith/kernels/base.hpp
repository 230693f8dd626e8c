// The ground of the kernel library: vectors, lanes, threads. Header-only C++20 on GCC/Clang vector extensions;
// no exceptions, no RTTI, nothing from libstdc++ at link time.
//
// Vec<T>     W lanes of T, W chosen so that a float vector fills the widest register of the target.
// Full/Tail  how many lanes of a load or store are valid: all of them, or the first n at the end of a row.
// Pool       where parallel work goes: ONNX Runtime's own thread pool in a session, anything in a test.
#pragma once

#include <stdint.h>
#include <string.h>

namespace opsmith {

using i64 = int64_t;

#if defined(__AVX512F__)
inline constexpr i64 W = 16;
#elif defined(__AVX__)
inline constexpr i64 W = 8;
#else
inline constexpr i64 W = 4;
#endif

template <class T, i64 N = W>
using Vec [[gnu::vector_size(N * sizeof(T))]] = T;

using F = Vec<float>;
using I = Vec<int32_t>;

#define OPSMITH_INLINE [[gnu::always_inline]] inline

struct Full {
  static constexpr i64 count = W;
};
struct Tail {
  i64 count;  // 1 .. W-1
};

template <class T>
OPSMITH_INLINE Vec<T> splat(T x) {
  return x - Vec<T>{};
}

OPSMITH_INLINE F load(const float* p, Full) {
  F v;
  memcpy(&v, p, sizeof v);
  return v;
}
OPSMITH_INLINE F load(const float* p, Tail t) {
  F v{};
  for (i64 i = 0; i < t.count; ++i) v[i] = p[i];
  return v;
}
OPSMITH_INLINE void store(float* p, F v, Full) { memcpy(p, &v, sizeof v); }
OPSMITH_INLINE void store(float* p, F v, Tail t) {
  for (i64 i = 0; i < t.count; ++i) p[i] = v[i];
}

// One row of an output as an epilogue sees it: its index among all rows, and the index of the outer thing
// (batch item, image) that it belongs to, so that per-image operands cost no division.
struct Row {
  i64 index;
  i64 outer;
};

struct Pool {
  using Task = void (*)(void* user, size_t index);
  void (*run)(void* self, Task task, size_t total, void* user);
  void* self;
  int threads;  // a hint for how finely to cut the work

  // f(i64 index) for index in [0, total), in any order, possibly at the same time.
  template <class Fn>
  void parallel_for(i64 total, Fn&& f) const {
    if (total <= 0) return;
    if (total == 1 || threads <= 1) {
      for (i64 i = 0; i < total; ++i) f(i);
      return;
    }
    run(
        self, [](void* user, size_t i) { (*static_cast<__typeof__(&f)>(user))(static_cast<i64>(i)); },
        static_cast<size_t>(total), (void*)&f);
  }
};

inline constexpr i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }
inline constexpr i64 round_up(i64 a, i64 b) { return ceil_div(a, b) * b; }
template <class T>
OPSMITH_INLINE constexpr T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
OPSMITH_INLINE constexpr T max(T a, T b) {
  return a < b ? b : a;
}

}  // namespace opsmith
