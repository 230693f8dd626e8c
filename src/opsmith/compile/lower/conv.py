"""Convolutions. Images lie channels-last inside a region, so that pixels are rows and channels are columns.

x (N, C, H, W), stored as (N, H, W, C); w (O, C/groups, KH, KW) packed at compile time -> (N, O, OH, OW), stored likewise
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

from opsmith.compile import pack
from opsmith.compile.dims import ONE, Dim, DimLike, dim, estimate, floor_div, product
from opsmith.compile.lower import fuse, window
from opsmith.compile.lower.matmul import anchored, as_float
from opsmith.compile.lower.program import Group, Lowering, Target, Tunable
from opsmith.compile.lower.registry import Node, infers, lowers
from opsmith.compile.task import CONV_FIELDS, Candidate
from opsmith.compile.values import CPP, Abstract, Array, Buffer, Constant, DataType, Unsupported, View, abstract

NHWC = (0, 2, 3, 1)


def _geometry(node: Node, spatial: int) -> tuple[list[int], list[int], list[int], list[int]]:
    """strides, dilations, pads at the start, pads at the end; auto_pad is resolved by the caller."""
    strides = node.attribute("strides") or [1] * spatial
    dilations = node.attribute("dilations") or [1] * spatial
    pads = node.attribute("pads") or [0] * (2 * spatial)
    return strides, dilations, pads[:spatial], pads[spatial:]


def _resolve(node: Node, dims: tuple[Dim, ...], kernel: list[int]) -> tuple[list[Dim], list[int], list[int], list[int]]:
    """Output sizes, strides, dilations, and pads at the start."""
    spatial = len(kernel)
    strides, dilations, begin, end = _geometry(node, spatial)
    mode = node.attribute("auto_pad", "NOTSET")
    sizes: list[Dim] = []
    for i in range(spatial):
        reach = (kernel[i] - 1) * dilations[i] + 1
        size = dims[2 + i]
        if mode in ("SAME_UPPER", "SAME_LOWER"):
            if size.value is None and strides[i] != 1:
                raise Unsupported(f"auto_pad {mode} on a dynamic size")
            if size.value is not None:
                wanted = -(-size.value // strides[i])
                total = max(0, (wanted - 1) * strides[i] + reach - size.value)
                sizes.append(dim(wanted))
            else:
                total = reach - 1
                sizes.append(size)
            begin = list(begin)
            begin[i] = total // 2 if mode == "SAME_UPPER" else total - total // 2
            continue
        pad = 0 if mode == "VALID" else begin[i] + end[i]
        if mode == "VALID":
            begin = [0] * spatial
        length = size + (pad - reach)
        node.slides_over(length)
        sizes.append(length + 1 if strides[i] == 1 else floor_div(length, strides[i]) + 1)
    return sizes, strides, dilations, list(begin)


def _needs_plain(node: Node) -> bool:
    """Computed weights, 3 spatial dims and types other than float go through the plain kernel."""
    x, w = node.input(0), node.input(1)
    return w.constant is None or x.rank not in (3, 4) or x.dtype != DataType.FLOAT or w.dtype != DataType.FLOAT


@infers("Conv")
def _conv(node: Node) -> list[Abstract]:
    x, w = node.input(0), node.input(1)
    if _needs_plain(node):
        return window.infer_plain_conv(node)
    assert w.constant is not None
    if any(p < 0 for p in node.attribute("pads") or []):
        raise Unsupported("negative padding")
    kernel = list(w.constant.dims[2:])
    groups = int(node.attribute("group", 1))
    channels = w.constant.dims[1] * groups
    if x.dims[1] != channels:
        if x.dims[1].value is not None:
            raise Unsupported(f"{x.dims[1]} channels where the weights have {channels}")
        node.checks.append((f"{x.dims[1].cpp()} == {channels}", "the number of channels differs from the weights'"))
    sizes, _, _, _ = _resolve(node, x.dims, kernel)
    for s in sizes:
        if s.value is None:
            node.checks.append((f"{s.cpp()} >= 0", "the image is smaller than the kernel"))
        elif s.value < 0:
            raise Unsupported("the image is smaller than the kernel")
    return [abstract(x.dtype, [x.dims[0], w.constant.dims[0], *sizes])]


def as_image(view: View) -> View:
    """A 1-D signal (N, C, W) as an image of height 1."""
    if len(view.dims) == 4:
        return view
    n, c, w = view.dims
    return view.with_((n, c, ONE, w), (view.strides[0], view.strides[1], ONE, view.strides[2]))


@lowers("Conv", anchor=True)
def _lower_conv(node: Node, out: Lowering) -> None:
    if _needs_plain(node):
        window.lower_plain_conv(node, out)
        if out.group.nodes:
            fuse.lower_map(Group(out.group.root, out.group.nodes), out, out.known)
        return
    value = node.ir.inputs[0]
    upsample = 1
    if value in out.upsampled:  # a nearest resize that nobody else reads: the kernel repeats the pixels itself
        source_value, upsample = out.upsampled[value]
        x = as_float(source_value, out)
    else:
        x = as_float(out.tensor(value), out)
    constant = node.input(1).constant
    assert constant is not None
    flat = len(x.dims) == 3
    sizes, strides, dilations, pads = _resolve(node, node.input(0).dims, list(constant.dims[2:]))
    if flat:
        strides, dilations, pads, sizes = [1, *strides], [1, *dilations], [0, *pads], [ONE, *sizes]
    o, c, *kernel = constant.dims
    weights = constant.map("flat", (o, c, 1, *kernel), lambda w: w[:, :, None, :]) if flat else constant
    image = as_image(x)
    source = channels_last(image, out)
    groups = int(node.attribute("group", 1))
    bias = (
        [fuse.ExtraLeaf(_per_channel(out.tensor(node.ir.inputs[2]), 2 if not flat else 1), "acc + {0}")]
        if node.has(2)
        else []
    )
    shape = ConvCall(source, weights, sizes, strides, dilations, pads, groups, upsample)
    convolve(node, out, shape, bias, order=(0, 2, 1) if flat else NHWC)


def channels_last(view: View, out: Lowering) -> View:
    """Pixels that one stride walks over, channels contiguous: as it lies, or copied."""
    n, h, w, c = (view.strides[a] for a in NHWC)
    dims = view.dims
    unit = c == 1 or dims[1] == 1
    even = (dims[3] == 1 or dims[2] == 1 or h == w * dims[3]) and (
        dims[0] == 1 or n == h * dims[2] or (dims[2] == 1 and n == w * dims[3])
    )
    return view if unit and even and (dims[3] != 1 and dims[2] != 1) else out.dense(view, NHWC)


def _per_channel(view: View, spatial: int) -> View:
    """A bias (C,) as an operand of the logical output (N, C, ...)."""
    return view.with_((ONE, *view.dims, *(ONE,) * spatial), (ONE, *view.strides, *(ONE,) * spatial))


@dataclasses.dataclass
class ConvCall:
    """Everything a convolution kernel needs besides its epilogue."""

    x: View
    weights: Constant
    sizes: list[Dim]
    strides: list[int]
    dilations: list[int]
    pads: list[int]
    groups: int
    upsample: int = 1

    def tuned_sizes(self, strict: bool) -> dict[str, DimLike | str]:
        """What the tuner needs to know (families.py: CONV_FIELDS)."""
        n, c, h, w = self.x.dims
        o, _, kh, kw = self.weights.dims
        values: list[DimLike] = [
            n,
            h,
            w,
            c,
            *self.sizes,
            o,
            kh,
            kw,
            *self.strides,
            *self.pads,
            *self.dilations,
            self.groups,
        ]
        values.append(self.upsample)
        return {**dict(zip(CONV_FIELDS, values)), "strict": int(strict)}

    def text(self, out: Lowering, limits: Candidate | None = None) -> str:
        n, c, h, w = self.x.dims
        o, _, kh, kw = self.weights.dims
        pixel = self.x.strides[3]
        fields: list[DimLike] = [
            n,
            h,
            w,
            c,
            *self.sizes,
            o,
            kh,
            kw,
            *self.strides,
            *self.pads,
            *self.dilations,
            self.groups,
            pixel,
            o,
            self.upsample,
        ]
        blocking = f", Blocking{{{limits.rows}, {limits.panels}}}" if limits is not None else ""
        return f"ConvShape{{{', '.join(out.cpp(f) for f in fields)}{blocking}}}"

    def flops(self) -> Dim:
        o, c, kh, kw = self.weights.dims
        return self.x.dims[0] * product(self.sizes) * (2 * o * c * kh * kw)


def convolve(node: Node, out: Lowering, shape: ConvCall, extra: list[fuse.ExtraLeaf], order: tuple[int, ...]) -> None:
    algorithm = TRANSPOSED if node.ir.op_type == "ConvTranspose" else out.algorithms.get(node.ir, DIRECT)
    if algorithm is DIRECT and shape.groups > 1 and shape.upsample == 1 and shape.weights.dims[:2] == (shape.groups, 1):
        algorithm = DEPTHWISE
    packed = [algorithm.pack(shape, out)]
    call, tile = algorithm.kernel, _TILES.get(algorithm.kernel)
    if tile and not is_static(
        shape.x.dims[0], *shape.sizes
    ):  # small images go the direct way, which needs its own weights
        call = f"conv2d_by_size<{tile}>"
        packed.append(DIRECT.pack(shape, out))
    # The tuner times weights of floats.
    tuned = algorithm in (DIRECT, WINOGRAD4, WINOGRAD2) and shape.weights.stored is None

    def emit(target: View, epilogue: fuse.Epilogue) -> None:
        if target.dtype != DataType.FLOAT:
            raise Unsupported("half-precision images")
        slug = f"{algorithm.kernel}_{epilogue.slug}" if epilogue.slug else algorithm.kernel
        names = ["weights", "direct"][: len(packed)]
        parameters = ", ".join(f"const {CPP[p.dtype]}* {name}" for p, name in zip(packed, names))
        name = out.instance(
            slug,
            f"const Pool& pool, const ConvShape& shape, const float* x, {parameters}, float* y, void* workspace{epilogue.parameters}",
            f"{call}(pool, shape, x, {', '.join(names)}, y, workspace, {epilogue.lambda_text});",
            (algorithm.header, "elementwise.hpp"),
            f"{algorithm.comment}{'; then ' + epilogue.comment if epilogue.comment else ''}",
        )
        out.program.instance_headers.add("conv.hpp")
        limits = out.limits(algorithm.kernel)
        text = shape.text(out, limits)
        space = out.workspace(workspace(call, text), algorithm.header)
        o, _, kh, kw = shape.weights.dims
        out.call(
            name,
            f"{name}(pool, {text}, {out.pointer(shape.x)}, {', '.join(p.name for p in packed)}, {out.pointer(target)}, {space}{epilogue.arguments});",
            reads=[shape.x, *packed, *epilogue.views],
            writes=[target],
            comment=f"{kh}x{kw} {shape.x.dims[1]} -> {o}{'; ' + epilogue.comment if epilogue.comment else ''}",
            flops=shape.flops(),
            notes=algorithm.notes,
            header=algorithm.header,
            tunable=Tunable("conv", algorithm.kernel, shape.tuned_sizes(out.target.strict), limits) if tuned else None,
        )

    anchored(node, out, emit, extra, order=order)


def workspace(call: str, shape: str) -> str:
    """C++ that tells how many bytes a kernel needs: conv2d_by_size<4> -> conv2d_by_size_workspace<4>(shape)."""
    name, bracket, arguments = call.partition("<")
    return f"{name}_workspace{bracket}{arguments}({shape})"


def is_static(*dims: Dim) -> bool:
    return all(d.value is not None for d in dims)


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """One way to convolve: a kernel, and how its weights are packed."""

    kernel: str
    header: str
    comment: str
    notes: tuple[str, ...] = ()

    def pack(self, shape: ConvCall, out: Lowering) -> Buffer:
        """The weights as the kernel reads them. Only the direct kernel reads half precision as it is stored: rounding the
        transformed weights of Winograd's as well would add an error of its own."""
        w, lanes, groups = shape.weights, out.target.lanes, shape.groups
        if self is DIRECT and w.stored is not None:
            w = w.stored
        o, c, kh, kw = w.dims
        columns = -(-(o // groups) // lanes) * lanes

        def weights() -> Array:
            return np.asarray(w.read(), None if self is DIRECT else np.float32)

        strides, dilations = (shape.strides[0], shape.strides[1]), (shape.dilations[0], shape.dilations[1])
        if tile := _TILES.get(self.kernel):
            size, write = (tile + 2) ** 2 * c * columns, lambda: pack.pack_winograd(weights(), tile, lanes)
        elif self is DEPTHWISE:
            size, write = o * kh * kw, lambda: pack.pack_depthwise(weights())
        elif self is TRANSPOSED:
            size = groups * c * kh * kw * columns
            write = lambda: pack.pack_conv_transposed(weights(), groups, strides, dilations, lanes)  # noqa: E731
        else:
            size, write = groups * c * kh * kw * columns, lambda: pack.pack_conv2d(weights(), groups, lanes)
        dtype = w.dtype if self is DIRECT else DataType.FLOAT
        return out.packed(f"{self.kernel}({w.key})", dtype, size, int(dtype.itemsize), write)


_TILES = {"conv2d_winograd4": 4, "conv2d_winograd2": 2}
TRANSPOSED = Algorithm("conv2d_transposed", "conv_transpose.hpp", "transposed convolution, phase by phase")
DEPTHWISE = Algorithm("conv2d_depthwise", "depthwise.hpp", "depthwise convolution")
DIRECT = Algorithm("conv2d", "conv.hpp", "convolution as an implicit matrix product")
WINOGRAD4 = Algorithm(
    "conv2d_winograd4", "winograd.hpp", "3x3 convolution by Winograd F(4x4,3x3)", ("winograd F(4x4,3x3)",)
)
WINOGRAD2 = Algorithm(
    "conv2d_winograd2", "winograd.hpp", "3x3 convolution by Winograd F(2x2,3x3)", ("winograd F(2x2,3x3)",)
)

# Transformed weights are 4 times (F4) or 16/9 times (F2) as large. They lie beside the direct ones where sizes are dynamic, but
# of a layer's two forms only one is read. What a model reads may grow by this share, or by this many bytes if that is more.
GROWTH, FREE_BYTES = 0.75, 768 << 20


def plan_algorithms(nodes: Iterable[Node], target: Target) -> dict[ir.Node, Algorithm]:
    """Winograd where it saves most for the memory it costs; everything else is direct."""
    convs = [n for n in nodes if n.ir.op_type == "Conv" and n.ir.domain in ("", "ai.onnx") and not _needs_plain(n)]
    if target.strict:
        return {}
    # A folded node (the Cast of weights stored in half precision) is no user of its own: they would count twice.
    users = [n for n in nodes if any(o.constant is None for o in n.outputs)]
    total = sum(v.constant.size for n in users for v in n.inputs if v is not None and v.constant is not None) * 4
    budget = max(GROWTH * total, FREE_BYTES)
    options: list[Option] = []
    for node in convs:
        weights = node.input(1).constant
        assert weights is not None
        if not _winograd_fits(node, weights):
            continue
        o, c = weights.dims[:2]
        stored = int((weights.stored or weights).dtype.itemsize)
        growth = {a: o * c * (4 * size - 9 * stored) for a, size in ((WINOGRAD2, 16), (WINOGRAD4, 36))}  # bytes
        measured = target.tuned.get(node.name)
        if measured is not None and DIRECT.kernel in measured.best:
            direct = measured.best[DIRECT.kernel].seconds
            times = {a: measured.best[a.kernel].seconds for a in growth if a.kernel in measured.best}
            saved = {a: direct - t for a, t in times.items() if t < direct * 0.98}
        else:
            sizes = [max(1, estimate(d)) for d in (node.outputs[0].dims[0], *node.outputs[0].dims[2:])]
            costs = {a: cost(_TILES[a.kernel], *sizes) for a in growth}
            saved = {
                a: (cost(None, *sizes) - costs[a]) * o * c / DIRECT_SPEED
                for a in growth
                if costs[a] < cost(None, *sizes)
            }
        options += _options(node.ir, saved, growth)
    chosen: dict[ir.Node, Option] = {}
    for option in sorted(options, key=lambda o: -o.worth):
        before = chosen.get(option.node)
        more = option.growth - (before.growth if before else 0)
        if more <= budget and (before is None or option.saved > before.saved):
            budget -= more
            chosen[option.node] = option
    return {node: option.algorithm for node, option in chosen.items()}


@dataclasses.dataclass(frozen=True)
class Option:
    """A faster way to convolve, and what it costs."""

    node: ir.Node
    algorithm: Algorithm
    saved: float  # seconds per run
    growth: int  # bytes
    worth: float  # seconds per byte that it adds to the next smaller way


def _options(node: ir.Node, saved: Mapping[Algorithm, float], growth: Mapping[Algorithm, int]) -> list[Option]:
    """The ways of one layer. A larger one that saves less per byte is a step up from the smaller one, and worth that step."""
    found: list[Option] = []
    for way in sorted(saved, key=lambda a: growth[a]):
        worth = saved[way] / max(1, growth[way])
        if found and worth < found[-1].worth:
            worth = (saved[way] - found[-1].saved) / (growth[way] - found[-1].growth)
        found.append(Option(node, way, saved[way], growth[way], worth))
    return found


DIRECT_SPEED = 200e9  # operations per second; only the order of the options depends on it


def cost(tile: int | None, batch: int, height: int, width: int) -> int:
    """What a pair of channels costs, in direct operations: the arithmetic, or reading the weights from memory if that takes
    longer. `tile` None: direct. The same estimate is in winograd.hpp: winograd_pays."""
    byte = 5  # direct operations in the time that a byte takes from memory
    if tile is None:
        return max(18 * batch * height * width, byte * 9 * 4)
    tiles = batch * -(-height // tile) * -(-width // tile)
    return max(104 * tiles, byte * 36 * 4) if tile == 4 else max(40 * tiles, byte * 16 * 4)


def _winograd_fits(node: Node, weights: Constant) -> bool:
    if len(weights.dims) != 4 or weights.dims[2:] != (3, 3) or int(node.attribute("group", 1)) != 1:
        return False
    strides, dilations, _, _ = _geometry(node, 2)
    return strides == [1, 1] and dilations == [1, 1] and weights.dims[0] >= 16 and weights.dims[1] >= 16


# --- ConvTranspose ---


@infers("ConvTranspose")
def _conv_transpose(node: Node) -> list[Abstract]:
    x, w = node.input(0), node.input(1)
    if _needs_plain(node):
        return window.infer_transposed(node)
    assert w.constant is not None
    if x.dims[1] != w.constant.dims[0]:
        if x.dims[1].value is not None:
            raise Unsupported(f"{x.dims[1]} channels where the weights have {w.constant.dims[0]}")
        node.checks.append(
            (f"{x.dims[1].cpp()} == {w.constant.dims[0]}", "the number of channels differs from the weights'")
        )
    sizes, _ = _transposed_sizes(node, x.dims, list(w.constant.dims[2:]))
    node.checks += [(f"{s.cpp()} >= 0", "the output would be empty") for s in sizes if s.value is None]
    if any(s.value is not None and s.value < 0 for s in sizes):
        raise Unsupported("the output would be empty")
    return [abstract(x.dtype, [x.dims[0], w.constant.dims[1] * int(node.attribute("group", 1)), *sizes])]


def _transposed_sizes(node: Node, dims: tuple[Dim, ...], kernel: list[int]) -> tuple[list[Dim], list[int]]:
    """Output sizes and pads at the start."""
    spatial = len(kernel)
    strides, dilations, begin, end = _geometry(node, spatial)
    extra = node.attribute("output_padding") or [0] * spatial
    wanted, mode = node.attribute("output_shape"), node.attribute("auto_pad", "NOTSET")
    sizes: list[Dim] = []
    pads: list[int] = []
    for i in range(spatial):
        full = (dims[2 + i] - 1) * strides[i] + (extra[i] + (kernel[i] - 1) * dilations[i] + 1)
        if wanted is None and mode in ("NOTSET", "VALID"):
            pad = (0, 0) if mode == "VALID" else (begin[i], end[i])
            sizes.append(full - sum(pad))
            pads.append(pad[0])
            continue
        size = dim(wanted[-spatial + i]) if wanted is not None else dims[2 + i] * strides[i]
        total = (full - size).value
        if total is None:
            raise Unsupported("the padding depends on a dynamic size")
        total = max(0, total)
        sizes.append(size)
        pads.append(total // 2 if mode == "SAME_UPPER" else total - total // 2)
    if any(p < 0 for p in pads):
        raise Unsupported("negative padding")
    return sizes, pads


@lowers("ConvTranspose", anchor=True)
def _lower_conv_transpose(node: Node, out: Lowering) -> None:
    if _needs_plain(node):
        window.lower_transposed(node, out)
        if out.group.nodes:
            fuse.lower_map(Group(out.group.root, out.group.nodes), out, out.known)
        return
    x = as_float(out.tensor(node.ir.inputs[0]), out)
    constant = node.input(1).constant
    assert constant is not None
    flat = len(x.dims) == 3
    groups = int(node.attribute("group", 1))
    sizes, pads = _transposed_sizes(node, node.input(0).dims, list(constant.dims[2:]))
    strides, dilations, _, _ = _geometry(node, len(sizes))
    if flat:
        strides, dilations, pads, sizes = [1, *strides], [1, *dilations], [0, *pads], [ONE, *sizes]
    c, o = constant.dims[0] // groups, constant.dims[1] * groups
    kernel = (1, constant.dims[2]) if flat else constant.dims[2:]
    weights = Constant(
        constant.key,
        constant.dtype,
        (o, c, *kernel),
        (lambda: constant.read()[:, :, None, :]) if flat else constant.read,
    )
    bias = (
        [fuse.ExtraLeaf(_per_channel(out.tensor(node.ir.inputs[2]), 1 if flat else 2), "acc + {0}")]
        if node.has(2)
        else []
    )
    shape = ConvCall(channels_last(as_image(x), out), weights, sizes, list(strides), list(dilations), pads, groups)
    convolve(node, out, shape, bias, order=(0, 2, 1) if flat else NHWC)
