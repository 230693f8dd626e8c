// Attention over a cache in bytes, a scale per key and per value (compiler/cache_type.py).
//
// With few queries the bytes are read as they lie, row by row: a key's scale enters its score, a value's scale its weight. Many
// queries (a prompt) read every key many times: they read floats, made once in the workspace.
#pragma once

#include "attention.hpp"
#include "cache.hpp"

namespace opsmith {
namespace detail {

inline bool reads_bytes(const AttentionShape& s) { return s.heads / max<i64>(1, s.kv_heads) * s.queries <= 4 * kFewRows; }

// The same call over floats that lie dense.
inline AttentionShape over_floats(AttentionShape s) {
  s.k_row = s.head_size, s.k_head = s.keys * s.k_row, s.k_batch = s.kv_heads * s.k_head;
  s.v_row = s.value_size, s.v_head = s.keys * s.v_row, s.v_batch = s.kv_heads * s.v_head;
  return s;
}
inline i64 floats_of_cache(const AttentionShape& s) { return s.batch * s.kv_heads * s.keys * (s.head_size + s.value_size); }

}  // namespace detail

inline i64 attention_scaled_workspace(const AttentionShape& s) {
  if (detail::reads_bytes(s)) return detail::AttentionPlan(s, 1, 0, true).workspace_bytes(s);
  return detail::floats_of_cache(s) * i64(sizeof(float)) + attention_workspace(detail::over_floats(s));
}

template <bool ZeroMaskedRows = false, bool Pairs = false, class TQ, class TO, class Mask>
void attention_scaled(const Pool& pool, const AttentionShape& s, const TQ* q, const int8_t* k, const int8_t* v,
                      const RowScales& scales, TO* out, const Mask& mask, void* workspace) {
  if (detail::reads_bytes(s)) {
    attention<ZeroMaskedRows>(pool, s, q, k, v, out, mask, workspace, scales);
    return;
  }
  float* keys = static_cast<float*>(workspace);
  float* values = keys + s.batch * s.kv_heads * s.keys * s.head_size;
  cache_dequantize(pool, {s.batch, s.kv_heads, s.keys, s.head_size, s.k_batch, s.k_head, s.k_row}, k, scales.k, scales.k_batch,
                   scales.k_head, keys);
  cache_dequantize(pool, {s.batch, s.kv_heads, s.keys, s.value_size, s.v_batch, s.v_head, s.v_row}, v, scales.v, scales.v_batch,
                   scales.v_head, values);
  attention<ZeroMaskedRows, Pairs>(pool, detail::over_floats(s), q, keys, values, out, mask, keys + detail::floats_of_cache(s));
}

}  // namespace opsmith
