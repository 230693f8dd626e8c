// Recurrent layers against their plain loops: all cells, around every tile edge, with ends of sequences, clips, peepholes.
#include "recurrent.hpp"

#include "arrays.hpp"

using namespace opsmith;
using namespace opsmith::test;

template <Cell C, bool Standard, class TR = float>
void check(const Pool& pool, Random& random, i64 T, i64 B, i64 H, i64 D, int flags) {
  constexpr int G = gates_of(C);
  const bool batch_first = flags & 1, with_bias = flags & 2, ends = flags & 4, initial = flags & 8, peep = flags & 16;
  RecurrentShape s{T, B, H, D, bool(flags & 32), B, 1, D * B * H, B * H, H, B * H, H, __builtin_inff(), bool(flags & 64), {}};
  if (batch_first) s.x_step = 1, s.x_batch = T, s.y_batch = T * D * H, s.y_step = D * H, s.y_direction = H, s.state_batch = D * H, s.state_direction = H;
  if (flags & 128) s.clip = 0.3f;
  for (int i = 0; i < 6; ++i) {
    const bool first = i % 3 == 0 && C != Cell::rnn;
    const Curve other = static_cast<Curve>(random.below(11));
    s.activations[i] = {Standard ? (first ? Curve::sigmoid : Curve::tanh) : other, 0.4f, 0.3f};
  }
  Array<float> x(T * B * D * G * H, random), bias(2 * D * G * H, random), h0(D * B * H, random), c0(D * B * H, random), p(3 * D * H, random);
  Array<float> r(D * G * H * H, random), flat(D * G * packed_size(H, H));
  for (i64 i = 0; i < r.size; ++i) r.data[i] *= 0.3f;
  pack_recurrent(pool, D, G, H, r.data, flat.data);
  Array<TR> packed(flat.size);
  for (i64 i = 0; i < flat.size; ++i)
    if constexpr (HalfStorage<TR>)
      packed.data[i] = {narrow(splat(flat.data[i]), TR{})[0]};
    else
      packed.data[i] = flat.data[i];
  Array<int32_t> lengths(B);
  for (i64 b = 0; b < B; ++b) lengths.data[b] = static_cast<int32_t>(random.below(T + 1));
  Array<char> workspace(recurrent_workspace(s) + 4 * H * 4);
  Array<float> y(T * D * B * H, random), y_h(D * B * H, random), y_c(D * B * H, random), y2(y), y_h2(y_h), y_c2(y_c);
  auto call = [&](auto f, float* a, float* b, float* c) {
    f(pool, s, x.data, packed.data, with_bias ? bias.data : nullptr, ends ? lengths.data : nullptr, initial ? h0.data : nullptr,
      initial ? c0.data : nullptr, peep ? p.data : nullptr, a, b, C == Cell::lstm ? c : nullptr, static_cast<void*>(workspace.data));
  };
  call([](auto&&... a) { recurrent<C, Standard>(a...); }, y.data, y_h.data, y_c.data);
  call([](auto&&... a) { recurrent_reference<C, Standard>(a...); }, y2.data, y_h2.data, y_c2.data);
  char name[100];
  snprintf(name, sizeof name, "cell %d T=%d B=%d H=%d D=%d flags=%d", int(C), int(T), int(B), int(H), int(D), flags);
  expect_near(name, y, y2, 2e-5);
  expect_near(name, y_h, y_h2, 2e-5);
  expect_near(name, y_c, y_c2, 2e-5);
  call([](auto&&... a) { recurrent<C, Standard>(a...); }, nullptr, y_h.data, nullptr);  // without the sequence
  expect_near(name, y_h, y_h2, 2e-5);
}

template <Cell C>
void check_cell(const Pool& one, const Pool& three, Random& random) {
  for (int flags = 0; flags < 256; flags += 1 + random.below(5)) {
    const i64 T = random.below(6), B = 1 + random.below(10), H = 1 + random.below(70), D = 1 + random.below(2);
    check<C, true>(flags % 3 ? one : three, random, T, B, H, D, flags);
    check<C, false>(flags % 3 ? three : one, random, T, B, H, D, flags);
  }
  check<C, true>(three, random, 2, 1, 400, 1, 2);    // blocks of units are shared
  check<C, true>(three, random, 2, 13, 401, 1, 14);
  check<C, true>(three, random, 30, 5, 60, 2, 14);   // sequences are shared
  check<C, true, f16>(three, random, 3, 2, 50, 2, 2);
  check<C, true>(three, random, 3, 0, 50, 2, 2);
}

// Every part of a round once, and no round before the one before it has ended; also where a pool runs its tasks one after another.
static void check_rounds(const Pool& pool, i64 rounds, i64 parts) {
  Array<i64> runs(rounds * parts);
  for (i64 i = 0; i < runs.size; ++i) runs.data[i] = 0;
  i64 early = 0;
  in_rounds(pool, rounds, parts, [&](i64 round, i64 part) {
    for (i64 i = 0; i < parts && round > 0; ++i)
      if (__atomic_load_n(runs.data + (round - 1) * parts + i, __ATOMIC_ACQUIRE) != 1) __atomic_fetch_add(&early, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(runs.data + round * parts + part, 1, __ATOMIC_ACQ_REL);
  });
  CHECK(early == 0);
  for (i64 i = 0; i < runs.size; ++i) CHECK(runs.data[i] == 1);
}

int main() {
  Random random;
  Threads threads(3);
  Pool one = serial(), three = threads.pool();
  check_cell<Cell::rnn>(one, three, random);
  check_cell<Cell::lstm>(one, three, random);
  check_cell<Cell::gru>(one, three, random);
  check_cell<Cell::gru_linear>(one, three, random);
  const Pool lonely{[](void*, Pool::Task task, size_t total, void* user) { for (size_t i = total; i-- > 0;) task(user, i); }, nullptr, 3};
  for (i64 parts : {0, 1, 2, 3, 7, 100})
    for (i64 rounds : {0, 1, 300}) check_rounds(one, rounds, parts), check_rounds(three, rounds, parts), check_rounds(lonely, rounds, parts);
  int32_t lengths[] = {0, 3, 4};
  CHECK(lengths_fit(3, 4, lengths) && !lengths_fit(3, 3, lengths));
  return finish();
}
