// ===== copy_9f8c15.cpp
// copy
#include "memory.hpp"

namespace opsmith {

void copy_9f8c15(const Pool& pool, const Grid<1>& grid) {
  copy<float, float>(pool, grid);
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
  i64 dims0[3] = {};
  [[maybe_unused]] const float* in0_x = static_cast<const float*>(run.input(0, "x", 1, 3, dims0));
  if (run.failed()) return run.status;
  [[maybe_unused]] const i64 batch = dims0[0];
  [[maybe_unused]] const i64 seq = dims0[1];
  run.check_equal("x", "size of axis 2", dims0[2], 6);
  if (run.failed()) return run.status;

  // Memory
  const i64 out_dims0[] = {batch, 2, seq, 3};
  float* out0_y = static_cast<float*>(run.output(0, out_dims0, 4));
  if (run.failed()) return run.status;
  const i64 workspace_at = 0;
  uint8_t* arena = run.arena(workspace_at);
  if (run.failed()) return run.status;
  [[maybe_unused]] void* workspace = arena + workspace_at;
  [[maybe_unused]] const Pool pool = run.pool();
  Stopwatch watch("region0");

  // y: copy (batch, 2, seq, 3)
  copy_9f8c15(pool, Grid<1>{4, {batch, 2, seq, 3}, {out0_y, {(seq * 6), (seq * 3), 3, 1}}, {{in0_x, {(seq * 6), 3, 6, 1}}}});
  watch.lap(0, "copy_9f8c15", "y", 0.0, 48.0 * batch * seq);
  return run.status;
}

}  // namespace opsmith
