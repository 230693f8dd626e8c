"""Definitions of the attentions that ONNX Runtime's own optimizer and its exporters write, and of their rotary embedding.

They are spelled as the rewriter's rules look for them: an attention is found again in its region and runs in its kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from opsmith.analysis.values import Abstract, DataType
from opsmith.compiler.body_text import by_heads, constant, integer, ints, is_asked, operand, real, size_lines
from opsmith.compiler.quantized_bodies import Inputs, given
from opsmith.rewriter.rule import attribute
from opsmith.sizes import ONE, Size

_LOWEST = float(np.finfo(np.float32).min)  # what ONNX Runtime adds to the scores of keys that lie in the future

# --- queries and keys of the same texts ---


def _scores_mask(
    mask: Abstract | None, batch: Size, causal: bool, filtered: float, dtype: DataType, past: bool
) -> list[str] | None:
    """What is added to the scores, as `added`: no line if nothing is; None for a mask of a form that is not known.

    The mask is (B), the number of keys that are seen, or 1 and 0 as (B, T) or (B, S, T).
    """
    lines = [ints("zero", 0), ints("one", 1), *size_lines("queries", "q", 2), *size_lines("keys", "k", 2)]
    lines += ["begin = Constant <value_int: int = 0> ()", "step = Constant <value_int: int = 1> ()"]
    lines += ["places = Range (begin, keys_number, step)", constant("nothing", 0.0, dtype)]
    if causal:  # key j is seen by query i if j <= i + past
        lines += [*size_lines("fresh", "fresh_keys", 2)] if past else []
        lines.append("shift = Sub (keys, fresh)" if past else "shift = Sub (keys, keys)")
        lines += ["counted = Range (begin, queries_number, step)", "moved = Add (counted, shift)"]
        lines += ["rows = Unsqueeze (moved, one)", "seen = LessOrEqual (places, rows)"]
        lines.append(constant("lowest", _LOWEST, dtype))
    if mask is not None:
        if mask.dtype not in (DataType.INT32, DataType.INT64):
            return None
        lines += [constant("filter", filtered, dtype), "whole = Cast <to: int = 7> (mask)"]
        if mask.rank == 1 and mask.dims[0] == batch:
            lines += [ints("apart", 1, 2, 3), "ends = Unsqueeze (whole, apart)", "kept = Less (places, ends)"]
        elif mask.rank in (2, 3):
            lines += [ints("apart", *((1, 2) if mask.rank == 2 else (1,)))]
            lines += ["spread = Unsqueeze (whole, apart)", "kept = Greater (spread, begin)"]
        else:
            return None
        lines.append("padding = Where (kept, nothing, filter)")
    if causal:  # in place of the padding, not on top of it: no sum of the two lowest numbers
        return [*lines, f"added = Where (seen, {'nothing' if mask is None else 'padding'}, lowest)"]
    return [] if mask is None else [*lines, "added = Identity (padding)"]


def _attended(scale: float, dtype: DataType, added: Sequence[str]) -> list[str]:
    """softmax(scale q k^T + ...) v, as (B, S, heads * size)"""
    lines = _scaled_scores("q", scale, dtype)
    last = "scores0"
    if len(added) == 2:
        lines += [f"masks = Add ({added[0]}, {added[1]})", f"scores1 = Add ({last}, masks)"]
        last = "scores1"
    elif added:
        lines.append(f"scores1 = Add ({last}, {added[0]})")
        last = "scores1"
    return [*lines, f"shares = Softmax <axis: int = -1> ({last})", *_weighted("shares")]


def _scaled_scores(q: str, scale: float, dtype: DataType) -> list[str]:
    return [
        "k_turned = Transpose <perm: ints = [0, 1, 3, 2]> (k)",
        f"products = MatMul ({q}, k_turned)",
        constant("scale", scale, dtype),
        "scores0 = Mul (products, scale)",
    ]


def _weighted(shares: str) -> list[str]:
    return [
        f"result = MatMul ({shares}, v)",
        "rows_first = Transpose <perm: ints = [0, 2, 1, 3]> (result)",
        ints("flat", 0, 0, -1),
        "y = Reshape (rows_first, flat)",
    ]


def _added(mask: Sequence[str], bias: Abstract | None) -> list[str]:
    """The names of what is added to the scores."""
    return [*(["added"] if mask else []), *(["attention_bias"] if bias is not None else [])]


def _scale(node: ir.Node, size: int) -> float:
    given_scale = real(node, "scale", 0.0)
    return given_scale if given_scale else float(np.float32(1) / np.sqrt(np.float32(size)))


def multi_head_attention(node: ir.Node, inputs: Inputs, opset: int) -> str | None:
    """q (B,S,D); k and v (B,L,D), or heads first (B,N,L,H) as a decoder caches those of its encoder; past (B,N,P,H)"""
    q, k, v, bias, mask, extra, past_k, past_v = (operand(inputs, i) for i in range(8))
    heads = integer(node, "num_heads")
    if q is None or k is None or v is None or opset < 13 or heads < 1 or is_asked(node, 3):
        return None
    if given(inputs, 8) or given(inputs, 9) or (past_k is None) != (past_v is None):
        return None
    if (sizes := _head_sizes(q, k, v, heads)) is None or (past_k is not None and k.rank == 4):
        return None
    lines = _projected(sizes, heads, k.rank, bias is not None, past_k is not None)
    causal = integer(node, "unidirectional") == 1
    if causal and (k.rank == 4 or k.dims[1] != q.dims[1]):
        return None
    filtered = real(node, "mask_filter_value", -10000.0)
    made = _scores_mask(mask, q.dims[0], causal, filtered, q.dtype, past_k is not None)
    if made is None:
        return None
    lines += [*made, *_attended(_scale(node, sizes[0]), q.dtype, _added(made, extra))]
    lines += ["present_key = Identity (k)", "present_value = Identity (v)", "scores = Constant <value_int: int = 0> ()"]
    operands = "query, key, value, bias, mask, attention_bias, past_key, past_value"
    return f"MultiHeadAttention ({operands}) => (y, present_key, present_value, scores) {{ {' '.join(lines)} }}"


def _head_sizes(q: Abstract, k: Abstract, v: Abstract, heads: int) -> tuple[int, int] | None:
    """The size of a head of q and k, and of one of v; None where they do not fit, or only a run tells."""
    if q.rank != 3 or k.rank != v.rank or k.rank not in (3, 4):
        return None
    width, value_width = q.dims[2].value, v.dims[2].value if k.rank == 3 else v.dims[3].value
    if not width or not value_width or width % heads or (k.rank == 3 and value_width % heads):
        return None
    return width // heads, value_width // heads if k.rank == 3 else value_width


def _projected(sizes: tuple[int, int], heads: int, rank: int, biased: bool, past: bool) -> list[str]:
    """q, k and v by heads, with the bias and the past."""
    size, value_size = sizes
    lines: list[str] = []
    names = {"q": "query", "k": "key", "v": "value"}
    if biased:
        widths = (size * heads, size * heads, value_size * heads)
        lines += [ints("widths", *widths), "bias_q, bias_k, bias_v = Split <axis: int = 0> (bias, widths)"]
        for name in "qkv" if rank == 3 else "q":
            lines.append(f"{name}_biased = Add ({names[name]}, bias_{name})")
            names[name] = f"{name}_biased"
    lines += by_heads("q", names["q"], heads, size)
    if rank == 4:
        lines += ["k = Identity (key)", "v = Identity (value)"]
    elif not past:
        lines += [*by_heads("k", names["k"], heads, size), *by_heads("v", names["v"], heads, value_size)]
    else:
        lines += [
            *by_heads("fresh_keys", names["k"], heads, size),
            *by_heads("fresh_values", names["v"], heads, value_size),
            "k = Concat <axis: int = 2> (past_key, fresh_keys)",
            "v = Concat <axis: int = 2> (past_value, fresh_values)",
        ]
    return lines


def attention(node: ir.Node, inputs: Inputs, opset: int) -> str | None:
    """q, k, v = x (B,S,C) @ w (C,2D+E) + bias; past and present (2,B,N,T,H) hold keys and values"""
    x, weight, bias, mask, past, extra = (operand(inputs, i) for i in range(6))
    heads = integer(node, "num_heads")
    refused = integer(node, "do_rotary") or integer(node, "past_present_share_buffer") or given(inputs, 6)
    if x is None or weight is None or opset < 13 or heads < 1 or refused:
        return None
    if x.rank != 3 or (widths := _packed_widths(node, weight, heads)) is None:
        return None
    size, value_size = widths[0] // heads, widths[2] // heads
    cached = past is not None or is_asked(node, 1)
    if cached and size != value_size:
        return None
    lines = ["product = MatMul (x, weight)", ints("widths", *widths)]
    lines.append("packed = Add (product, bias)" if bias is not None else "packed = Identity (product)")
    lines.append("query, key, value = Split <axis: int = 2> (packed, widths)")
    lines += by_heads("q", "query", heads, size)
    new_k, new_v = ("fresh_keys", "fresh_values") if past is not None else ("k", "v")
    lines += [*by_heads(new_k, "key", heads, size), *by_heads(new_v, "value", heads, value_size)]
    lines += _BEHIND_THE_PAST if past is not None else ()
    causal = integer(node, "unidirectional") == 1
    filtered = real(node, "mask_filter_value", -10000.0)
    made = _scores_mask(mask, x.dims[0], causal, filtered, x.dtype, past is not None)
    if made is None:
        return None
    lines += [*made, *_attended(_scale(node, size), x.dtype, _added(made, extra))]
    lines += _PRESENT if cached else ("present = Constant <value_int: int = 0> ()",)
    operands = "x, weight, bias, mask, past, attention_bias"
    return f"Attention ({operands}) => (y, present) {{ {' '.join(lines)} }}"


_BEHIND_THE_PAST = (
    ints("single", 1, 1),
    "past_keys, past_values = Split <axis: int = 0> (past, single)",
    ints("front", 0),
    "past_k = Squeeze (past_keys, front)",
    "past_v = Squeeze (past_values, front)",
    "k = Concat <axis: int = 2> (past_k, fresh_keys)",
    "v = Concat <axis: int = 2> (past_v, fresh_values)",
)


_PRESENT = (
    ints("ahead", 0),
    "k_first = Unsqueeze (k, ahead)",
    "v_first = Unsqueeze (v, ahead)",
    "present = Concat <axis: int = 0> (k_first, v_first)",
)


def _packed_widths(node: ir.Node, weight: Abstract, heads: int) -> list[int] | None:
    """Columns of q, k and v in the packed product; None where they do not fit."""
    told, width = attribute(node, "qkv_hidden_sizes"), weight.dims[1].value
    if not width or (told is None and width % 3):
        return None
    widths = [int(w) for w in told] if told is not None else [width // 3] * 3
    if len(widths) != 3 or widths[0] != widths[1] or any(w < 1 or w % heads for w in widths):
        return None
    return widths


# --- grouped queries: the caches of a decoder whose texts differ in length ---


def group_query_attention(node: ir.Node, inputs: Inputs, opset: int) -> str | None:
    """q (B,S,N*H), k and v (B,S,G*H), or all behind each other in q; past (B,G,P,H), present (B,G,max(P,total),H)

    A text has n = seqlens_k + 1 keys. The last S of them are new, in the first call (S = total) all, with padding behind them.
    """
    sizes = _grouped_sizes(node, inputs)
    if sizes is None or opset < 13 or any(given(inputs, i) for i in range(10, 16)) or is_asked(node, 3):
        return None
    if any(integer(node, name) for name in ("smooth_softmax", "sliding_window_cache")) or not integer(
        node, "causal", 1
    ):
        return None
    heads, groups, size = sizes
    q = inputs[0]
    assert q is not None
    lines = [ints("zero", 0), ints("one", 1), ints("two", 2), "step = Constant <value_int: int = 1> ()"]
    lines.append("begin = Constant <value_int: int = 0> ()")
    if given(inputs, 1):
        names = {"q": "query", "fresh_keys": "key", "fresh_values": "value"}
    else:
        names = {"q": "q_part", "fresh_keys": "k_part", "fresh_values": "v_part"}
        lines.append(ints("widths", heads * size, groups * size, groups * size))
        lines.append("q_part, k_part, v_part = Split <axis: int = -1> (query, widths)")
    for name, source in names.items():
        lines += by_heads(name, source, heads if name == "q" else groups, size)
    lines += _grouped_lengths()
    turned = {"q": "q", "fresh_keys": "fresh_keys"}
    if integer(node, "do_rotary"):
        lines += _grouped_positions(given(inputs, 9))
        options = f"<interleaved: int = {integer(node, 'rotary_interleaved')}>"
        for name in turned:
            lines.append(f"{name}_turned = com.microsoft.RotaryEmbedding {options} ({name}, positions, cos, sin)")
            turned[name] = f"{name}_turned"
    past = given(inputs, 3)
    lines += _grouped_rows(groups, size) if past else ()
    for name, fresh in (("key", turned["fresh_keys"]), ("value", "fresh_values")):
        lines += _grouped_cache(name, fresh, q.dtype, past)
        lines += _repeated(name, heads, groups, size)
    lines += _grouped_seen(integer(node, "local_window_size", -1))
    lines += _grouped_attention(turned["q"], _scale(node, size), real(node, "softcap", 0.0), q.dtype)
    lines.append("scores = Constant <value_int: int = 0> ()")
    operands = "query, key, value, past_key, past_value, seqlens_k, total, cos, sin, position_ids"
    return f"GroupQueryAttention ({operands}) => (y, present_key, present_value, scores) {{ {' '.join(lines)} }}"


def _grouped_sizes(node: ir.Node, inputs: Inputs) -> tuple[int, int, int] | None:
    """Heads of q, heads of k and v, size of a head; None where they do not fit, or only a run tells."""
    q, k, heads, groups = (
        operand(inputs, 0),
        operand(inputs, 1),
        integer(node, "num_heads"),
        integer(node, "kv_num_heads"),
    )
    if q is None or q.rank != 3 or heads < 1 or groups < 1 or heads % groups or given(inputs, 3) != given(inputs, 4):
        return None
    width, parts = q.dims[2].value, heads if k is not None else heads + 2 * groups
    past = operand(inputs, 3)
    if not width or width % parts or (past is not None and past.dtype != q.dtype):
        return None
    return heads, groups, width // parts


def _grouped_lengths() -> list[str]:
    """For each text, (B,1): how many keys it has, `ends`, and how many of them were there before, `kept`."""
    return [
        *size_lines("fresh", "q", 2),
        "whole = Reshape (total, one)",
        "rows = Cast <to: int = 7> (whole)",
        "rows_number = Squeeze (rows, zero)",
        ints("column", -1, 1),
        "lengths = Reshape (seqlens_k, column)",
        "last = Cast <to: int = 7> (lengths)",
        "ends = Add (last, one)",
        "before = Sub (ends, fresh)",
        "first_call = Equal (rows, fresh)",
        "kept = Where (first_call, zero, before)",
        "counted = Range (begin, fresh_number, step)",
        "places = Add (kept, counted)",  # (B,S): of the new keys
    ]


def _grouped_positions(told: bool) -> list[str]:
    """(B,S). In the first call ONNX Runtime takes only where the given ones begin."""
    if not told:
        return ["positions = Identity (places)"]
    return [
        ints("flat_list", -1),
        "told_flat = Reshape (position_ids, flat_list)",
        "told_first = Slice (told_flat, zero, one)",
        "told_on = Add (told_first, counted)",
        "positions = Where (first_call, told_on, position_ids)",
    ]


def _grouped_rows(groups: int, size: int) -> list[str]:
    """For each row of present the one of (past, new, zeros) that lies there, as indices (B,G,T,1)."""
    return [
        *size_lines("cached", "past_key", 2),
        *size_lines("batch", "past_key", 0),
        "room = Max (cached, rows)",
        "room_number = Squeeze (room, zero)",
        "all_rows = Range (begin, room_number, step)",
        "is_old = Less (all_rows, kept)",
        "behind = Sub (all_rows, kept)",
        "is_new = Less (behind, fresh)",
        "of_new = Add (behind, cached)",
        "empty = Add (cached, fresh)",
        "not_old = Where (is_new, of_new, empty)",
        "row = Where (is_old, all_rows, not_old)",
        ints("around", 1, 3),
        "row_once = Unsqueeze (row, around)",
        ints("groups", groups),
        ints("size", size),
        "row_shape = Concat <axis: int = 0> (batch, groups, room, one)",
        "row_indices = Expand (row_once, row_shape)",
        "zeros_shape = Concat <axis: int = 0> (batch, groups, one, size)",
    ]


def _grouped_cache(name: str, fresh: str, dtype: DataType, past: bool) -> list[str]:
    """present_<name>, and `seen_<name>`: as many rows of it as are in use"""
    if not past:
        return [f"present_{name} = Identity ({fresh})", f"seen_{name} = Identity ({fresh})"]
    return [
        constant(f"{name}_zero", 0.0, dtype),
        f"{name}_zeros = Expand ({name}_zero, zeros_shape)",
        f"{name}_all = Concat <axis: int = 2> (past_{name}, {fresh}, {name}_zeros)",
        f"present_{name} = GatherND <batch_dims: int = 2> ({name}_all, row_indices)",
        f"seen_{name} = Slice (present_{name}, zero, rows, two)",
    ]


def _repeated(name: str, heads: int, groups: int, size: int) -> list[str]:
    """k or v (B,N,T,H): each head of the cache serves as many heads of q"""
    short = name[0]
    if heads == groups:
        return [f"{short} = Identity (seen_{name})"]
    return [
        *size_lines(f"{short}_texts", f"seen_{name}", 0),
        *size_lines(f"{short}_rows", f"seen_{name}", 2),
        ints(f"{short}_spread", groups, heads // groups),
        ints(f"{short}_heads", heads),
        ints(f"{short}_size", size),
        ints(f"{short}_groups", groups),
        f"{short}_apart = Unsqueeze (seen_{name}, two)",
        f"{short}_wide = Concat <axis: int = 0> ({short}_texts, {short}_spread, {short}_rows, {short}_size)",
        f"{short}_each = Expand ({short}_apart, {short}_wide)",
        f"{short}_flat = Concat <axis: int = 0> ({short}_texts, {short}_heads, {short}_rows, {short}_size)",
        f"{short} = Reshape ({short}_each, {short}_flat)",
    ]


def _grouped_seen(window: int) -> list[str]:
    """`seen` (B,1,S,T): a query sees the keys up to its own, or the last WINDOW of them; none behind the end of its text"""
    lines = [
        "after = Add (places, one)",
        "up_to = Min (after, ends)",
        "until = Unsqueeze (up_to, two)",
        "keys = Range (begin, rows_number, step)",
        "early = Less (keys, until)",
    ]
    if window >= 0:
        lines += [ints("window", window), "first = Sub (after, window)", "since = Unsqueeze (first, two)"]
        lines += ["late = GreaterOrEqual (keys, since)", "in_window = And (early, late)"]
    return [*lines, f"seen = Unsqueeze ({'in_window' if window >= 0 else 'early'}, one)"]


def _grouped_attention(q: str, scale: float, cap: float, dtype: DataType) -> list[str]:
    """softmax(cap tanh(scale q k^T / cap)) v over the keys that are seen; 0 where none is"""
    lines, last = _scaled_scores(q, scale, dtype), "scores0"
    if cap:
        lines += [constant("cap", cap, dtype), "capped = Div (scores0, cap)", "bent = Tanh (capped)"]
        lines.append("scores1 = Mul (bent, cap)")
        last = "scores1"
    return [
        *lines,
        constant("nothing", 0.0, dtype),
        constant("unseen", -np.inf, dtype),
        f"chosen = Where (seen, {last}, unseen)",
        "shares = Softmax <axis: int = -1> (chosen)",
        "empty_row = IsNaN (shares)",
        "guarded = Where (empty_row, nothing, shares)",
        *_weighted("guarded"),
    ]


# --- rotary embedding ---


def rotary_embedding(node: ir.Node, inputs: Inputs, opset: int) -> str | None:
    """x (B,S,N*H) or (B,N,S,H), turned by the rows of the tables at its positions: (B,S), or the first one alone"""
    x, positions, cos, _ = (operand(inputs, i) for i in range(4))
    if x is None or positions is None or cos is None or opset < 13 or x.rank not in (3, 4):
        return None
    half, last = cos.dims[-1].value, x.dims[-1].value
    if not half or last is None or integer(node, "is_packed_batching") or cos.rank != 2:
        return None
    size, turned = _rotary_size(node, last, half, x.rank), 2 * half
    if size is None or not (positions.rank == 2 or positions.dims == (ONE,)):
        return None
    lines = [ints("zero", 0), ints("one", 1)]
    lines += ["heads = Identity (x)"] if x.rank == 4 else by_heads("heads", "x", last // size, size)
    lines += _rows_of_tables(positions.rank == 2)
    whole, rest = "heads", ""
    if turned < size:
        lines += [ints("parts", turned, size - turned), "whole, rest = Split <axis: int = -1> (heads, parts)"]
        whole, rest = "whole", "rest"
    if integer(node, "interleaved"):
        lines += _interleaved(whole)
    else:
        lines += [ints("halves", half, half), f"first, second = Split <axis: int = -1> ({whole}, halves)"]
        lines += _rotated()
        lines.append("result = Concat <axis: int = -1> (real, imaginary)")
    if rest:
        lines.append(f"joined = Concat <axis: int = -1> (result, {rest})")
    end = "joined" if rest else "result"
    if x.rank == 4:
        lines.append(f"y = Identity ({end})")
    else:
        lines += [f"rows_first = Transpose <perm: ints = [0, 2, 1, 3]> ({end})", ints("flat", 0, 0, last)]
        lines.append("y = Reshape (rows_first, flat)")
    return f"RotaryEmbedding (x, positions, cos, sin) => (y) {{ {' '.join(lines)} }}"


def _rows_of_tables(each: bool) -> list[str]:
    """The rows of the tables at the position of each token, or from the first position on."""
    if each:
        lines = ["cos_rows = Gather (cos, positions)", "sin_rows = Gather (sin, positions)"]  # (B,S,H/2)
        return [*lines, "c = Unsqueeze (cos_rows, one)", "s = Unsqueeze (sin_rows, one)"]  # (B,1,S,H/2)
    lines = [*size_lines("length", "heads", 2), "end = Add (positions, length)"]
    return [*lines, "c = Slice (cos, positions, end, zero)", "s = Slice (sin, positions, end, zero)"]  # (S,H/2)


def _rotary_size(node: ir.Node, last: int, half: int, rank: int) -> int | None:
    """The size of a head, of which 2 * HALF elements are turned; None where that does not fit."""
    heads, turned = integer(node, "num_heads"), integer(node, "rotary_embedding_dim") or 2 * half
    size = last if rank == 4 else last // heads if heads else turned
    return None if turned != 2 * half or turned > size or last % size else size


def _rotated() -> list[str]:
    """(first + i second) (c + i s)"""
    return [
        "first_c = Mul (first, c)",
        "second_s = Mul (second, s)",
        "real = Sub (first_c, second_s)",
        "first_s = Mul (first, s)",
        "second_c = Mul (second, c)",
        "imaginary = Add (first_s, second_c)",
    ]


def _interleaved(whole: str) -> list[str]:
    return [
        ints("after", 2**31 - 1),
        ints("last", -1),
        ints("every_second", 2),
        f"first = Slice ({whole}, zero, after, last, every_second)",
        f"second = Slice ({whole}, one, after, last, every_second)",
        *_rotated(),
        "real_apart = Unsqueeze (real, last)",
        "imaginary_apart = Unsqueeze (imaginary, last)",
        "pairs = Concat <axis: int = -1> (real_apart, imaginary_apart)",
        f"whole_shape = Shape ({whole})",
        "result = Reshape (pairs, whole_shape)",
    ]


BODIES = {
    ("com.microsoft", "MultiHeadAttention"): multi_head_attention,
    ("com.microsoft", "Attention"): attention,
    ("com.microsoft", "GroupQueryAttention"): group_query_attention,
    ("com.microsoft", "RotaryEmbedding"): rotary_embedding,
}
