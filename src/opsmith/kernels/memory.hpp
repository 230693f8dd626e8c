// Moving numbers without computing: copies between orders, fills, concatenation, gathers, padding.
#pragma once

#include "elementwise.hpp"
#include "sizes.hpp"

namespace opsmith {

template <class T>
void fill(const Pool& pool, T* out, i64 n, T value) {
  constexpr i64 kPiece = 65536;
  pool.parallel_for(ceil_div(n, kPiece), [&](i64 t) {
    const i64 end = min(n, (t + 1) * kPiece);
    for (i64 i = t * kPiece; i < end; ++i) out[i] = value;
  });
}

template <class T>
void iota(T* out, i64 n, T start, T step) {
  for (i64 i = 0; i < n; ++i) out[i] = static_cast<T>(start + static_cast<T>(i) * step);
}

// Numbers that shape arithmetic computed, where a kernel wants them in memory.
template <class T, int N>
void put(T* out, const T (&numbers)[N]) {
  for (int i = 0; i < N; ++i) out[i] = numbers[i];
}
struct NoNumbers {};  // what {} is
template <class T>
void put(T*, NoNumbers) {}

inline void copy_bytes(void* out, const void* in, i64 count) { memcpy(out, in, static_cast<size_t>(count)); }

// out (TO) <- in (TI) over a grid. Rows that lie evenly on both sides are memcpy; a transposition, where the input runs
// fastest along another dim, goes through square blocks so that both sides use whole cache lines.
template <class TO, class TI>
void copy(const Pool& pool, Grid<1> g) {
  g.collapse();
  const int last = g.rank - 1;
  const i64 in_step = g.in[0].strides[last], out_step = g.out.strides[last];
  int fast = -1;  // the dim along which the input is contiguous
  for (int d = 0; d < last; ++d)
    if (g.in[0].strides[d] == 1 && g.dims[d] >= 8) fast = d;
  if (__is_same(TO, TI) && out_step == 1 && in_step > 1 && fast >= 0) {
    const i64 rows = g.dims[fast], cols = g.dims[last], row_out = g.out.strides[fast];
    const i64 kBlock = cols < 8 ? 2048 : 32;
    i64 outer = 1;
    for (int d = 0; d < last; ++d)
      if (d != fast) outer *= g.dims[d];
    const i64 bands = ceil_div(rows, kBlock);
    pool.parallel_for(outer * bands, [&](i64 t) {
      const i64 r0 = (t % bands) * kBlock, r1 = min(rows, r0 + kBlock);
      i64 rest = t / bands, at_in = 0, at_out = 0;
      for (int d = last - 1; d >= 0; --d) {
        if (d == fast) continue;
        const i64 i = rest % g.dims[d];
        rest /= g.dims[d];
        at_in += i * g.in[0].strides[d];
        at_out += i * g.out.strides[d];
      }
      const TI* in = static_cast<const TI*>(g.in[0].data) + at_in;
      TO* out = static_cast<TO*>(const_cast<void*>(g.out.data)) + at_out;
      for (i64 c0 = 0; c0 < cols; c0 += kBlock) {
        const i64 c1 = min(cols, c0 + kBlock);
        if constexpr (__is_same(TO, TI)) {
          if (cols < 8) {  // a picture's channels: long runs on the side that is read
            for (i64 c = c0; c < c1; ++c)
              for (i64 r = r0; r < r1; ++r) out[r * row_out + c] = in[r + c * in_step];
            continue;
          }
          for (i64 r = r0; r < r1; ++r)
            for (i64 c = c0; c < c1; ++c) out[r * row_out + c] = in[r + c * in_step];
        }
      }
    });
    return;
  }
  g.rows(pool, [&](const i64* at, i64 n) {
    TO* out = static_cast<TO*>(const_cast<void*>(g.out.data)) + at[0];
    const TI* in = static_cast<const TI*>(g.in[0].data) + at[1];
    const i64 si = g.in[0].strides[g.rank - 1], so = g.out.strides[g.rank - 1];
    if constexpr (__is_same(TO, TI)) {
      if (si == 1 && so == 1) {
        memcpy(out, in, static_cast<size_t>(n) * sizeof(TO));
        return;
      }
    }
    for (i64 i = 0; i < n; ++i) out[i * so] = to_storage<TO>(from_storage(in[i * si]));
  });
}

// out[o, k, i] = data[o, indices[k], i]; false if an index is out of range (nothing is read there).
template <class T, class Index>
bool gather(const Pool& pool, i64 outer, i64 axis, i64 inner, const T* data, i64 count, const Index* indices, T* out) {
  for (i64 k = 0; k < count; ++k) {
    const i64 at = static_cast<i64>(indices[k]);
    if (at < -axis || at >= axis) return false;
  }
  const i64 total = outer * count;
  const i64 per_task = max<i64>(1, 16384 / max<i64>(1, inner));
  pool.parallel_for(ceil_div(total, per_task), [&](i64 t) {
    const i64 end = min(total, (t + 1) * per_task);
    for (i64 r = t * per_task; r < end; ++r) {
      i64 at = static_cast<i64>(indices[r % count]);
      if (at < 0) at += axis;
      const T* from = data + ((r / count) * axis + at) * inner;
      T* to = out + r * inner;
      if (inner == 1)
        *to = *from;
      else
        memcpy(to, from, static_cast<size_t>(inner) * sizeof(T));
    }
  });
  return true;
}

}  // namespace opsmith
