// A convolution of floats computed in bytes: y = ep(x_scale * w_scale[o] * the sums of conv_bytes.hpp). x comes from quantize_image
// (quantize_rows.hpp), the weights are int8 with a scale per output channel (compiler/pack.py: int8_channels).
#pragma once

#include "conv_bytes.hpp"
#include "gemm_int8.hpp"

namespace opsmith {

template <class TY, class Ep>
void conv_int8(const Pool& pool, const ConvShape& s, const uint8_t* x, const float* x_scale, const uint8_t* x_zero, const int8_t* packed,
               const int32_t* sums, const float* w_scales, TY* y, void* workspace, Ep ep) {
  const float scale = *x_scale;
  auto x_scale_of = [=](Row) __attribute__((always_inline)) { return scale; };
  conv_bytes(pool, s, x, x_zero, packed, sums, nullptr, y, workspace, scaled_sums(x_scale_of, w_scales, ep));
}

template <class TY, class Ep>
void conv_int8_reference(const Pool& pool, const ConvShape& s, const uint8_t* x, const float* x_scale, const uint8_t* x_zero,
                         const int8_t* packed, const int32_t* sums, const float* w_scales, TY* y, void* workspace, Ep ep) {
  const float scale = *x_scale;
  auto scaled = [=](I sum, Row row, i64 column, auto lanes) {
    return ep(splat(static_cast<float>(sum[0]) * (scale * w_scales[column])), row, column, lanes);
  };
  conv_bytes_reference(pool, s, x, x_zero, packed, sums, nullptr, y, workspace, scaled);
}

}  // namespace opsmith
