// ===== conv2d_stem_relu_9c7689.cpp
// convolution of few channels; then Relu
#include "conv_stem.hpp"
#include "elementwise.hpp"

namespace opsmith {

void conv2d_stem_relu_9c7689(const Pool& pool, const ConvShape& shape, const float* x, const float* weights, float* y, void* workspace, const float* e0_at, i64 e0_ld) {
  conv2d_stem<1>(pool, shape, x, weights, y, workspace, [=]([[maybe_unused]] F acc, [[maybe_unused]] Row row, [[maybe_unused]] i64 col, [[maybe_unused]] auto lanes) -> F {
    const F e0 = load(e0_at + col, lanes);
    acc = acc + e0;
    const F t0 = relu(acc);
    return t0;
  });
}

}  // namespace opsmith

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

#include "conv_stem.hpp"
#include "memory.hpp"
#include "ort_abi.hpp"
#include "instances.hpp"

namespace opsmith {

OrtStatus* region0(const Kernel& kernel, OrtKernelContext* context) {
  Run run(kernel, context, "region0");

  // Inputs, with their sizes
  i64 dims0[4] = {};
  [[maybe_unused]] const float* in0_x = static_cast<const float*>(run.input(0, "x", 1, 4, dims0));
  if (run.failed()) return run.status;
  [[maybe_unused]] const i64 n = dims0[0];
  [[maybe_unused]] const i64 h = dims0[2];
  [[maybe_unused]] const i64 w = dims0[3];
  run.check_equal("x", "size of axis 1", dims0[1], 3);
  if (run.failed()) return run.status;

  // What must hold for these sizes
  run.check("Conv_c", h >= 0, "the image is smaller than the kernel");
  run.check("Conv_c", w >= 0, "the image is smaller than the kernel");
  if (run.failed()) return run.status;

  // Memory
  [[maybe_unused]] const float* w0 = reinterpret_cast<const float*>(kernel.weights + 0);
  [[maybe_unused]] const float* w1 = reinterpret_cast<const float*>(kernel.weights + 64);
  const i64 out_dims0[] = {n, 4, h, w};
  float* out0_y = static_cast<float*>(run.output(0, out_dims0, 4));
  if (run.failed()) return run.status;
  const i64 slot0 = 0;
  const i64 slot0_end = slot0 + round_up(slot_bytes(__int128(16) * h * n * w), 64);
  const i64 workspace_at = slot0_end;
  i64 workspace_bytes = 0;
  workspace_bytes = max<i64>(workspace_bytes, conv2d_stem_workspace<1>(ConvShape{n, h, w, 3, h, w, 4, 3, 3, 1, 1, 1, 1, 1, 1, 1, 3, 4, 1}));
  uint8_t* arena = run.arena(workspace_at + workspace_bytes);
  if (run.failed()) return run.status;
  [[maybe_unused]] void* workspace = arena + workspace_at;
  float* y = reinterpret_cast<float*>(arena + slot0);
  [[maybe_unused]] const Pool pool = run.pool();
  Stopwatch watch("region0");

  // Conv_c: 3x3 3 -> 4; Relu
  conv2d_stem_relu_9c7689(pool, ConvShape{n, h, w, 3, h, w, 4, 3, 3, 1, 1, 1, 1, 1, 1, 1, 3, 4, 1}, in0_x, w1, y, workspace, w0, 0);
  watch.lap(0, "conv2d_stem_relu_9c7689", "Conv_c", 216.0 * h * n * w, 880.0 + 28.0 * h * n * w);
  // y: copy (n, 4, h, w)
  copy_9f8c15(pool, Grid<1>{4, {n, 4, h, w}, {out0_y, {(h * w * 4), (h * w), w, 1}}, {{y, {(h * w * 4), 1, (w * 4), 4}}}});
  watch.lap(1, "copy_9f8c15", "y", 0.0, 32.0 * h * n * w);
  return run.status;
}

}  // namespace opsmith
