// ===== conv2d_relu_cbd4e3.cpp
// convolution as an implicit matrix product; then Relu
#include "conv.hpp"
#include "elementwise.hpp"

namespace opsmith {

void conv2d_relu_cbd4e3(const Pool& pool, const ConvShape& shape, const float* x, const float* weights, float* y, void* workspace, const float* e0_at, i64 e0_ld) {
  conv2d(pool, shape, x, weights, y, workspace, [=]([[maybe_unused]] F acc, [[maybe_unused]] Row row, [[maybe_unused]] i64 col, [[maybe_unused]] auto lanes) -> F {
    const F e0 = load(e0_at + col, lanes);
    acc = acc + e0;
    const F t0 = relu(acc);
    return t0;
  });
}

}  // namespace opsmith

// ===== copy_float_9f8c15.cpp
// the same numbers in another order
#include "memory.hpp"

namespace opsmith {

void copy_float_9f8c15(const Pool& pool, const Grid<1>& grid) {
  copy<float, float>(pool, grid);
}

}  // namespace opsmith

// ===== region0.cpp
// Region region0: 3 calls.

#include "conv.hpp"
#include "memory.hpp"
#include "ort_abi.hpp"
#include "instances.hpp"

namespace opsmith {

OrtStatus* region0(const Kernel& kernel, OrtKernelContext* context) {
  Run run(kernel, context, "region0");

  // Inputs, with their sizes
  i64 dims0[4];
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
  run.check("Relu_y", h >= 0, "the image is smaller than the kernel");
  run.check("Relu_y", w >= 0, "the image is smaller than the kernel");
  if (run.failed()) return run.status;

  // Memory
  [[maybe_unused]] const float* w0 = reinterpret_cast<const float*>(kernel.weights + 0);
  [[maybe_unused]] const float* w1 = reinterpret_cast<const float*>(kernel.weights + 64);
  const i64 out_dims0[] = {n, 4, h, w};
  float* out0_y = static_cast<float*>(run.output(0, out_dims0, 4));
  if (run.failed()) return run.status;
  const i64 slot0 = 0;
  const i64 slot0_end = slot0 + round_up(slot_bytes(__int128(12) * h * n * w), 64);
  const i64 slot1 = slot0_end;
  const i64 slot1_end = slot1 + round_up(slot_bytes(__int128(16) * h * n * w), 64);
  const i64 workspace_at = slot1_end;
  i64 workspace_bytes = 0;
  workspace_bytes = max<i64>(workspace_bytes, conv2d_workspace(ConvShape{n, h, w, 3, h, w, 4, 3, 3, 1, 1, 1, 1, 1, 1, 1, 3, 4, 1}));
  uint8_t* arena = run.arena(workspace_at + workspace_bytes);
  if (run.failed()) return run.status;
  [[maybe_unused]] void* workspace = arena + workspace_at;
  float* in0_x_copy = reinterpret_cast<float*>(arena + slot0);
  float* y = reinterpret_cast<float*>(arena + slot1);
  [[maybe_unused]] const Pool pool = run.pool();
  Stopwatch watch("region0");

  // Conv_c: copy (n, 3, h, w)
  copy_float_9f8c15(pool, Grid<1>{4, {n, h, w, 3}, {in0_x_copy, {(h * w * 3), (w * 3), 3, 1}}, {{in0_x, {(h * w * 3), w, 1, (h * w)}}}});
  watch.lap(0, "copy_float_9f8c15", "Conv_c", 0.0, 24.0 * h * n * w);
  // Conv_c: 3x3 3 -> 4; Relu
  conv2d_relu_cbd4e3(pool, ConvShape{n, h, w, 3, h, w, 4, 3, 3, 1, 1, 1, 1, 1, 1, 1, 3, 4, 1}, in0_x_copy, w1, y, workspace, w0, 0);
  watch.lap(1, "conv2d_relu_cbd4e3", "Conv_c", 216.0 * h * n * w, 880.0 + 28.0 * h * n * w);
  // y: copy (n, 4, h, w)
  copy_float_9f8c15(pool, Grid<1>{4, {n, 4, h, w}, {out0_y, {(h * w * 4), (h * w), w, 1}}, {{y, {(h * w * 4), 1, (w * 4), 4}}}});
  watch.lap(2, "copy_float_9f8c15", "y", 0.0, 32.0 * h * n * w);
  return run.status;
}

}  // namespace opsmith
