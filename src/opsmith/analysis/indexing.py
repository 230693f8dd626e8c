"""Reading and writing at indices that are data: GatherElements, GatherND, the Scatters, OneHot, TopK, ReverseSequence, and the small
constructions Trilu and EyeLike; DepthToSpace, SpaceToDepth, BitCast."""

from __future__ import annotations

from opsmith.analysis.registry import Node, infers
from opsmith.analysis.values import TYPES, Abstract, DataType, Unsupported, abstract
from opsmith.sizes import AllOf, Size, apply, as_size, compare, floor_div

COMBINATIONS = ("none", "add", "mul", "max", "min")

# --- along one axis ---


def _check_indices(node: Node, data: Abstract, indices: Abstract) -> None:
    if data.rank != indices.rank or data.rank == 0:
        raise Unsupported("indices of another rank than the data")
    axis = node.axis(data.rank, 0)
    for i in range(data.rank):
        if i != axis:
            node.expect(indices.dims[i], "<=", data.dims[i], "the indices are larger than the data")


@infers("GatherElements")
def _gather_elements(node: Node) -> list[Abstract]:
    data, indices = node.input(0), node.input(1)
    _check_indices(node, data, indices)
    return [Abstract(data.dtype, indices.dims)]


@infers("ScatterElements", "Scatter")
def _scatter_elements(node: Node) -> list[Abstract]:
    data, indices, updates = (node.input(i) for i in range(3))
    _check_indices(node, data, indices)
    combination(node)
    node.expect_all(indices.dims, "==", updates.dims, "the updates do not fit the indices")
    return [Abstract(data.dtype, data.dims)]


def combination(node: Node) -> str:
    how = str(node.attribute("reduction", "none"))
    if how not in COMBINATIONS:
        raise Unsupported(f"reduction {how}")
    if how != "none" and node.input(0).dtype == DataType.BOOL:
        raise Unsupported(f"reduction {how} on BOOL")
    return how


@infers("TensorScatter")
def _tensor_scatter(node: Node) -> list[Abstract]:
    cache, update = node.input(0), node.input(1)
    axis = node.axis(cache.rank, -2)
    if cache.rank != update.rank or axis == 0 or cache.dtype != update.dtype:
        raise Unsupported("an update of another rank than the cache")
    for i in range(cache.rank):
        node.expect(update.dims[i], "<=" if i == axis else "==", cache.dims[i], "the update does not fit the cache")
    if node.has(2):
        node.expect_all(node.input(2).dims, "==", [cache.dims[0]], "one index per batch item is wanted")
    if node.attribute("mode", "linear") == "circular":
        node.expect(cache.dims[axis], ">", 0, "an empty cache")
    return [Abstract(cache.dtype, cache.dims)]


@infers("ai.onnx.ml::ArrayFeatureExtractor")
def _array_feature_extractor(node: Node) -> list[Abstract]:
    x, columns = node.input(0), node.input(1)
    if x.rank == 0 or columns.dtype != DataType.INT64:
        raise Unsupported(f"ArrayFeatureExtractor of rank {x.rank}")
    return [abstract(x.dtype, [*(x.dims[:-1] if x.rank > 1 else [1]), columns.size])]


# --- by tuples ---


def tuples(node: Node, data: Abstract, indices: Abstract) -> tuple[int, int]:
    """Batch dims, and the length of an index tuple."""
    batch = int(node.attribute("batch_dims", 0))
    if indices.rank == 0 or indices.dims[-1].value is None:
        raise Unsupported("the length of the index tuples is not known")
    width = indices.dims[-1].value
    if not 0 <= batch < max(1, indices.rank) or batch + width > data.rank or indices.dtype != DataType.INT64:
        raise Unsupported("the index tuples do not fit the data")
    return batch, width


@infers("GatherND")
def _gather_nd(node: Node) -> list[Abstract]:
    data, indices = node.input(0), node.input(1)
    batch, width = tuples(node, data, indices)
    node.expect_all(data.dims[:batch], "==", indices.dims[:batch], "the batch dims differ")
    return [abstract(data.dtype, [*indices.dims[:-1], *data.dims[batch + width :]])]


@infers("ScatterND")
def _scatter_nd(node: Node) -> list[Abstract]:
    data, indices, updates = (node.input(i) for i in range(3))
    combination(node)
    _, width = tuples(node, data, indices)
    wanted = [*indices.dims[:-1], *data.dims[width:]]
    node.expect_all(updates.dims, "==", wanted, "the updates do not fit the indices")
    return [Abstract(data.dtype, data.dims)]


# --- OneHot, TopK, ReverseSequence ---


@infers("OneHot")
def _one_hot(node: Node) -> list[Abstract]:
    indices, values = node.input(0), node.input(2)
    depth = _depth(node)
    if values.dims != (as_size(2),):
        raise Unsupported("OneHot needs two values")
    node.expect(depth, ">=", 0, "the depth is negative")
    axis = one_hot_axis(node)
    return [abstract(values.dtype, [*indices.dims[:axis], depth, *indices.dims[axis:]])]


def _depth(node: Node) -> Size:
    given = node.input(1)
    if given.elements is None or len(given.elements) != 1:
        raise Unsupported("the depth depends on computed data")
    (depth,) = given.elements
    if isinstance(depth, Size):
        return depth
    return as_size(int(depth.value)) if depth.value is not None else apply("to_integer", depth)


def one_hot_axis(node: Node) -> int:
    rank = node.input(0).rank
    axis = int(node.attribute("axis", -1))
    if not -rank - 1 <= axis <= rank:
        raise Unsupported(f"axis {axis} is outside rank {rank + 1}")
    return axis % (rank + 1)


@infers("TopK")
def _top_k(node: Node) -> list[Abstract]:
    x = node.input(0)
    if x.dtype == DataType.BOOL or x.rank == 0:
        raise Unsupported(f"TopK on {x.dtype.name} of rank {x.rank}")
    k = wanted_count(node)
    axis = node.axis(x.rank, -1)
    size = x.dims[axis]
    if k.value is not None and size.value is not None:
        if not 0 <= k.value <= size.value:
            raise Unsupported("k is larger than the axis")
    else:
        inside = AllOf((compare(k, ">=", 0), compare(k, "<=", size)))
        node.require(inside, "k is negative or larger than the axis")
    dims = [*x.dims[:axis], k, *x.dims[axis + 1 :]]
    return [abstract(x.dtype, dims), abstract(DataType.INT64, dims)]


def wanted_count(node: Node) -> Size:
    if node.opset < 10:
        return as_size(int(node.attribute("k")))
    counts = node.elements(1, "k")
    if len(counts) != 1:
        raise Unsupported("k is not one number")
    return counts[0]


@infers("ReverseSequence")
def _reverse_sequence(node: Node) -> list[Abstract]:
    x, lengths = node.input(0), node.input(1)
    batch, time = int(node.attribute("batch_axis", 1)), int(node.attribute("time_axis", 0))
    if x.rank < 2 or {batch, time} != {0, 1} or lengths.dtype != DataType.INT64:
        raise Unsupported("ReverseSequence over other axes than the first two")
    node.expect_all(lengths.dims, "==", [x.dims[batch]], "the lengths do not fit the batch")
    return [Abstract(x.dtype, x.dims)]


# --- small constructions ---


@infers("Trilu")
def _trilu(node: Node) -> list[Abstract]:
    x = node.input(0)
    if x.rank < 2:
        raise Unsupported("Trilu on fewer than 2 dims")
    if node.has(1) and len(node.elements(1, "k")) != 1:
        raise Unsupported("k is not one number")
    return [Abstract(x.dtype, x.dims)]


@infers("EyeLike")
def _eye_like(node: Node) -> list[Abstract]:
    x = node.input(0)
    wanted = node.attribute("dtype")
    dtype = x.dtype if wanted is None else DataType(int(wanted))
    if x.rank != 2 or dtype not in TYPES:
        raise Unsupported(f"EyeLike of {dtype.name} and rank {x.rank}")
    return [Abstract(dtype, x.dims)]


# --- blocks of pixels, bytes under another type ---


def block_size(node: Node) -> int:
    size = int(node.attribute("blocksize", 0))
    if size < 1 or node.input(0).rank != 4:
        raise Unsupported("a block size below 1, or a rank other than 4")
    return size


@infers("DepthToSpace")
def _depth_to_space(node: Node) -> list[Abstract]:
    x, b = node.input(0), block_size(node)
    n, c, h, w = x.dims
    depth = floor_div(c, b * b)
    node.expect(depth * (b * b), "==", c, "the channels do not divide into blocks")
    return [abstract(x.dtype, [n, depth, h * b, w * b])]


@infers("SpaceToDepth")
def _space_to_depth(node: Node) -> list[Abstract]:
    x, b = node.input(0), block_size(node)
    n, c, h, w = x.dims
    small = [floor_div(h, b), floor_div(w, b)]
    node.expect_all([small[0] * b, small[1] * b], "==", [h, w], "the image does not divide into blocks")
    return [abstract(x.dtype, [n, c * (b * b), *small])]


@infers("BitCast")
def _bit_cast(node: Node) -> list[Abstract]:
    x = node.input(0)
    dtype = DataType(int(node.attribute("to")))
    if dtype not in TYPES or dtype.itemsize != x.dtype.itemsize or DataType.BOOL in (dtype, x.dtype):
        raise Unsupported(f"BitCast from {x.dtype.name} to {dtype.name}")
    return [Abstract(dtype, x.dims)]
