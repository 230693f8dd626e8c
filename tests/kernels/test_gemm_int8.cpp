// gemm_int8 against its reference over sizes around every tile edge, storing floats and bf16.
#include "gemm_int8.hpp"

#include "byte_cases.hpp"

using namespace opsmith;
using namespace opsmith::test;

template <class TC>
void check(const Pool& pool, Random& random, i64 M, i64 N, i64 K, i64 rows_per_item) {
  const i64 lda = K + random.below(3), ldc = N + random.below(3);
  const auto a = bytes<uint8_t>(random, M * lda), zeros = bytes<uint8_t>(random, M);
  const auto packed = bytes<int8_t>(random, packed_bytes(N, K));
  Array<float> a_scales(M, random), b_scales(N, random), bias(N, random);
  Array<int32_t> sums(N);
  for (i64 n = 0; n < N; ++n) {
    const i64 panel = n / gemm_nr, width = panel_vectors(N, panel) * W;
    sums.data[n] = 0;
    for (i64 k = 0; k < K; ++k) sums.data[n] += packed.data[packed_bytes(panel * gemm_nr, K) + n % gemm_nr * 4 + k / 4 * width * 4 + k % 4];
  }
  const float* added = bias.data;
  auto ep = [=](F sum, Row row, i64 column, auto lanes) { return sum + load(added + column, lanes) + splat(static_cast<float>(row.outer)); };
  Array<TC> got(M * ldc, random), want(got);
  gemm_int8(pool, M, N, K, a.data, lda, a_scales.data, zeros.data, packed.data, sums.data, b_scales.data, got.data, ldc, ep, rows_per_item);
  gemm_int8_reference(pool, M, N, K, a.data, lda, a_scales.data, zeros.data, packed.data, sums.data, b_scales.data, want.data, ldc, ep,
                      rows_per_item);
  char name[80];
  snprintf(name, sizeof name, "gemm_int8 M=%d N=%d K=%d", int(M), int(N), int(K));
  expect_near(name, got, want, __is_same(TC, float) ? 1e-6 : 8e-3);
}

int main() {
  Random random;
  Threads threads(3);
  const Pool one = serial(), three = threads.pool();
  for (i64 M : {0, 1, 2, 7, 8, 9, 33})
    for (i64 N : {1, 15, 16, 17, 48, 49, 97})
      for (i64 K : {1, 3, 4, 33, 130}) {
        check<float>(M % 2 ? one : three, random, M, N, K, M % 3);
        check<bf16>(three, random, M, N, K, 0);
      }
  check<float>(three, random, 400, 130, 512, 100);
  return finish();
}
