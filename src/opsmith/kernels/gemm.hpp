// Matrix products with an epilogue: C[m][n] = ep(sum over k of A[m][k] * B[k][n]).
//
// gemm    B is a weight, packed offline into panels (compiler/pack.py: pack_gemm)
// matmul  both operands are activations, batched, with any strides; B is packed into the workspace at run time
//
// The epilogue is a lambda [=](F sum, Row row, i64 column, auto lanes) -> F, called once per W columns of a row.
// Packed B: for each panel of gemm_nr columns  [K][width]  one after another; width is gemm_nr, and for the last
// panel the rest rounded up to whole vectors, padded with zeros. Of bf16x2:  [K / 2][width].
#pragma once

#include "gemm_micro.hpp"

namespace opsmith {

// The part of a panel (-1: none) that tile `i` of so many tiles of rows fetches while it multiplies by the one before.
template <class TB>
OPSMITH_INLINE Ahead panel_ahead(const TB* packed, i64 N, i64 K, i64 panel, i64 i, i64 tiles) {
  if (!has_tiles || panel < 0) return {};
  const i64 words = steps<TB>(K) * panel_vectors(N, panel) * W, lines = ceil_div(words * static_cast<i64>(sizeof(TB)), 64);
  const i64 share = ceil_div(lines, tiles), calls = max<i64>(1, K * 2 / Tiles::row_bytes);
  return {reinterpret_cast<const uint8_t*>(packed + panel * gemm_nr * steps<TB>(K)) + i * share * 64, ceil_div(share, calls)};
}

// One task: rows [row_begin, row_end) of A by panels [panel_begin, panel_end). A panel of B meets all rows before the
// next one, so that it is read once from far memory. Row m of A is row `number + m - row_begin` of the output.
template <class TA, class TB, class TC, class Ep>
void gemm_block(i64 row_begin, i64 row_end, i64 panel_begin, i64 panel_end, i64 N, i64 K, const TA* A, i64 lda,
                const TB* packed, TC* C, i64 ldc, i64 number, i64 rows_per_item, Ep& ep) {
  const TA* sources[max_row_block];
  Row rows[max_row_block];
  const Multiplier<TA, TB> multiply;
  float tile[multiply.most_rows * gemm_nr];
  for (i64 first = row_begin; first < row_end; first += max_row_block) {
    i64 count = min(max_row_block, row_end - first);
    for (i64 r = 0; r < count; ++r) sources[r] = A + (first + r) * lda;
    number_rows(number + first - row_begin, count, rows_per_item, rows);
    const TileRows heights = multiply.cut(count);
    for (i64 p = panel_begin; p < panel_end; ++p) {
      i64 column = p * gemm_nr, vectors = panel_vectors(N, p), columns = min(gemm_nr, N - column);
      for (i64 i = 0, r = 0; i < heights.tiles; r += heights[i++]) {
        multiply(heights[i], vectors, sources + r, 0, 1, K, packed + column * steps<TB>(K), tile, false,
                 panel_ahead(packed, N, K, p + 1 < panel_end ? p + 1 : -1, i, heights.tiles));
        finish_tile(tile, rows + r, heights[i], columns, column, C, ldc, ep);
      }
    }
  }
}

// A [M][K] (rows lda apart) x packed B -> C [M][N] (rows ldc apart). rows_per_item: how many rows share one
// row.outer (0: all of them).
template <class TA, class TB, class TC, class Ep>
void gemm(const Pool& pool, i64 M, i64 N, i64 K, const TA* A, i64 lda, const TB* packed, TC* C, i64 ldc, Ep ep,
          i64 rows_per_item = 0, Blocking blocking = {}) {
  if (M <= 0 || N <= 0) return;
  const Tiling tiling = tile_work(pool, M, N, steps<TB>(K), blocking, Multiplier<TA, TB>::unit());
  pool.parallel_for(tiling.tasks(), [&](i64 i) {
    const Tiling::Task t = tiling[i];
    gemm_block(t.row_begin, t.row_end, t.panel_begin, t.panel_end, N, K, A, lda, packed, C, ldc, t.row_begin, rows_per_item,
               ep);
  });
}

// The same product as plain loops: what the tests hold gemm against.
template <class TA, class TB, class TC, class Ep>
void gemm_reference(const Pool&, i64 M, i64 N, i64 K, const TA* A, i64 lda, const TB* packed, TC* C, i64 ldc, Ep ep,
                    i64 rows_per_item = 0) {
  for (i64 m = 0; m < M; ++m) {
    for (i64 n = 0; n < N; ++n) {
      float sum = 0;
      for (i64 k = 0; k < K; ++k) sum += to_float(A[m * lda + k]) * packed_at(packed, N, K, k, n);
      Row row{m, rows_per_item > 0 ? m / rows_per_item : 0};
      store(C + m * ldc + n, ep(splat(sum), row, n, Tail{1}), Tail{1});
    }
  }
}

// A of bf16, or of floats on CPUs without products of bf16, by weights of bf16 packed in pairs (compiler/pack.py: pack_pairs).
template <class TA, class TC, class Ep>
void gemm_bf16(const Pool& pool, i64 M, i64 N, i64 K, const TA* A, i64 lda, const bf16* packed, TC* C, i64 ldc, Ep ep,
               i64 rows_per_item = 0, Blocking blocking = {}) {
  gemm(pool, M, N, K, A, lda, reinterpret_cast<const bf16x2*>(packed), C, ldc, ep, rows_per_item, blocking);
}

// B [K][N] with any strides -> one panel of packed B.
inline void pack_panel(const float* B, i64 b_row, i64 b_col, i64 N, i64 K, i64 panel, float* packed) {
  i64 column = panel * gemm_nr, width = panel_vectors(N, panel) * W, columns = min(gemm_nr, N - column);
  const float* source = B + column * b_col;
  float* out = packed + column * K;
  if (b_col == 1) {
    for (i64 k = 0; k < K; ++k, out += width, source += b_row) {
      i64 n = 0;
      for (; n + W <= columns; n += W) store(out + n, load(source + n, Full{}), Full{});
      if (n < columns) store(out + n, load(source + n, Tail{columns - n}), Full{});
    }
    return;
  }
  // Columns are far apart: take a few of each at a time, so that every cache line fetched is used whole.
  constexpr i64 run = 16;
  for (i64 k0 = 0; k0 < K; k0 += run) {
    i64 k1 = min(K, k0 + run);
    for (i64 n = 0; n < columns; ++n)
      for (i64 k = k0; k < k1; ++k) out[k * width + n] = source[k * b_row + n * b_col];
    for (i64 n = columns; n < width; ++n)
      for (i64 k = k0; k < k1; ++k) out[k * width + n] = 0;
  }
}

// Bytes: packed B of every batch item, and a copy of A for the case that its rows are not contiguous.
inline constexpr i64 matmul_workspace(i64 batch, i64 M, i64 N, i64 K) {
  return batch * (round_up(packed_size(N, K), 16) + round_up(M * K, 16)) * static_cast<i64>(sizeof(float));
}

// C[b][m][n] = ep(sum over k of A[b][m][k] * B[b][k][n]); row.outer = b, row.index = b * M + m. A batch stride of 0
// repeats one matrix for every item.
template <class Ep>
void matmul(const Pool& pool, i64 batch, i64 M, i64 N, i64 K, const float* A, i64 a_batch, i64 a_row, i64 a_col,
            const float* B, i64 b_batch, i64 b_row, i64 b_col, float* C, i64 c_batch, i64 ldc, void* workspace, Ep ep) {
  if (batch <= 0 || M <= 0 || N <= 0) return;
  const i64 panels = panel_count(N);
  const bool shared = b_batch == 0;  // one B for all items: packed once
  const i64 packed_stride = shared ? 0 : round_up(packed_size(N, K), 16);
  float* packed = static_cast<float*>(workspace);
  if (a_col != 1 && K > 1) {
    float* copy = packed + batch * round_up(packed_size(N, K), 16);
    const i64 block = 16, blocks = ceil_div(M, block);
    pool.parallel_for((a_batch == 0 ? 1 : batch) * blocks, [&](i64 task) {
      i64 item = task / blocks, m0 = task % blocks * block, m1 = min(M, m0 + block);
      for (i64 k = 0; k < K; ++k)
        for (i64 m = m0; m < m1; ++m) copy[(item * M + m) * K + k] = A[item * a_batch + m * a_row + k * a_col];
    });
    A = copy, a_row = K, a_batch = a_batch == 0 ? 0 : M * K;
  }
  Tiling tiling = tile_work(pool, M, N, K);
  // Items already give every thread its share: cut them only where there are few.
  if (batch > 1) tiling.panel_blocks = min(tiling.panel_blocks, max<i64>(1, ceil_div(4 * pool.threads, batch)));
  // A panel that only one task reads is packed by that task and used while it is in its cache.
  const bool pack_in_task = tiling.row_blocks == 1 && (!shared || batch == 1);
  if (!pack_in_task) {
    pool.parallel_for((shared ? 1 : batch) * panels, [&](i64 i) {
      pack_panel(B + i / panels * b_batch, b_row, b_col, N, K, i % panels, packed + i / panels * packed_stride);
    });
  }
  pool.parallel_for(batch * tiling.tasks(), [&](i64 i) {
    const i64 item = i / tiling.tasks();
    const Tiling::Task t = tiling[i % tiling.tasks()];
    float* mine = packed + item * packed_stride;
    if (pack_in_task) {
      for (i64 p = t.panel_begin; p < t.panel_end; ++p) pack_panel(B + item * b_batch, b_row, b_col, N, K, p, mine);
    }
    gemm_block(t.row_begin, t.row_end, t.panel_begin, t.panel_end, N, K, A + item * a_batch, a_row, mine,
               C + item * (c_batch - M * ldc), ldc, item * M + t.row_begin, M, ep);
  });
}

template <class Ep>
void matmul_reference(const Pool&, i64 batch, i64 M, i64 N, i64 K, const float* A, i64 a_batch, i64 a_row, i64 a_col,
                      const float* B, i64 b_batch, i64 b_row, i64 b_col, float* C, i64 c_batch, i64 ldc, void*, Ep ep) {
  for (i64 b = 0; b < batch; ++b) {
    for (i64 m = 0; m < M; ++m) {
      for (i64 n = 0; n < N; ++n) {
        float sum = 0;
        for (i64 k = 0; k < K; ++k) {
          sum += A[b * a_batch + m * a_row + k * a_col] * B[b * b_batch + k * b_row + n * b_col];
        }
        store(C + b * c_batch + m * ldc + n, ep(splat(sum), Row{b * M + m, b}, n, Tail{1}), Tail{1});
      }
    }
  }
}

}  // namespace opsmith
