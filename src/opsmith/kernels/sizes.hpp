// Shape arithmetic at run time: what symbolic sizes need beyond + and *.
#pragma once

#include "base.hpp"

namespace opsmith {

inline i64 floor_div(i64 a, i64 b) {
  if (b == 0) return 0;
  const i64 q = a / b;
  return (a % b != 0 && (a < 0) != (b < 0)) ? q - 1 : q;
}
inline i64 trunc_div(i64 a, i64 b) { return b == 0 ? 0 : a / b; }
inline i64 broadcast(i64 a, i64 b) { return a == 1 ? b : a; }
inline bool can_broadcast(i64 a, i64 b) { return a == b || a == 1 || b == 1; }
inline i64 spread(i64 size, i64 stride) { return size == 1 ? 0 : stride; }  // the stride of a dim that may be broadcast
inline bool divides(i64 part, i64 whole) { return part == 0 ? whole == 0 : whole % part == 0; }
inline i64 pick(i64 condition, i64 a, i64 b) { return condition ? a : b; }
inline i64 host_equal(i64 a, i64 b) { return a == b; }
inline i64 host_greater(i64 a, i64 b) { return a > b; }
inline i64 host_greater_equal(i64 a, i64 b) { return a >= b; }
inline i64 host_less(i64 a, i64 b) { return a < b; }
inline i64 host_less_equal(i64 a, i64 b) { return a <= b; }
inline i64 host_not(i64 a) { return !a; }
inline i64 host_and(i64 a, i64 b) { return a && b; }
inline i64 host_or(i64 a, i64 b) { return a || b; }

// Towards zero. What does not fit is what Cast makes of it (types.hpp), so that a malformed value stays defined.
inline i64 to_integer(double x) {
  if (!(x > -9.2e18)) return x != x && !converts_to_lowest ? 0 : INT64_MIN;
  return x < 9.2e18 ? static_cast<i64>(x) : converts_to_lowest ? INT64_MIN : INT64_MAX;
}
inline i64 to_int32(double x) {
  if (!(x > INT32_MIN)) return x != x && !converts_to_lowest ? 0 : INT32_MIN;
  return x < 0x1p31 ? static_cast<i64>(x) : converts_to_lowest ? INT32_MIN : INT32_MAX;
}

// An index: negative counts from the end.
inline i64 from_front(i64 at, i64 size) { return at < 0 ? at + size : at; }

// Slices with a positive step: negative counts from the end, all is clamped to [0, size].
inline i64 slice_bound(i64 at, i64 size) {
  if (at < 0) at += size;
  return at < 0 ? 0 : at > size ? size : at;
}
// Slices with a negative step: first index, which lies in the dim wherever it was asked for, and the index before which they stop.
inline i64 slice_start_back(i64 at, i64 size) {
  if (at < 0) at += size;
  return at > size - 1 ? size - 1 : at < 0 && size > 0 ? 0 : at < -1 ? -1 : at;
}
inline i64 slice_end_back(i64 at, i64 size) {
  if (at < -(i64(1) << 62)) return -1;
  if (at < 0) at += size;
  return at < -1 ? -1 : at > size - 1 ? size - 1 : at;
}

inline i64 range_length(i64 start, i64 limit, i64 step) {
  if (step == 0) return 0;
  const i64 span = limit - start;
  if (span == 0 || (span > 0) != (step > 0)) return 0;
  return (span + step + (step > 0 ? -1 : 1)) / step;
}
inline i64 range_length(double start, double limit, double step) {
  const double n = __builtin_ceil((limit - start) / step);
  return n > 0 && n < 1e15 ? static_cast<i64>(n) : 0;
}

// Reshape by a shape that is data: 0 copies a dim (if `keep`), -1 takes what is left.
inline i64 reshape_copy(i64 wanted, i64 old, i64 keep) { return wanted == 0 && keep ? old : wanted; }
inline i64 reshape_known(i64 wanted) { return wanted == -1 ? 1 : wanted; }
inline i64 reshape_hole(i64 wanted, i64 total, i64 known) {
  return wanted != -1 ? wanted : (known == 0 ? 0 : total / known);
}

// --- axes that arrive as data ---

inline constexpr int kSizesRank = 10;
struct Sizes {  // a short list of sizes or axes
  int count;
  i64 at[kSizesRank];
};
inline bool is_empty(const Sizes& dims) {
  for (int d = 0; d < dims.count; ++d)
    if (dims.at[d] <= 0) return true;
  return false;
}
// Whether these sizes hold exactly `total` elements; no product of sizes wraps around.
inline bool sizes_hold(const Sizes& dims, i64 total) {
  if (is_empty(dims)) {
    for (int d = 0; d < dims.count; ++d)
      if (dims.at[d] < 0) return false;
    return total == 0;
  }
  __int128 n = 1;
  for (int d = 0; d < dims.count; ++d) {
    n *= dims.at[d];
    if (n > total) return false;
  }
  return n == total;
}
inline i64 normal_axis(i64 axis, i64 rank) { return axis < 0 ? axis + rank : axis; }
inline bool axis_ok(i64 axis, i64 rank) { return axis >= -rank && axis < rank; }
inline i64 has_axis(i64 axis, i64 rank, const Sizes& axes) {
  for (int i = 0; i < axes.count; ++i)
    if (normal_axis(axes.at[i], rank) == axis) return 1;
  return 0;
}
// Every axis inside the rank, and none named twice.
inline bool axes_ok(i64 rank, const Sizes& axes) {
  for (int i = 0; i < axes.count; ++i) {
    if (!axis_ok(axes.at[i], rank)) return false;
    for (int j = 0; j < i; ++j)
      if (normal_axis(axes.at[i], rank) == normal_axis(axes.at[j], rank)) return false;
  }
  return true;
}
// The k-th of the dims that are not named by `axes`; 1 behind the last.
inline i64 nth_kept(i64 k, const Sizes& dims, const Sizes& axes) {
  for (int d = 0; d < dims.count; ++d)
    if (!has_axis(d, dims.count, axes) && k-- == 0) return dims.at[d];
  return 1;
}
// The dim at position k after 1s were inserted at `axes`.
inline i64 nth_inserted(i64 k, const Sizes& dims, const Sizes& axes) {
  const i64 rank = dims.count + axes.count;
  i64 before = 0;
  for (i64 d = 0; d < k; ++d) before += !has_axis(d, rank, axes);
  return has_axis(k, rank, axes) || before >= dims.count ? 1 : dims.at[before];
}
inline i64 size_at(const Sizes& dims, i64 axis) {
  axis = normal_axis(axis, dims.count);
  return axis >= 0 && axis < dims.count ? dims.at[axis] : 1;
}
inline i64 size_before(const Sizes& dims, i64 axis) {
  i64 total = 1;
  for (i64 d = 0; d < normal_axis(axis, dims.count) && d < dims.count; ++d) total *= dims.at[d];
  return total;
}
inline i64 size_after(const Sizes& dims, i64 axis) {
  i64 total = 1;
  for (i64 d = normal_axis(axis, dims.count) + 1; d < dims.count; ++d) total *= d < 0 ? 1 : dims.at[d];
  return total;
}
// The value that a list gives for an axis, where `axes` says which axis each entry is for.
inline i64 for_axis(i64 axis, i64 rank, const Sizes& values, const Sizes& axes, i64 otherwise) {
  for (int i = 0; i < axes.count && i < values.count; ++i)
    if (normal_axis(axes.at[i], rank) == axis) return values.at[i];
  return otherwise;
}
// A slice with any step: first index, and number of elements.
inline i64 slice_first(i64 start, i64 step, i64 size) {
  return step > 0 ? slice_bound(start, size) : max<i64>(0, slice_start_back(start, size));
}
inline i64 slice_count(i64 start, i64 end, i64 step, i64 size) {
  if (step == 0) return 0;
  if (step > 0) {
    const i64 span = slice_bound(end, size) - slice_bound(start, size);
    return span <= 0 ? 0 : (span - 1) / step + 1;
  }
  const i64 span = slice_start_back(start, size) - slice_end_back(end, size);
  return span <= 0 ? 0 : (span - 1) / -(step == INT64_MIN ? step + 1 : step) + 1;
}

// --- sizes after a Resize ---

inline i64 whole_size(double n) { return n >= 0 && n < 9e15 ? static_cast<i64>(n) : -1; }
// In float, as ONNX Runtime: 20 * 0.7 is 14.
inline i64 resized(i64 size, double scale) {
  return whole_size(static_cast<double>(__builtin_floorf(static_cast<float>(size) * static_cast<float>(scale))));
}
// One scale for all axes, so that none grows beyond (`smaller`) or stays below what is wanted.
inline double aspect_scale(bool smaller, const Sizes& old, const Sizes& wanted) {
  double scale = 0;
  for (int d = 0; d < old.count; ++d) {
    const double s = old.at[d] > 0 ? static_cast<double>(wanted.at[d]) / static_cast<double>(old.at[d]) : 0;
    if (d == 0 || (smaller ? s < scale : s > scale)) scale = s;
  }
  return scale;
}
inline i64 aspect_size(i64 old, double scale) { return whole_size(__builtin_floor(scale * static_cast<double>(old) + 0.5)); }

// Bytes of an arena slot, in 128 bits so that no product of sizes can wrap around.
inline i64 slot_bytes(__int128 bytes) {
  constexpr __int128 limit = i64(1) << 46;
  return bytes < 0 || bytes > limit ? static_cast<i64>(limit) : static_cast<i64>(bytes);
}

}  // namespace opsmith
