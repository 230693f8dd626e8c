// Resize: every output element is a weighted sum of input elements, with weights that are a product over the axes.
//
// Each axis has a table of taps (source index and weight) per output position, made once per run: 1 for nearest, 2 for linear, 4 for
// cubic, more when an image shrinks with antialiasing. An axis that keeps its size costs one tap of weight 1. Positions are computed
// in float, as ONNX Runtime does: which pixel is nearest depends on it.
//
// resize_images   two neighbouring axes of floats on vectors (or of anything, where pixels are only picked): lanes are channels or,
//                 in row-major images, pixels; rows are weighed into a line first, then pixels of the line
// resize          any axes, any type, plain loops
#pragma once

#include "elementwise.hpp"
#include "fold.hpp"
#include "images.hpp"
#include "sizes.hpp"

namespace opsmith {

enum class Interpolation { nearest, linear, cubic };
enum class Coordinate {
  half_pixel,
  half_pixel_symmetric,
  pytorch_half_pixel,
  tf_half_pixel_for_nn,
  align_corners,
  asymmetric,
  tf_crop_and_resize
};
// simple: before opset 11, the pixel below, or above where the image shrinks
enum class Nearest { round_prefer_floor, round_prefer_ceil, floor, ceil, simple };

struct ResizeMode {
  Interpolation interpolation;
  Coordinate coordinate;
  Nearest nearest;
  double cubic;          // the coefficient a of the cubic kernel
  bool exclude_outside;  // weights of taps outside the image become 0, the others are scaled to a sum of 1
  bool antialias;
};

struct ResizeAxis {
  i64 in, out;
  double scale;             // as given, or out / in
  double first = 0, last = 1;  // region of interest, for tf_crop_and_resize
};

// Where output position i lies in the input, in input pixels.
inline float resize_position(i64 i, const ResizeAxis& a, Coordinate mode) {
  const float in = static_cast<float>(a.in), out = static_cast<float>(a.out), scale = static_cast<float>(a.scale), x = static_cast<float>(i);
  // A scale that was given may stand for a size between two whole numbers; one that follows from the sizes means them.
  const float exact = scale * in, wide = __builtin_fabsf(exact - out) < 1e-4f * out ? out : exact;
  const float first = static_cast<float>(a.first), last = static_cast<float>(a.last);
  switch (mode) {
    case Coordinate::align_corners:
      return wide == 1 ? 0 : x * (in - 1) / (wide - 1);
    case Coordinate::asymmetric:
      return x / scale;
    case Coordinate::tf_crop_and_resize:
      return wide == 1 ? 0.5f * (first + last) * (in - 1) : first * (in - 1) + (x * (last - first) * (in - 1)) / (wide - 1);
    case Coordinate::pytorch_half_pixel:
      return wide == 1 ? -0.5f : (x + 0.5f) / scale - 0.5f;
    case Coordinate::tf_half_pixel_for_nn:
      return (x + 0.5f) / scale;
    case Coordinate::half_pixel_symmetric:
      return in / 2 * (1 - out / exact) + (x + 0.5f) / scale - 0.5f;
    default:
      return (x + 0.5f) / scale - 0.5f;
  }
}

// Taps an axis needs at most.
inline i64 resize_taps(const ResizeAxis& a, const ResizeMode& mode) {
  if (mode.interpolation == Interpolation::nearest) return 1;
  const i64 reach = mode.interpolation == Interpolation::linear ? 1 : 2;
  if (!mode.antialias || !(a.scale < 1)) return 2 * reach;
  const double wide = __builtin_ceil(reach / a.scale);
  return 2 * (wide < 1e9 ? static_cast<i64>(wide) : 1);
}

struct Tap {
  i64 at;
  double weight;
};

inline double cubic_weight(double x, double a) {
  x = __builtin_fabs(x);
  if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
  return 0;
}

// `taps` entries for output position i, given to put(k, tap); false if it lies outside and must be filled (tf_crop_and_resize only).
template <class Put>
inline bool resize_taps_of(i64 i, const ResizeAxis& a, const ResizeMode& mode, i64 taps, Put put) {
  const double x = static_cast<double>(resize_position(i, a, mode.coordinate));
  for (i64 t = 0; t < taps; ++t) put(t, Tap{0, 0});
  if (mode.coordinate == Coordinate::tf_crop_and_resize && !(x >= 0 && x <= static_cast<double>(a.in - 1))) return false;
  const double limited = x < -1e15 ? -1e15 : x > 1e15 ? 1e15 : x == x ? x : 0;
  const double low = __builtin_floor(limited);
  const double ratio = limited - low;
  auto clamped = [&](double at) { return at < 0 ? 0 : at > static_cast<double>(a.in - 1) ? a.in - 1 : static_cast<i64>(at); };
  if (mode.interpolation == Interpolation::nearest) {
    double at = low;
    if (ratio > 0) {
      const bool up = mode.nearest == Nearest::ceil || (mode.nearest == Nearest::simple && a.scale < 1) || (mode.nearest == Nearest::round_prefer_floor && ratio > 0.5) ||
                      (mode.nearest == Nearest::round_prefer_ceil && ratio >= 0.5);
      at += up;
    }
    put(0, Tap{clamped(at), 1});
    return true;
  }
  const double shrink = mode.antialias && a.scale < 1 ? a.scale : 1;
  auto each = [&](auto&& f) {
    for (i64 t = 0; t < taps; ++t) {
      const double at = low + static_cast<double>(t - taps / 2 + 1), distance = (at - limited) * shrink;
      double weight = mode.interpolation == Interpolation::linear ? max(0.0, 1 - __builtin_fabs(distance)) : cubic_weight(distance, mode.cubic);
      if (mode.exclude_outside && (at < 0 || at > static_cast<double>(a.in - 1))) weight = 0;
      f(t, at, weight);
    }
  };
  double sum = 0;
  each([&](i64, double, double weight) { sum += weight; });
  const double norm = (mode.exclude_outside || shrink != 1) && sum != 0 ? sum : 1;
  each([&](i64 t, double at, double weight) { put(t, Tap{clamped(at), weight / norm}); });
  return true;
}

// --- two axes, on vectors ---

// One axis: `taps` indices and weights for each output position.
struct ResizeTable {
  i64 taps;
  i64* at;
  float* weight;

  // Source positions [low, high) that outputs [begin, end) read.
  void range(i64 begin, i64 end, i64* low, i64* high) const {
    *low = INT64_MAX, *high = 0;
    for (i64 k = begin * taps; k < end * taps; ++k) *low = min(*low, at[k]), *high = max(*high, at[k] + 1);
  }
};

inline i64 resize_images_workspace(const ResizeAxis& h, const ResizeAxis& w, const ResizeMode& mode) {
  return (max<i64>(0, h.out) * resize_taps(h, mode) + max<i64>(0, w.out) * resize_taps(w, mode)) * (8 + 4) + 8;
}

namespace detail {

inline constexpr i64 resize_line = 8192;  // floats of a line of weighed rows, on the stack

// V vectors of one output pixel straight from its taps.
template <int V, class T, class Lanes>
OPSMITH_INLINE void resize_pixel(const ResizeTable& h, const ResizeTable& w, i64 oh, i64 ow, const T* x, i64 row, i64 pixel, Lanes lanes, F (&sum)[V]) {
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) sum[v] = F{};
  for (i64 a = 0; a < h.taps; ++a)
    for (i64 b = 0; b < w.taps; ++b) {
      const F weight = splat(h.weight[oh * h.taps + a] * w.weight[ow * w.taps + b]);
      const T* from = x + h.at[oh * h.taps + a] * row + w.at[ow * w.taps + b] * pixel;
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sum[v] += weight * load(from + v * W, lanes);
    }
}

// One output line whose pixels are `inner` contiguous numbers.
template <class T>
void resize_line_of_channels(const ResizeTable& h, const ResizeTable& w, i64 oh, i64 width, i64 out_width, i64 inner, const T* x, i64 pixel, T* y,
                             i64 y_pixel) {
  const bool separable = width <= 2 * out_width;  // else most weighed pixels of a line would not be used
  float line[resize_line];                        // [column][vectors of this group]
  channel_groups(0, inner, [&](i64 c, auto vectors, auto lanes) {
    constexpr int V = decltype(vectors)::value;
    auto put = [&](i64 o, const F(&sum)[V]) {
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) store(y + o * y_pixel + c + v * W, sum[v], lanes);
    };
    for (i64 first = 0; first < out_width;) {
      i64 low = 0, high = 0, last = first + 1;
      w.range(first, last, &low, &high);
      while (separable && last < out_width) {
        i64 next_low, next_high;
        w.range(last, last + 1, &next_low, &next_high);
        next_low = min(low, next_low), next_high = max(high, next_high);
        if ((next_high - next_low) * V * W > resize_line) break;
        low = next_low, high = next_high, ++last;
      }
      if (!separable || (high - low) * V * W > resize_line) {
        F sum[V];
        resize_pixel<V>(h, w, oh, first, x + c, width * pixel, pixel, lanes, sum);
        put(first++, sum);
        continue;
      }
      for (i64 at = low; at < high; ++at) {
        F sum[V];
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) sum[v] = F{};
        for (i64 a = 0; a < h.taps; ++a) {
          const F weight = splat(h.weight[oh * h.taps + a]);
          const T* from = x + (h.at[oh * h.taps + a] * width + at) * pixel + c;
#pragma GCC unroll 4
          for (int v = 0; v < V; ++v) sum[v] += weight * load(from + v * W, lanes);
        }
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) store(line + ((at - low) * V + v) * W, sum[v], Full{});
      }
      for (; first < last; ++first) {
        F sum[V];
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) sum[v] = F{};
        for (i64 b = 0; b < w.taps; ++b) {
          const F weight = splat(w.weight[first * w.taps + b]);
          const float* from = line + (w.at[first * w.taps + b] - low) * V * W;
#pragma GCC unroll 4
          for (int v = 0; v < V; ++v) sum[v] += weight * load(from + v * W, Full{});
        }
        put(first, sum);
      }
    }
  });
}

// One output line of single numbers.
template <class T>
void resize_line_of_pixels(const ResizeTable& h, const ResizeTable& w, i64 oh, i64 width, i64 out_width, const T* x, T* y) {
  float line[resize_line];
  auto weigh = [&](i64 low, i64 high) {
    for_lanes(high - low, [&](i64 i, auto lanes) {
      F sum{};
      for (i64 a = 0; a < h.taps; ++a)
        sum += splat(h.weight[oh * h.taps + a]) * load(x + h.at[oh * h.taps + a] * width + low + i, lanes);
      store(line + i, sum, lanes);
    });
  };
  constexpr i64 block = 64;  // outputs at a time
  for (i64 first = 0; first < out_width; first += block) {
    const i64 last = min(out_width, first + block);
    i64 low, high;
    w.range(first, last, &low, &high);
    const bool fits = high - low <= resize_line;
    if (fits) weigh(low, high);
    for (i64 o = first; o < last; ++o) {
      float sum = 0;
      for (i64 b = 0; b < w.taps; ++b) {
        const i64 at = w.at[o * w.taps + b];
        if (!fits) weigh(at, at + 1);
        sum += w.weight[o * w.taps + b] * line[fits ? at - low : 0];
      }
      y[o] = to_storage<T>(sum);
    }
  }
}

template <class T>
void pick_line(const ResizeTable& w, i64 out_width, i64 inner, const T* x, i64 pixel, T* y, i64 y_pixel) {
  for (i64 o = 0; o < out_width; ++o) {
    const T* from = x + w.at[o] * pixel;
    if (inner == 1)
      y[o * y_pixel] = *from;
    else
      memcpy(y + o * y_pixel, from, static_cast<size_t>(inner) * sizeof(T));
  }
}

}  // namespace detail

// x [outer][h.in][w.in][inner] -> y [outer][h.out][w.out][inner]; every output lies inside (no tf_crop_and_resize).
template <class T>
void resize_images(const Pool& pool, const ResizeAxis& h, const ResizeAxis& w, const ResizeMode& mode, const ImageLayout& l, const T* x, T* y,
                   void* workspace) {
  const i64 lines = l.outer * h.out;
  if (lines <= 0 || w.out <= 0 || l.inner <= 0) return;
  ResizeTable tables[2];
  uint8_t* at = static_cast<uint8_t*>(workspace);
  for (int d = 0; d < 2; ++d) {
    const ResizeAxis& a = d ? w : h;
    const bool same = a.in == a.out && a.scale == 1;
    const i64 taps = same ? 1 : resize_taps(a, mode);
    ResizeTable& t = tables[d] = {taps, reinterpret_cast<i64*>(at), reinterpret_cast<float*>(at + a.out * taps * 8)};
    at += round_up(a.out * taps * (8 + 4), 8);
    for (i64 i = 0; i < a.out; ++i) {
      if (same)
        t.at[i] = i, t.weight[i] = 1;
      else
        resize_taps_of(i, a, mode, taps, [&](i64 k, Tap tap) { t.at[i * taps + k] = tap.at, t.weight[i * taps + k] = static_cast<float>(tap.weight); });
    }
  }
  const bool picks = mode.interpolation == Interpolation::nearest;
  pool.parallel_ranges(lines, max<i64>(1, 16384 / max<i64>(1, w.out * l.inner)), [&](i64 begin, i64 end) {
    for (i64 line = begin; line < end; ++line) {
      const i64 o = line / h.out, oh = line - o * h.out;
      const T* from = x + o * l.x_outer;
      T* to = y + o * l.y_outer + oh * w.out * l.y_pixel;
      if (picks)
        detail::pick_line(tables[1], w.out, l.inner, from + tables[0].at[oh] * w.in * l.x_pixel, l.x_pixel, to, l.y_pixel);
      else if constexpr (__is_same(T, float) || HalfStorage<T>) {
        if (l.inner == 1 && l.x_pixel == 1 && l.y_pixel == 1)
          detail::resize_line_of_pixels(tables[0], tables[1], oh, w.in, w.out, from, to);
        else
          detail::resize_line_of_channels(tables[0], tables[1], oh, w.in, w.out, l.inner, from, l.x_pixel, to, l.y_pixel);
      }
    }
  });
}

// --- any axes, plain loops ---

struct ResizePlan {
  int rank;
  ResizeAxis axes[kSizesRank];

  bool empty() const {
    for (int d = 0; d < rank; ++d)
      if (axes[d].out <= 0 || axes[d].in <= 0) return true;
    return false;
  }
};

inline i64 resize_workspace(const ResizePlan& plan, const ResizeMode& mode) {
  if (plan.empty()) return 0;
  i64 bytes = 0;
  for (int d = 0; d < plan.rank; ++d) {
    const ResizeAxis& a = plan.axes[d];
    bytes += a.out * (resize_taps(a, mode) * static_cast<i64>(sizeof(Tap)) + 8);
  }
  return bytes;
}

// out (dense) from x with any strides; elements outside the region of interest become `fill`
template <class T>
void resize(const Pool& pool, const ResizePlan& plan, const ResizeMode& mode, const Sizes& strides, const T* x, double fill, T* out,
            void* workspace) {
  if (plan.empty()) return;
  const int rank = plan.rank;
  Tap* tables[kSizesRank];
  i64* inside[kSizesRank];
  i64 taps[kSizesRank];
  uint8_t* at = static_cast<uint8_t*>(workspace);
  i64 total = 1;
  for (int d = 0; d < rank; ++d) {
    const ResizeAxis& a = plan.axes[d];
    const bool same = a.in == a.out && a.scale == 1 && mode.coordinate != Coordinate::tf_crop_and_resize;
    taps[d] = same ? 1 : resize_taps(a, mode);
    tables[d] = reinterpret_cast<Tap*>(at);
    inside[d] = reinterpret_cast<i64*>(at + a.out * taps[d] * static_cast<i64>(sizeof(Tap)));
    at = reinterpret_cast<uint8_t*>(inside[d] + a.out);
    for (i64 i = 0; i < a.out; ++i) {
      if (same)
        tables[d][i] = Tap{i, 1}, inside[d][i] = 1;
      else
        inside[d][i] = resize_taps_of(i, a, mode, taps[d], [&](i64 k, Tap tap) { tables[d][i * taps[d] + k] = tap; });
    }
    total *= a.out;
  }
  pool.parallel_ranges(total, 2048, [&](i64 begin, i64 end) {
    for (i64 o = begin; o < end; ++o) {
      const Tap* rows[kSizesRank];
      i64 rest = o;
      bool in = true;
      for (int d = rank - 1; d >= 0; --d) {
        const i64 i = rest % plan.axes[d].out;
        rest /= plan.axes[d].out;
        rows[d] = tables[d] + i * taps[d];
        in = in && inside[d][i];
      }
      if (!in) {
        out[o] = narrow_scalar<T>(fill);
        continue;
      }
      if (mode.interpolation == Interpolation::nearest) {
        i64 from = 0;
        for (int d = 0; d < rank; ++d) from += rows[d]->at * strides.at[d];
        out[o] = x[from];
        continue;
      }
      i64 index[kSizesRank] = {};
      double sum = 0;
      for (;;) {  // over all combinations of taps
        i64 from = 0;
        double weight = 1;
        for (int d = 0; d < rank; ++d) {
          from += rows[d][index[d]].at * strides.at[d];
          weight *= rows[d][index[d]].weight;
        }
        if (weight != 0) sum += weight * static_cast<double>(from_storage(x[from]));
        int d = rank - 1;
        while (d >= 0 && ++index[d] == taps[d]) index[d--] = 0;
        if (d < 0) break;
      }
      if constexpr (IntegerStorage<T>)
        out[o] = to_number<T>(__builtin_rint(sum));
      else
        out[o] = narrow_scalar<T>(sum);
    }
  });
}

}  // namespace opsmith
