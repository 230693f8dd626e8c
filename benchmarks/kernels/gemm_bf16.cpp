// Products in bf16 with packed weights, at the sizes of the models in benchmarks/: GFLOP/s and share of the peak of tiles or of PairDot; for few
// rows GB/s of weights. A is bf16 where PairDot is an instruction, float elsewhere.
//   g++ -std=c++20 -O3 -march=native -pthread -Isrc/opsmith/kernels benchmarks/kernels/gemm_bf16.cpp -o gemm_bf16 && ./gemm_bf16 2
#include <type_traits>

#include "bench.hpp"
#include "gemm.hpp"

using namespace opsmith;
using namespace opsmith::bench;
using TA = std::conditional_t<PairDot::fast, bf16, float>;

int main(int argc, char** argv) {
  Threads threads(thread_count(argc, argv));
  Pool pool = threads.pool();
  const double peak = peak_bf16_gflops() * pool.threads, bandwidth = read_bandwidth(pool);
  printf("%d threads, W=%lld, peak %.0f GFLOP/s, memory %.1f GB/s\n", pool.threads, static_cast<long long>(W), peak, bandwidth);
  const i64 shapes[][3] = {{128, 768, 768}, {128, 3072, 768}, {128, 768, 3072}, {1024, 768, 768}, {1024, 3072, 768}, {1024, 768, 3072},
                           {128, 1024, 1024}, {128, 4096, 1024}, {128, 1024, 4096}, {128, 50257, 1024}, {77, 768, 768}, {77, 3072, 768},
                           {77, 768, 3072}, {4096, 320, 320}, {4096, 2560, 320}, {4096, 320, 1280}, {1024, 640, 640}, {1024, 5120, 640},
                           {1024, 640, 2560}, {256, 1280, 1280}, {256, 10240, 1280}, {256, 1280, 5120}, {64, 1280, 1280}, {64, 320, 320},
                           {64, 2560, 320}, {16, 640, 640}, {16, 5120, 640}, {4, 1280, 1280}, {4, 10240, 1280}, {1, 1280, 1280},
                           {1, 10240, 1280}, {1, 1280, 5120}, {1, 4096, 1024}, {1, 50257, 1024}};
  for (auto [M, N, K] : shapes) {
    const i64 size = packed_size<bf16x2>(N, K), copies = copies_of_weights(M, size);
    Floats a(M * K), b(copies * size), c(M * N), bias(N);
    auto ep = [b = bias.data](F sum, Row, i64 column, auto lanes) { return sum + load(b + column, lanes); };
    const double t = best_time(pool.threads, [&] {
      for (i64 i = 0; i < copies; ++i)
        gemm_bf16(pool, M, N, K, reinterpret_cast<const TA*>(a.data), K, reinterpret_cast<const bf16*>(b.data + i * size), c.data, N, ep);
    });
    print_product(M, N, K, t / static_cast<double>(copies), peak, 2, bandwidth);
  }
}
