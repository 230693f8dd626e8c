// gemm_quantized against its reference: 8 and 4 bits, both scale types, with and without zero points, extreme numbers.
#include "quant.hpp"

#include <math.h>

#include "arrays.hpp"
#include "quant_cases.hpp"

using namespace opsmith;
using namespace opsmith::test;

template <int Bits, class Scale, int Zero>
static void check(const Pool& pool, Random& random, i64 M, i64 N, i64 K, i64 block, bool uneven = false) {
  using Q = Quantized<Bits, Scale, Zero>;
  const i64 lda = K + random.below(4), ldc = N + random.below(4);
  Array<float> a(M > 0 ? (M - 1) * lda + K : 0, random), bias(N, random), got(M * ldc, random), want(got);
  for (i64 i = 0; uneven && i < a.size; ++i) a.data[i] *= ::powf(10.0f, static_cast<float>(random.below(60) - 30));
  Array<uint8_t> packed(Q::bytes(N, K, block));
  fill_quantized<Q, Scale>(packed, random, N, K, block);
  auto ep = [bias = bias.data](F sum, Row row, i64 column, auto lanes) {
    return sum + load(bias + column, lanes) + splat(static_cast<float>(row.outer));
  };
  gemm_quantized<Bits, Scale, Zero, true>(pool, M, N, K, block, a.data, lda, packed.data, got.data, ldc, ep, 3);
  gemm_quantized_reference<Bits, Scale, Zero>(pool, M, N, K, block, a.data, lda, packed.data, want.data, ldc, ep, 3);
  char name[120];
  snprintf(name, sizeof name, "%d bits, scale of %d bytes, zero %d, M=%d N=%d K=%d block=%d", Bits, int(sizeof(Scale)),
           Zero, int(M), int(N), int(K), int(block));
  expect_near(name, got, want, 5e-6);
}

template <int Bits, class Scale, int Zero>
static void check_all(const Pool& pool, Random& random) {
  for (i64 M : {0, 1, 2, 3, 6, 8, 9, 30})
    for (i64 N : {1, 16, 50, 97})
      for (i64 K : {0, 1, 31, 64, 77}) check<Bits, Scale, Zero>(pool, random, M, N, K, K == 64 ? 32 : 16);
  check<Bits, Scale, Zero>(pool, random, 1, 130, 600, 256);
  check<Bits, Scale, Zero>(pool, random, 40, 60, 2500, 128);  // a panel in several parts
  for (i64 M : {1, 2}) {
    if (Bits == 4) check<Bits, Scale, Zero>(pool, random, M, 49, 17000, 24);  // deeper than fixed point goes
    check<Bits, Scale, Zero>(pool, random, M, 49, 200, 40, true);
  }
}

// One infinite or NaN value of A reaches every column, and only its own row; the smallest and largest numbers stay right.
static void check_extremes(const Pool& pool, Random& random) {
  const i64 N = 50, K = 64, block = 32;
  using Q = Quantized<4, float, false>;
  Array<uint8_t> packed(Q::bytes(N, K, block));
  for (i64 i = 0; i < packed.size; ++i) packed.data[i] = 0x11;  // every weight is 1
  for (i64 p = 0; p < panel_count(N); ++p) {
    const i64 width = panel_vectors(N, p) * W;
    for (i64 b = 0; b < 2; ++b)
      for (i64 n = 0; n < width; ++n) {
        const float one = 1;
        memcpy(packed.data + Q::panel_bytes(p * gemm_nr, K, block) + b * Q::block_bytes(width, block) + n * 4, &one, 4);
      }
  }
  auto ep = [](F sum, Row, i64, auto) { return sum; };
  for (float extreme : {__builtin_inff(), -__builtin_inff(), __builtin_nanf(""), 3e38f, 1e-30f, 0.0f}) {
    Array<float> a(2 * K, random), got(2 * N, random), want(2 * N, random);
    for (i64 i = 0; i < 2 * K; ++i) a.data[i] = i % K == 40 ? (i < K ? extreme : 2.0f) : 0.0f;
    gemm_quantized<4, float, false>(pool, 2, N, K, block, a.data, K, packed.data, got.data, N, ep);
    for (i64 i = 0; i < 2 * N; ++i) want.data[i] = i < N ? extreme : 2.0f;
    bool same = true;
    for (i64 i = 0; i < 2 * N; ++i)
      same &= got.data[i] == want.data[i] || (got.data[i] != got.data[i] && want.data[i] != want.data[i]);
    if (!same) {
      ++failures();
      printf("A holds %g: got %g and %g\n", static_cast<double>(extreme), static_cast<double>(got.data[0]),
             static_cast<double>(got.data[N]));
    }
  }
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
  check_extremes(pool, random);
  return finish();
}
