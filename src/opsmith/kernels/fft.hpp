// Fourier transforms of any length: DFT along an axis, STFT of frames of a signal.
//
// A length n = 2^a * m is halved a times (real and imaginary parts in arrays of their own, so that every halving is one loop over
// contiguous numbers); what is left, m, is odd and done by the definition, in m^2 steps.
#pragma once

#include "elementwise.hpp"
#include "fold.hpp"

namespace opsmith {

inline constexpr i64 kTransforms = 8;  // that run side by side, each in memory of its own

// Twiddles of all halvings (n), roots of the odd part (2 m, at most 2 n), and per transform input and output (4 n).
inline i64 fft_workspace(i64 n) { return (kTransforms * 4 + 5) * max<i64>(n, 1) * static_cast<i64>(sizeof(float)); }

struct Transform {
  i64 n, odd;
  float *twiddle, *roots, *space;  // twiddle: of length l, l / 2 cosines and then l / 2 sines, at 0 .. n for n, n / 2, ...

  Transform(i64 length, void* workspace) : n(length), odd(length) {
    twiddle = static_cast<float*>(workspace), roots = twiddle + 2 * n, space = roots + 3 * n;
    const double turn = -2 * 3.14159265358979323846;
    float* at = twiddle;
    for (; odd > 0 && odd % 2 == 0; odd /= 2) {
      for (i64 k = 0; k < odd / 2; ++k) {
        at[k] = static_cast<float>(__builtin_cos(turn * static_cast<double>(k) / static_cast<double>(odd)));
        at[odd / 2 + k] = static_cast<float>(__builtin_sin(turn * static_cast<double>(k) / static_cast<double>(odd)));
      }
      at += odd;
    }
    for (i64 k = 0; k < odd; ++k) {
      roots[k] = static_cast<float>(__builtin_cos(turn * static_cast<double>(k) / static_cast<double>(odd)));
      roots[odd + k] = static_cast<float>(__builtin_sin(turn * static_cast<double>(k) / static_cast<double>(odd)));
    }
  }

  // [4][n] of one transform: input, real and imaginary; output, likewise
  float* memory(i64 i) const { return space + i * 4 * n; }

  void run(float* m) const { part(m, m + n, 1, m + 2 * n, m + 3 * n, n, twiddle); }

 private:
  void part(const float* re, const float* im, i64 step, float* out_re, float* out_im, i64 length, const float* w) const {
    if (length == odd) return by_definition(re, im, step, out_re, out_im);
    const i64 half = length / 2;
    part(re, im, 2 * step, out_re, out_im, half, w + length);
    part(re + step, im + step, 2 * step, out_re + half, out_im + half, half, w + length);
    for_lanes(half, [&](i64 k, auto lanes) {
      const F c = load(w + k, lanes), s = load(w + half + k, lanes);
      const F a = load(out_re + half + k, lanes), b = load(out_im + half + k, lanes);
      const F x = a * c - b * s, y = a * s + b * c, u = load(out_re + k, lanes), v = load(out_im + k, lanes);
      store(out_re + k, u + x, lanes), store(out_im + k, v + y, lanes);
      store(out_re + half + k, u - x, lanes), store(out_im + half + k, v - y, lanes);
    });
  }

  void by_definition(const float* re, const float* im, i64 step, float* out_re, float* out_im) const {
    for (i64 k = 0; k < odd; ++k) {
      float x = 0, y = 0;
      for (i64 j = 0, at = 0; j < odd; ++j) {
        const float c = roots[at], s = roots[odd + at], a = re[j * step], b = im[j * step];
        x += a * c - b * s, y += a * s + b * c;
        at += k;
        if (at >= odd) at -= odd;
      }
      out_re[k] = x, out_im[k] = y;
    }
  }
};

// f(i64 item, float* memory) for each of `items`, in groups that share memory.
template <class Fn>
void each_transform(const Pool& pool, const Transform& t, i64 items, Fn&& f) {
  const i64 groups = min(items, kTransforms);
  pool.parallel_for(groups, [&](i64 g) {
    for (i64 i = items * g / groups; i < items * (g + 1) / groups; ++i) f(i, t.memory(g));
  });
}

// x [outer][axis][inner][parts], parts 1 (real) or 2 -> y [outer][bins][inner][2]; the axis is cut or filled up with 0 to n.
template <class T>
void dft(const Pool& pool, i64 outer, i64 axis, i64 inner, i64 parts, i64 n, i64 bins, const T* x, T* y, void* workspace) {
  if (n <= 0) return;
  const Transform t(n, workspace);
  each_transform(pool, t, outer * inner, [&](i64 r, float* m) {
    const T* from = x + (r / inner * axis * inner + r % inner) * parts;
    for (i64 k = 0; k < n; ++k) {
      m[k] = k < axis ? static_cast<float>(from_storage(from[k * inner * parts])) : 0;
      m[n + k] = k < axis && parts == 2 ? static_cast<float>(from_storage(from[k * inner * parts + 1])) : 0;
    }
    t.run(m);
    T* to = y + (r / inner * bins * inner + r % inner) * 2;
    for (i64 k = 0; k < bins; ++k)
      to[k * inner * 2] = to_storage<T>(m[2 * n + k]), to[k * inner * 2 + 1] = to_storage<T>(m[3 * n + k]);
  });
}

// signal [batch][length][parts], frames of n every `step`, each times window [n] (may be null) -> y [batch][frames][bins][2]
template <class T>
void stft(const Pool& pool, i64 batch, i64 length, i64 parts, i64 frames, i64 step, i64 n, i64 bins, const T* signal, const T* window,
          T* y, void* workspace) {
  if (n <= 0) return;
  const Transform t(n, workspace);
  each_transform(pool, t, batch * frames, [&](i64 r, float* m) {
    const T* from = signal + (r / frames * length + r % frames * step) * parts;
    for (i64 k = 0; k < n; ++k) {
      const float w = window ? static_cast<float>(from_storage(window[k])) : 1.0f;
      m[k] = w * static_cast<float>(from_storage(from[k * parts]));
      m[n + k] = parts == 2 ? w * static_cast<float>(from_storage(from[k * parts + 1])) : 0;
    }
    t.run(m);
    T* to = y + r * bins * 2;
    for (i64 k = 0; k < bins; ++k) to[2 * k] = to_storage<T>(m[2 * n + k]), to[2 * k + 1] = to_storage<T>(m[3 * n + k]);
  });
}

}  // namespace opsmith
