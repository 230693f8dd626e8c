// ===== gemm_add_relu_f51e64.cpp
// product with packed weights; then Add -> Relu
#include "gemm.hpp"
#include "elementwise.hpp"

namespace opsmith {

extern template MicroFn<float, float> pick_micro<gemm_mr, float, float, false>(i64, i64);  // micro_float_float.cpp

void gemm_add_relu_f51e64(const Pool& pool, i64 m, i64 n, i64 k, const float* a, i64 lda, const float* b, float* c, i64 ldc, i64 rows_per_item, const float* x0_at, i64 x0_ld) {
  gemm(pool, m, n, k, a, lda, b, c, ldc, [=]([[maybe_unused]] F acc, [[maybe_unused]] Row row, [[maybe_unused]] i64 col, [[maybe_unused]] auto lanes) -> F {
    const F x0 = load(x0_at + col, lanes);
    const F t0 = acc + x0;
    const F t1 = relu(t0);
    return t1;
  }, rows_per_item);
}

}  // namespace opsmith

// ===== gemm_c12863.cpp
// product with packed weights
#include "gemm.hpp"
#include "elementwise.hpp"

namespace opsmith {

extern template MicroFn<float, float> pick_micro<gemm_mr, float, float, false>(i64, i64);  // micro_float_float.cpp

void gemm_c12863(const Pool& pool, i64 m, i64 n, i64 k, const float* a, i64 lda, const float* b, float* c, i64 ldc, i64 rows_per_item) {
  gemm(pool, m, n, k, a, lda, b, c, ldc, [](F acc, Row, i64, auto) -> F { return acc; }, rows_per_item);
}

}  // namespace opsmith

// ===== micro_float_float.cpp
// the microkernel of products, for all kernels that share it
#include "gemm_micro.hpp"
#include "types.hpp"

namespace opsmith {

template MicroFn<float, float> pick_micro<gemm_mr, float, float, false>(i64, i64);

}  // namespace opsmith

// ===== region0.cpp
// Region region0: 2 calls.

#include "memory.hpp"
#include "ort_abi.hpp"
#include "instances.hpp"

namespace opsmith {

OrtStatus* region0(const Kernel& kernel, OrtKernelContext* context) {
  Run run(kernel, context, "region0");

  // Inputs, with their sizes
  i64 dims0[3] = {};
  [[maybe_unused]] const float* in0_x = static_cast<const float*>(run.input(0, "x", 1, 3, dims0));
  if (run.failed()) return run.status;
  [[maybe_unused]] const i64 batch = dims0[0];
  [[maybe_unused]] const i64 seq = dims0[1];
  run.check_equal("x", "size of axis 2", dims0[2], 8);
  if (run.failed()) return run.status;

  // Memory
  [[maybe_unused]] const float* w0 = reinterpret_cast<const float*>(kernel.weights + 0);
  [[maybe_unused]] const float* w1 = reinterpret_cast<const float*>(kernel.weights + 64);
  [[maybe_unused]] const float* w2 = reinterpret_cast<const float*>(kernel.weights + 576);
  const i64 out_dims0[] = {batch, seq, 4};
  float* out0_y = static_cast<float*>(run.output(0, out_dims0, 3));
  if (run.failed()) return run.status;
  const i64 slot0 = 0;
  const i64 slot0_end = slot0 + round_up(slot_bytes(__int128(64) * batch * seq), 64);
  const i64 workspace_at = slot0_end;
  uint8_t* arena = run.arena(workspace_at);
  if (run.failed()) return run.status;
  [[maybe_unused]] void* workspace = arena + workspace_at;
  float* r = reinterpret_cast<float*>(arena + slot0);
  [[maybe_unused]] const Pool pool = run.pool();
  Stopwatch watch("region0");

  // MatMul_h: ((batch * seq), 8) @ (8, 16); Add -> Relu
  gemm_add_relu_f51e64(pool, (batch * seq), 16, 8, in0_x, 8, w1, r, 16, seq, w0, 0);
  watch.lap(0, "gemm_add_relu_f51e64", "MatMul_h", 256.0 * batch * seq, 576.0 + 96.0 * batch * seq);
  // MatMul_y: ((batch * seq), 16) @ (16, 4)
  gemm_c12863(pool, (batch * seq), 4, 16, r, 16, w2, out0_y, 4, seq);
  watch.lap(1, "gemm_c12863", "MatMul_y", 128.0 * batch * seq, 512.0 + 80.0 * batch * seq);
  return run.status;
}

}  // namespace opsmith
