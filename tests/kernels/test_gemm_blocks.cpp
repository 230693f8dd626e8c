// gemm_blocks and quantize_blocks against their references: 8 and 4 bits, every kind of zero points, sizes around every edge, and rows
// that are not numbers.
#include "gemm_blocks.hpp"
#include "quantize_blocks.hpp"

#include "arrays.hpp"
#include "quant_cases.hpp"

using namespace opsmith;
using namespace opsmith::test;

struct Quantization {
  Array<int8_t> values;
  Array<float> units, sums;
  Quantization(i64 rows, i64 K, i64 block)
      : values(rows * round_up(K, block)), units(rows * ceil_div(K, block)), sums(rows * ceil_div(K, block)) {}
};

template <int Bits, class Scale, int Zero>
static void check(const Pool& pool, Random& random, i64 M, i64 N, i64 K, i64 block) {
  using Q = Quantized<Bits, Scale, Zero>;
  const i64 ldc = N + random.below(4);
  Array<float> a(M * K, random), bias(N, random), got(M * ldc, random), want(got);
  Quantization x(M, K, block);
  quantize_blocks(pool, M, K, block, a.data, K, x.values.data, x.units.data, x.sums.data);
  Array<uint8_t> packed(Q::bytes(N, K, block));
  fill_quantized<Q, Scale>(packed, random, N, K, block);
  auto ep = [bias = bias.data](F sum, Row row, i64 column, auto lanes) {
    return sum + load(bias + column, lanes) + splat(static_cast<float>(row.outer));
  };
  gemm_blocks<Bits, Scale, Zero>(pool, M, N, K, block, x.values.data, x.units.data, x.sums.data, packed.data, got.data, ldc, ep, 3);
  gemm_blocks_reference<Bits, Scale, Zero>(pool, M, N, K, block, x.values.data, x.units.data, x.sums.data, packed.data, want.data, ldc, ep,
                                           3);
  char name[120];
  snprintf(name, sizeof name, "%d bits, scale of %d bytes, zero %d, M=%d N=%d K=%d block=%d", Bits, int(sizeof(Scale)), Zero, int(M),
           int(N), int(K), int(block));
  expect_near(name, got, want, 2e-6);
  for (i64 m = 0; m < min<i64>(M, 3); ++m) {  // a row alone gives the same bits
    Array<float> alone(N, random);
    auto same = [=](F sum, Row, i64 column, auto lanes) { return ep(sum, Row{m, m / 3}, column, lanes); };
    const i64 blocks = ceil_div(K, block);
    gemm_blocks<Bits, Scale, Zero>(pool, 1, N, K, block, x.values.data + m * blocks * block, x.units.data + m * blocks,
                                   x.sums.data + m * blocks, packed.data, alone.data, N, same);
    CHECK(memcmp(alone.data, got.data + m * ldc, static_cast<size_t>(N) * 4) == 0);
  }
}

template <int Bits, class Scale, int Zero>
static void check_all(const Pool& pool, Random& random) {
  for (i64 M : {0, 1, 2, 3, 4, 7, 8, 9, 19})
    for (i64 N : {1, 16, 50, 97})
      for (i64 K : {0, 1, 31, 64, 77}) check<Bits, Scale, Zero>(pool, random, M, N, K, K == 64 ? 32 : 16);
  check<Bits, Scale, Zero>(pool, random, 5, 130, 600, 256);
  check<Bits, Scale, Zero>(pool, random, 8, 49, 1000, 40);
  check<Bits, Scale, Zero>(pool, random, 210, 60, 256, 128);
}

template <class TX>
static void check_rows(const Pool& pool, Random& random, i64 rows, i64 columns, i64 block) {
  const i64 x_row = columns + random.below(3);
  Array<TX> x(rows * x_row, random);
  for (i64 i = 0; i < x.size; i += 41) x.data[i] = from_float<TX>(1e4f);
  for (i64 c = 0; rows > 4 && c < columns; ++c) {
    x.data[c] = from_float<TX>(0);
    if (c == columns / 2) x.data[x_row + c] = from_float<TX>(__builtin_nanf("")), x.data[2 * x_row + c] = from_float<TX>(-__builtin_inff());
  }
  Quantization got(rows, columns, block), want(rows, columns, block);
  quantize_blocks(pool, rows, columns, block, x.data, x_row, got.values.data, got.units.data, got.sums.data);
  quantize_blocks_reference(pool, rows, columns, block, x.data, x_row, want.values.data, want.units.data, want.sums.data);
  expect_close("units", got.units.data, want.units.data, got.units.size, 1e-6, 0);
  expect_close("bytes", got.values.data, want.values.data, got.values.size, 0, 0);
  expect_close("sums", got.sums.data, want.sums.data, got.sums.size, 0, 0);
  const i64 blocks = ceil_div(columns, block);
  for (i64 r = 0; r < rows; ++r)
    for (i64 c = 0; c < columns; ++c) {
      const float unit = got.units.data[r * blocks + c / block], back = unit * got.values.data[(r * blocks + c / block) * block + c % block];
      CHECK(unit != unit || fabsf(back - to_float(x.data[r * x_row + c])) <= 0.501f * unit);
    }
}

// A value that is not finite spoils its own row, and no other.
static void check_extremes(const Pool& pool, Random& random) {
  using Q = Quantized<4, float, kNoZeros>;
  const i64 M = 3, N = 20, K = 64, block = 32;
  Array<uint8_t> packed(Q::bytes(N, K, block));
  fill_quantized<Q, float>(packed, random, N, K, block);
  auto ep = [](F sum, Row, i64, auto) { return sum; };
  for (float extreme : {__builtin_inff(), __builtin_nanf(""), 3.3e38f, 1e-38f}) {
    Array<float> a(M * K, random), got(M * N, random);
    a.data[K + 40] = extreme;
    Quantization x(M, K, block);
    quantize_blocks(pool, M, K, block, a.data, K, x.values.data, x.units.data, x.sums.data);
    gemm_blocks<4, float, kNoZeros>(pool, M, N, K, block, x.values.data, x.units.data, x.sums.data, packed.data, got.data, N, ep);
    const bool finite = extreme < 3.4e38f;
    for (i64 i = 0; i < M * N; ++i) CHECK((got.data[i] == got.data[i]) == (i / N != 1 || finite));
  }
}

int main() {
  Random random;
  Threads threads(3);
  Pool pool = threads.pool();
  check_all<8, float, kNoZeros>(pool, random);
  check_all<8, f16, kByteZeros>(pool, random);
  check_all<4, float, kByteZeros>(pool, random);
  check_all<4, f16, kNoZeros>(pool, random);
  check_all<8, f16, kFloatZeros>(pool, random);
  check_all<4, float, kFloatZeros>(pool, random);
  for (i64 rows : {0, 1, 7})
    for (i64 columns : {1, 16, 33, 100}) {
      check_rows<float>(pool, random, rows, columns, 32);
      check_rows<bf16>(pool, random, rows, columns, 16);
    }
  check_rows<f16>(pool, random, 40, 1000, 40);
  check_extremes(pool, random);
  return finish();
}
