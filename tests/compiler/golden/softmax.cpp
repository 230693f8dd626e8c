// ===== softmax_6e2f6a.cpp
// softmax along an axis
#include "softmax.hpp"

namespace opsmith {

void softmax_6e2f6a(const Pool& pool, i64 outer, i64 axis, i64 inner, const float* x, float* y) {
  softmax(pool, outer, axis, inner, x, y);
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
  [[maybe_unused]] const i64 m = dims0[1];
  if (run.failed()) return run.status;

  // Memory
  const i64 out_dims0[] = {n, m};
  float* out0_y = static_cast<float*>(run.output(0, out_dims0, 2));
  if (run.failed()) return run.status;
  const i64 workspace_at = 0;
  uint8_t* arena = run.arena(workspace_at);
  if (run.failed()) return run.status;
  [[maybe_unused]] void* workspace = arena + workspace_at;
  [[maybe_unused]] const Pool pool = run.pool();
  Stopwatch watch("region0");

  // Softmax_y: (n, m, 1)
  softmax_6e2f6a(pool, n, m, 1, in0_x, out0_y);
  watch.lap(0, "softmax_6e2f6a", "Softmax_y", 20.0 * m * n, 8.0 * m * n);
  return run.status;
}

}  // namespace opsmith
