"""distill: cut occurrences of a function, a run of nodes or a pattern out of a real model into small models.

find      which nodes belong to each occurrence
close     add the nodes between them, and the constants that feed them
run       the whole model once, unoptimized, keeping the tensors that cross the borders; on two more shapes, to
          learn which dims of these tensors vary
write     each occurrence as a model folder with one variant, `original`, and those tensors as its test data
check     the small model gives the outputs that the large one had there
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from opsmith import progress, session, store
from opsmith.check import inputs as generate
from opsmith.check.differences import compare_arrays
from opsmith.check.inputs import Array
from opsmith.check.origins import Graph, Node, graph_of, origins
from opsmith.check.values import random_inputs
from opsmith.errors import NotTheSame, OpsmithError, near
from opsmith.measure import bench
from opsmith.nodes import operator_name, subgraphs
from opsmith.plain import Shown

VARIANT = "original"
LARGE = 256  # elements; smaller tensors are scales, axes and shapes, which --light leaves alone


@dataclasses.dataclass(frozen=True)
class Occurrence:
    """A set of nodes of the main graph, by index, with the values that cross its border."""

    nodes: tuple[int, ...]
    inputs: tuple[str, ...]  # computed values that it reads
    outputs: tuple[str, ...]  # values that others read
    weights: tuple[str, ...]


@dataclasses.dataclass(frozen=True, repr=False)
class Distilled(Shown):
    """What was written, and how many occurrences there were."""

    variants: tuple[store.Variant, ...]
    occurrences: int
    different: int  # kinds of occurrences: same operators, attributes and shapes


def distill(
    model: store.PathLike | store.Variant,
    dest: store.PathLike,
    *,
    function: str | None = None,
    nodes: str | None = None,
    pattern: str | None = None,
    name: str | None = None,
    max: int = 4,
    light: bool = False,
    shapes: Mapping[str, int | Sequence[int]] | None = None,
    seed: int = 0,
    threads: int | None = None,
    overwrite: bool = False,
) -> Distilled:
    """Cut up to MAX occurrences out of MODEL into folders DEST/<name>_<i>/original, different ones first.

    One of FUNCTION (a function or operator by name), NODES ("first..last", names of nodes or values) and PATTERN (a
    rewrite rule) says what to cut, NAME what to call it instead. LIGHT replaces the weights by random numbers of the same mean and spread.
    OVERWRITE: also folders that were cut out of another model.
    """
    if sum(x is not None for x in (function, nodes, pattern)) != 1:
        raise OpsmithError("give exactly one of --function, --nodes and --pattern")
    if max < 1:
        raise OpsmithError(f"--max must be at least 1, not {max}")
    path = store.find_model(model)
    if store.libraries(path):
        raise OpsmithError(f"{path} is compiled: its nodes are inside the library", "distill the model it came from")
    proto = store.read_proto(path)
    graph = graph_of(proto)
    if function is not None:
        called, groups = function, find_function(proto, function)
    elif nodes is not None:
        called, groups = nodes.replace("..", "_to_"), [find_between(graph, nodes)]
    else:
        assert pattern is not None
        called, groups = pattern, find_pattern(path, graph, pattern)
    occurrences = [close(proto, graph, group) for group in groups]
    feed, _ = bench.choose_inputs(path, shapes, seed)
    with progress.task("distill") as step:
        step("running the model")
        borders = sorted({v for o in occurrences for v in (*o.inputs, *o.outputs)})
        tensors = fetch(path, feed, borders, threads)
        step("finding dynamic dims")
        dims = Dims(path, borders, threads, seed)
        chosen, different = choose(proto, occurrences, tensors, max)
        opened = store.open_model(path)
        written = []
        for i, occurrence in enumerate(chosen):
            step(f"writing {i + 1} of {len(chosen)}")
            folder = Path(dest) / f"{_file_name(name or called)}_{i}" / VARIANT
            small = build(proto, opened, occurrence, tensors, dims, seed if light else None)
            options = {"function": function, "nodes": nodes, "pattern": pattern, "light": light, "seed": seed}
            with store.new_variant(folder, verb="distill", parent=path, options=options, overwrite=overwrite) as draft:
                store.save_model(small, draft.path)
                draft.record["cut"] = {
                    "nodes": [graph.nodes[n].name for n in occurrence.nodes],
                    "occurrence": i,
                    "occurrences": len(occurrences),
                }
                _write_data(draft, occurrence, tensors, light, threads)
            written.append(store.Variant(store.find_model(folder)))
    return Distilled(tuple(written), len(occurrences), different)


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("_.") or "cut"


# --- find -------------------------------------------------------------------------------------------------


def find_function(proto: onnx.ModelProto, name: str) -> list[list[int]]:
    """Every call of a function or operator: "Gelu", "opsmith.Gelu", "LayerNormalization"."""
    calls = [[i] for i, n in enumerate(proto.graph.node) if name in (n.op_type, f"{n.domain}.{n.op_type}")]
    if not calls:
        inside = [f"{f.domain}.{f.name}" for f in proto.functions]
        called = sorted({n.op_type for n in proto.graph.node})
        functions = f"its functions are {', '.join(inside)}" if inside else "it has no functions"
        hint = f"{near(name, [*inside, *called])}{functions}, its operators {', '.join(called)}"
        raise OpsmithError(f"the model calls no function or operator {name!r}", hint)
    return calls


def find_between(graph: Graph, text: str) -> list[int]:
    """All nodes on a way from the first to the last: "/layer1/MatMul../layer1/Add_2", names of nodes or values."""
    first, dots, last = text.partition("..")
    if not first or (dots and not last):
        raise OpsmithError(f"{text!r} names no nodes", "write FIRST..LAST, or one name")
    start, end = _find_node(graph, first), _find_node(graph, last or first)
    after = _reachable(graph, start, forward=True)
    between = sorted(after & _reachable(graph, end, forward=False))
    if not between:
        raise OpsmithError(f"no way leads from {first!r} to {last!r}", "give them in the order in which data flows")
    return between


def _find_node(graph: Graph, name: str) -> int:
    for i, node in enumerate(graph.nodes):
        if name == node.name or name in node.outputs:
            return i
    import difflib

    close_by = difflib.get_close_matches(name, [n.name for n in graph.nodes], 1)
    raise OpsmithError(f"the model has no node {name!r}", f"did you mean {close_by[0]!r}?" if close_by else None)


def _reachable(graph: Graph, start: int, *, forward: bool) -> set[int]:
    made_by = {v: i for i, node in enumerate(graph.nodes) for v in node.outputs}
    edges: dict[int, set[int]] = {}
    for i, node in enumerate(graph.nodes):
        for value in node.inputs:
            if value in made_by:
                a, b = (made_by[value], i) if forward else (i, made_by[value])
                edges.setdefault(a, set()).add(b)
    seen, pending = {start}, [start]
    while pending:
        fresh = edges.get(pending.pop(), set()) - seen
        seen |= fresh
        pending += fresh
    return seen


def find_pattern(path: Path, graph: Graph, name: str) -> list[list[int]]:
    """Where a rewrite rule fires: the original nodes that each match replaces."""
    from opsmith import rewriter
    from opsmith.rewriter import engine, passes, rules

    rewriter.choose(3, "portable", [name])  # an unknown name is an error
    wanted = next(r for r in rules.ALL if r.name == name)
    model = store.open_model(path)
    passes.simplify(model, raise_opset=True)
    for rule in rules.ALL[: rules.ALL.index(wanted)]:
        if rule.level <= 2:  # a rule may need what earlier ones find: group norm + SiLU needs both
            engine.apply(rule, model)
    before = {id(node) for node in model.graph}
    result = engine.apply(wanted, model)
    if not result.matches:
        miss = result.near_miss
        why = f"nearest at {miss.node or miss.root}: {miss.reason}" if miss else "no node that it could start from"
        raise OpsmithError(f"rule {wanted.name} does not fire in {path.name}", why)
    nodes = list(model.graph)
    fresh = {i for i, node in enumerate(nodes) if not (id(node) in before or node.op_type == "Constant")}
    derived = Graph(tuple(_node_of(n) for n in nodes), frozenset(v.name or "" for v in model.graph.inputs))
    groups = origins(graph, derived)
    index = {node.name: i for i, node in enumerate(graph.nodes)}
    clusters = (sorted({index[n] for i in c for n in groups[i]}) for c in _connected(derived, fresh))
    return list(filter(None, clusters))


def _node_of(node: ir.Node) -> Node:
    outputs = tuple(v.name for v in node.outputs if v.name)
    op = operator_name(node)
    return Node(
        node.name or (outputs[0] if outputs else ""), op, tuple(v.name for v in node.inputs if v and v.name), outputs
    )


def _connected(graph: Graph, chosen: set[int]) -> list[list[int]]:
    """The nodes that a rule made, grouped by match: those of one match feed each other."""
    made_by = {v: i for i in chosen for v in graph.nodes[i].outputs}
    parent = {i: i for i in chosen}

    def root(i: int) -> int:
        while parent[i] != i:
            i = parent[i]
        return i

    for i in chosen:
        for value in graph.nodes[i].inputs:
            # Two matches in a row also feed each other; what tells them apart is that each makes one main node.
            if value in made_by and not (_is_main(graph.nodes[i]) and _is_main(graph.nodes[made_by[value]])):
                parent[root(i)] = root(made_by[value])
    groups: dict[int, list[int]] = {}
    for i in sorted(chosen):
        groups.setdefault(root(i), []).append(i)
    return list(groups.values())


def _is_main(node: Node) -> bool:
    return node.op not in ("Transpose", "Reshape", "Unsqueeze", "Squeeze", "Cast", "Slice", "Concat", "Expand", "Split")


# --- close ------------------------------------------------------------------------------------------------


def close(proto: onnx.ModelProto, graph: Graph, group: Iterable[int]) -> Occurrence:
    """Fill the group up to a set that can be cut out: nothing leaves it and comes back, its constants are inside."""
    inside = set(group)
    made_by = {v: i for i, node in enumerate(graph.nodes) for v in node.outputs}
    live = _computed(graph)
    # Nodes between two members: those that a member reaches and that reach a member.
    reached = _closure(graph, inside, made_by, forward=True)
    inside |= reached & _closure(graph, inside, made_by, forward=False)
    pending = list(inside)
    while pending:  # constants that feed it
        for value in graph.nodes[pending.pop()].inputs:
            maker = made_by.get(value)
            if maker is not None and maker not in inside and value not in live:
                inside.add(maker)
                pending.append(maker)
    weights = {tensor.name for tensor in proto.graph.initializer}
    outputs = _read_elsewhere(graph, inside, {value.name for value in proto.graph.output}, live)
    inside |= _shape_arithmetic(graph, inside, made_by, weights)
    read = [v for i in sorted(inside) for v in graph.nodes[i].inputs]
    made = {v for i in inside for v in graph.nodes[i].outputs}
    return Occurrence(
        nodes=tuple(sorted(inside)),
        inputs=tuple(dict.fromkeys(v for v in read if v not in made and v not in weights)),
        outputs=tuple(dict.fromkeys(outputs)),
        weights=tuple(dict.fromkeys(v for v in read if v in weights)),
    )


def _read_elsewhere(graph: Graph, inside: set[int], final: set[str], live: set[str]) -> list[str]:
    """The values made inside that other nodes read, or that are outputs of the model."""
    elsewhere = {v for i, node in enumerate(graph.nodes) if i not in inside for v in node.inputs} | final
    return [v for i in sorted(inside) for v in graph.nodes[i].outputs if v in elsewhere and v in live]


_ARITHMETIC = frozenset(
    """
    Shape Size Gather Slice Concat Unsqueeze Squeeze Cast Add Sub Mul Div Mod Constant Reshape Identity Max Min
    ReduceProd
    """.split()
)


def _shape_arithmetic(graph: Graph, inside: set[int], made_by: Mapping[str, int], weights: set[str]) -> set[int]:
    """Nodes to take along because they compute sizes that the cut reads from tensors that it has anyway.

    Shape(x) -> ... -> Reshape: as an input the size would be mere data, and no rule could see that it is x's.
    """
    made = {v for i in inside for v in graph.nodes[i].outputs}
    border = {v for i in inside for v in graph.nodes[i].inputs if v not in made and v not in weights}
    copied: set[int] = set()
    for value in sorted(border):
        # A size may come from any tensor that the cut has; it must not be one that is a size itself.
        nodes = _sizes(graph, value, made_by, weights, have=made | (border - {value}))
        copied |= nodes or set()
    return copied - inside


def _sizes(graph: Graph, value: str, made_by: Mapping[str, int], weights: set[str], have: set[str]) -> set[int] | None:
    """The nodes that compute VALUE from shapes of tensors in HAVE and constants; None if anything else is needed."""
    nodes: set[int] = set()
    pending = [value]
    while pending:
        name = pending.pop()
        if name in weights:
            continue
        maker = made_by.get(name)
        if maker is None or graph.nodes[maker].op not in _ARITHMETIC:
            return None
        if maker in nodes:
            continue
        nodes.add(maker)
        node = graph.nodes[maker]
        if node.op in ("Shape", "Size"):
            if node.inputs[0] not in have:
                return None
        else:
            pending += node.inputs
    return nodes


def _computed(graph: Graph) -> set[str]:
    """The values that depend on an input of the model."""
    reached = set(graph.inputs)
    for node in graph.nodes:
        if any(v in reached for v in node.inputs):
            reached.update(node.outputs)
    return reached


def _closure(graph: Graph, start: set[int], made_by: Mapping[str, int], *, forward: bool) -> set[int]:
    reached = set(start)
    order = range(len(graph.nodes)) if forward else reversed(range(len(graph.nodes)))
    readers: dict[str, list[int]] = {}
    for i, node in enumerate(graph.nodes):
        for value in node.inputs:
            readers.setdefault(value, []).append(i)
    for i in order:
        node = graph.nodes[i]
        if forward:
            neighbours: Iterable[int] = (made_by[v] for v in node.inputs if v in made_by)
        else:
            neighbours = (r for v in node.outputs for r in readers.get(v, ()))
        if any(n in reached for n in neighbours):
            reached.add(i)
    return reached


# --- run --------------------------------------------------------------------------------------------------


def fetch(path: Path, feed: Mapping[str, Array], names: Sequence[str], threads: int | None) -> dict[str, Array]:
    """The tensors of these names when the model runs on FEED, inputs of the model included."""
    wanted = [name for name in names if name not in feed]

    def add_outputs(proto: onnx.ModelProto) -> None:
        present = {value.name for value in proto.graph.output}
        proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted if name not in present)

    tensors = {name: feed[name] for name in names if name in feed}
    if wanted:
        running = session.load(path, threads=threads, optimize=False, edit=add_outputs)
        tensors |= dict(zip(wanted, session.run(running, feed, wanted)))
    for name, value in tensors.items():
        if not isinstance(value, np.ndarray):
            raise OpsmithError(f"value {name!r} at the border of the cut is not a tensor", "cut elsewhere")
    return tensors


class Dims:
    """Which dims of the border tensors vary, found by running the model on two more shapes."""

    def __init__(self, path: Path, names: Sequence[str], threads: int | None, seed: int) -> None:
        self.shapes: list[dict[str, tuple[int, ...]]] = []
        self.names: dict[tuple[int, ...], str] = {}
        model = store.open_model(path)
        try:
            specs = generate.specs(model)
            cases = generate.cases(specs, 2)
            for case in cases if len(cases) == 2 else []:
                feed = random_inputs(model, case, seed)
                tensors = fetch(path, feed, names, threads)
                self.shapes.append({name: tensor.shape for name, tensor in tensors.items()})
        except OpsmithError:  # a model that runs on its own test data only: its dims are taken as fixed
            self.shapes = []
            return
        if self.shapes:
            # A dim that takes the two values of a symbol of the model is that symbol.
            self.names = {(cases[0][s], cases[1][s]): s for s in reversed(list(cases[0]))}

    def of(self, name: str, shape: tuple[int, ...]) -> list[int | str]:
        if not self.shapes or any(len(s[name]) != len(shape) for s in self.shapes):
            return list(shape)
        dims: list[int | str] = []
        for axis, size in enumerate(shape):
            seen = tuple(s[name][axis] for s in self.shapes)
            if len(set(seen)) == 1:
                dims.append(size)
            else:
                dims.append(self.names.setdefault(seen, f"dim_{len(self.names)}"))
        return dims


# --- choose and build -------------------------------------------------------------------------------------


def choose(
    proto: onnx.ModelProto, found: Sequence[Occurrence], tensors: Mapping[str, Array], limit: int
) -> tuple[list[Occurrence], int]:
    """Up to LIMIT occurrences, one of each kind before the second of any; and how many kinds there are."""
    kinds: dict[Any, list[Occurrence]] = {}
    for occurrence in found:
        nodes = [proto.graph.node[i] for i in occurrence.nodes]
        attributes = [tuple(a.SerializeToString() for a in n.attribute if not a.HasField("t")) for n in nodes]
        sizes = [tensors[v].shape for v in (*occurrence.inputs, *occurrence.outputs)]
        key = tuple(n.op_type for n in nodes), tuple(attributes), tuple(sizes)
        kinds.setdefault(key, []).append(occurrence)
    depth = max((len(k) for k in kinds.values()), default=0)
    ordered = [kind[i] for i in range(depth) for kind in kinds.values() if i < len(kind)]
    return ordered[:limit], len(kinds)


def build(
    proto: onnx.ModelProto,
    opened: ir.Model,
    occurrence: Occurrence,
    tensors: Mapping[str, Array],
    dims: Dims,
    seed: int | None,
) -> ir.Model:
    """The occurrence as a model of its own; SEED replaces the weights by random ones."""

    def info(name: str) -> onnx.ValueInfoProto:
        kind = ir.tensor(tensors[name]).dtype
        return onnx.helper.make_tensor_value_info(name, int(kind), dims.of(name, tensors[name].shape))

    small = onnx.ModelProto(ir_version=proto.ir_version, producer_name="opsmith")
    small.opset_import.extend(proto.opset_import)
    small.graph.name = "distilled"
    small.graph.node.extend(proto.graph.node[i] for i in occurrence.nodes)
    small.graph.input.extend(info(name) for name in occurrence.inputs)
    small.graph.output.extend(info(name) for name in occurrence.outputs)
    small.functions.extend(_needed_functions(proto, small.graph.node))
    for name in occurrence.weights:
        tensor = opened.graph.initializers[name].const_value
        assert tensor is not None
        kept: ir.TensorProtocol = tensor if seed is None else lighten(tensor, name, seed)
        serialized = ir.serde.serialize_tensor(ir.tensor(kept.numpy(), dtype=kept.dtype, name=name))
        small.graph.initializer.append(serialized)
    return ir.serde.deserialize_model(small)


def _needed_functions(proto: onnx.ModelProto, nodes: Iterable[onnx.NodeProto]) -> list[onnx.FunctionProto]:
    by_name = {(f.domain, f.name): f for f in proto.functions}
    needed: dict[tuple[str, str], onnx.FunctionProto] = {}
    pending = list(nodes)
    while pending:
        node = pending.pop()
        key = (node.domain, node.op_type)
        if key in by_name and key not in needed:
            needed[key] = by_name[key]
            pending += by_name[key].node
        for graph in subgraphs(node):
            pending += graph.node
    return [f for key, f in by_name.items() if key in needed]


def lighten(tensor: ir.TensorProtocol, name: str, seed: int) -> ir.TensorProtocol:
    """Random numbers of the same type, shape, mean and spread, the same for the same seed and name.

    The last 16 bits of each float are zero: half the size in any compressed archive.
    """
    array = tensor.numpy()
    if array.size < LARGE or array.dtype.kind not in "fiu":
        return tensor
    rng = np.random.default_rng([seed, *name.encode()])
    if array.dtype.kind in "iu":
        values = rng.integers(int(array.min()), int(array.max()) + 1, array.shape).astype(array.dtype)
        return ir.tensor(values, name=name)
    wide = array.astype(np.float64)
    values = rng.normal(wide.mean(), wide.std(), array.shape).astype(np.float32)
    values = (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return ir.tensor(values.astype(array.dtype), name=name)


def _write_data(
    draft: store.Draft, occurrence: Occurrence, tensors: Mapping[str, Array], light: bool, threads: int | None
) -> None:
    feed = {name: tensors[name] for name in occurrence.inputs}
    running = session.load(draft.path, threads=threads, optimize=False)
    outputs = dict(zip(occurrence.outputs, session.run(running, feed, occurrence.outputs)))
    if light:  # other weights, other outputs: the small model's own are the truth
        store.write_test_data(draft.folder, feed, outputs)
        return
    for name, value in outputs.items():
        if not (check := compare_arrays(tensors[name], value, name=name)).ok:
            raise NotTheSame(f"the cut model does not give the large one's {name!r}: {check.problem}")
    store.write_test_data(draft.folder, feed, {name: tensors[name] for name in occurrence.outputs})
