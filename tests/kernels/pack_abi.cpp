// The kernels under C names, so that test_pack.py can hand them what compile/pack.py packed.
#include "gemm.hpp"

using namespace opsmith;

static constexpr Pool serial{nullptr, nullptr, 1};

extern "C" {
int lanes() { return static_cast<int>(W); }

void gemm_f32(i64 M, i64 N, i64 K, const float* a, const float* packed, float* c) {
  gemm(serial, M, N, K, a, K, packed, c, N, [](F sum, Row, i64, auto) { return sum; });
}
}
