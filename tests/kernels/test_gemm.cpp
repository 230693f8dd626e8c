// gemm and matmul against their references, over sizes around every tile edge.
#include "gemm.hpp"

#include "arrays.hpp"

using namespace opsmith;
using namespace opsmith::test;

template <class TA, class TB, class TC>
void check_gemm(const Pool& pool, Random& random, i64 M, i64 N, i64 K, double tolerance) {
  i64 lda = K + random.below(5), ldc = N + random.below(5), per_item = random.below(2) ? 1 + random.below(9) : 0;
  Array<TA> a(M > 0 ? (M - 1) * lda + K : 0, random);
  Array<TB> b(packed_size<TB>(N, K), random);
  Array<float> bias(N, random), item(M + 1, random);
  Array<TC> got(M * ldc, random), want(got);
  auto ep = [=, bias = bias.data, item = item.data](F sum, Row row, i64 column, auto lanes) {
    return sum * splat(0.5f) + load(bias + column, lanes) + splat(item[row.outer] + 0.25f * static_cast<float>(row.index % 7));
  };
  gemm(pool, M, N, K, a.data, lda, b.data, got.data, ldc, ep, per_item);
  gemm_reference(pool, M, N, K, a.data, lda, b.data, want.data, ldc, ep, per_item);
  char name[100];
  snprintf(name, sizeof name, "gemm M=%d N=%d K=%d lda=%d ldc=%d", int(M), int(N), int(K), int(lda), int(ldc));
  expect_near(name, got, want, tolerance);
}

void check_matmul(const Pool& pool, Random& random, i64 batch, i64 M, i64 N, i64 K, bool a_t, bool b_t, bool share_a,
                  bool share_b) {
  i64 a_row = a_t ? 1 : K + 1, a_col = a_t ? M + 2 : 1, b_row = b_t ? 1 : N + 1, b_col = b_t ? K + 3 : 1;
  i64 a_batch = share_a ? 0 : M * K + 40 * (M + K), b_batch = share_b ? 0 : N * K + 40 * (N + K), ldc = N + 2, c_batch = M * ldc + 5;
  Array<float> a((share_a ? 0 : (batch - 1) * a_batch) + (M - 1) * a_row + (K - 1) * a_col + 1, random);
  Array<float> b((share_b ? 0 : (batch - 1) * b_batch) + (K - 1) * b_row + (N - 1) * b_col + 1, random);
  Array<float> item(batch, random), got(batch * c_batch, random), want(got);
  Array<char> workspace(matmul_workspace(batch, M, N, K));
  auto ep = [=, item = item.data](F sum, Row row, i64 column, auto) {
    return sum + splat(item[row.outer] + 0.125f * static_cast<float>(row.index % 5) + 0.5f * static_cast<float>(column / gemm_nr));
  };
  auto call = [&](auto f, Array<float>& c) {
    f(pool, batch, M, N, K, a.data, a_batch, a_row, a_col, b.data, b_batch, b_row, b_col, c.data, c_batch, ldc,
      static_cast<void*>(workspace.data), ep);
  };
  call([](auto&&... x) { matmul(x...); }, got);
  call([](auto&&... x) { matmul_reference(x...); }, want);
  char name[100];
  snprintf(name, sizeof name, "matmul batch=%d M=%d N=%d K=%d a_t=%d b_t=%d share=%d%d", int(batch), int(M), int(N),
           int(K), a_t, b_t, share_a, share_b);
  expect_near(name, got, want, 2e-6);
}

int main() {
  Random random;
  Threads threads(3);
  Pool one = serial(), three = threads.pool();
  for (i64 M : {0, 1, 2, 3, 5, 7, 8, 9, 13, 17, 31})
    for (i64 N : {0, 1, 3, 4, 8, 15, 16, 17, 33, 47, 48, 49, 97})
      for (i64 K : {0, 1, 2, 3, 7, 33}) check_gemm<float, float, float>(M % 2 ? one : three, random, M, N, K, 2e-6);
  check_gemm<float, float, float>(three, random, 401, 130, 65, 2e-6);
  check_gemm<float, float, float>(three, random, 1, 1000, 700, 4e-6);
  check_gemm<float, float, float>(three, random, 205, 500, 300, 4e-6);
  for (i64 M : {1, 4, 19})
    for (i64 N : {5, 64, 100}) {
      check_gemm<float, f16, float>(three, random, M, N, 77, 2e-6);
      check_gemm<float, bf16, float>(three, random, M, N, 77, 2e-6);
      check_gemm<f16, f16, f16>(three, random, M, N, 77, 1e-3);
      check_gemm<bf16, bf16, bf16>(three, random, M, N, 77, 8e-3);
      check_gemm<bf16, float, float>(three, random, M, N, 77, 2e-6);
    }
  for (i64 M : {0, 1, 2, 3, 5, 8, 9, 13, 31})
    for (i64 N : {0, 1, 5, 16, 17, 48, 49, 97})
      for (i64 K : {0, 1, 2, 3, 8, 33, 77}) {
        check_gemm<bf16, bf16x2, float>(M % 2 ? one : three, random, M, N, K, 4e-6);
        check_gemm<float, bf16x2, float>(M % 2 ? one : three, random, M, N, K, 4e-6);
      }
  check_gemm<bf16, bf16x2, float>(three, random, 205, 500, 301, 1e-5);
  check_gemm<bf16, bf16x2, bf16>(three, random, 40, 100, 65, 8e-3);
  for (int flags = 0; flags < 16; ++flags)
    for (i64 batch : {1, 2, 5})
      for (i64 M : {1, 9, 40}) {
        check_matmul(three, random, batch, M, 50, 33, flags & 1, flags & 2, flags & 4, flags & 8);
        check_matmul(three, random, batch, M, 7, 3, flags & 1, flags & 2, flags & 4, flags & 8);
      }
  check_matmul(three, random, 2, 300, 100, 64, false, true, false, false);
  check_matmul(three, random, 1, 300, 300, 64, true, false, false, false);
  return finish();
}
