// A few rows (3 to 16: texts that are decoded together, guesses that are checked) by weights of 8 or 4 bits, packed as in quant.hpp.
//
// With floats, 8 rows take 4 times as long as one: the weights are read once, but every row multiplies all of them, and with every
// weight unpacked to a float there is one k in an instruction. Here the rows are taken in 16 bits, a = unit * whole number with a unit
// per row and block of k, and one product of pairs takes two k. A value is rounded to 2^-16 of the largest of its block: weights of 8
// bits are rounded to 2^-8 of theirs.
//
//   sum over k of a (q - zero) = unit * (sum whole q - zero * sum whole)
//
// Infinite, NaN and vanishing rows, and more than 16384 numbers of 8 rows, are left to the floats of quant.hpp.
#pragma once

#include "gemm.hpp"
#include "types.hpp"

namespace opsmith {

inline constexpr i64 kFewestRows = 3, kMostRows = 16;
// How zero points are stored: not at all, as bytes, or as the scales are (Q4_1 of llama.cpp, whose blocks have a smallest weight).
inline constexpr int kNoZeros = 0, kByteZeros = 1, kFloatZeros = 2;

// Rows of A in 16 bits, two k in a word: [tile of rows][k / 8][8 rows][4 words], so that the words of all rows lie at fixed distances.
// The pairs are those of the unpacked weights: k and k + 1 of bytes, k and k + 4 of half bytes (Int4Dot).
template <int Bits>
struct PairRows {
  static constexpr i64 tile_rows = 8, chunk = tile_rows * 4;  // words of 8 k
  static constexpr i64 most_depth = 16384;                    // of one tile; of two together
  static constexpr float largest = 32767;
  static_assert(gemm_mr <= tile_rows);
  i64 depth, blocks;  // K, filled up to whole blocks
  alignas(64) int32_t words[most_depth / 8 * chunk];
  float units[most_depth / 16 * tile_rows], sums[most_depth / 16 * tile_rows];  // [tile][block][8 rows]; sums of the whole numbers

  static bool fits(i64 rows, i64 K, i64 block) {
    return round_up(K, block) * ceil_div(rows, gemm_mr) <= most_depth && block >= 16 && block <= 256;
  }
  const int32_t* tile(i64 i) const { return words + i * depth / 8 * chunk; }
  i64 first_block(i64 tile) const { return tile * blocks * tile_rows; }

  // False if a row holds something that 16 bits do not know.
  template <class TA>
  bool read(const Pool& pool, const TA* A, i64 lda, i64 rows, i64 K, i64 block) {
    blocks = ceil_div(K, block), depth = blocks * block;
    const TileRows heights(rows, gemm_mr);
    bool usable[kMostRows];
    pool.parallel_ranges(rows, ceil_div(8192, max<i64>(K, 1)), [&](i64 begin, i64 end) {
      for (i64 r = begin; r < end; ++r) {
        i64 tile = 0, row = r;
        while (row >= heights[tile]) row -= heights[tile++];
        usable[r] = read_row(A + r * lda, K, block, tile, row);
      }
    });
    bool all_usable = true;
    for (i64 r = 0; r < rows; ++r) all_usable &= usable[r];
    return all_usable;
  }

 private:
  template <class TA>
  bool read_row(const TA* a, i64 K, i64 block, i64 tile, i64 row) {
    int32_t whole[256 + W];
    bool usable = true;
    for (i64 i = 0; i < blocks; ++i, a += block) {
      const i64 count = min(block, K - i * block);
      F most{};
      for_lanes(count, [&](i64 k, auto lanes) {
        const F x = load(a + k, lanes), size = x < 0 ? -x : x;
        most = size > most || size != size ? size : most;  // NaN stays
      });
      float peak = 0;
      for (i64 l = 0; l < W; ++l) peak = most[l] > peak || most[l] != most[l] ? most[l] : peak;
      const bool vanishes = !(peak > 1e-30f);
      usable &= vanishes ? peak == 0 : peak < 3e38f;
      const float scale = vanishes ? 0.0f : largest / peak;
      I total{};
      for (i64 k = 0; k < block; k += W) {
        const F x = count - k >= W ? load(a + k, Full{}) : count > k ? load(a + k, Tail{count - k}) : F{};
        const F magic = splat(12582912.0f);  // 1.5 * 2^23: what is added to it is rounded to a whole number
        const I number = (I)(x * scale + magic) - (I)magic;
        total += number;
        memcpy(whole + k, &number, sizeof number);  // what is too much of the last vector is 0
      }
      float sum = 0;
      for (i64 l = 0; l < W; ++l) sum += static_cast<float>(total[l]);
      units[first_block(tile) + i * tile_rows + row] = vanishes ? 0.0f : peak / largest;
      sums[first_block(tile) + i * tile_rows + row] = sum;
      int32_t* to = words + (tile * depth + i * block) / 8 * chunk + row * 4;
      for (i64 k = 0; k < block; k += 8, to += chunk)
        for (i64 j = 0; j < 4; ++j) {
          const int32_t first = whole[k + (Bits == 8 ? 2 * j : j)], second = whole[k + (Bits == 8 ? 2 * j + 1 : j + 4)];
          to[j] = static_cast<int32_t>((static_cast<uint32_t>(first) & 0xffff) | static_cast<uint32_t>(second) << 16);
        }
    }
    return usable;
  }
};

// Pair j of the eight k that begin at q, of one vector of columns.
template <int Bits>
OPSMITH_INLINE Int4Dot::Words weight_pair(const uint8_t* q, i64 width, int j) {
  if constexpr (Bits == 8) {
    Vec<int8_t> first, second;
    memcpy(&first, q + 2 * j * width, sizeof first), memcpy(&second, q + (2 * j + 1) * width, sizeof second);
    return Int4Dot::byte_pairs(first, second);
  } else {
    Int4Dot::Words words;
    memcpy(&words, q, sizeof words);
    return Int4Dot::weights(words, j);
  }
}

// R rows by V vectors of a panel of `width` columns, the first of them at `column`: tile[r][n]. Two vectors at a time: with the whole
// panel of three g++ 12 keeps half of the sums in memory.
template <int R, int V, class Q, int Bits, int Zero>
[[gnu::noinline]] void micro_pair_rows(const int32_t* rows, const float* units, const float* sums, i64 K, i64 block, const uint8_t* p,
                                       i64 width, i64 column, float* tile) {
  using Rows = PairRows<Bits>;
  const i64 blocks = ceil_div(K, block), first = column / W;
  tile += column;
  for (int r = 0; r < R; ++r) memset(tile + r * gemm_nr, 0, V * W * sizeof(float));
  for (i64 i = 0; i < blocks; ++i, p += Q::block_bytes(width, block)) {
    I acc[R][V] = {};  // not Words: g++ 12 would keep half of them in memory
    if (column == 0) Q::fetch_ahead(p, width, block);
    const int32_t* a = rows + i * block / 8 * Rows::chunk;
    const uint8_t* q = Q::data(p, width) + column * Q::data_bytes;
    for (i64 k = 0; k < block; k += 8, a += Rows::chunk, q += width * Bits) {
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        Int4Dot::Words w[V];
#pragma GCC unroll 3
        for (int v = 0; v < V; ++v) w[v] = weight_pair<Bits>(q + v * W * Q::data_bytes, width, j);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          const int32_t x = a[r * 4 + j];
#pragma GCC unroll 3
          for (int v = 0; v < V; ++v) acc[r][v] = (I)Int4Dot::add_products((Int4Dot::Words)acc[r][v], w[v], x);
        }
      }
    }
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) {
      const F scale = Q::scale_at(p, first + v), zero = Q::zero_at(p, width, first + v);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        F sum = __builtin_convertvector((I)acc[r][v], F);
        if constexpr (Zero != kNoZeros) sum -= zero * splat(sums[i * Rows::tile_rows + r]);
        float* to = tile + r * gemm_nr + v * W;
        store(to, load(static_cast<const float*>(to), Full{}) + sum * (scale * splat(units[i * Rows::tile_rows + r])), Full{});
      }
    }
  }
}

template <int R, int V, class Q, int Bits, int Zero>
auto pick_pair_rows(i64 rows) -> decltype(&micro_pair_rows<1, 1, Q, Bits, Zero>) {
  if constexpr (R > 1) {
    if (rows < R) return pick_pair_rows<R - 1, V, Q, Bits, Zero>(rows);
  }
  return micro_pair_rows<R, V, Q, Bits, Zero>;
}

// As gemm_quantized, for up to kMostRows rows. False where 16 bits do not serve: nothing is done then.
template <class Q, int Bits, int Zero, class TA, class TC, class Ep>
[[gnu::noinline]] bool gemm_pair_rows(const Pool& pool, const Tiling& tiling, i64 M, i64 N, i64 K, i64 block, const TA* A, i64 lda,
                                      const uint8_t* packed, TC* C, i64 ldc, Ep& ep, i64 rows_per_item) {
  PairRows<Bits> a;
  if (!a.fits(M, K, block) || !a.read(pool, A, lda, M, K, block)) return false;
  Row rows[kMostRows];
  number_rows(0, M, rows_per_item, rows);
  const TileRows heights(M, gemm_mr);
  pool.parallel_for(tiling.tasks(), [&](i64 task) {
    const Tiling::Task t = tiling[task];
    float tile[gemm_mr * gemm_nr];
    for (i64 p = t.panel_begin; p < t.panel_end; ++p) {
      const i64 column = p * gemm_nr;
      for (i64 i = 0, r = 0; i < heights.tiles; r += heights[i++]) {
        const auto two = pick_pair_rows<gemm_mr, 2, Q, Bits, Zero>(heights[i]), one = pick_pair_rows<gemm_mr, 1, Q, Bits, Zero>(heights[i]);
        const i64 width = panel_vectors(N, p) * W;
        for (i64 v = 0; v < width; v += 2 * W)
          (width - v > W ? two : one)(a.tile(i), a.units + a.first_block(i), a.sums + a.first_block(i), K, block,
                                      packed + Q::panel_bytes(column, K, block), width, v, tile);
        finish_tile(tile, rows + r, heights[i], min(gemm_nr, N - column), column, C, ldc, ep);
      }
    }
  });
  return true;
}

}  // namespace opsmith
