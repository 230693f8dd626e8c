// gather_blocks.hpp against a table that is written out: every width, blocks that do not divide a row, rows that are not there.
#include "gather_blocks.hpp"

#include "harness.hpp"

using namespace opsmith;
using namespace opsmith::test;

template <int Bits, class TS>
static void check(const Pool& pool, i64 rows, i64 inner, i64 cols, i64 block, bool with_zeros) {
  constexpr i64 kPer = 8 / Bits;
  Random random(static_cast<uint64_t>(rows * 131 + cols));
  const i64 blocks = ceil_div(cols, block), zero_bytes = ceil_div(blocks, kPer);
  const i64 lines = rows * inner;
  std::vector<uint8_t> table(static_cast<size_t>(lines * cols / kPer)), zeros(static_cast<size_t>(lines * zero_bytes));
  std::vector<int> plain(static_cast<size_t>(lines * cols)), middle(static_cast<size_t>(lines * blocks), 1 << (Bits - 1));
  std::vector<TS> scales;
  auto put = [](std::vector<uint8_t>& in, i64 byte, i64 place, int value) {
    in[static_cast<size_t>(byte)] = static_cast<uint8_t>(in[static_cast<size_t>(byte)] | value << (place * Bits));
  };
  for (i64 i = 0; i < lines * blocks; ++i) scales.push_back(from_float<TS>(static_cast<float>(1 + i % 7) / 8));
  for (i64 i = 0; i < lines * cols; ++i) {
    plain[static_cast<size_t>(i)] = static_cast<int>(random.below(1 << Bits));
    put(table, i / kPer, i % kPer, plain[static_cast<size_t>(i)]);
  }
  for (i64 i = 0; with_zeros && i < lines * blocks; ++i) {
    middle[static_cast<size_t>(i)] = static_cast<int>(random.below(1 << Bits));
    put(zeros, i / blocks * zero_bytes + i % blocks / kPer, i % blocks % kPer, middle[static_cast<size_t>(i)]);
  }
  const std::vector<int32_t> indices{0, static_cast<int32_t>(rows - 1), -1, static_cast<int32_t>(rows), static_cast<int32_t>(-rows - 1), 0};
  const i64 count = static_cast<i64>(indices.size());
  std::vector<TS> y(static_cast<size_t>(count * inner * cols), from_float<TS>(7));
  gather_blocks<Bits>(pool, rows, inner, cols, block, table.data(), scales.data(), with_zeros ? zeros.data() : nullptr, count, indices.data(), y.data());
  for (i64 k = 0; k < count; ++k)
    for (i64 j = 0; j < inner * cols; ++j) {
      i64 at = indices[static_cast<size_t>(k)];
      at = at < 0 ? at + rows : at;
      float want = 0;
      if (at >= 0 && at < rows) {
        const i64 i = at * inner * cols + j;
        const size_t b = static_cast<size_t>(i / cols * blocks + i % cols / block);
        want = static_cast<float>(plain[static_cast<size_t>(i)] - middle[b]) * to_float(scales[b]);
      }
      CHECK(to_float(y[static_cast<size_t>(k * inner * cols + j)]) == to_float(from_float<TS>(want)));
    }
}

int main() {
  Threads threads(3);
  for (const Pool& pool : {serial(), threads.pool()})
    for (bool zeros : {false, true}) {
      check<4, float>(pool, 5, 1, 64, 16, zeros);
      check<4, half>(pool, 3, 2, 40, 16, zeros);
      check<8, float>(pool, 4, 1, 33, 16, zeros);
      check<8, half>(pool, 1, 3, 16, 32, zeros);
      check<2, float>(pool, 7, 1, 100, 32, zeros);
    }
  return finish();
}
