// Windows that slide over 1, 2 or 3 dims, in plain loops on (N, C, D, H, W): pooling with positions or of doubles (pool.hpp has the
// rest), and convolutions with weights that are only known at run time. (conv.hpp holds the fast form for constant weights.)
#pragma once

#include "elementwise.hpp"
#include "fold.hpp"
#include "sizes.hpp"

namespace opsmith {

struct Window {  // three spatial dims always; missing ones are in front and have size 1
  i64 batch, channels;
  i64 in[3], out[3], kernel[3], stride[3], pad[3], dilation[3];

  i64 pixels_in() const { return in[0] * in[1] * in[2]; }
  i64 pixels_out() const { return out[0] * out[1] * out[2]; }
  i64 taps() const { return kernel[0] * kernel[1] * kernel[2]; }

  // f(offset in the input plane, number of the tap) for every tap of output pixel `o` that lies inside the image
  template <class Fn>
  OPSMITH_INLINE void each(i64 o, Fn&& f) const {
    const i64 at[3] = {o / (out[1] * out[2]), o / out[2] % out[1], o % out[2]};
    i64 tap = 0;
    for (i64 a = 0; a < kernel[0]; ++a) {
      const i64 z = at[0] * stride[0] - pad[0] + a * dilation[0];
      for (i64 b = 0; b < kernel[1]; ++b) {
        const i64 y = at[1] * stride[1] - pad[1] + b * dilation[1];
        for (i64 c = 0; c < kernel[2]; ++c, ++tap) {
          const i64 x = at[2] * stride[2] - pad[2] + c * dilation[2];
          if (z >= 0 && z < in[0] && y >= 0 && y < in[1] && x >= 0 && x < in[2]) f((z * in[1] + y) * in[2] + x, tap);
        }
      }
    }
  }
  // Taps of output pixel `o` that lie inside the image or its padding, where `after` is the padding behind each dim.
  i64 padded_taps(i64 o, const i64* after) const {
    const i64 at[3] = {o / (out[1] * out[2]), o / out[2] % out[1], o % out[2]};
    i64 total = 1;
    for (int d = 0; d < 3; ++d) {
      i64 n = 0;
      for (i64 k = 0; k < kernel[d]; ++k) n += at[d] * stride[d] - pad[d] + k * dilation[d] < in[d] + after[d];
      total *= n;
    }
    return total;
  }
};

template <class Fn>
void each_plane(const Pool& pool, i64 planes, i64 work, Fn&& f) {
  pool.parallel_ranges(planes, max<i64>(1, 8192 / max<i64>(1, work)), [&](i64 begin, i64 end) {
    for (i64 p = begin; p < end; ++p) f(p);
  });
}

// The largest element of each window, and (if wanted) its index in the whole tensor, row-major or column-major inside a plane.
template <class T>
void max_pool(const Pool& pool, const Window& w, const T* x, T* y, i64* indices, bool column_major) {
  const i64 pixels_in = w.pixels_in(), pixels = w.pixels_out();
  each_plane(pool, w.batch * w.channels, pixels * w.taps(), [&](i64 p) {
    for (i64 o = 0; o < pixels; ++o) {
      i64 best = -1;
      const T* plane = x + p * pixels_in;
      w.each(o, [&](i64 at, i64) {
        if (best < 0 || from_storage(plane[at]) > from_storage(plane[best])) best = at;
      });
      if (best < 0) {  // the window lies in the padding
        if constexpr (IntegerStorage<T>)
          y[p * pixels + o] = lowest_of<T>;
        else
          y[p * pixels + o] = narrow_scalar<T>(-kDoubleInfinity);
      } else {
        y[p * pixels + o] = plane[best];
      }
      if (!indices) continue;
      best = max<i64>(best, 0);
      const i64 z = best / (w.in[1] * w.in[2]), r = best / w.in[2] % w.in[1], c = best % w.in[2];
      const i64 inside = column_major ? (c * w.in[1] + r) * w.in[0] + z : best;
      indices[p * pixels + o] = p * pixels_in + inside;
    }
  });
}

// `padding` counts as zeros if `include`; `after` is the padding behind each dim.
template <class T>
void average_pool(const Pool& pool, const Window& w, const T* x, T* y, const Sizes& after, bool include) {
  const i64 pixels_in = w.pixels_in(), pixels = w.pixels_out();
  each_plane(pool, w.batch * w.channels, pixels * w.taps(), [&](i64 p) {
    for (i64 o = 0; o < pixels; ++o) {
      double sum = 0;
      i64 n = 0;
      w.each(o, [&](i64 at, i64) { sum += static_cast<double>(from_storage(x[p * pixels_in + at])), ++n; });
      if (include) n = w.padded_taps(o, after.at);
      y[p * pixels + o] = narrow_scalar<T>(n ? sum / static_cast<double>(n) : 0.0);
    }
  });
}

template <class T>
void lp_pool(const Pool& pool, const Window& w, const T* x, T* y, double power) {
  const i64 pixels_in = w.pixels_in(), pixels = w.pixels_out();
  each_plane(pool, w.batch * w.channels, pixels * w.taps(), [&](i64 p) {
    for (i64 o = 0; o < pixels; ++o) {
      double sum = 0;
      w.each(o, [&](i64 at, i64) { sum += __builtin_pow(__builtin_fabs(static_cast<double>(from_storage(x[p * pixels_in + at]))), power); });
      y[p * pixels + o] = narrow_scalar<T>(__builtin_pow(sum, 1 / power));
    }
  });
}

// y[n, o] = sum over c, taps of x[n, c] * w[o, c, tap] (+ bias[o]). Zero points make it an integer convolution: `w` has one
// zero point, or one per output channel. Acc is double for floats and int32 for integers.
template <class TX, class TW, class TY>
void conv_plain(const Pool& pool, const Window& w, i64 outputs, i64 groups, const TX* x, const TW* weights, const TY* bias, TY* y,
                i64 x_zero, const TW* w_zero, i64 w_zeros) {
  const i64 pixels_in = w.pixels_in(), pixels = w.pixels_out(), taps = w.taps();
  const i64 c_group = w.channels / groups, o_group = outputs / groups;
  each_plane(pool, w.batch * outputs, pixels * taps * c_group, [&](i64 p) {
    const i64 n = p / outputs, o = p % outputs, first = o / o_group * c_group;
    const auto zero = w_zeros ? widen_scalar(w_zero[w_zeros == 1 ? 0 : o]) : Wide<TW>(0);
    for (i64 at_out = 0; at_out < pixels; ++at_out) {
      Wide<TY> sum = bias ? widen_scalar(bias[o]) : Wide<TY>(0);
      for (i64 c = 0; c < c_group; ++c) {
        const TX* plane = x + (n * w.channels + first + c) * pixels_in;
        const TW* taps_at = weights + (o * c_group + c) * taps;
        w.each(at_out, [&](i64 at, i64 tap) {
          sum += static_cast<Wide<TY>>(widen_scalar(plane[at]) - static_cast<Wide<TX>>(x_zero)) *
                 static_cast<Wide<TY>>(widen_scalar(taps_at[tap]) - zero);
        });
      }
      y[p * pixels + at_out] = narrow_scalar<TY>(sum);
    }
  });
}

// The transpose of a convolution: `w` describes the forward convolution from y to x, so w.in are the sizes of y and w.out those of x.
// x (N, C, out), weights (C, O / groups, taps) -> y (N, O, in)
template <class T>
void conv_transposed_plain(const Pool& pool, const Window& w, i64 outputs, i64 groups, const T* x, const T* weights, const T* bias, T* y,
                           void* workspace) {
  const i64 pixels_y = w.pixels_in(), pixels_x = w.pixels_out(), taps = w.taps();
  const i64 c_group = w.channels / groups, o_group = outputs / groups;
  double* sums = static_cast<double*>(workspace);  // one plane per (n, o)
  each_plane(pool, w.batch * outputs, pixels_x * taps * c_group, [&](i64 p) {
    const i64 n = p / outputs, o = p % outputs, group = o / o_group;
    double* to = sums + p * pixels_y;
    const double start = bias ? static_cast<double>(from_storage(bias[o])) : 0.0;
    for (i64 i = 0; i < pixels_y; ++i) to[i] = start;
    for (i64 c = group * c_group; c < (group + 1) * c_group; ++c) {
      const T* taps_at = weights + (c * o_group + o % o_group) * taps;
      for (i64 i = 0; i < pixels_x; ++i) {
        const double v = static_cast<double>(from_storage(x[(n * w.channels + c) * pixels_x + i]));
        w.each(i, [&](i64 at, i64 tap) { to[at] += v * static_cast<double>(from_storage(taps_at[tap])); });
      }
    }
    for (i64 i = 0; i < pixels_y; ++i) y[p * pixels_y + i] = narrow_scalar<T>(to[i]);
  });
}

// Local response normalization: a window over `size` neighbouring channels. x and y (N, C, inner).
template <class T>
void lrn(const Pool& pool, i64 batch, i64 channels, i64 inner, i64 size, double alpha, double beta, double bias, const T* x, T* y) {
  each_plane(pool, batch * channels, inner * size, [&](i64 p) {
    const i64 c = p % channels, first = max<i64>(0, c - (size - 1) / 2), last = min<i64>(channels - 1, c + size / 2);
    for (i64 i = 0; i < inner; ++i) {
      double sum = 0;
      for (i64 k = first; k <= last; ++k) {
        const double v = static_cast<double>(from_storage(x[(p - c + k) * inner + i]));
        sum += v * v;
      }
      const double v = static_cast<double>(from_storage(x[p * inner + i]));
      y[p * inner + i] = narrow_scalar<T>(v / __builtin_pow(bias + alpha / static_cast<double>(size) * sum, beta));
    }
  });
}

// Columns (N, C * taps, out) added back into images (N, C, in): the transpose of im2col.
template <class T>
void col2im(const Pool& pool, const Window& w, const T* columns, T* y) {
  const i64 pixels_y = w.pixels_in(), pixels = w.pixels_out(), taps = w.taps();
  each_plane(pool, w.batch * w.channels, pixels * taps, [&](i64 p) {
    T* to = y + p * pixels_y;
    for (i64 i = 0; i < pixels_y; ++i) to[i] = T{};
    for (i64 i = 0; i < pixels; ++i)
      w.each(i, [&](i64 at, i64 tap) {
        to[at] = narrow_scalar<T>(widen_scalar(to[at]) + widen_scalar(columns[(p * taps + tap) * pixels + i]));
      });
  });
}

}  // namespace opsmith
