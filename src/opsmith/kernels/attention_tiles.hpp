// Attention in tiles, for many queries, which lie across vector lanes. With the scores transposed, both products read K and V
// in place, as scalars that are multiplied into a vector of queries, so neither is ever packed, transposed or padded, and the
// softmax over keys is lane by lane, without a horizontal operation:
//
//   s  (keys, lanes) = k (keys, D) @ q^T (D, lanes)          rows of the tile are keys
//   p  (keys, lanes) = 2^(s - running maximum)               the scale of q holds log2(e)
//   o^T (Dv, lanes) += v^T (Dv, keys) @ p (keys, lanes)      rows of the tile are value columns
//
// A task takes some panels of lanes (a panel: as many vectors as the microkernel is wide) of one kv head and streams the
// keys past them, a block at a time; q^T, p and o^T stay in its cache. The query heads that share a kv head are lanes
// side by side, so grouped-query attention reads K and V once.
//
// With Pairs both products are in bf16, two steps of their sums at a time: q^T is packed in pairs along D, p in pairs of keys, and
// of each block of values a copy in pairs of keys is made. Keys of bf16 are read in place. Scores, exponentials, sums and o stay in
// float. Where the CPU's registers hold tiles (gemm_tiles.hpp) the copy is v^T itself, with its keys side by side, and exponentials are
// taken of the stored scores.
#pragma once

#include "attention_plan.hpp"
#include "gemm_tiles.hpp"

namespace opsmith::detail {

inline constexpr float kMostSum = 0x1p40f;  // of exponentials about the maximum in use; beyond it a new maximum is taken

// What a tile begins with, and what it does with its sums before they are stored, one column of vectors after the other.
struct AsTheyAre {
  static constexpr bool pairs = false;  // whether rows are stored two by two in words of bf16
  OPSMITH_INLINE F first(int) { return F{}; }
  OPSMITH_INLINE F operator()(F x) { return x; }
  OPSMITH_INLINE void end(int) {}
};
// Scores less a maximum that is known (that is where the tile begins) become exponentials, and are summed. While they are made
// the products of the next tile are under way: the two need different units of the processor.
template <bool Pairs>
struct Exponentials {
  static constexpr bool pairs = Pairs;
  const float* maximum;
  float* sum;
  F s{};
  OPSMITH_INLINE F first(int v) { return -load(maximum + v * W, Full{}); }
  OPSMITH_INLINE F operator()(F x) {
    const F e = exp2_small<true, Pairs>(x);
    s += e;
    return e;
  }
  OPSMITH_INLINE void end(int v) {
    store(sum + v * W, load(static_cast<const float*>(sum) + v * W, Full{}) + s, Full{});
    s = F{};
  }
};

// One step of a tile's sum: a float, or a pair of bf16 that lies in one word.
template <class T>
inline constexpr i64 tile_step = __is_same(T, float) ? 1 : 2;
OPSMITH_INLINE F tile_columns(const float* b) { return load(b, Full{}); }
OPSMITH_INLINE I tile_columns(const bf16* b) {
  I words;
  memcpy(&words, b, sizeof words);
  return words;
}
OPSMITH_INLINE F tile_value(const float* a) { return splat(*a); }
OPSMITH_INLINE I tile_value(const bf16* a) {
  int32_t pair;
  memcpy(&pair, a, sizeof pair);
  return splat(pair);
}
OPSMITH_INLINE F tile_sum(F sum, F x, F b) { return sum + x * b; }
OPSMITH_INLINE F tile_sum(F sum, I x, I b) { return PairDot::add_products(sum, x, b); }

// c (R, V vectors) (+)= a (R, K) @ b (K, V vectors), K counted in steps of S numbers. Step k of row r lies at a[r * stride + S * k], or
// transposed at a[S * (k * stride + r)].
template <int R, int V, bool Transposed, class T, class Finish>
[[gnu::noinline]] void tile_product(const T* a, i64 stride, i64 K, const T* b, float* c, bool accumulate, Finish finish) {
  constexpr i64 S = tile_step<T>;
  F acc[R][V];
#pragma GCC unroll 3
  for (int v = 0; v < V; ++v) {
    const F start = finish.first(v);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) acc[r][v] = accumulate ? load(static_cast<const float*>(c) + (r * V + v) * W, Full{}) : start;
  }
  const T* row[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) row[r] = Transposed ? a + r : a + r * stride;
#pragma GCC unroll 4
  for (i64 k = 0; k < K; ++k) {
    decltype(tile_columns(b)) bv[V];
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) bv[v] = tile_columns(b + S * v * W);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const auto x = tile_value(Transposed ? a + S * r : row[r] + S * k);
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v) acc[r][v] = tile_sum(acc[r][v], x, bv[v]);
    }
    b += S * V * W;
    if constexpr (Transposed) a += S * stride;
  }
#pragma GCC unroll 3
  for (int v = 0; v < V; ++v) {
    if constexpr (Finish::pairs) {
#pragma GCC unroll 4
      for (int r = 0; r < R; r += 2) {
        const F first = finish(acc[r][v]), second = r + 1 < R ? finish(acc[r + 1 < R ? r + 1 : r][v]) : F{};
        const I words = narrow_pairs(first, second);
        memcpy(c + (r / 2 * V + v) * W, &words, sizeof words);
      }
    } else {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) store(c + (r * V + v) * W, finish(acc[r][v]), Full{});
    }
    finish.end(v);
  }
}

template <int V, bool Transposed, class T, class Finish = AsTheyAre>
inline void panel_product(const T* a, i64 stride, i64 M, i64 K, const T* b, float* c, bool accumulate, Finish finish = {}) {
  i64 r = 0;
  auto step = [&]<int R>(std::integral_constant<int, R>) {
    tile_product<R, V, Transposed, T>(a + (Transposed ? tile_step<T> * r : r * stride), stride, ceil_div(K, tile_step<T>), b,
                                      c + (Finish::pairs ? r / 2 : r) * V * W, accumulate, finish);
    r += R;
  };
  while (r + attention_mr <= M) step(std::integral_constant<int, attention_mr>{});
  if constexpr (attention_mr > 4)
    if (r + 4 <= M) step(std::integral_constant<int, 4>{});
  if (r + 2 <= M) step(std::integral_constant<int, 2>{});
  if (r < M) step(std::integral_constant<int, 1>{});
}

// scores (n, V vectors) of keys k0 .. k0 + n; at[l] is where lane l's row of the mask begins.
template <int V, class Mask>
inline void apply_mask(float* scores, i64 n, i64 k0, const Mask& mask, const i64* at) {
  const auto* p = readable(mask.p);
  bool same = true;
  for (i64 l = 1; l < V * W; ++l) same &= at[l] == at[0];
  if (same) {
    for (i64 j = 0; j < n; ++j) {
      const F value = all<F>(to_float(p[at[0] + (k0 + j) * mask.col]));
      for (int v = 0; v < V; ++v) {
        float* x = scores + (j * V + v) * W;
        store(x, masked(mask, load(x, Full{}), value), Full{});
      }
    }
    return;
  }
  for (int v = 0; v < V; ++v)
    for (i64 j0 = 0; j0 < n; j0 += W) {
      const i64 count = min(W, n - j0);
      F r[W];
      for (i64 l = 0; l < W; ++l) {
        const auto* row = p + at[v * W + l] + (k0 + j0) * mask.col;
        if (mask.col != 1) {
          r[l] = F{};
          for (i64 j = 0; j < count; ++j) r[l][j] = to_float(row[j * mask.col]);
        } else {
          r[l] = count == W ? load(row, Full{}) : load(row, Tail{count});
        }
      }
      transpose(r);
      for (i64 j = 0; j < count; ++j) {
        float* x = scores + ((j0 + j) * V + v) * W;
        store(x, masked(mask, load(x, Full{}), r[j]), Full{});
      }
    }
}

// A block of keys or values as the products read it: in place, or copied into `room`; an odd last number of bf16 has a zero behind it.
template <class To, class T>
OPSMITH_INLINE const To* as_rows(const T* p, i64& stride, i64 rows, i64 cols, bool copied, To* room) {
  if constexpr (__is_same(T, To))
    if (!copied && cols % tile_step<To> == 0) return p;
  const i64 padded = padded_row(cols);
  for (i64 r = 0; r < rows; ++r) {
    for_lanes(cols, [&](i64 c, auto lanes) { store(room + r * padded + c, load(p + r * stride + c, lanes), lanes); });
    if (cols % tile_step<To>) room[r * padded + cols] = To{};
  }
  stride = padded;
  return room;
}
// A block of values in pairs of keys, (keys / 2, Dv) words.
template <class T>
inline void pair_values(const T* p, i64 stride, i64 rows, i64 cols, bf16* room) {
  for (i64 r = 0; r < rows; r += 2, room += 2 * cols)
    for_lanes(cols, [&](i64 c, auto lanes) {
      const F first = load(p + r * stride + c, lanes), second = r + 1 < rows ? load(p + (r + 1) * stride + c, lanes) : F{};
      const I words = narrow_pairs(first, second);
      store(reinterpret_cast<float*>(room) + c, (F)words, lanes);
    });
}

// v^T: (Dv, keys), `stride` apart, zeros behind the last key up to a whole vector.
template <class T>
inline void turn_values(const T* p, i64 p_stride, i64 rows, i64 cols, bf16* room, i64 stride) {
  for (i64 c0 = 0; c0 < cols; c0 += W) {
    const i64 columns = min(W, cols - c0);
    for (i64 r0 = 0; r0 < rows; r0 += 2 * W) {
      F words[W];
      for (i64 i = 0; i < W; ++i) {
        const i64 row = r0 + 2 * i;
        auto values = [&](i64 at) { return columns == W ? load(p + at * p_stride + c0, Full{}) : load(p + at * p_stride + c0, Tail{columns}); };
        words[i] = row < rows ? (F)narrow_pairs(values(row), row + 1 < rows ? values(row + 1) : F{}) : F{};
      }
      transpose(words);
      for (i64 c = 0; c < columns; ++c) store(reinterpret_cast<float*>(room + (c0 + c) * stride + r0), words[c], Full{});
    }
  }
}

// One panel of V vectors of queries, and what it has accumulated.
struct Panel {
  float *q, *o, *maximum, *sum;  // (D, V), (Dv, V), (V), (V) vectors; o and sum are multiples of 2^maximum
  bool empty;                    // no key yet: o is not even zeroed
  bool settled;                  // every lane has seen a finite score
};

// q^T, scaled: the rows of the lanes become columns. The rows are many short streams, so they are fetched ahead by hand.
template <int V, bool Pairs, class TQ>
inline void pack_queries(const TQ* const* rows, i64 D, float scale, float* out) {
  for (int l = 0; l < V * W; ++l)
    for (i64 d = 0; d < D; d += 64 / i64(sizeof(TQ))) __builtin_prefetch(rows[l] + d);
  for (int v = 0; v < V; ++v)
    for (i64 d0 = 0; d0 < D; d0 += W) {
      const i64 count = min(W, D - d0);
      F r[W];
      for (i64 l = 0; l < W; ++l) {
        const TQ* p = rows[v * W + l] + d0;
        r[l] = (count == W ? load(p, Full{}) : load(p, Tail{count})) * scale;
      }
      transpose(r);
      if constexpr (Pairs) {
        static_assert(!Pairs || W % 2 == 0);
        for (i64 d = 0; d < count; d += 2) {
          const I words = narrow_pairs(r[d], r[d + 1]);
          memcpy(out + ((d0 + d) / 2 * V + v) * W, &words, sizeof words);
        }
      } else {
        for (i64 d = 0; d < count; ++d) store(out + ((d0 + d) * V + v) * W, r[d], Full{});
      }
    }
}

// o^T * factor, back to one row per lane, `count` lanes of them: write(lane, column, F, lanes)
template <int V, class Write>
inline void unpack_rows(const float* o, i64 Dv, i64 count, const F* factor, Write&& write) {
  for (int v = 0; v < V; ++v)
    for (i64 d0 = 0; d0 < Dv; d0 += W) {
      const i64 columns = min(W, Dv - d0);
      F r[W];
      for (i64 d = 0; d < W; ++d)
        r[d] = d < columns ? load(o + ((d0 + d) * V + v) * W, Full{}) * factor[v] : F{};
      transpose(r);
      const i64 lanes = min(W, count - v * W);
      for (i64 l = 0; l < lanes; ++l) {
        if (columns == W)
          write(v * W + l, d0, r[l], Full{});
        else
          write(v * W + l, d0, r[l], Tail{columns});
      }
    }
}

// s (n, V vectors) = k (n, D) @ q^T
template <int V, class T>
inline void score_product(const T* k, i64 stride, i64 n, i64 D, const T* q, float* scores) {
  if constexpr (Tiles::exist && __is_same(T, bf16))
    if (has_tiles) return tiles_product<V>(k, stride, n, D, q, scores, false);
  panel_product<V, false>(k, stride, n, D, q, scores, false);
}
// o^T (Dv, V vectors) (+)= v^T (Dv, n) @ p
template <int V, class T>
inline void value_product(const T* v, i64 stride, i64 Dv, i64 n, const T* p, float* o, bool accumulate) {
  if constexpr (Tiles::exist && __is_same(T, bf16))
    if (has_tiles) return tiles_product<V>(v, stride, Dv, n, p, o, accumulate);
  panel_product<V, true>(v, stride, Dv, n, p, o, accumulate);
}

// Scores (n, V vectors) become `power` of what they are above `base`, in place, as the second product reads them, and are summed.
template <int V, class T, class Power>
OPSMITH_INLINE void weigh(float* p, i64 n, const F (&base)[V], F (&sum)[V], Power power) {
  for (i64 j = 0; j < n; j += tile_step<T>)
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) {
      float* x = p + (j * V + v) * W;
      const F e = power(load(static_cast<const float*>(x), Full{}) - base[v]);
      sum[v] += e;
      if constexpr (tile_step<T> == 2) {
        const F second = j + 1 < n ? power(load(static_cast<const float*>(x) + V * W, Full{}) - base[v]) : F{};
        sum[v] += second;
        const I words = narrow_pairs(e, second);  // row j / 2 was read before
        memcpy(p + (j / 2 * V + v) * W, &words, sizeof words);
      } else {
        store(x, e, Full{});
      }
    }
}

// One block of n keys for one panel.
template <int V, class T, class Mask>
inline void panel_step(Panel& panel, const T* k, i64 k_stride, const T* v_block, i64 v_stride, i64 n,
                       i64 k0, i64 D, i64 Dv, float cap, const Mask& mask, const i64* mask_at, const int32_t* limit, bool cut,
                       float* p) {
  constexpr bool pairs = tile_step<T> == 2;
  const T *q = reinterpret_cast<const T*>(panel.q), *weights = reinterpret_cast<const T*>(p);
  // The first keys give a maximum, and for the rest nearly any will do: far above it nothing is lost. So the exponentials can be
  // taken in the tile, before the block's own maximum is known. In the rare case that a sum becomes too large, or a score was not
  // finite, the block is made again.
  if constexpr (__is_same(Mask, NoMask))
    if (!cut && panel.settled && cap == 0) {
      float sum[V * W];
      memcpy(sum, panel.sum, sizeof sum);
      if (Tiles::exist && pairs && has_tiles) {
        F base[V], s[V];
#pragma GCC unroll 3
        for (int v = 0; v < V; ++v) base[v] = load(panel.maximum + v * W, Full{}), s[v] = load(panel.sum + v * W, Full{});
        score_product<V>(k, k_stride, n, D, q, p);
        weigh<V, T>(p, n, base, s, [](F x) { return exp2_small<true, pairs>(x); });
        memcpy(sum, s, sizeof sum);
      } else {
        panel_product<V, false>(k, k_stride, n, D, q, p, false, Exponentials<pairs>{panel.maximum, sum});
      }
      bool fits = true;
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v) fits &= !any(!(load(static_cast<const float*>(sum) + v * W, Full{}) < kMostSum));
      if (fits) {
        memcpy(panel.sum, sum, sizeof sum);
        value_product<V>(v_block, v_stride, Dv, n, weights, panel.o, true);
        return;
      }
    }
  score_product<V>(k, k_stride, n, D, q, p);
  if (cap > 0)
    for (i64 i = 0; i < n * V * W; i += W) store(p + i, capped(load(static_cast<const float*>(p) + i, Full{}), cap), Full{});
  if constexpr (!__is_same(Mask, NoMask)) apply_mask<V>(p, n, k0, mask, mask_at);
  if (cut) {  // some lanes do not see all of these keys
    for (int v = 0; v < V; ++v) {
      I last;
      memcpy(&last, limit + v * W, sizeof last);
      for (i64 j = 0; j < n; ++j) {
        float* x = p + (j * V + v) * W;
        store(x, select(last < static_cast<int32_t>(k0 + j), all<F>(-kInfinity), load(x, Full{})), Full{});
      }
    }
  }
  F old[V], m[V];
#pragma GCC unroll 3
  for (int v = 0; v < V; ++v) old[v] = m[v] = load(panel.maximum + v * W, Full{});
  for (i64 j = 0; j < n; ++j)
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) m[v] = max_or_second(load(p + (j * V + v) * W, Full{}), m[v]);
  F s[V], base[V];
  bool grown = false;
#pragma GCC unroll 3
  for (int v = 0; v < V; ++v) {
    base[v] = finite_maximum(m[v]);
    s[v] = load(panel.sum + v * W, Full{});
    grown |= any(m[v] > old[v]);
    store(panel.maximum + v * W, m[v], Full{});
  }
  if (grown && !panel.empty) {
    F shrink[V];
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) {
      shrink[v] = score_exp<Mask>(old[v] - base[v]);
      s[v] *= shrink[v];
    }
    for (i64 d = 0; d < Dv; ++d)
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v) {
        float* x = panel.o + (d * V + v) * W;
        store(x, load(x, Full{}) * shrink[v], Full{});
      }
  }
  weigh<V, T>(p, n, base, s, [](F x) { return score_exp<Mask>(x); });
#pragma GCC unroll 3
  for (int v = 0; v < V; ++v) store(panel.sum + v * W, s[v], Full{});
  value_product<V>(v_block, v_stride, Dv, n, weights, panel.o, !panel.empty);
  panel.empty = false;
  panel.settled = true;
#pragma GCC unroll 3
  for (int v = 0; v < V; ++v) panel.settled &= !any(m[v] == -kInfinity);
}

template <bool ZeroMaskedRows, int V, class TQ, class TO>
inline void finish_panel(const Panel& panel, const Lanes<TQ, TO>& lanes, i64 first, i64 Dv, float* part) {
  const i64 count = min<i64>(V * W, lanes.count - first);
  if (panel.empty) memset(panel.o, 0, static_cast<size_t>(Dv * V * W) * sizeof(float));
  F factor[V];
  for (int v = 0; v < V; ++v)
    factor[v] = part ? all<F>(1) : divisor<ZeroMaskedRows>(load(panel.sum + v * W, Full{}));
  if (!part) {
    unpack_rows<V>(panel.o, Dv, count, factor,
                   [&](i64 l, i64 d, F x, auto valid) { store(lanes.out[first + l] + d, x, valid); });
    return;
  }
  unpack_rows<V>(panel.o, Dv, count, factor, [&](i64 l, i64 d, F x, auto valid) {
    store(part + (first + l) * (Dv + 2) + 2 + d, x, valid);
  });
  for (i64 l = 0; l < count; ++l) {
    part[(first + l) * (Dv + 2)] = panel.maximum[l];
    part[(first + l) * (Dv + 2) + 1] = panel.sum[l];
  }
}

// f(std::integral_constant<int, V>) for V = vectors
template <class Fn>
OPSMITH_INLINE void with_vectors(i64 vectors, Fn&& f) {
  if constexpr (attention_nv >= 3)
    if (vectors == 3) return f(std::integral_constant<int, 3>{});
  if (vectors == 2) return f(std::integral_constant<int, 2>{});
  f(std::integral_constant<int, 1>{});
}

// The rows row0 .. row0 + task_rows of one kv head over keys begin .. end.
template <bool ZeroMaskedRows, bool Pairs, class TQ, class TK, class TO, class Mask>
inline void panel_task(const AttentionShape& s, const AttentionPlan& plan, i64 b, i64 kv_head, i64 row0, i64 begin,
                       i64 end, const TQ* q, const TK* k, const TK* v, TO* out, const Mask& mask, float* part) {
  using T = std::conditional_t<Pairs, bf16, float>;
  [[maybe_unused]] const std::conditional_t<Tiles::exist && Pairs, TilesInUse, NoTiles> tiles;
  alignas(64) float scratch[kScratch];
  const i64 D = s.head_size, Dv = s.value_size;
  const i64 padded = round_up(min(plan.task_rows, plan.rows - row0), W);
  const Lanes<TQ, TO> lanes(s, plan, b, kv_head, row0, padded, q, out, mask);
  const i64 panels = ceil_div(padded, plan.vectors * W);
  auto vectors_of = [&](i64 panel) { return min(plan.vectors, padded / W - panel * plan.vectors); };

  Panel panel[kMostPanels];
  int32_t first_cut[kMostPanels], last_seen[kMostPanels];
  float* free = scratch;
  auto take = [&](i64 floats) {
    float* p = free;
    free += floats;
    return p;
  };
  const float factor = s.scale * (kBase2<Mask> ? kLog2e : 1.0f);
  int32_t last = -1;
  for (i64 i = 0; i < panels; ++i) {
    const i64 width = vectors_of(i) * W, first = i * plan.vectors * W;
    panel[i] = {take(ceil_div(D, tile_step<T>) * width), take(Dv * width), take(width), take(width), true, false};
    with_vectors(vectors_of(i), [&](auto V) { pack_queries<V.value, Pairs>(lanes.q + first, D, factor, panel[i].q); });
    first_cut[i] = INT32_MAX, last_seen[i] = -1;
    for (i64 l = 0; l < width; ++l) {
      panel[i].maximum[l] = -kInfinity;
      panel[i].sum[l] = 0;
      first_cut[i] = min(first_cut[i], lanes.limit[first + l]);
      last_seen[i] = max(last_seen[i], lanes.limit[first + l]);
    }
    last = max(last, last_seen[i]);
  }
  float* scores = take(plan.key_block * plan.vectors * W);

  const bool copied = copies_blocks<TK>(s) && !Pairs;
  T* room = reinterpret_cast<T*>(free);
  end = min<i64>(end, i64{last} + 1);
  narrow_to_seen(mask, lanes.mask_at, padded, begin, end);
  const float cap = s.cap * (kBase2<Mask> ? kLog2e : 1.0f);
  for (i64 k0 = begin; k0 < end; k0 += plan.key_block) {
    const i64 n = min(plan.key_block, end - k0);
    i64 k_stride = s.k_row, v_stride = s.v_row;
    const TK *k_block = k + b * s.k_batch + kv_head * s.k_head + k0 * s.k_row;
    const TK *v_block = v + b * s.v_batch + kv_head * s.v_head + k0 * s.v_row;
    const T* k_rows = as_rows<T>(k_block, k_stride, n, D, copied, room);
    const T* v_rows = room + plan.key_block * padded_row(D);
    if (Tiles::exist && Pairs && has_tiles) {
      const i64 turned = tile_keys(plan.key_block);
      if constexpr (Pairs) turn_values(v_block, v_stride, n, Dv, room + plan.key_block * padded_row(D), turned);
      v_stride = turned;
    } else if constexpr (Pairs)
      pair_values(v_block, v_stride, n, Dv, room + plan.key_block * padded_row(D)), v_stride = Dv;
    else
      v_rows = as_rows<T>(v_block, v_stride, n, Dv, copied, room + plan.key_block * padded_row(D));
    for (i64 i = 0; i < panels; ++i) {
      const i64 seen = min<i64>(n, last_seen[i] - k0 + 1), first = i * plan.vectors * W;
      if (seen <= 0) continue;
      if constexpr (!__is_same(Mask, NoMask))
        if (!any_seen(mask, lanes.mask_at + first, vectors_of(i) * W, k0, seen)) continue;
      with_vectors(vectors_of(i), [&](auto V) {
        panel_step<V.value>(panel[i], k_rows, k_stride, v_rows, v_stride, seen, k0, D, Dv, cap, mask, lanes.mask_at + first,
                            lanes.limit + first, k0 + seen - 1 > first_cut[i], scores);
      });
    }
  }
  for (i64 i = 0; i < panels; ++i)
    with_vectors(vectors_of(i), [&](auto V) {
      finish_panel<ZeroMaskedRows, V.value>(panel[i], lanes, i * plan.vectors * W, Dv, part);
    });
}

}  // namespace opsmith::detail
