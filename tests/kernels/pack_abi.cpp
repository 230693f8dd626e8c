// The kernels under C names, so that test_pack.py can hand them what compiler/pack.py packed.
#include "conv_transpose.hpp"
#include "depthwise.hpp"
#include "gemm_blocks.hpp"
#include "quantize_blocks.hpp"
#include "winograd.hpp"

#include <vector>

using namespace opsmith;

static auto plain = [](F sum, Row, i64, auto) { return sum; };
static constexpr Pool serial{nullptr, nullptr, 1};

extern "C" {
void gemm_f32(i64 M, i64 N, i64 K, const float* a, const float* packed, float* c) {
  gemm(serial, M, N, K, a, K, packed, c, N, plain);
}

void gemm_bf16_f32(i64 M, i64 N, i64 K, const float* a, const bf16* packed, float* c) {
  gemm_bf16(serial, M, N, K, a, K, packed, c, N, plain);
}

i64 conv2d_workspace_bytes(const ConvShape* s) { return conv2d_workspace(*s); }

void conv2d_f32(const ConvShape* s, const float* x, const float* packed, float* y, void* workspace) {
  conv2d(serial, *s, x, packed, y, workspace, plain);
}

void conv2d_bf16_f32(const ConvShape* s, const float* x, const bf16* packed, float* y, void* workspace) {
  conv2d_bf16(serial, *s, x, packed, y, workspace, plain);
}

i64 winograd_workspace_bytes(const ConvShape* s, i64 tile) {
  if (s->stride_h == 2) return conv2d_winograd4_stride2_workspace(*s);
  return tile == 4 ? conv2d_winograd4_workspace(*s) : conv2d_winograd2_workspace(*s);
}

void winograd_f32(const ConvShape* s, i64 tile, const float* x, const float* transformed, float* y, void* workspace) {
  if (s->stride_h == 2) return conv2d_winograd4_stride2(serial, *s, x, transformed, y, workspace, plain);
  if (tile == 4) return conv2d_winograd4(serial, *s, x, transformed, y, workspace, plain);
  conv2d_winograd2(serial, *s, x, transformed, y, workspace, plain);
}

void winograd2_bf16(const ConvShape* s, const bf16* x, const bf16* transformed, float* y, void* workspace) {
  conv2d_winograd2_bf16(serial, *s, x, transformed, y, workspace, plain);
}

void depthwise_f32(const ConvShape* s, const float* x, const float* weights, float* y) {
  conv2d_depthwise(serial, *s, x, weights, y, nullptr, plain);
}

void transposed_f32(const ConvShape* s, const float* x, const float* packed, float* y, void* workspace) {
  conv2d_transposed(serial, *s, x, packed, y, workspace, plain);
}

void quantized(i64 bits, i64 half_scales, i64 zeros, i64 M, i64 N, i64 K, i64 block, const float* a, const uint8_t* packed,
               float* c) {
  auto run = [&](auto f) { f(serial, M, N, K, block, a, K, packed, c, N, plain); };
  if (bits == 8 && !half_scales && !zeros) run([](auto... x) { gemm_quantized<8, float, false>(x...); });
  if (bits == 8 && half_scales && zeros == 1) run([](auto... x) { gemm_quantized<8, f16, true>(x...); });
  if (bits == 4 && !half_scales && zeros == 1) run([](auto... x) { gemm_quantized<4, float, true>(x...); });
  if (bits == 4 && !half_scales && zeros == 2) run([](auto... x) { gemm_quantized<4, float, kFloatZeros>(x...); });
  if (bits == 4 && half_scales && !zeros) run([](auto... x) { gemm_quantized<4, f16, false>(x...); });
}

void quantized_bytes(i64 bits, i64 half_scales, i64 zeros, i64 M, i64 N, i64 K, i64 block, const float* a, const uint8_t* packed,
                     float* c) {
  const i64 blocks = ceil_div(K, block);
  std::vector<int8_t> values(static_cast<size_t>(M * blocks * block));
  std::vector<float> units(static_cast<size_t>(M * blocks)), sums(units.size());
  quantize_blocks(serial, M, K, block, a, K, values.data(), units.data(), sums.data());
  auto run = [&](auto f) { f(serial, M, N, K, block, values.data(), units.data(), sums.data(), packed, c, N, plain); };
  if (bits == 8 && !half_scales && !zeros) run([](auto... x) { gemm_blocks<8, float, kNoZeros>(x...); });
  if (bits == 8 && half_scales && zeros == 1) run([](auto... x) { gemm_blocks<8, f16, kByteZeros>(x...); });
  if (bits == 4 && !half_scales && zeros == 1) run([](auto... x) { gemm_blocks<4, float, kByteZeros>(x...); });
  if (bits == 4 && !half_scales && zeros == 2) run([](auto... x) { gemm_blocks<4, float, kFloatZeros>(x...); });
  if (bits == 4 && half_scales && !zeros) run([](auto... x) { gemm_blocks<4, f16, kNoZeros>(x...); });
  if (bits == 4 && half_scales && zeros == 2) run([](auto... x) { gemm_blocks<4, f16, kFloatZeros>(x...); });
}
}
