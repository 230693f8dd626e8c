// Decoding with weights of 16, 8 and 4 bits: microseconds, GB/s of stored weights, speed against fp32, and time against one row's.
//   g++ -std=c++20 -O3 -march=native -pthread -Isrc/opsmith/kernels benchmarks/kernels/quant.cpp -o quant && ./quant 2
// exact: floats (--precision fp32), pairs: 3 to 16 rows in 16 bits (bf16), bytes: all rows in 8 bits (int8), their quantization included.
#include <map>
#include <string>

#include "bench.hpp"
#include "gemm_blocks.hpp"
#include "quantize_blocks.hpp"

using namespace opsmith;
using namespace opsmith::bench;

constexpr i64 N = 4096, K = 1024, block = 32, copies = 16, most_rows = 128;
const auto ep = [](F sum, Row, i64, auto) { return sum; };

struct Data {
  Pool pool;
  Floats store, a, c, units, sums;
  Floats bytes;  // room for A as bytes
  std::map<std::string, double> one_row;
  double base = 0;

  template <class Run>
  void report(i64 M, const char* what, i64 size, Run run) {
    double t = best_time(pool.threads, [&] {
      for (i64 i = 0; i < copies; ++i) run(reinterpret_cast<uint8_t*>(store.data) + i * round_up(size, 64));
    });
    t /= static_cast<double>(copies);
    if (base == 0) base = t;
    if (M == 1) one_row[what] = t;
    printf("M=%-3lld %-16s %8.1f us %6.1f GB/s  %5.2fx of fp32  %5.2f of one row\n", static_cast<long long>(M), what, t * 1e6,
           static_cast<double>(size) / t * 1e-9, base / t, t / one_row[what]);
  }

  template <int Bits, int Zero>
  void blocks(i64 M, const char* what) {
    using Q = Quantized<Bits, f16, Zero>;
    const i64 size = Q::bytes(N, K, block);
    const std::string name = what;
    report(M, (name + " exact").c_str(), size,
           [&](uint8_t* w) { gemm_quantized<Bits, f16, Zero, true>(pool, M, N, K, block, a.data, K, w, c.data, N, ep); });
    report(M, (name + " pairs").c_str(), size,
           [&](uint8_t* w) { gemm_quantized<Bits, f16, Zero, false>(pool, M, N, K, block, a.data, K, w, c.data, N, ep); });
    int8_t* values = reinterpret_cast<int8_t*>(bytes.data);
    report(M, (name + " bytes").c_str(), size, [&](uint8_t* w) {
      quantize_blocks(pool, M, K, block, a.data, K, values, units.data, sums.data);
      gemm_blocks<Bits, f16, Zero>(pool, M, N, K, block, values, units.data, sums.data, w, c.data, N, ep);
    });
  }
};

int main(int argc, char** argv) {
  Threads threads(thread_count(argc, argv));
  Pool pool = threads.pool();
  printf("%d threads, W=%lld, memory %.1f GB/s\n", pool.threads, static_cast<long long>(W), read_bandwidth(pool));
  Data data{pool, Floats(copies * packed_size(N, K)), Floats(most_rows * K), Floats(most_rows * N), Floats(most_rows * K / block),
            Floats(most_rows * K / block), Floats(most_rows * K / 4), {}};
  for (i64 M : {1, 2, 4, 8, 9, 16, 32, 128}) {
    data.base = 0;
    data.report(M, "fp32", packed_size(N, K) * 4,
                [&](uint8_t* w) { gemm(pool, M, N, K, data.a.data, K, reinterpret_cast<const float*>(w), data.c.data, N, ep); });
    data.report(M, "fp16", packed_size(N, K) * 2,
                [&](uint8_t* w) { gemm(pool, M, N, K, data.a.data, K, reinterpret_cast<const f16*>(w), data.c.data, N, ep); });
    data.blocks<8, kNoZeros>(M, "int8");
    data.blocks<4, kNoZeros>(M, "int4");
    data.blocks<4, kFloatZeros>(M, "int4 float zeros");
  }
}
