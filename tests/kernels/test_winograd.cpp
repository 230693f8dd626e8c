// Winograd convolution against the direct reference: the same filters, packed for one and transformed for the other.
#include "winograd.hpp"

#include "conv_cases.hpp"

using namespace opsmith;
using namespace opsmith::test;

// conv2d weights [tap][c][o] -> frequencies [panel][point][c][o], both in panels of gemm_nr columns.
template <int Out>
static void transform(const ConvShape& s, const float* packed, float* transformed) {
  constexpr int points = Winograd<Out>::n * Winograd<Out>::n;
  const i64 C = s.channels, N = s.out_channels;
  for (i64 panel = 0; panel < panel_count(N); ++panel) {
    const i64 width = panel_vectors(N, panel) * W, column = panel * gemm_nr;
    for (i64 c = 0; c < C; ++c) {
      for (i64 o = 0; o < width; ++o) {
        float g[9], u[points];
        for (int tap = 0; tap < 9; ++tap) g[tap] = packed[column * 9 * C + (tap * C + c) * width + o];
        winograd_filter<Out>(g, u);
        for (int i = 0; i < points; ++i) transformed[column * points * C + (i * C + c) * width + o] = u[i];
      }
    }
  }
}

template <int Out>
static void check(const Pool& pool, Random& random, const ConvShape& s, double tolerance = 1e-5) {
  constexpr int points = Winograd<Out>::n * Winograd<Out>::n;
  double error = check_conv(
      Out == 4 ? "winograd4" : "winograd2", pool, random, s, packed_size(s.out_channels, 9 * s.channels),
      winograd_workspace<Out>(s), tolerance,
      [](const Pool& pool, const ConvShape& s, const float* x, const float* packed, float* y, void* workspace, auto ep) {
        Array<float> transformed(points * packed_size(s.out_channels, s.channels));
        transform<Out>(s, packed, transformed.data);
        if constexpr (Out == 4)
          conv2d_winograd4(pool, s, x, transformed.data, y, workspace, ep);
        else
          conv2d_winograd2(pool, s, x, transformed.data, y, workspace, ep);
      },
      [](auto&&... x) { conv2d_reference(x...); });
  if (s.channels > 100) printf("F(%d) at %d channels: error %.2g\n", Out, int(s.channels), error);
}

int main() {
  Random random;
  Threads threads(3);
  Pool one = serial(), three = threads.pool();
  auto both = [&](const Pool& pool, const ConvShape& s) { check<4>(pool, random, s), check<2>(pool, random, s); };
  for (i64 height : {1, 3, 4, 7, 9})
    for (i64 width : {2, 5, 8})
      for (i64 pad : {0, 1, 2}) {
        if (height + 2 * pad < 3 || width + 2 * pad < 3) continue;
        both(one, conv_shape(1, height, width, 3, 5, 3, 1, pad));
        both(three, conv_shape(2, height, width, 18, 50, 3, 1, pad));
      }
  both(three, conv_shape(1, 40, 37, 20, 20, 3, 1, 1));          // several blocks of tiles
  both(three, conv_shape(2, 5, 6, 9, 17, 3, 1, 1, 1, 1, 2));    // nearest upsampling folded in
  both(three, conv_shape(1, 24, 24, 300, 33, 3, 1, 1));
  both(one, conv_shape(1, 60, 60, 520, 3, 3, 1, 1));            // several chunks of V
  both(one, conv_shape(0, 5, 5, 4, 4, 3, 1, 1));
  both(one, conv_shape(1, 5, 5, 0, 4, 3, 1, 1));
  both(one, conv_shape(1, 5, 5, 4, 0, 3, 1, 1));
  return finish();
}
