// The microkernel that every matrix product here ends in: a tile of at most gemm_mr rows by gemm_nv vectors of
// columns, kept in registers over the whole of K.
//
//   tile[r][n] (+)= sum over taps t, over k < K:  rows[t * tap_stride + r][k] * b[t][k][n]
//
// Rows come as pointers, one per row and tap: a plain matrix is one tap with equally spaced pointers, an implicit
// convolution has one tap per kernel position, and padding is a pointer to zeros. Nothing is ever copied to
// rearrange it ("indirect" convolution).
//
// Where A was written for this kernel alone (Winograd's V), it is "blocked": [taps][gemm_mr rows][a cache line of values], in
// the order of use, one linear stream for the prefetcher; rows[0] points at it.
//
// gemm_mr x gemm_nv accumulators, gemm_nv registers for B and one or two for the row value must fit the register file: each
// simd_<set>.hpp has its sizes and says why. The loop over K is not split: with B in panels both operands stream from L2 at 4 to 11 bytes per cycle, which
// the hardware prefetcher sustains, and splitting K at 256, 512 or 1024 was measured 1 to 8 % slower.
#pragma once

#include "gemm_tiles.hpp"

namespace opsmith {

inline constexpr i64 gemm_nr = gemm_nv * W;

// Columns in [N] are cut into panels of gemm_nr; the last one is only as many whole vectors wide as it needs.
inline constexpr i64 panel_count(i64 N) { return ceil_div(N, gemm_nr); }
inline constexpr i64 panel_vectors(i64 N, i64 panel) { return ceil_div(min(N - panel * gemm_nr, gemm_nr), W); }
// A step takes one k of B, or two where B holds pairs (bf16x2): then rows of A of bf16 go through PairDot, and rows of floats, for
// CPUs that have none, meet one half of the pairs after the other. An odd last k has a zero behind it in B.
template <class TB>
inline constexpr i64 step_k = __is_same(TB, bf16x2) ? 2 : 1;
template <class TB>
inline constexpr i64 steps(i64 K) { return ceil_div(K, step_k<TB>); }
template <class TB = float>
inline constexpr i64 packed_size(i64 N, i64 K) { return round_up(N, W) * steps<TB>(K); }  // elements

template <class TA, class TB>
using MicroFn = void (*)(const TA* const* rows, i64 tap_stride, i64 taps, i64 K, const TB* b, float* tile,
                         bool accumulate);

// Few rows leave few independent sums, and an FMA takes 4 cycles: sum even and odd k apart until there are 8 chains.
inline constexpr int chains(int R, int V) { return R * V >= 8 ? 1 : R * V >= 4 ? 2 : 4; }

template <class TA>
inline constexpr i64 blocked_run = 64 / static_cast<i64>(sizeof(TA));

// One number of packed B, for references.
template <class TB>
float packed_at(const TB* packed, i64 N, i64 K, i64 k, i64 n) {
  const i64 panel = n / gemm_nr, width = panel_vectors(N, panel) * W;
  const TB value = packed[panel * gemm_nr * steps<TB>(K) + k / step_k<TB> * width + n % gemm_nr];
  if constexpr (step_k<TB> == 2)
    return to_float(bf16{static_cast<uint16_t>(value.bits >> (16 * (k % 2)))});
  else
    return to_float(value);
}

// W columns of B at a step; of pairs the first or the second k.
template <class TB>
OPSMITH_INLINE F load_step(const TB* b, int) {
  return load(b, Full{});
}
OPSMITH_INLINE F load_step(const bf16x2* b, int half) {
  I words;
  memcpy(&words, b, sizeof words);
  return (F)(half == 0 ? words << 16 : words & -65536);
}

template <int R, int V, class TA, class TB, bool Blocked>
[[gnu::noinline]] void micro(const TA* const* rows, i64 tap_stride, i64 taps, i64 K, const TB* b,
                             float* tile, bool accumulate) {
  constexpr int U = chains(R, V), S = step_k<TB>;
  constexpr bool fetch_ahead = gemm_fetch_ahead && R >= 3 && !Blocked;
  F acc[U][R][V] = {};
  if (accumulate) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v) acc[0][r][v] = load(tile + r * gemm_nr + v * W, Full{});
    }
  }
  for (i64 t = 0; t < taps; ++t) {
    const TA* a[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) a[r] = Blocked ? nullptr : rows[t * tap_stride + r];
    const TA* block = Blocked ? rows[0] + t * gemm_mr * blocked_run<TA> : nullptr;
    if constexpr (Blocked) {
      K = blocked_run<TA>;
#pragma GCC unroll 8
      for (int r = 0; r < gemm_mr; ++r) __builtin_prefetch(block + (4 * gemm_mr + r) * blocked_run<TA>);  // 4 taps ahead
    }
    auto at = [&](int r, i64 k) __attribute__((always_inline)) { return Blocked ? block + r * blocked_run<TA> + k : a[r] + k; };
    // One step of k into the sums of chain u. (Every loop over an array of vectors is unrolled by pragma: one that is
    // not keeps the whole array in memory.)
    auto step = [&](i64 k, int u, auto... odd) __attribute__((always_inline)) {  // odd: k is the last, without a neighbour
      if constexpr (fetch_ahead) __builtin_prefetch(b + u * V * W + 1024);
      if constexpr (S == 2 && __is_same(TA, bf16)) {
        I bv[V];
#pragma GCC unroll 3
        for (int v = 0; v < V; ++v) memcpy(&bv[v], b + (u * V + v) * W, sizeof(I));
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          int32_t pair = 0;
          memcpy(&pair, at(r, k), sizeof...(odd) ? 2 : 4);
          const I x = splat(pair);
#pragma GCC unroll 3
          for (int v = 0; v < V; ++v) acc[u][r][v] = PairDot::add_products(acc[u][r][v], x, bv[v]);
        }
      } else {
        static_assert(S == 1 || __is_same(TA, float));
#pragma GCC unroll 2
        for (int h = 0; h < (sizeof...(odd) ? 1 : S); ++h) {
          F bv[V];
#pragma GCC unroll 3
          for (int v = 0; v < V; ++v) bv[v] = load_step(b + (u * V + v) * W, h);
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) {
            F x = splat(to_float(*at(r, k + h)));
#pragma GCC unroll 3
            for (int v = 0; v < V; ++v) acc[u][r][v] += x * bv[v];
          }
        }
      }
    };
    i64 k = 0;
    if constexpr (U > 1) {
      for (; k + U * S <= K; k += U * S, b += U * V * W) {
#pragma GCC unroll 4
        for (int u = 0; u < U; ++u) step(k + u * S, u);
      }
    }
    for (; k + S <= K; k += S, b += V * W) step(k, 0);
    if constexpr (S > 1) {
      if (k < K) step(k, 0, true), b += V * W;
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) {
      F sum = acc[0][r][v];
#pragma GCC unroll 4
      for (int u = 1; u < U; ++u) sum += acc[u][r][v];
      store(tile + r * gemm_nr + v * W, sum, Full{});
    }
  }
}

// The microkernel for a number of rows and of vectors that is known only at run time.
template <int R, class TA, class TB, bool Blocked>
MicroFn<TA, TB> pick_micro(i64 rows, i64 vectors) {
  if constexpr (R > 1) {
    if (rows < R) return pick_micro<R - 1, TA, TB, Blocked>(rows, vectors);
  }
  if constexpr (gemm_nv > 2) {
    if (vectors == 3) return micro<R, 3, TA, TB, Blocked>;
  }
  return vectors == 2 ? micro<R, 2, TA, TB, Blocked> : micro<R, 1, TA, TB, Blocked>;
}
template <class TA, class TB, bool Blocked = false>
OPSMITH_INLINE MicroFn<TA, TB> micro_for(i64 rows, i64 vectors) {
  return pick_micro<gemm_mr, TA, TB, Blocked>(rows, vectors);
}

// A block of rows cut into tiles of nearly equal height, all but the last a multiple of `unit`: 13 rows are 7 + 6, not 8 + 5.
struct TileRows {
  i64 rows, unit, tiles, height, taller;  // the first `taller` tiles have height + unit rows, the last one what is left
  explicit TileRows(i64 rows, i64 most = gemm_mr, i64 unit = 1)
      : rows(rows), unit(unit), tiles(ceil_div(rows, most)), height(tiles ? ceil_div(rows, unit) / tiles * unit : 0),
        taller(tiles ? ceil_div(rows, unit) % tiles : 0) {}
  i64 operator[](i64 tile) const {
    return tile + 1 < tiles ? height + (tile < taller) * unit : rows - tile * height - min(tile, taller) * unit;
  }
};

// Whether products of these run in tiles, on a CPU that has them and a system that gives them.
template <class TA, class TB>
inline constexpr bool may_tile = Tiles::exist && __is_same(TA, bf16) && __is_same(TB, bf16x2);

// The microkernel as a task uses it: on vectors, or in tiles. One at a time in a thread.
template <class TA, class TB, bool Tiled = may_tile<TA, TB>>
struct Multiplier {
  static constexpr i64 most_rows = gemm_mr;
  static i64 unit() { return gemm_mr; }
  TileRows cut(i64 rows) const { return TileRows(rows); }
  void operator()(i64 count, i64 vectors, const TA* const* rows, i64 tap_stride, i64 taps, i64 K, const TB* b, float* tile,
                  bool accumulate, Ahead = {}) const {
    micro_for<TA, TB>(count, vectors)(rows, tap_stride, taps, K, b, tile, accumulate);
  }
};
template <class TA, class TB>
struct Multiplier<TA, TB, true> {
  static constexpr i64 most_rows = max<i64>(gemm_mr, tile_rows<>);
  static i64 unit() { return has_tiles ? tile_rows<> : gemm_mr; }
  const TilesInUse tiles;
  TileRows cut(i64 rows) const { return has_tiles ? TileRows(rows, tile_rows<>, Tiles::rows) : TileRows(rows); }
  void operator()(i64 count, i64 vectors, const TA* const* rows, i64 tap_stride, i64 taps, i64 K, const TB* b, float* tile,
                  bool accumulate, Ahead ahead = {}) const {
    if (!has_tiles) return micro_for<TA, TB>(count, vectors)(rows, tap_stride, taps, K, b, tile, accumulate);
    pick_tiles<Tiles, bf16, false, float>(count, vectors)(count, reinterpret_cast<const uint8_t* const*>(rows), tap_stride, taps,
                                                          K * static_cast<i64>(sizeof(TA)), reinterpret_cast<const uint8_t*>(b), tile,
                                                          accumulate, ahead);
  }
};

// Hands a finished tile to the epilogue and stores what it returns at c[row.index * ldc + column].
template <class TC, class Ep>
OPSMITH_INLINE void finish_tile(const float* tile, const Row* rows, i64 count, i64 columns, i64 column, TC* c, i64 ldc,
                                Ep& ep) {
  for (i64 r = 0; r < count; ++r, tile += gemm_nr) {
    TC* out = c + rows[r].index * ldc + column;
    i64 n = 0;
    for (; n + W <= columns; n += W) store(out + n, ep(load(tile + n, Full{}), rows[r], column + n, Full{}), Full{});
    if (n < columns) {
      Tail lanes{columns - n};
      store(out + n, ep(load(tile + n, Full{}), rows[r], column + n, lanes), lanes);
    }
  }
}

// Rows numbered from `first`; every `rows_per_item` of them are one batch item or image (0: all belong to item 0).
inline void number_rows(i64 first, i64 count, i64 rows_per_item, Row* rows) {
  i64 outer = rows_per_item > 0 ? first / rows_per_item : 0;
  i64 next = rows_per_item > 0 ? (outer + 1) * rows_per_item : INT64_MAX;
  for (i64 r = 0; r < count; ++r) {
    if (first + r == next) ++outer, next += rows_per_item;
    rows[r] = {first + r, outer};
  }
}

// How a product of `rows` by `panels` is cut into tasks. Tasks are tall enough that a panel of B, read once from L3
// or memory, serves at least row_block rows, and many enough that threads finish together.
struct Tiling {
  i64 rows, panels, row_block, row_blocks, panel_blocks;
  i64 tasks() const { return row_blocks * panel_blocks; }

  struct Task {
    i64 row_begin, row_end, panel_begin, panel_end;
  };
  // Panels are dealt out evenly: 27 of them in 8 blocks are 3 or 4 each, so that two threads get 13 and 14.
  Task operator[](i64 task) const {
    const i64 row = task / panel_blocks * row_block, block = task % panel_blocks;
    return {row, min(rows, row + row_block), panels * block / panel_blocks, panels * (block + 1) / panel_blocks};
  }
};

inline constexpr i64 max_row_block = 24 * gemm_mr;

// What the tuner found for one call; 0: the kernel decides. Sizes are run-time values, so these are limits that hold
// for any of them.
struct Blocking {
  i64 rows = 0;    // of a task, at most (Winograd: tiles)
  i64 panels = 0;  // of a task, at most
};

// `unit`: rows that the microkernel takes at a time; blocks are cut there.
inline Tiling tile_work(const Pool& pool, i64 rows, i64 N, i64 K, Blocking blocking = {}, i64 unit = gemm_mr) {
  const i64 panels = panel_count(N), most_rows = max_row_block;
  Tiling t;
  t.rows = rows, t.panels = panels;
  if (blocking.rows > 0 && blocking.panels > 0 && rows > 0 && panels > 0) {
    t.row_block = min(rows, min(max_row_block, blocking.rows)), t.row_blocks = ceil_div(rows, t.row_block);
    t.panel_blocks = ceil_div(panels, blocking.panels);
    if (t.tasks() >= pool.threads) return t;  // else this size is far from the tuned one
  }
  t.row_blocks = max<i64>(1, ceil_div(rows, most_rows));
  t.row_block = round_up(ceil_div(max<i64>(rows, 1), t.row_blocks), rows > unit ? unit : 1);
  t.row_blocks = ceil_div(rows, t.row_block);
  // Nanoseconds, roughly: 50 multiply-adds each, or 20 bytes of weights. A task below 10 us is not worth handing over.
  double time = static_cast<double>(N) * static_cast<double>(K) * max(static_cast<double>(rows) / 50.0, 0.2);
  i64 worth = max<i64>(1, static_cast<i64>(time / 10e3));
  i64 wanted = pool.threads <= 1 ? 1 : min<i64>(worth, pool.threads * 4);
  if (worth < 2 && t.row_blocks > 1) t.row_block = rows, t.row_blocks = 1;
  t.panel_blocks = min(panels, ceil_div(wanted, max<i64>(1, t.row_blocks)));
  // Equal shares: with 2 threads and 4 or fewer tasks an odd count leaves one thread idle.
  i64 total = t.row_blocks * t.panel_blocks;
  if (total > 1 && total < 2 * pool.threads) t.panel_blocks = min(panels, ceil_div(2 * pool.threads, t.row_blocks));
  t.panel_blocks = max<i64>(1, t.panel_blocks);
  return t;
}

}  // namespace opsmith
