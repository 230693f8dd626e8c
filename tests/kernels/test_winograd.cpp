// Winograd convolution against the direct reference: the same filters, packed for one and transformed for the other.
#include "winograd.hpp"

#include "conv_cases.hpp"

using namespace opsmith;
using namespace opsmith::test;

// conv2d weights [tap][c][o] -> frequencies [panel][point][c][o], both in panels of gemm_nr columns.
template <int Out, int Stride = 1>
static void transform(const ConvShape& s, const float* packed, float* transformed) {
  constexpr int points = Winograd<Out, Stride>::filters * Winograd<Out, Stride>::filters;
  const i64 C = s.channels, N = s.out_channels;
  for (i64 panel = 0; panel < panel_count(N); ++panel) {
    const i64 width = panel_vectors(N, panel) * W, column = panel * gemm_nr;
    for (i64 c = 0; c < C; ++c) {
      for (i64 o = 0; o < width; ++o) {
        float g[9], u[points];
        for (int tap = 0; tap < 9; ++tap) g[tap] = packed[column * 9 * C + (tap * C + c) * width + o];
        winograd_filter<Out, Stride>(g, u);
        for (int i = 0; i < points; ++i) transformed[column * points * C + (i * C + c) * width + o] = u[i];
      }
    }
  }
}

template <int Out, int Stride = 1>
static void check(const Pool& pool, Random& random, const ConvShape& s, double tolerance = 1e-5) {
  constexpr int points = Winograd<Out, Stride>::filters * Winograd<Out, Stride>::filters;
  double error = check_conv(
      Stride == 2 ? "winograd4 stride 2" : Out == 4 ? "winograd4" : "winograd2", pool, random, s, packed_size(s.out_channels, 9 * s.channels),
      winograd_workspace<Out, Stride>(s), tolerance,
      [](const Pool& pool, const ConvShape& s, const float* x, const float* packed, float* y, void* workspace, auto ep) {
        Array<float> transformed(points * packed_size(s.out_channels, s.channels));
        transform<Out, Stride>(s, packed, transformed.data);
        if constexpr (Stride == 2)
          conv2d_winograd4_stride2(pool, s, x, transformed.data, y, workspace, ep);
        else if constexpr (Out == 4)
          conv2d_winograd4(pool, s, x, transformed.data, y, workspace, ep);
        else
          conv2d_winograd2(pool, s, x, transformed.data, y, workspace, ep);
      },
      [](auto&&... x) { conv2d_reference(x...); });
  if (s.channels > 100) printf("F(%d) stride %d at %d channels: error %.2g\n", Out, Stride, int(s.channels), error);
}

// Large pixels in one corner of an image: results that do not read them are as good as without them.
template <int Out, int Stride = 1>
static void check_extreme(const Pool& pool, Random& random, float value, i64 height, i64 width) {
  constexpr int points = Winograd<Out, Stride>::filters * Winograd<Out, Stride>::filters;
  const ConvShape s = conv_shape(1, 24, 24, 21, 18, 3, Stride, 1);
  Array<float> x(s.height * s.width * s.channels, random), packed(packed_size(s.out_channels, 9 * s.channels), random);
  for (i64 i = 0; i < height; ++i)
    for (i64 j = 0; j < width; ++j) x.data[((5 + i) * s.width + 6 + j) * s.channels + 3] = value;
  Array<float> transformed(points * packed_size(s.out_channels, s.channels)), got(s.pixels() * s.out_channels), want(got);
  Array<char> workspace(max(winograd_workspace<Out, Stride>(s), conv2d_workspace(s)));
  transform<Out, Stride>(s, packed.data, transformed.data);
  auto ep = [](F sum, Row, i64, auto) { return sum; };
  conv2d_winograd<Out, Stride>(pool, s, x.data, transformed.data, got.data, static_cast<void*>(workspace.data), ep);
  conv2d_reference(pool, s, x.data, packed.data, want.data, static_cast<void*>(workspace.data), ep);
  Array<float> sizes(got);  // what is summed at most: rounding is in proportion to it, and to the filter's largest weight
  for (i64 i = 0; i < x.size; ++i) x.data[i] = fabsf(x.data[i]);
  for (i64 i = 0; i < packed.size; ++i) packed.data[i] = 1;
  conv2d_reference(pool, s, x.data, packed.data, sizes.data, static_cast<void*>(workspace.data), ep);
  char what[80];
  snprintf(what, sizeof what, "winograd%d stride %d, %dx%d pixels of %g", Out, Stride, int(height), int(width), static_cast<double>(value));
  for (i64 i = 0; i < got.size; ++i) {
    const double room = isfinite(sizes.data[i]) ? 5e-3 + 1e-6 * static_cast<double>(sizes.data[i]) : 0;  // 5e-3 of about 5
    expect_close(what, got.data + i, want.data + i, 1, 0, room);
  }
}

// F(Out) in bf16 against the direct reference in float. Returns the error.
template <int Out, int Stride = 1>
static void check_bf16(const Pool& pool, Random& random, const ConvShape& s, double tolerance) {
  constexpr int points = Winograd<Out, Stride>::filters * Winograd<Out, Stride>::filters;
  double error = check_conv<float, bf16>(
      Out == 4 ? "winograd4 bf16" : "winograd2 bf16", pool, random, s, packed_size(s.out_channels, 9 * s.channels),
      winograd_workspace<Out, Stride, bf16>(s), tolerance,
      [](const Pool& pool, const ConvShape& s, const bf16* x, const float* packed, float* y, void* workspace, auto ep) {
        const i64 N = s.out_channels, C = s.channels;
        Array<float> plain(points * packed_size(N, C));
        transform<Out, Stride>(s, packed, plain.data);
        Array<bf16x2> pairs(points * packed_size<bf16x2>(N, C));
        for (i64 panel = 0; panel < panel_count(N); ++panel) {
          const i64 width = panel_vectors(N, panel) * W, column = panel * gemm_nr;
          for (i64 row = 0; row < points * steps<bf16x2>(C); ++row)
            for (i64 o = 0; o < width; ++o) {
              const i64 point = row / steps<bf16x2>(C), c = row % steps<bf16x2>(C) * 2;
              const float* at = plain.data + column * points * C + (point * C + c) * width + o;
              const F second = c + 1 < C ? splat(at[width]) : F{};
              pairs.data[column * points * steps<bf16x2>(C) + row * width + o] = {static_cast<uint32_t>(narrow_pairs(splat(*at), second)[0])};
            }
        }
        conv2d_winograd<Out, Stride>(pool, s, x, static_cast<const bf16x2*>(pairs.data), y, workspace, ep);
      },
      [](auto&&... x) { conv2d_reference(x...); });
  if (s.channels > 100) printf("F(%d) in bf16 at %d channels: error %.2g\n", Out, int(s.channels), error);
}

int main() {
  Random random;
  Threads threads(3);
  Pool one = serial(), three = threads.pool();
  auto both = [&](const Pool& pool, const ConvShape& s) { check<4>(pool, random, s), check<2>(pool, random, s); };
  auto apart = [&](const Pool& pool, const ConvShape& s) { check<4, 2>(pool, random, s); };
  for (i64 height : {1, 3, 4, 7, 9})
    for (i64 width : {2, 5, 8})
      for (i64 pad : {0, 1, 2}) {
        if (height + 2 * pad < 3 || width + 2 * pad < 3) continue;
        both(one, conv_shape(1, height, width, 3, 5, 3, 1, pad));
        both(three, conv_shape(2, height, width, 18, 50, 3, 1, pad));
        apart(one, conv_shape(1, height, width, 3, 5, 3, 2, pad));
        apart(three, conv_shape(2, 2 * height + 1, 2 * width, 18, 50, 3, 2, pad));
      }
  both(three, conv_shape(1, 40, 37, 20, 20, 3, 1, 1));          // several blocks of tiles
  for (i64 size : {1, 3, 8, 19})
    for (i64 channels : {3, 18, 33, 64}) check_bf16<2>(three, random, conv_shape(2, size, size + 3, channels, 50, 3, 1, 1), 2e-2);
  check_bf16<2>(three, random, conv_shape(1, 24, 24, 320, 33, 3, 1, 1), 1e-2);
  check_bf16<2>(three, random, conv_shape(2, 5, 6, 33, 17, 3, 1, 1, 1, 1, 2), 2e-2);
  both(three, conv_shape(2, 5, 6, 9, 17, 3, 1, 1, 1, 1, 2));    // nearest upsampling folded in
  both(three, conv_shape(1, 24, 24, 300, 33, 3, 1, 1));
  both(one, conv_shape(1, 60, 60, 520, 3, 3, 1, 1));            // several chunks of V
  both(one, conv_shape(0, 5, 5, 4, 4, 3, 1, 1));
  both(one, conv_shape(1, 5, 5, 0, 4, 3, 1, 1));
  both(one, conv_shape(1, 5, 5, 4, 0, 3, 1, 1));
  for (i64 size : {1, 5, 6, 13, 30})
    for (i64 dilation : {2, 3, 7}) {
      both(three, conv_shape(2, size, size + 3, 18, 20, 3, 1, dilation, dilation));
      ConvShape uneven = conv_shape(1, size + 2, size, 17, 33, 3, 1, 1);
      uneven.dilation_h = dilation, uneven.pad_top = dilation;  // lines only
      both(one, uneven);
    }
  check_bf16<2>(three, random, conv_shape(1, 13, 14, 33, 17, 3, 1, 2, 2), 2e-2);
  apart(three, conv_shape(1, 77, 80, 20, 20, 3, 2, 1));
  apart(three, conv_shape(1, 48, 48, 300, 33, 3, 2, 1));
  apart(one, conv_shape(1, 120, 120, 520, 3, 3, 2, 1));
  apart(three, conv_shape(2, 5, 6, 32, 17, 3, 2, 1, 1, 1, 2));
  apart(one, conv_shape(0, 5, 5, 4, 4, 3, 2, 1));
  apart(one, conv_shape(1, 5, 5, 0, 4, 3, 2, 1));
  for (float value : {300.0f, 3e3f, 1e4f, -1e6f, 1e30f, INFINITY, NAN})
    for (i64 height : {1, 3, 9})
      for (i64 width : {1, 4, 9})
        check_extreme<4>(three, random, value, height, width), check_extreme<2>(one, random, value, height, width),
            check_extreme<4, 2>(three, random, value, height, width);
  return finish();
}
