// Results that are as long as the data says: one call counts, and the next one writes.
#pragma once

#include "indexing.hpp"

namespace opsmith {

// ---- NonZero, Compress ----------------------------------------------------------------------------------------------

template <class T>
OPSMITH_INLINE bool is_set(T x) {
  if constexpr (HalfStorage<T>)
    return (x.bits & 0x7fff) != 0;
  else
    return x != T(0);
}

template <class T>
i64 count_set(i64 n, const T* x) {
  i64 count = 0;
  for (i64 i = 0; i < n; ++i) count += is_set(x[i]);
  return count;
}

// Coordinates of what is not 0, in row-major order: y [rank][count].
template <class T>
void non_zero(const Sizes& dims, i64 count, const T* x, i64* y) {
  const i64 total = size_of(dims), last = dims.count - 1;
  if (count == 0) return;
  if (dims.count == 0) {
    y[0] = 0;
    return;
  }
  i64 index[kSizesRank] = {}, at = 0;
  const i64 row = dims.at[last];
  for (i64 start = 0; start < total; start += row) {
    const i64 first = at;
    for (i64 i = 0; i < row; ++i)
      if (is_set(x[start + i])) y[last * count + at++] = i;
    for (i64 d = 0; d < last; ++d)
      for (i64 k = first; k < at; ++k) y[d * count + k] = index[d];
    for (i64 d = last - 1; d >= 0 && ++index[d] == dims.at[d]; --d) index[d] = 0;
  }
}

// Slices of x [outer][axis][inner] whose condition holds: y [outer][count][inner].
template <class T>
void compress(const Pool& pool, i64 outer, i64 axis, i64 inner, i64 length, i64 count, const bool* condition, const T* x, T* y) {
  if (inner == 0) return;  // the pointers may be null, which memcpy does not allow even for no bytes
  pool.parallel_ranges(outer, 1 + 16384 / (1 + axis * inner), [&](i64 begin, i64 end) {
    for (i64 o = begin; o < end; ++o) {
      T* out = y + o * count * inner;
      for (i64 i = 0; i < length; ++i) {
        if (!condition[i]) continue;
        memcpy(out, x + (o * axis + i) * inner, static_cast<size_t>(inner) * sizeof(T));
        out += inner;
      }
    }
  });
}

// ---- NonMaxSuppression ----------------------------------------------------------------------------------------------

struct Box {
  float top, left, bottom, right, area;
};

// Corners in any order (y, x, y, x), or centre and size (x, y, width, height).
inline Box box_of(const float* b, bool centers) {
  Box box;
  if (centers) {
    box = {b[1] - b[3] / 2, b[0] - b[2] / 2, b[1] + b[3] / 2, b[0] + b[2] / 2, 0};
  } else {
    box = {min(b[0], b[2]), min(b[1], b[3]), max(b[0], b[2]), max(b[1], b[3]), 0};
  }
  box.area = (box.bottom - box.top) * (box.right - box.left);
  return box;
}

inline bool overlaps(const Box& a, const Box& b, float threshold) {
  const float height = min(a.bottom, b.bottom) - max(a.top, b.top), width = min(a.right, b.right) - max(a.left, b.left);
  if (height <= 0 || width <= 0 || a.area <= 0 || b.area <= 0) return false;
  const float common = height * width;
  return common / (a.area + b.area - common) > threshold;
}

// Candidates of one class as a heap: the best score on top, of equal ones the first box.
struct Candidates {
  const float* scores;
  i64* at;
  i64 count;

  bool better(i64 a, i64 b) const { return scores[a] > scores[b] || (scores[a] == scores[b] && a < b); }
  void sink(i64 i) {
    for (i64 child; (child = 2 * i + 1) < count; i = child) {
      if (child + 1 < count && better(at[child + 1], at[child])) ++child;
      if (!better(at[child], at[i])) return;
      const i64 other = at[i];
      at[i] = at[child], at[child] = other;
    }
  }
  void arrange() {
    for (i64 i = count / 2 - 1; i >= 0; --i) sink(i);
  }
  i64 take() {
    const i64 best = at[0];
    at[0] = at[--count];
    sink(0);
    return best;
  }
};

// Per class: the indices of its candidates, the boxes that were taken, and how many.
inline i64 suppression_workspace(i64 batch, i64 classes, i64 boxes, i64 most) {
  return batch * classes * (boxes * 8 + most * static_cast<i64>(sizeof(Box)) + 8) + 64;
}

// boxes [batch][n][4], scores [batch][classes][n] -> the number of boxes taken, and selected (batch, class, box), by class, best
// first. `most` boxes of a class at the very most, `wanted` as the model says.
inline i64 select_boxes(const Pool& pool, i64 batch, i64 classes, i64 n, i64 most, bool centers, const float* boxes, const float* scores,
                 const i64* wanted, const float* overlap, const float* lowest, i64* selected, void* workspace) {
  const i64 limit = wanted ? max<i64>(0, min(most, *wanted)) : 0, groups = batch * classes;
  if (limit == 0 || n == 0) return 0;
  const float threshold = overlap ? *overlap : 0;
  i64* indices = static_cast<i64*>(workspace);
  i64* counts = indices + groups * n;
  Box* taken = reinterpret_cast<Box*>(counts + groups);
  pool.parallel_ranges(groups, 1 + 4096 / n, [&](i64 begin, i64 end) {
    for (i64 g = begin; g < end; ++g) {
      Candidates candidates{scores + g * n, indices + g * n, 0};
      for (i64 i = 0; i < n; ++i) {
        candidates.at[candidates.count] = i;
        candidates.count += !lowest || candidates.scores[i] > *lowest;
      }
      candidates.arrange();
      i64 count = 0;
      Box* mine = taken + g * most;
      while (candidates.count > 0 && count < limit) {
        const i64 best = candidates.take();
        const Box box = box_of(boxes + (g / classes * n + best) * 4, centers);
        bool free = true;
        for (i64 k = 0; k < count && free; ++k) free = !overlaps(box, mine[k], threshold);
        if (!free) continue;
        mine[count] = box;
        i64* out = selected + (g * most + count++) * 3;
        out[0] = g / classes, out[1] = g % classes, out[2] = best;
      }
      counts[g] = count;
    }
  });
  i64 total = 0;
  for (i64 g = 0; g < groups; ++g) {  // close the gaps
    memmove(selected + total * 3, selected + g * most * 3, static_cast<size_t>(counts[g]) * 24);
    total += counts[g];
  }
  return total;
}

inline void take_selected(i64 count, const i64* selected, i64* y) { memcpy(y, selected, static_cast<size_t>(count) * 24); }

}  // namespace opsmith
