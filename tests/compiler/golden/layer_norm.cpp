// ===== layer_norm_relu_dbb620.cpp
// layer norm; then Relu
#include "norm.hpp"
#include "elementwise.hpp"

namespace opsmith {

void layer_norm_relu_dbb620(const Pool& pool, i64 rows, i64 cols, const float* x, i64 x_stride, const float* scale, const float* bias, float eps, float* y, i64 y_stride, i64 rows_per_outer) {
  layer_norm(pool, rows, cols, x, x_stride, scale, bias, eps, y, y_stride, [=]([[maybe_unused]] F acc, [[maybe_unused]] Row row, [[maybe_unused]] i64 col, [[maybe_unused]] auto lanes) -> F {
    const F t0 = relu(acc);
    return t0;
  }, rows_per_outer);
}

}  // namespace opsmith

// ===== region0.cpp
// Region region0: 1 calls.

#include "memory.hpp"
#include "ort_abi.hpp"
#include "instances.hpp"

namespace opsmith {

OrtStatus* region0(const Kernel& kernel, OrtKernelContext* context) {
  Run run(kernel, context, "region0");

  // Inputs, with their sizes
  i64 dims0[2] = {};
  [[maybe_unused]] const float* in0_x = static_cast<const float*>(run.input(0, "x", 1, 2, dims0));
  if (run.failed()) return run.status;
  [[maybe_unused]] const i64 n = dims0[0];
  run.check_equal("x", "size of axis 1", dims0[1], 8);
  if (run.failed()) return run.status;

  // Memory
  [[maybe_unused]] const float* w0 = reinterpret_cast<const float*>(kernel.weights + 0);
  [[maybe_unused]] const float* w1 = reinterpret_cast<const float*>(kernel.weights + 64);
  const i64 out_dims0[] = {n, 8};
  float* out0_y = static_cast<float*>(run.output(0, out_dims0, 2));
  if (run.failed()) return run.status;
  const i64 workspace_at = 0;
  uint8_t* arena = run.arena(workspace_at);
  if (run.failed()) return run.status;
  [[maybe_unused]] void* workspace = arena + workspace_at;
  [[maybe_unused]] const Pool pool = run.pool();
  Stopwatch watch("region0");

  // LayerNormalization_l: (n, 8)
  layer_norm_relu_dbb620(pool, n, 8, in0_x, 8, w0, w1, 1e-05f, out0_y, 8, 1);
  watch.lap(0, "layer_norm_relu_dbb620", "LayerNormalization_l", 64.0 * n, 64.0 + 64.0 * n);
  return run.status;
}

}  // namespace opsmith
