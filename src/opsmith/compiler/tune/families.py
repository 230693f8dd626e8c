"""The kernel families that can be tuned: the C++ of their table, the limits to try, the data to run and check them on.

A family is one translation unit with all its kernels in a table. What is tuned are run-time limits of a kernel's tasks (rows by
panels of a product, tiles by panels of a Winograd convolution, keys by panels of attention) and, for convolutions, the algorithm;
so no candidate needs a compiler run of its own.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from opsmith.compiler import pack, winograd
from opsmith.compiler.geometry import InstructionSet
from opsmith.compiler.lower.attention import TUNED as ATTENTION_FIELDS
from opsmith.compiler.lower.convolution import TUNED as CONV_FIELDS
from opsmith.compiler.task import Candidate, Task
from opsmith.compiler.winograd import Way

Array = npt.NDArray[Any]

SAMPLES = 24  # rows or pixels of the result that are computed anew, in double precision


@dataclasses.dataclass
class Problem:
    """A call on made-up numbers: inputs of every kernel, and what a few rows of the result must be."""

    x: Array
    weights: Mapping[str, Array]  # kernel -> packed
    y_floats: int
    rows: Array  # indices of rows of y (y_floats / width, width)
    expected: Array  # (len(rows), width), float64

    def error(self, y: Array) -> float:
        """Largest difference, relative to the scale of the result; infinite if it is not a number."""
        got = y.reshape(-1, self.expected.shape[1])[self.rows].astype(np.float64)
        scale = float(np.abs(self.expected).max()) or 1.0
        difference = float(np.abs(got - self.expected).max()) / scale
        return difference if np.isfinite(difference) else float("inf")


@dataclasses.dataclass(frozen=True)
class Family:
    name: str
    headers: tuple[str, ...]
    source: str  # C++: functions and `const Entry entries[]`
    candidates: Callable[[Task, int, InstructionSet], list[Candidate]]  # by level; the analytical one is first
    problem: Callable[[Task, InstructionSet], Problem]


# --- what all of them share ---


def unique(candidates: list[Candidate]) -> list[Candidate]:
    return list(dict.fromkeys(candidates))


def panels_of(base: Array, columns: int, isa: InstructionSet, packer: Callable[[Array], Array]) -> Array:
    """Packed weights of `columns` output columns from those of one panel, each panel scaled differently (exactly, in any
    storage type), because packing the whole would take longer than measuring it."""
    width = isa.panel_columns
    whole, rest = divmod(columns, width)
    first = packer(base)
    parts = [np.multiply.outer(panel_scales(whole).astype(first.dtype), first).reshape(-1)] if whole else []
    if rest:
        parts.append(packer(base[..., :rest]) * panel_scales(whole + 1)[-1].astype(first.dtype))
    return np.concatenate(parts)


def panel_scales(count: int) -> Array:
    return 1 + (np.arange(count) % 8) / 8


def column_scales(columns: int, isa: InstructionSet) -> Array:
    width = isa.panel_columns
    return np.repeat(panel_scales(-(-columns // width)), width)[:columns]


def base_weights(random: np.random.Generator, inner: int, isa: InstructionSet) -> Array:
    """(inner, columns of one panel): eighths, so that every storage type holds them and their multiples exactly."""
    return random.integers(-8, 9, (inner, isa.panel_columns)).astype(np.float32) / 8


def spread_columns(product: Array, columns: int, isa: InstructionSet) -> Array:
    """What columns of one panel, scaled panel by panel, give over all columns."""
    repeated = np.tile(product, (1, -(-columns // product.shape[1])))[:, :columns]
    return np.asarray(repeated * column_scales(columns, isa))


def sample(random: np.random.Generator, count: int) -> Array:
    """First, last and some rows between."""
    return np.unique(np.concatenate([[0, count - 1], random.integers(0, count, SAMPLES)]))


# --- products with packed weights ---

_STORAGE: dict[str, Any] = {"f32": np.float32, "f16": np.float16}

_GEMM = """
template <class TB>
void run_gemm(const Pool& pool, const i64* s, const i64* l, void* const* d) {
  const i64 M = s[0], N = s[1], K = s[2];
  gemm(pool, M, N, K, static_cast<const float*>(d[0]), K, static_cast<const TB*>(d[1]), static_cast<float*>(d[2]), N,
       [](F sum, Row, i64, auto) { return sum; }, 0, Blocking{l[0], l[1]});
}
i64 nothing(const i64*, const i64*) { return 0; }

const Entry entries[] = {
    {"gemm_f32", run_gemm<float>, nothing},
    {"gemm_f16", run_gemm<f16>, nothing},
};
"""


def product_limits(kernel: str, rows: int, columns: int, level: int, isa: InstructionSet) -> list[Candidate]:
    """Rows and panels of a task; (0, 0) is the kernel's own choice."""
    tile, panels = isa.gemm_mr, -(-columns // isa.panel_columns)
    heights = [24] if level == 1 else [24, 16, 8, 4]
    widths = [0.5, 0.25] if level == 1 else [1, 0.5, 0.25, 0.125, 0.0625, 0.03125]  # of all panels
    candidates = [Candidate(kernel)]
    for height in heights:
        for width in widths:
            limit = Candidate(kernel, min(height * tile, -(-rows // tile) * tile), max(1, round(panels * width)))
            tasks = -(-rows // limit.rows) * -(-panels // limit.panels)
            if 1 < tasks <= 4096:
                candidates.append(limit)
    return unique(candidates)


def _gemm_candidates(task: Task, level: int, isa: InstructionSet) -> list[Candidate]:
    return product_limits(f"gemm_{task['storage']}", int(task["m"]), int(task["n"]), level, isa)


def _gemm_problem(task: Task, isa: InstructionSet) -> Problem:
    m, n, k = (int(task[a]) for a in "mnk")
    random = np.random.default_rng(0)
    x = random.standard_normal((m, k), dtype=np.float32)
    base = base_weights(random, k, isa)
    storage = _STORAGE[str(task["storage"])]
    packed = panels_of(base, n, isa, lambda w: pack.pack_gemm(w.astype(storage), isa))
    rows = sample(random, m)
    expected = spread_columns(x[rows].astype(np.float64) @ base.astype(np.float64), n, isa)
    return Problem(x, {f"gemm_{task['storage']}": packed}, m * n, rows, expected)


GEMM = Family("gemm", ("gemm.hpp",), _GEMM, _gemm_candidates, _gemm_problem)

# --- products with quantized weights ---

_QUANTIZED = """
template <int Bits, class Scale, int Zero>
void run_quantized(const Pool& pool, const i64* s, const i64* l, void* const* d) {
  const i64 M = s[0], N = s[1], K = s[2];
  gemm_quantized<Bits, Scale, Zero>(pool, M, N, K, s[3], static_cast<const float*>(d[0]), K,
                                    static_cast<const uint8_t*>(d[1]), static_cast<float*>(d[2]), N,
                                    [](F sum, Row, i64, auto) { return sum; }, 0, Blocking{l[0], l[1]});
}
i64 nothing(const i64*, const i64*) { return 0; }

const Entry entries[] = {
    {"int8_f32", run_quantized<8, float, false>, nothing}, {"int8_f32_zero", run_quantized<8, float, true>, nothing},
    {"int8_f16", run_quantized<8, f16, false>, nothing},   {"int8_f16_zero", run_quantized<8, f16, true>, nothing},
    {"int4_f32", run_quantized<4, float, false>, nothing}, {"int4_f32_zero", run_quantized<4, float, true>, nothing},
    {"int4_f16", run_quantized<4, f16, false>, nothing},   {"int4_f16_zero", run_quantized<4, f16, true>, nothing},
    {"int4_f32_float_zero", run_quantized<4, float, kFloatZeros>, nothing},
    {"int4_f16_float_zero", run_quantized<4, f16, kFloatZeros>, nothing},
};
"""


def _quantized_candidates(task: Task, level: int, isa: InstructionSet) -> list[Candidate]:
    return product_limits(str(task["storage"]), int(task["m"]), int(task["n"]), level, isa)


def _quantized_problem(task: Task, isa: InstructionSet) -> Problem:
    m, n, k, block = (int(task[a]) for a in ("m", "n", "k", "block"))
    storage = str(task["storage"])
    bits, zero = int(storage[3]), storage.endswith("zero")
    random = np.random.default_rng(0)
    x = random.standard_normal((m, k), dtype=np.float32)
    blocks = -(-k // block)
    values = random.integers(-7, 8, (k, n)).astype(np.int8)
    scales: Array = (random.integers(1, 8, (blocks, n)) / 8).astype(np.float16 if "f16" in storage else np.float32)
    zero_type = scales.dtype if "float_zero" in storage else np.dtype(np.int8)
    zeros = random.integers(-3, 4, (blocks, n)).astype(zero_type) if zero else None
    weights = pack.BlockQuantized(values, scales, zeros, bits, block)
    rows = sample(random, m)
    plain = values.astype(np.float64) - (0 if zeros is None else np.repeat(zeros, block, axis=0)[:k])
    plain *= np.repeat(scales.astype(np.float64), block, axis=0)[:k]
    expected = x[rows].astype(np.float64) @ plain
    return Problem(x, {storage: pack.pack_quantized(weights, isa)}, m * n, rows, expected)


QUANTIZED = Family("quantized", ("quant.hpp",), _QUANTIZED, _quantized_candidates, _quantized_problem)

# --- convolutions ---

_NAMED = ", ".join(f".{name} = s[{i}]" for i, name in enumerate(CONV_FIELDS))
_CONV = (
    f"""
ConvShape shape_of(const i64* s, const i64* l) {{
  return ConvShape{{{_NAMED}, .blocking = {{l[0], l[1]}}}};
}}
"""
    + """
#define OPSMITH_CONV(name)                                                                                 \\
  void run_##name(const Pool& pool, const i64* s, const i64* l, void* const* d) {                          \\
    name(pool, shape_of(s, l), static_cast<const float*>(d[0]), static_cast<const float*>(d[1]),           \\
         static_cast<float*>(d[2]), d[3], [](F sum, Row, i64, auto) { return sum; });                      \\
  }                                                                                                        \\
  i64 space_##name(const i64* s, const i64* l) { return name##_workspace(shape_of(s, l)); }
OPSMITH_CONV(conv2d)
OPSMITH_CONV(conv2d_winograd4)
OPSMITH_CONV(conv2d_winograd2)
OPSMITH_CONV(conv2d_winograd4_stride2)

const Entry entries[] = {
    {"conv2d", run_conv2d, space_conv2d},
    {"conv2d_winograd4", run_conv2d_winograd4, space_conv2d_winograd4},
    {"conv2d_winograd2", run_conv2d_winograd2, space_conv2d_winograd2},
    {"conv2d_winograd4_stride2", run_conv2d_winograd4_stride2, space_conv2d_winograd4_stride2},
};
"""
)


def winograd_ways(task: Task) -> dict[str, Way]:
    _, _, _, c, _, _, o, kh, kw, sh, sw, _, _, dh, dw, groups, _ = (int(task[f]) for f in CONV_FIELDS)
    return {} if task["strict"] else winograd.fitting((o, c // groups, kh, kw), (sh, sw), (dh, dw), groups)


def _conv_candidates(task: Task, level: int, isa: InstructionSet) -> list[Candidate]:
    pixels = int(task["batch"]) * int(task["out_height"]) * int(task["out_width"])
    columns = int(task["out_channels"]) // int(task["groups"])
    candidates = product_limits("conv2d", pixels, columns, 1 if winograd_ways(task) else level, isa)
    width = isa.panel_columns
    for kernel in winograd_ways(task):
        candidates.append(Candidate(kernel))
        if level == 1:
            continue
        for columns in (32, 48, 64, 96):  # output channels of a task
            for tiles in (96, 48, 24, 12):
                candidates.append(Candidate(kernel, tiles, max(1, columns // width)))
    return unique(candidates)


def _pack_winograd(weights: Array, way: Way, isa: InstructionSet) -> Array:
    """Weights (C, 3, 3, O)."""
    return pack.pack_winograd(weights.transpose(3, 0, 1, 2), way, isa)


def _conv_problem(task: Task, isa: InstructionSet) -> Problem:
    n, h, w, c, oh, ow, o, kh, kw, sh, sw, top, left, dh, dw, groups, up = (int(task[f]) for f in CONV_FIELDS)
    random = np.random.default_rng(0)
    x = random.standard_normal((n, h, w, c), dtype=np.float32)
    inner, columns = c // groups, o // groups
    base = base_weights(random, kh * kw * inner, isa)  # every group has the same weights: groups differ by their x
    image = base.reshape(kh, kw, inner, -1).transpose(2, 0, 1, 3)  # (C, KH, KW, one panel)
    packed = {"conv2d": np.tile(panels_of(base, columns, isa, lambda b: pack.pack_gemm(b, isa)), groups)}
    for kernel, way in winograd_ways(task).items():
        packed[kernel] = panels_of(image, columns, isa, functools.partial(_pack_winograd, way=way, isa=isa))
    rows = sample(random, n * oh * ow)
    expected = np.empty((len(rows), o))
    for i, row in enumerate(rows):
        item, y, z = row // (oh * ow), row // ow % oh, row % ow
        patch = np.zeros((kh, kw, c))
        for a in range(kh):
            for b in range(kw):
                at, beside = y * sh - top + a * dh, z * sw - left + b * dw
                if 0 <= at < h * up and 0 <= beside < w * up:
                    patch[a, b] = x[item, at // up, beside // up]
        for g in range(groups):
            part = patch[:, :, g * inner : (g + 1) * inner].reshape(1, -1) @ base.astype(np.float64)
            expected[i, g * columns : (g + 1) * columns] = spread_columns(part, columns, isa)
    return Problem(x, packed, n * oh * ow * o, rows, expected)


CONV = Family("conv", ("conv.hpp", "winograd.hpp"), _CONV, _conv_candidates, _conv_problem)

# --- attention ---

_ATTENTION = """
// q (B, S, H, D), k (B, T, G, D), v (B, T, G, E) one after another in data[0]; y (B, S, H, E): as projections leave them
AttentionShape shape_of(const i64* s, const i64* l) {
  const i64 H = s[1], G = s[2], S = s[3], T = s[4], D = s[5], E = s[6];
  return AttentionShape{s[0], H, G, S, T, D, E, S * H * D, D, H * D, T * G * D, D, G * D, T * G * E, E, G * E,
                        S * H * E, E, H * E, 0.125f, s[7] != 0, 0, l[0], l[1]};
}
void run_attention(const Pool& pool, const i64* s, const i64* l, void* const* d) {
  const AttentionShape shape = shape_of(s, l);
  const float* q = static_cast<const float*>(d[0]);
  const float* k = q + s[0] * shape.q_batch;
  attention(pool, shape, q, k, k + s[0] * shape.k_batch, static_cast<float*>(d[2]), NoMask{}, d[3]);
}
i64 space_attention(const i64* s, const i64* l) { return attention_workspace(shape_of(s, l)); }

const Entry entries[] = {
    {"attention", run_attention, space_attention},
};
"""


def _attention_candidates(task: Task, level: int, isa: InstructionSet) -> list[Candidate]:
    keys = int(task["keys"])
    blocks = (96, 48) if level == 1 else (24, 48, 96, 144, 192)
    panels = (4,) if level == 1 else (1, 2, 4)
    candidates = [Candidate("attention")]
    if int(task["queries"]) * int(task["heads"]) // int(task["kv_heads"]) > isa.lanes:
        candidates += [Candidate("attention", b, p) for b in blocks for p in panels if b <= max(96, keys)]
    return unique(candidates)


def _attention_problem(task: Task, isa: InstructionSet) -> Problem:
    b, heads, groups, queries, keys, size, value_size, causal = (int(task[f]) for f in ATTENTION_FIELDS)
    random = np.random.default_rng(0)
    q = random.standard_normal((b, queries, heads, size), dtype=np.float32)
    k = random.standard_normal((b, keys, groups, size), dtype=np.float32)
    v = random.standard_normal((b, keys, groups, value_size), dtype=np.float32)
    rows = sample(random, b * queries * heads)
    expected = np.empty((len(rows), value_size))
    for i, row in enumerate(rows):
        item, query, head = row // (queries * heads), row // heads % queries, row % heads
        group = head // (heads // groups)
        scores = k[item, :, group].astype(np.float64) @ q[item, query, head].astype(np.float64) * 0.125
        if causal:
            scores[query + keys - queries + 1 :] = -np.inf
        weights = np.exp(scores - scores.max())
        expected[i] = weights / weights.sum() @ v[item, :, group].astype(np.float64)
    x = np.concatenate([q.reshape(-1), k.reshape(-1), v.reshape(-1)])
    return Problem(x, {"attention": np.zeros(1, np.float32)}, b * queries * heads * value_size, rows, expected)


ATTENTION = Family("attention", ("attention.hpp",), _ATTENTION, _attention_candidates, _attention_problem)

FAMILIES = {f.name: f for f in (GEMM, QUANTIZED, CONV, ATTENTION)}
