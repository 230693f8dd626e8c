// Pooling of floats (and of 8-bit integers, for maxima) over 1, 2 or 3 spatial dims, on vectors.
//
//   y[o][pixel][i] = finish(merge over the taps inside the image of map(x[o][source pixel][i]))
//
// What is outside the image is never read: each dim of a window is a span of taps, clipped once. images.hpp has the layouts.
//
//   inner > 1    lanes are channels. Small or disjoint windows are read directly. Large ones that overlap are separable: rows
//                are merged into a line first, then pixels of the line, so 13 x 13 taps cost 26.
//   inner == 1   lanes are neighbouring output pixels (stride 1) or the taps of a long window; rows are merged first likewise.
#pragma once

#include "images.hpp"
#include "window.hpp"

namespace opsmith {

struct PoolMax {
  float power;
  static constexpr float start = -__builtin_inff();
  OPSMITH_INLINE F map(F x) const { return x; }
  OPSMITH_INLINE static F merge(F a, F b) { return max_or_second(a, b); }
  OPSMITH_INLINE F finish(F a, i64) const { return a; }
};
struct PoolAverage {
  float power;
  static constexpr float start = 0;
  OPSMITH_INLINE F map(F x) const { return x; }
  OPSMITH_INLINE static F merge(F a, F b) { return a + b; }
  OPSMITH_INLINE F finish(F a, i64 taps) const { return a / static_cast<float>(taps ? taps : 1); }
};
struct PoolLp {
  float power;
  static constexpr float start = 0;
  OPSMITH_INLINE F map(F x) const { return power == 2 ? x * x : power == 1 ? abs(x) : pow(abs(x), splat(power)); }
  OPSMITH_INLINE static F merge(F a, F b) { return a + b; }
  OPSMITH_INLINE F finish(F a, i64) const { return power == 2 ? sqrt(a) : power == 1 ? a : pow(a, splat(1 / power)); }
};

// Taps [begin, end) of dim d that lie inside the image, for output position o.
struct TapSpan {
  i64 first, begin, end;  // first: where tap 0 lies
  TapSpan(const Window& w, int d, i64 o) : first(o * w.stride[d] - w.pad[d]) {
    const i64 step = w.dilation[d];
    begin = first >= 0 ? 0 : min(w.kernel[d], ceil_div(-first, step));
    end = first >= w.in[d] ? begin : max(begin, min(w.kernel[d], (w.in[d] - 1 - first) / step + 1));
  }
  i64 count() const { return end - begin; }
};
// Taps that lie inside the image or its padding.
inline i64 padded_span(const Window& w, int d, i64 o, i64 after) {
  const i64 room = w.in[d] + after - (o * w.stride[d] - w.pad[d]);
  return room <= 0 ? 0 : min(w.kernel[d], ceil_div(room, w.dilation[d]));
}

namespace detail {

inline constexpr i64 pool_line = 8192;  // floats of a line of merged rows, on the stack

// V vectors of channels of one output pixel: rows of taps are summed apart, which also keeps long sums exact.
template <int V, class Op, class T, class Lanes>
OPSMITH_INLINE void pool_window(const Op& op, const Window& w, const TapSpan (&span)[3], const T* x, i64 pixel, Lanes lanes, F (&acc)[V]) {
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) acc[v] = splat(Op::start);
  for (i64 a = span[0].begin; a < span[0].end; ++a) {
    const i64 z = span[0].first + a * w.dilation[0];
    for (i64 b = span[1].begin; b < span[1].end; ++b) {
      const i64 y = span[1].first + b * w.dilation[1];
      const T* from = x + ((z * w.in[1] + y) * w.in[2] + span[2].first + span[2].begin * w.dilation[2]) * pixel;
      F row[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) row[v] = splat(Op::start);
      for (i64 c = span[2].begin; c < span[2].end; ++c, from += w.dilation[2] * pixel) {
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) row[v] = Op::merge(row[v], op.map(load(from + v * W, lanes)));
      }
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) acc[v] = Op::merge(acc[v], row[v]);
    }
  }
}

// One output line, channels [begin, end).
template <class Op, class T, class Count>
void pool_line_of_channels(const Op& op, const Window& w, TapSpan (&span)[3], bool separable, i64 begin, i64 end, const T* x, i64 x_pixel,
                           T* y, i64 y_pixel, const Count& count) {
  if (!separable) {
    for (i64 o = 0; o < w.out[2]; ++o) {
      span[2] = TapSpan(w, 2, o);
      const i64 taps = count(o, span[2]);
      channel_groups(begin, end, [&](i64 c, auto vectors, auto lanes) {
        constexpr int V = decltype(vectors)::value;
        F acc[V];
        pool_window<V>(op, w, span, x + c, x_pixel, lanes, acc);
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) store(y + o * y_pixel + c + v * W, op.finish(acc[v], taps), lanes);
      });
    }
    return;
  }
  float line[pool_line];  // [column][vectors of this group]
  const i64 reach = (w.kernel[2] - 1) * w.dilation[2] + 1;
  channel_groups(begin, end, [&](i64 c, auto vectors, auto lanes) {
    constexpr int V = decltype(vectors)::value;
    const i64 columns = pool_line / (V * W), step = max<i64>(1, (columns - reach) / w.stride[2]);
    for (i64 first = 0; first < w.out[2]; first += step) {
      const i64 last = min(w.out[2], first + step);
      const i64 left = max<i64>(0, first * w.stride[2] - w.pad[2]);
      const i64 right = min(w.in[2], (last - 1) * w.stride[2] - w.pad[2] + reach);
      TapSpan pixel[3] = {span[0], span[1], span[2]};
      pixel[2].begin = 0, pixel[2].end = 1;
      for (i64 at = left; at < right; ++at) {
        pixel[2].first = at;
        F acc[V];
        pool_window<V>(op, w, pixel, x + c, x_pixel, lanes, acc);
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) store(line + ((at - left) * V + v) * W, acc[v], Full{});
      }
      for (i64 o = first; o < last; ++o) {
        const TapSpan taps(w, 2, o);
        F acc[V];
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) acc[v] = splat(Op::start);
        for (i64 k = taps.begin; k < taps.end; ++k) {
          const float* from = line + (taps.first + k * w.dilation[2] - left) * V * W;
#pragma GCC unroll 4
          for (int v = 0; v < V; ++v) acc[v] = Op::merge(acc[v], load(from + v * W, Full{}));
        }
        const i64 total = count(o, taps);
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) store(y + o * y_pixel + c + v * W, op.finish(acc[v], total), lanes);
      }
    }
  });
}

template <class Op>
OPSMITH_INLINE float merge_lanes(F v, i64 lanes = W) {
  F all = splat(Op::start);
  for (i64 i = 0; i < lanes; ++i) all = Op::merge(all, splat(v[i]));
  return all[0];
}

// Output pixels [first, last) of a line from a line of pixels; its rows are merged already if `Mapped`. Where a vector of output
// pixels lies inside, each has all its taps, and so the same count.
template <bool Mapped, class Op, class S, class T, class Count>
void pool_along(const Op& op, const Window& w, i64 first, i64 last, const S* line, T* y, const Count& count) {
  auto value = [&](F v) {
    if constexpr (Mapped)
      return v;
    else
      return op.map(v);
  };
  const i64 step = w.dilation[2];
  for (i64 o = first; o < last;) {
    const TapSpan taps(w, 2, o);
    const S* from = line + taps.first;
    if (w.stride[2] == 1 && o + W <= last && taps.begin == 0 && TapSpan(w, 2, o + W - 1).end == w.kernel[2]) {
      F acc = splat(Op::start);
      for (i64 k = 0; k < w.kernel[2]; ++k) acc = Op::merge(acc, value(load(from + k * step, Full{})));
      store(y + o, op.finish(acc, count(o, taps)), Full{});
      o += W;
      continue;
    }
    F acc = splat(Op::start);
    i64 k = taps.begin;
    if (step == 1) {
      for (; k + W <= taps.end; k += W) acc = Op::merge(acc, value(load(from + k, Full{})));
      acc = splat(merge_lanes<Op>(acc));
    }
    for (; k < taps.end; ++k) acc = Op::merge(acc, value(splat(to_float(from[k * step]))));
    store(y + o, op.finish(acc, count(o, taps)), Tail{1});
    ++o;
  }
}

// One output line of an image whose pixels are single numbers.
template <class Op, class T, class Count>
void pool_line_of_pixels(const Op& op, const Window& w, const TapSpan (&span)[3], const T* x, T* y, const Count& count) {
  if (span[0].count() == 1 && span[1].count() == 1) {
    const i64 z = span[0].first + span[0].begin * w.dilation[0], r = span[1].first + span[1].begin * w.dilation[1];
    pool_along<false>(op, w, 0, w.out[2], x + (z * w.in[1] + r) * w.in[2], y, count);
    return;
  }
  float line[pool_line];
  const i64 reach = (w.kernel[2] - 1) * w.dilation[2] + 1;
  const i64 step = max<i64>(1, (pool_line - reach) / w.stride[2]);
  for (i64 first = 0; first < w.out[2]; first += step) {
    const i64 last = min(w.out[2], first + step);
    const i64 left = max<i64>(0, first * w.stride[2] - w.pad[2]);
    const i64 right = min(w.in[2], (last - 1) * w.stride[2] - w.pad[2] + reach);
    TapSpan pixel[3] = {span[0], span[1], span[2]};
    pixel[2].begin = 0, pixel[2].end = 1, pixel[2].first = 0;
    for_lanes(max<i64>(0, right - left), [&](i64 i, auto lanes) {
      F acc[1];
      pool_window<1>(op, w, pixel, x + left + i, 1, lanes, acc);
      store(line + i, acc[0], lanes);
    });
    pool_along<true>(op, w, first, last, line - left, y, count);
  }
}

}  // namespace detail

// `include`: padding counts as zeros, `after` is the padding behind each dim. `power` is PoolLp's.
template <class Op, class T>
void pool_windows(const Pool& pool, const Window& w, const ImageLayout& l, const Sizes& after, bool include, double power, const T* x, T* y) {
  const Op op{static_cast<float>(power)};
  const i64 lines = l.outer * w.out[0] * w.out[1], reach = (w.kernel[2] - 1) * w.dilation[2] + 1;
  if (lines <= 0 || w.out[2] <= 0 || l.inner <= 0) return;
  const bool overlap = w.stride[1] < w.kernel[1] || w.stride[2] < w.kernel[2];
  const bool separable = overlap && w.taps() >= 16 && w.out[2] > 1 && 2 * reach <= detail::pool_line / (4 * W);
  const bool pixels = l.inner == 1 && l.x_pixel == 1 && l.y_pixel == 1 && (w.taps() == w.kernel[2] || 2 * reach <= detail::pool_line);
  // Few lines of many channels (a global pool has one) are cut into blocks of channels.
  const i64 cuts = lines >= 4 * pool.threads ? 1 : max<i64>(1, min<i64>(2 * pool.threads, l.inner / (4 * W)));
  const i64 block = round_up(ceil_div(l.inner, cuts), W), blocks = ceil_div(l.inner, block);
  const i64 work = w.out[2] * w.taps() * min(block, l.inner);
  pool.parallel_ranges(lines * blocks, max<i64>(1, 65536 / max<i64>(1, work)), [&](i64 begin, i64 end) {
    for (i64 task = begin; task < end; ++task) {
      const i64 at = task / blocks, c = task % blocks * block;
      const i64 row = at % w.out[1], depth = at / w.out[1] % w.out[0], o = at / (w.out[1] * w.out[0]);
      TapSpan span[3] = {TapSpan(w, 0, depth), TapSpan(w, 1, row), TapSpan(w, 2, 0)};
      const i64 rows = include ? padded_span(w, 0, depth, after.at[0]) * padded_span(w, 1, row, after.at[1]) : span[0].count() * span[1].count();
      auto count = [&](i64 column, const TapSpan& taps) {
        return rows * (include ? padded_span(w, 2, column, after.at[2]) : taps.count());
      };
      const T* from = x + o * l.x_outer;
      T* to = y + o * l.y_outer + (depth * w.out[1] + row) * w.out[2] * l.y_pixel;
      if (pixels)
        detail::pool_line_of_pixels(op, w, span, from, to, count);
      else
        detail::pool_line_of_channels(op, w, span, separable, c, min(l.inner, c + block), from, l.x_pixel, to, l.y_pixel, count);
    }
  });
}

}  // namespace opsmith
