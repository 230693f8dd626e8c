// Linear quantization: y = saturate(round(x / scale) + zero), x = (y - zero) * scale, in plain loops where scales are one per index of
// an axis or one per block along an axis (with one scale it is a map: elementwise.hpp); and quantization to a range found in the data.
#pragma once

#include "elementwise.hpp"
#include "fold.hpp"
#include "sizes.hpp"

namespace opsmith {

// x (outer, axis, inner); the scale of an element is scales[o * per_outer + a / block * per_axis + i * per_inner]
struct ScaleLayout {
  i64 outer, axis, inner, block, per_outer, per_axis, per_inner;

  template <class Fn>
  void each(const Pool& pool, Fn&& f) const {
    pool.parallel_ranges(outer * axis, max<i64>(1, 8192 / max<i64>(1, inner)), [&](i64 begin, i64 end) {
      for (i64 r = begin; r < end; ++r) {
        const i64 base = r / axis * per_outer + r % axis / block * per_axis;
        for (i64 i = 0; i < inner; ++i) f(r * inner + i, base + i * per_inner);
      }
    });
  }
};

template <class T>
OPSMITH_INLINE T saturate(double x) {  // x is a whole number, or NaN
  return to_number<T>(x);
}

// Floats divide in float, so that ties round as in ORT and numpy.
template <class TX, class TS, class TY>
void quantize(const Pool& pool, const ScaleLayout& layout, const TX* x, const TS* scales, const TY* zeros, TY* y) {
  layout.each(pool, [&](i64 i, i64 s) {
    const float v = static_cast<float>(from_storage(x[i])) / static_cast<float>(from_storage(scales[s]));
    y[i] = saturate<TY>(__builtin_rint(static_cast<double>(v)) + (zeros ? static_cast<double>(zeros[s]) : 0.0));
  });
}

template <class TX, class TS, class TY>
void dequantize(const Pool& pool, const ScaleLayout& layout, const TX* x, const TS* scales, const TX* zeros, TY* y) {
  layout.each(pool, [&](i64 i, i64 s) {
    const float v = static_cast<float>(static_cast<i64>(x[i]) - (zeros ? static_cast<i64>(zeros[s]) : 0));
    y[i] = to_storage<TY>(v * static_cast<float>(from_storage(scales[s])));
  });
}

// y = x quantized to its own range, which is made to hold 0: DynamicQuantizeLinear. The range is found in pieces, then all is
// quantized.
inline void dynamic_quantize(const Pool& pool, i64 count, const float* x, uint8_t* y, float* scale, uint8_t* zero) {
  constexpr i64 most = 64, grain = 32768;
  const i64 pieces = max<i64>(1, min(most, count / grain));
  float lows[most] = {}, highs[most] = {};
  pool.parallel_for(pieces, [&](i64 piece) {
    const i64 begin = count * piece / pieces, end = count * (piece + 1) / pieces;
    F low[4] = {}, high[4] = {};
    i64 i = begin;
    for (; i + 4 * W <= end; i += 4 * W) {
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const F v = load(x + i + j * W, Full{});
        low[j] = min_or_second(v, low[j]), high[j] = max_or_second(v, high[j]);
      }
    }
    for_lanes(end - i, [&](i64 at, auto lanes) {
      const F v = load(x + i + at, lanes);
      low[0] = min_or_second(v, low[0]), high[0] = max_or_second(v, high[0]);
    });
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j)
      for (i64 lane = 0; lane < W; ++lane) lows[piece] = min(lows[piece], low[j][lane]), highs[piece] = max(highs[piece], high[j][lane]);
  });
  float low = 0, high = 0;
  for (i64 piece = 0; piece < pieces; ++piece) low = min(low, lows[piece]), high = max(high, highs[piece]);
  const float step = low == high ? 1.0f : (high - low) / 255.0f;
  *scale = step;
  *zero = from_float<uint8_t>(__builtin_rintf(max(0.0f, min(255.0f, -low / step))));
  const F steps = splat(step), zeros = splat(static_cast<float>(*zero));
  pool.parallel_ranges(count, grain, [&](i64 begin, i64 end) {
    for_lanes(end - begin, [&](i64 i, auto lanes) { store(y + begin + i, quantize_to<uint8_t>(load(x + begin + i, lanes), steps, zeros), lanes); });
  });
}

inline void dynamic_quantize_reference(const Pool&, i64 count, const float* x, uint8_t* y, float* scale, uint8_t* zero) {
  float low = 0, high = 0;
  for (i64 i = 0; i < count; ++i) low = min(low, x[i]), high = max(high, x[i]);
  *scale = low == high ? 1.0f : (high - low) / 255.0f;
  *zero = from_float<uint8_t>(__builtin_rintf(max(0.0f, min(255.0f, -low / *scale))));
  for (i64 i = 0; i < count; ++i) y[i] = quantize_to<uint8_t>(x[i], *scale, *zero);
}

}  // namespace opsmith
