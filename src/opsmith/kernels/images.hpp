// Images as kernels that keep their layout see them: [outer][pixels][inner]. Channels-last has outer = N and inner = C, row-major
// outer = N * C and inner = 1.
#pragma once

#include <type_traits>

#include "base.hpp"

namespace opsmith {

struct ImageLayout {
  i64 outer, inner;
  i64 x_outer, x_pixel, y_outer, y_pixel;  // elements from one to the next
};

// Channels [begin, end) in groups of 4 vectors, then single ones, then the tail: f(channel, vectors, lanes).
template <class Fn>
OPSMITH_INLINE void channel_groups(i64 begin, i64 end, Fn&& f) {
  i64 c = begin;
  for (; c + 4 * W <= end; c += 4 * W) f(c, std::integral_constant<int, 4>{}, Full{});
  for (; c + W <= end; c += W) f(c, std::integral_constant<int, 1>{}, Full{});
  if (c < end) f(c, std::integral_constant<int, 1>{}, Tail{end - c});
}

}  // namespace opsmith
