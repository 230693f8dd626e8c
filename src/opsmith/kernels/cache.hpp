// The KV cache: `rows` new rows of every head behind the `cached` ones.
//
// present [batch][heads][present_room][size] may be the memory of past [batch][heads][past_room][size] itself: then both have
// the same room, and only the new rows are written. Otherwise the cached rows are copied first. Where there is room, a single new
// row goes where its row of mask [batch][cached + rows] ends, so that texts of different lengths can be in one batch.
#pragma once

#include "math.hpp"
#include "types.hpp"

namespace opsmith {

struct CacheShape {
  i64 batch, heads, rows, size, cached, past_room, present_room;
  i64 fresh_batch, fresh_head, fresh_row;  // strides of the new rows; size is contiguous
};

// Where the new rows of a text begin.
inline i64 cache_place(const CacheShape& s, const int64_t* mask) {
  if (s.rows != 1 || s.past_room < s.cached + s.rows) return s.cached;
  i64 last = s.cached;
  while (last > 0 && mask[last] == 0) --last;
  return mask[last] ? last : s.cached;
}

template <class T>
void cache_append(const Pool& pool, const CacheShape& s, const T* past, const T* fresh, const int64_t* mask, T* present) {
  const bool in_place = past == present;
  const i64 per_head = (in_place ? s.rows : s.cached + s.rows) * s.size;
  const i64 grain = max<i64>(1, 16384 / max<i64>(1, per_head));
  pool.parallel_ranges(s.batch * s.heads, grain, [&](i64 begin, i64 end) {
    for (i64 i = begin; i < end; ++i) {
      T* to = present + i * s.present_room * s.size;
      if (!in_place && s.cached > 0)
        memcpy(to, past + i * s.past_room * s.size, static_cast<size_t>(s.cached * s.size) * sizeof(T));
      const T* from = fresh + i / s.heads * s.fresh_batch + i % s.heads * s.fresh_head;
      const i64 place = cache_place(s, mask + i / s.heads * (s.cached + s.rows));
      for (i64 r = 0; r < s.rows; ++r)
        memcpy(to + (place + r) * s.size, from + r * s.fresh_row, static_cast<size_t>(s.size) * sizeof(T));
    }
  });
}

// A cache in bytes: a row stands for its scale times its bytes.
struct CacheRowsShape {
  i64 batch, heads, rows, size;
  i64 x_batch, x_head, x_row;  // strides of what is read; size is contiguous
};

// y [batch][heads][rows][size] = round(x / scale), scale [batch][heads][rows] = largest |x| of the row / 127
template <class T>
void cache_quantize(const Pool& pool, const CacheRowsShape& s, const T* x, int8_t* y, float* scale) {
  pool.parallel_ranges(s.batch * s.heads * s.rows, max<i64>(1, 16384 / max<i64>(1, s.size)), [&](i64 begin, i64 end) {
    for (i64 i = begin; i < end; ++i) {
      const T* from = x + i / s.rows / s.heads * s.x_batch + i / s.rows % s.heads * s.x_head + i % s.rows * s.x_row;
      F largest{};
      for_lanes(s.size, [&](i64 d, auto lanes) { largest = max_or_second(abs(load(from + d, lanes)), largest); });
      scale[i] = max(lane_max(largest), 1e-30f) * (1.0f / 127.0f);
      for_lanes(s.size, [&](i64 d, auto lanes) { store(y + i * s.size + d, round(load(from + d, lanes) / scale[i]), lanes); });
    }
  });
}

// y [batch][heads][rows][size] = scale * x; the scales of a head lie side by side
inline void cache_dequantize(const Pool& pool, const CacheRowsShape& s, const int8_t* x, const float* scale, i64 scale_batch,
                             i64 scale_head, float* y) {
  pool.parallel_ranges(s.batch * s.heads * s.rows, max<i64>(1, 16384 / max<i64>(1, s.size)), [&](i64 begin, i64 end) {
    for (i64 i = begin; i < end; ++i) {
      const i64 b = i / s.rows / s.heads, h = i / s.rows % s.heads, row = i % s.rows;
      const int8_t* from = x + b * s.x_batch + h * s.x_head + row * s.x_row;
      const float factor = scale[b * scale_batch + h * scale_head + row];
      for_lanes(s.size, [&](i64 d, auto lanes) { store(y + i * s.size + d, load(from + d, lanes) * factor, lanes); });
    }
  });
}

}  // namespace opsmith
