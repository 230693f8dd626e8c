// The ground of the kernel library: vectors, lanes, threads. Header-only C++20 on GCC/Clang vector extensions;
// no exceptions, no RTTI, nothing from libstdc++ at link time.
//
// Vec<T>     W lanes of T, W chosen so that a float vector fills the widest register of the target.
// Full/Tail  how many lanes of a load or store are valid: all of them, or the first n at the end of a row.
// for_lanes  a loop over n elements in whole vectors and one tail.
// Pool       where parallel work goes: ONNX Runtime's own thread pool in a session, anything in a test.
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__AVX__)
#include <immintrin.h>
#endif

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

// Tail loads read nothing beyond the last valid lane (the rest is zero), tail stores write nothing beyond it.
#if defined(__AVX512F__)
OPSMITH_INLINE __mmask16 tail_mask(Tail t) { return static_cast<__mmask16>((1u << t.count) - 1); }
#elif defined(__AVX2__)
OPSMITH_INLINE __m256i tail_mask(Tail t) {
  return (__m256i)(I{0, 1, 2, 3, 4, 5, 6, 7} < splat(static_cast<int32_t>(t.count)));
}
#endif

OPSMITH_INLINE F load(const float* p, Full) {
  F v;
  memcpy(&v, p, sizeof v);
  return v;
}
OPSMITH_INLINE F load(const float* p, Tail t) {
#if defined(__AVX512F__)
  return (F)_mm512_maskz_loadu_ps(tail_mask(t), p);
#elif defined(__AVX2__)
  return (F)_mm256_maskload_ps(p, tail_mask(t));
#else
  F v{};
  for (i64 i = 0; i < t.count; ++i) v[i] = p[i];
  return v;
#endif
}
OPSMITH_INLINE void store(float* p, F v, Full) { memcpy(p, &v, sizeof v); }
OPSMITH_INLINE void store(float* p, F v, Tail t) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(p, tail_mask(t), (__m512)v);
#elif defined(__AVX2__)
  _mm256_maskstore_ps(p, tail_mask(t), (__m256)v);
#else
  for (i64 i = 0; i < t.count; ++i) p[i] = v[i];
#endif
}

// Half precision is a storage format here: loads widen to float, stores round to nearest even.
// (AVX-512 intrinsics in their maskz form: the plain ones raise false "uninitialized" warnings in g++ 12.)
struct f16 {
  uint16_t bits;
};
struct bf16 {
  uint16_t bits;
};

#if defined(__aarch64__)
using half_number = __fp16;  // g++ knows _Float16 in C++ only since version 13
#else
using half_number = _Float16;
#endif

OPSMITH_INLINE float to_float(float x) { return x; }
OPSMITH_INLINE float to_float(f16 x) {
#if defined(__F16C__)
  return _cvtsh_ss(x.bits);
#else
  return static_cast<float>(__builtin_bit_cast(half_number, x.bits));
#endif
}
OPSMITH_INLINE float to_float(bf16 x) { return __builtin_bit_cast(float, static_cast<uint32_t>(x.bits) << 16); }

using H = Vec<uint16_t>;  // the bits of W half-precision numbers

OPSMITH_INLINE F widen(H h, f16) {
#if defined(__AVX512F__)
  return (F)_mm512_maskz_cvtph_ps(0xffff, (__m256i)h);
#elif defined(__F16C__)
  return (F)_mm256_cvtph_ps((__m128i)h);
#else
  return __builtin_convertvector((Vec<half_number>)h, F);
#endif
}
OPSMITH_INLINE F widen(H h, bf16) { return (F)(__builtin_convertvector(h, Vec<uint32_t>) << 16); }

OPSMITH_INLINE H narrow(F v, f16) {
#if defined(__AVX512F__)
  return (H)_mm512_maskz_cvtps_ph(0xffff, (__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__F16C__)
  return (H)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  return (H)__builtin_convertvector(v, Vec<half_number>);
#endif
}
OPSMITH_INLINE H narrow(F v, bf16) {
  // Adding half of the last kept bit (and that bit itself on a tie) rounds to nearest even; NaN must stay NaN.
  Vec<uint32_t> u = (Vec<uint32_t>)v;
  Vec<uint32_t> rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  Vec<uint32_t> quiet_nan = (u >> 16) | 0x40u;
  I is_number = v == v;
  return __builtin_convertvector((Vec<uint32_t>)((I)rounded & is_number) | (Vec<uint32_t>)((I)quiet_nan & ~is_number), H);
}

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
  H h{};
  for (i64 i = 0; i < t.count; ++i) h[i] = p[i].bits;
  return widen(h, T{});
}
template <HalfStorage T>
OPSMITH_INLINE void store(T* p, F v, Full) {
  H h = narrow(v, T{});
  memcpy(p, &h, sizeof h);
}
template <HalfStorage T>
OPSMITH_INLINE void store(T* p, F v, Tail t) {
  H h = narrow(v, T{});
  for (i64 i = 0; i < t.count; ++i) p[i].bits = h[i];
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
