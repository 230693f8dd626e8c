// attention_scaled.hpp against the scalar reference over the floats that its bytes stand for; rows as bytes and back.
#include "attention_scaled.hpp"

#include "harness.hpp"

namespace opsmith {

using test::expect_close;

// A cache [batch][heads][room][size] of which the first rows are filled; what lies behind them must not be read.
struct Cache {
  i64 batch, heads, rows, room, size;
  std::vector<int8_t> bytes;
  std::vector<float> scales, floats;  // floats: dense, of the filled rows

  Cache(test::Random& random, i64 batch, i64 heads, i64 rows, i64 size)
      : batch(batch), heads(heads), rows(rows), room(rows + 3), size(size),
        bytes(static_cast<size_t>(batch * heads * room * size), 127),
        scales(static_cast<size_t>(batch * heads * room), __builtin_nanf("")) {
    for (i64 i = 0; i < batch * heads; ++i)
      for (i64 r = 0; r < rows; ++r) {
        const float scale = scales[static_cast<size_t>(i * room + r)] = 0.001f * static_cast<float>(1 + random.below(30));
        for (i64 d = 0; d < size; ++d) {
          const int8_t x = bytes[static_cast<size_t>((i * room + r) * size + d)] = static_cast<int8_t>(random.below(255) - 127);
          floats.push_back(scale * static_cast<float>(x));
        }
      }
  }
};

template <bool Zero, class Mask>
static void check(const Pool& pool, i64 batch, i64 heads, i64 kv_heads, i64 queries, i64 keys, i64 size, bool causal, const Mask& mask) {
  test::Random random(static_cast<uint64_t>(queries * 1009 + keys * 31 + size));
  std::vector<float> q(static_cast<size_t>(batch * heads * queries * size));
  for (auto& x : q) x = random.normal();
  const Cache k(random, batch, kv_heads, keys, size), v(random, batch, kv_heads, keys, size);
  const i64 q_head = queries * size, room = k.room * size;
  const AttentionShape s{batch, heads, kv_heads, queries, keys, size, size, heads * q_head, q_head, size, kv_heads * room, room, size,
                         kv_heads * room, room, size, heads * q_head, q_head, size, 0.3f, causal};
  const RowScales scales{k.scales.data(), kv_heads * k.room, k.room, v.scales.data(), kv_heads * v.room, v.room};
  std::vector<float> out(q.size(), -77.0f), want(q.size());
  std::vector<float> workspace(static_cast<size_t>(attention_scaled_workspace(s)) / sizeof(float) + 1);
  attention_scaled<Zero>(pool, s, q.data(), k.bytes.data(), v.bytes.data(), scales, out.data(), mask, workspace.data());
  attention_reference<Zero>(detail::over_floats(s), q.data(), k.floats.data(), v.floats.data(), want.data(), mask);
  char what[120];
  snprintf(what, sizeof what, "b%d h%d/%d q%d k%d d%d%s threads %d", int(batch), int(heads), int(kv_heads), int(queries), int(keys),
           int(size), causal ? " causal" : "", pool.threads);
  expect_close(what, out.data(), want.data(), static_cast<i64>(out.size()), 2e-5, 2e-5);
}

static void check_rows(const Pool& pool, i64 rows, i64 size) {
  test::Random random(3);
  std::vector<float> x(static_cast<size_t>(2 * rows * size)), back(x.size()), scale(static_cast<size_t>(2 * rows));
  for (auto& value : x) value = random.normal();
  for (i64 d = 0; d < size; ++d) x[static_cast<size_t>(d)] = 0;  // a row of nothing
  std::vector<int8_t> y(x.size());
  const CacheRowsShape s{1, 2, rows, size, 2 * rows * size, size, 2 * size};  // heads beside each other
  const CacheRowsShape dense{1, 2, rows, size, 2 * rows * size, rows * size, size};
  cache_quantize(pool, s, x.data(), y.data(), scale.data());
  cache_dequantize(pool, dense, y.data(), scale.data(), 2 * rows, rows, back.data());
  std::vector<float> want(x.size());
  for (i64 h = 0; h < 2; ++h)
    for (i64 r = 0; r < rows; ++r) {
      const float* row = x.data() + (r * 2 + h) * size;
      float largest = 0;
      for (i64 d = 0; d < size; ++d) largest = max(largest, __builtin_fabsf(row[d]));
      const float step = max(largest, 1e-30f) * (1.0f / 127.0f);
      for (i64 d = 0; d < size; ++d) want[static_cast<size_t>((h * rows + r) * size + d)] = __builtin_rintf(row[d] / step) * step;
    }
  expect_close("rows as bytes and back", back.data(), want.data(), static_cast<i64>(back.size()), 0, 1e-7);
}

static int run() {
  test::Threads threads(3);
  const Pool pool = threads.pool(), serial = test::serial();
  for (bool causal : {false, true}) {
    check<false>(pool, 2, 2, 2, 1, 7, 8, causal, NoMask{});
    check<false>(pool, 1, 9, 3, 1, 130, 64, causal, NoMask{});
    check<false>(serial, 1, 8, 1, 2, 40, 24, causal, NoMask{});   // several rows of a head share its bytes
    check<false>(pool, 1, 2, 1, 1, 1500, 33, causal, NoMask{});   // split over the keys
    check<false>(pool, 2, 4, 2, 37, 90, 40, causal, NoMask{});    // as floats, in tiles
    check<false>(pool, 1, 1, 1, 40, 20, 2000, causal, NoMask{});  // as floats, row by row
  }
  bool seen[50];
  float bias[50];
  for (i64 j = 0; j < 50; ++j) seen[j] = j % 3 != 1, bias[j] = seen[j] ? 0.5f : -kInfinity;
  for (i64 queries : {1, 30}) {
    check<true>(pool, 1, 4, 2, queries, 50, 16, false, BoolMask{seen, 0, 0, 0, 1});
    check<true>(pool, 1, 4, 2, queries, 50, 16, false, BiasMask{bias, 0, 0, 0, 1});
  }
  for (i64 size : {1, 7, 64, 129}) check_rows(pool, 5, size);
  return test::finish();
}

}  // namespace opsmith

int main() { return opsmith::run(); }
