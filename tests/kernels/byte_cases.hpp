// Random bytes for the tests of quantized kernels: a third of them at the ends of the range, where sums of 16 bits would
// saturate.
#pragma once

#include "arrays.hpp"
#include "types.hpp"

namespace opsmith::test {

template <class T>
Array<T> bytes(Random& random, i64 count) {
  Array<T> a(count);
  for (i64 i = 0; i < count; ++i)
    a.data[i] = random.below(3) ? static_cast<T>(random.bits() >> 40) : random.below(2) ? highest_of<T> : lowest_of<T>;
  return a;
}

}  // namespace opsmith::test
