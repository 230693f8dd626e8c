// Rotary position embedding: y = x * cos + turned(x) * sin, where turned is (-second half, first half) of a head, or, interleaved,
// (-x1, x0, -x3, x2, ...).
#pragma once

#include "base.hpp"
#include "types.hpp"

namespace opsmith {

struct RotaryShape {
  i64 batch, heads, rows, size;
  i64 x_batch, x_head, x_row;
  i64 cos_batch, cos_head, cos_row;
  i64 sin_batch, sin_head, sin_row;
  i64 y_batch, y_head, y_row;
};

template <bool Interleaved, class TX, class TY>
void rotary(const Pool& pool, const RotaryShape& s, const TX* x, const float* cos, const float* sin, TY* y) {
  const i64 total = s.batch * s.heads * s.rows, half_size = s.size / 2;
  const i64 per_task = max<i64>(1, 8192 / max<i64>(1, s.size));
  pool.parallel_for(ceil_div(total, per_task), [&](i64 task) {
    const i64 end = min(total, (task + 1) * per_task);
    for (i64 i = task * per_task; i < end; ++i) {
      const i64 r = i % s.rows, h = i / s.rows % s.heads, b = i / s.rows / s.heads;
      const TX* in = x + b * s.x_batch + h * s.x_head + r * s.x_row;
      const float* c = cos + b * s.cos_batch + h * s.cos_head + r * s.cos_row;
      const float* n = sin + b * s.sin_batch + h * s.sin_head + r * s.sin_row;
      TY* out = y + b * s.y_batch + h * s.y_head + r * s.y_row;
      if constexpr (Interleaved) {
        for (i64 k = 0; k + 1 < s.size; k += 2) {
          const float a = to_float(in[k]), z = to_float(in[k + 1]);
          out[k] = from_float<TY>(a * c[k] - z * n[k]);
          out[k + 1] = from_float<TY>(z * c[k + 1] + a * n[k + 1]);
        }
        continue;
      }
      auto step = [&](i64 k, auto lanes) {
        const F a = load(in + k, lanes), z = load(in + half_size + k, lanes);
        const F first = a * load(c + k, lanes) - z * load(n + k, lanes);
        const F second = z * load(c + half_size + k, lanes) + a * load(n + half_size + k, lanes);
        store(out + k, first, lanes);
        store(out + half_size + k, second, lanes);
      };
      i64 k = 0;
      for (; k + W <= half_size; k += W) step(k, Full{});
      if (k < half_size) step(k, Tail{half_size - k});
    }
  });
}

}  // namespace opsmith
