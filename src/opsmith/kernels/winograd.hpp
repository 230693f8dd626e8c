// 3x3 convolution by Winograd's minimal filtering: F(4x4,3x3) does 36 multiplications where the direct way does 144,
// F(2x2,3x3) 16 for 36, and with stride 2 F(4x4,3x3) does 81 for 144. Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2015.
//
//   Y = A^T [ sum over channels of (G g G^T) * (B^T d B) ] A        d: n x n input pixels, Y: m x m output pixels
//
// A tile of n x n pixels (n = m + 2) becomes n*n "frequencies"; at each of them the sum over channels is an ordinary
// matrix product, tiles x channels times channels x output channels. G g G^T is done offline (compiler/pack.py:
// pack_winograd) in double precision.
//
// The interpolation points are 0, +-5/8, +-3/2, infinity for m = 4: exact in binary, and with products near 1 they give
// a third of the error of the usual 0, +-1, +-2 (measured 3e-6 against 1.2e-5 of the output's scale at 256 channels).
//
// Order of work, for caches: a chunk of tiles is transformed into V, which stays in L3. Then a task is one block of
// tiles by one group of panels, all n*n products of it; tasks of one group follow each other, so its transformed
// weights are read from memory once per chunk. The products of a task stay on its stack until the inverse transform,
// the epilogue and the only store to y. A task of 32 tiles by 48 channels reads 3.3 bytes per cycle from L3; as these
// reads must not wait, V lies in the very order in which the microkernel walks it:
//
//   V [block of tiles][frequency][gemm_mr tiles][run of channels][tile of the gemm_mr][channel of the run]
//
// where a run is one cache line (16 channels), or all channels if they are not a multiple of 16.
//
// With stride 2 the outer weights of a line meet its even pixels only, as a filter of two weights and stride 1, F(4,2) with the
// points +-1/2, +-9/8, infinity; the middle weight meets its odd pixels, which stay as they are: 5 + 4 frequencies a line, of which the
// last four share their weight. Its error is that of the direct way (8e-7 of the output's scale at 256 channels).
//
// With dilation d every d-th line and column is an image of its own; tile number t of a side begins at output pixel
// t / d * d * m + t % d and takes every d-th.
//
// The transforms mix all pixels of a tile, so one extreme pixel (1e6 among ones, infinity, NaN) would damage results that
// do not read it. Each tile's energy is therefore taken on the way, and a tile with far more of it than others have is
// convolved directly, with the filter taken back out of the transformed weights.
//
// In bf16, V and the transformed weights are rounded to it; transforms and sums stay in float. F(2x2,3x3) only adds and subtracts
// on the way to V.
#pragma once

#include <type_traits>

#include "conv.hpp"
#include "math.hpp"

namespace opsmith {

// The one-dimensional transforms; the two-dimensional ones apply them to columns, then to rows.
// n: pixels a side of a tile of x, and frequencies; of these `filters` have weights of their own, filter_of(i) names them.
// used: the frequencies from whose weights the filter is found again.
template <int Out, int Stride = 1>
struct Winograd;

template <>
struct Winograd<4> {
  static constexpr int n = 6, filters = n, used[] = {0, 1, 2, n - 1};
  static constexpr int filter_of(int i) { return i; }
  static constexpr float a = 0.625f, b = 1.5f, a2 = a * a, b2 = b * b;  // points 0, a, -a, b, -b, infinity
  OPSMITH_INLINE static void forward(const F* d, F* v) {                // B^T d: row i is the product of all (x - p) but i
    F even_a = d[4] - b2 * d[2], odd_a = a * (d[3] - b2 * d[1]);
    F even_b = d[4] - a2 * d[2], odd_b = b * (d[3] - a2 * d[1]);
    v[0] = d[4] - (a2 + b2) * d[2] + (a2 * b2) * d[0];
    v[1] = even_a + odd_a, v[2] = even_a - odd_a;
    v[3] = even_b + odd_b, v[4] = even_b - odd_b;
    v[5] = d[5] - (a2 + b2) * d[3] + (a2 * b2) * d[1];
  }
  OPSMITH_INLINE static void inverse(const F* m, F* y) {  // A^T m: powers of the points
    F sum_a = m[1] + m[2], difference_a = m[1] - m[2], sum_b = m[3] + m[4], difference_b = m[3] - m[4];
    y[0] = m[0] + sum_a + sum_b;
    y[1] = a * difference_a + b * difference_b;
    y[2] = a2 * sum_a + b2 * sum_b;
    y[3] = (a2 * a) * difference_a + (b2 * b) * difference_b + m[5];
  }
  // u = G g at the used points 0, a, -a, infinity -> g
  OPSMITH_INLINE static void filter(const F* u, F* g) {
    g[0] = (a2 * b2) * u[0], g[1] = (a * (a2 - b2)) * (u[1] - u[2]), g[2] = u[3];
  }
  // Frequencies of which each pixel, row, column or area that is large makes at least one large.
  static constexpr bool watched(int i, int j) { return (i == 0 || i == n - 1) && (j == 0 || j == n - 1); }
};

template <>
struct Winograd<2> {
  static constexpr int n = 4, filters = n, used[] = {0, 1, 2, n - 1};  // points 0, 1, -1, infinity
  static constexpr int filter_of(int i) { return i; }
  OPSMITH_INLINE static void forward(const F* d, F* v) {
    v[0] = d[2] - d[0], v[1] = d[2] + d[1], v[2] = d[2] - d[1], v[3] = d[3] - d[1];
  }
  OPSMITH_INLINE static void inverse(const F* m, F* y) { y[0] = m[0] + m[1] + m[2], y[1] = m[1] - m[2] + m[3]; }
  OPSMITH_INLINE static void filter(const F* u, F* g) { g[0] = -u[0], g[1] = u[1] - u[2], g[2] = u[3]; }
  static constexpr bool watched(int, int) { return true; }  // d[2] - d[0] is 0 where all pixels are the same
};

template <>
struct Winograd<4, 2> {
  static constexpr int n = 9, filters = 6, used[] = {0, 1, 4, 5};
  static constexpr float a = 0.5f, b = 1.125f, a2 = a * a, b2 = b * b;  // points a, -a, b, -b, infinity; then the odd pixels
  static constexpr int filter_of(int i) { return i < 5 ? i : 5; }
  OPSMITH_INLINE static void forward(const F* d, F* v) {
    const F odd_a = d[6] - b2 * d[2], even_a = a * (d[4] - b2 * d[0]);
    const F odd_b = d[6] - a2 * d[2], even_b = b * (d[4] - a2 * d[0]);
    v[0] = odd_a + even_a, v[1] = odd_a - even_a;
    v[2] = odd_b + even_b, v[3] = odd_b - even_b;
    v[4] = d[8] - (a2 + b2) * d[4] + (a2 * b2) * d[0];
    v[5] = d[1], v[6] = d[3], v[7] = d[5], v[8] = d[7];
  }
  OPSMITH_INLINE static void inverse(const F* m, F* y) {
    F sum_a = m[0] + m[1], difference_a = m[0] - m[1], sum_b = m[2] + m[3], difference_b = m[2] - m[3];
    y[0] = m[5] + sum_a + sum_b;
    y[1] = m[6] + a * difference_a + b * difference_b;
    y[2] = m[7] + a2 * sum_a + b2 * sum_b;
    y[3] = m[8] + (a2 * a) * difference_a + (b2 * b) * difference_b + m[4];
  }
  OPSMITH_INLINE static void filter(const F* u, F* g) { g[0] = (a * (a2 - b2)) * (u[0] - u[1]), g[1] = u[3], g[2] = u[2]; }
  static constexpr bool watched(int i, int j) { return (i == 0 || i > 3) && (j == 0 || j > 3); }
};

// Tiles along a side of SIZE output pixels, and the first pixel of one.
template <int Out>
constexpr i64 winograd_tiles(i64 size, i64 dilation) {
  return min(size, dilation) * ceil_div(ceil_div(size, max<i64>(1, dilation)), Out);
}
template <int Out>
constexpr i64 winograd_first(i64 tile, i64 dilation) {
  return tile / dilation * dilation * Out + tile % dilation;
}

template <int Out, int Stride = 1, class TV = float>
struct WinogradPlan {
  static constexpr int n = Winograd<Out, Stride>::n, points = n * n;
  static constexpr i64 product_floats = (Stride == 1 ? 56 : 64) * 1024;  // of a task, on its stack: 224 or 256 KB
  static constexpr i64 most_panels = product_floats / (points * gemm_mr * gemm_nr), table_tiles = 96 / gemm_mr * gemm_mr;
  // Of V: half of an L3 of 32 MiB where large weights must be read for every chunk, less where they stay in a cache anyway.
  static constexpr i64 most_bytes = 16 << 20, least_bytes = 4 << 20;
  static constexpr i64 size = static_cast<i64>(sizeof(TV)), line = 64 / size;

  i64 tiles_h, tiles_w, tiles, panel_group, most_tiles, block, blocks, chunk, run, point_stride, block_stride;
  constexpr explicit WinogradPlan(const ConvShape& s)
      : tiles_h(winograd_tiles<Out>(s.out_height, s.dilation_h)), tiles_w(winograd_tiles<Out>(s.out_width, s.dilation_w)), tiles(s.batch * tiles_h * tiles_w),
        panel_group(min(most_panels, s.blocking.panels > 0 ? s.blocking.panels : max<i64>(1, 48 / gemm_nr))),
        // Tiles in a block: as many as let the products of a block and a panel group stay on the stack, and no more than
        // would be of use.
        most_tiles(max<i64>(gemm_mr, min(min(table_tiles, s.blocking.rows > 0 ? s.blocking.rows : table_tiles),
                                         product_floats / (points * panel_group * gemm_nr)) / gemm_mr * gemm_mr)),
        // Blocks of nearly equal size, so that a few large tasks end together.
        block(round_up(ceil_div(tiles, max<i64>(1, ceil_div(tiles, most_tiles))), gemm_mr)),
        blocks(block > 0 ? ceil_div(tiles, block) : 0),
        run(s.channels % blocked_run<TV> == 0 ? blocked_run<TV> : s.channels),
        // One cache line more between frequencies: the n*n stores of one transform must not fall into one cache set.
        point_stride(round_up(block * s.channels, line) + line), block_stride(points * point_stride) {
    constexpr i64 filters = Winograd<Out, Stride>::filters;
    const i64 weights = filters * filters * s.channels * s.out_channels * size, bytes = min(most_bytes, max(least_bytes, 4 * weights));
    chunk = max<i64>(1, min(blocks, max<i64>(2, bytes / (block_stride * size))));
  }
};

template <int Out, int Stride = 1, class TV = float>
constexpr i64 winograd_workspace(const ConvShape& s) {
  WinogradPlan<Out, Stride, TV> plan(s);
  const i64 energies = plan.chunk * plan.block;
  return plan.chunk * plan.block_stride * plan.size + (round_up(s.channels, 16) + energies) * static_cast<i64>(sizeof(float));
}

// One tile, W channels: pixels at source[i][j] + c -> V at its n*n frequencies, and their energy.
template <int Out, int Stride, class TX, class TV, class Lanes>
OPSMITH_INLINE void winograd_forward(const TX* const* source, i64 c, TV* v, i64 point_stride, F& energy, Lanes lanes) {
  using Wino = Winograd<Out, Stride>;
  constexpr int n = Wino::n;
  F columns[n][n], half[n][n];  // half[j][i]: column j transformed
#pragma GCC unroll 9
  for (int j = 0; j < n; ++j) {
#pragma GCC unroll 9
    for (int i = 0; i < n; ++i) columns[j][i] = load(source[i * n + j] + c, lanes);
    Wino::forward(columns[j], half[j]);
  }
#pragma GCC unroll 9
  for (int i = 0; i < n; ++i) {
    F row[n], out[n];
#pragma GCC unroll 9
    for (int j = 0; j < n; ++j) row[j] = half[j][i];
    Wino::forward(row, out);
#pragma GCC unroll 9
    for (int j = 0; j < n; ++j) {
      store(v + (i * n + j) * point_stride, out[j], lanes);
      if (Wino::watched(i, j)) energy += out[j] * out[j];
    }
  }
}

// The energy from which a tile counts as extreme: results that do not read its large pixels would be off by more than a
// thousandth of their usual size (about 1.7e-5 times the root of `far`, twice that for many large pixels). COUNT tiles, their logarithms taken from the exponents.
inline float winograd_limit(const float* energies, i64 count, i64 channels) {
  constexpr float far = 1024;
  const float least = static_cast<float>(channels);  // of numbers of size 1
  i64 sum = 0;
  for (i64 i = 0; i < count; ++i) {
    const float energy = energies[i] > least ? energies[i] : least;
    int32_t bits;
    memcpy(&bits, &energy, sizeof bits);
    sum += bits >> 23;
  }
  const int32_t mean = static_cast<int32_t>(min<i64>(sum / max<i64>(count, 1), 240)) << 23;
  float typical;
  memcpy(&typical, &mean, sizeof typical);
  return far * typical;
}

// One tile, W output channels, directly. u: transformed weights of these channels, [filters^2][C][ld], or
// [filters^2][C / 2][ld] of pairs.
template <int Out, int Stride, class TX, class TB>
__attribute__((noinline)) void winograd_direct(const TX* const* source, i64 C, const TB* u, i64 ld, F (&y)[Out][Out]) {
  using Wino = Winograd<Out, Stride>;
  constexpr int n = Wino::n, filters = Wino::filters;
  constexpr const int(&used)[4] = Wino::used;
  for (auto& row : y)
    for (F& sum : row) sum = splat(0.0f);
  for (i64 c = 0; c < C; ++c) {
    const TB* at = u + c / step_k<TB> * ld;
    F half[4][3], g[3][3];
    for (int i = 0; i < 4; ++i) {
      F row[4];
      for (int j = 0; j < 4; ++j) row[j] = load_step(at + (used[i] * filters + used[j]) * steps<TB>(C) * ld, static_cast<int>(c % step_k<TB>));
      Wino::filter(row, half[i]);
    }
    for (int j = 0; j < 3; ++j) {
      const F column[] = {half[0][j], half[1][j], half[2][j], half[3][j]};
      F out[3];
      Wino::filter(column, out);
      for (int i = 0; i < 3; ++i) g[i][j] = out[i];
    }
    for (int i = 0; i < Out; ++i)
      for (int j = 0; j < Out; ++j)
        for (int k = 0; k < 9; ++k) y[i][j] += splat(to_float(source[(i * Stride + k / 3) * n + j * Stride + k % 3][c])) * g[k / 3][k % 3];
  }
}

// One tile, W output channels: products at n*n frequencies -> Out x Out sums.
template <int Out, int Stride>
OPSMITH_INLINE void winograd_inverse(const float* m, i64 point_stride, F (&y)[Out][Out]) {
  using Wino = Winograd<Out, Stride>;
  constexpr int n = Wino::n;
  F half[Out][n];
#pragma GCC unroll 9
  for (int j = 0; j < n; ++j) {
    F column[n], out[Out];
#pragma GCC unroll 9
    for (int i = 0; i < n; ++i) column[i] = load(m + (i * n + j) * point_stride, Full{});
    Wino::inverse(column, out);
#pragma GCC unroll 4
    for (int i = 0; i < Out; ++i) half[i][j] = out[i];
  }
#pragma GCC unroll 4
  for (int i = 0; i < Out; ++i) Wino::inverse(half[i], y[i]);
}

template <int Out, int Stride = 1, class TX, class TB, class TY, class Ep>
void conv2d_winograd(const Pool& pool, const ConvShape& s, const TX* x, const TB* transformed, TY* y, void* workspace, Ep ep) {
  using TV = std::conditional_t<step_k<TB> == 2, bf16, float>;
  using Plan = WinogradPlan<Out, Stride, TV>;
  using Wino = Winograd<Out, Stride>;
  constexpr int n = Plan::n, points = Plan::points, filters = Wino::filters;
  const Plan plan(s);
  const i64 C = s.channels, N = s.out_channels, groups = ceil_div(panel_count(N), plan.panel_group);
  const i64 image = plan.tiles_h * plan.tiles_w, run = plan.run;
  if (plan.tiles <= 0 || N <= 0) return;
  TV* V = static_cast<TV*>(workspace);
  float* behind = reinterpret_cast<float*>(V + plan.chunk * plan.block_stride);
  TX* zeros = reinterpret_cast<TX*>(behind);
  memset(zeros, 0, static_cast<size_t>(C) * sizeof(TX));
  float* energies = behind + round_up(C, 16);  // of each tile of a chunk
  auto find_pixels = [&](i64 item, i64 th, i64 tw, const TX** source) {
    const i64 oh = winograd_first<Out>(th, s.dilation_h), ow = winograd_first<Out>(tw, s.dilation_w);
    const i64 h = oh * Stride - s.pad_top, w = ow * Stride - s.pad_left;
    if (s.upsample == 1 && h >= 0 && h + (n - 1) * s.dilation_h < s.height && w >= 0 && w + (n - 1) * s.dilation_w < s.width) {
      const TX* corner = x + ((item * s.height + h) * s.width + w) * s.x_stride();
      for (int i = 0; i < n; ++i)
        for (int j = 0; j < n; ++j) source[i * n + j] = corner + (i * s.dilation_h * s.width + j * s.dilation_w) * s.x_stride();
      return;
    }
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j < n; ++j) {
        const TX* pixel = conv_source(s, x, item, oh, ow, i, j);
        source[i * n + j] = pixel ? pixel : zeros;
      }
    }
  };

  for (i64 chunk = 0; chunk < plan.blocks; chunk += plan.chunk) {
    const i64 blocks = min(plan.chunk, plan.blocks - chunk);
    const i64 first = chunk * plan.block, last = min(plan.tiles, (chunk + blocks) * plan.block);

    // x -> V
    constexpr i64 some = 4;  // tiles per task
    pool.parallel_for(ceil_div(last - first, some), [&](i64 task) {
      for (i64 tile = first + task * some; tile < min(last, first + (task + 1) * some); ++tile) {
        const i64 item = tile / image, th = (tile - item * image) / plan.tiles_w;
        const i64 tw = tile - item * image - th * plan.tiles_w;
        const TX* source[points];
        find_pixels(item, th, tw, source);
        F energy = splat(0.0f);
        const i64 block = (tile - first) / plan.block, r = tile - first - block * plan.block;
        TV* v = V + block * plan.block_stride + r / gemm_mr * gemm_mr * C + r % gemm_mr * run;
        for (i64 begin = 0; begin < C; begin += run, v += gemm_mr * run) {
          i64 c = 0;
          for (; c + W <= run; c += W) winograd_forward<Out, Stride>(source, begin + c, v + c, plan.point_stride, energy, Full{});
          if (c < run) winograd_forward<Out, Stride>(source, begin + c, v + c, plan.point_stride, energy, Tail{run - c});
        }
        energies[tile - first] = lane_sum(energy);
      }
    });

    const float limit = winograd_limit(energies, last - first, C);

    // V x transformed weights -> y, one block of tiles by one group of panels at a time
    pool.parallel_for(groups * blocks, [&](i64 task) {
      const i64 group = task / blocks, block = task - group * blocks, tile_begin = first + block * plan.block;
      const i64 count = min(plan.block, last - tile_begin), panel_begin = group * plan.panel_group;
      const i64 panels = min(plan.panel_group, panel_count(N) - panel_begin);
      alignas(64) float products[Plan::product_floats];
      const i64 panel_stride = count * gemm_nr, product_stride = panels * panel_stride;
      for (int point = 0; point < points; ++point) {
        const int filter = Wino::filter_of(point / n) * filters + Wino::filter_of(point % n);
        const TV* sources[Plan::table_tiles];
        const TV* v = V + block * plan.block_stride + point * plan.point_stride;
        for (i64 r = 0; r < count; ++r) sources[r] = v + r / gemm_mr * gemm_mr * C + r % gemm_mr * run;
        for (i64 p = 0; p < panels; ++p) {
          const i64 column = (panel_begin + p) * gemm_nr, vectors = panel_vectors(N, panel_begin + p);
          const TB* b = transformed + (filters * filters * column + filter * vectors * W) * steps<TB>(C);
          for (i64 r = 0; r < count; r += gemm_mr) {
            const i64 height = min<i64>(gemm_mr, count - r);
            auto micro = run == blocked_run<TV> ? micro_for<TV, TB, true>(height, vectors) : micro_for<TV, TB>(height, vectors);
            micro(sources + r, 0, run == blocked_run<TV> ? C / run : 1, run, b,
                  products + point * product_stride + p * panel_stride + r * gemm_nr, false);
          }
        }
      }
      const i64 column = panel_begin * gemm_nr, columns = min(panels * gemm_nr, N - column);
      for (i64 r = 0; r < count; ++r) {
        const i64 tile = tile_begin + r, item = tile / image, th = (tile - item * image) / plan.tiles_w;
        const i64 tw = tile - item * image - th * plan.tiles_w;
        const i64 oh = winograd_first<Out>(th, s.dilation_h), ow = winograd_first<Out>(tw, s.dilation_w);
        const i64 rows = min<i64>(Out, ceil_div(s.out_height - oh, s.dilation_h)), cols = min<i64>(Out, ceil_div(s.out_width - ow, s.dilation_w));
        const i64 corner = (item * s.out_height + oh) * s.out_width + ow;
        const bool extreme = !(energies[tile - first] <= limit);  // NaN too
        const TX* source[points];
        if (extreme) find_pixels(item, th, tw, source);
        auto finish = [&](i64 v, auto lanes) {
          F sums[Out][Out];
          if (extreme) {
            const i64 panel = panel_begin + v / gemm_nr, ld = panel_vectors(N, panel) * W;
            winograd_direct<Out, Stride>(source, C, transformed + filters * filters * panel * gemm_nr * steps<TB>(C) + v % gemm_nr, ld,
                                         sums);
          } else {
            winograd_inverse<Out, Stride>(products + v / gemm_nr * panel_stride + r * gemm_nr + v % gemm_nr, product_stride, sums);
          }
          for (i64 i = 0; i < rows; ++i) {
            for (i64 j = 0; j < cols; ++j) {
              Row row{corner + i * s.dilation_h * s.out_width + j * s.dilation_w, item};
              store(y + row.index * s.y_stride() + column + v, ep(sums[i][j], row, column + v, lanes), lanes);
            }
          }
        };
        i64 v = 0;
        for (; v + W <= columns; v += W) finish(v, Full{});
        if (v < columns) finish(v, Tail{columns - v});
      }
    });
  }
}

// Kernel 3x3, one group; any padding, any dilation with stride 1. Weights: pack_winograd(w, tile, stride, isa).
template <class Ep>
void conv2d_winograd4(const Pool& pool, const ConvShape& s, const float* x, const float* transformed, float* y,
                      void* workspace, Ep ep) {
  conv2d_winograd<4>(pool, s, x, transformed, y, workspace, ep);
}
template <class Ep>
void conv2d_winograd2(const Pool& pool, const ConvShape& s, const float* x, const float* transformed, float* y,
                      void* workspace, Ep ep) {
  conv2d_winograd<2>(pool, s, x, transformed, y, workspace, ep);
}
template <class Ep>
void conv2d_winograd4_stride2(const Pool& pool, const ConvShape& s, const float* x, const float* transformed, float* y,
                              void* workspace, Ep ep) {
  conv2d_winograd<4, 2>(pool, s, x, transformed, y, workspace, ep);
}
// Products in bf16; weights: pack_winograd_pairs.
template <class TX, class TY, class Ep>
void conv2d_winograd2_bf16(const Pool& pool, const ConvShape& s, const TX* x, const bf16* transformed, TY* y, void* workspace,
                           Ep ep) {
  conv2d_winograd<2>(pool, s, x, reinterpret_cast<const bf16x2*>(transformed), y, workspace, ep);
}
inline constexpr i64 conv2d_winograd2_bf16_workspace(const ConvShape& s) { return winograd_workspace<2, 1, bf16>(s); }
inline constexpr i64 conv2d_winograd4_workspace(const ConvShape& s) { return winograd_workspace<4>(s); }
inline constexpr i64 conv2d_winograd2_workspace(const ConvShape& s) { return winograd_workspace<2>(s); }
inline constexpr i64 conv2d_winograd4_stride2_workspace(const ConvShape& s) { return winograd_workspace<4, 2>(s); }

// Few pixels do not repay reading the larger weights. Per pair of channels, in direct operations: what the arithmetic
// costs, or what the weights cost to read if that is more. The same estimate is in compiler/winograd.py.
template <int Out, int Stride>
constexpr bool winograd_pays(const ConvShape& s) {
  constexpr i64 byte = 5;  // direct operations in the time that a byte takes from memory
  const i64 tiles = s.batch * winograd_tiles<Out>(s.out_height, s.dilation_h) * winograd_tiles<Out>(s.out_width, s.dilation_w);
  const i64 direct = max(18 * s.batch * s.out_height * s.out_width, byte * 9 * 4);
  constexpr i64 tile = Stride == 2 ? 190 : Out == 4 ? 104 : 40, fixed = Stride == 2 ? 250 : 0, filters = Winograd<Out, Stride>::filters;
  return max(tile * tiles + fixed, byte * filters * filters * 4) < direct;
}

// The same with the weights in both forms: whichever suits the image. Only the form that is used is read from the file.
template <int Out, int Stride, class TB, class Ep>
void conv2d_by_size(const Pool& pool, const ConvShape& s, const float* x, const float* transformed, const TB* direct,
                    float* y, void* workspace, Ep ep) {
  if (winograd_pays<Out, Stride>(s)) {
    conv2d_winograd<Out, Stride>(pool, s, x, transformed, y, workspace, ep);
  } else {
    ConvShape plain = s;
    plain.blocking = {};  // it was tuned for the other way
    conv2d(pool, plain, x, direct, y, workspace, ep);
  }
}
template <int Out, int Stride>
constexpr i64 conv2d_by_size_workspace(const ConvShape& s) {
  return winograd_pays<Out, Stride>(s) ? winograd_workspace<Out, Stride>(s) : conv2d_workspace(s);
}

// G g G^T of one 3x3 filter, row major filters x filters: what pack_winograd computes, for tests and for weights known only at run
// time.
template <int Out, int Stride = 1>
void winograd_filter(const float (&g)[9], float* u) {
  using Wino = Winograd<Out, Stride>;
  constexpr int n = Wino::filters, finite = Stride == 2 ? n - 2 : n - 1;
  double G[n][3] = {}, half[n][3];
  const double points4[] = {0, 0.625, -0.625, 1.5, -1.5}, points2[] = {0, 1, -1}, points42[] = {0.5, -0.5, 1.125, -1.125};
  const double* p = Stride == 2 ? points42 : Out == 4 ? points4 : points2;
  for (int i = 0; i < finite; ++i) {
    double norm = 1, power = 1;
    for (int j = 0; j < finite; ++j) norm *= j == i ? 1 : p[i] - p[j];
    for (int k = 0; k < 3; k += Stride, power *= p[i]) G[i][k] = power / norm;
  }
  G[finite][2] = 1;
  if (Stride == 2) G[n - 1][1] = 1;
  for (int i = 0; i < n; ++i)
    for (int k = 0; k < 3; ++k) half[i][k] = G[i][0] * g[k] + G[i][1] * g[3 + k] + G[i][2] * g[6 + k];
  for (int i = 0; i < n; ++i)
    for (int j = 0; j < n; ++j)
      u[i * n + j] = static_cast<float>(half[i][0] * G[j][0] + half[i][1] * G[j][1] + half[i][2] * G[j][2]);
}

}  // namespace opsmith
