// Rows of a table of 8-, 4- or 2-bit integers with a scale and a zero point per block: only the rows that are asked for become
// floats. Several integers of one byte begin with its lowest bits, in the table and among the zero points.
#pragma once

#include "types.hpp"

namespace opsmith {

template <int Bits>
OPSMITH_INLINE int packed_integer(const uint8_t* from, i64 i) {
  constexpr i64 kPer = 8 / Bits;
  return (from[i / kPer] >> (i % kPer * Bits)) & ((1 << Bits) - 1);
}

// table (rows, inner, cols) in packed bytes, scales and zeros (rows, inner, blocks of cols) -> y (count, inner, cols). A row that
// is not there is 0, as ONNX Runtime has it. zeros may be null: then it is the middle, 2^(Bits - 1).
template <int Bits, class TS, class Index>
void gather_blocks(const Pool& pool, i64 rows, i64 inner, i64 cols, i64 block, const uint8_t* table, const TS* scales, const uint8_t* zeros, i64 count, const Index* indices, TS* y) {
  constexpr i64 kPer = 8 / Bits;
  const i64 blocks = ceil_div(cols, block), bytes = cols / kPer, zero_bytes = ceil_div(blocks, kPer);
  pool.parallel_ranges(count * inner, max<i64>(1, 16384 / max<i64>(1, cols)), [&](i64 first, i64 last) {
    for (i64 r = first; r < last; ++r) {
      i64 at = static_cast<i64>(indices[r / inner]);
      at = at < 0 ? at + rows : at;
      TS* out = y + r * cols;
      if (at < 0 || at >= rows) {
        for (i64 c = 0; c < cols; ++c) out[c] = from_float<TS>(0.0f);
        continue;
      }
      const i64 row = at * inner + r % inner;
      const uint8_t* in = table + row * bytes;
      for (i64 b = 0; b < blocks; ++b) {
        const float scale = to_float(scales[row * blocks + b]);
        const int zero = zeros ? packed_integer<Bits>(zeros + row * zero_bytes, b) : 1 << (Bits - 1);
        const i64 end = min(cols, (b + 1) * block);
        for (i64 c = b * block; c < end; ++c)
          out[c] = from_float<TS>(static_cast<float>(packed_integer<Bits>(in, c) - zero) * scale);
      }
    }
  });
}

}  // namespace opsmith
