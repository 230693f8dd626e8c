// attention.hpp against its scalar reference: odd sizes, all masks, grouped heads, strides, splits over keys, half storage.
#include "attention.hpp"

#include <memory>

#include "harness.hpp"

namespace opsmith {

using test::expect_close;

// [batch, heads, length, size] inside rows of `row` elements: contiguous heads, or the (batch, length, heads, size)
// layout that a projection leaves behind.
struct Layout {
  i64 batch, head, row, total;
  Layout(i64 B, i64 H, i64 L, i64 size, bool interleaved) {
    row = interleaved ? H * size : size;
    head = interleaved ? size : L * size;
    batch = H * L * size;
    total = B * batch;
  }
};

template <class T>
static std::vector<T> random_values(test::Random& random, i64 n, float scale) {
  std::vector<T> v(static_cast<size_t>(n) + 1);
  for (auto& x : v) x = from_float<T>(scale * random.normal());
  v.pop_back();
  v.shrink_to_fit();  // exact end, so that ASan sees a read past it
  return v;
}

struct Case {
  i64 batch, heads, kv_heads, queries, keys, head_size, value_size;
  bool causal = false;
  float later = 1;  // factor of the second half of the keys
  float cap = 0;
};

static AttentionShape shape_of(const Case& c, bool interleaved) {
  const Layout q(c.batch, c.heads, c.queries, c.head_size, interleaved), o(c.batch, c.heads, c.queries, c.value_size, interleaved);
  const Layout k(c.batch, c.kv_heads, c.keys, c.head_size, interleaved), v(c.batch, c.kv_heads, c.keys, c.value_size, interleaved);
  return {c.batch, c.heads, c.kv_heads, c.queries, c.keys, c.head_size, c.value_size,
          q.batch, q.head, q.row, k.batch, k.head, k.row, v.batch, v.head, v.row, o.batch, o.head, o.row,
          0.7f / static_cast<float>(::sqrt(static_cast<double>(c.head_size))), c.causal, c.cap};
}

template <bool Zero, class TQ, class TK, class TO, bool Pairs = false, class Mask>
static void check(const Pool& pool, const Case& c, bool interleaved, const Mask& mask, double tolerance) {
  const AttentionShape s = shape_of(c, interleaved);
  test::Random random(static_cast<uint64_t>(c.queries * 1009 + c.keys * 31 + c.head_size));
  const auto q = random_values<TQ>(random, c.batch * s.q_batch, 2);
  auto k = random_values<TK>(random, c.batch * s.k_batch, 2);
  if (c.later != 1.0f)
    for (i64 b = 0; b < c.batch; ++b)
      for (i64 h = 0; h < c.kv_heads; ++h)
        for (i64 j = c.keys / 2; j < c.keys; ++j)
          for (i64 d = 0; d < c.head_size; ++d) {
            TK& x = k[static_cast<size_t>(b * s.k_batch + h * s.k_head + j * s.k_row + d)];
            x = from_float<TK>(c.later * to_float(x));
          }
  const auto v = random_values<TK>(random, c.batch * s.v_batch, 1);
  const size_t n = static_cast<size_t>(c.batch * s.o_batch);
  std::vector<TO> out(n, from_float<TO>(-77)), want(n);
  std::vector<char> workspace(static_cast<size_t>(attention_workspace(s)));
  attention<Zero, Pairs>(pool, s, q.data(), k.data(), v.data(), out.data(), mask, workspace.data());
  attention_reference<Zero>(s, q.data(), k.data(), v.data(), want.data(), mask);
  std::vector<float> a, b;
  for (auto x : out) a.push_back(to_float(x));
  for (auto x : want) b.push_back(to_float(x));
  char what[200];
  snprintf(what, sizeof what, "attention b%d h%d/%d q%d k%d d%d/%d%s%s mask %d threads %d", int(c.batch), int(c.heads),
           int(c.kv_heads), int(c.queries), int(c.keys), int(c.head_size), int(c.value_size), c.causal ? " causal" : "",
           interleaved ? " interleaved" : "", __is_same(Mask, BiasMask) ? 1 : __is_same(Mask, BoolMask) ? 2 : 0, pool.threads);
  expect_close(what, a.data(), b.data(), static_cast<i64>(n), tolerance, tolerance);
}

// Products in bf16: on every set but that of single floats, which has no room for pairs.
inline constexpr bool kPairs = W > 1;

enum class Fill { random, all_masked_rows, lowest };

// Masks of every broadcast form: full, per key, per query and key, per head.
template <class Mask>
static void check_masks(const Pool& pool, const Case& c, Fill fill) {
  using T = __typeof__(*Mask::p);
  const i64 B = c.batch, H = c.heads, S = c.queries, T_ = c.keys;
  test::Random random(17);
  const size_t full = static_cast<size_t>(B * H * S * T_);
  std::unique_ptr<float[]> bias(new float[full]);
  std::unique_ptr<bool[]> seen(new bool[full]);
  for (size_t i = 0; i < full; ++i) {
    const bool see = random.below(4) != 0 && !(fill != Fill::random && static_cast<i64>(i) / T_ % 3 == 1);
    seen[i] = see;
    bias[i] = see ? random.normal() : fill == Fill::lowest ? -3.40282347e38f : -kInfinity;
  }
  const T* p;
  if constexpr (__is_same(Mask, BiasMask))
    p = bias.get();
  else
    p = seen.get();
  const Mask masks[] = {{p, H * S * T_, S * T_, T_, 1}, {p, T_, 0, 0, 1}, {p, 0, 0, T_, 1}, {p, 0, T_, 0, 1},
                        {p, 0, 0, 1, S}, {p, 0, 0, T_, 0}};
  for (const Mask& mask : masks) {
    if (mask.col == 1 && mask.batch == T_ && B * T_ > static_cast<i64>(full)) continue;
    check<false, float, float, float>(pool, c, true, mask, 2e-5);
    check<true, float, float, float>(pool, c, false, mask, 2e-5);
    check<true, bf16, bf16, float, kPairs>(pool, c, false, mask, kPairs ? 4e-2 : 2e-5);
  }
}

// Windows of the keys, another for every query and batch: what no lane sees is not read, so it may hold anything.
static void check_windows(const Pool& pool, const Case& c) {
  const i64 B = c.batch, S = c.queries, T = c.keys;
  std::unique_ptr<bool[]> seen(new bool[static_cast<size_t>(B * S * T)]);
  std::unique_ptr<float[]> bias(new float[static_cast<size_t>(B * S * T)]);
  for (i64 width : {i64{1}, i64{20}, T / 2})
    for (i64 shift : {i64{0}, i64{37}}) {
      const i64 last = T - 1 - min<i64>(shift, T - 1);  // of the last query
      for (i64 i = 0; i < B * S * T; ++i) {
        const i64 query = last - (S - 1 - i / T % S) - i / (S * T), key = i % T;
        seen[i] = key <= query && key > query - width;
        bias[i] = seen[i] ? 0.25f : -kInfinity;
      }
      check<true, float, float, float>(pool, c, true, BoolMask{seen.get(), S * T, 0, T, 1}, 2e-5);
      check<true, float, float, float>(pool, c, false, BiasMask{bias.get(), S * T, 0, T, 1}, 2e-5);
      AttentionShape s = shape_of(c, false);
      test::Random random(5);
      const auto q = random_values<float>(random, B * s.q_batch, 2);
      auto k = random_values<float>(random, B * s.k_batch, 2), v = random_values<float>(random, B * s.v_batch, 2);
      std::vector<float> out(static_cast<size_t>(B * s.o_batch)), again(out.size());
      std::vector<char> workspace(static_cast<size_t>(attention_workspace(s)));
      const BoolMask mask{seen.get(), S * T, 0, T, 1};
      attention<true>(pool, s, q.data(), k.data(), v.data(), out.data(), mask, workspace.data());
      for (i64 i = 0; i < B * c.kv_heads; ++i)
        for (i64 j = 0; j < T; ++j) {
          const i64 from = last - (S - 1) - i / c.kv_heads - width, to = last - i / c.kv_heads;
          if (j > from && j <= to) continue;
          for (i64 d = 0; d < c.head_size; ++d) k[(i * T + j) * c.head_size + d] = __builtin_nanf("");
          for (i64 d = 0; d < c.value_size; ++d) v[(i * T + j) * c.value_size + d] = __builtin_nanf("");
        }
      attention<true>(pool, s, q.data(), k.data(), v.data(), again.data(), mask, workspace.data());
      expect_close("a window reads its window only", again.data(), out.data(), static_cast<i64>(out.size()), 0, 0);
    }
}

static int run() {
  test::Threads threads(3);
  const Pool pool = threads.pool(), serial = test::serial();
  const Case cases[] = {
      {1, 1, 1, 1, 1, 1, 1},     {1, 2, 2, 1, 7, 8, 8},      {2, 3, 3, 5, 9, 4, 6},      {1, 2, 2, 16, 16, 16, 16},
      {1, 2, 2, 17, 33, 40, 40}, {2, 2, 2, 48, 64, 40, 40},  {1, 1, 1, 100, 130, 80, 80}, {1, 2, 2, 61, 77, 33, 47},
      {1, 4, 2, 3, 50, 16, 24},  {1, 8, 2, 1, 700, 64, 64},  {2, 6, 1, 20, 40, 24, 24},  {1, 1, 1, 9, 1000, 64, 64},
      {1, 1, 1, 1, 1500, 128, 128}, {1, 1, 1, 20, 150, 512, 512}, {1, 1, 1, 40, 20, 2000, 2100}, {3, 5, 5, 4, 65, 7, 3},
      {1, 16, 16, 300, 10, 8, 8}, {1, 2, 2, 1, 129, 65, 33}, {2, 3, 3, 1, 300, 20, 36},
  };
  const Fill fills[] = {Fill::random, Fill::all_masked_rows, Fill::lowest};
  int turn = 0;
  for (Case c : cases)
    for (bool causal : {false, true}) {
      c.causal = causal;
      check<false, float, float, float>(pool, c, false, NoMask{}, 2e-5);
      check<false, float, float, float>(serial, c, true, NoMask{}, 2e-5);
      check<false, bf16, bf16, float, kPairs>(pool, c, false, NoMask{}, kPairs ? 4e-2 : 2e-5);
      check<false, float, float, bf16, kPairs>(serial, c, true, NoMask{}, 4e-2);
      if (c.queries * c.keys * c.head_size > 60000) continue;
      check<false, f16, f16, f16>(pool, c, false, NoMask{}, 4e-3);
      check<true, float, f16, float>(pool, c, true, NoMask{}, 2e-5);
      // Every filling meets every kind and form of mask, each at other sizes.
      check_masks<BiasMask>(pool, c, fills[turn % 3]);
      check_masks<BoolMask>(pool, c, fills[(turn + 1) % 3]);
      ++turn;
    }
  {  // f16 with a head that only fits in small blocks, and keys = 0
    check<false, f16, f16, float>(pool, {1, 1, 1, 20, 100, 512, 512}, false, NoMask{}, 2e-5);
    check<false, float, float, float>(pool, {2, 2, 2, 3, 0, 8, 8}, false, NoMask{}, 0);
    check<false, float, float, float>(pool, {2, 2, 2, 0, 5, 8, 8}, false, NoMask{}, 0);
    check<false, float, float, float>(pool, {0, 2, 2, 3, 5, 8, 8}, false, NoMask{}, 0);
  }
  for (Case c : {Case{1, 4, 2, 1, 300, 16, 16}, Case{2, 2, 2, 40, 130, 24, 24}, Case{1, 1, 1, 1, 1500, 64, 64}}) {
    for (bool causal : {false, true}) {
      c.causal = causal, c.cap = 1.5f;  // a soft cap that bends most scores
      check<false, float, float, float>(pool, c, true, NoMask{}, 2e-5);
      check_masks<BoolMask>(pool, c, Fill::random);
      check_masks<BiasMask>(pool, c, Fill::lowest);
    }
    check_windows(pool, c);
  }
  {  // causal with more queries than keys: the first rows see nothing
    check<false, float, float, float>(pool, {1, 2, 2, 30, 20, 8, 8, true}, false, NoMask{}, 2e-5);
    check<true, float, float, float>(pool, {1, 2, 2, 30, 20, 8, 8, true}, false, NoMask{}, 2e-5);
  }
  {  // later scores far above the first ones, and far below: the maximum in use must change, or must not matter
    for (float later : {8.0f, 0.01f})
      for (bool causal : {false, true}) {
        check<false, float, float, float>(pool, {1, 2, 2, 100, 400, 40, 40, causal, later}, true, NoMask{}, 2e-4);
        check<false, float, float, float>(serial, {2, 1, 1, 33, 1000, 64, 24, causal, later}, false, NoMask{}, 2e-4);
        check<false, float, f16, float>(pool, {1, 2, 1, 100, 400, 40, 40, causal, later}, true, NoMask{}, 2e-4);
        check<false, bf16, bf16, float, kPairs>(pool, {1, 2, 1, 100, 400, 40, 40, causal, later}, true, NoMask{}, 2e-1);
      }
  }
  return test::finish();
}

}  // namespace opsmith

int main() { return opsmith::run(); }
