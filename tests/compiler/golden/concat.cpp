// ===== copy_9f8c15.cpp
// copy
#include "memory.hpp"

namespace opsmith {

void copy_9f8c15(const Pool& pool, const Grid<1>& grid) {
  copy<float, float>(pool, grid);
}

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
  i64 dims0[2] = {};
  [[maybe_unused]] const float* in0_x = static_cast<const float*>(run.input(0, "x", 1, 2, dims0));
  i64 dims1[2] = {};
  [[maybe_unused]] const float* in1_y = static_cast<const float*>(run.input(1, "y", 1, 2, dims1));
  if (run.failed()) return run.status;
  [[maybe_unused]] const i64 a = dims0[0];
  run.check_equal("x", "size of axis 1", dims0[1], 2);
  run.check_equal("y", "size of axis 0", dims1[0], a);
  run.check_equal("y", "size of axis 1", dims1[1], 3);
  if (run.failed()) return run.status;

  // Memory
  const i64 out_dims0[] = {a, 5};
  float* out0_z = static_cast<float*>(run.output(0, out_dims0, 2));
  if (run.failed()) return run.status;
  const i64 workspace_at = 0;
  uint8_t* arena = run.arena(workspace_at);
  if (run.failed()) return run.status;
  [[maybe_unused]] void* workspace = arena + workspace_at;
  [[maybe_unused]] const Pool pool = run.pool();
  Stopwatch watch("region0");

  // Concat_z: copy (a, 2)
  copy_9f8c15(pool, Grid<1>{2, {a, 2}, {out0_z, {5, 1}}, {{in0_x, {2, 1}}}});
  watch.lap(0, "copy_9f8c15", "Concat_z", 0.0, 16.0 * a);
  // Concat_z: copy (a, 3)
  copy_9f8c15(pool, Grid<1>{2, {a, 3}, {out0_z + 2, {5, 1}}, {{in1_y, {3, 1}}}});
  watch.lap(1, "copy_9f8c15", "Concat_z", 0.0, 24.0 * a);
  return run.status;
}

}  // namespace opsmith
