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

inline i64 to_integer(double x) {  // towards zero, saturated, so that a malformed value stays defined
  if (!(x > -9.2e18)) return x != x ? 0 : INT64_MIN;
  return x < 9.2e18 ? static_cast<i64>(x) : INT64_MAX;
}

// Slices with a positive step: negative counts from the end, all is clamped to [0, size].
inline i64 slice_bound(i64 at, i64 size) {
  if (at < 0) at += size;
  return at < 0 ? 0 : at > size ? size : at;
}
// Slices with a negative step: first index, and the index before which they stop.
inline i64 slice_start_back(i64 at, i64 size) {
  if (at < 0) at += size;
  return at < -1 ? -1 : at > size - 1 ? size - 1 : at;
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

// Bytes of an arena slot, in 128 bits so that no product of sizes can wrap around.
inline i64 slot_bytes(__int128 bytes) {
  constexpr __int128 limit = i64(1) << 46;
  return bytes < 0 || bytes > limit ? static_cast<i64>(limit) : static_cast<i64>(bytes);
}

}  // namespace opsmith
