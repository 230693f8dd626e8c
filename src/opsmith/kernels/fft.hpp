// Fourier transforms of any length: DFT along an axis, STFT of frames of a signal.
//
// A length n = 2^a * m is halved a times (real and imaginary parts in arrays of their own, so that every halving is one loop over
// contiguous numbers); what is left, m, is odd and done by the definition, in m^2 steps. Of several transforms that are not long,
// as the frames of a signal, W run side by side, one per lane: then the short halvings are loops over whole vectors, too.
#pragma once

#include "elementwise.hpp"
#include "fold.hpp"

namespace opsmith {

inline constexpr i64 kTransforms = 8;  // that threads do at a time, each in memory of its own
inline constexpr i64 kLongest = 2048;  // that runs in lanes: W of them fill a core's cache
inline constexpr i64 kFewest = 4;      // transforms that are worth W of them

inline i64 fft_lanes(i64 n) { return n <= kLongest ? W : 1; }

// Twiddles of all halvings (n), roots of the odd part (2 m, at most 2 n), and per transform input and output (4 n), in lanes.
inline i64 fft_workspace(i64 n) {
  return (kTransforms * 4 * fft_lanes(n) + 5) * max<i64>(n, 1) * static_cast<i64>(sizeof(float));
}

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

  // [4][n][lanes]: input, real and imaginary; output, likewise
  float* memory(i64 i, i64 lanes) const { return space + i * 4 * n * lanes; }

  void run(float* m, i64 lanes) const {
    float *im = m + n * lanes, *out_re = im + n * lanes, *out_im = out_re + n * lanes;
    if (lanes == 1)
      part(m, im, 1, out_re, out_im, n, twiddle);
    else
      part_in_lanes(m, im, 1, out_re, out_im, n, twiddle);
  }

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

  // The same for W transforms at once: [length][W].
  void part_in_lanes(const float* re, const float* im, i64 step, float* out_re, float* out_im, i64 length, const float* w) const {
    if (length == odd) return by_definition_in_lanes(re, im, step, out_re, out_im);
    const i64 half = length / 2;
    float *far_re = out_re + half * W, *far_im = out_im + half * W;
    part_in_lanes(re, im, 2 * step, out_re, out_im, half, w + length);
    part_in_lanes(re + step * W, im + step * W, 2 * step, far_re, far_im, half, w + length);
    for (i64 k = 0; k < half; ++k) {
      const i64 at = k * W;
      const F c = all<F>(w[k]), s = all<F>(w[half + k]);
      const F a = load(far_re + at, Full{}), b = load(far_im + at, Full{});
      const F x = a * c - b * s, y = a * s + b * c, u = load(out_re + at, Full{}), v = load(out_im + at, Full{});
      store(out_re + at, u + x, Full{}), store(out_im + at, v + y, Full{});
      store(far_re + at, u - x, Full{}), store(far_im + at, v - y, Full{});
    }
  }

  void by_definition_in_lanes(const float* re, const float* im, i64 step, float* out_re, float* out_im) const {
    for (i64 k = 0; k < odd; ++k) {
      F x{}, y{};
      for (i64 j = 0, at = 0; j < odd; ++j) {
        const F c = all<F>(roots[at]), s = all<F>(roots[odd + at]);
        const F a = load(re + j * step * W, Full{}), b = load(im + j * step * W, Full{});
        x += a * c - b * s, y += a * s + b * c;
        at += k;
        if (at >= odd) at -= odd;
      }
      store(out_re + k * W, x, Full{}), store(out_im + k * W, y, Full{});
    }
  }
};

// For each of `items`: fill(item, re, im, stride) writes the input, whose element k lies at re[k * stride] and, unless it is
// real, at im[k * stride]; take(item, re, im, stride) reads the output, which lies likewise.
template <class Fill, class Take>
void each_transform(const Pool& pool, const Transform& t, i64 items, bool real, Fill&& fill, Take&& take) {
  const i64 lanes = items < kFewest ? 1 : fft_lanes(t.n), size = t.n * lanes;
  const i64 blocks = ceil_div(items, lanes), groups = min(blocks, kTransforms);
  pool.parallel_for(groups, [&](i64 g) {
    float* m = t.memory(g, lanes);
    memset(m, 0, static_cast<size_t>(2 * size) * sizeof(float));  // lanes beyond the last item, imaginary parts of real input
    for (i64 block = blocks * g / groups; block < blocks * (g + 1) / groups; ++block) {
      const i64 first = block * lanes, count = min(lanes, items - first);
      for (i64 l = 0; l < count; ++l) fill(first + l, m + l, real ? nullptr : m + size + l, lanes);
      t.run(m, lanes);
      for (i64 l = 0; l < count; ++l) take(first + l, m + 2 * size + l, m + 3 * size + l, lanes);
    }
  });
}

// x [outer][axis][inner][parts], parts 1 (real) or 2 -> y [outer][bins][inner][2]; the axis is cut or filled up with 0 to n.
template <class T>
void dft(const Pool& pool, i64 outer, i64 axis, i64 inner, i64 parts, i64 n, i64 bins, const T* x, T* y, void* workspace) {
  if (n <= 0) return;
  const Transform t(n, workspace);
  auto fill = [&](i64 r, float* re, float* im, i64 stride) {
    const T* from = x + (r / inner * axis * inner + r % inner) * parts;
    for (i64 k = 0; k < n; ++k) {
      re[k * stride] = k < axis ? static_cast<float>(from_storage(from[k * inner * parts])) : 0;
      if (im) im[k * stride] = k < axis ? static_cast<float>(from_storage(from[k * inner * parts + 1])) : 0;
    }
  };
  each_transform(pool, t, outer * inner, parts == 1, fill, [&](i64 r, const float* re, const float* im, i64 stride) {
    T* to = y + (r / inner * bins * inner + r % inner) * 2;
    for (i64 k = 0; k < bins; ++k)
      to[k * inner * 2] = to_storage<T>(re[k * stride]), to[k * inner * 2 + 1] = to_storage<T>(im[k * stride]);
  });
}

// signal [batch][length][parts], frames of n every `step`, each times window [n] (may be null) -> y [batch][frames][bins][2]
template <class T>
void stft(const Pool& pool, i64 batch, i64 length, i64 parts, i64 frames, i64 step, i64 n, i64 bins, const T* signal, const T* window,
          T* y, void* workspace) {
  if (n <= 0) return;
  const Transform t(n, workspace);
  auto fill = [&](i64 r, float* re, float* im, i64 stride) {
    const T* from = signal + (r / frames * length + r % frames * step) * parts;
    for (i64 k = 0; k < n; ++k) {
      const float w = window ? static_cast<float>(from_storage(window[k])) : 1.0f;
      re[k * stride] = w * static_cast<float>(from_storage(from[k * parts]));
      if (im) im[k * stride] = w * static_cast<float>(from_storage(from[k * parts + 1]));
    }
  };
  each_transform(pool, t, batch * frames, parts == 1, fill, [&](i64 r, const float* re, const float* im, i64 stride) {
    T* to = y + r * bins * 2;
    for (i64 k = 0; k < bins; ++k) to[2 * k] = to_storage<T>(re[k * stride]), to[2 * k + 1] = to_storage<T>(im[k * stride]);
  });
}

}  // namespace opsmith
