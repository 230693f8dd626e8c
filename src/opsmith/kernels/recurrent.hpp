// Recurrent layers (LSTM, GRU, RNN) over a batch of sequences, in one or both directions.
//
//   projected [T][B][D][G][H] = X @ W^T    the inputs' part, for all steps at once, made by gemm.hpp before this kernel
//   per step                               h [B][H] @ R^T [H][G * H], then the gates on vectors
//
// T steps, B sequences, D directions, G gates, H units. R is packed by blocks of gemm_nr units, the panels of all gates of a
// block one after another (compiler/pack.py: pack_recurrent), so that whoever computes a block has all that its units need.
//
// A step of one sequence reads all of R for 2 operations per number: it runs at the speed of the cache that R lies in. What
// threads can share is, in this order: directions, sequences (if R is small enough to be read by each), blocks of units.
#pragma once

#include <sched.h>

#include "gemm.hpp"
#include "math.hpp"

namespace opsmith {

enum class Cell { rnn, lstm, gru, gru_linear };  // gru_linear: linear_before_reset
inline constexpr int gates_of(Cell cell) { return cell == Cell::rnn ? 1 : cell == Cell::lstm ? 4 : 3; }

enum class Curve {
  affine,
  relu,
  leaky_relu,
  thresholded_relu,
  tanh,
  scaled_tanh,
  sigmoid,
  hard_sigmoid,
  elu,
  softsign,
  softplus
};
struct Activation {
  Curve curve;
  float alpha, beta;
};

struct RecurrentShape {
  i64 steps, batch, hidden, directions;
  bool reverse;                     // the only direction runs from the end
  i64 x_step, x_batch;              // rows of `projected` from one step to the next, from one sequence to the next
  i64 y_step, y_direction, y_batch;
  i64 state_direction, state_batch;  // of h0, c0, y_h, y_c
  float clip;                        // of what enters an activation; infinite: none
  bool input_forget;
  Activation activations[6];  // f, g, h of each direction (GRU: f, g; RNN: f)
};

template <class V>
[[gnu::noinline]] V activate(const Activation& a, V x) {
  switch (a.curve) {
    case Curve::affine: return mul_add(x, a.alpha, a.beta);
    case Curve::relu: return relu(x);
    case Curve::leaky_relu: return leaky_relu(x, a.alpha);
    case Curve::thresholded_relu: return thresholded_relu(x, a.alpha);
    case Curve::tanh: return tanh(x);
    case Curve::scaled_tanh: return a.alpha * tanh(a.beta * x);
    case Curve::sigmoid: return sigmoid(x);
    case Curve::hard_sigmoid: return hardsigmoid(x, a.alpha, a.beta);
    case Curve::elu: return elu(x, a.alpha);
    case Curve::softsign: return softsign(x);
    case Curve::softplus: return softplus(x);
  }
  return x;
}

// Where the panel of a gate and a block of units starts in packed R.
inline constexpr i64 recurrent_panel(i64 H, i64 gates, i64 direction, i64 block, i64 gate) {
  return gates * packed_size(H, H) * direction + H * (gates * block * gemm_nr + gate * panel_vectors(H, block) * W);
}

// R [D][G * H][H] -> packed, for weights that are known only at run time.
inline void pack_recurrent(const Pool& pool, i64 directions, i64 gates, i64 H, const float* r, float* packed) {
  const i64 blocks = panel_count(H);
  pool.parallel_for(directions * blocks, [&](i64 task) {
    const i64 d = task / blocks, block = task % blocks;
    for (i64 g = 0; g < gates; ++g)
      pack_panel(r + (d * gates + g) * H * H, 1, H, H, H, block,
                 packed + recurrent_panel(H, gates, d, block, g) - block * gemm_nr * H);
  });
}

// Both h (before and after a step) and what a cell keeps: c, or of a GRU r * h and z.
inline i64 recurrent_workspace(const RecurrentShape& s) {
  return 4 * round_up(s.directions * s.batch * s.hidden, 16) * static_cast<i64>(sizeof(float));
}

// f(round, part) for every part of a round, then of the next: threads stay for all rounds, because handing over a round of 20 us to a
// pool costs a good part of it. Whoever is there claims parts, its own first, whose weights lie in its cache; a thread waits only for
// parts that another one is at work on, so one thread alone, or one that comes late, is as right.
template <class Fn>
void in_rounds(const Pool& pool, i64 rounds, i64 parts, Fn&& f) {
  constexpr i64 most = 64;
  if (parts <= 1 || parts > most || pool.threads <= 1) {
    for (i64 round = 0; round < rounds; ++round) pool.parallel_for(parts, [&](i64 part) { f(round, part); });
    return;
  }
  alignas(64) i64 claimed[most] = {};  // rounds of each part that someone has taken
  alignas(64) i64 done = 0;            // parts of all rounds
  pool.parallel_for(min<i64>(pool.threads, parts), [&](i64 thread) {
    const i64 first = thread * parts / min<i64>(pool.threads, parts);
    for (i64 round = 0; round < rounds; ++round) {
      i64 now = __atomic_load_n(&done, __ATOMIC_ACQUIRE);
      for (i64 spins = 0; now < round * parts; now = __atomic_load_n(&done, __ATOMIC_ACQUIRE)) {
        if (++spins > 256) sched_yield();
        for (int i = 0; i < 32; ++i) __asm__ volatile("" ::: "memory");  // leaves the line to those who count
      }
      round = max(round, now / parts);  // the others may be far ahead
      for (i64 i = 0; round < rounds && i < parts; ++i) {
        const i64 part = (first + i) % parts;
        i64 expected = round;
        if (!__atomic_compare_exchange_n(claimed + part, &expected, round + 1, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) continue;
        f(round, part);
        __atomic_fetch_add(&done, 1, __ATOMIC_ACQ_REL);
      }
    }
  });
}

// The operands of a layer; those that are optional may be null.
template <Cell C, bool Standard, class TR>
struct Recurrent {
  static constexpr int G = gates_of(C);
  static constexpr int phases = C == Cell::gru ? 2 : 1;  // r must be known for all units before the candidates

  const RecurrentShape& s;
  const float* projected;
  const TR* packed;
  const float* bias;       // [D][2][G * H]
  const int32_t* lengths;  // [B]
  const float* peepholes;  // [D][3 * H]: i, o, f
  bool started;            // h0 was given; else the first h is 0
  float* y;
  float *states[2], *kept, *update;  // [D][B][H]

  i64 length(i64 b) const { return lengths ? lengths[b] : s.steps; }
  float* at(float* state, i64 d, i64 b) const { return state + (d * s.batch + b) * s.hidden; }

  template <int Which>
  OPSMITH_INLINE F curve(i64 d, F x) const {
    if constexpr (Standard)
      return Which == 0 && C != Cell::rnn ? sigmoid(x) : tanh(x);
    else
      return activate(s.activations[3 * d + Which], x);
  }
  OPSMITH_INLINE F clipped(F x) const {
    return s.clip < __builtin_inff() ? min_or_second(splat(s.clip), max_or_second(splat(-s.clip), x)) : x;  // NaN stays
  }

  // One phase of one step, for some sequences and some blocks of units.
  void step(i64 d, i64 step, int phase, i64 row_begin, i64 row_end, i64 block_begin, i64 block_end) const {
    const i64 H = s.hidden;
    const int first = phase == 0 ? 0 : 2, last = C == Cell::gru && phase == 0 ? 2 : G;
    float* source = C == Cell::gru && phase == 1 ? kept : states[step & 1];
    float tiles[G][gemm_mr * gemm_nr];
    for (i64 block = block_begin; block < block_end; ++block) {
      const i64 unit = block * gemm_nr, units = min(gemm_nr, H - unit), vectors = panel_vectors(H, block);
      const TileRows heights(row_end - row_begin);
      i64 row = row_begin;
      for (i64 t = 0; t < heights.tiles; row += heights[t++]) {
        const float* sources[gemm_mr];
        bool any_left = false;
        for (i64 r = 0; r < heights[t]; ++r) {
          sources[r] = at(source, d, row + r);
          any_left |= step < length(row + r);
        }
        if (step == 0 && !started) {
          memset(tiles, 0, sizeof tiles);
        } else if (any_left) {
          for (int g = first; g < last; ++g)
            micro_for<float, TR>(heights[t], vectors)(sources, 0, 1, H, packed + recurrent_panel(H, G, d, block, g),
                                                      tiles[g], false);
        }
        for (i64 r = 0; r < heights[t]; ++r) {
          if (step < length(row + r))
            finish(d, row + r, step, phase, unit, units, tiles, r * gemm_nr);
          else if (phase == phases - 1)
            rest(d, row + r, step, unit, units);
        }
      }
    }
  }

  // A sequence that has ended: its state stays, its outputs are 0.
  void rest(i64 d, i64 b, i64 step, i64 unit, i64 units) const {
    memcpy(at(states[(step + 1) & 1], d, b) + unit, at(states[step & 1], d, b) + unit, sizeof(float) * units);
    if (y) memset(y + step * s.y_step + d * s.y_direction + b * s.y_batch + unit, 0, sizeof(float) * units);
  }

  // The gates of some units of one sequence; the sums over h are in `tiles` from `from` on.
  void finish(i64 d, i64 b, i64 step, int phase, i64 unit, i64 units, const float (*tiles)[gemm_mr * gemm_nr], i64 from) const {
    const i64 H = s.hidden, time = s.reverse || d == 1 ? length(b) - 1 - step : step;
    const float* x = projected + ((time * s.x_step + b * s.x_batch) * s.directions + d) * G * H + unit;
    const float* wb = bias ? bias + 2 * d * G * H + unit : nullptr;
    const float* pre = at(states[step & 1], d, b) + unit;
    float* post = at(states[(step + 1) & 1], d, b) + unit;
    float* mine = at(kept, d, b) + unit;
    float* out = y ? y + time * s.y_step + d * s.y_direction + b * s.y_batch + unit : nullptr;
    [[maybe_unused]] float* z = at(update, d, b) + unit;
    [[maybe_unused]] const float* p = peepholes ? peepholes + 3 * d * H + unit : nullptr;
    for_lanes(units, [&](i64 n, auto lanes) __attribute__((always_inline)) {
      auto sum = [&](int g) __attribute__((always_inline)) { return load(tiles[g] + from + n, Full{}); };
      auto outside = [&](int g) __attribute__((always_inline)) {  // what does not depend on h
        const F v = load(x + g * H + n, lanes);
        return wb ? v + load(wb + g * H + n, lanes) : v;
      };
      auto inside = [&](int g) __attribute__((always_inline)) { return wb ? sum(g) + load(wb + (G + g) * H + n, lanes) : sum(g); };
      F h;
      if constexpr (C == Cell::rnn) {
        h = curve<0>(d, clipped(outside(0) + inside(0)));
      } else if constexpr (C == Cell::lstm) {
        const F before = load(mine + n, lanes);
        auto peep = [&](int gate, F c, F v) __attribute__((always_inline)) { return p ? v + load(p + gate * H + n, lanes) * c : v; };
        const F i = curve<0>(d, clipped(peep(0, before, outside(0) + inside(0))));
        const F f = s.input_forget ? 1.0f - i : curve<0>(d, clipped(peep(2, before, outside(2) + inside(2))));
        const F c = f * before + i * curve<1>(d, clipped(outside(3) + inside(3)));
        store(mine + n, c, lanes);
        h = curve<0>(d, clipped(peep(1, c, outside(1) + inside(1)))) * curve<2>(d, c);
      } else if constexpr (C == Cell::gru_linear) {
        const F keep = curve<0>(d, clipped(outside(0) + inside(0))), r = curve<0>(d, clipped(outside(1) + inside(1)));
        const F candidate = curve<1>(d, clipped(outside(2) + r * inside(2)));
        h = (1.0f - keep) * candidate + keep * load(pre + n, lanes);
      } else {
        if (phase == 0) {
          store(z + n, curve<0>(d, clipped(outside(0) + inside(0))), lanes);
          store(mine + n, curve<0>(d, clipped(outside(1) + inside(1))) * load(pre + n, lanes), lanes);
          return;
        }
        const F keep = load(z + n, lanes), candidate = curve<1>(d, clipped(outside(2) + inside(2)));
        h = (1.0f - keep) * candidate + keep * load(pre + n, lanes);
      }
      store(post + n, h, lanes);
      if (out) store(out + n, h, lanes);
    });
  }

  void begin(const float* h0, const float* c0) const {
    for (i64 d = 0; d < s.directions; ++d) {
      for (i64 b = 0; b < s.batch; ++b) {
        const i64 from = d * s.state_direction + b * s.state_batch;
        put(at(states[0], d, b), h0 ? h0 + from : nullptr);
        if (C == Cell::lstm) put(at(kept, d, b), c0 ? c0 + from : nullptr);
      }
    }
  }
  void end(float* y_h, float* y_c) const {
    for (i64 d = 0; d < s.directions; ++d) {
      for (i64 b = 0; b < s.batch; ++b) {  // an empty sequence ends with zeros, as ORT has it
        const i64 to = d * s.state_direction + b * s.state_batch;
        const bool empty = length(b) == 0;
        if (y_h) put(y_h + to, empty ? nullptr : at(states[s.steps & 1], d, b));
        if (y_c) put(y_c + to, empty ? nullptr : at(kept, d, b));
      }
    }
  }
  void put(float* to, const float* from) const {
    if (from)
      memcpy(to, from, sizeof(float) * static_cast<size_t>(s.hidden));
    else
      memset(to, 0, sizeof(float) * static_cast<size_t>(s.hidden));
  }

  void run(const Pool& pool) const {
    if (s.batch <= 0) return;
    const i64 blocks = panel_count(s.hidden), weights = G * s.hidden * s.hidden;
    // Nanoseconds of a step, roughly: 50 multiply-adds each, or 40 bytes of weights.
    const double time = static_cast<double>(s.directions * weights) * max(static_cast<double>(s.batch) / 50.0, 0.1);
    const bool alone = pool.threads <= 1 || time * static_cast<double>(s.steps) < 20e3;
    const bool small = weights * static_cast<i64>(sizeof(TR)) <= 512 * 1024;  // half of a usual L2
    const i64 share = alone ? 1 : ceil_div(pool.threads, s.directions);      // threads for one direction
    const i64 parts = small ? min(s.batch, share) : 1;
    if (alone || parts >= share || time < 20e3) {  // each part by itself, from the first step to the last
      auto part = [&](i64 task) {
        const i64 d = task / parts, i = task % parts;
        for (i64 t = 0; t < s.steps; ++t)
          for (int phase = 0; phase < phases; ++phase)
            step(d, t, phase, s.batch * i / parts, s.batch * (i + 1) / parts, 0, blocks);
      };
      if (alone)
        for (i64 d = 0; d < s.directions; ++d) part(d);
      else
        pool.parallel_for(s.directions * parts, part);
      return;
    }
    const i64 splits = min(blocks, min(share, static_cast<i64>(time / 5e3)));
    in_rounds(pool, s.steps * phases, s.directions * splits, [&](i64 round, i64 part) {
      const i64 d = part / splits, i = part % splits;
      step(d, round / phases, static_cast<int>(round % phases), 0, s.batch, blocks * i / splits, blocks * (i + 1) / splits);
    });
  }
};

template <Cell C, bool Standard, class TR>
void recurrent(const Pool& pool, const RecurrentShape& s, const float* projected, const TR* packed, const float* bias,
               const int32_t* lengths, const float* h0, const float* c0, const float* peepholes, float* y, float* y_h, float* y_c,
               void* workspace) {
  float* space = static_cast<float*>(workspace);
  const i64 part = round_up(s.directions * s.batch * s.hidden, 16);
  const Recurrent<C, Standard, TR> layer{s, projected, packed, bias, lengths, peepholes, h0 != nullptr, y, {space, space + part}, space + 2 * part, space + 3 * part};
  layer.begin(h0, c0);
  layer.run(pool);
  layer.end(y_h, y_c);
}

// Whether all lengths are possible: the kernels index by them.
inline bool lengths_fit(i64 batch, i64 steps, const int32_t* lengths) {
  for (i64 b = 0; b < batch; ++b)
    if (lengths[b] < 0 || lengths[b] > steps) return false;
  return true;
}

// The same in plain loops, one sequence after the other.
template <Cell C, bool Standard, class TR>
void recurrent_reference(const Pool&, const RecurrentShape& s, const float* projected, const TR* packed, const float* bias,
                         const int32_t* lengths, const float* h0, const float* c0, const float* peepholes, float* y, float* y_h,
                         float* y_c, void* workspace) {
  constexpr int G = gates_of(C);
  const i64 H = s.hidden;
  float* h = static_cast<float*>(workspace);
  float *next = h + H, *c = h + 2 * H, *reset = h + 3 * H;
  for (i64 d = 0; d < s.directions; ++d) {
    const Activation* act = s.activations + 3 * d;
    auto weight = [&](int g, i64 u, i64 k) {
      const i64 block = u / gemm_nr;
      return to_float(packed[recurrent_panel(H, G, d, block, g) + k * panel_vectors(H, block) * W + u % gemm_nr]);
    };
    for (i64 b = 0; b < s.batch; ++b) {
      const i64 state = d * s.state_direction + b * s.state_batch, length = lengths ? lengths[b] : s.steps;
      for (i64 u = 0; u < H; ++u) h[u] = h0 ? h0[state + u] : 0, c[u] = c0 ? c0[state + u] : 0;
      for (i64 t = 0; t < s.steps; ++t) {
        const i64 time = (s.reverse || d == 1) && t < length ? length - 1 - t : t;
        float* out = y ? y + time * s.y_step + d * s.y_direction + b * s.y_batch : nullptr;
        const float* x = projected + ((time * s.x_step + b * s.x_batch) * s.directions + d) * G * H;
        auto outside = [&](int g, i64 u) { return x[g * H + u] + (bias ? bias[(2 * d * G + g) * H + u] : 0); };
        auto inside = [&](int g, i64 u, const float* from) {
          float sum = bias ? bias[(2 * d * G + G + g) * H + u] : 0;
          for (i64 k = 0; k < H; ++k) sum += from[k] * weight(g, u, k);
          return sum;
        };
        auto clip = [&](float v) { return v > s.clip ? s.clip : v < -s.clip ? -s.clip : v; };
        auto gate = [&](int g, i64 u) { return activate(act[0], clip(outside(g, u) + inside(g, u, h))); };
        if (t >= length) {
          for (i64 u = 0; u < H && out; ++u) out[u] = 0;
          continue;
        }
        if constexpr (C == Cell::gru)
          for (i64 u = 0; u < H; ++u) reset[u] = gate(1, u) * h[u];
        for (i64 u = 0; u < H; ++u) {
          if constexpr (C == Cell::rnn) {
            next[u] = gate(0, u);
          } else if constexpr (C == Cell::lstm) {
            auto peep = [&](int which) { return peepholes ? peepholes[(3 * d + which) * H + u] * c[u] : 0; };
            const float i = activate(act[0], clip(outside(0, u) + inside(0, u, h) + peep(0)));
            const float f = s.input_forget ? 1 - i : activate(act[0], clip(outside(2, u) + inside(2, u, h) + peep(2)));
            c[u] = f * c[u] + i * activate(act[1], clip(outside(3, u) + inside(3, u, h)));
            next[u] = activate(act[0], clip(outside(1, u) + inside(1, u, h) + peep(1))) * activate(act[2], c[u]);
          } else {
            const float z = gate(0, u);
            const float old = C == Cell::gru ? inside(2, u, reset) : gate(1, u) * inside(2, u, h);
            next[u] = (1 - z) * activate(act[1], clip(outside(2, u) + old)) + z * h[u];
          }
        }
        for (i64 u = 0; u < H; ++u) {
          h[u] = next[u];
          if (out) out[u] = h[u];
        }
      }
      for (i64 u = 0; u < H; ++u) {
        if (y_h) y_h[state + u] = length ? h[u] : 0;
        if (y_c) y_c[state + u] = length ? c[u] : 0;
      }
    }
  }
}

}  // namespace opsmith
