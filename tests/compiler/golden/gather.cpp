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
  [[maybe_unused]] const float* in0_t = static_cast<const float*>(run.input(0, "t", 1, 2, dims0));
  i64 dims1[1] = {};
  [[maybe_unused]] const int64_t* in1_at = static_cast<const int64_t*>(run.input(1, "at", 7, 1, dims1));
  if (run.failed()) return run.status;
  [[maybe_unused]] const i64 rows = dims0[0];
  [[maybe_unused]] const i64 n = dims1[0];
  run.check_equal("t", "size of axis 1", dims0[1], 4);
  if (run.failed()) return run.status;

  // Memory
  const i64 out_dims0[] = {n, 4};
  float* out0_y = static_cast<float*>(run.output(0, out_dims0, 2));
  if (run.failed()) return run.status;
  const i64 workspace_at = 0;
  uint8_t* arena = run.arena(workspace_at);
  if (run.failed()) return run.status;
  [[maybe_unused]] void* workspace = arena + workspace_at;
  [[maybe_unused]] const Pool pool = run.pool();
  Stopwatch watch("region0");

  // Gather_y: n of rows rows of 4
  run.check("Gather_y", gather(pool, 1, rows, 4, in0_t, n, in1_at, out0_y), "an index is out of range");
  watch.lap(0, "gather", "Gather_y", 0.0, 24.0 * n + 16.0 * rows);
  if (run.failed()) return run.status;
  return run.status;
}

}  // namespace opsmith
