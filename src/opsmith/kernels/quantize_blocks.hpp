// Rows of activations as bytes with a unit per block of columns, for products with weights in blocks (gemm_blocks.hpp).
//
//   y[r][c] = round(x[r][c] / unit[r][b]),  unit = the largest of the block / 127,  b = c / block
//
// Rows are filled up with zeros to whole blocks. A unit per block, not per row: one large element takes the steps of its block alone. With
// it comes the sum of the bytes of each block, which zero points of the weights are multiplied with. A block with something infinite or NaN
// has the unit NaN, and so has everything that is computed from it.
#pragma once

#include "types.hpp"

namespace opsmith {

// The largest magnitude of `count` numbers; NaN if one of them is not finite.
template <class TX>
OPSMITH_INLINE float peak_of(const TX* x, i64 count) {
  F most{}, poison{};
  for_lanes(count, [&](i64 i, auto lanes) __attribute__((always_inline)) {
    const F v = load(x + i, lanes);
    most = max_or_second(max_or_second(v, most), -v), poison += v * splat(0.0f);
  });
  float peak = 0, bad = 0;
  for (i64 lane = 0; lane < W; ++lane) peak = max(peak, most[lane]), bad += poison[lane];
  return peak + bad;
}

// What a number is multiplied with to become a byte; 0 for blocks of nothing but zeros, or nearly.
OPSMITH_INLINE float byte_steps(float peak) { return peak > 1e-30f ? 127.0f / peak : 0.0f; }
OPSMITH_INLINE float byte_unit(float peak) { return peak > 1e-30f ? peak / 127.0f : peak != peak ? peak : 0.0f; }

// x [rows][columns] (rows x_row apart) -> y [rows][blocks * block], units and sums [rows][blocks]
template <class TX>
void quantize_blocks(const Pool& pool, i64 rows, i64 columns, i64 block, const TX* x, i64 x_row, int8_t* y, float* units, float* sums) {
  const i64 blocks = ceil_div(columns, block);
  pool.parallel_ranges(rows * blocks, max<i64>(1, 16384 / block), [&](i64 begin, i64 end) {
    for (i64 b = begin; b < end; ++b) {
      const i64 row = b / blocks, first = b % blocks * block, count = min(block, columns - first);
      const TX* from = x + row * x_row + first;
      int8_t* to = y + b * block;
      const float peak = peak_of(from, count);
      const F steps = splat(byte_steps(peak)), magic = splat(12582912.0f);  // 1.5 * 2^23: what is added to it is rounded
      I total{};
      for_lanes(count, [&](i64 i, auto lanes) __attribute__((always_inline)) {
        const F scaled = load(from + i, lanes) * steps;
        const I whole = (I)((scaled == scaled ? scaled : F{}) + magic) - (I)magic;
        total += whole;
        const Vec<uint8_t> bytes = low_bytes(whole);
        memcpy(to + i, &bytes, static_cast<size_t>(lanes.count));
      });
      memset(to + count, 0, static_cast<size_t>(block - count));
      int32_t sum = 0;
      for (i64 lane = 0; lane < W; ++lane) sum += total[lane];
      units[b] = byte_unit(peak), sums[b] = static_cast<float>(sum);
    }
  });
}

template <class TX>
void quantize_blocks_reference(const Pool&, i64 rows, i64 columns, i64 block, const TX* x, i64 x_row, int8_t* y, float* units, float* sums) {
  const i64 blocks = ceil_div(columns, block);
  for (i64 b = 0; b < rows * blocks; ++b) {
    const i64 first = b % blocks * block, count = min(block, columns - first);
    const TX* from = x + b / blocks * x_row + first;
    float peak = 0, bad = 0;
    for (i64 i = 0; i < count; ++i) peak = max(peak, __builtin_fabsf(to_float(from[i]))), bad += to_float(from[i]) * 0.0f;
    sums[b] = 0;
    for (i64 i = 0; i < block; ++i) {
      const float scaled = i < count ? to_float(from[i]) * byte_steps(peak + bad) : 0.0f;
      const float whole = scaled == scaled ? __builtin_rintf(scaled) : 0.0f;
      y[b * block + i] = static_cast<int8_t>(whole), sums[b] += whole;
    }
    units[b] = byte_unit(peak + bad);
  }
}

}  // namespace opsmith
