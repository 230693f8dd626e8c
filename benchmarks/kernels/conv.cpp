// Convolutions of the Stable Diffusion UNet and VAE: direct against Winograd, in GFLOP/s of direct-convolution work.
//   g++ -std=c++20 -O3 -march=native -pthread -Isrc/opsmith/kernels benchmarks/kernels/conv.cpp -o conv && ./conv 2
#include "bench.hpp"
#include "types.hpp"
#include "winograd.hpp"

using namespace opsmith;
using namespace opsmith::bench;

int main(int argc, char** argv) {
  Threads threads(thread_count(argc, argv));
  Pool pool = threads.pool();
  const double peak = peak_gflops() * pool.threads;
  printf("%d threads, W=%lld, peak %.0f GFLOP/s, of bf16 %.0f\n", pool.threads, static_cast<long long>(W), peak, peak_bf16_gflops() * pool.threads);
  printf("%-28s %9s %6s %9s %6s %9s %6s %9s %9s\n", "", "direct", "peak", "F(4x4)", "ratio", "F(2x2)", "ratio", "bf16", "F(2x2) bf16");
  const i64 shapes[][3] = {{64, 320, 320},  {64, 640, 320},   {64, 960, 320},   {32, 640, 640},  {32, 1280, 640},
                           {16, 1280, 1280}, {16, 2560, 1280}, {8, 1280, 1280}, {64, 512, 512}, {128, 512, 512},
                           {128, 256, 256},  {256, 128, 128}, {256, 128, 3},    {64, 64, 64},    {64, 4, 320},
                           {8, 320, 320},    {4, 640, 640},   {2, 1280, 1280},  {1, 1280, 1280}};
  for (auto [size, channels, out] : shapes) {
    ConvShape s{1, size, size, channels, size, size, out, 3, 3, 1, 1, 1, 1, 1, 1, 1};
    // Small images: walk through enough copies of the direct weights that none is still in a cache.
    const i64 weights = 9 * packed_size(out, channels), copies = size <= 8 ? max<i64>(1, 200'000'000 / (weights * 4)) : 1;
    Floats x(size * size * channels), w(max(copies, i64{4}) * weights), y(size * size * out), bias(out);
    const i64 transformed = max(conv2d_winograd4_workspace(s), max(conv2d_winograd2_workspace(s), conv2d_winograd2_bf16_workspace(s)));
    Floats space((transformed + conv2d_workspace(s)) / 4);
    auto ep = [b = bias.data](F sum, Row, i64 column, auto lanes) { return sum + load(b + column, lanes); };
    const double work = 2e-9 * 9 * static_cast<double>(size * size) * static_cast<double>(channels * out);
    double direct = work * static_cast<double>(copies) / best_time(pool.threads, [&] {
      for (i64 i = 0; i < copies; ++i) conv2d(pool, s, x.data, static_cast<const float*>(w.data) + i * weights, y.data, space.data, ep);
    });
    double four = work / best_time(pool.threads, [&] { conv2d_winograd4(pool, s, x.data, w.data, y.data, space.data, ep); });
    double two = work / best_time(pool.threads, [&] { conv2d_winograd2(pool, s, x.data, w.data, y.data, space.data, ep); });
    // Halves of floats, read as bf16, would be extreme pixels, which Winograd convolves directly.
    std::vector<bf16> narrow_x(static_cast<size_t>(size * size * channels)), narrow_w(static_cast<size_t>(4 * weights));
    for (size_t i = 0; i < narrow_x.size(); ++i) narrow_x[i] = from_float<bf16>(x.data[i]);
    for (size_t i = 0; i < narrow_w.size(); ++i) narrow_w[i] = from_float<bf16>(w.data[i]);
    const bf16 *narrow = narrow_x.data(), *pairs = narrow_w.data();
    double direct_bf16 = work / best_time(pool.threads, [&] { conv2d_bf16(pool, s, narrow, pairs, y.data, space.data, ep); });
    double two_bf16 = work / best_time(pool.threads, [&] { conv2d_winograd2_bf16(pool, s, narrow, pairs, y.data, space.data, ep); });
    const double gb = direct / work * static_cast<double>(weights) * 4e-9;
    printf("%4lldx%-4lld %4lld -> %-4lld        %9.1f %5.0f%% %9.1f %5.2fx %9.1f %5.2fx %9.1f %9.1f  %5.1f GB/s\n", static_cast<long long>(size),
           static_cast<long long>(size), static_cast<long long>(channels), static_cast<long long>(out), direct,
           100 * direct / peak, four, four / direct, two, two / direct, direct_bf16, two_bf16, gb);
  }
}
