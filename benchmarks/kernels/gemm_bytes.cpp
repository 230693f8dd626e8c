// Products of bytes with packed weights, at the sizes of the models in benchmarks/: GOP/s and share of the peak of tiles or of ByteDot.
//   g++ -std=c++20 -O3 -march=native -pthread -Isrc/opsmith/kernels benchmarks/kernels/gemm_bytes.cpp -o gemm_bytes && ./gemm_bytes 2
#include "bench.hpp"
#include "gemm_bytes.hpp"

using namespace opsmith;
using namespace opsmith::bench;

[[gnu::noinline]] I dot_chains(i64 rounds, I words) {
  const ByteDot::Value x = ByteDot::value(words);
  const ByteDot::Columns b = ByteDot::columns(words);
  I sums[10] = {};
  for (i64 k = 0; k < rounds; ++k) {
#pragma GCC unroll 10
    for (int j = 0; j < 10; ++j) {
      sums[j] = ByteDot::add_products(sums[j], x, b);
      asm volatile("" : "+v"(sums[j]));  // or the compiler finds that all are the same
    }
  }
  I total{};
#pragma GCC unroll 10
  for (int j = 0; j < 10; ++j) total += sums[j];
  return total;
}

double peak_gops() {
  if constexpr (Tiles::exist)
    if (has_tiles) return peak_in_tiles<Tiles, uint8_t>(4);
  const i64 rounds = 200000;
  volatile int32_t sink = 0;
  const double t = best_time(1, [&] { sink = dot_chains(rounds, splat(0x01020304))[0]; });
  return 8.0 * W * 10 * static_cast<double>(rounds) / t * 1e-9;
}

int main(int argc, char** argv) {
  Threads threads(thread_count(argc, argv));
  Pool pool = threads.pool();
  const double peak = peak_gops() * pool.threads;
  printf("%d threads, W=%lld, peak %.0f GOP/s\n", pool.threads, static_cast<long long>(W), peak);
  const i64 shapes[][3] = {{4096, 320, 320}, {4096, 1280, 320}, {4096, 320, 1280}, {1024, 640, 640}, {256, 1280, 1280}, {256, 1280, 5120},
                           {128, 768, 768}, {128, 3072, 768}, {128, 768, 3072}, {128, 1024, 1024}, {128, 4096, 1024}, {415, 288, 288},
                           {1500, 384, 384}, {1500, 1536, 384}, {1500, 384, 1536}, {16, 1280, 1280}, {1, 4096, 1024}, {1, 32768, 288}};
  for (auto [M, N, K] : shapes)
    for (const bool zeros : {false, true}) {
      Floats a(M * K / 4 + 1), b(packed_bytes(N, K) / 4 + 1), c(M * N), sums(N);
      const int32_t* words = reinterpret_cast<const int32_t*>(sums.data);
      const uint8_t zero = 3;
      auto ep = [](I sum, Row, i64, auto) { return __builtin_convertvector(sum, F) * splat(0.01f); };
      const double t = best_time(pool.threads, [&] {
        gemm_bytes(pool, M, N, K, reinterpret_cast<const uint8_t*>(a.data), K, {&zero, 0}, reinterpret_cast<const int8_t*>(b.data), words,
                   zeros ? words : nullptr, c.data, N, ep);
      });
      const double gops = 2e-9 * static_cast<double>(M * N) * static_cast<double>(K) / t;
      printf("M=%-5lld N=%-6lld K=%-5lld %s %10.1f us %8.1f GOP/s %4.0f%% of peak\n", static_cast<long long>(M), static_cast<long long>(N),
             static_cast<long long>(K), zeros ? "zero points" : "symmetric  ", t * 1e6, gops, 100 * gops / peak);
    }
}
