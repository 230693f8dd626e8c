// ===== map_add_382da0.cpp
// Add
#include "elementwise.hpp"

namespace opsmith {

void map_add_382da0(const Pool& pool, const Grid<2>& grid) {
  map<float, float, float>(pool, grid, [](F x0, F x1) -> F {
    const F t0 = x0 + x1;
    return t0;
  });
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
  i64 dims1[2] = {};
  [[maybe_unused]] const float* in1_y = static_cast<const float*>(run.input(1, "y", 1, 2, dims1));
  if (run.failed()) return run.status;
  [[maybe_unused]] const i64 a = dims0[0];
  [[maybe_unused]] const i64 b = dims0[1];
  [[maybe_unused]] const i64 c = dims1[0];
  run.check_equal("y", "size of axis 1", dims1[1], b);
  if (run.failed()) return run.status;

  // Sizes
  const i64 n0 = spread(a, b);
  const i64 n1 = spread(c, b);
  const i64 n2 = broadcast(a, c);

  // What must hold for these sizes
  run.check("Add_z", can_broadcast(a, c), "shapes do not broadcast");
  if (run.failed()) return run.status;

  // Memory
  const i64 out_dims0[] = {broadcast(a, c), b};
  float* out0_z = static_cast<float*>(run.output(0, out_dims0, 2));
  if (run.failed()) return run.status;
  const i64 workspace_at = 0;
  uint8_t* arena = run.arena(workspace_at);
  if (run.failed()) return run.status;
  [[maybe_unused]] void* workspace = arena + workspace_at;
  [[maybe_unused]] const Pool pool = run.pool();
  Stopwatch watch("region0");

  // Add_z: Add (broadcast(a, c), b)
  map_add_382da0(pool, Grid<2>{2, {n2, b}, {out0_z, {b, 1}}, {{in0_x, {n0, 1}}, {in1_y, {n1, 1}}}});
  watch.lap(0, "map_add_382da0", "Add_z", 1.0 * b * broadcast(a, c), 4.0 * a * b + 4.0 * b * broadcast(a, c) + 4.0 * b * c);
  return run.status;
}

}  // namespace opsmith
