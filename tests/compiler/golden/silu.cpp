// ===== map_silu_b42601.cpp
// Silu
#include "elementwise.hpp"

namespace opsmith {

void map_silu_b42601(const Pool& pool, const Grid<1>& grid) {
  map<float, float>(pool, grid, [](F x0) -> F {
    const F t0 = silu(x0);
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
  if (run.failed()) return run.status;
  [[maybe_unused]] const i64 n = dims0[0];
  run.check_equal("x", "size of axis 1", dims0[1], 8);
  if (run.failed()) return run.status;

  // Memory
  const i64 out_dims0[] = {n, 8};
  float* out0_y = static_cast<float*>(run.output(0, out_dims0, 2));
  if (run.failed()) return run.status;
  const i64 workspace_at = 0;
  uint8_t* arena = run.arena(workspace_at);
  if (run.failed()) return run.status;
  [[maybe_unused]] void* workspace = arena + workspace_at;
  [[maybe_unused]] const Pool pool = run.pool();
  Stopwatch watch("region0");

  // silu_y: Silu (n, 8)
  map_silu_b42601(pool, Grid<1>{2, {n, 8}, {out0_y, {8, 1}}, {{in0_x, {8, 1}}}});
  watch.lap(0, "map_silu_b42601", "silu_y", 160.0 * n, 64.0 * n);
  return run.status;
}

}  // namespace opsmith
