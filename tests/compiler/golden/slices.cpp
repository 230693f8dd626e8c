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
  i64 dims0[2] = {};
  [[maybe_unused]] const float* in0_x = static_cast<const float*>(run.input(0, "x", 1, 2, dims0));
  if (run.failed()) return run.status;
  [[maybe_unused]] const i64 a = dims0[0];
  [[maybe_unused]] const i64 b = dims0[1];
  if (run.failed()) return run.status;

  // Sizes
  const i64 n0 = floor_div((max<i64>(0, (b - min<i64>(1, b))) + 1), 2);
  const i64 n1 = min<i64>(1, b);

  // Memory
  const i64 out_dims0[] = {a, floor_div((max<i64>(0, (b - min<i64>(1, b))) + 1), 2)};
  float* out0_y = static_cast<float*>(run.output(0, out_dims0, 2));
  if (run.failed()) return run.status;
  const i64 workspace_at = 0;
  uint8_t* arena = run.arena(workspace_at);
  if (run.failed()) return run.status;
  [[maybe_unused]] void* workspace = arena + workspace_at;
  [[maybe_unused]] const Pool pool = run.pool();
  Stopwatch watch("region0");

  // y: copy (a, floor_div((max<i64>(0, (b - min<i64>(1, b))) + 1), 2))
  copy_9f8c15(pool, Grid<1>{2, {a, n0}, {out0_y, {n0, 1}}, {{in0_x + n1, {b, 2}}}});
  watch.lap(0, "copy_9f8c15", "y", 0.0, 8.0 * a * floor_div((max<i64>(0, (b - min<i64>(1, b))) + 1), 2));
  return run.status;
}

}  // namespace opsmith
