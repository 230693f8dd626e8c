// Norms, softmax and reductions on tensors far larger than the caches (and on one that fits them): GB/s of the bytes
// that must move, and share of what plain reading and copying reach on the same threads.
#include "bench.hpp"
#include "norm.hpp"
#include "reduce.hpp"
#include "softmax.hpp"

using namespace opsmith;

namespace {

// y = x over far more than the caches hold: what a kernel that reads and writes everything once can reach.
double copy_bandwidth(const Pool& pool, const float* x, float* y, i64 n) {
  const double t = bench::best_time(pool.threads, [&] {
    pool.parallel_ranges(n, 65536, [&](i64 begin, i64 end) {
      for_lanes(end - begin, [&](i64 i, auto lanes) { store(y + begin + i, load(x + begin + i, lanes), lanes); });
    });
  });
  return 8e-9 * static_cast<double>(n) / t;
}

}  // namespace

int main(int argc, char** argv) {
  const int count = bench::thread_count(argc, argv);
  bench::Threads threads(count);
  const Pool pool = threads.pool();
  const i64 n = 32 << 20;  // 128 MB each
  bench::Floats x(n), y(n), scale(4096), bias(4096);
  bench::Floats workspace(group_norm_workspace(8, 4096, 64) / 4 + 1);
  const double copy = copy_bandwidth(pool, x.data, y.data, n), read = bench::read_bandwidth(pool);
  printf("%d threads, W = %d, copy %.1f GB/s, read %.1f GB/s\n", count, static_cast<int>(W), copy, read);
  auto line = [&](const char* what, double bytes, double limit, auto&& f) {
    const double t = bench::best_time(count, f), rate = bytes / t * 1e-9;
    printf("%-34s %9.1f us  %6.1f GB/s  %5.1f %% of the limit\n", what, t * 1e6, rate, 100 * rate / limit);
  };
  const double moved = 8.0 * static_cast<double>(n);
  // two reads and a write: the limit of a kernel whose tensor does not stay in cache between its two passes
  const double two_pass = 12.0 / (8.0 / copy + 4.0 / read);
  for (i64 cols : {64, 768, 1024, 4096}) {
    char what[64];
    snprintf(what, sizeof what, "layer_norm, %d columns", static_cast<int>(cols));
    line(what, moved, copy, [&] {
      layer_norm(pool, n / cols, cols, x.data, cols, scale.data, bias.data, 1e-5f, y.data, cols);
    });
    snprintf(what, sizeof what, "rms_norm, %d columns", static_cast<int>(cols));
    line(what, moved, copy, [&] { rms_norm(pool, n / cols, cols, x.data, cols, scale.data, 1e-5f, y.data, cols); });
    snprintf(what, sizeof what, "softmax, %d columns", static_cast<int>(cols));
    line(what, moved, copy, [&] { softmax(pool, n / cols, cols, x.data, cols, y.data, cols); });
  }
  line("softmax, 50257 columns", moved, copy, [&] { softmax(pool, n / 50257, 50257, x.data, 50257, y.data, 50257); });
  auto with_silu = [](F v, Row, i64, auto) { return silu(v); };
  line("group_norm_nhwc + silu, 512x512x128", 12.0 * 512 * 512 * 128, two_pass, [&] {
    group_norm_nhwc(pool, 1, 512 * 512, 128, 32, x.data, 0, 128, scale.data, bias.data, 1e-5f, y.data, 0, 128,
                    workspace.data, with_silu);
  });
  line("group_norm_nchw + silu, 128x512x512", 12.0 * 512 * 512 * 128, two_pass, [&] {
    group_norm_nchw(pool, 1, 512 * 512, 128, 32, x.data, scale.data, bias.data, 1e-5f, y.data, workspace.data, with_silu);
  });
  line("group_norm_nhwc + silu, 64x64x320", 12.0 * 64 * 64 * 320, two_pass, [&] {
    group_norm_nhwc(pool, 1, 64 * 64, 320, 32, x.data, 0, 320, scale.data, bias.data, 1e-5f, y.data, 0, 320,
                    workspace.data, with_silu);
  });
  line("reduce sum, contiguous", moved / 2, read, [&] { reduce<op::Sum>(pool, 4096, n / 4096, 1, x.data, y.data); });
  line("reduce max, strided", moved / 2, read, [&] { reduce<op::Max>(pool, 64, 512, 1024, x.data, y.data); });
}
