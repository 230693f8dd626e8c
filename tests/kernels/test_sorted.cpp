// TopK against a stable sort, products of doubles and integers and the position of an extreme against plain loops: around tile edges.
#include <algorithm>

#include "counted.hpp"
#include "indexing.hpp"
#include "matmul_plain.hpp"

#include "arrays.hpp"

using namespace opsmith;
using namespace opsmith::test;

template <bool Largest, class T>
void check_top_k(const Pool& pool, Random& random, i64 outer, i64 axis, i64 inner, i64 k, bool holes) {
  std::vector<T> x(static_cast<size_t>(outer * axis * inner)), values(static_cast<size_t>(outer * k * inner));
  for (auto& v : x) {  // with many equal ones
    v = static_cast<T>(random.below(20));
    if constexpr (!is_whole<T>)
      if (holes && random.below(9) == 0) v = static_cast<T>(__builtin_nan(""));
  }
  std::vector<i64> where(values.size());
  top_k<Largest>(pool, outer, axis, inner, k, x.data(), values.data(), where.data());
  for (i64 r = 0; r < outer * inner; ++r) {
    std::vector<i64> order(static_cast<size_t>(axis));
    auto at = [&](i64 i) { return x[static_cast<size_t>((r / inner * axis + i) * inner + r % inner)]; };
    for (i64 i = 0; i < axis; ++i) order[static_cast<size_t>(i)] = i;
    std::stable_sort(order.begin(), order.end(), [&](i64 a, i64 b) { return beats<Largest>(at(a), at(b)); });
    for (i64 j = 0; j < k; ++j) CHECK(where[static_cast<size_t>((r / inner * k + j) * inner + r % inner)] == order[static_cast<size_t>(j)]);
  }
}

template <class T>
void check_matmul(const Pool& pool, Random& random, i64 m, i64 n, i64 k, bool transposed) {
  std::vector<T> a(static_cast<size_t>(2 * m * k)), b(static_cast<size_t>(k * n)), c(static_cast<size_t>(2 * m * n));
  for (auto* v : {&a, &b})
    for (auto& x : *v) x = static_cast<T>(random.below(200)) - static_cast<T>(100);
  const i64 b_row = transposed ? 1 : n, b_col = transposed ? k : 1;
  matmul_plain(pool, Sizes{1, {2}}, m, n, k, a.data(), Sizes{1, {m * k}}, k, 1, b.data(), Sizes{1, {0}}, b_row, b_col, c.data());
  for (i64 r = 0; r < 2 * m; ++r)
    for (i64 j = 0; j < n; ++j) {
      Wide<T> sum = 0;
      for (i64 i = 0; i < k; ++i)
        sum += static_cast<Wide<T>>(a[static_cast<size_t>(r * k + i)]) * static_cast<Wide<T>>(b[static_cast<size_t>(i * b_row + j * b_col)]);
      CHECK(c[static_cast<size_t>(r * n + j)] == static_cast<T>(sum));
    }
}

template <bool Last>
void check_arg(const Pool& pool, Random& random, i64 outer, i64 axis, i64 inner) {
  std::vector<float> x(static_cast<size_t>(outer * axis * inner));
  for (auto& v : x) v = random.below(30) ? static_cast<float>(random.below(9)) : __builtin_nanf("");
  std::vector<int64_t> most(static_cast<size_t>(outer * inner)), least(most);
  argmax(pool, outer, axis, inner, x.data(), most.data(), Last);
  argmin(pool, outer, axis, inner, x.data(), least.data(), Last);
  for (i64 r = 0; r < outer * inner; ++r) {
    auto at = [&](i64 i) { return x[static_cast<size_t>((r / inner * axis + i) * inner + r % inner)]; };
    i64 high = 0, low = 0;
    for (i64 i = 1; i < axis; ++i) {
      if (detail::better<true, Last>(at(i), at(high))) high = i;
      if (detail::better<false, Last>(at(i), at(low))) low = i;
    }
    CHECK(most[static_cast<size_t>(r)] == high && least[static_cast<size_t>(r)] == low);
  }
}

int main() {
  Random random;
  Threads threads(3);
  for (const Pool& pool : {serial(), threads.pool()}) {
    for (i64 axis : {1, 5, 64, 65, 200, 1000})
      for (i64 inner : {1, 3})
        for (i64 k : {i64(1), min<i64>(axis, 7), axis / 2, axis}) {
          check_top_k<true, float>(pool, random, 2, axis, inner, k, axis == 200);
          check_top_k<false, float>(pool, random, 1, axis, inner, k, axis == 200);
          check_top_k<true, int64_t>(pool, random, 2, axis, inner, k, false);
        }
    for (i64 m : {1, 3, 4, 9})
      for (i64 n : {1, 15, 16, 33})
        for (bool transposed : {false, true}) {
          check_matmul<double>(pool, random, m, n, 7, transposed);
          check_matmul<int32_t>(pool, random, m, n, 7, transposed);
          check_matmul<int64_t>(pool, random, m, n, 0, transposed);
        }
    for (i64 inner : {1, 2, 17, 70})
      for (i64 axis : {1, 2, 9}) check_arg<true>(pool, random, 3, axis, inner), check_arg<false>(pool, random, 3, axis, inner);
  }
  return finish();
}
