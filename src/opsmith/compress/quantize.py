"""quantize: the same model with smaller weights, as portable ONNX that stock ONNX Runtime runs.

weight-only   x @ W -> MatMulNBits(x, integers, scales): blocks of 8 or 4 bits, activations stay float
fp16          every large float weight is stored in half precision behind a Cast; computed in float
dynamic       ONNX Runtime's own tool: int8 weights, activations quantized as they come
static        ONNX Runtime's own tool: QuantizeLinear / DequantizeLinear pairs with calibrated ranges

Whatever the method, the result is run beside its source before it is kept; the error goes into opsmith.json.
"""

from __future__ import annotations

import collections
import dataclasses
import fnmatch
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import numpy_helper

from opsmith import model_file, progress, session, store
from opsmith.check.inputs import Fixed, overridable_weights
from opsmith.compress import quality
from opsmith.compress.blocks import quantize_blocks
from opsmith.compress.known_types import note_types
from opsmith.compress.layers import Layer, constant, expose_weights, find_layers, find_tables, free_name, stored, tidy
from opsmith.compress.nbits import Tensors, register, replace
from opsmith.compress.own_outputs import write_test_data
from opsmith.compress.quality import Feed, Quality
from opsmith.compress.quantize_options import SHORT, QuantizeOptions, bits_of
from opsmith.compress.sensitivity import KEPT, Sensitivity, choose_bits
from opsmith.compress.spare import spared
from opsmith.errors import OpsmithError
from opsmith.nodes import ONNX
from opsmith.plain import Shown
from opsmith.rewriter.passes.opsets import raise_opset

Array = np.ndarray[Any, Any]

QUANTIZERS = 11  # the opset with every operator that quantizes
SCALES_PER_CHANNEL = 13  # and that from which each channel may have a scale
SMALLEST = 1024  # elements; smaller weights are not worth an operator
_HALF_MAX = 65504.0
# method -> what to do where it finds nothing
_OTHER = {
    "weight-only": "it takes products with matrices of 1024 weights or more; --method dynamic takes convolutions, too, "
    "and --method fp16 every large weight",
    "fp16": "all its weights are small, or too large for half precision; leave it as it is",
    "dynamic": "it takes products and convolutions of the main graph; --method fp16 takes every large weight",
    "static": "it takes products and convolutions of the main graph; --method fp16 takes every large weight",
}


def short_name(method: str, options: Mapping[str, Any]) -> str:
    """For the name of a variant."""
    method, bits = SHORT.get(method, (method, options.get("bits", 8)))
    return f"int{bits}" if method == "weight-only" else method


class NothingSmaller(OpsmithError):
    """The model has no weights that the method is for."""


@dataclasses.dataclass(frozen=True, repr=False)
class QuantizeResult(Shown):
    variant: store.Variant
    method: str
    quantized: int  # layers, or weights for fp16
    left: tuple[str, ...]  # what stayed as it was, with the reason
    before: int  # bytes on disk
    after: int
    quality: Quality
    sweep: tuple[Sensitivity, ...] = ()

    @property
    def remarks(self) -> list[str]:
        """What speaks against using the result."""
        found = self.quality.remark(
            "spare the worst layers with --exclude or --max-error, or take --method weight-only or fp16"
        )
        if self.after >= self.before:
            found.append("the file is not smaller: what was added outweighs the few weights that shrank")
        return found


def quantize(
    src: store.ModelLike,
    dest: str | os.PathLike[str],
    *,
    method: str = "weight-only",
    bits: int = 8,
    block: int = 32,
    symmetric: bool = True,
    embeddings: str = "fp16",
    calibration: object = None,
    shapes: Fixed | None = None,
    ranges: str = "minmax",
    per_channel: bool = True,
    max_error: float | None = None,
    min_quality: float | None = None,
    exclude: Sequence[str] = (),
    accuracy_level: int = 0,
    samples: int = 8,
    spare: bool = True,
    threads: int | None = None,
    overwrite: bool = False,
) -> QuantizeResult:
    """Write SRC with smaller weights to DEST, a variant folder or .onnx file.

    `method` is weight-only, fp16, dynamic or static; int8 and int4 are weight-only with as many bits.
    `max_error` (relative, of the outputs) and `min_quality` (top-1 agreement of logits, else cosine similarity) spare the
    layers that a sensitivity sweep finds worst. `shapes` are those of generated inputs. `embeddings` is "fp16" or "keep", for tables that are looked up and not
    multiplied. `exclude` holds glob patterns of layers to leave alone. `accuracy_level` goes into MatMulNBits: 4 lets
    stock ONNX Runtime round activations to int8, which is faster there. `spare` keeps the ends and the time embedding of a
    diffusion UNet in full precision (spare.py); fp16 only stores what is computed in float anyway and spares nothing.
    """
    method, bits = bits_of(method, bits)
    options = QuantizeOptions(
        method=method,
        bits=bits,
        block=block,
        symmetric=symmetric,
        embeddings=embeddings,
        ranges=ranges,
        per_channel=per_channel,
        max_error=max_error,
        min_quality=min_quality,
        exclude=list(exclude),
        accuracy_level=accuracy_level,
        spare=spare,
    )
    if samples < 1:
        raise OpsmithError("at least one calibration sample is needed")
    record = dataclasses.asdict(options)
    with (
        store.on_disk(src) as source,
        store.new_variant(dest, verb="quantize", parent=src, options=record, overwrite=overwrite) as draft,
    ):
        if store.libraries(source):
            raise OpsmithError(f"{source} is compiled; its weights are packed", "quantize the variant it was made from")
        model = store.open_model(source)
        feeds = quality.calibration_feeds(
            source, model, calibration, samples, one_shape=options.one_shape, shapes=shapes
        )
        names = quality.judged_outputs(model)
        reference = quality.answers(source, feeds, names, threads)
        sweep: list[Sensitivity] = []
        expose_weights(model)
        nowhere = _match_nothing(model, exclude)
        if method == "weight-only":
            chosen = _Chosen(exclude, spared(model) if spare else {})
            if options.goal is not None:
                sweep = choose_bits(model, feeds, reference, options, chosen, threads)
            count, left = _weight_only(model, options, {row.layer: row.bits for row in sweep}, chosen, draft.path)
        elif method == "fp16":
            count, left = halve(model, exclude)
            store.save_model(model, draft.path)
        else:
            count, left = _with_ort(source, draft.path, options, feeds)
        if count == 0:
            raise NothingSmaller(
                f"{source} has nothing that {method} quantization could make smaller", _other(model, method)
            )
        reached = quality.compare(reference, _run(draft.path, feeds, names, threads), logits=names == ["logits"])
        if options.goal is not None and not options.goal.reached(reached):
            figures = f"error {reached.error:.3g}, quality {reached.score:.4f}"
            advice = "leave layers out with exclude" if method != "weight-only" else "allow a little more"
            raise OpsmithError(f"{options.goal} is not reached: {figures}", advice)
        left += [f"nothing by --exclude {pattern}: no node or weight has such a name" for pattern in nowhere]
        write_test_data(source, draft, threads)
        before, after = session.size_on_disk(source), session.size_on_disk(draft.path)
        draft.record["quantized"] = {
            "layers": count,
            "left": left,
            "size": [before, after],
            "quality": reached.facts(),
            "cases": len(feeds),
            "sweep": [dataclasses.asdict(row) for row in sweep],
        }
    variant = store.Variant(store.find_model(dest))
    return QuantizeResult(variant, method, count, tuple(left), before, after, reached, tuple(sweep))


def _match_nothing(model: ir.Model, exclude: Sequence[str]) -> list[str]:
    """The patterns that no name fits: a typing mistake would otherwise pass unseen."""
    names = {layer.name for layer in find_layers(model, casts=True)} | set(model.graph.initializers)
    names |= {node.name or "" for node in model.graph.all_nodes()}
    names |= {node.name or "" for function in model.functions.values() for node in function.all_nodes()}
    return [pattern for pattern in exclude if not any(fnmatch.fnmatchcase(name, pattern) for name in names)]


@dataclasses.dataclass(frozen=True)
class _Chosen:
    """Whether a layer is to be quantized; `why_not` says why it is not."""

    exclude: Sequence[str]
    spared: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def why_not(self, layer: Layer) -> str | None:
        k, n = layer.shape
        if reason := self.spared.get(layer.node.name or ""):
            return reason
        if any(fnmatch.fnmatchcase(text, p) for p in self.exclude for text in (layer.name, layer.node.name or "")):
            return "excluded"
        return f"only {k}x{n}" if k * n < SMALLEST or k < 16 else None

    def __call__(self, layer: Layer) -> bool:
        return self.why_not(layer) is None


# --- weight-only -----------------------------------------------------------------------------------------


def _weight_only(
    model: ir.Model, options: QuantizeOptions, bits_of: Mapping[str, int], chosen: _Chosen, target: Path
) -> tuple[int, list[str]]:
    """Write MODEL to TARGET with its layers quantized: how many, and which were left, with the reason."""
    with tempfile.TemporaryDirectory(prefix="opsmith-quantize-", dir=target.parent.parent) as spool:
        count, left = _quantize_layers(model, options, bits_of, chosen, Path(spool))
        if options.halves_tables:
            _halve_tables(model, options.exclude)
        tidy(model)
        store.save_model(model, target)
    return count, left


def _quantize_layers(
    model: ir.Model, options: QuantizeOptions, bits_of: Mapping[str, int], chosen: _Chosen, spool: Path
) -> tuple[int, list[str]]:
    layers = find_layers(model, casts=True)
    shared: dict[tuple[str, bool, int], Tensors] = {}
    left, count = [], 0
    with progress.task("quantizing", total=len(layers)) as step:
        for layer in layers:
            step(layer.name)
            bits = bits_of.get(layer.name, options.bits)
            if reason := chosen.why_not(layer) or ("too sensitive" if bits == KEPT else None):
                left.append(f"{layer.name}: {reason}")
                continue
            key = (layer.weight.name or "", layer.transposed, bits)
            if key not in shared:
                packed = quantize_blocks(layer.matrix(), bits, options.block, options.symmetric)
                shared[key] = register(model, packed, f"{layer.name}_int{bits}", spool)
            attributes = {"bits": bits, "block_size": options.block}
            if options.accuracy_level:
                attributes["accuracy_level"] = options.accuracy_level
            replace(layer, attributes, shared[key])
            count += 1
    if count:
        model.opset_imports.setdefault("com.microsoft", 1)
    return count, left


def _halve_tables(model: ir.Model, exclude: Sequence[str]) -> dict[str, ir.Value]:
    """Gather(W) -> Cast(Gather(half W)): half the size, and only the rows that are looked up are converted."""
    halves: dict[str, ir.Value] = {}
    for node, table in find_tables(model):
        name = table.name or ""
        if not _fits_half(stored(table).numpy()) or any(fnmatch.fnmatchcase(name, p) for p in exclude):
            continue
        if name not in halves:
            halves[name] = _half(model, table)
        node.replace_input_with(0, halves[name])
        result = node.outputs[0]
        result.dtype = ir.DataType.FLOAT16
        _cast_after(node, result)
    return halves


def _cast_after(node: ir.Node, value: ir.Value) -> None:
    """All users of VALUE read it through a Cast to float."""
    graph = node.graph
    assert graph is not None
    users = list(value.uses())
    cast = ir.node("Cast", [value], attributes={"to": int(ir.DataType.FLOAT)}, name=f"{value.name}_float_cast")
    converted = cast.outputs[0]
    converted.name, converted.shape = f"{value.name}_float", value.shape
    converted.type = ir.TensorType(ir.DataType.FLOAT)
    for user, index in users:
        user.replace_input_with(index, converted)
    graph.insert_after(node, cast)
    for i, output in enumerate(graph.outputs):
        if output is value:  # the name of a graph output stays where the float is
            value.name, converted.name = f"{value.name}_half", value.name
            graph.outputs[i] = converted


# --- fp16 ------------------------------------------------------------------------------------------------


def halve(model: ir.Model, exclude: Sequence[str] = ()) -> tuple[int, list[str]]:
    """Large float initializers become half precision behind a Cast."""
    left: list[str] = []
    halves = _halve_tables(model, exclude)
    for value in list(model.graph.initializers.values()):
        if not constant(value) or stored(value).dtype != ir.DataType.FLOAT or stored(value).size < SMALLEST:
            continue
        if not value.uses() or value.is_graph_output():
            continue
        if any(fnmatch.fnmatchcase(value.name or "", p) for p in exclude):
            left.append(f"{value.name}: excluded")
            continue
        if not _fits_half(stored(value).numpy()):
            left.append(f"{value.name}: exceeds the range of half precision")
            continue
        name = value.name or ""
        half = halves[name] = halves.get(name) or _half(model, value)
        cast = ir.node("Cast", [half], attributes={"to": int(ir.DataType.FLOAT)}, name=f"{value.name}_cast")
        converted = cast.outputs[0]
        converted.name, converted.shape, converted.type = f"{value.name}_float", value.shape, value.type
        for user, index in list(value.uses()):
            user.replace_input_with(index, converted)
        model.graph.insert_before(model.graph[0], cast)
    tidy(model)
    return len(halves), left


def _fits_half(array: Array) -> bool:
    return array.size == 0 or bool(max(abs(float(array.min())), abs(float(array.max()))) <= _HALF_MAX)


def _half(model: ir.Model, value: ir.Value) -> ir.Value:
    """A lazy half-precision copy: converted while the file is written, one tensor at a time."""
    name, source = free_name(model, f"{value.name}_fp16"), stored(value)

    def convert() -> ir.TensorProtocol:
        return ir.Tensor(source.numpy().astype(np.float16), name=name)

    tensor = ir.LazyTensor(convert, dtype=ir.DataType.FLOAT16, shape=ir.Shape(source.shape.numpy()), name=name)
    made = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT16), shape=tensor.shape, const_value=tensor)
    model.graph.register_initializer(made)
    return made


def _other(model: ir.Model, method: str) -> str:
    """What to do where a method found nothing."""
    if large := overridable_weights(model):
        which = f"{len(large)} of its weights" if len(large) > 1 else f"its weight {large[0]!r}"
        return f"{which} may be overridden by who runs it: take them out of the graph's inputs, and they are constants"
    if method == "fp16" and _half_already(model):
        return "its large weights are in half precision already; leave it as it is"
    return _OTHER[method]


def _half_already(model: ir.Model) -> bool:
    weights = [v.const_value for v in model.graph.initializers.values() if v.const_value is not None]
    return any(w.dtype == ir.DataType.FLOAT16 and w.size >= SMALLEST for w in weights)


# --- through ONNX Runtime's own tool ---------------------------------------------------------------------


def _with_ort(source: Path, target: Path, options: QuantizeOptions, feeds: Sequence[Feed]) -> tuple[int, list[str]]:
    from onnxruntime import quantization as tool

    left = []
    if options.one_shape:
        kept = _most_common_shape(feeds)
        if len(kept) < len(feeds):
            left.append(f"{len(feeds) - len(kept)} calibration cases: {options.ranges} ranges need cases of one shape")
        feeds = kept
    model = store.open_model(source)
    if (
        model.graph.opset_imports.get("") is None
    ):  # trees and the like: no operator of ONNX's own, which the tool asks for
        return 0, left
    every = [n.name or "" for n in model.graph]
    skip = {n: "excluded" for n in every if any(fnmatch.fnmatchcase(n, p) for p in options.exclude)}
    total = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)
    external = total > store.EMBED_LIMIT
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)  # the tool warns on the root logger about every step it would have liked
    ort.set_default_logger_severity(4)  # and its sessions about initializers that they drop
    try:
        with tempfile.TemporaryDirectory(prefix="opsmith-ort-", dir=target.parent) as folder:
            prepared = Path(folder) / "prepared.onnx"
            where: dict[str, Any] = {"save_as_external_data": external, "all_tensors_to_one_file": True}
            where["external_data_location"] = f"{prepared.name}.data" if external else None
            raised, per_channel = _raised(source, Path(folder), options), options.per_channel
            if options.method == "static" and per_channel and _opset(raised) < SCALES_PER_CHANNEL:
                per_channel = False
                left.append(f"scales per channel: its opset, {_opset(raised)}, cannot be raised")
            tool.shape_inference.quant_pre_process(
                str(raised), str(prepared), skip_symbolic_shape=True, skip_optimization=external, **where
            )
            skip |= _prepare_for_the_tool(prepared)
            note_types(prepared)
            if options.spare:
                skip |= spared(store.open_model(prepared))  # the tool has given some nodes other names
            settings: dict[str, Any] = {
                "per_channel": per_channel,
                "use_external_data_format": external,
                "weight_type": tool.QuantType.QInt8,
                # For `dynamic` the tool takes every Gemm apart, under a new name.
                "nodes_to_exclude": [*skip, *(f"{name}_MatMul" for name in skip)],
                "extra_options": {"MatMulConstBOnly": True},
            }
            if options.method == "dynamic":
                tool.quantize_dynamic(str(prepared), str(target), **settings)
            else:
                kind = {"minmax": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}[options.ranges]
                settings |= {
                    "quant_format": tool.QuantFormat.QDQ,
                    "activation_type": tool.QuantType.QUInt8,
                    "calibrate_method": tool.CalibrationMethod[kind],
                    "op_types_to_quantize": ["MatMul", "Gemm", "Conv"],
                }
                tool.quantize_static(str(prepared), str(target), _Reader(feeds), **settings)
    except OpsmithError:
        raise
    except Exception as error:
        raise OpsmithError(
            f"ONNX Runtime's {options.method} quantization refuses {source}: {session.one_line(error)}"
        ) from error
    finally:
        logger.setLevel(level)
        ort.set_default_logger_severity(2)  # warnings, as ONNX Runtime begins with
    _sort_nodes(target)
    return _integer_weights(target), [*left, *(f"{name}: {reason}" for name, reason in skip.items())]


def _raised(source: Path, folder: Path, options: QuantizeOptions) -> Path:
    """SOURCE, or a copy of a newer opset in FOLDER where the operators of the method are not in its own; there the tool would
    change the number of the opset only, and what other operators mean with it."""
    needed = SCALES_PER_CHANNEL if options.method == "static" and options.per_channel else QUANTIZERS
    if _opset(source) >= needed:
        return source
    model, path = store.open_model(source), folder / "raised.onnx"
    raise_opset(model)
    store.save_model(model, path)
    return path


def _opset(path: Path) -> int:
    return max((o.version for o in store.read_proto(path).opset_import if o.domain in ONNX), default=1)


def _sort_nodes(path: Path) -> None:
    """The tool orders nodes by what they read, and overlooks what the bodies of an If or Loop read."""
    proto = store.read_proto(path)
    graph = model_file.from_proto(proto).graph
    places = {node: i for i, node in enumerate(graph)}
    graph.sort()
    order = [places[node] for node in graph]
    if order != sorted(order):
        nodes = [onnx.NodeProto.FromString(proto.graph.node[i].SerializeToString()) for i in order]
        del proto.graph.node[:]
        proto.graph.node.extend(nodes)
        path.write_bytes(proto.SerializeToString())


def _prepare_for_the_tool(path: Path) -> dict[str, str]:
    """The tool turns Gemm into MatMul with a transposed weight, but leaves a shape that was noted for the weight as it was. It
    calls the copies of a bias that several layers share bias1, bias2 ..., whether or not another value has that name. It
    transposes a weight once for each Gemm that reads it, also where several do. And it reads one element of a bias per channel of
    the weight. Answers the nodes that it cannot take, and why."""
    proto = store.read_proto(path)
    _transpose_shared_weights(proto.graph, path.parent)
    left = _make_biases_rows(proto.graph, path.parent)
    _rename_weights(proto.graph)
    weights = {tensor.name for tensor in proto.graph.initializer}
    noted = [info for info in proto.graph.value_info if info.name not in weights]
    del proto.graph.value_info[:]
    proto.graph.value_info.extend(noted)
    path.write_bytes(proto.SerializeToString())
    return left


def _transpose_shared_weights(graph: onnx.GraphProto, folder: Path) -> None:
    """Gemm(x, w, transB = 1), Gemm(y, w, transB = 1) -> Gemm(x, w'), Gemm(y, w'), as the steps of an unrolled LSTM share w."""
    weights = {tensor.name: tensor for tensor in graph.initializer}
    readers: dict[str, list[onnx.NodeProto]] = collections.defaultdict(list)
    for node in graph.node:
        if (
            node.op_type == "Gemm"
            and node.input[1] in weights
            and any(a.name == "transB" and a.i for a in node.attribute)
        ):
            readers[node.input[1]].append(node)
    for weight, nodes in readers.items():
        if len(nodes) > 1:
            turned = np.ascontiguousarray(numpy_helper.to_array(weights[weight], str(folder)).T)
            graph.initializer.append(numpy_helper.from_array(turned, f"{weight}_transposed"))
            for node in nodes:
                node.input[1] = f"{weight}_transposed"
                next(a for a in node.attribute if a.name == "transB").i = 0


def _make_biases_rows(graph: onnx.GraphProto, folder: Path) -> dict[str, str]:
    """C (), (1), (1,1) or (1,N) of a Gemm -> (N); a Gemm whose C has rows of its own is left alone."""
    weights = {tensor.name: tensor for tensor in graph.initializer}
    left = {}
    for node in graph.node:
        if node.op_type != "Gemm" or len(node.input) < 3 or not {node.input[1], node.input[2]} <= weights.keys():
            continue
        transposed = any(a.name == "transB" and a.i for a in node.attribute)
        columns, bias = weights[node.input[1]].dims[0 if transposed else 1], weights[node.input[2]]
        if list(bias.dims) == [columns]:
            continue
        if bias.dims[-1:] not in ([], [1], [columns]) or any(size != 1 for size in bias.dims[:-1]):
            left[node.name] = "its bias differs from row to row"
            continue
        name = f"{node.name or node.output[0]}_{bias.name}_row"
        row = np.broadcast_to(numpy_helper.to_array(bias, str(folder)).reshape(-1), (columns,))
        graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(row), name))
        node.input[2] = name
    return left


def _rename_weights(graph: onnx.GraphProto) -> None:
    """No other name is that of a weight with a number behind it."""
    names = {v.name for v in (*graph.input, *graph.initializer)} | {name for node in graph.node for name in node.output}
    taken = {name[:end] for name in names for end in range(len(name.rstrip("0123456789")), len(name))}
    interface = {v.name for v in (*graph.input, *graph.output)}
    new: dict[str, str] = {}
    for tensor in graph.initializer:
        if tensor.name in taken - interface:
            new[tensor.name] = f"{tensor.name}_weight"
            while new[tensor.name] in names | taken:
                new[tensor.name] += "_"
            tensor.name = new[tensor.name]
    _rename_read(graph, new)


def _rename_read(graph: onnx.GraphProto, new: Mapping[str, str]) -> None:
    """NEW names of what is read, in branches and loops too, which have no values of the old names in a valid model."""
    for node in graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = new.get(name, name)
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _rename_read(attribute.g, new)


def _most_common_shape(feeds: Sequence[Feed]) -> list[Feed]:
    """ONNX Runtime's histogram calibrators stack what they see, so all cases must have one shape."""
    groups: dict[tuple[tuple[int, ...], ...], list[Feed]] = {}
    for feed in feeds:
        groups.setdefault(tuple(array.shape for array in feed.values()), []).append(feed)
    return max(groups.values(), key=len)


class _Reader:
    """What ONNX Runtime's calibrator reads from."""

    def __init__(self, feeds: Sequence[Feed]) -> None:
        self._feeds: Iterator[Feed] = iter(feeds)

    def get_next(self) -> Feed | None:
        return next(self._feeds, None)

    def __iter__(self) -> _Reader:
        return self

    def __next__(self) -> Feed:
        return next(self._feeds)


def _integer_weights(path: Path) -> int:
    small = (ir.DataType.INT8, ir.DataType.UINT8)
    values = store.open_model(path).graph.initializers.values()
    return sum(1 for v in values if v.const_value is not None and v.dtype in small and v.const_value.size >= SMALLEST)


def _run(path: Path, feeds: Sequence[Feed], names: Sequence[str], threads: int | None) -> list[list[Array]]:
    try:
        return quality.answers(path, feeds, names, threads)
    except OpsmithError as error:
        message = f"the quantized model does not run, nothing was written: {error.message}"
        raise OpsmithError(
            message, "leave that node out with --exclude, or take --method weight-only or fp16"
        ) from error
