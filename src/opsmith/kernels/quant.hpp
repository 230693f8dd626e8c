// Matrix products with weights stored in 8 or 4 bits ("weight only": the arithmetic is fp32).
//
//   C[m][n] = ep(sum over k of A[m][k] * (q[k][n] - zero[k / block][n]) * scale[k / block][n])
//
// Packed weights (compiler/pack.py: pack_quantized), for each panel of columns as in gemm.hpp, `width` columns wide, for each
// block of `block` rows of k (16 to 256, a multiple of 8; the last one is filled up with zeros):
//   Scale  scale[width]           float or f16
//   int8 or Scale zero[width]     only if there are zero points (kByteZeros, kFloatZeros)
//   Bits 8: int8   q[block][width]
//   Bits 4: uint32 q[block / 8][width]   eight consecutive k of one column, lowest bits first, as two's complement
// q and zero are signed: ONNX's MatMulNBits has them 8 or 128 higher. One row of A walks through a panel
// from its first byte to its last, so decoding streams at the speed of memory.
//
// Up to gemm_mr rows are multiplied straight from the packed form. With one or two rows unpacking is most of the work:
// products of a block are summed unscaled, and scaled once (the zero point then takes the sum of A over the block). Four bits
// are unpacked to 16 and multiplied as integers where the CPU has such a product: see FixedPoint.
// From kFewestRows to kMostRows rows, where the CPU has an instruction for products of pairs of 16 bits, A is taken in 16 bits (quant_rows.hpp), unless
// Exact. Else a weight is scaled as it is unpacked. Beyond gemm_mr rows a panel is unpacked to floats, in parts
// that fit the stack and L2, and the ordinary microkernel does the rest.
#pragma once

#include "quant_rows.hpp"

namespace opsmith {

template <int Bits, class Scale, int Zero>
struct Quantized {
  static_assert(Bits == 8 || Bits == 4);
  static constexpr i64 data_bytes = Bits == 8 ? 1 : 4;  // from one column to the next
  static constexpr i64 zero_bytes = Zero == kNoZeros ? 0 : Zero == kByteZeros ? 1 : static_cast<i64>(sizeof(Scale));
  static constexpr i64 block_bytes(i64 width, i64 block) {
    return width * (static_cast<i64>(sizeof(Scale)) + zero_bytes) + block * width * Bits / 8;
  }
  static constexpr i64 panel_bytes(i64 width, i64 K, i64 block) { return ceil_div(K, block) * block_bytes(width, block); }
  static constexpr i64 bytes(i64 N, i64 K, i64 block) { return panel_bytes(round_up(N, W), K, block); }

  // Asks memory for the block four blocks on. A block's work on several rows is longer than what the processor looks ahead by itself, so
  // that without this reading and computing take turns: 8 rows took 2.3 times as long as one, now 1.2 (8 bits, Zen 5).
  OPSMITH_INLINE static void fetch_ahead(const uint8_t* p, i64 width, i64 block) {
    const i64 bytes = block_bytes(width, block);
    for (i64 line = 0; line < bytes; line += 64) __builtin_prefetch(p + 4 * bytes + line);
  }

  OPSMITH_INLINE static F scale_at(const uint8_t* p, i64 v) {
    return load(reinterpret_cast<const Scale*>(p) + v * W, Full{});
  }
  OPSMITH_INLINE static F zero_at(const uint8_t* p, i64 width, i64 v) {
    const uint8_t* zeros = p + width * static_cast<i64>(sizeof(Scale));
    if constexpr (Zero == kNoZeros) return F{};
    if constexpr (Zero == kByteZeros) return widen8(zeros + v * W);
    return load(reinterpret_cast<const Scale*>(zeros) + v * W, Full{});
  }
  OPSMITH_INLINE static const uint8_t* data(const uint8_t* p, i64 width) {
    return p + width * (static_cast<i64>(sizeof(Scale)) + zero_bytes);
  }

  OPSMITH_INLINE static F widen8(const uint8_t* p) {
    Vec<int8_t> q;
    memcpy(&q, p, sizeof q);
    return widen(q);
  }
  // f(k in block, F q[V]) for the first `count` k of a block.
  template <int V, class Fn>
  OPSMITH_INLINE static void each(const uint8_t* q, i64 count, i64 width, Fn&& f) {
    if constexpr (Bits == 8) {
      i64 k = 0;
      auto one = [&](i64 k, int phase) __attribute__((always_inline)) {
        F x[V];
#pragma GCC unroll 3
        for (int v = 0; v < V; ++v) x[v] = widen8(q + k * width + v * W);
        f(k, phase, x);
      };
      for (; k + 4 <= count; k += 4) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) one(k + j, j);
      }
      for (; k < count; ++k) one(k, 0);
    } else {
      for (i64 k = 0; k < count; k += 8, q += width * 4) {
        I words[V];
#pragma GCC unroll 3
        for (int v = 0; v < V; ++v) memcpy(&words[v], q + v * W * 4, sizeof(I));
        auto one = [&](int j) __attribute__((always_inline)) {
          F x[V];
#pragma GCC unroll 3
          for (int v = 0; v < V; ++v) x[v] = nibble(words[v], j);
          f(k + j, j % 4, x);
        };
        if (count - k >= 8) {
#pragma GCC unroll 8
          for (int j = 0; j < 8; ++j) one(j);
        } else {
          for (int j = 0; j < count - k; ++j) one(j);
        }
      }
    }
  }
};

// Sums of A over each block of k, which zero points are multiplied with.
template <class TA>
void block_sums(const TA* a, i64 K, i64 block, float* sums) {
  for (i64 k = 0; k < K; k += block) {
    float s = 0;
    for (i64 i = k; i < min(K, k + block); ++i) s += to_float(a[i]);
    *sums++ = s;
  }
}

// R rows by one panel, straight from the packed weights: tile[r][n].
template <int R, int V, class Q, int Zero, class TA>
[[gnu::noinline]] void micro_quantized(const TA* A, i64 lda, const float* sums, i64 K, i64 block, const uint8_t* p,
                                       float* tile) {
  constexpr bool late = R <= 2;
  constexpr int U = late ? chains(R, V) : 1;
  constexpr i64 width = V * W;
  const i64 blocks = ceil_div(K, block);
  F acc[R][V] = {};
  for (i64 i = 0; i < blocks; ++i, p += Q::block_bytes(width, block)) {
    const TA* a = A + i * block;
    const i64 count = min(block, K - i * block);
    if constexpr (!late) Q::fetch_ahead(p, width, block);
    F scale[V], zero[V];
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) scale[v] = Q::scale_at(p, v), zero[v] = Q::zero_at(p, width, v);
    if constexpr (late) {
      F part[U][R][V] = {};
      Q::template each<V>(Q::data(p, width), count, width, [&](i64 k, int phase, const F* q) __attribute__((always_inline)) {
#pragma GCC unroll 2
        for (int r = 0; r < R; ++r) {
          F x = splat(to_float(a[r * lda + k]));
#pragma GCC unroll 3
          for (int v = 0; v < V; ++v) part[phase % U][r][v] += x * q[v];
        }
      });
#pragma GCC unroll 2
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 3
        for (int v = 0; v < V; ++v) {
          F sum = part[0][r][v];
#pragma GCC unroll 4
          for (int u = 1; u < U; ++u) sum += part[u][r][v];
          if constexpr (Zero != kNoZeros) sum -= zero[v] * splat(sums[r * blocks + i]);
          acc[r][v] += sum * scale[v];
        }
      }
    } else {
      F shift[V];
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v) shift[v] = -(zero[v] * scale[v]);
      Q::template each<V>(Q::data(p, width), count, width, [&](i64 k, int, const F* q) __attribute__((always_inline)) {
        F w[V];
#pragma GCC unroll 3
        for (int v = 0; v < V; ++v) w[v] = Zero ? q[v] * scale[v] + shift[v] : q[v] * scale[v];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          F x = splat(to_float(a[r * lda + k]));
#pragma GCC unroll 3
          for (int v = 0; v < V; ++v) acc[r][v] += x * w[v];
        }
      });
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) store(tile + r * gemm_nr + v * W, acc[r][v], Full{});
  }
}

// Rows of A in fixed point: a = unit * (2^15 high + low), one unit, a power of two, per block, and high and low of 15 bits. A
// value keeps 29 bits below the largest of its block, more than the sum of floats that it replaces.
//
// Why: unpacking one vector of 4-bit weights to float takes a shift, a permutation and a multiply-add, and that, not memory,
// bounds decoding (28 of 41 GB/s on 2 cores of a Zen 4). As 16-bit integers one shift and one permutation unpack twice as many
// weights, and one dot product takes two k at once; two of them, for high and low, still leave 15 operations for 24.
template <class Dot>  // Int4Dot; a parameter, because elsewhere it has none of what is used here
struct FixedPoint {
  static constexpr i64 most_depth = 16384;  // of K
  i64 depth;                                // K, filled up to whole blocks
  alignas(64) int32_t pairs[2 * most_depth + W];  // [row][8 k]: high of k j and j + 4 for j = 0 .. 3, then low
  float units[2 * most_depth / 16];               // [row][block]
  int32_t high_sums[2 * most_depth / 16], low_sums[2 * most_depth / 16];  // over each block, for zero points

  // False if there is something infinite or NaN, which integers do not know.
  template <bool Sums, class TA>
  bool read(const TA* A, i64 lda, i64 rows, i64 K, i64 block) {
    const i64 blocks = ceil_div(K, block);
    depth = blocks * block;
    bool finite = true;
    for (i64 r = 0; r < rows; ++r)
      for (i64 i = 0; i < blocks; ++i) {
        const TA* a = A + r * lda + i * block;
        const i64 count = min(block, K - i * block);
        I most{};
        for_lanes(count, [&](i64 k, auto lanes) {
          most = Dot::larger(most, (I)load(a + k, lanes) & 0x7fffffff);
        });
        const int32_t exponent = max(Dot::over_lanes(most, Dot::larger) >> 23, 29);  // |a| < 2^(exponent - 126)
        finite &= exponent < 255;
        units[r * blocks + i] = __builtin_bit_cast(float, (exponent - 28) << 23);  // 2^(exponent - 126 - 29)
        const float scale = __builtin_bit_cast(float, (282 - exponent) << 23);
        int32_t* to = pairs + r * depth + i * block;
        I high_sum{}, low_sum{};
        for (i64 k = 0; k < block; k += W) {
          const F x = count - k >= W ? load(a + k, Full{}) : count > k ? load(a + k, Tail{count - k}) : F{};
          const I fixed = Dot::to_nearest(x * scale);
          const I high = (fixed + (1 << 14)) >> 15, low = fixed - (high << 15);
          high_sum += high, low_sum += low;
          const I both = Dot::pairs(high, low);
          memcpy(to + k, &both, sizeof both);  // what is too much belongs to the next block, or to the room behind the last
        }
        if constexpr (Sums) {
          auto add = [](I x, I y) { return x + y; };
          high_sums[r * blocks + i] = Dot::over_lanes(high_sum, add), low_sums[r * blocks + i] = Dot::over_lanes(low_sum, add);
        }
      }
    return finite;
  }
};

// R rows by one panel of 4-bit weights: tile[r][n].
template <int R, int V, class Q, int Zero, class Dot>
[[gnu::noinline]] void micro_int4(const FixedPoint<Dot>& A, i64 K, i64 block, const uint8_t* p, float* tile) {
  constexpr i64 width = V * W;
  const i64 blocks = ceil_div(K, block);
  F acc[R][V] = {};
  for (i64 i = 0; i < blocks; ++i, p += Q::block_bytes(width, block)) {
    typename Dot::Words high[R][V] = {}, low[R][V] = {};
    const int32_t* a = A.pairs + i * block;
    const uint8_t* q = Q::data(p, width);
    for (i64 k = 0; k < block; k += 8, q += width * 4) {
      typename Dot::Words words[V];
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v) memcpy(&words[v], q + v * W * 4, sizeof words[v]);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        typename Dot::Words weights[V];  // of k + j and k + j + 4
#pragma GCC unroll 3
        for (int v = 0; v < V; ++v) weights[v] = Dot::weights(words[v], j);
#pragma GCC unroll 2
        for (int r = 0; r < R; ++r) {
          const int32_t x = a[r * A.depth + k + j], y = a[r * A.depth + k + 4 + j];
#pragma GCC unroll 3
          for (int v = 0; v < V; ++v) {
            high[r][v] = Dot::add_products(high[r][v], weights[v], x);
            low[r][v] = Dot::add_products(low[r][v], weights[v], y);
          }
        }
      }
    }
#pragma GCC unroll 2
    for (int r = 0; r < R; ++r) {
      const F unit = splat(A.units[r * blocks + i]);
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v) {
        I above = (I)high[r][v], below = (I)low[r][v];
        const int32_t all_high = Zero ? A.high_sums[r * blocks + i] : 0, all_low = Zero ? A.low_sums[r * blocks + i] : 0;
        if constexpr (Zero == kByteZeros) {
          const I zero = __builtin_convertvector(Q::zero_at(p, width, v), I);
          above -= zero * all_high, below -= zero * all_low;
        }
        F sum = __builtin_convertvector(above, F) * 32768.0f + __builtin_convertvector(below, F);
        if constexpr (Zero == kFloatZeros)
          sum -= Q::zero_at(p, width, v) * splat(static_cast<float>(all_high) * 32768.0f + static_cast<float>(all_low));
        acc[r][v] += sum * (unit * Q::scale_at(p, v));
      }
    }
  }
#pragma GCC unroll 2
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) store(tile + r * gemm_nr + v * W, acc[r][v], Full{});
  }
}

// One or two rows of A by 4-bit weights. False where fixed point does not serve: nothing is done then.
template <class Q, int Zero, class Dot, class TA, class TC, class Ep>
[[gnu::noinline]] bool gemm_int4(const Pool& pool, const Tiling& tiling, i64 M, i64 N, i64 K, i64 block, const TA* A, i64 lda,
                                 const uint8_t* packed, TC* C, i64 ldc, Ep& ep, i64 rows_per_item) {
  using Fixed = FixedPoint<Dot>;
  Fixed a;
  if (round_up(K, block) > Fixed::most_depth || !a.template read<Zero != kNoZeros>(A, lda, M, K, block)) return false;
  using Fn = void (*)(const Fixed&, i64, i64, const uint8_t*, float*);
  constexpr Fn one[] = {micro_int4<1, 1, Q, Zero, Dot>, micro_int4<1, 2, Q, Zero, Dot>, micro_int4<1, 3, Q, Zero, Dot>};
  constexpr Fn two[] = {micro_int4<2, 1, Q, Zero, Dot>, micro_int4<2, 2, Q, Zero, Dot>, micro_int4<2, 3, Q, Zero, Dot>};
  Row rows[2];
  number_rows(0, M, rows_per_item, rows);
  pool.parallel_for(tiling.tasks(), [&](i64 i) {
    const Tiling::Task t = tiling[i];
    float tile[2 * gemm_nr];
    for (i64 p = t.panel_begin; p < t.panel_end; ++p) {
      const i64 column = p * gemm_nr;
      (M == 1 ? one : two)[panel_vectors(N, p) - 1](a, K, block, packed + Q::panel_bytes(column, K, block), tile);
      finish_tile(tile, rows, M, min(gemm_nr, N - column), column, C, ldc, ep);
    }
  });
  return true;
}

template <class TA>
using QuantizedFn = void (*)(const TA* A, i64 lda, const float* sums, i64 K, i64 block, const uint8_t* p, float* tile);

template <int R, class Q, int Zero, class TA>
QuantizedFn<TA> pick_quantized(i64 rows, i64 vectors) {
  if constexpr (R > 1) {
    if (rows < R) return pick_quantized<R - 1, Q, Zero, TA>(rows, vectors);
  }
  if constexpr (gemm_nv > 2) {
    if (vectors == 3) return micro_quantized<R, 3, Q, Zero, TA>;
  }
  return vectors == 2 ? micro_quantized<R, 2, Q, Zero, TA> : micro_quantized<R, 1, Q, Zero, TA>;
}

// Blocks [first, last) of one panel -> floats [k][width]. Returns how many k that is.
template <class Q>
i64 unpack_blocks(const uint8_t* panel, i64 vectors, i64 K, i64 block, i64 first, i64 last, float* out) {
  const i64 width = vectors * W, begin = first * block;
  for (i64 i = first; i < last; ++i) {
    const uint8_t* p = panel + i * Q::block_bytes(width, block);
    const i64 count = min(block, K - i * block);
    for (i64 v = 0; v < vectors; ++v) {
      F scale = Q::scale_at(p, v), zero = Q::zero_at(p, width, v);
      float* to = out + (i * block - begin) * width + v * W;
      const uint8_t* data = Q::data(p, width) + v * W * Q::data_bytes;
      Q::template each<1>(data, count, width, [&](i64 k, int, const F* q) __attribute__((always_inline)) {
        store(to + k * width, (q[0] - zero) * scale, Full{});
      });
    }
  }
  return min(K, last * block) - begin;
}

// A [M][K] x packed weights of `Bits` bits -> C [M][N]. rows_per_item as in gemm.
template <int Bits, class Scale, int Zero, bool Exact = true, class TA, class TC, class Ep>
void gemm_quantized(const Pool& pool, i64 M, i64 N, i64 K, i64 block, const TA* A, i64 lda, const uint8_t* packed, TC* C,
                    i64 ldc, Ep ep, i64 rows_per_item = 0, Blocking blocking = {}) {
  using Q = Quantized<Bits, Scale, Zero>;
  if (M <= 0 || N <= 0) return;
  const Tiling tiling = tile_work(pool, M, N, K, blocking);
  if constexpr (Bits == 4 && Int4Dot::fast)
    if (M <= 2 && tiling.row_blocks == 1 &&
        gemm_int4<Q, Zero, Int4Dot>(pool, tiling, M, N, K, block, A, lda, packed, C, ldc, ep, rows_per_item))
      return;
  if constexpr (Int4Dot::fast && !Exact)
    if (M >= kFewestRows && M <= kMostRows && tiling.row_blocks == 1 &&
        gemm_pair_rows<Q, Bits, Zero>(pool, tiling, M, N, K, block, A, lda, packed, C, ldc, ep, rows_per_item))
      return;
  const i64 blocks = ceil_div(K, block);
  pool.parallel_for(tiling.tasks(), [&](i64 task) {
    const auto [row_begin, row_end, panel_begin, panel_end] = tiling[task];
    constexpr i64 part_floats = 40 * 1024, most_sums = 2 * 4096;
    float tiles[max_row_block * gemm_nr];
    float part[part_floats];
    Row rows[max_row_block];
    const TA* sources[max_row_block];
    for (i64 first = row_begin; first < row_end; first += max_row_block) {
      const i64 count = min(max_row_block, row_end - first);
      number_rows(first, count, rows_per_item, rows);
      // Few rows: straight from the packed form (the sums of A take the place of unpacked weights on the stack).
      if (count <= gemm_mr && (!Zero || count > 2 || 2 * blocks <= most_sums)) {
        if constexpr (Zero != kNoZeros) {
          for (i64 r = 0; r < count && count <= 2; ++r) block_sums(A + (first + r) * lda, K, block, part + r * blocks);
        }
        for (i64 p = panel_begin; p < panel_end; ++p) {
          const i64 column = p * gemm_nr, vectors = panel_vectors(N, p);
          pick_quantized<gemm_mr, Q, Zero, TA>(count, vectors)(A + first * lda, lda, part, K, block,
                                                               packed + Q::panel_bytes(column, K, block), tiles);
          finish_tile(tiles, rows, count, min(gemm_nr, N - column), column, C, ldc, ep);
        }
        continue;
      }
      const TileRows heights(count);
      for (i64 p = panel_begin; p < panel_end; ++p) {
        const i64 column = p * gemm_nr, vectors = panel_vectors(N, p);
        const i64 step = max<i64>(1, part_floats / (block * vectors * W));
        for (i64 i = 0; i < blocks || i == 0; i += step) {
          const i64 last = min(blocks, i + step);
          const i64 depth = unpack_blocks<Q>(packed + Q::panel_bytes(column, K, block), vectors, K, block, i, last, part);
          for (i64 r = 0; r < count; ++r) sources[r] = A + (first + r) * lda + i * block;
          for (i64 h = 0, r = 0; h < heights.tiles; r += heights[h++]) {
            float* tile = tiles + r * gemm_nr;
            micro_for<TA, float>(heights[h], vectors)(sources + r, 0, 1, depth, part, tile, i > 0);
            if (last == blocks) finish_tile(tile, rows + r, heights[h], min(gemm_nr, N - column), column, C, ldc, ep);
          }
        }
      }
    }
  });
}

template <int Bits, class Scale, int Zero, class TA, class TC, class Ep>
void gemm_quantized_reference(const Pool&, i64 M, i64 N, i64 K, i64 block, const TA* A, i64 lda, const uint8_t* packed,
                              TC* C, i64 ldc, Ep ep, i64 rows_per_item = 0) {
  using Q = Quantized<Bits, Scale, Zero>;
  for (i64 m = 0; m < M; ++m) {
    for (i64 n = 0; n < N; ++n) {
      const i64 panel = n / gemm_nr, width = panel_vectors(N, panel) * W, j = n % gemm_nr;
      double sum = 0;
      for (i64 k = 0; k < K; ++k) {
        const uint8_t* p = packed + Q::panel_bytes(panel * gemm_nr, K, block) + k / block * Q::block_bytes(width, block);
        Scale scale, scale_zero;
        memcpy(&scale, p + j * static_cast<i64>(sizeof scale), sizeof scale);
        p += width * static_cast<i64>(sizeof scale);
        float zero = 0;
        if (Zero == kByteZeros) zero = static_cast<int8_t>(p[j]);
        if (Zero == kFloatZeros) memcpy(&scale_zero, p + j * Q::zero_bytes, sizeof scale_zero), zero = to_float(scale_zero);
        p += width * Q::zero_bytes;
        int q = Bits == 8 ? static_cast<int8_t>(p[k % block * width + j])
                          : p[(k % block / 8 * width + j) * 4 + k % 8 / 2] >> (k % 2 * 4) & 15;
        if (Bits == 4 && q > 7) q -= 16;
        const double weight = (static_cast<double>(q) - static_cast<double>(zero)) * static_cast<double>(to_float(scale));
        sum += static_cast<double>(to_float(A[m * lda + k])) * weight;
      }
      Row row{m, rows_per_item > 0 ? m / rows_per_item : 0};
      store(C + m * ldc + n, ep(splat(static_cast<float>(sum)), row, n, Tail{1}), Tail{1});
    }
  }
}

}  // namespace opsmith
