// Matrix products of bytes with weights in blocks of 8 or 4 bits, for any number of rows.
//
//   C[m][n] = ep(sum over blocks b of unit[m][b] * scale[b][n] * (sum over k in b of A[m][k] * q[k][n] - zero[b][n] * sum[m][b]))
//
// A, unit and sum come from quantize_blocks.hpp. The sum over a block is exact in 32 bits; what is lost is the rounding of A to 2^-8 of the
// largest of its block. A row's result is the same whatever rows are beside it.
//
// Packed weights (compiler/pack.py: pack_block_bytes) lie as in quant.hpp, but the integers of a block are words for ByteDot:
//   Bits 8: int8   q[block / 4][width][4]
//   Bits 4: uint32 q[block / 8][width]   half byte 2 j is k = j, half byte 2 j + 1 is k = 4 + j, each q + 8
// and where zero points are floats (kFloatZeros), zero * scale stands in their place, of half bytes from 0 to 15: what llama.cpp's blocks
// have, in its own 16 bits.
//
// The weights are ByteDot's x, for they are what can be made unsigned: x86 multiplies unsigned with signed bytes. Half bytes are
// unsigned as they are, bytes are moved by 128. The sum over a block of A, times what they were moved by, is what a sum begins with.
//
// Why this beside quant.hpp: there one row costs 3 instructions for 4 weights of a column, and 8 rows nearly 8 times the multiplications;
// here they cost one instruction per row for four weights, so that several rows are read at the speed of memory, like one.
#pragma once

#include "quant.hpp"

namespace opsmith {

// A, as the kernel reads it.
struct ByteBlocks {
  const int8_t* values;  // [M][blocks * block]
  const float* units;    // [M][blocks]
  const float* sums;     // [M][blocks]
  i64 block, blocks;
};

// What weights are higher by as they are multiplied, beyond what their zero points say.
template <int Bits, int Zero>
inline constexpr int32_t moved_weights = Bits == 4 ? (Zero == kFloatZeros ? 0 : 8) : ByteDot::x_signed ? 0 : 128;

// What one word of packed weights holds for k and k + 1 .. k + 3: `half` 1 of 4 bits is k + 4 .. k + 7.
template <int Bits>
OPSMITH_INLINE ByteDot::Value weight_bytes(I words, int half) {
  if constexpr (Bits == 4) return ByteDot::value((words >> (4 * half)) & 0x0f0f0f0f);
  if constexpr (!ByteDot::x_signed) words ^= static_cast<int32_t>(0x80808080);
  return ByteDot::value(words);
}

// R rows of A by V vectors of columns: tile[r][n]. The sums of a block stay in registers; what is added up over blocks may not.
template <int R, int V, class Q, int Bits, int Zero>
[[gnu::noinline]] void micro_blocks(const ByteBlocks& A, i64 row, const uint8_t* p, float* tile) {
  constexpr i64 width = V * W, step = 4 * 8 / Bits;  // of k, in a word
  const i64 depth = A.blocks * A.block;
  const int8_t* a = A.values + row * depth;
  const float *units = A.units + row * A.blocks, *sums = A.sums + row * A.blocks;
  F total[R][V] = {};
  for (i64 i = 0; i < A.blocks; ++i, p += Q::block_bytes(width, A.block), a += A.block) {
    if constexpr (R >= 3) Q::fetch_ahead(p, width, A.block);
    const uint8_t* q = Q::data(p, width);
    int32_t first[R];
    [[maybe_unused]] float shifted[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      first[r] = -moved_weights<Bits, Zero> * static_cast<int32_t>(sums[r * A.blocks + i]);
      shifted[r] = units[r * A.blocks + i] * sums[r * A.blocks + i];
    }
    I acc[R][V];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v) acc[r][v] = splat(first[r]);
    }
    for (i64 k = 0; k < A.block; k += step, q += width * 4) {
      I words[V];
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v) memcpy(&words[v], q + v * W * 4, sizeof words[v]);
#pragma GCC unroll 2
      for (int half = 0; half < step / 4; ++half) {
        ByteDot::Value weights[V];
#pragma GCC unroll 3
        for (int v = 0; v < V; ++v) weights[v] = weight_bytes<Bits>(words[v], half);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          int32_t four;
          memcpy(&four, a + r * depth + k + 4 * half, sizeof four);
          const ByteDot::Columns x = ByteDot::columns(splat(four));
#pragma GCC unroll 3
          for (int v = 0; v < V; ++v) acc[r][v] = ByteDot::add_products(acc[r][v], weights[v], x);
        }
      }
    }
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) {
      const F scale = Q::scale_at(p, v), zero = Q::zero_at(p, width, v);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        F sum = __builtin_convertvector(acc[r][v], F);
        if constexpr (Zero == kByteZeros) sum -= zero * splat(sums[r * A.blocks + i]);
        total[r][v] += sum * (scale * splat(units[r * A.blocks + i]));
        if constexpr (Zero == kFloatZeros) total[r][v] -= zero * splat(shifted[r]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) store(tile + r * gemm_nr + v * W, total[r][v], Full{});
  }
}

using BlocksFn = void (*)(const ByteBlocks& A, i64 row, const uint8_t* p, float* tile);

template <int R, class Q, int Bits, int Zero>
BlocksFn pick_blocks(i64 rows, i64 vectors) {
  if constexpr (R > 1) {
    if (rows < R) return pick_blocks<R - 1, Q, Bits, Zero>(rows, vectors);
  }
  if constexpr (gemm_nv > 2) {
    if (vectors == 3) return micro_blocks<R, 3, Q, Bits, Zero>;
  }
  return vectors == 2 ? micro_blocks<R, 2, Q, Bits, Zero> : micro_blocks<R, 1, Q, Bits, Zero>;
}

// A [M][K] in bytes x packed weights of `Bits` bits -> C [M][N] (rows ldc apart). rows_per_item as in gemm.
template <int Bits, class Scale, int Zero, class TC, class Ep>
void gemm_blocks(const Pool& pool, i64 M, i64 N, i64 K, i64 block, const int8_t* A, const float* units, const float* sums,
                 const uint8_t* packed, TC* C, i64 ldc, Ep ep, i64 rows_per_item = 0) {
  using Q = Quantized<Bits, Scale, Zero>;
  if (M <= 0 || N <= 0) return;
  const ByteBlocks a{A, units, sums, block, ceil_div(K, block)};
  const Tiling tiling = tile_work(pool, M, N, ceil_div(K, 2));
  pool.parallel_for(tiling.tasks(), [&](i64 task) {
    const Tiling::Task t = tiling[task];
    float tile[byte_mr * gemm_nr];
    Row rows[max_row_block];
    for (i64 first = t.row_begin; first < t.row_end; first += max_row_block) {
      const i64 count = min(max_row_block, t.row_end - first);
      number_rows(first, count, rows_per_item, rows);
      const TileRows heights(count, byte_mr);
      for (i64 p = t.panel_begin; p < t.panel_end; ++p) {
        const i64 column = p * gemm_nr;
        for (i64 i = 0, r = 0; i < heights.tiles; r += heights[i++]) {
          pick_blocks<byte_mr, Q, Bits, Zero>(heights[i], panel_vectors(N, p))(a, first + r, packed + Q::panel_bytes(column, K, block), tile);
          finish_tile(tile, rows + r, heights[i], min(gemm_nr, N - column), column, C, ldc, ep);
        }
      }
    }
  });
}

template <int Bits, class Scale, int Zero, class TC, class Ep>
void gemm_blocks_reference(const Pool&, i64 M, i64 N, i64 K, i64 block, const int8_t* A, const float* units, const float*,
                           const uint8_t* packed, TC* C, i64 ldc, Ep ep, i64 rows_per_item = 0) {
  using Q = Quantized<Bits, Scale, Zero>;
  const i64 blocks = ceil_div(K, block);
  for (i64 m = 0; m < M; ++m) {
    for (i64 n = 0; n < N; ++n) {
      const i64 panel = n / gemm_nr, width = panel_vectors(N, panel) * W, j = n % gemm_nr;
      double sum = 0;
      for (i64 k = 0; k < K; ++k) {
        const i64 b = k / block, i = k % block;
        const uint8_t* p = packed + Q::panel_bytes(panel * gemm_nr, K, block) + b * Q::block_bytes(width, block);
        const uint8_t* q = Q::data(p, width);
        const int weight = Bits == 8 ? static_cast<int8_t>(q[(i / 4 * width + j) * 4 + i % 4])
                                     : (q[(i / 8 * width + j) * 4 + i % 4] >> (i % 8 / 4 * 4) & 15) - (Zero == kFloatZeros ? 0 : 8);
        const float scale = Q::scale_at(p, j / W)[j % W], zero = Q::zero_at(p, width, j / W)[j % W];
        const double shift = static_cast<double>(zero) * static_cast<double>(Zero == kByteZeros ? scale : 1.0f);
        sum += static_cast<double>(units[m * blocks + b]) * A[m * blocks * block + k] * (weight * static_cast<double>(scale) - shift);
      }
      const Row row{m, rows_per_item > 0 ? m / rows_per_item : 0};
      store(C + m * ldc + n, ep(splat(static_cast<float>(sum)), row, n, Tail{1}), Tail{1});
    }
  }
}

}  // namespace opsmith
