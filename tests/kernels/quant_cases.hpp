// Packed weights of 8 or 4 bits for tests.
#pragma once

#include "arrays.hpp"
#include "quant.hpp"

namespace opsmith::test {

// Random bits, with numbers where scales are, and zero points of their type: random bits are none.
template <class Q, class Scale>
void fill_quantized(Array<uint8_t>& packed, Random& random, i64 N, i64 K, i64 block) {
  for (i64 i = 0; i < packed.size; ++i) packed.data[i] = static_cast<uint8_t>(random.bits());
  for (i64 p = 0; p < panel_count(N); ++p) {
    const i64 width = panel_vectors(N, p) * W;
    for (i64 b = 0; b < ceil_div(K, block); ++b) {
      const bool zeros = Q::zero_bytes == static_cast<i64>(sizeof(Scale));
      Array<Scale> numbers(zeros ? 2 * width : width, random);
      memcpy(packed.data + Q::panel_bytes(p * gemm_nr, K, block) + b * Q::block_bytes(width, block), numbers.data,
             static_cast<size_t>(numbers.size) * sizeof(Scale));
    }
  }
}

}  // namespace opsmith::test
