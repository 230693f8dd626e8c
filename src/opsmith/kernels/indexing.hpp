// Reading and writing at indices that are data: GatherElements, GatherND, the Scatters, OneHot, TopK, ReverseSequence.
// Every index is checked before anything is read or written through it; false means that one was out of range.
#pragma once

#include "elementwise.hpp"
#include "fold.hpp"
#include "reduce.hpp"
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

// f(flat index of `picked`, offset of that index in a tensor of `dims`, length) for each row of `picked`, the offset along `axis`
// left out
template <class Fn>
OPSMITH_INLINE void each_row(const Sizes& dims, const Sizes& picked, int axis, Fn&& f) {
  i64 strides[kSizesRank], index[kSizesRank] = {};
  dense_strides(dims, strides);
  const i64 total = size_of(picked), last = picked.count - 1, row = picked.at[last];
  i64 at = 0;
  for (i64 i = 0; i < total; i += row) {
    f(i, at, row);
    for (i64 d = last - 1; d >= 0; --d) {
      if (d != axis) at += strides[d];
      if (++index[d] < picked.at[d]) break;
      if (d != axis) at -= strides[d] * picked.at[d];
      index[d] = 0;
    }
  }
}

// The same for each element: f(flat index, offset, the axis' stride)
template <class Fn>
OPSMITH_INLINE void each_element(const Sizes& dims, const Sizes& picked, int axis, Fn&& f) {
  i64 strides[kSizesRank] = {};
  dense_strides(dims, strides);
  const i64 step = strides[axis], along = picked.count - 1 == axis ? 0 : 1;
  each_row(dims, picked, axis, [&](i64 i, i64 at, i64 n) {
    for (i64 j = 0; j < n; ++j) f(i + j, at + j * along, step);
  });
}

template <class Index>
bool indices_ok(const Index* indices, i64 count, i64 size) {
  bool ok = true;  // without a way out, so that it runs on vectors
  for (i64 i = 0; i < count; ++i) {
    const i64 at = static_cast<i64>(indices[i]);
    ok &= (at >= -size) & (at < size);
  }
  return ok;
}

// out[i, j] = data[indices[i, j], j] (axis 0); dims of `indices` may be smaller than those of data on the other axes
template <class T, class Index>
bool gather_elements(const Sizes& dims, const Sizes& picked, int axis, const T* data, const Index* indices, T* out) {
  const i64 size = dims.at[axis];
  bool ok = true;  // one pass: nothing is read at an index that is out of range
  auto element = [&](i64 i, const T* from, i64 step) __attribute__((always_inline)) {
    const i64 given = static_cast<i64>(indices[i]), k = given < 0 ? given + size : given;
    const bool inside = static_cast<uint64_t>(k) < static_cast<uint64_t>(size);
    ok &= inside;
    out[i] = inside ? from[k * step] : T{};
  };
  if (axis == dims.count - 1)
    each_row(dims, picked, axis, [&](i64 i, i64 at, i64 n) {
      for (i64 j = i; j < i + n; ++j) element(j, data + at, 1);
    });
  else
    each_element(dims, picked, axis, [&](i64 i, i64 at, i64 step) { element(i, data + at, step); });
  return ok;
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

// The order of TopK: NaN is worse than any number; of equals the first is better.
template <bool Largest, class V>
OPSMITH_INLINE bool beats(V a, V b) {
  return (Largest ? a > b : a < b) || (b != b && a == a);
}

// Sorts n places `step` apart, the best first: quicksort around the median of three, short pieces by insertion.
template <class Worse>
void sort_places(i64* at, i64 step, i64 n, Worse worse) {
  struct Piece {
    i64 low, high;
  } pieces[64];  // the larger half waits, so there are never more than log2(n)
  i64 waiting = 0;
  auto place = [&](i64 i) -> i64& { return at[i * step]; };
  auto exchange = [&](i64 i, i64 j) {
    const i64 old = place(i);
    place(i) = place(j), place(j) = old;
  };
  pieces[waiting++] = {0, n - 1};
  while (waiting > 0) {
    auto [low, high] = pieces[--waiting];
    while (high - low >= 16) {
      const i64 middle = low + (high - low) / 2;
      if (worse(place(low), place(middle))) exchange(low, middle);
      if (worse(place(middle), place(high))) exchange(middle, high);
      if (worse(place(low), place(middle))) exchange(low, middle);
      const i64 pivot = place(middle);
      i64 i = low, j = high;
      while (i <= j) {
        while (worse(pivot, place(i))) ++i;
        while (worse(place(j), pivot)) --j;
        if (i <= j) exchange(i++, j--);
      }
      const bool left_larger = j - low > high - i;
      pieces[waiting++] = left_larger ? Piece{low, j} : Piece{i, high};
      (left_larger ? low : high) = left_larger ? i : j;
    }
    for (i64 i = low + 1; i <= high; ++i) {
      const i64 x = place(i);
      i64 j = i;
      for (; j > low && worse(place(j - 1), x); --j) place(j) = place(j - 1);
      place(j) = x;
    }
  }
}

// The k largest (smallest) along the axis, best first, the lower index first among equals. x (outer, axis, inner).
//
// The best so far are a heap of indices with the worst of them on top, which most elements are not better than.
template <bool Largest, class T>
void top_k(const Pool& pool, i64 outer, i64 axis, i64 inner, i64 k, const T* x, T* values, i64* indices) {
  if (k <= 0) return;
  pool.parallel_ranges(outer * inner, max<i64>(1, 2048 / max<i64>(1, axis)), [&](i64 begin, i64 end) {
    for (i64 r = begin; r < end; ++r) {
      const T* row = x + r / inner * axis * inner + r % inner;
      T* best = values + r / inner * k * inner + r % inner;
      i64* heap = indices + r / inner * k * inner + r % inner;
      auto number = [&](i64 i) { return from_storage(row[i * inner]); };
      auto worse = [&](i64 i, i64 j) {
        const auto a = number(i), b = number(j);
        return beats<Largest>(b, a) || (i > j && !beats<Largest>(a, b));
      };
      // Puts index `i` at place `at` of a heap of `count`, or below it.
      auto sink = [&](i64 at, i64 i, i64 count) {
        for (i64 child; (child = 2 * at + 1) < count; at = child) {
          if (child + 1 < count && worse(heap[(child + 1) * inner], heap[child * inner])) ++child;
          if (!worse(heap[child * inner], i)) break;
          heap[at * inner] = heap[child * inner];
        }
        heap[at * inner] = i;
      };
      for (i64 i = 0; i < k; ++i) heap[i * inner] = i;
      for (i64 at = k / 2 - 1; at >= 0 && k < axis; --at) sink(at, heap[at * inner], k);
      auto worst = number(heap[0]);
      auto look = [&](i64 i) {
        if (!beats<Largest>(number(i), worst)) return;
        sink(0, i, k);
        worst = number(heap[0]);
      };
      i64 i = k;
      if constexpr (detail::FloatStorage<T>) {
        constexpr i64 kRun = 4 * W;
        for (; inner == 1 && i + kRun <= axis; i += kRun) {  // most runs hold nothing better
          const F limit = splat(worst);
          I wins{};
          for (i64 j = 0; j < 4; ++j) {
            const F v = load(row + i + j * W, Full{});
            wins |= (Largest ? v > limit : v < limit) | ((limit != limit) & (v == v));
          }
          for (i64 j = 0; any(wins) && j < kRun; ++j) look(i + j);
        }
      }
      for (; i < axis; ++i) look(i);
      sort_places(heap, inner, k, worse);
      for (i64 j = 0; j < k; ++j) best[j * inner] = row[heap[j * inner] * inner];
    }
  });
}

// out (batch, middle, axis, inner) holds a copy of the cache; update (batch, middle, steps, inner) is written from at[batch] (0 if
// null) on, around the end if Circular.
template <bool Circular, class T>
bool tensor_scatter(i64 batch, i64 middle, i64 axis, i64 steps, i64 inner, const T* update, const i64* at, T* out) {
  for (i64 b = 0; b < batch && at; ++b)
    if (at[b] < 0 || at[b] > (Circular ? INT64_MAX : axis) - steps) return false;
  for (i64 r = 0; r < batch * middle; ++r) {
    const i64 first = at ? at[r / middle] : 0;
    for (i64 s = 0; s < steps; ++s) {
      const i64 to = Circular ? (first + s) % axis : first + s;
      memcpy(out + (r * axis + to) * inner, update + (r * steps + s) * inner, static_cast<size_t>(inner) * sizeof(T));
    }
  }
  return true;
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
      const __int128 edge = static_cast<__int128>(r % rows) + k + !upper;  // the first column of the right part
      const i64 split = edge < 0 ? 0 : edge > cols ? cols : static_cast<i64>(edge);
      const i64 from = upper ? split : 0, to = upper ? cols : split;
      T* row = out + r * cols;
      memset(row, 0, static_cast<size_t>(from) * sizeof(T));
      memcpy(row + from, x + r * cols + from, static_cast<size_t>(to - from) * sizeof(T));
      memset(row + to, 0, static_cast<size_t>(cols - to) * sizeof(T));
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
void hardmax(const Pool& pool, i64 outer, i64 axis, i64 inner, T one, const T* x, T* out) {
  if (axis == 0) return;  // nothing has a largest element
  pool.parallel_ranges(outer, max<i64>(1, 8192 / max<i64>(1, axis * inner)), [&](i64 begin, i64 end) {
    memset(out + begin * axis * inner, 0, static_cast<size_t>((end - begin) * axis * inner) * sizeof(T));
    for (i64 o = begin * inner; o < end * inner; ++o) {
      const i64 at = o / inner * axis * inner + o % inner;
      i64 best = 0;
      if constexpr (detail::FloatStorage<T>) {
        if (inner == 1) {
          out[at + detail::arg_run<true, false>(x + at, axis)] = one;
          continue;
        }
      }
      for (i64 i = 1; i < axis; ++i)
        if (from_storage(x[at + i * inner]) > from_storage(x[at + best * inner])) best = i;
      out[at + best * inner] = one;
    }
  });
}

}  // namespace opsmith
