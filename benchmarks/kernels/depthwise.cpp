// Depthwise convolutions of mobile networks, from and to fp32 and bf16, in GFLOP/s and GB/s of what is read and written once.
//   g++ -std=c++20 -O3 -march=native -pthread -Isrc/opsmith/kernels benchmarks/kernels/depthwise.cpp -o depthwise && ./depthwise 2
#include "bench.hpp"
#include "depthwise.hpp"
#include "math.hpp"
#include "types.hpp"

using namespace opsmith;
using namespace opsmith::bench;

template <class T>
static void run(const Pool& pool, const ConvShape& s, double peak, const char* name) {
  const i64 in = s.height * s.width * s.channels, out = s.pixels() * s.channels;
  Floats from(in), to(out), w(s.taps() * s.channels), bias(s.channels);  // aligned, as in an arena
  T *x = reinterpret_cast<T*>(from.data), *y = reinterpret_cast<T*>(to.data);
  for (i64 i = 0; i < in; ++i) x[i] = from_float<T>(static_cast<float>(i % 13) - 6);
  const float* b = bias.data;
  auto ep = [b](F sum, Row, i64 column, auto lanes) { return clip(sum + load(b + column, lanes), 0.0f, 6.0f); };
  const double t = best_time(pool.threads, [&] { conv2d_depthwise(pool, s, x, w.data, y, nullptr, ep); });
  const double work = 2e-9 * static_cast<double>(out * s.taps()) / t, bytes = 1e-9 * static_cast<double>((in + out) * i64{sizeof(T)}) / t;
  printf("%4lldx%-4lld x %-4lld %lldx%lld /%lld  %s %9.1f us %7.1f GFLOP/s %3.0f%% %7.1f GB/s\n", static_cast<long long>(s.height),
         static_cast<long long>(s.width), static_cast<long long>(s.channels), static_cast<long long>(s.kernel_h),
         static_cast<long long>(s.kernel_w), static_cast<long long>(s.stride_h), name, t * 1e6, work, 100 * work / peak, bytes);
}

int main(int argc, char** argv) {
  Threads threads(thread_count(argc, argv));
  Pool pool = threads.pool();
  const double peak = peak_gflops() * pool.threads;
  printf("%d threads, W=%lld, peak %.0f GFLOP/s\n", pool.threads, static_cast<long long>(W), peak);
  const i64 shapes[][5] = {{112, 112, 16, 3, 1}, {112, 112, 32, 3, 2}, {56, 56, 64, 3, 1},  {56, 56, 128, 3, 1}, {28, 28, 256, 3, 1}, {28, 28, 128, 5, 1},
                           {14, 14, 256, 5, 1},  {14, 14, 512, 3, 1},  {7, 7, 512, 5, 1},   {7, 7, 1024, 3, 1},  {400, 304, 16, 3, 1}, {200, 152, 48, 3, 1},
                           {100, 76, 96, 5, 1},  {50, 38, 192, 5, 1},  {100, 76, 96, 5, 2}, {28, 28, 768, 7, 1}};
  for (auto [height, width, channels, kernel, stride] : shapes) {
    const i64 pad = kernel / 2, h = (height + 2 * pad - kernel) / stride + 1, w = (width + 2 * pad - kernel) / stride + 1;
    const ConvShape s{1, height, width, channels, h, w, channels, kernel, kernel, stride, stride, pad, pad, 1, 1, channels};
    run<float>(pool, s, peak, "fp32");
    run<bf16>(pool, s, peak, "bf16");
  }
}
