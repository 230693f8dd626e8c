// ===== map_div_mod_8ee3e3.cpp
// Div -> Mod
#include "elementwise.hpp"

namespace opsmith {

void map_div_mod_8ee3e3(const Pool& pool, const Grid<2>& grid) {
  map_scalar<int64_t, int64_t, int64_t>(pool, grid, [](int64_t x0, int64_t x1) -> int64_t {
    const int64_t t0 = (int64_t)(divide(x0, x1));
    const int64_t t1 = (int64_t)(modulo(t0, x1));
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
  [[maybe_unused]] const int64_t* in0_x = static_cast<const int64_t*>(run.input(0, "x", 7, 1, dims0));
  i64 dims1[1] = {};
  [[maybe_unused]] const int64_t* in1_y = static_cast<const int64_t*>(run.input(1, "y", 7, 1, dims1));
  if (run.failed()) return run.status;
  [[maybe_unused]] const i64 n = dims0[0];
  run.check_equal("y", "size of axis 0", dims1[0], n);
  if (run.failed()) return run.status;

  // Memory
  const i64 out_dims0[] = {n};
  int64_t* out0_z = static_cast<int64_t*>(run.output(0, out_dims0, 1));
  if (run.failed()) return run.status;
  const i64 workspace_at = 0;
  uint8_t* arena = run.arena(workspace_at);
  if (run.failed()) return run.status;
  [[maybe_unused]] void* workspace = arena + workspace_at;
  [[maybe_unused]] const Pool pool = run.pool();
  Stopwatch watch("region0");

  // Mod_z: Div -> Mod (n)
  map_div_mod_8ee3e3(pool, Grid<2>{1, {n}, {out0_z, {1}}, {{in0_x, {1}}, {in1_y, {1}}}});
  watch.lap(0, "map_div_mod_8ee3e3", "Mod_z", 12.0 * n, 24.0 * n);
  return run.status;
}

}  // namespace opsmith
