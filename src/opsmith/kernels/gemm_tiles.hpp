// The microkernel of products on CPUs whose registers hold tiles (AMX): up to 2 x 3 tiles of sums, 32 rows by a panel of B, over
// the whole of K and all taps. A and B lie as for the microkernels of gemm_micro.hpp and gemm_bytes.hpp, so weights are packed once:
//
//   a tile of A    16 rows x 64 bytes of K     read in place where 16 rows lie evenly; else copied, 1 KB at a time
//   a tile of B    16 steps of K x W words     a word is what one column multiplies in a step: two bf16 or four bytes
//   a tile of C    16 rows x W sums
//
// 6 tiles of C leave one register for A and one for B: 8 loads for 6 products, 64 of the 96 cycles that these take where all comes
// from L1; from L2 a step takes 145 to 245. Cutting K so that a part of B stays in L1, and fetching A or B ahead by hand, were both
// measured 5 to 15 % slower. What is left of K beyond whole tiles goes through copies filled up with zeros.
//
// Tiles are a thread's state: whoever multiplies holds a Multiplier, which configures them for the time of a task.
#pragma once

#include <utility>

#include "base.hpp"

namespace opsmith {

inline const bool has_tiles = Tiles::exist && Tiles::request();

// The registers of this thread, for as long as this lives.
struct TilesInUse {
  TilesInUse() {
    if (has_tiles) Tiles::begin();
  }
  ~TilesInUse() {
    if (has_tiles) Tiles::end();
  }
  TilesInUse(const TilesInUse&) = delete;
};

struct NoTiles {};

// Rows of the tile of sums; a block of rows is cut into these.
template <class T = Tiles>
inline constexpr i64 tile_rows = 2 * T::rows;

// The distance of rows that lie evenly, or -1.
inline i64 even_distance(const uint8_t* const* rows, i64 count) {
  const i64 distance = rows[1] - rows[0];
  bool even = true;
  for (i64 r = 2; r < count; ++r) even &= rows[r] - rows[r - 1] == distance;
  return even ? distance : -1;
}

// `bytes` of each of `count` rows at `at`, zeros behind them. Flip: the top bit of every byte, as gemm_bytes.hpp has it.
template <class T, bool Flip>
OPSMITH_INLINE void copy_tile(const uint8_t* const* rows, i64 count, i64 at, i64 bytes, uint8_t* out) {
  for (i64 r = 0; r < count; ++r, out += T::row_bytes) {
    Vec<uint8_t, T::row_bytes> line{};
    memcpy(&line, rows[r] + at, bytes < T::row_bytes ? static_cast<size_t>(bytes) : sizeof line);
    if constexpr (Flip) line ^= 0x80;
    memcpy(out, &line, sizeof line);
    if (Flip && bytes < T::row_bytes) memset(out + bytes, 0, static_cast<size_t>(T::row_bytes - bytes));
  }
}

// What will be multiplied after this, fetched to L2 meanwhile: so many cache lines at each step of K. Weights come from memory, and
// nothing fetches them by itself in the order in which tiles are loaded.
struct Ahead {
  const uint8_t* at = nullptr;
  i64 lines = 0;
  OPSMITH_INLINE void fetch() {
    for (i64 i = 0; i < lines; ++i, at += 64) __builtin_prefetch(at, 0, 2);
  }
};

// tile (count, V vectors) (+)= A (count, taps x bytes) B, as micro of gemm_micro.hpp. Tall: how many tiles of rows count fills. Sum
// is float for Number = bf16, int32_t for bytes. Width: vectors from one row of the tile to the next.
template <class T, class Number, bool Flip, int Tall, int V, int Width, class Sum>
[[gnu::noinline]] void micro_tiles(i64 count, const uint8_t* const* rows, i64 tap_stride, i64 taps, i64 bytes, const uint8_t* b, Sum* tile,
                                   bool accumulate, Ahead ahead) {
  constexpr int A = 6, B = 7;
  constexpr i64 b_step = T::rows * V * W * 4, b_row = V * W * 4, c_row = Width * W * 4;
  alignas(64) uint8_t copies[Tall][T::rows * T::row_bytes];
  alignas(64) Sum short_sums[T::rows * Width * W];
  i64 height[Tall];
#pragma GCC unroll 2
  for (int h = 0; h < Tall; ++h) {
    height[h] = min(T::rows, count - h * T::rows);
    if (height[h] < T::rows) memset(copies[h], 0, sizeof copies[h]);
  }
  auto each = [](auto&& f) __attribute__((always_inline)) {  // with the number of each register of C
    [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
      (f(std::integral_constant<int, I>{}, std::integral_constant<int, I / V>{}, std::integral_constant<int, I % V>{}), ...);
    }(std::make_integer_sequence<int, Tall * V>{});
  };
  auto rows_of = [&](int h) __attribute__((always_inline)) { return tile + h * T::rows * Width * W; };
  each([&](auto c, auto h, auto v) __attribute__((always_inline)) {
    if (!accumulate) {
      T::template zero<c>();
      return;
    }
    const Sum* from = rows_of(h);
    if (height[h] < T::rows) {
      memcpy(short_sums, from, static_cast<size_t>(height[h] * c_row));
      from = short_sums;
    }
    T::template load<c>(from + v * W, c_row);
  });
  // One step of K: A lies at a[h], `stride` apart.
  auto step = [&](const uint8_t* const* a, const i64* stride, const uint8_t* b_tile) __attribute__((always_inline)) {
    each([&](auto c, auto h, auto v) __attribute__((always_inline)) {
      if constexpr (v == 0) T::template load<A>(a[h], stride[h]);
      T::template load<B>(b_tile + v * W * 4, b_row);
      T::template multiply<c, A, B>(Number{});
    });
  };
  for (i64 t = 0; t < taps; ++t) {
    const uint8_t* const* row[Tall];
    i64 distance[Tall];
#pragma GCC unroll 2
    for (int h = 0; h < Tall; ++h) {
      row[h] = rows + t * tap_stride + h * T::rows;
      distance[h] = !Flip && height[h] == T::rows ? even_distance(row[h], T::rows) : -1;
    }
    const uint8_t* a[Tall];
    i64 stride[Tall], at = 0;
    for (; at + T::row_bytes <= bytes; at += T::row_bytes, b += b_step) {
#pragma GCC unroll 2
      for (int h = 0; h < Tall; ++h) {
        if (distance[h] >= 0) {
          a[h] = row[h][0] + at, stride[h] = distance[h];
        } else {
          copy_tile<T, Flip>(row[h], height[h], at, T::row_bytes, copies[h]);
          a[h] = copies[h], stride[h] = T::row_bytes;
        }
      }
      ahead.fetch();
      step(a, stride, b);
    }
    if (at < bytes) {
      // The zeros of A meet weights of the next taps, or zeros where there are none.
      const i64 left = ceil_div(bytes - at, 4) * b_row, behind = (taps - 1 - t) * ceil_div(bytes, 4) * b_row;
      alignas(64) uint8_t last[b_step];
      const uint8_t* b_tile = b;
      if (left + behind < b_step) {
        memcpy(last, b, static_cast<size_t>(left));
        memset(last + left, 0, static_cast<size_t>(b_step - left));
        b_tile = last;
      }
#pragma GCC unroll 2
      for (int h = 0; h < Tall; ++h) {
        copy_tile<T, Flip>(row[h], height[h], at, bytes - at, copies[h]);
        a[h] = copies[h], stride[h] = T::row_bytes;
      }
      step(a, stride, b_tile);
      b += left;
    }
  }
  each([&](auto c, auto h, auto v) __attribute__((always_inline)) {
    if (height[h] == T::rows) return T::template store<c>(rows_of(h) + v * W, c_row);
    T::template store<c>(short_sums + v * W, c_row);
    for (i64 r = 0; r < height[h]; ++r)
      memcpy(rows_of(h) + (r * Width + v) * W, short_sums + (r * Width + v) * W, sizeof(Sum) * W);
  });
}

template <class T, class Number, bool Flip, class Sum>
using TilesFn = void (*)(i64 count, const uint8_t* const* rows, i64 tap_stride, i64 taps, i64 bytes, const uint8_t* b, Sum* tile, bool accumulate,
                         Ahead ahead);

template <class T, class Number, bool Flip, class Sum>
TilesFn<T, Number, Flip, Sum> pick_tiles(i64 rows, i64 vectors) {
  auto with = [&]<int Tall>(std::integral_constant<int, Tall>) -> TilesFn<T, Number, Flip, Sum> {
    if constexpr (gemm_nv > 2)
      if (vectors == 3) return micro_tiles<T, Number, Flip, Tall, 3, gemm_nv, Sum>;
    return vectors == 2 ? micro_tiles<T, Number, Flip, Tall, 2, gemm_nv, Sum> : micro_tiles<T, Number, Flip, Tall, 1, gemm_nv, Sum>;
  };
  return rows > T::rows ? with(std::integral_constant<int, 2>{}) : with(std::integral_constant<int, 1>{});
}

// c (M, V vectors) (+)= a (M, K) b (K, V vectors) in bf16: rows of a lie `stride` numbers apart, b in pairs along K, c closely.
template <int V, class T = Tiles>
void tiles_product(const bf16* a, i64 stride, i64 M, i64 K, const bf16* b, float* c, bool accumulate) {
  const uint8_t* rows[tile_rows<T>];
  for (i64 first = 0; first < M; first += tile_rows<T>) {
    const i64 count = min(tile_rows<T>, M - first);
    for (i64 r = 0; r < count; ++r) rows[r] = reinterpret_cast<const uint8_t*>(a + (first + r) * stride);
    const auto micro = count > T::rows ? micro_tiles<T, bf16, false, 2, V, V, float> : micro_tiles<T, bf16, false, 1, V, V, float>;
    micro(count, rows, 0, 1, K * 2, reinterpret_cast<const uint8_t*>(b), c + first * V * W, accumulate, {});
  }
}

}  // namespace opsmith
