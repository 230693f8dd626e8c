// Decoding with weights of 16, 8 and 4 bits: microseconds, GB/s of stored weights, and speed against fp32.
//   g++ -std=c++20 -O3 -march=native -pthread -Isrc/opsmith/kernels benchmarks/kernels/quant.cpp -o quant && ./quant 2
#include "bench.hpp"
#include "quant.hpp"

using namespace opsmith;
using namespace opsmith::bench;

int main(int argc, char** argv) {
  Threads threads(thread_count(argc, argv));
  Pool pool = threads.pool();
  printf("%d threads, W=%lld, memory %.1f GB/s\n", pool.threads, static_cast<long long>(W), read_bandwidth(pool));
  const i64 N = 4096, K = 1024, block = 32, copies = 16;
  Floats store(copies * packed_size(N, K)), a(64 * K), c(64 * N);
  for (i64 M : {1, 2, 4, 8, 16, 32}) {
    auto ep = [](F sum, Row, i64, auto) { return sum; };
    double base = 0;
    auto report = [&](const char* what, i64 bytes, auto run) {
      double t = best_time(pool.threads, [&] {
        for (i64 i = 0; i < copies; ++i) run(reinterpret_cast<uint8_t*>(store.data) + i * round_up(bytes, 64));
      });
      t /= static_cast<double>(copies);
      if (base == 0) base = t;
      printf("M=%-3lld %-10s %8.1f us %6.1f GB/s  %.2fx\n", static_cast<long long>(M), what, t * 1e6,
             static_cast<double>(bytes) / t * 1e-9, base / t);
    };
    report("fp32", packed_size(N, K) * 4, [&](uint8_t* w) { gemm(pool, M, N, K, a.data, K, reinterpret_cast<const float*>(w), c.data, N, ep); });
    report("fp16", packed_size(N, K) * 2, [&](uint8_t* w) { gemm(pool, M, N, K, a.data, K, reinterpret_cast<const f16*>(w), c.data, N, ep); });
    report("int8", Quantized<8, f16, false>::bytes(N, K, block),
           [&](uint8_t* w) { gemm_quantized<8, f16, false, false>(pool, M, N, K, block, a.data, K, w, c.data, N, ep); });
    report("int4", Quantized<4, f16, false>::bytes(N, K, block),
           [&](uint8_t* w) { gemm_quantized<4, f16, false, false>(pool, M, N, K, block, a.data, K, w, c.data, N, ep); });
    report("int4 zero", Quantized<4, f16, true>::bytes(N, K, block),
           [&](uint8_t* w) { gemm_quantized<4, f16, true, false>(pool, M, N, K, block, a.data, K, w, c.data, N, ep); });
  }
}
