"""Reading and writing at indices that are data: GatherElements, GatherND, the Scatters, OneHot, TopK, ReverseSequence, and the small
constructions Trilu, EyeLike and Hardmax. Indices out of range end the run with an error (indexing.hpp)."""

from __future__ import annotations

from collections.abc import Sequence

from opsmith.compile.dims import ONE, Dim, dim, floor_div, product
from opsmith.compile.lower.axes import sizes
from opsmith.compile.lower.program import Lowering
from opsmith.compile.lower.registry import Node, infers, lowers
from opsmith.compile.values import CPP, FLOATS, Abstract, DataType, Unsupported, View, abstract

_COMBINE = {"none": "none", "add": "add", "mul": "mul", "max": "max", "min": "min"}


def checked(
    out: Lowering, kernel: str, arguments: Sequence[str], reads: Sequence[View], writes: Sequence[View], comment: str
) -> None:
    """Call a kernel that says whether all its indices were in range."""
    from opsmith.compile.emit import quoted

    out.call(
        kernel.split("<")[0],
        f'run.check({quoted(out.node)}, {kernel}({", ".join(arguments)}), "an index is out of range");',
        reads=reads,
        writes=writes,
        comment=comment,
        can_fail=True,
        header="indexing.hpp",
    )


def plain(
    out: Lowering, kernel: str, arguments: Sequence[str], reads: Sequence[View], writes: Sequence[View], comment: str
) -> None:
    out.call(
        kernel.split("<")[0], f"{kernel}({', '.join(arguments)});", reads=reads, writes=writes, comment=comment,
        header="indexing.hpp",
    )  # fmt: skip


def _fits(node: Node, small: Sequence[Dim], large: Sequence[Dim], what: str) -> None:
    """Every size of `small` is at most that of `large`."""
    for s, d in zip(small, large):
        if s != d:
            if s.value is not None and d.value is not None:
                if s.value > d.value:
                    raise Unsupported(what)
            else:
                node.checks.append((f"{s.cpp()} <= {d.cpp()}", what))


def _same(node: Node, a: Sequence[Dim], b: Sequence[Dim], what: str) -> None:
    if len(a) != len(b):
        raise Unsupported(what)
    for x, y in zip(a, b):
        if x != y:
            if x.value is not None and y.value is not None:
                raise Unsupported(what)
            node.checks.append((f"{x.cpp()} == {y.cpp()}", what))


# --- along one axis ---


@infers("GatherElements")
def _gather_elements(node: Node) -> list[Abstract]:
    data, indices = node.input(0), node.input(1)
    if data.rank != indices.rank or data.rank == 0:
        raise Unsupported("indices of another rank than the data")
    axis = node.axis(data.rank, 0)
    others = [i for i in range(data.rank) if i != axis]
    _fits(
        node, [indices.dims[i] for i in others], [data.dims[i] for i in others], "the indices are larger than the data"
    )
    return [Abstract(data.dtype, indices.dims)]


@lowers("GatherElements")
def _lower_gather_elements(node: Node, out: Lowering) -> None:
    data, indices = out.rows(node.ir.inputs[0]), out.rows(node.ir.inputs[1])
    target = out.result(node.ir.outputs[0])
    axis = node.axis(len(data.dims), 0)
    arguments = [sizes(out, data.dims), sizes(out, indices.dims), str(axis)]
    arguments += [out.pointer(v) for v in (data, indices, target)]
    checked(out, "gather_elements", arguments, [data, indices], [target], f"along axis {axis}")


@infers("ScatterElements", "Scatter")
def _scatter_elements(node: Node) -> list[Abstract]:
    data, indices, updates = (node.input(i) for i in range(3))
    if data.rank != indices.rank or data.rank == 0:
        raise Unsupported("indices of another rank than the data")
    _combination(node, data)
    axis = node.axis(data.rank, 0)
    others = [i for i in range(data.rank) if i != axis]
    _fits(
        node, [indices.dims[i] for i in others], [data.dims[i] for i in others], "the indices are larger than the data"
    )
    _same(node, indices.dims, updates.dims, "the updates do not fit the indices")
    return [Abstract(data.dtype, data.dims)]


def _combination(node: Node, data: Abstract) -> str:
    how = node.attribute("reduction", "none")
    if how not in _COMBINE:
        raise Unsupported(f"reduction {how}")
    if how != "none" and data.dtype == DataType.BOOL:
        raise Unsupported(f"reduction {how} on BOOL")
    return f"Combine::{how}"


@lowers("ScatterElements", "Scatter")
def _lower_scatter_elements(node: Node, out: Lowering) -> None:
    data, indices, updates = out.tensor(node.ir.inputs[0]), out.rows(node.ir.inputs[1]), out.rows(node.ir.inputs[2])
    target = out.result(node.ir.outputs[0])
    out.emit_copy(data, target)
    axis = node.axis(len(data.dims), 0)
    arguments = [sizes(out, data.dims), sizes(out, indices.dims), str(axis)]
    arguments += [out.pointer(v) for v in (indices, updates, target)]
    kernel = f"scatter_elements<{_combination(node, node.input(0))}>"
    checked(out, kernel, arguments, [indices, updates, target], [target], f"along axis {axis}")


# --- by tuples ---


@infers("GatherND")
def _gather_nd(node: Node) -> list[Abstract]:
    data, indices = node.input(0), node.input(1)
    batch, width = _tuples(node, data, indices)
    _same(node, data.dims[:batch], indices.dims[:batch], "the batch dims differ")
    return [abstract(data.dtype, [*indices.dims[:-1], *data.dims[batch + width :]])]


def _tuples(node: Node, data: Abstract, indices: Abstract) -> tuple[int, int]:
    batch = int(node.attribute("batch_dims", 0))
    if indices.rank == 0 or indices.dims[-1].value is None:
        raise Unsupported("the length of the index tuples is not known")
    width = indices.dims[-1].value
    if not 0 <= batch < max(1, indices.rank) or batch + width > data.rank or indices.dtype != DataType.INT64:
        raise Unsupported("the index tuples do not fit the data")
    return batch, width


@lowers("GatherND")
def _lower_gather_nd(node: Node, out: Lowering) -> None:
    data, indices = out.rows(node.ir.inputs[0]), out.rows(node.ir.inputs[1])
    target = out.result(node.ir.outputs[0])
    batch, width = _tuples(node, node.input(0), node.input(1))
    numbers = [
        product(data.dims[:batch]), product(indices.dims[batch:-1]), dim(width), product(data.dims[batch + width :]),
    ]  # fmt: skip
    arguments = [sizes(out, data.dims), str(batch), *(out.cpp(n) for n in numbers)]
    arguments += [out.pointer(v) for v in (data, indices, target)]
    checked(out, "gather_nd", arguments, [data, indices], [target], f"{numbers[1]} slices of {numbers[3]}")


@infers("ScatterND")
def _scatter_nd(node: Node) -> list[Abstract]:
    data, indices, updates = (node.input(i) for i in range(3))
    _combination(node, data)
    _, width = _tuples(node, data, indices)
    _same(node, updates.dims, [*indices.dims[:-1], *data.dims[width:]], "the updates do not fit the indices")
    return [Abstract(data.dtype, data.dims)]


@lowers("ScatterND")
def _lower_scatter_nd(node: Node, out: Lowering) -> None:
    data, indices, updates = out.tensor(node.ir.inputs[0]), out.rows(node.ir.inputs[1]), out.rows(node.ir.inputs[2])
    target = out.result(node.ir.outputs[0])
    out.emit_copy(data, target)
    _, width = _tuples(node, node.input(0), node.input(1))
    numbers = [product(indices.dims[:-1]), dim(width), product(data.dims[width:])]
    arguments = [sizes(out, data.dims), *(out.cpp(n) for n in numbers)]
    arguments += [out.pointer(v) for v in (indices, updates, target)]
    kernel = f"scatter_nd<{_combination(node, node.input(0))}>"
    checked(out, kernel, arguments, [indices, updates, target], [target], f"{numbers[0]} slices of {numbers[2]}")


# --- OneHot, TopK, ReverseSequence ---


@infers("OneHot")
def _one_hot(node: Node) -> list[Abstract]:
    indices, values = node.input(0), node.input(2)
    (depth,) = _depth(node)
    if values.dims != (dim(2),):
        raise Unsupported("OneHot needs two values")
    if depth.value is None:
        node.checks.append((f"{depth.cpp()} >= 0", "the depth is negative"))
    axis = _one_hot_axis(node)
    return [abstract(values.dtype, [*indices.dims[:axis], depth, *indices.dims[axis:]])]


def _depth(node: Node) -> list[Dim]:
    given = node.input(1)
    if given.elements is None or len(given.elements) != 1:
        raise Unsupported("the depth depends on computed data")
    (element,) = given.elements
    if isinstance(element, Dim):
        return [element]
    if element.value is not None:
        return [dim(int(element.value))]
    return [Dim({(f"to_integer({element.text})",): 1})]


def _one_hot_axis(node: Node) -> int:
    rank = node.input(0).rank
    axis = int(node.attribute("axis", -1))
    if not -rank - 1 <= axis <= rank:
        raise Unsupported(f"axis {axis} is outside rank {rank + 1}")
    return axis % (rank + 1)


@lowers("OneHot")
def _lower_one_hot(node: Node, out: Lowering) -> None:
    indices, values = out.rows(node.ir.inputs[0]), out.rows(node.ir.inputs[2])
    target = out.result(node.ir.outputs[0])
    axis = _one_hot_axis(node)
    numbers = [product(indices.dims[:axis]), target.dims[axis], product(indices.dims[axis:])]
    pointer = out.pointer(values)
    arguments = ["pool", *(out.cpp(n) for n in numbers), out.pointer(indices), f"({pointer})[0]", f"({pointer})[1]"]
    plain(out, "one_hot", [*arguments, out.pointer(target)], [indices, values], [target], f"depth {numbers[1]}")


@infers("TopK")
def _top_k(node: Node) -> list[Abstract]:
    x = node.input(0)
    if x.dtype == DataType.BOOL or x.rank == 0:
        raise Unsupported(f"TopK on {x.dtype.name} of rank {x.rank}")
    k = _k(node)
    axis = node.axis(x.rank, -1)
    size = x.dims[axis]
    if k.value is not None and size.value is not None:
        if not 0 <= k.value <= size.value:
            raise Unsupported("k is larger than the axis")
    else:
        node.checks.append((f"{k.cpp()} >= 0 && {k.cpp()} <= {size.cpp()}", "k is negative or larger than the axis"))
    dims = [*x.dims[:axis], k, *x.dims[axis + 1 :]]
    return [abstract(x.dtype, dims), abstract(DataType.INT64, dims)]


def _k(node: Node) -> Dim:
    if node.opset < 10:
        return dim(int(node.attribute("k")))
    found = node.elements(1, "k")
    if len(found) != 1:
        raise Unsupported("k is not one number")
    return found[0]


@lowers("TopK")
def _lower_top_k(node: Node, out: Lowering) -> None:
    x = out.rows(node.ir.inputs[0])
    values, indices = (out.result(o) for o in node.ir.outputs)
    axis = node.axis(len(x.dims), -1)
    numbers = [product(x.dims[:axis]), x.dims[axis], product(x.dims[axis + 1 :]), _k(node)]
    arguments = ["pool", *(out.cpp(n) for n in numbers), *(out.pointer(v) for v in (x, values, indices))]
    kernel = f"top_k<{str(bool(node.attribute('largest', 1))).lower()}>"
    plain(out, kernel, arguments, [x], [values, indices], f"{numbers[3]} of {numbers[1]}")


@infers("ReverseSequence")
def _reverse_sequence(node: Node) -> list[Abstract]:
    x, lengths = node.input(0), node.input(1)
    batch, time = int(node.attribute("batch_axis", 1)), int(node.attribute("time_axis", 0))
    if x.rank < 2 or {batch, time} != {0, 1} or lengths.dtype != DataType.INT64:
        raise Unsupported("ReverseSequence over other axes than the first two")
    _same(node, lengths.dims, [x.dims[batch]], "the lengths do not fit the batch")
    return [Abstract(x.dtype, x.dims)]


@lowers("ReverseSequence")
def _lower_reverse_sequence(node: Node, out: Lowering) -> None:
    x, lengths = out.rows(node.ir.inputs[0]), out.rows(node.ir.inputs[1])
    target = out.result(node.ir.outputs[0])
    first = str(int(node.attribute("batch_axis", 1)) == 0).lower()
    numbers = [x.dims[0], x.dims[1], product(x.dims[2:])]
    arguments = [*(out.cpp(n) for n in numbers), first, *(out.pointer(v) for v in (lengths, x, target))]
    checked(out, "reverse_sequence", arguments, [x, lengths], [target], "sequences reversed")


# --- small constructions ---


@infers("Trilu")
def _trilu(node: Node) -> list[Abstract]:
    x = node.input(0)
    if x.rank < 2:
        raise Unsupported("Trilu on fewer than 2 dims")
    if node.has(1) and len(node.elements(1, "k")) != 1:
        raise Unsupported("k is not one number")
    return [Abstract(x.dtype, x.dims)]


@lowers("Trilu")
def _lower_trilu(node: Node, out: Lowering) -> None:
    x = out.rows(node.ir.inputs[0])
    target = out.result(node.ir.outputs[0])
    k = out.cpp(node.elements(1, "k")[0]) if node.has(1) else "0"
    numbers = [product(x.dims[:-2]), x.dims[-2], x.dims[-1]]
    upper = str(bool(node.attribute("upper", 1))).lower()
    arguments = ["pool", *(out.cpp(n) for n in numbers), k, upper, out.pointer(x), out.pointer(target)]
    plain(out, "trilu", arguments, [x], [target], "upper triangle" if upper == "true" else "lower triangle")


@infers("EyeLike")
def _eye_like(node: Node) -> list[Abstract]:
    x = node.input(0)
    wanted = node.attribute("dtype")
    dtype = x.dtype if wanted is None else DataType(int(wanted))
    if x.rank != 2 or dtype not in CPP:
        raise Unsupported(f"EyeLike of {dtype.name} and rank {x.rank}")
    return [Abstract(dtype, x.dims)]


def _one(dtype: DataType) -> str:
    cpp = CPP[dtype]
    return f"from_float<{cpp}>(1.0f)" if dtype in FLOATS else f"({cpp})(1)"


@lowers("EyeLike")
def _lower_eye_like(node: Node, out: Lowering) -> None:
    target = out.result(node.ir.outputs[0])
    arguments = [
        *(out.cpp(d) for d in target.dims),
        str(int(node.attribute("k", 0))),
        _one(target.dtype),
        out.pointer(target),
    ]
    plain(out, "eye", arguments, [], [target], "ones on a diagonal")


@infers("Hardmax")
def _hardmax(node: Node) -> list[Abstract]:
    x = node.input(0)
    if x.rank == 0 or (x.dtype not in FLOATS and x.dtype != DataType.DOUBLE):
        raise Unsupported(f"Hardmax on {x.dtype.name} of rank {x.rank}")
    node.axis(x.rank, -1 if node.opset >= 13 else 1)
    return [Abstract(x.dtype, x.dims)]


@lowers("Hardmax")
def _lower_hardmax(node: Node, out: Lowering) -> None:
    x = out.rows(node.ir.inputs[0])
    target = out.result(node.ir.outputs[0])
    axis = node.axis(len(x.dims), -1 if node.opset >= 13 else 1)
    numbers = [product(x.dims[:axis]), x.dims[axis], product(x.dims[axis + 1 :])]
    if node.opset < 13:
        numbers = [product(x.dims[:axis]), product(x.dims[axis:]), ONE]
    arguments = [*(out.cpp(n) for n in numbers), _one(x.dtype), out.pointer(x), out.pointer(target)]
    plain(out, "hardmax", arguments, [x], [target], f"along {numbers[1]}")


# --- DepthToSpace, SpaceToDepth: a copy between two views of rank 6 ---


def _block(node: Node) -> int:
    size = int(node.attribute("blocksize", 0))
    if size < 1 or node.input(0).rank != 4:
        raise Unsupported("a block size below 1, or a rank other than 4")
    return size


@infers("DepthToSpace")
def _depth_to_space(node: Node) -> list[Abstract]:
    x, b = node.input(0), _block(node)
    n, c, h, w = x.dims
    depth = floor_div(c, b * b)
    _same(node, [depth * (b * b)], [c], "the channels do not divide into blocks")
    return [abstract(x.dtype, [n, depth, h * b, w * b])]


@lowers("DepthToSpace")
def _lower_depth_to_space(node: Node, out: Lowering) -> None:
    x, b = out.tensor(node.ir.inputs[0]), dim(_block(node))
    target = out.result(node.ir.outputs[0])
    n, depth, _, _ = target.dims
    h, w = x.dims[2], x.dims[3]
    sn, sc, sh, sw = x.strides
    tn, tc, th, tw = target.strides
    # channel = (row, column, depth) in mode DCR, (depth, row, column) in mode CRD
    if node.attribute("mode", "DCR") == "DCR":
        source = [sn, sc, sh, sc * depth * b, sw, sc * depth]
    else:
        source = [sn, sc * b * b, sh, sc * b, sw, sc]
    dims = [n, depth, h, b, w, b]
    out.emit_copy(x.with_(dims, source), target.with_(dims, [tn, tc, th * b, th, tw * b, tw]))


@infers("SpaceToDepth")
def _space_to_depth(node: Node) -> list[Abstract]:
    x, b = node.input(0), _block(node)
    n, c, h, w = x.dims
    small = [floor_div(h, b), floor_div(w, b)]
    _same(node, [small[0] * b, small[1] * b], [h, w], "the image does not divide into blocks")
    return [abstract(x.dtype, [n, c * (b * b), *small])]


@lowers("SpaceToDepth")
def _lower_space_to_depth(node: Node, out: Lowering) -> None:
    x, b = out.tensor(node.ir.inputs[0]), dim(_block(node))
    target = out.result(node.ir.outputs[0])
    n, c = x.dims[:2]
    h, w = target.dims[2:]
    sn, sc, sh, sw = x.strides
    tn, tc, th, tw = target.strides
    dims = [n, b, b, c, h, w]
    # channel = (row, column, depth) in mode DCR, which was the only one before opset 28; (depth, row, column) in mode CRD
    channel = [tc * c * b, tc * c, tc] if node.attribute("mode", "DCR") == "DCR" else [tc * b, tc, tc * b * b]
    out.emit_copy(x.with_(dims, [sn, sh, sw, sc, sh * b, sw * b]), target.with_(dims, [tn, *channel, th, tw]))


# --- BitCast: the same bytes under another type ---


@infers("BitCast")
def _bit_cast(node: Node) -> list[Abstract]:
    x = node.input(0)
    dtype = DataType(int(node.attribute("to")))
    if dtype not in CPP or dtype.itemsize != x.dtype.itemsize or DataType.BOOL in (dtype, x.dtype):
        raise Unsupported(f"BitCast from {x.dtype.name} to {dtype.name}")
    return [Abstract(dtype, x.dims)]


@lowers("BitCast")
def _lower_bit_cast(node: Node, out: Lowering) -> None:
    x = out.rows(node.ir.inputs[0])
    target = out.result(node.ir.outputs[0])
    count = out.cpp(product(x.dims) * int(x.dtype.itemsize))
    out.call(
        "memcpy", f"memcpy({out.pointer(target)}, {out.pointer(x)}, static_cast<size_t>({count}));", reads=[x],
        writes=[target], comment=f"the bytes of {x.dtype.name} as {target.dtype.name}",
    )  # fmt: skip
