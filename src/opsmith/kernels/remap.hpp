// Tensors put together from elements of another one, chosen axis by axis: out[i, j, ...] = x[f(i), g(j), ...].
//
// Pad in all its modes, Tile, and nearest-neighbour Resize are such maps; each axis has a table of source indices, made once per
// run, where -1 stands for the fill value.
#pragma once

#include "elementwise.hpp"
#include "sizes.hpp"

namespace opsmith {

enum class Border { constant, edge, reflect, wrap };

// The source index for position i of an axis of `size` elements, where negative i lies before it.
inline i64 border_index(i64 i, i64 size, Border mode) {
  if (i >= 0 && i < size) return i;
  if (mode == Border::constant || size <= 0) return -1;
  if (mode == Border::edge) return i < 0 ? 0 : size - 1;
  if (mode == Border::wrap) return (i % size + size) % size;
  if (size == 1) return 0;
  const i64 period = 2 * (size - 1);
  i = (i % period + period) % period;
  return i < size ? i : period - i;
}
inline void pad_table(i64* table, i64 out, i64 size, i64 begin, Border mode) {
  for (i64 i = 0; i < out; ++i) table[i] = border_index(i - begin, size, mode);
}

// Nothing for an empty result, whose other dims may be of any size.
inline i64 remap_workspace(const Sizes& dims) {
  if (is_empty(dims)) return 0;
  i64 total = 0;
  for (int d = 0; d < dims.count; ++d) total += dims.at[d];
  if (dims.count > 0) total += dims.at[dims.count - 1];  // runs
  return total * static_cast<i64>(sizeof(i64));
}

// tables: one after the other, dims.at[d] entries each, and room for the runs of the last axis: pieces of it that lie in x as they
// are, so that a row is copied in a few of them. strides are those of x; out is dense
template <class T>
void remap(const Pool& pool, const Sizes& dims, const Sizes& strides, i64* tables, const T* x, T fill, T* out) {
  const int rank = dims.count;
  if (rank == 0) {
    *out = *x;
    return;
  }
  const i64* table[kSizesRank];
  i64 rows = 1;
  for (int d = 0; d < rank; ++d) {
    table[d] = tables;
    tables += dims.at[d];
    if (d + 1 < rank) rows *= dims.at[d];
  }
  const i64 inner = dims.at[rank - 1], step = strides.at[rank - 1];
  if (rows <= 0 || inner <= 0) return;
  const i64* last = table[rank - 1];
  i64* run_end = tables;
  for (i64 i = inner - 1; i >= 0; --i) {
    const bool goes_on = i + 1 < inner && (last[i] < 0 ? last[i + 1] < 0 : last[i + 1] == last[i] + 1);
    run_end[i] = goes_on ? run_end[i + 1] : i + 1;
  }
  pool.parallel_ranges(rows, max<i64>(1, 8192 / inner), [&](i64 begin, i64 end) {
    i64 index[kSizesRank] = {}, rest = begin;
    for (int d = rank - 2; d >= 0; --d) index[d] = rest % dims.at[d], rest /= dims.at[d];
    for (i64 r = begin; r < end; ++r) {
      i64 at = 0;
      bool inside = true;
      for (int d = 0; d < rank - 1; ++d) {
        const i64 from = table[d][index[d]];
        inside = inside && from >= 0;
        at += from * strides.at[d];
      }
      for (int d = rank - 2; d >= 0 && ++index[d] == dims.at[d]; --d) index[d] = 0;
      T* to = out + r * inner;
      if (!inside) {
        for (i64 i = 0; i < inner; ++i) to[i] = fill;
        continue;
      }
      for (i64 i = 0, stop; i < inner; i = stop) {
        stop = run_end[i];
        if (last[i] < 0) {
          for (i64 k = i; k < stop; ++k) to[k] = fill;
          continue;
        }
        const T* from = x + at + last[i] * step;
        if (step == 1 && stop - i >= 16)
          memcpy(to + i, from, static_cast<size_t>(stop - i) * sizeof(T));
        else
          for (i64 k = i; k < stop; ++k) to[k] = from[(k - i) * step];
      }
    }
  });
}

// x padded by begin (and, through `dims`, end) on each axis; negative pads cut.
template <class T>
void pad(const Pool& pool, const Sizes& dims, const Sizes& from, const Sizes& strides, const Sizes& begin, Border mode, const T* x,
         T fill, T* out, void* workspace) {
  if (is_empty(dims)) return;
  i64* tables = static_cast<i64*>(workspace);
  i64* at = tables;
  for (int d = 0; d < dims.count; ++d) {
    pad_table(at, dims.at[d], from.at[d], begin.at[d], mode);
    at += dims.at[d];
  }
  remap(pool, dims, strides, tables, x, fill, out);
}

}  // namespace opsmith
