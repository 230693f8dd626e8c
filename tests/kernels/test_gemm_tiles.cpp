// Products in tiles on registers that are arrays here, so that every CPU and the sanitizers see how the microkernel walks; test_gemm,
// test_gemm_bytes, test_conv and test_attention run it on real ones where the CPU has them.
#include "gemm_tiles.hpp"

#include "arrays.hpp"
#include "gemm_bytes.hpp"

using namespace opsmith;
using namespace opsmith::test;

namespace {

struct Emulated {
  static constexpr bool exist = true;
  static constexpr i64 rows = 16, row_bytes = 64;
  inline static uint8_t registers[8][16 * 64 > 16 * 4 * W ? 16 * 64 : 16 * 4 * W];
  // Rows of A are 64 bytes, those of B and C are W words.
  template <int T>
  static constexpr i64 width = T == 6 ? row_bytes : 4 * W;

  template <int T>
  static void zero() {
    memset(registers[T], 0, sizeof registers[T]);
  }
  template <int T>
  static void load(const void* p, i64 stride) {
    for (i64 r = 0; r < rows; ++r) memcpy(registers[T] + r * width<T>, static_cast<const uint8_t*>(p) + r * stride, width<T>);
  }
  template <int T>
  static void store(void* p, i64 stride) {
    for (i64 r = 0; r < rows; ++r) memcpy(static_cast<uint8_t*>(p) + r * stride, registers[T] + r * width<T>, width<T>);
  }
  template <int C, int A, int B>
  static void multiply(bf16) {
    auto* c = reinterpret_cast<float*>(registers[C]);
    auto* a = reinterpret_cast<const bf16*>(registers[A]);
    auto* b = reinterpret_cast<const bf16*>(registers[B]);
    for (i64 r = 0; r < rows; ++r)
      for (i64 k = 0; k < 32; ++k)
        for (i64 n = 0; n < W; ++n) c[r * W + n] += to_float(a[r * 32 + k]) * to_float(b[(k / 2 * W + n) * 2 + k % 2]);
  }
  template <int C, int A, int B>
  static void multiply(uint8_t) {
    auto* c = reinterpret_cast<int32_t*>(registers[C]);
    const uint8_t* a = registers[A];
    auto* b = reinterpret_cast<const int8_t*>(registers[B]);
    for (i64 r = 0; r < rows; ++r)
      for (i64 k = 0; k < 64; ++k)
        for (i64 n = 0; n < W; ++n) c[r * W + n] += a[r * 64 + k] * b[(k / 4 * W + n) * 4 + k % 4];
  }
};

// count rows of one panel, taps of K numbers; rows evenly apart or not; added to what is there or not.
template <class Number, bool Flip, class Sum>
void check(Random& random, i64 count, i64 V, i64 taps, i64 K, bool even, bool accumulate) {
  constexpr bool bytes = __is_same(Number, uint8_t);
  constexpr i64 numbers = bytes ? 4 : 2;
  const i64 size = sizeof(Number), words = ceil_div(K, numbers), stride = K + 5;
  // Exactly as long as what may be read: the sanitizer sees the rest.
  std::vector<Number> a(static_cast<size_t>(taps * count * stride));
  std::vector<std::conditional_t<bytes, int8_t, bf16>> b(static_cast<size_t>(taps * words * V * W * numbers));
  for (auto& x : a) {
    if constexpr (bytes) x = static_cast<uint8_t>(random.bits());
    else x = from_float<bf16>(random.normal());
  }
  for (i64 i = 0; i < static_cast<i64>(b.size()); ++i) {
    const i64 k = i / numbers / (V * W) % words * numbers + i % numbers;
    if constexpr (bytes) b[static_cast<size_t>(i)] = static_cast<int8_t>(k < K ? random.bits() : 0);
    else b[static_cast<size_t>(i)] = k < K ? from_float<bf16>(random.normal()) : bf16{};
  }
  std::vector<const uint8_t*> rows;
  for (i64 t = 0; t < taps; ++t)
    for (i64 r = 0; r < count; ++r)
      rows.push_back(reinterpret_cast<const uint8_t*>(a.data() + (t * count + (even ? r : count - 1 - (r * 7 + t) % count)) * stride));
  std::vector<Sum> tile(static_cast<size_t>(count * gemm_nv * W)), want;
  for (auto& x : tile) x = static_cast<Sum>(random.below(100));
  want = tile;
  for (i64 r = 0; r < count; ++r)
    for (i64 n = 0; n < V * W; ++n) {
      double sum = accumulate ? static_cast<double>(want[static_cast<size_t>(r * gemm_nv * W + n)]) : 0;
      for (i64 t = 0; t < taps; ++t)
        for (i64 k = 0; k < K; ++k) {
          const uint8_t* at = rows[static_cast<size_t>(t * count + r)] + k * size;
          const auto weight = b[static_cast<size_t>(((t * words + k / numbers) * V * W + n) * numbers + k % numbers)];
          if constexpr (bytes) sum += (Flip ? *at ^ 0x80 : *at) * weight;
          else sum += static_cast<double>(to_float(*reinterpret_cast<const bf16*>(at))) * to_float(weight);
        }
      want[static_cast<size_t>(r * gemm_nv * W + n)] = static_cast<Sum>(sum);
    }
  pick_tiles<Emulated, Number, Flip, Sum>(count, V)(count, rows.data(), count, taps, K * size, reinterpret_cast<const uint8_t*>(b.data()),
                                                    tile.data(), accumulate, {});
  bool same = true;
  for (size_t i = 0; i < tile.size(); ++i)
    same &= bytes ? tile[i] == want[i] : close(static_cast<double>(tile[i]), static_cast<double>(want[i]), 1e-4, 1e-4);
  if (!same) printf("count %d V %d taps %d K %d even %d accumulate %d flip %d\n", int(count), int(V), int(taps), int(K), even, accumulate, Flip);
  CHECK(same);
}

void check_attention(Random& random, i64 M, i64 K) {
  const i64 stride = K + 3, words = ceil_div(K, 2);
  std::vector<bf16> a(static_cast<size_t>(M * stride)), b(static_cast<size_t>(words * 2 * W * 2));
  for (auto& x : a) x = from_float<bf16>(random.normal());
  for (i64 i = 0; i < static_cast<i64>(b.size()); ++i)
    b[static_cast<size_t>(i)] = i / (4 * W) * 2 + i % 2 < K ? from_float<bf16>(random.normal()) : bf16{};
  std::vector<float> c(static_cast<size_t>(M * 2 * W), 1.0f);
  tiles_product<2, Emulated>(a.data(), stride, M, K, b.data(), c.data(), true);
  for (i64 m = 0; m < M; ++m)
    for (i64 n = 0; n < 2 * W; ++n) {
      double sum = 1;
      for (i64 k = 0; k < K; ++k)
        sum += static_cast<double>(to_float(a[static_cast<size_t>(m * stride + k)])) *
               to_float(b[static_cast<size_t>((k / 2 * 2 * W + n) * 2 + k % 2)]);
      CHECK(close(static_cast<double>(c[static_cast<size_t>(m * 2 * W + n)]), sum, 1e-4, 1e-4));
    }
}

}  // namespace

int main() {
  Random random;
  for (i64 count : {1, 15, 16, 17, 31, 32})
    for (i64 V = 1; V <= gemm_nv; ++V)
      for (i64 taps : {1, 3})
        for (i64 K : {1, 6, 31, 32, 64, 67, 130})
          for (bool even : {true, false})
            for (bool accumulate : {false, true}) {
              check<bf16, false, float>(random, count, V, taps, K, even, accumulate);
              check<uint8_t, false, int32_t>(random, count, V, taps, K, even, accumulate);
              check<uint8_t, true, int32_t>(random, count, V, taps, K, even, accumulate);
            }
  for (i64 M : {1, 16, 33, 70})
    for (i64 K : {1, 32, 45}) check_attention(random, M, K);
  for (i64 rows : {1, 5, 16, 17, 33, 64, 100, 192, 200}) {  // all rows, once, in whole tiles but for the last
    const TileRows cut(rows, 32, 16);
    i64 sum = 0;
    for (i64 i = 0; i < cut.tiles; sum += cut[i++]) {
      CHECK(cut[i] > 0 && cut[i] <= 32);
      CHECK(i + 1 == cut.tiles || cut[i] % 16 == 0);
    }
    CHECK(sum == rows);
  }
  return finish();
}
