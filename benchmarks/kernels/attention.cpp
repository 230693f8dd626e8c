// Attention at the shapes of Stable Diffusion, BERT and GPT-2: GFLOP/s of the two products, and share of FMA peak; with a second
// argument bf16, in bf16.
// Decoding reads a KV cache (batch, heads, tokens, size), one of many layers each time, so that it comes from memory as it does
// in a model: GB/s of keys and values read.
#include "attention.hpp"

#include "bench.hpp"

using namespace opsmith;

struct Case {
  const char* what;
  i64 batch, heads, kv_heads, queries, keys, size;
  bool causal;
};

int main(int argc, char** argv) {
  const int count = bench::thread_count(argc, argv);
  bench::Threads threads(count);
  const Pool pool = threads.pool();
  const bool narrow = argc > 2 && argv[2][0] == 'b';
  const double peak = (narrow ? bench::peak_bf16_gflops() : bench::peak_gflops()) * count;
  printf("%d threads, peak %.0f GFLOP/s, W = %d\n", count, peak, static_cast<int>(W));
  const Case cases[] = {
      {"UNet 64x64 self", 1, 8, 8, 4096, 4096, 40, false},   {"UNet 64x64 cross", 1, 8, 8, 4096, 77, 40, false},
      {"UNet 32x32 self", 1, 8, 8, 1024, 1024, 80, false},   {"UNet 32x32 cross", 1, 8, 8, 1024, 77, 80, false},
      {"UNet 16x16 self", 1, 8, 8, 256, 256, 160, false},    {"UNet 8x8 self", 1, 8, 8, 64, 64, 160, false},
      {"VAE mid 32x32", 1, 1, 1, 1024, 1024, 512, false},    {"BERT 128", 1, 12, 12, 128, 128, 64, false},
      {"CLIP text", 1, 12, 12, 77, 77, 64, true},            {"GPT-2 prompt 128", 1, 16, 16, 128, 128, 64, true},
      {"prompt 1024", 1, 16, 16, 1024, 1024, 64, true},      {"GPT-2 decode 128", 1, 16, 16, 1, 128, 64, false},
      {"GPT-2 decode 512", 1, 16, 16, 1, 512, 64, false},    {"GQA decode 2048", 1, 32, 8, 1, 2048, 128, false},
      {"one head, 8192", 1, 1, 1, 1, 8192, 128, false},
      {"batch 4 decode 512", 4, 16, 16, 1, 512, 64, false},
  };
  printf("memory %.1f GB/s\n", bench::read_bandwidth(pool));
  for (const Case& c : cases) {
    const bool decode = c.queries == 1;
    // q, k, v as one projection leaves them, (batch, tokens, heads, size), or a cache
    const i64 q_row = c.heads * c.size, k_row = decode ? c.size : c.kv_heads * c.size, k_head = decode ? c.keys * c.size : c.size;
    const i64 cache = c.batch * c.keys * c.kv_heads * c.size, layers = decode ? max<i64>(1, (32 << 20) / cache) : 1;
    bench::Floats q(c.batch * c.queries * q_row), k(layers * cache), v(layers * cache);
    bench::Floats out(c.batch * c.queries * q_row);
    if (narrow)
      for (auto [data, count] : {std::pair(q.data, c.batch * c.queries * q_row), {k.data, layers * cache}, {v.data, layers * cache}})
        for (i64 i = 0; i < count; ++i) store(reinterpret_cast<bf16*>(data) + i, splat(data[i]), Tail{1});
    const AttentionShape s{c.batch, c.heads, c.kv_heads, c.queries, c.keys, c.size, c.size,
                           c.queries * q_row, c.size, q_row, c.keys * c.kv_heads * c.size, k_head, k_row,
                           c.keys * c.kv_heads * c.size, k_head, k_row, c.queries * q_row, c.size, q_row, 0.1f, c.causal};
    bench::Floats workspace(attention_workspace(s) / 4 + 1);
    const double t = bench::best_time(count, [&] {
      for (i64 l = 0; l < layers; ++l)
        if (narrow)
          attention_bf16(pool, s, reinterpret_cast<bf16*>(q.data), reinterpret_cast<bf16*>(k.data) + l * cache,
                         reinterpret_cast<bf16*>(v.data) + l * cache, reinterpret_cast<bf16*>(out.data), NoMask{}, workspace.data);
        else
          attention(pool, s, q.data, k.data + l * cache, v.data + l * cache, out.data, NoMask{}, workspace.data);
    }) / static_cast<double>(layers);
    double pairs = static_cast<double>(c.batch * c.heads * c.queries * c.keys);
    if (c.causal) pairs -= static_cast<double>(c.batch * c.heads * c.queries * (c.queries - 1)) / 2;
    const double gflops = 4 * pairs * static_cast<double>(c.size) / t * 1e-9;
    printf("%-18s q %5lld k %5lld d %3lld  %9.1f us  %7.1f GFLOP/s  %5.1f %% of peak", c.what,
           static_cast<long long>(c.queries), static_cast<long long>(c.keys), static_cast<long long>(c.size), t * 1e6,
           gflops, 100 * gflops / peak);
    if (decode) printf("  %5.1f GB/s", static_cast<double>(cache) * (narrow ? 4 : 8) / t * 1e-9);
    printf("\n");
  }
}
