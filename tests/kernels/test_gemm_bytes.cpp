// gemm_bytes and matmul_bytes against their references, bit for bit, over sizes around every tile edge and all four pairs of
// signedness, with extreme bytes.
#include "gemm_bytes.hpp"

#include "byte_cases.hpp"

using namespace opsmith;
using namespace opsmith::test;

template <class TA, class TB>
void check(const Pool& pool, Random& random, i64 batch, i64 M, i64 N, i64 K, bool transposed, bool share_b, int zero_kind) {
  const i64 a_row = K + random.below(5), a_batch = M * a_row + 3, b_row = transposed ? 1 : N + 1, b_col = transposed ? K + 2 : 1;
  const i64 b_batch = share_b ? 0 : N * K + 2 * (N + K);
  const i64 a_step = zero_kind & 1, b_step = zero_kind >> 1 & 1;
  const auto a = bytes<TA>(random, batch * a_batch + K), b = bytes<TB>(random, batch * (N * K + 2 * (N + K)) + 1);
  const auto a_zeros = bytes<TA>(random, M + 1), b_zeros = bytes<TB>(random, N + 1);
  const RowZeros<TA> a_zero{zero_kind & 4 ? nullptr : a_zeros.data, a_step};
  const TB* b_zero = zero_kind & 8 ? nullptr : b_zeros.data;
  Array<int32_t> got(batch * M * N), want(batch * M * N);
  Array<float> got_f(batch * M * N), want_f(batch * M * N);
  Array<char> workspace(matmul_bytes_workspace(batch, N, K));
  auto sums = [](I sum, Row, i64, auto) { return sum; };
  auto floats = [](I sum, Row row, i64 column, auto) {
    return __builtin_convertvector(sum, F) * splat(0.5f) + splat(static_cast<float>(row.outer + row.index % 7 + column / gemm_nr));
  };
  auto call = [&](auto f, auto& c, auto ep) {
    f(pool, batch, M, N, K, a.data, a_batch, a_row, a_zero, b.data, b_batch, b_row, b_col, b_zero, b_step, c.data,
      static_cast<void*>(workspace.data), ep);
  };
  call([](auto&&... x) { matmul_bytes(x...); }, got, sums);
  call([](auto&&... x) { matmul_bytes_reference(x...); }, want, sums);
  call([](auto&&... x) { matmul_bytes(x...); }, got_f, floats);
  call([](auto&&... x) { matmul_bytes_reference(x...); }, want_f, floats);
  char name[120];
  snprintf(name, sizeof name, "matmul_bytes %d%d batch=%d M=%d N=%d K=%d kind=%d", is_signed_integer<TA>, is_signed_integer<TB>, int(batch),
           int(M), int(N), int(K), zero_kind);
  expect_close(name, got.data, want.data, got.size, 0, 0);
  expect_close(name, got_f.data, want_f.data, got.size, 0, 0);
  if (batch != 1 || M == 0 || N == 0) return;
  // The packed form, as compile time makes it, through gemm_bytes and its own reference.
  int32_t* packed_sums = reinterpret_cast<int32_t*>(workspace.data + round_up(packed_bytes(N, K), 64));
  int32_t* packed_zeros = packed_sums + round_up(N, 16);
  const int8_t* packed = reinterpret_cast<const int8_t*>(workspace.data);
  bool symmetric = true;
  for (i64 n = 0; n < N; ++n) symmetric = symmetric && packed_zeros[n] == 0;
  if (symmetric) packed_zeros = nullptr;
  gemm_bytes(pool, M, N, K, a.data, a_row, a_zero, packed, packed_sums, packed_zeros, got.data, N, sums);
  expect_close(name, got.data, want.data, got.size, 0, 0);
  gemm_bytes_reference(pool, M, N, K, a.data, a_row, a_zero, packed, packed_sums, packed_zeros, got.data, N, sums);
  expect_close(name, got.data, want.data, got.size, 0, 0);
}

template <class TA, class TB>
void check_all(const Pool& one, const Pool& three, Random& random) {
  int kind = 0;
  for (i64 M : {0, 1, 2, 3, 5, 8, 9, 13})
    for (i64 N : {0, 1, 3, 4, 15, 16, 17, 33, 48, 49, 97})
      for (i64 K : {0, 1, 2, 3, 4, 7, 33, 131}) check<TA, TB>(M % 2 ? one : three, random, 1, M, N, K, false, false, kind++ % 16);
  for (int flags = 0; flags < 4; ++flags)
    for (i64 batch : {2, 5}) check<TA, TB>(three, random, batch, 9, 50, 33, flags & 1, flags & 2, kind++ % 16);
  check<TA, TB>(three, random, 1, 401, 130, 260, false, false, 0);
  check<TA, TB>(three, random, 1, 401, 130, 260, true, false, 12);
}

int main() {
  Random random;
  Threads threads(3);
  const Pool one = serial(), three = threads.pool();
  check_all<uint8_t, int8_t>(one, three, random);
  check_all<int8_t, int8_t>(one, three, random);
  check_all<uint8_t, uint8_t>(one, three, random);
  check_all<int8_t, uint8_t>(one, three, random);
  return finish();
}
