// Elementwise maps over strided tensors: out[i, j, ...] = body(a[i, j, ...], b[i, j, ...], ...).
//
// A Grid holds the output's dims and every operand's strides (0 where it is broadcast). Neighbouring dims that all operands
// traverse evenly are merged first, so a dense map is one long row. Rows are cut into tasks; inside a row full vectors are
// followed by one tail. Operands whose innermost stride is 0 are read from a vector of copies, so the loop has no branches.
//
// map_scalar is the plain reference of the same meaning, and serves every element type that has no vector form.
#pragma once

#include "base.hpp"
#include "math.hpp"
#include "types.hpp"

namespace opsmith {

inline constexpr int kGridRank = 10;

struct Operand {
  const void* data;
  i64 strides[kGridRank];
};

template <int N>
struct Grid {
  int rank;
  i64 dims[kGridRank];
  Operand out;
  Operand in[N > 0 ? N : 1];

  Operand& operand(int i) { return i == 0 ? out : in[i - 1]; }

  // Drop dims of size 1 and merge an outer dim into its inner neighbour where every operand steps evenly over both.
  void collapse() {
    int n = 0;
    for (int d = 0; d < rank; ++d) {
      if (dims[d] == 1) continue;
      bool merge = n > 0;
      for (int i = 0; merge && i <= N; ++i) merge = operand(i).strides[n - 1] == operand(i).strides[d] * dims[d];
      const int to = merge ? n - 1 : n;
      dims[to] = merge ? dims[to] * dims[d] : dims[d];
      for (int i = 0; i <= N; ++i) operand(i).strides[to] = operand(i).strides[d];
      n = to + 1;
    }
    if (n == 0) {
      dims[0] = 1;
      for (int i = 0; i <= N; ++i) operand(i).strides[0] = 0;
      out.strides[0] = 1;
      n = 1;
    }
    rank = n;
  }

  // f(first element offset of each operand, row length) for every row and every piece of a row, in parallel.
  template <class Fn>
  void rows(const Pool& pool, Fn&& f) {
    collapse();
    i64 outer = 1;
    for (int d = 0; d + 1 < rank; ++d) outer *= dims[d];
    const i64 inner = dims[rank - 1];
    if (outer <= 0 || inner <= 0) return;
    constexpr i64 kTask = 16384;  // elements a task should have at least: about 5 us of work
    if (outer == 1) {
      const i64 piece = max<i64>(kTask, round_up(ceil_div(inner, 4 * pool.threads), 64));
      pool.parallel_for(ceil_div(inner, piece), [&](i64 t) {
        i64 at[N + 1];
        for (int i = 0; i <= N; ++i) at[i] = operand(i).strides[rank - 1] * (t * piece);
        f(at, min(piece, inner - t * piece));
      });
      return;
    }
    const i64 per_task = max<i64>(1, max<i64>(ceil_div(kTask, inner), ceil_div(outer, 8 * pool.threads)));
    pool.parallel_for(ceil_div(outer, per_task), [&](i64 t) {
      const i64 end = min(outer, (t + 1) * per_task);
      i64 index[kGridRank];
      i64 at[N + 1] = {};
      i64 rest = t * per_task;
      for (int d = rank - 2; d >= 0; --d) {
        index[d] = rest % dims[d];
        rest /= dims[d];
        for (int i = 0; i <= N; ++i) at[i] += operand(i).strides[d] * index[d];
      }
      for (i64 row = t * per_task; row < end; ++row) {
        f(at, inner);
        for (int d = rank - 2; d >= 0; --d) {
          for (int i = 0; i <= N; ++i) at[i] += operand(i).strides[d];
          if (++index[d] < dims[d]) break;
          for (int i = 0; i <= N; ++i) at[i] -= operand(i).strides[d] * dims[d];
          index[d] = 0;
        }
      }
    });
  }
};

// --- vector form of each storage type: floats of all sizes are F, bools are masks of 0 or -1 ---

OPSMITH_INLINE I load(const bool* p, Full) {
  I v;
  for (i64 i = 0; i < W; ++i) v[i] = -static_cast<int32_t>(p[i]);
  return v;
}
OPSMITH_INLINE I load(const bool* p, Tail t) {
  I v{};
  for (i64 i = 0; i < t.count; ++i) v[i] = -static_cast<int32_t>(p[i]);
  return v;
}
OPSMITH_INLINE void store(bool* p, I v, Full) {
  for (i64 i = 0; i < W; ++i) p[i] = v[i] != 0;
}
OPSMITH_INLINE void store(bool* p, I v, Tail t) {
  for (i64 i = 0; i < t.count; ++i) p[i] = v[i] != 0;
}

template <class T>
struct Reader {
  const T* base;
  i64 mask;  // -1 walks along the row, 0 stays on the copies
  T copies[W];

  OPSMITH_INLINE void aim(const T* p, i64 stride) {
    mask = stride ? -1 : 0;
    base = p;
    if (!stride) {
      for (i64 i = 0; i < W; ++i) copies[i] = *p;
      base = copies;
    }
  }
  template <class L>
  OPSMITH_INLINE auto at(i64 i, L lanes) const {
    return load(base + (i & mask), lanes);
  }
};

template <class T>
struct StridedReader {  // any stride: lanes are collected one by one
  const T* base;
  i64 stride;
  OPSMITH_INLINE void aim(const T* p, i64 s) { base = p, stride = s; }
  OPSMITH_INLINE auto at(i64 i, Full) const { return collect(i, W); }
  OPSMITH_INLINE auto at(i64 i, Tail t) const { return collect(i, t.count); }
  OPSMITH_INLINE auto collect(i64 i, i64 n) const {
    T lanes[W] = {};
    for (i64 k = 0; k < n; ++k) lanes[k] = base[(i + k) * stride];
    return load(lanes, Full{});
  }
};

namespace detail {

template <int... Index>
struct Sequence {};
template <int N, int... Index>
struct MakeSequence : MakeSequence<N - 1, N - 1, Index...> {};
template <int... Index>
struct MakeSequence<0, Index...> {
  using type = Sequence<Index...>;
};

template <class... T>
struct Pack;
template <>
struct Pack<> {};
template <class H, class... T>
struct Pack<H, T...> {
  H head;
  Pack<T...> tail;
};
template <int I, class P>
OPSMITH_INLINE auto& get(P& p) {
  if constexpr (I == 0)
    return p.head;
  else
    return get<I - 1>(p.tail);
}

template <template <class> class R, class TO, class... TI, int N, int... Index, class Body>
OPSMITH_INLINE void map_row(const Grid<N>& g, const i64* at, i64 n, Sequence<Index...>, Body& body) {
  Pack<R<TI>...> readers;
  (get<Index>(readers).aim(static_cast<const TI*>(g.in[Index].data) + at[Index + 1], g.in[Index].strides[g.rank - 1]), ...);
  TO* out = static_cast<TO*>(const_cast<void*>(g.out.data)) + at[0];
  const i64 step = g.out.strides[g.rank - 1];
  i64 i = 0;
  if (step == 1) {
    for (; i + W <= n; i += W) store(out + i, body(get<Index>(readers).at(i, Full{})...), Full{});
    if (i < n) store(out + i, body(get<Index>(readers).at(i, Tail{n - i})...), Tail{n - i});
    return;
  }
  for (; i < n; i += W) {
    const i64 count = min<i64>(W, n - i);
    TO lanes[W];
    store(lanes, body(get<Index>(readers).at(i, Tail{count})...), Full{});
    for (i64 k = 0; k < count; ++k) out[(i + k) * step] = lanes[k];
  }
}

template <class TO, class... TI, int N, int... Index, class Body>
void map_scalar_row(const Grid<N>& g, const i64* at, i64 n, Sequence<Index...>, Body& body) {
  TO* __restrict out = static_cast<TO*>(const_cast<void*>(g.out.data)) + at[0];
  const i64 last = g.rank - 1, step = g.out.strides[last];
  Pack<const TI*...> p;
  ((get<Index>(p) = static_cast<const TI*>(g.in[Index].data) + at[Index + 1]), ...);
  for (i64 i = 0; i < n; ++i) out[i * step] = static_cast<TO>(body(get<Index>(p)[i * g.in[Index].strides[last]]...));
}

}  // namespace detail

template <class TO, class... TI, class Body>
void map(const Pool& pool, Grid<sizeof...(TI)> grid, Body body) {
  constexpr int N = sizeof...(TI);
  using Sequence = typename detail::MakeSequence<N>::type;
  grid.rows(pool, [&](const i64* at, i64 n) {
    bool even = true;
    for (int i = 0; i < N; ++i) {
      const i64 s = grid.in[i].strides[grid.rank - 1];
      even = even && (s == 0 || s == 1);
    }
    if (even)
      detail::map_row<Reader, TO, TI...>(grid, at, n, Sequence{}, body);
    else
      detail::map_row<StridedReader, TO, TI...>(grid, at, n, Sequence{}, body);
  });
}

template <class TO, class... TI, class Body>
void map_scalar(const Pool& pool, Grid<sizeof...(TI)> grid, Body body) {
  using Sequence = typename detail::MakeSequence<sizeof...(TI)>::type;
  grid.rows(pool, [&](const i64* at, i64 n) { detail::map_scalar_row<TO, TI...>(grid, at, n, Sequence{}, body); });
}

}  // namespace opsmith
