// Linear quantization: y = saturate(round(x / scale) + zero), x = (y - zero) * scale; and products of quantized tensors in int32.
// Plain loops; scales may be one for the tensor, one per index of an axis, or one per block along an axis.
#pragma once

#include "elementwise.hpp"
#include "fold.hpp"
#include "sizes.hpp"

namespace opsmith {

// x (outer, axis, inner); the scale of an element is scales[o * per_outer + a / block * per_axis + i * per_inner]
struct ScaleLayout {
  i64 outer, axis, inner, block, per_outer, per_axis, per_inner;

  template <class Fn>
  void each(const Pool& pool, Fn&& f) const {
    pool.parallel_ranges(outer * axis, max<i64>(1, 8192 / max<i64>(1, inner)), [&](i64 begin, i64 end) {
      for (i64 r = begin; r < end; ++r) {
        const i64 base = r / axis * per_outer + r % axis / block * per_axis;
        for (i64 i = 0; i < inner; ++i) f(r * inner + i, base + i * per_inner);
      }
    });
  }
};

template <class T>
OPSMITH_INLINE T saturate(double x) {  // x is a whole number, or NaN
  return to_number<T>(x);
}

// Floats divide in float, so that ties round as in ORT and numpy.
template <class TX, class TS, class TY>
void quantize(const Pool& pool, const ScaleLayout& layout, const TX* x, const TS* scales, const TY* zeros, TY* y) {
  layout.each(pool, [&](i64 i, i64 s) {
    const float v = static_cast<float>(from_storage(x[i])) / static_cast<float>(from_storage(scales[s]));
    y[i] = saturate<TY>(__builtin_rint(static_cast<double>(v)) + (zeros ? static_cast<double>(zeros[s]) : 0.0));
  });
}

template <class TX, class TS, class TY>
void dequantize(const Pool& pool, const ScaleLayout& layout, const TX* x, const TS* scales, const TX* zeros, TY* y) {
  layout.each(pool, [&](i64 i, i64 s) {
    const float v = static_cast<float>(static_cast<i64>(x[i]) - (zeros ? static_cast<i64>(zeros[s]) : 0));
    y[i] = to_storage<TY>(v * static_cast<float>(from_storage(scales[s])));
  });
}

// One zero point for all, one per row (A) or column (B); none at all is zero.
template <class T>
struct ZeroPoints {
  const T* at;
  i64 step;  // 0: the same for all
  i64 operator()(i64 i) const { return at ? static_cast<i64>(at[i * step]) : 0; }
};

// C (batch, M, N) int32 = (A - a_zero) @ (B - b_zero); batch strides may be 0
template <class TA, class TB>
void matmul_integer(const Pool& pool, i64 batch, i64 M, i64 N, i64 K, const TA* A, i64 a_batch, ZeroPoints<TA> a_zero, const TB* B,
                    i64 b_batch, ZeroPoints<TB> b_zero, int32_t* C) {
  pool.parallel_ranges(batch * M, max<i64>(1, 8192 / max<i64>(1, N * K)), [&](i64 begin, i64 end) {
    for (i64 r = begin; r < end; ++r) {
      const TA* a = A + r / M * a_batch + r % M * K;
      const TB* b = B + r / M * b_batch;
      const i64 za = a_zero(r % M);
      for (i64 n = 0; n < N; ++n) {
        const i64 zb = b_zero(n);
        i64 sum = 0;
        for (i64 k = 0; k < K; ++k) sum += (static_cast<i64>(a[k]) - za) * (static_cast<i64>(b[k * N + n]) - zb);
        C[r * N + n] = static_cast<int32_t>(sum);
      }
    }
  });
}

// y = saturate(round(x * scale) + zero), x (outer, channels, inner) int32 and one scale per channel, or one for all (step 0)
template <class TS, class TY>
void requantize(const Pool& pool, i64 outer, i64 channels, i64 inner, const int32_t* x, const TS* x_scale, const TS* w_scales, i64 w_step,
                const TS* y_scale, const TY* y_zero, TY* y) {
  const double base = static_cast<double>(from_storage(*x_scale)) / static_cast<double>(from_storage(*y_scale));
  const double zero = y_zero ? static_cast<double>(*y_zero) : 0.0;
  pool.parallel_ranges(outer * channels, max<i64>(1, 8192 / max<i64>(1, inner)), [&](i64 begin, i64 end) {
    for (i64 r = begin; r < end; ++r) {
      const double scale = base * static_cast<double>(from_storage(w_scales[r % channels * w_step]));
      for (i64 i = 0; i < inner; ++i) y[r * inner + i] = saturate<TY>(__builtin_rint(static_cast<double>(x[r * inner + i]) * scale) + zero);
    }
  });
}

}  // namespace opsmith
