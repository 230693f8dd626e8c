// ===== attention_f1b669.cpp
// scaled dot-product attention, block by block
#include "attention.hpp"

namespace opsmith {

void attention_f1b669(const Pool& pool, const AttentionShape& shape, const float* q, const float* k, const float* v, float* out, const NoMask& mask, void* workspace) {
  attention(pool, shape, q, k, v, out, mask, workspace);
}

}  // namespace opsmith

// ===== region0.cpp
// Region region0: 1 calls.

#include "attention.hpp"
#include "memory.hpp"
#include "ort_abi.hpp"
#include "instances.hpp"

namespace opsmith {

OrtStatus* region0(const Kernel& kernel, OrtKernelContext* context) {
  Run run(kernel, context, "region0");

  // Inputs, with their sizes
  i64 dims0[4] = {};
  [[maybe_unused]] const float* in0_q = static_cast<const float*>(run.input(0, "q", 1, 4, dims0));
  i64 dims1[4] = {};
  [[maybe_unused]] const float* in1_k = static_cast<const float*>(run.input(1, "k", 1, 4, dims1));
  i64 dims2[4] = {};
  [[maybe_unused]] const float* in2_v = static_cast<const float*>(run.input(2, "v", 1, 4, dims2));
  if (run.failed()) return run.status;
  [[maybe_unused]] const i64 b = dims0[0];
  [[maybe_unused]] const i64 s = dims0[2];
  [[maybe_unused]] const i64 t = dims1[2];
  run.check_equal("q", "size of axis 1", dims0[1], 2);
  run.check_equal("q", "size of axis 3", dims0[3], 4);
  run.check_equal("k", "size of axis 0", dims1[0], b);
  run.check_equal("k", "size of axis 1", dims1[1], 2);
  run.check_equal("k", "size of axis 3", dims1[3], 4);
  run.check_equal("v", "size of axis 0", dims2[0], b);
  run.check_equal("v", "size of axis 1", dims2[1], 2);
  run.check_equal("v", "size of axis 2", dims2[2], t);
  run.check_equal("v", "size of axis 3", dims2[3], 4);
  if (run.failed()) return run.status;

  // Memory
  const i64 out_dims0[] = {b, 2, s, 4};
  float* out0_y = static_cast<float*>(run.output(0, out_dims0, 4));
  if (run.failed()) return run.status;
  const i64 workspace_at = 0;
  i64 workspace_bytes = 0;
  workspace_bytes = max<i64>(workspace_bytes, attention_workspace(AttentionShape{b, 2, 2, s, t, 4, 4, (s * 8), (s * 4), 4, (t * 8), (t * 4), 4, (t * 8), (t * 4), 4, (s * 8), (s * 4), 4, 0.5f, false, 0.0f}));
  uint8_t* arena = run.arena(workspace_at + workspace_bytes);
  if (run.failed()) return run.status;
  [[maybe_unused]] void* workspace = arena + workspace_at;
  [[maybe_unused]] const Pool pool = run.pool();
  Stopwatch watch("region0");

  // attention_y: (b, 2, s, 4) over t keys
  attention_f1b669(pool, AttentionShape{b, 2, 2, s, t, 4, 4, (s * 8), (s * 4), 4, (t * 8), (t * 4), 4, (t * 8), (t * 4), 4, (s * 8), (s * 4), 4, 0.5f, false, 0.0f}, in0_q, in1_k, in2_v, out0_y, NoMask{}, workspace);
  watch.lap(0, "attention_f1b669", "attention_y", 32.0 * b * s * t, 64.0 * b * s + 64.0 * b * t);
  return run.status;
}

}  // namespace opsmith
