// A few rows in 16 bits: as exact as floats where 16 bits hold the numbers, else as exact as the nearest that they hold.
#include "arrays.hpp"
#include "quant_cases.hpp"
#include "quant.hpp"

using namespace opsmith;
using namespace opsmith::test;

enum class Rows { whole, between };

template <int Bits, class Scale, int Zero>
static void check(const Pool& pool, Random& random, i64 M, i64 N, i64 K, i64 block, Rows kind) {
  using Q = Quantized<Bits, Scale, Zero>;
  const i64 lda = K + random.below(4), ldc = N + random.below(4);
  Array<float> a(M > 0 ? (M - 1) * lda + K : 0, random), bias(N, random), got(M * ldc, random), want(got);
  // In units that are a power of two per block, the largest number is the largest that 16 bits hold; with a quarter more the
  // others have to be rounded, and it is known to what.
  Array<float> rounded(a.size, random);
  for (i64 r = 0; r < M; ++r)
    for (i64 k = 0; k < K; ++k) {
      const float unit = 1.0f / static_cast<float>(i64{1} << (k / block + r) % 20);
      const float number = k % block == 0 ? -32767.0f : static_cast<float>(random.below(65533) - 32766);
      rounded.data[r * lda + k] = number * unit;
      a.data[r * lda + k] = (number + (kind == Rows::whole || k % block == 0 ? 0.0f : 0.25f)) * unit;
    }
  Array<uint8_t> packed(Q::bytes(N, K, block));
  fill_quantized<Q, Scale>(packed, random, N, K, block);
  auto ep = [bias = bias.data](F sum, Row row, i64 column, auto lanes) {
    return sum + load(bias + column, lanes) + splat(static_cast<float>(row.outer));
  };
  // called as it is, so that CPUs without the instruction run it too
  const Tiling tiling = tile_work(pool, M, N, K);
  const bool done = gemm_pair_rows<Q, Bits, Zero>(pool, tiling, M, N, K, block, a.data, lda, packed.data, got.data, ldc, ep, 3);
  gemm_quantized_reference<Bits, Scale, Zero>(pool, M, N, K, block, rounded.data, lda, packed.data, want.data, ldc, ep, 3);
  char name[140];
  snprintf(name, sizeof name, "%d bits, zero %d, M=%d N=%d K=%d block=%d, %s rows", Bits, Zero, int(M), int(N), int(K), int(block),
           kind == Rows::whole ? "whole" : "rounded");
  if (!done) {
    ++failures();
    printf("%s: not done\n", name);
    return;
  }
  expect_near(name, got, want, 5e-6);
}

template <int Bits, class Scale, int Zero>
static void check_all(const Pool& pool, Random& random) {
  for (Rows kind : {Rows::whole, Rows::between}) {
    for (i64 M : {1, 3, 6, 8, 9, 16})
      for (i64 N : {1, 16, 50, 97})
        for (i64 K : {0, 1, 31, 64, 77}) check<Bits, Scale, Zero>(pool, random, M, N, K, K == 64 ? 32 : 16, kind);
    check<Bits, Scale, Zero>(pool, random, 5, 130, 600, 256, kind);
    check<Bits, Scale, Zero>(pool, random, 8, 49, 1000, 40, kind);
  }
}

// What 16 bits do not hold is left to floats: through the front door every answer stays right.
static void check_refusals(const Pool& pool, Random& random) {
  using Q = Quantized<8, float, false>;
  const i64 M = 4, N = 20, K = 64, block = 32;
  Array<uint8_t> packed(Q::bytes(N, K, block));
  for (i64 i = 0; i < packed.size; ++i) packed.data[i] = 1;
  auto ep = [](F sum, Row, i64, auto) { return sum; };
  Array<float> got(M * N, random);
  const Tiling tiling = tile_work(pool, M, N, K);
  for (float extreme : {__builtin_inff(), __builtin_nanf(""), 3.3e38f, 1e-38f}) {
    Array<float> a(M * K, random);
    for (i64 k = 0; k < K; ++k) a.data[2 * K + k] = k == 40 ? extreme : 0.0f;
    if (gemm_pair_rows<Q, 8, false>(pool, tiling, M, N, K, block, a.data, K, packed.data, got.data, N, ep, 0)) {
      ++failures();
      printf("%g was taken in 16 bits\n", static_cast<double>(extreme));
    }
  }
  if (PairRows<8>::fits(3, 20000, 32) || !PairRows<8>::fits(3, 16384, 32)) ++failures(), printf("depth is not looked at\n");
}

int main() {
  Random random;
  Threads threads(3);
  Pool pool = threads.pool();
  check_all<8, float, false>(pool, random);
  check_all<8, f16, true>(pool, random);
  check_all<4, float, true>(pool, random);
  check_all<4, f16, false>(pool, random);
  check_all<8, f16, kFloatZeros>(pool, random);
  check_all<4, float, kFloatZeros>(pool, random);
  check_refusals(pool, random);
  return finish();
}
