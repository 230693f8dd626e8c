// Matrix products of bytes in 32 bits: C[m][n] = ep(sum over k of (A[m][k] - a_zero) * (B[k][n] - b_zero[n])).
// Exact, and wrapping at 32 bits as ONNX's integer products do. A and B hold uint8 or int8.
//
// gemm_bytes    B is a weight, packed offline (compiler/pack.py: pack_bytes)
// matmul_bytes  both operands are activations, batched; B is packed into the workspace at run time
//
// The instructions multiply bytes of one given signedness (ByteDot: x_signed, and B signed). A number of the other kind is
// moved by 128, which flips its top bit, and its zero point with it: the difference stays. Written x for A and b for B after
// that, with zx and zb:
//
//   sum (x - zx)(b - zb) = sum x b - zx * sum (b - zb) - zb * sum x
//
// Packed B: panels of columns as in gemm.hpp, each [K / 4][width][4]; K is filled up with zeros to a multiple of 4 (in a
// convolution the channels of each kernel position are). With it come, per column, `sums` = sum (b - zb), and `zeros` = zb,
// null where all are 0 (symmetric weights): then nobody needs the sums of x.
//
// The epilogue is a lambda [=](I sum, Row row, i64 column, auto lanes); it gives I or F, whatever C can store.
#pragma once

#include "gemm.hpp"
#include "types.hpp"

namespace opsmith {

// 128 where the bytes of x are moved before they are multiplied, else 0; what their zero points are moved by.
template <ByteStorage T>
inline constexpr bool flips_x = is_signed_integer<T> != ByteDot::x_signed;
template <ByteStorage T>
inline constexpr int32_t moved_x = !flips_x<T> ? 0 : ByteDot::x_signed ? -128 : 128;
template <ByteStorage T>
inline constexpr int32_t moved_b = is_signed_integer<T> ? 0 : -128;

inline constexpr i64 packed_bytes(i64 N, i64 K) { return round_up(N, W) * round_up(K, 4); }

using Words = Vec<uint32_t>;  // for sums that may wrap

// The next `count` (at most 4) bytes, zeros behind them.
OPSMITH_INLINE int32_t few_bytes(const uint8_t* p, i64 count) {
  uint32_t word = p[0];
  if (count > 1) word |= static_cast<uint32_t>(p[1]) << 8;
  if (count > 2) word |= static_cast<uint32_t>(p[2]) << 16;
  if (count > 3) word |= static_cast<uint32_t>(p[3]) << 24;
  return static_cast<int32_t>(word);
}

using ByteMicroFn = void (*)(const uint8_t* const* rows, i64 tap_stride, i64 taps, i64 K, const int8_t* b, int32_t* tile,
                             bool accumulate);

// As `micro` of gemm_micro.hpp, four k at a time.
template <int R, int V, bool Flip>
[[gnu::noinline]] void micro_bytes(const uint8_t* const* rows, i64 tap_stride, i64 taps, i64 K, const int8_t* b,
                                   int32_t* tile, bool accumulate) {
  constexpr int U = chains(R, V);
  I acc[U][R][V] = {};
  if (accumulate) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v) acc[0][r][v] = load_words(tile + r * gemm_nr + v * W, Full{});
    }
  }
  const i64 whole = K / 4 * 4;
  for (i64 t = 0; t < taps; ++t) {
    const uint8_t* a[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) a[r] = rows[t * tap_stride + r];
    auto step = [&](auto four, int u) __attribute__((always_inline)) {
      ByteDot::Columns columns[V];
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v) {
        I words;
        memcpy(&words, b + (u * V + v) * W * 4, sizeof words);
        columns[v] = ByteDot::columns(words);
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        I words = splat(four(a[r]));
        if constexpr (Flip) words ^= static_cast<int32_t>(0x80808080);
        const ByteDot::Value x = ByteDot::value(words);
#pragma GCC unroll 3
        for (int v = 0; v < V; ++v) acc[u][r][v] = ByteDot::add_products(acc[u][r][v], x, columns[v]);
      }
    };
    auto four_at = [](i64 k) {
      return [k](const uint8_t* p) __attribute__((always_inline)) {
        int32_t word;
        memcpy(&word, p + k, sizeof word);
        return word;
      };
    };
    i64 k = 0;
    if constexpr (U > 1) {
      for (; k + 4 * U <= whole; k += 4 * U, b += 4 * U * V * W) {
#pragma GCC unroll 4
        for (int u = 0; u < U; ++u) step(four_at(k + 4 * u), u);
      }
    }
    for (; k < whole; k += 4, b += 4 * V * W) step(four_at(k), 0);
    if (k < K) {
      step([&](const uint8_t* p) __attribute__((always_inline)) { return few_bytes(p + k, K - k); }, 0);
      b += 4 * V * W;
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) {
      I sum = acc[0][r][v];
#pragma GCC unroll 4
      for (int u = 1; u < U; ++u) sum = (I)((Words)sum + (Words)acc[u][r][v]);
      store(tile + r * gemm_nr + v * W, sum, Full{});
    }
  }
}

template <int R, bool Flip>
ByteMicroFn pick_micro_bytes(i64 rows, i64 vectors) {
  if constexpr (R > 1) {
    if (rows < R) return pick_micro_bytes<R - 1, Flip>(rows, vectors);
  }
  if constexpr (gemm_nv > 2) {
    if (vectors == 3) return micro_bytes<R, 3, Flip>;
  }
  return vectors == 2 ? micro_bytes<R, 2, Flip> : micro_bytes<R, 1, Flip>;
}

// The microkernel as a task uses it: see Multiplier in gemm_micro.hpp.
template <bool Flip, bool Tiled = Tiles::exist>
struct ByteMultiplier {
  static constexpr i64 most_rows = byte_mr;
  TileRows cut(i64 rows) const { return TileRows(rows, byte_mr); }
  void operator()(i64 count, i64 vectors, const uint8_t* const* rows, i64 tap_stride, i64 taps, i64 K, const int8_t* b, int32_t* tile,
                  bool accumulate, Ahead = {}) const {
    pick_micro_bytes<byte_mr, Flip>(count, vectors)(rows, tap_stride, taps, K, b, tile, accumulate);
  }
};
template <bool Flip>
struct ByteMultiplier<Flip, true> {
  static constexpr i64 most_rows = max<i64>(byte_mr, tile_rows<>);
  const TilesInUse tiles;
  TileRows cut(i64 rows) const { return has_tiles ? TileRows(rows, tile_rows<>, Tiles::rows) : TileRows(rows, byte_mr); }
  void operator()(i64 count, i64 vectors, const uint8_t* const* rows, i64 tap_stride, i64 taps, i64 K, const int8_t* b, int32_t* tile,
                  bool accumulate, Ahead ahead = {}) const {
    if (!has_tiles) return pick_micro_bytes<byte_mr, Flip>(count, vectors)(rows, tap_stride, taps, K, b, tile, accumulate);
    pick_tiles<Tiles, uint8_t, Flip, int32_t>(count, vectors)(count, rows, tap_stride, taps, K, reinterpret_cast<const uint8_t*>(b), tile,
                                                              accumulate, ahead);
  }
};

// The sum of the bytes of x as they are multiplied.
template <bool Flip>
OPSMITH_INLINE int32_t sum_of_bytes(const uint8_t* p, i64 count) {
  const ByteDot::Columns ones = ByteDot::columns(splat(0x01010101));
  I sums{};
  i64 i = 0;
  for (; i + 4 * W <= count; i += 4 * W) {
    I words;
    memcpy(&words, p + i, sizeof words);
    if constexpr (Flip) words ^= static_cast<int32_t>(0x80808080);
    sums = ByteDot::add_products(sums, ByteDot::value(words), ones);
  }
  uint32_t total = 0;
  for (i64 lane = 0; lane < W; ++lane) total += static_cast<uint32_t>(sums[lane]);
  for (; i < count; ++i) {
    const uint8_t byte = static_cast<uint8_t>(Flip ? p[i] ^ 0x80 : p[i]);
    total += static_cast<uint32_t>(ByteDot::x_signed ? static_cast<int32_t>(static_cast<int8_t>(byte)) : byte);
  }
  return static_cast<int32_t>(total);
}

// Zero points of the rows of A: one, or one per row of a matrix. Null: 0.
template <ByteStorage T>
struct RowZeros {
  const T* at;
  i64 step;
  int32_t operator()(i64 row) const { return (at ? at[row * step] : 0) + moved_x<T>; }
};

// B packed, as a kernel reads it.
struct ByteColumns {
  const int8_t* packed;
  const int32_t* sums;
  const int32_t* zeros;  // null: all 0
};

// The tile of products becomes the sums that were asked for, and those go to the epilogue.
template <class TC, class Ep>
OPSMITH_INLINE void finish_bytes(const int32_t* tile, const Row* rows, const int32_t* x_zeros, const int32_t* x_sums, i64 count,
                                 i64 columns, i64 column, i64 b_column, const ByteColumns& b, TC* c, i64 ldc, Ep& ep) {
  for (i64 r = 0; r < count; ++r, tile += gemm_nr) {
    TC* out = c + rows[r].index * ldc + column;
    auto put = [&](i64 n, auto lanes) __attribute__((always_inline)) {
      Words sum = (Words)load_words(tile + n, Full{});
      sum -= static_cast<uint32_t>(x_zeros[r]) * (Words)load_words(b.sums + b_column + n, lanes);
      if (b.zeros) sum -= static_cast<uint32_t>(x_sums[r]) * (Words)load_words(b.zeros + b_column + n, lanes);
      store(out + n, ep((I)sum, rows[r], column + n, lanes), lanes);
    };
    i64 n = 0;
    for (; n + W <= columns; n += W) put(n, Full{});
    if (n < columns) put(n, Tail{columns - n});
  }
}

inline Tiling tile_bytes(const Pool& pool, i64 rows, i64 N, i64 K) {
  return tile_work(pool, rows, N, ceil_div(K, 4), {}, has_tiles ? tile_rows<> : gemm_mr);
}

// One task, as gemm_block. `zero` gives the zero point of a row of A.
template <ByteStorage TA, class TC, class Zero, class Ep>
void gemm_bytes_block(const Tiling::Task& t, i64 N, i64 K, const TA* A, i64 lda, const ByteColumns& b, TC* C, i64 ldc, i64 number,
                      i64 rows_per_item, Zero& zero, Ep& ep) {
  const uint8_t* sources[max_row_block];
  int32_t x_zeros[max_row_block], x_sums[max_row_block] = {};
  Row rows[max_row_block];
  constexpr bool flip = flips_x<TA>;
  const ByteMultiplier<flip> multiply;
  int32_t tile[multiply.most_rows * gemm_nr];
  for (i64 first = t.row_begin; first < t.row_end; first += max_row_block) {
    const i64 count = min(max_row_block, t.row_end - first);
    for (i64 r = 0; r < count; ++r) {
      sources[r] = reinterpret_cast<const uint8_t*>(A) + (first + r) * lda;
      x_zeros[r] = zero(first + r);
      if (b.zeros) x_sums[r] = sum_of_bytes<flip>(sources[r], K);
    }
    number_rows(number + first - t.row_begin, count, rows_per_item, rows);
    const TileRows heights = multiply.cut(count);
    for (i64 p = t.panel_begin; p < t.panel_end; ++p) {
      const i64 column = p * gemm_nr, columns = min(gemm_nr, N - column);
      for (i64 i = 0, r = 0; i < heights.tiles; r += heights[i++]) {
        multiply(heights[i], panel_vectors(N, p), sources + r, 0, 1, K, b.packed + packed_bytes(column, K), tile, false);
        finish_bytes(tile, rows + r, x_zeros + r, x_sums + r, heights[i], columns, column, column, b, C, ldc, ep);
      }
    }
  }
}

// A [M][K] (rows lda apart) x packed B -> C [M][N] (rows ldc apart). rows_per_item as in gemm.
template <ByteStorage TA, class TC, class Ep>
void gemm_bytes(const Pool& pool, i64 M, i64 N, i64 K, const TA* A, i64 lda, RowZeros<TA> a_zero, const int8_t* packed,
                const int32_t* sums, const int32_t* zeros, TC* C, i64 ldc, Ep ep, i64 rows_per_item = 0) {
  if (M <= 0 || N <= 0) return;
  const Tiling tiling = tile_bytes(pool, M, N, K);
  const ByteColumns b{packed, sums, zeros};
  pool.parallel_for(tiling.tasks(), [&](i64 i) {
    const Tiling::Task t = tiling[i];
    gemm_bytes_block(t, N, K, A, lda, b, C, ldc, t.row_begin, rows_per_item, a_zero, ep);
  });
}

// The same product as plain loops, from packed B: what the tests hold gemm_bytes against.
template <ByteStorage TA, class TC, class Ep>
void gemm_bytes_reference(const Pool&, i64 M, i64 N, i64 K, const TA* A, i64 lda, RowZeros<TA> a_zero, const int8_t* packed,
                          const int32_t*, const int32_t* zeros, TC* C, i64 ldc, Ep ep, i64 rows_per_item = 0) {
  for (i64 m = 0; m < M; ++m) {
    for (i64 n = 0; n < N; ++n) {
      const i64 panel = n / gemm_nr, width = panel_vectors(N, panel) * W;
      const int8_t* b = packed + packed_bytes(panel * gemm_nr, K) + n % gemm_nr * 4;
      i64 sum = 0;
      for (i64 k = 0; k < K; ++k)
        sum += (A[m * lda + k] + moved_x<TA> - a_zero(m)) * (b[k / 4 * width * 4 + k % 4] - (zeros ? zeros[n] : 0));
      const Row row{m, rows_per_item > 0 ? m / rows_per_item : 0};
      store(C + m * ldc + n, ep(splat(static_cast<int32_t>(sum)), row, n, Tail{1}), Tail{1});
    }
  }
}

// --- both operands computed ---

// B [K][N] with any strides -> one packed panel, its sums and its zero points.
template <ByteStorage TB>
void pack_bytes_panel(const TB* B, i64 b_row, i64 b_col, const TB* zero, i64 zero_step, i64 N, i64 K, i64 panel, int8_t* packed,
                      int32_t* sums, int32_t* zeros) {
  const i64 column = panel * gemm_nr, width = panel_vectors(N, panel) * W, columns = min(gemm_nr, N - column);
  int8_t* out = packed + packed_bytes(column, K);
  memset(out, 0, static_cast<size_t>(width * round_up(K, 4)));
  uint32_t totals[gemm_nr] = {};
  for (i64 k = 0; k < K; ++k) {
    int8_t* to = out + k / 4 * width * 4 + k % 4;
    const TB* from = B + k * b_row + column * b_col;
    for (i64 n = 0; n < columns; ++n) {
      const int32_t value = from[n * b_col] + moved_b<TB>;
      to[n * 4] = static_cast<int8_t>(value);
      totals[n] += static_cast<uint32_t>(value);
    }
  }
  for (i64 n = 0; n < columns; ++n) {
    zeros[column + n] = (zero ? zero[(column + n) * zero_step] : 0) + moved_b<TB>;
    sums[column + n] = static_cast<int32_t>(totals[n] - static_cast<uint32_t>(K) * static_cast<uint32_t>(zeros[column + n]));
  }
}

inline constexpr i64 matmul_bytes_item(i64 N, i64 K) { return round_up(packed_bytes(N, K), 64) + round_up(N, 16) * 8; }
inline constexpr i64 matmul_bytes_workspace(i64 batch, i64 N, i64 K) { return batch * matmul_bytes_item(N, K); }

// C[b][m][n] as matmul of gemm.hpp: row.outer = b, row.index = b * M + m. A batch stride of 0 repeats one matrix.
template <ByteStorage TA, ByteStorage TB, class TC, class Ep>
void matmul_bytes(const Pool& pool, i64 batch, i64 M, i64 N, i64 K, const TA* A, i64 a_batch, i64 a_row, RowZeros<TA> a_zero,
                  const TB* B, i64 b_batch, i64 b_row, i64 b_col, const TB* b_zero, i64 b_step, TC* C, void* workspace, Ep ep) {
  if (batch <= 0 || M <= 0 || N <= 0) return;
  const i64 panels = panel_count(N), items = b_batch == 0 ? 1 : batch, item_bytes = matmul_bytes_item(N, K);
  auto columns_of = [&](i64 item) {
    int8_t* packed = static_cast<int8_t*>(workspace) + (items == 1 ? 0 : item) * item_bytes;
    int32_t* sums = reinterpret_cast<int32_t*>(packed + round_up(packed_bytes(N, K), 64));
    return ByteColumns{packed, sums, sums + round_up(N, 16)};
  };
  pool.parallel_for(items * panels, [&](i64 i) {
    const ByteColumns b = columns_of(i / panels);
    pack_bytes_panel(B + i / panels * b_batch, b_row, b_col, b_zero, b_step, N, K, i % panels, const_cast<int8_t*>(b.packed),
                     const_cast<int32_t*>(b.sums), const_cast<int32_t*>(b.zeros));
  });
  Tiling tiling = tile_bytes(pool, M, N, K);
  if (batch > 1) tiling.panel_blocks = min(tiling.panel_blocks, max<i64>(1, ceil_div(4 * pool.threads, batch)));
  pool.parallel_for(batch * tiling.tasks(), [&](i64 i) {
    const i64 item = i / tiling.tasks();
    const Tiling::Task t = tiling[i % tiling.tasks()];
    gemm_bytes_block(t, N, K, A + item * a_batch, a_row, columns_of(item), C, N, item * M + t.row_begin, M, a_zero, ep);
  });
}

template <ByteStorage TA, ByteStorage TB, class TC, class Ep>
void matmul_bytes_reference(const Pool&, i64 batch, i64 M, i64 N, i64 K, const TA* A, i64 a_batch, i64 a_row, RowZeros<TA> a_zero,
                            const TB* B, i64 b_batch, i64 b_row, i64 b_col, const TB* b_zero, i64 b_step, TC* C, void*, Ep ep) {
  for (i64 i = 0; i < batch * M; ++i) {
    const i64 b = i / M, m = i % M;
    for (i64 n = 0; n < N; ++n) {
      i64 sum = 0;
      for (i64 k = 0; k < K; ++k)
        sum += (A[b * a_batch + m * a_row + k] + moved_x<TA> - a_zero(m)) *
               (B[b * b_batch + k * b_row + n * b_col] - (b_zero ? b_zero[n * b_step] : 0));
      store(C + i * N + n, ep(splat(static_cast<int32_t>(sum)), Row{i, b}, n, Tail{1}), Tail{1});
    }
  }
}

}  // namespace opsmith
