// Reading and writing at indices that are data: GatherElements, GatherND, the Scatters, OneHot, TopK, ReverseSequence.
// Every index is checked before anything is read or written through it; false means that one was out of range.
#pragma once

#include "elementwise.hpp"
#include "fold.hpp"
#include "sizes.hpp"

namespace opsmith {

inline i64 size_of(const Sizes& dims) {
  i64 n = 1;
  for (int d = 0; d < dims.count; ++d) n *= dims.at[d];
  return n;
}
inline void dense_strides(const Sizes& dims, i64* strides) {
  i64 step = 1;
  for (int d = dims.count - 1; d >= 0; --d) strides[d] = step, step *= dims.at[d];
}

// f(flat index of `picked`, offset of that index in a tensor of `dims`, offset along `axis` left out)
template <class Fn>
void each_element(const Sizes& dims, const Sizes& picked, int axis, Fn&& f) {
  i64 strides[kSizesRank], index[kSizesRank] = {};
  dense_strides(dims, strides);
  const i64 total = size_of(picked);
  i64 at = 0;
  for (i64 i = 0; i < total; ++i) {
    f(i, at, strides[axis]);
    for (int d = picked.count - 1; d >= 0; --d) {
      if (d != axis) at += strides[d];
      if (++index[d] < picked.at[d]) break;
      if (d != axis) at -= strides[d] * picked.at[d];
      index[d] = 0;
    }
  }
}

template <class Index>
bool indices_ok(const Index* indices, i64 count, i64 size) {
  for (i64 i = 0; i < count; ++i) {
    const i64 at = static_cast<i64>(indices[i]);
    if (at < -size || at >= size) return false;
  }
  return true;
}

// out[i, j] = data[indices[i, j], j] (axis 0); dims of `indices` may be smaller than those of data on the other axes
template <class T, class Index>
bool gather_elements(const Sizes& dims, const Sizes& picked, int axis, const T* data, const Index* indices, T* out) {
  const i64 size = dims.at[axis];
  if (!indices_ok(indices, size_of(picked), size)) return false;
  each_element(dims, picked, axis, [&](i64 i, i64 at, i64 step) {
    const i64 k = static_cast<i64>(indices[i]);
    out[i] = data[at + (k < 0 ? k + size : k) * step];
  });
  return true;
}

enum class Combine { none, add, mul, max, min };

template <Combine How, class T>
OPSMITH_INLINE T combine(T old, T update) {
  if constexpr (How == Combine::none) {
    return update;
  } else {
    const auto a = from_storage(old), b = from_storage(update);
    if constexpr (How == Combine::add)
      return to_storage<T>(a + b);
    else if constexpr (How == Combine::mul)
      return to_storage<T>(a * b);
    else if constexpr (How == Combine::max)
      return to_storage<T>(b > a ? b : a);
    else
      return to_storage<T>(b < a ? b : a);
  }
}

// out holds a copy of data already
template <Combine How, class T, class Index>
bool scatter_elements(const Sizes& dims, const Sizes& picked, int axis, const Index* indices, const T* updates, T* out) {
  const i64 size = dims.at[axis];
  if (!indices_ok(indices, size_of(picked), size)) return false;
  each_element(dims, picked, axis, [&](i64 i, i64 at, i64 step) {
    const i64 k = static_cast<i64>(indices[i]);
    T& to = out[at + (k < 0 ? k + size : k) * step];
    to = combine<How>(to, updates[i]);
  });
  return true;
}

// The offset that a tuple of indices names in dims[first ...]; -1 if one is out of range.
template <class Index>
OPSMITH_INLINE i64 tuple_offset(const Index* tuple, i64 width, const Sizes& dims, int first, const i64* strides) {
  i64 at = 0;
  for (i64 w = 0; w < width; ++w) {
    const i64 size = dims.at[first + w];
    i64 k = static_cast<i64>(tuple[w]);
    if (k < -size || k >= size) return -1;
    at += (k < 0 ? k + size : k) * strides[first + w];
  }
  return at;
}

// indices (batch, count, width): tuples into data's dims behind the batch; each takes a slice of `inner` elements
template <class T, class Index>
bool gather_nd(const Sizes& dims, int batch_dims, i64 batch, i64 count, i64 width, i64 inner, const T* data, const Index* indices, T* out) {
  i64 strides[kSizesRank];
  dense_strides(dims, strides);
  i64 item = 1;
  for (int d = batch_dims; d < dims.count; ++d) item *= dims.at[d];
  for (i64 b = 0; b < batch; ++b) {
    for (i64 i = 0; i < count; ++i) {
      const i64 at = tuple_offset(indices + (b * count + i) * width, width, dims, batch_dims, strides);
      if (at < 0) return false;
      memcpy(out + (b * count + i) * inner, data + b * item + at, static_cast<size_t>(inner) * sizeof(T));
    }
  }
  return true;
}

template <Combine How, class T, class Index>
bool scatter_nd(const Sizes& dims, i64 count, i64 width, i64 inner, const Index* indices, const T* updates, T* out) {
  i64 strides[kSizesRank];
  dense_strides(dims, strides);
  for (i64 i = 0; i < count; ++i)
    if (tuple_offset(indices + i * width, width, dims, 0, strides) < 0) return false;
  for (i64 i = 0; i < count; ++i) {
    T* to = out + tuple_offset(indices + i * width, width, dims, 0, strides);
    for (i64 k = 0; k < inner; ++k) to[k] = combine<How>(to[k], updates[i * inner + k]);
  }
  return true;
}

// out (outer, depth, inner): on at indices[outer, inner], off elsewhere; an index out of range sets nothing
template <class T, class Index>
void one_hot(const Pool& pool, i64 outer, i64 depth, i64 inner, const Index* indices, T off, T on, T* out) {
  pool.parallel_ranges(outer, max<i64>(1, 8192 / max<i64>(1, depth * inner)), [&](i64 begin, i64 end) {
    for (i64 o = begin; o < end; ++o) {
      T* to = out + o * depth * inner;
      for (i64 i = 0; i < depth * inner; ++i) to[i] = off;
      for (i64 i = 0; i < inner; ++i) {
        i64 at = static_cast<i64>(from_storage(indices[o * inner + i]));
        if (at < 0) at += depth;
        if (at >= 0 && at < depth) to[at * inner + i] = on;
      }
    }
  });
}

// The k largest (smallest) along the axis, best first, the lower index first among equals. x (outer, axis, inner).
template <bool Largest, class T>
void top_k(const Pool& pool, i64 outer, i64 axis, i64 inner, i64 k, const T* x, T* values, i64* indices) {
  pool.parallel_ranges(outer * inner, max<i64>(1, 2048 / max<i64>(1, axis)), [&](i64 begin, i64 end) {
    for (i64 r = begin; r < end; ++r) {
      const T* row = x + r / inner * axis * inner + r % inner;
      T* best = values + r / inner * k * inner + r % inner;
      i64* where = indices + r / inner * k * inner + r % inner;
      i64 count = 0;
      for (i64 i = 0; i < axis; ++i) {
        const auto v = from_storage(row[i * inner]);
        auto better = [&](i64 j) {
          const auto other = from_storage(best[j * inner]);
          return Largest ? v > other || (other != other && v == v) : v < other || (other != other && v == v);
        };
        if (count == k && (k == 0 || !better(k - 1))) continue;
        i64 low = 0, high = count;  // the first position that v beats
        while (low < high) {
          const i64 middle = (low + high) / 2;
          if (better(middle))
            high = middle;
          else
            low = middle + 1;
        }
        if (count < k) ++count;
        for (i64 j = count - 1; j > low; --j) best[j * inner] = best[(j - 1) * inner], where[j * inner] = where[(j - 1) * inner];
        best[low * inner] = row[i * inner];
        where[low * inner] = i;
      }
    }
  });
}

// x and out (first, second, inner); for each batch the first length[b] steps are reversed. batch_first: first is the batch axis.
template <class T>
bool reverse_sequence(i64 first, i64 second, i64 inner, bool batch_first, const i64* lengths, const T* x, T* out) {
  const i64 batches = batch_first ? first : second, steps = batch_first ? second : first;
  for (i64 b = 0; b < batches; ++b)
    if (lengths[b] < 0 || lengths[b] > steps) return false;
  for (i64 b = 0; b < batches; ++b) {
    for (i64 s = 0; s < steps; ++s) {
      const i64 from = s < lengths[b] ? lengths[b] - 1 - s : s;
      const i64 to_row = batch_first ? b * second + s : s * second + b, from_row = batch_first ? b * second + from : from * second + b;
      memcpy(out + to_row * inner, x + from_row * inner, static_cast<size_t>(inner) * sizeof(T));
    }
  }
  return true;
}

// The part of each matrix on and above (below) the k-th diagonal; zero elsewhere.
template <class T>
void trilu(const Pool& pool, i64 batch, i64 rows, i64 cols, i64 k, bool upper, const T* x, T* out) {
  pool.parallel_ranges(batch * rows, max<i64>(1, 8192 / max<i64>(1, cols)), [&](i64 begin, i64 end) {
    for (i64 r = begin; r < end; ++r) {
      const __int128 edge = static_cast<__int128>(r % rows) + k;
      for (i64 c = 0; c < cols; ++c) out[r * cols + c] = (upper ? c >= edge : c <= edge) ? x[r * cols + c] : T{};
    }
  });
}

// Ones on the k-th diagonal.
template <class T>
void eye(i64 rows, i64 cols, i64 k, T one, T* out) {
  for (i64 r = 0; r < rows; ++r)
    for (i64 c = 0; c < cols; ++c) out[r * cols + c] = c - r == k ? one : T{};
}

// One at the first largest element along the axis, zero elsewhere.
template <class T>
void hardmax(i64 outer, i64 axis, i64 inner, T one, const T* x, T* out) {
  for (i64 o = 0; o < outer * inner; ++o) {
    const i64 at = o / inner * axis * inner + o % inner;
    i64 best = 0;
    for (i64 i = 1; i < axis; ++i)
      if (from_storage(x[at + i * inner]) > from_storage(x[at + best * inner])) best = i;
    for (i64 i = 0; i < axis; ++i) out[at + i * inner] = i == best ? one : T{};
  }
}

}  // namespace opsmith
