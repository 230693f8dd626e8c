// The ground of the kernel library: vectors, lanes, threads. Header-only C++20 on GCC/Clang vector extensions;
// no exceptions, no RTTI, nothing from libstdc++ at link time.
//
// Vec<T>     W lanes of T, as many floats as the widest register of the target holds; from simd.hpp, as is all that depends on it.
// Full/Tail  how many lanes of a load or store are valid: all of them, or the first n at the end of a row.
// for_lanes  a loop over n elements in whole vectors and one tail.
// Pool       where parallel work goes: ONNX Runtime's own thread pool in a session, anything in a test.
#pragma once

#include "simd.hpp"

namespace opsmith {

OPSMITH_INLINE F load(const float* p, Full) {
  F v;
  memcpy(&v, p, sizeof v);
  return v;
}
OPSMITH_INLINE void store(float* p, F v, Full) { memcpy(p, &v, sizeof v); }

OPSMITH_INLINE float to_float(float x) { return x; }
OPSMITH_INLINE float to_float(bf16 x) { return __builtin_bit_cast(float, static_cast<uint32_t>(x.bits) << 16); }

OPSMITH_INLINE F widen(H h, bf16) { return (F)(to_words(h) << 16); }

template <class T>
concept HalfStorage = __is_same(T, f16) || __is_same(T, bf16);

template <HalfStorage T>
OPSMITH_INLINE F load(const T* p, Full) {
  H h;
  memcpy(&h, p, sizeof h);
  return widen(h, T{});
}
template <HalfStorage T>
OPSMITH_INLINE F load(const T* p, Tail t) {
  return widen(load_halves(p, t), T{});
}
template <HalfStorage T>
OPSMITH_INLINE void store(T* p, F v, Full) {
  H h = narrow(v, T{});
  memcpy(p, &h, sizeof h);
}
template <HalfStorage T>
OPSMITH_INLINE void store(T* p, F v, Tail t) {
  store_halves(p, narrow(v, T{}), t);
}

// f(i64 index, lanes) over [0, n): whole vectors, then the tail.
template <class Fn>
OPSMITH_INLINE void for_lanes(i64 n, Fn&& f) {
  i64 i = 0;
  for (; i + W <= n; i += W) f(i, Full{});
  if (i < n) f(i, Tail{n - i});
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

  // f(i64 begin, i64 end) over ranges that cover [0, total). A range holds at least `grain` items, enough to be worth
  // handing to a thread, and there are at most four per thread, so that a slow one can be made up for.
  template <class Fn>
  void parallel_ranges(i64 total, i64 grain, Fn&& f) const {
    if (total <= 0) return;
    const i64 most = 4 * static_cast<i64>(threads > 1 ? threads : 1), fit = total / (grain > 1 ? grain : 1);
    const i64 ranges = threads <= 1 || fit <= 1 ? 1 : fit < most ? fit : most;
    parallel_for(ranges, [&](i64 i) { f(total * i / ranges, total * (i + 1) / ranges); });
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
