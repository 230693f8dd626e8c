// ===== map_less_where_3973fa.cpp
// Less -> Where
#include "elementwise.hpp"

namespace opsmith {

void map_less_where_3973fa(const Pool& pool, const Grid<2>& grid) {
  map<float, float, float>(pool, grid, [](F x0, F x1) -> F {
    const I t0 = less(x0, x1);
    const F t1 = select(t0, x0, x1);
    return t1;
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
  i64 dims0[1] = {};
  [[maybe_unused]] const float* in0_x = static_cast<const float*>(run.input(0, "x", 1, 1, dims0));
  i64 dims1[1] = {};
  [[maybe_unused]] const float* in1_y = static_cast<const float*>(run.input(1, "y", 1, 1, dims1));
  if (run.failed()) return run.status;
  [[maybe_unused]] const i64 n = dims0[0];
  run.check_equal("y", "size of axis 0", dims1[0], n);
  if (run.failed()) return run.status;

  // Memory
  const i64 out_dims0[] = {n};
  float* out0_z = static_cast<float*>(run.output(0, out_dims0, 1));
  if (run.failed()) return run.status;
  const i64 workspace_at = 0;
  uint8_t* arena = run.arena(workspace_at);
  if (run.failed()) return run.status;
  [[maybe_unused]] void* workspace = arena + workspace_at;
  [[maybe_unused]] const Pool pool = run.pool();
  Stopwatch watch("region0");

  // Where_z: Less -> Where (n)
  map_less_where_3973fa(pool, Grid<2>{1, {n}, {out0_z, {1}}, {{in0_x, {1}}, {in1_y, {1}}}});
  watch.lap(0, "map_less_where_3973fa", "Where_z", 2.0 * n, 12.0 * n);
  return run.status;
}

}  // namespace opsmith
