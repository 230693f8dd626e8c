// What the micro-benchmarks share: threads that stay alive, the machine's own peak, and a timer that keeps the best run.
//
// With one thread the clock is the CPU time of the thread, so that other work on the machine disturbs little.
// With more it is wall time: only an idle machine gives a figure worth writing down.
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "gemm_tiles.hpp"

namespace opsmith::bench {

// Threads take task indices one by one; they spin for a moment before they sleep, as ONNX Runtime's do.
class Threads {
 public:
  explicit Threads(int count) : count_(count) {
    for (int i = 1; i < count; ++i) threads_.emplace_back([this] { work(); });
  }
  ~Threads() {
    stop_ = true;
    next_round();
    for (auto& t : threads_) t.join();
  }
  Pool pool() { return Pool{&Threads::run, this, count_}; }

 private:
  static void run(void* self, Pool::Task task, size_t total, void* user) {
    auto& t = *static_cast<Threads*>(self);
    t.task_ = task, t.user_ = user, t.total_ = total, t.next_ = 0, t.busy_ = t.count_ - 1;
    t.next_round();
    t.take();
    while (t.busy_ > 0) std::this_thread::yield();
  }
  void next_round() {
    {
      std::lock_guard lock(mutex_);
      ++round_;
    }
    wake_.notify_all();
  }
  void take() {
    for (size_t i; (i = next_++) < total_;) task_(user_, i);
  }
  void work() {
    for (unsigned seen = 0;;) {
      for (int spin = 0; spin < 20000 && round_ == seen; ++spin) {
      }
      if (round_ == seen) {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return round_ != seen; });
      }
      seen = round_;
      if (stop_) return;
      take();
      --busy_;
    }
  }
  int count_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<unsigned> round_{0};
  std::atomic<bool> stop_{false};
  std::atomic<size_t> next_{0};
  std::atomic<int> busy_{0};
  Pool::Task task_ = nullptr;
  void* user_ = nullptr;
  size_t total_ = 0;
};

inline double seconds(int threads) {
  timespec t;
  clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Seconds of the fastest of some runs: at least 5, for about half a second.
template <class Fn>
double best_time(int threads, Fn&& f) {
  f();
  double best = 1e30, total = 0;
  for (int i = 0; i < 5 || (total < 0.5 && i < 1000); ++i) {
    double start = seconds(threads);
    f();
    double t = seconds(threads) - start;
    total += t;
    if (t < best) best = t;
  }
  return best;
}

// Few rows: so many copies of the weights (floats) are walked through that none is still in a cache.
constexpr i64 kFewRows = 77;
inline i64 copies_of_weights(i64 M, i64 floats) { return M <= kFewRows ? max<i64>(1, 200'000'000 / (floats * 4)) : 1; }

// A row of the table: an M x N x K product in t seconds; for few rows also how fast its weights were read.
inline void print_product(i64 M, i64 N, i64 K, double t, double peak, double bytes_of_weight, double bandwidth) {
  const double gflops = 2e-9 * static_cast<double>(M * N) * static_cast<double>(K) / t;
  const double gb = bytes_of_weight * 1e-9 * static_cast<double>(N * K) / t;
  printf("M=%-5lld N=%-6lld K=%-5lld %10.1f us %8.1f GFLOP/s %4.0f%% of peak", static_cast<long long>(M), static_cast<long long>(N),
         static_cast<long long>(K), t * 1e6, gflops, 100 * gflops / peak);
  if (M <= kFewRows) printf("  %6.1f GB/s %4.0f%% of memory", gb, 100 * gb / bandwidth);
  printf("\n");
}

// FMAs on registers alone: what one core can do at most.
[[gnu::noinline]] inline F fma_chains(i64 rounds, F scale, F shift) {
  F a = scale, b = a + a, c = b + a, d = c + a, e = d + a, f = e + a, g = f + a, h = g + a, i = h + a, j = i + a;
  for (i64 k = 0; k < rounds; ++k) {
    a = a * scale + shift, b = b * scale + shift, c = c * scale + shift, d = d * scale + shift, e = e * scale + shift;
    asm volatile("" ::: "memory");  // or the compiler finds that the result is always the same
    f = f * scale + shift, g = g * scale + shift, h = h * scale + shift, i = i * scale + shift, j = j * scale + shift;
  }
  return a + b + c + d + e + f + g + h + i + j;
}
inline double peak_gflops() {
  const i64 rounds = 200000;
  volatile float sink = 0;
  double t = best_time(1, [&] { sink = fma_chains(rounds, splat(0.999f), splat(1e-3f))[0]; });
  return 2.0 * W * 10 * static_cast<double>(rounds) / t * 1e-9;
}

// The same for products of bf16.
[[gnu::noinline]] inline F pair_chains(i64 rounds, I words) {
  F sums[10] = {};
  for (i64 k = 0; k < rounds; ++k) {
#pragma GCC unroll 10
    for (int j = 0; j < 10; ++j) {
      sums[j] = PairDot::add_products(sums[j], words, words);
      asm volatile("" : "+v"(sums[j]));  // or the compiler finds that all are the same
    }
  }
  F total{};
#pragma GCC unroll 10
  for (int j = 0; j < 10; ++j) total += sums[j];
  return total;
}
// Operations per second of products in tiles, 4 independent sums at a time; `numbers` of K meet in a word.
template <class T, class Number>
double peak_in_tiles(i64 numbers) {
  alignas(64) static const uint8_t zeros[T::rows * T::row_bytes] = {};
  const i64 rounds = 200000;
  const TilesInUse tiles;
  T::template zero<0>(), T::template zero<1>(), T::template zero<2>(), T::template zero<3>();
  T::template load<4>(zeros, T::row_bytes), T::template load<5>(zeros, T::row_bytes);
  const double t = best_time(1, [&] {
    for (i64 k = 0; k < rounds; ++k) {
      T::template multiply<0, 4, 5>(Number{}), T::template multiply<1, 4, 5>(Number{});
      T::template multiply<2, 4, 5>(Number{}), T::template multiply<3, 4, 5>(Number{});
    }
  });
  return 2.0 * 4 * 16 * 16 * 16 * static_cast<double>(numbers * rounds) / t * 1e-9;
}

inline double peak_bf16_gflops() {
  if constexpr (Tiles::exist)
    if (has_tiles) return peak_in_tiles<Tiles, bf16>(2);
  const i64 rounds = 200000;
  volatile float sink = 0;
  double t = best_time(1, [&] { sink = pair_chains(rounds, narrow_pairs(splat(1e-3f), splat(2e-3f)))[0]; });
  return 4.0 * W * 10 * static_cast<double>(rounds) / t * 1e-9;
}

// Reading far more than the caches hold: GB/s of `threads` threads.
inline double read_bandwidth(const Pool& pool) {
  const i64 floats = 64 << 20;
  float* data = static_cast<float*>(aligned_alloc(64, static_cast<size_t>(floats) * 4));
  for (i64 i = 0; i < floats; ++i) data[i] = 1;
  std::atomic<float> sink{0};
  double t = best_time(pool.threads, [&] {
    pool.parallel_for(64, [&](i64 part) {
      const float* p = data + part * (floats / 64);
      F s[4] = {};
      for (i64 i = 0; i < floats / 64; i += 4 * W)
        for (int j = 0; j < 4; ++j) s[j] += load(p + i + j * W, Full{});
      sink = (s[0] + s[1] + s[2] + s[3])[0];
    });
  });
  free(data);
  return static_cast<double>(floats) * 4e-9 / t;
}

struct Floats {
  explicit Floats(i64 n) : data(static_cast<float*>(aligned_alloc(64, static_cast<size_t>(round_up(n, 16) + 16) * 4))) {
    for (i64 i = 0; i < n; ++i) data[i] = static_cast<float>(i * 7 % 31) * 0.03f - 0.45f;
  }
  Floats(const Floats&) = delete;
  ~Floats() { free(data); }
  float* data;
};

inline int thread_count(int argc, char** argv) { return argc > 1 ? atoi(argv[1]) : 1; }

}  // namespace opsmith::bench
