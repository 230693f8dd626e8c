// Rows of activations as bytes, for products with weights of int8 (gemm_int8.hpp): every row has its own scale and zero point.
//
//   y[r][c] = round(t / scale[r]) + zero[r],  t = rotated (x[r] * factors),  scale and zero such that 0 .. 255 holds the row and 0
//
// Factors: one per column, which the weights carry the inverse of, so that a column of large numbers that meets small weights is moved
// half way. Rotated: a row is a matrix (block, columns / block), and its columns are multiplied by the Hadamard matrix of `block` rows, a
// power of 2. One element that is far larger than the others would leave them few of the 256 steps; after the rotation all `block`
// numbers share it. The weights carry the inverse of this too (compiler/pack.py: int8_columns), so the product is the same. Over the
// layers of a trained MiniLM the error, root mean square, is 1.26e-2 without both, 0.87e-2 with blocks of 64, 0.85e-2 with factors from
// the weights as well; factors from calibrated activations give 1.01e-2 without rotation, 0.76e-2
// with it: calibration is not built yet.
//
// A row with something infinite or NaN gets the scale NaN, and so does everything that is computed from it.
#pragma once

#include "math.hpp"
#include "types.hpp"

namespace opsmith {

inline constexpr i64 most_columns = 16384;  // of a row: it is held on the stack

// R parts of each R * run neighbours become their sums and differences; run == columns / R is the last pass.
template <int R, class TX>
OPSMITH_INLINE void rotate_pass(const TX* from, const float* factors, float* to, i64 columns, i64 run) {
  for (i64 base = 0; base < columns; base += R * run)
    for_lanes(run, [&](i64 i, auto lanes) __attribute__((always_inline)) {
      F v[R];
#pragma GCC unroll 8
      for (int j = 0; j < R; ++j) {
        v[j] = load(from + base + j * run + i, lanes);
        if (factors) v[j] *= load(factors + base + j * run + i, lanes);
      }
#pragma GCC unroll 3
      for (int h = 1; h < R; h *= 2) {
#pragma GCC unroll 8
        for (int j = 0; j < R; ++j)
          if (!(j & h)) {
            const F sum = v[j] + v[j + h];
            v[j + h] = v[j] - v[j + h], v[j] = sum;
          }
      }
#pragma GCC unroll 8
      for (int j = 0; j < R; ++j) store(to + base + j * run + i, v[j], lanes);
    });
}

// One row in floats, rotated. Null factors are 1.
template <class TX>
void rotate_row(const TX* x, const float* factors, i64 columns, i64 block, float* row) {
  i64 run = columns / block;
  bool first = true;
  auto pass = [&](auto pick) {
    constexpr int R = decltype(pick)::R;
    if (first)
      rotate_pass<R>(x, factors, row, columns, run);
    else
      rotate_pass<R>(row, nullptr, row, columns, run);
    first = false, run *= R, block /= R;
  };
  struct One { enum { R = 1 }; };
  struct Two { enum { R = 2 }; };
  struct Four { enum { R = 4 }; };
  struct Eight { enum { R = 8 }; };
  while (block >= 8) pass(Eight{});
  if (block == 4) pass(Four{});
  if (block == 2) pass(Two{});
  if (first) pass(One{});
}

struct ByteRange {
  float low = 0, high = 0, poison = 0;  // poison: NaN if anything is not finite

  void include(const float* row, i64 columns) {
    F lows[4] = {}, highs[4] = {}, poisons[4] = {};
    auto take = [&](int j, F v) __attribute__((always_inline)) {
      lows[j] = min_or_second(v, lows[j]), highs[j] = max_or_second(v, highs[j]), poisons[j] += v * splat(0.0f);
    };
    i64 i = 0;
    for (; i + 4 * W <= columns; i += 4 * W) {
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) take(j, load(row + i + j * W, Full{}));
    }
    for_lanes(columns - i, [&](i64 at, auto lanes) __attribute__((always_inline)) { take(0, load(row + i + at, lanes)); });
    const F small = min_or_second(min_or_second(lows[0], lows[1]), min_or_second(lows[2], lows[3]));
    const F large = max_or_second(max_or_second(highs[0], highs[1]), max_or_second(highs[2], highs[3]));
    const F bad = poisons[0] + poisons[1] + poisons[2] + poisons[3];
    low = min(low, lane_min(small)), high = max(high, lane_max(large)), poison += lane_sum(bad);
  }
  void include(const ByteRange& other) { low = min(low, other.low), high = max(high, other.high), poison += other.poison; }

  float scale() const { return (high - low >= 1e-30f ? (high - low) / 255.0f : 1.0f) + poison; }
  uint8_t zero() const {
    const float at = -low / scale() + 0.5f;
    return at > 0 && at < 256 ? static_cast<uint8_t>(at) : 0;  // not of NaN
  }
};

OPSMITH_INLINE void store_rounded(const float* row, i64 columns, float scale, uint8_t zero, uint8_t* y) {
  const F inverse = splat(1.0f / scale), offset = splat(static_cast<float>(zero) + 0.5f);
  for_lanes(columns, [&](i64 i, auto lanes) __attribute__((always_inline)) { store(y + i, load(row + i, lanes) * inverse + offset, lanes); });
}

// x [rows][columns] (rows x_row apart) -> y [rows][columns], dense.
template <class TX>
void quantize_rows(const Pool& pool, i64 rows, i64 columns, const TX* x, i64 x_row, const float* factors, i64 block, uint8_t* y, float* scales, uint8_t* zeros) {
  pool.parallel_ranges(rows, max<i64>(1, 16384 / max<i64>(1, columns)), [&](i64 begin, i64 end) {
    float row[most_columns];
    for (i64 r = begin; r < end; ++r) {
      ByteRange range;
      rotate_row(x + r * x_row, factors, columns, block, row);
      range.include(row, columns);
      scales[r] = range.scale(), zeros[r] = range.zero();
      store_rounded(row, columns, scales[r], zeros[r], y + r * columns);
    }
  });
}

template <class TX>
void quantize_rows_reference(const Pool&, i64 rows, i64 columns, const TX* x, i64 x_row, const float* factors, i64 block, uint8_t* y, float* scales, uint8_t* zeros) {
  const i64 run = columns / block;
  auto rotated = [&](i64 r, i64 c) {
    float sum = 0;
    for (i64 i = 0; i < block; ++i) {
      const i64 at = i * run + c % run;
      const float v = to_float(x[r * x_row + at]) * (factors ? factors[at] : 1.0f);
      sum += __builtin_popcountll(static_cast<unsigned long long>(i & (c / run))) % 2 ? -v : v;
    }
    return sum;
  };
  for (i64 r = 0; r < rows; ++r) {
    ByteRange range;
    for (i64 c = 0; c < columns; ++c) {
      const float v = rotated(r, c);
      range.low = min(range.low, v), range.high = max(range.high, v), range.poison += v * 0.0f;
    }
    scales[r] = range.scale(), zeros[r] = range.zero();
    for (i64 c = 0; c < columns; ++c)
      y[r * columns + c] = from_float<uint8_t>(rotated(r, c) * (1.0f / scales[r]) + (static_cast<float>(zeros[r]) + 0.5f));
  }
}

// x [rows][columns] as above, with one scale and one zero point for all and without rotation: what a convolution sums has rows of many
// pixels in it.
template <class TX>
void quantize_image(const Pool& pool, i64 rows, i64 columns, const TX* x, i64 x_row, uint8_t* y, float* scale, uint8_t* zero) {
  constexpr i64 most = 64, part = 2048;
  if (x_row == columns) columns *= rows, rows = 1;  // one long row: pixels are short
  const i64 row_parts = ceil_div(columns, part), parts = rows * row_parts;  // what the stack holds
  const i64 pieces = max<i64>(1, min(most, min(parts, rows * columns / 32768)));
  ByteRange ranges[most];
  auto in_parts = [&](i64 piece, auto f) {
    float row[part];
    for (i64 i = parts * piece / pieces; i < parts * (piece + 1) / pieces; ++i) {
      const i64 r = i / row_parts, c = i % row_parts * part, count = min(part, columns - c);
      rotate_pass<1>(x + r * x_row + c, nullptr, row, count, count);
      f(row, r * columns + c, count);
    }
  };
  pool.parallel_for(pieces, [&](i64 piece) { in_parts(piece, [&](const float* row, i64, i64 count) { ranges[piece].include(row, count); }); });
  for (i64 piece = 1; piece < pieces; ++piece) ranges[0].include(ranges[piece]);
  *scale = ranges[0].scale(), *zero = ranges[0].zero();
  pool.parallel_for(pieces, [&](i64 piece) {
    in_parts(piece, [&](const float* row, i64 at, i64 count) { store_rounded(row, count, *scale, *zero, y + at); });
  });
}

template <class TX>
void quantize_image_reference(const Pool&, i64 rows, i64 columns, const TX* x, i64 x_row, uint8_t* y, float* scale, uint8_t* zero) {
  ByteRange range;
  for (i64 i = 0; i < rows * columns; ++i) {
    const float v = to_float(x[i / columns * x_row + i % columns]);
    range.low = min(range.low, v), range.high = max(range.high, v), range.poison += v * 0.0f;
  }
  *scale = range.scale(), *zero = range.zero();
  for (i64 i = 0; i < rows * columns; ++i) {
    const float v = to_float(x[i / columns * x_row + i % columns]);
    y[i] = from_float<uint8_t>(v * (1.0f / *scale) + (static_cast<float>(*zero) + 0.5f));
  }
}

}  // namespace opsmith
