// Normalisations: layer norm and RMS norm over rows (with or without a residual added first), group norm in NHWC and
// NCHW (instance norm is one channel per group), and inference batch norm.
//
// Inputs, weights and outputs may each be float, f16 or bf16; the arithmetic is float, statistics of whole images double.
// Every kernel ends in an epilogue, ep(F value, Row row, i64 col, lanes) -> F, whose result is stored: an activation, a
// second operand, or `keep` for the value itself.
//
//   x (rows, cols) -> y (rows, cols)        layer norm: row = row, col = column
//   x (batch, pixels, channels)             NHWC:       row = pixel of an image, outer = image, col = channel
//   x (batch, channels, pixels)             NCHW:       row = channel plane of an image, outer = image, col = pixel
#pragma once

#include "math.hpp"
#include "types.hpp"

namespace opsmith {

struct Keep {
  template <class Lanes>
  OPSMITH_INLINE F operator()(F value, Row, i64, Lanes) const {
    return value;
  }
};
inline constexpr Keep keep{};

// ---- rows: layer norm, RMS norm --------------------------------------------------------------------------------------

namespace detail {

inline constexpr i64 kNormGrain = 16384;  // elements that are worth a thread: about 10 us

// The sum over [0, n) of f(index, lanes); lanes that a tail does not have must give 0.
template <class Fn>
OPSMITH_INLINE float sum_over(i64 n, Fn&& f) {
  F s0{}, s1{}, s2{}, s3{};
  i64 i = 0;
  for (; i + 4 * W <= n; i += 4 * W) {
    s0 += f(i, Full{});
    s1 += f(i + W, Full{});
    s2 += f(i + 2 * W, Full{});
    s3 += f(i + 3 * W, Full{});
  }
  for (; i + W <= n; i += W) s0 += f(i, Full{});
  if (i < n) s1 += f(i, Tail{n - i});
  return lane_sum((s0 + s1) + (s2 + s3));
}

OPSMITH_INLINE F only(F v, Full) { return v; }
OPSMITH_INLINE F only(F v, Tail t) {  // zero the lanes beyond the tail
  float buffer[W];
  store(buffer, v, Full{});
  return load(static_cast<const float*>(buffer), t);
}

// Where a row's values come from: one tensor, or the sum of two.
template <class T>
struct OneRow {
  const T* x;
  i64 stride;
  template <class Lanes>
  OPSMITH_INLINE F operator()(i64 c, Lanes lanes) const {
    return load(x + c, lanes);
  }
  OPSMITH_INLINE void fetch_next(i64 c) const { __builtin_prefetch(x + stride + c); }
};
template <class T, class U>
struct SumOfRows {
  OneRow<T> a;
  OneRow<U> b;
  template <class Lanes>
  OPSMITH_INLINE F operator()(i64 c, Lanes lanes) const {
    return a(c, lanes) + b(c, lanes);
  }
  OPSMITH_INLINE void fetch_next(i64 c) const {
    a.fetch_next(c);
    b.fetch_next(c);
  }
};

// source(col, lanes) -> F is read three times from cache: mean, then squares about the mean (no cancellation), then the
// result. RMS norm has no mean.
template <bool Rms, class Source, class TS, class TY, class Ep>
OPSMITH_INLINE void normalize_row(i64 cols, const Source& source, const TS* scale, const TS* bias, float eps, TY* y, Row row,
                                  Ep&& ep) {
  const float count = static_cast<float>(cols);
  float mean = 0;
  if constexpr (!Rms) mean = sum_over(cols, [&](i64 c, auto lanes) { return source(c, lanes); }) / count;
  const float squares = sum_over(cols, [&](i64 c, auto lanes) {
    source.fetch_next(c);  // memory works on the next row and on the output's lines while this row is summed from cache
    if (cols > 2048) __builtin_prefetch(y + c, 1);
    const F d = only(source(c, lanes) - mean, lanes);
    return d * d;
  });
  const float factor = 1.0f / sqrt(squares / count + eps);
  for_lanes(cols, [&](i64 c, auto lanes) {
    F v = (source(c, lanes) - mean) * factor * load(scale + c, lanes);
    if (bias) v += load(bias + c, lanes);
    store(y + c, ep(v, row, c, lanes), lanes);
  });
}

template <bool Rms, class TX, class TSkip, class TS, class TSum, class TY, class Ep>
inline void norm_rows(const Pool& pool, i64 rows, i64 cols, const TX* x, i64 x_stride, const TSkip* skip,
                      i64 skip_stride, const TS* scale, const TS* bias, float eps, TY* y, i64 y_stride, TSum* sum,
                      i64 sum_stride, Ep&& ep, i64 rows_per_outer) {
  pool.parallel_ranges(rows, kNormGrain / max<i64>(cols, 1), [&](i64 begin, i64 end) {
    for (i64 r = begin; r < end; ++r) {
      const Row row{r, rows_per_outer > 0 ? r / rows_per_outer : 0};
      const OneRow<TX> in{x + r * x_stride, x_stride};
      TY* out = y + r * y_stride;
      if (!skip) {
        normalize_row<Rms>(cols, in, scale, bias, eps, out, row, ep);
        continue;
      }
      const SumOfRows<TX, TSkip> added{in, {skip + r * skip_stride, skip_stride}};
      if (!sum) {
        normalize_row<Rms>(cols, added, scale, bias, eps, out, row, ep);
        continue;
      }
      TSum* kept = sum + r * sum_stride;  // may be x or skip itself, so the sum is taken once and read back
      for_lanes(cols, [&](i64 c, auto lanes) {
        added.fetch_next(c);
        store(kept + c, added(c, lanes), lanes);
      });
      normalize_row<Rms>(cols, OneRow<TSum>{kept, 0}, scale, bias, eps, out, row, ep);
    }
  });
}

}  // namespace detail

// y = ep((x - mean) / sqrt(variance + eps) * scale + bias), over the cols of each row; bias may be null. row.outer is
// row / rows_per_outer (0: always 0).
template <class TX, class TS, class TY, class Ep = Keep>
void layer_norm(const Pool& pool, i64 rows, i64 cols, const TX* x, i64 x_stride, const TS* scale, const TS* bias,
                float eps, TY* y, i64 y_stride, Ep ep = {}, i64 rows_per_outer = 0) {
  detail::norm_rows<false>(pool, rows, cols, x, x_stride, static_cast<const TX*>(nullptr), 0, scale, bias, eps, y,
                           y_stride, static_cast<TX*>(nullptr), 0, ep, rows_per_outer);
}

// y = ep(x / sqrt(mean of x^2 + eps) * scale)
template <class TX, class TS, class TY, class Ep = Keep>
void rms_norm(const Pool& pool, i64 rows, i64 cols, const TX* x, i64 x_stride, const TS* scale, float eps, TY* y,
              i64 y_stride, Ep ep = {}, i64 rows_per_outer = 0) {
  detail::norm_rows<true>(pool, rows, cols, x, x_stride, static_cast<const TX*>(nullptr), 0, scale,
                          static_cast<const TS*>(nullptr), eps, y, y_stride, static_cast<TX*>(nullptr), 0, ep,
                          rows_per_outer);
}

// The same of x + skip; the sum itself goes to sum_out unless that is null (it may be x or skip).
template <class TX, class TSkip, class TS, class TSum, class TY, class Ep = Keep>
void skip_layer_norm(const Pool& pool, i64 rows, i64 cols, const TX* x, i64 x_stride, const TSkip* skip,
                     i64 skip_stride, const TS* scale, const TS* bias, float eps, TY* y, i64 y_stride, TSum* sum_out,
                     i64 sum_stride, Ep ep = {}, i64 rows_per_outer = 0) {
  detail::norm_rows<false>(pool, rows, cols, x, x_stride, skip, skip_stride, scale, bias, eps, y, y_stride, sum_out,
                           sum_stride, ep, rows_per_outer);
}
template <class TX, class TSkip, class TS, class TSum, class TY, class Ep = Keep>
void skip_rms_norm(const Pool& pool, i64 rows, i64 cols, const TX* x, i64 x_stride, const TSkip* skip, i64 skip_stride,
                   const TS* scale, float eps, TY* y, i64 y_stride, TSum* sum_out, i64 sum_stride, Ep ep = {},
                   i64 rows_per_outer = 0) {
  detail::norm_rows<true>(pool, rows, cols, x, x_stride, skip, skip_stride, scale, static_cast<const TS*>(nullptr), eps,
                          y, y_stride, sum_out, sum_stride, ep, rows_per_outer);
}

// ---- images: group norm ----------------------------------------------------------------------------------------------
//
// One read for the statistics, one read and one write for the result. The statistics are sums of (x - k) and (x - k)^2,
// where k is a first guess of the group's mean from a few samples: float within a block of pixels, double across blocks,
// in a fixed order, so the result does not depend on the number of threads. Should k turn out to be more than 16 standard
// deviations off, so that the difference of the two sums loses bits, the sums are taken again with the mean as k.

namespace detail {

inline constexpr i64 kGroupBlocks = 64;  // blocks of an image in the first pass, at most

struct GroupSums {
  double sum, squares;
};

// Everything a group norm keeps between its passes, laid out in the caller's workspace.
struct GroupWorkspace {
  GroupSums* partial;  // [batch, blocks, groups]
  float* shift;        // [batch, groups]
  float* factor;       // [batch, channels]: y = x * factor + offset
  float* offset;       // [batch, channels]

  static constexpr i64 bytes(i64 batch, i64 channels, i64 groups) {
    return batch * (kGroupBlocks * groups * i64(sizeof(GroupSums)) + (groups + 2 * channels) * i64(sizeof(float)));
  }
  GroupWorkspace(void* memory, i64 batch, i64 channels, i64 groups) {
    partial = static_cast<GroupSums*>(memory);
    shift = reinterpret_cast<float*>(partial + batch * kGroupBlocks * groups);
    factor = shift + batch * groups;
    offset = factor + batch * channels;
  }
};

// From the sums of all blocks to factor and offset. Returns whether a shift was too far off and has been replaced.
template <class TS>
inline bool finish_group_statistics(const GroupWorkspace& ws, i64 batch, i64 blocks, i64 channels, i64 groups,
                                    i64 pixels, const TS* scale, const TS* bias, float eps, bool last) {
  const i64 width = channels / groups;
  const double count = static_cast<double>(width * pixels);
  bool again = false;
  for (i64 b = 0; b < batch; ++b)
    for (i64 g = 0; g < groups; ++g) {
      GroupSums total{0, 0};
      for (i64 k = 0; k < blocks; ++k) {
        const GroupSums& p = ws.partial[(b * kGroupBlocks + k) * groups + g];
        total.sum += p.sum;
        total.squares += p.squares;
      }
      float& shift = ws.shift[b * groups + g];
      const double offset = total.sum / count;
      const double variance = total.squares / count - offset * offset;
      const double mean = static_cast<double>(shift) + offset;
      if (!last && offset * offset > 256 * variance) {
        shift = static_cast<float>(mean);
        again = true;
      }
      const double r = 1 / ::sqrt((variance > 0 ? variance : variance == variance ? 0.0 : variance) + double(eps));
      for (i64 c = g * width; c < (g + 1) * width; ++c) {
        const double a = r * static_cast<double>(to_float(scale[c]));
        ws.factor[b * channels + c] = static_cast<float>(a);
        ws.offset[b * channels + c] = static_cast<float>(static_cast<double>(to_float(bias[c])) - mean * a);
      }
    }
  return again;
}

// Sums over `pixels` rows of channels, one row every `stride`; at most 256 pixels go into a float sum. Pixels are taken in
// tiles that fit L1, a vector of channels down the whole tile, so that sums stay in registers; the next tile is on its
// way meanwhile.
template <class TX>
inline void group_sums_nhwc(const TX* x, i64 stride, i64 pixels, i64 channels, i64 groups, const float* shift,
                            GroupSums* out) {
  constexpr i64 chunk = 1024;  // channels at a time: four arrays of 4 KB, in L1
  alignas(64) float k[chunk], s[chunk], q[chunk];
  const i64 width = channels / groups;
  for (i64 g = 0; g < groups; ++g) out[g] = {0, 0};
  for (i64 c0 = 0; c0 < channels; c0 += chunk) {
    const i64 n = min(chunk, channels - c0), tile = min<i64>(64, max<i64>(8, 4096 / n));
    for (i64 c = 0, g = c0 / width, end = (g + 1) * width - c0; c < n; ++c) {  // k per channel, without a division each
      if (c == end) ++g, end += width;
      k[c] = shift[g];
    }
    for (i64 p0 = 0; p0 < pixels; p0 += 256) {
      const i64 p1 = min(pixels, p0 + 256);
      memset(s, 0, static_cast<size_t>(n) * sizeof(float));
      memset(q, 0, static_cast<size_t>(n) * sizeof(float));
      for (i64 p = p0; p < p1; p += tile) {
        const TX* rows = x + p * stride + c0;
        const i64 count = min(tile, p1 - p);
        for_lanes(n, [&](i64 c, auto lanes) {
          const F kc = load(k + c, lanes);
          F s0{}, s1{}, q0{}, q1{};
          i64 i = 0;
          for (; i + 2 <= count; i += 2) {
            __builtin_prefetch(rows + (tile + i) * stride + c);
            __builtin_prefetch(rows + (tile + i + 1) * stride + c);
            const F v0 = load(rows + i * stride + c, lanes) - kc, v1 = load(rows + (i + 1) * stride + c, lanes) - kc;
            s0 += v0;
            s1 += v1;
            q0 += v0 * v0;
            q1 += v1 * v1;
          }
          if (i < count) {
            const F v = load(rows + i * stride + c, lanes) - kc;
            s0 += v;
            q0 += v * v;
          }
          store(s + c, load(static_cast<const float*>(s) + c, lanes) + (s0 + s1), lanes);
          store(q + c, load(static_cast<const float*>(q) + c, lanes) + (q0 + q1), lanes);
        });
      }
      for (i64 c = 0, g = c0 / width; c < n; ++g) {
        GroupSums total{0, 0};
        for (const i64 end = min(n, (g + 1) * width - c0); c < end; ++c) {
          total.sum += static_cast<double>(s[c]);
          total.squares += static_cast<double>(q[c]);
        }
        out[g].sum += total.sum;
        out[g].squares += total.squares;
      }
    }
  }
}

// Sums over one contiguous run; at most 4096 elements go into a float sum, at most 512 into one lane of it.
template <class TX>
inline GroupSums group_sums_run(const TX* x, i64 n, float shift) {
  constexpr i64 most = min<i64>(4096, 1024 * W);
  GroupSums out{0, 0};
  for (i64 i0 = 0; i0 < n; i0 += most) {
    const TX* in = x + i0;
    F s0{}, s1{}, q0{}, q1{};
    const i64 count = min(most, n - i0);
    i64 i = 0;
    for (; i + 2 * W <= count; i += 2 * W) {
      const F a = load(in + i, Full{}) - shift, b = load(in + i + W, Full{}) - shift;
      s0 += a;
      s1 += b;
      q0 += a * a;
      q1 += b * b;
    }
    for (; i + W <= count; i += W) {
      const F a = load(in + i, Full{}) - shift;
      s0 += a;
      q0 += a * a;
    }
    if (i < count) {
      const Tail tail{count - i};
      const F a = only(load(in + i, tail) - shift, tail);
      s1 += a;
      q1 += a * a;
    }
    out.sum += static_cast<double>(lane_sum(s0 + s1));
    out.squares += static_cast<double>(lane_sum(q0 + q1));
  }
  return out;
}

}  // namespace detail

// Bytes of workspace for both group norms (8-byte aligned).
inline i64 group_norm_workspace(i64 batch, i64 channels, i64 groups) {
  return detail::GroupWorkspace::bytes(batch, channels, groups);
}

// x (batch, pixels, channels): pixels x_stride elements apart, images x_batch apart; y likewise.
template <class TX, class TS, class TY, class Ep = Keep>
void group_norm_nhwc(const Pool& pool, i64 batch, i64 pixels, i64 channels, i64 groups, const TX* x, i64 x_batch,
                     i64 x_stride, const TS* scale, const TS* bias, float eps, TY* y, i64 y_batch, i64 y_stride,
                     void* workspace, Ep ep = {}) {
  if (batch <= 0 || pixels <= 0 || channels <= 0) return;
  const detail::GroupWorkspace ws(workspace, batch, channels, groups);
  const i64 width = channels / groups;
  const i64 block = max<i64>(ceil_div(pixels, detail::kGroupBlocks), min<i64>(pixels, max<i64>(1, 16384 / channels)));
  const i64 blocks = ceil_div(pixels, block);
  for (i64 b = 0; b < batch; ++b)
    for (i64 g = 0; g < groups; ++g) {
      double k = 0;  // the mean of up to 8 pixels spread over the image
      const i64 samples = min<i64>(8, pixels);
      for (i64 i = 0; i < samples; ++i)
        for (i64 c = g * width; c < (g + 1) * width; ++c)
          k += static_cast<double>(to_float(x[b * x_batch + pixels * i / samples * x_stride + c]));
      ws.shift[b * groups + g] = static_cast<float>(k / static_cast<double>(samples * width));
    }
  for (int round = 0; round < 2; ++round) {
    pool.parallel_for(batch * blocks, [&](i64 i) {
      const i64 b = i / blocks, k = i % blocks, first = k * block;
      detail::group_sums_nhwc(x + b * x_batch + first * x_stride, x_stride, min(block, pixels - first), channels,
                              groups, ws.shift + b * groups,
                              ws.partial + (b * detail::kGroupBlocks + k) * groups);
    });
    if (!detail::finish_group_statistics(ws, batch, blocks, channels, groups, pixels, scale, bias, eps, round == 1))
      break;
  }
  pool.parallel_for(batch * blocks, [&](i64 i) {
    const i64 b = i / blocks, k = i % blocks;
    const float *factor = ws.factor + b * channels, *offset = ws.offset + b * channels;
    for (i64 p = k * block; p < min(pixels, (k + 1) * block); ++p) {
      const TX* in = x + b * x_batch + p * x_stride;
      TY* out = y + b * y_batch + p * y_stride;
      const Row row{b * pixels + p, b};
      for_lanes(channels, [&](i64 c, auto lanes) {
        const F v = mul_add(load(in + c, lanes), load(factor + c, lanes), load(offset + c, lanes));
        store(out + c, ep(v, row, c, lanes), lanes);
      });
    }
  });
}

// x, y (batch, channels, pixels), contiguous. A group is one contiguous run.
template <class TX, class TS, class TY, class Ep = Keep>
void group_norm_nchw(const Pool& pool, i64 batch, i64 pixels, i64 channels, i64 groups, const TX* x, const TS* scale,
                     const TS* bias, float eps, TY* y, void* workspace, Ep ep = {}) {
  if (batch <= 0 || pixels <= 0 || channels <= 0) return;
  const detail::GroupWorkspace ws(workspace, batch, channels, groups);
  const i64 run = channels / groups * pixels;
  const i64 block = max<i64>(ceil_div(run, detail::kGroupBlocks), min<i64>(run, 16384));
  const i64 blocks = ceil_div(run, block);
  for (i64 i = 0; i < batch * groups; ++i) {
    double k = 0;
    const i64 samples = min<i64>(8, run);
    for (i64 j = 0; j < samples; ++j) k += static_cast<double>(to_float(x[i * run + run * j / samples]));
    ws.shift[i] = static_cast<float>(k / static_cast<double>(samples));
  }
  const i64 grain = max<i64>(1, detail::kNormGrain / block);
  for (int round = 0; round < 2; ++round) {
    pool.parallel_ranges(batch * groups * blocks, grain, [&](i64 begin, i64 end) {
      for (i64 i = begin; i < end; ++i) {
        const i64 bg = i / blocks, k = i % blocks, first = k * block;
        ws.partial[(bg / groups * detail::kGroupBlocks + k) * groups + bg % groups] =
            detail::group_sums_run(x + bg * run + first, min(block, run - first), ws.shift[bg]);
      }
    });
    if (!detail::finish_group_statistics(ws, batch, blocks, channels, groups, pixels, scale, bias, eps, round == 1))
      break;
  }
  const i64 cuts = ceil_div(pixels, 16384), planes = batch * channels;
  pool.parallel_ranges(planes * cuts, max<i64>(1, detail::kNormGrain / min<i64>(pixels, 16384)), [&](i64 begin, i64 end) {
    for (i64 i = begin; i < end; ++i) {
      const i64 plane = i / cuts, first = i % cuts * 16384, count = min<i64>(16384, pixels - first);
      const Row row{plane, plane / channels};
      const F factor = all<F>(ws.factor[plane]), offset = all<F>(ws.offset[plane]);
      const TX* in = x + plane * pixels + first;
      TY* out = y + plane * pixels + first;
      for_lanes(count, [&](i64 p, auto lanes) {
        store(out + p, ep(mul_add(load(in + p, lanes), factor, offset), row, first + p, lanes), lanes);
      });
    }
  });
}

// x, y (batch, channels, pixels): each plane by itself. Workspace: group_norm_workspace(batch, channels, channels).
template <class TX, class TS, class TY, class Ep = Keep>
void instance_norm(const Pool& pool, i64 batch, i64 pixels, i64 channels, const TX* x, const TS* scale, const TS* bias,
                   float eps, TY* y, void* workspace, Ep ep = {}) {
  group_norm_nchw(pool, batch, pixels, channels, channels, x, scale, bias, eps, y, workspace, ep);
}

// ---- batch norm with given statistics --------------------------------------------------------------------------------

// x, y (batch, channels, pixels), contiguous.
template <class TX, class TS, class TY, class Ep = Keep>
void batch_norm_nchw(const Pool& pool, i64 batch, i64 pixels, i64 channels, const TX* x, const TS* scale, const TS* bias,
                     const TS* mean, const TS* variance, float eps, TY* y, Ep ep = {}) {
  pool.parallel_ranges(batch * channels, detail::kNormGrain / max<i64>(pixels, 1), [&](i64 begin, i64 end) {
    for (i64 plane = begin; plane < end; ++plane) {
      const i64 c = plane % channels;
      const float a = to_float(scale[c]) / sqrt(to_float(variance[c]) + eps), m = to_float(mean[c]);
      const F offset = all<F>(to_float(bias[c]));
      const Row row{plane, plane / channels};
      const TX* in = x + plane * pixels;
      TY* out = y + plane * pixels;
      for_lanes(pixels, [&](i64 p, auto lanes) {
        store(out + p, ep(mul_add(load(in + p, lanes) - m, a, offset), row, p, lanes), lanes);
      });
    }
  });
}

// x, y (rows, channels) with strides: NHWC, rows_per_outer pixels to an image.
template <class TX, class TS, class TY, class Ep = Keep>
void batch_norm_nhwc(const Pool& pool, i64 rows, i64 channels, const TX* x, i64 x_stride, const TS* scale,
                     const TS* bias, const TS* mean, const TS* variance, float eps, TY* y, i64 y_stride, Ep ep = {},
                     i64 rows_per_outer = 0) {
  constexpr i64 chunk = 1024;
  pool.parallel_ranges(rows, detail::kNormGrain / max<i64>(channels, 1), [&](i64 begin, i64 end) {
    alignas(64) float factor[chunk];
    for (i64 c0 = 0; c0 < channels; c0 += chunk) {
      const i64 n = min(chunk, channels - c0);
      for_lanes(n, [&](i64 c, auto lanes) {
        store(factor + c, load(scale + c0 + c, lanes) / sqrt(load(variance + c0 + c, lanes) + eps), lanes);
      });
      for (i64 r = begin; r < end; ++r) {
        const Row row{r, rows_per_outer > 0 ? r / rows_per_outer : 0};
        const TX* in = x + r * x_stride + c0;
        TY* out = y + r * y_stride + c0;
        for_lanes(n, [&](i64 c, auto lanes) {
          const F centered = load(in + c, lanes) - load(mean + c0 + c, lanes);
          const F v = mul_add(centered, load(static_cast<const float*>(factor) + c, lanes), load(bias + c0 + c, lanes));
          store(out + c, ep(v, row, c0 + c, lanes), lanes);
        });
      }
    }
  });
}

// ---- references: one set of elements at a time, in double ------------------------------------------------------------

// The elements x[index(i)], i < n, normalised about their mean (or, for RMS, about 0) and scaled per element.
template <class TX, class TY, class Index, class Weight>
void norm_reference(i64 n, const TX* x, TY* y, double eps, bool rms, Index index, Weight weight) {
  double mean = 0, squares = 0;
  if (!rms) {
    for (i64 i = 0; i < n; ++i) mean += static_cast<double>(to_float(x[index(i)]));
    mean /= static_cast<double>(n);
  }
  for (i64 i = 0; i < n; ++i) {
    const double d = static_cast<double>(to_float(x[index(i)])) - mean;
    squares += d * d;
  }
  const double r = 1 / ::sqrt(squares / static_cast<double>(n) + eps);
  for (i64 i = 0; i < n; ++i) {
    const auto [scale, bias] = weight(i);
    const double v = (static_cast<double>(to_float(x[index(i)])) - mean) * r * scale + bias;
    y[index(i)] = from_float<TY>(static_cast<float>(v));
  }
}

}  // namespace opsmith
