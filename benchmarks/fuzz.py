"""A fuzzer: random and mutated graphs through the rewriter and the compiler, mutated files through inspect and optimize.

    python benchmarks/fuzz.py rewrite --count 1000 --seed 0     a level of 1 to 3 each against ONNX Runtime, opsets 11 to 24
    python benchmarks/fuzz.py compile --count 300 --seed 0      native code against ONNX Runtime, 100 graphs per compiler run
    python benchmarks/fuzz.py bytes --count 5000 --seed 0       files with changed bytes; nothing but OpsmithError may come out

    --from suite            mutated node tests of ONNX in place of random graphs; --from FOLDER the models in a folder
    --from schema           one operator of ONNX's schemas at a time, with any types, ranks and attributes that it allows
    --from nnsmith          graphs of NNSmith (`pip install nnsmith`; no dependency of the project)
    --sanitize              compile with ASan + UBSan (g++)

A finding is reduced to the nodes that show it and printed as a test. Where ONNX Runtime and we differ, ONNX's reference
implementation in float64 says who is wrong, and the model's own spread what is a tie. docs/reliability.md has the counts.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import faulthandler
import functools
import gc
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import fuzz_mutate
import fuzz_schema
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from fuzz_graphs import Graphs
from onnx import helper as h
from onnx import numpy_helper as nh
from onnx.reference import ReferenceEvaluator

from opsmith import store
from opsmith.check import spread
from opsmith.check.flops import flops
from opsmith.errors import OpsmithError
from opsmith.rewriter import rewrite_model
from opsmith.timing.worker import memory

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

SIZES = ({"n": 3, "m": 5}, {"n": 1, "m": 1}, {"n": 2, "m": 7}, {"n": 0, "m": 4}, {"n": 2, "m": 3})
BATCH = 100  # graphs in one compiler run
SPECIAL = 4  # the last of the sizes is fed with NaN and infinities
TOLERANCES = {"float64": (1e-6, 1e-8), "float32": (1e-3, 1e-4), "float16": (1e-2, 1e-3), "bfloat16": (5e-2, 1e-2)}
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g1"]
# What is left out where it reads NaN or an infinity: ONNX Runtime answers by the place of NaN in a row; docs/reliability.md.
ORDERED: dict[str, slice] = dict.fromkeys(
    ("MaxPool", "GlobalMaxPool", "TopK", "Hardmax", "DynamicQuantizeLinear", "ArgMax", "ArgMin"), slice(1)
)
# Their scale and bias: (x - mean) * scale + bias is computed as x * a + b, whose parts may both be infinite.
ORDERED |= dict.fromkeys(("GroupNormalization", "InstanceNormalization", "BatchNormalization"), slice(1, None))
OF_NOTHING = {"ReduceMean": slice(1)}
M_PERTURB = -6  # of mallopt
UNSAID = "the reference cannot say"
Arrays = dict[str, np.ndarray[Any, Any]]


# --- comparing ---


def feed(proto: onnx.ModelProto, sizes: dict[str, int], seed: int) -> Arrays:
    constants = {t.name for t in proto.graph.initializer}
    arrays: Arrays = {}
    for value in proto.graph.input:
        if value.name in constants:
            continue
        tensor = value.type.tensor_type
        rng = np.random.default_rng([seed, zlib.crc32(value.name.encode())])  # the same after other inputs went
        shape = [
            sizes.get(d.dim_param, 3) if d.dim_param or not d.HasField("dim_value") else d.dim_value
            for d in tensor.shape.dim
        ]
        kind = np.dtype(h.tensor_dtype_to_np_dtype(tensor.elem_type))
        if kind.kind == "b":
            arrays[value.name] = np.asarray(rng.random(shape) < 0.5)
        elif kind.kind in "iu":
            arrays[value.name] = np.asarray(rng.integers(0, 3, shape), kind)
        else:
            numbers = np.asarray(rng.standard_normal(shape))
            if seed == SPECIAL and numbers.size:
                numbers.flat[rng.integers(numbers.size)] = rng.choice([np.nan, np.inf, -np.inf])
            arrays[value.name] = numbers.astype(kind)
    return arrays


def session(model: bytes | str, library: Path | None = None) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if library is not None:
        options.register_custom_ops_library(str(library))
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@dataclasses.dataclass
class Case:
    """A model and what ONNX Runtime answers, asked once for all that is compared with it."""

    proto: onnx.ModelProto
    names: list[str]
    answers: list[tuple[int, Arrays, list[Any]]]  # place in SIZES, inputs, outputs


def asked(proto: onnx.ModelProto) -> Case | None:
    """None if ONNX Runtime does not take the model: what it refuses says nothing about us."""
    try:
        stock = session(proto.SerializeToString())
    except Exception:
        return None
    answers = []
    for seed, sizes in enumerate(SIZES):
        with contextlib.suppress(Exception):  # it refuses some sizes; and none is negative
            inputs = feed(proto, sizes, seed)
            answers.append((seed, inputs, stock.run(None, inputs)))
    return Case(proto, [o.name for o in stock.get_outputs()], answers) if answers else None


def difference(case: Case, other: ort.InferenceSession) -> str:
    """The first difference between the model on ONNX Runtime and OTHER; empty if there is none that is ours."""
    if case.names != [o.name for o in other.get_outputs()]:
        return "other outputs"
    for seed, inputs, want in case.answers:
        try:
            got = other.run(None, inputs)
        except Exception as error:
            if _refused_too(case.proto, inputs, str(error)):
                continue
            return f"{SIZES[seed]}: does not run: {error}"
        for name, a, b in zip(case.names, want, got):
            if isinstance(a, np.ndarray) and (what := _difference_of(case.proto, inputs, name, (a, b), seed)):
                return f"{SIZES[seed]}: {name} {what}"
    return ""


def _difference_of(proto: onnx.ModelProto, inputs: Arrays, name: str, pair: tuple[Any, Any], seed: int) -> str:
    """How an output of ours differs from ONNX Runtime's; empty if it does not, or if ours is right."""
    a, b = pair
    if a.size == 0 and a.shape != b.shape:
        return ""  # ONNX Runtime keeps the reduced dim of an empty value, against its own declaration
    operators = {n.op_type for n in proto.graph.node}
    if "MeanVarianceNormalization" in operators and a.dtype.kind == "f" and np.isnan(a).any():
        return ""  # ONNX Runtime takes the root of a variance that rounding made negative
    if a.shape != b.shape and empty_and_right(proto, inputs, name, b):
        return ""
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"is {b.dtype}{b.shape}, not {a.dtype}{a.shape}"
    if close(a, b) or not (why := wrong(proto, inputs, name, a, b)):
        return ""
    if _nobody_says(proto, inputs, name, why, seed):
        return ""
    return f"differs{' on NaN or infinity' if seed == SPECIAL else ''} ({why})"


def _nobody_says(proto: onnx.ModelProto, inputs: Arrays, name: str, why: str, seed: int) -> bool:
    """Whether no answer is the right one: of what has no order, was never set, or ONNX leaves open."""
    operators = {n.op_type for n in proto.graph.node}
    if operators & {*ORDERED, *OF_NOTHING} and unordered(proto, inputs):
        return True
    empty = any(v.size == 0 for v in inputs.values())
    return unset(proto, inputs, name) or ((seed == SPECIAL or empty) and why.startswith(UNSAID))


def empty_and_right(proto: onnx.ModelProto, inputs: Arrays, name: str, got: Any) -> bool:
    """Whether the reference has our shape: of what follows from an empty value's reduced dim, which ONNX Runtime keeps."""
    if all(a.size for a in inputs.values()):
        return False
    with contextlib.suppress(Exception):
        return bool(np.shape(reference(proto, inputs)[name]) == got.shape)
    return False


def _refused_too(proto: onnx.ModelProto, inputs: Arrays, error: str) -> bool:
    """Whether that is no error of ours: a window larger than its image, or of empty values, what the reference refuses too (the
    largest of none) and a Reshape to a constant target."""
    if "the image is smaller than the kernel" in error or "the axis is empty" in error:
        return True  # docs/reliability.md
    if all(a.size for a in inputs.values()):
        return False
    if "opsmith region" not in error:
        return True  # docs/reliability.md
    try:
        reference(proto, inputs)
    except Exception:
        return True
    return False


def close(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    if a.dtype.kind in "biu":
        return np.array_equal(a, b)
    rtol, atol = TOLERANCES.get(a.dtype.name, (1e-3, 1e-4))
    return np.allclose(b.astype(np.float64), a.astype(np.float64), rtol=rtol, atol=atol, equal_nan=True)


def wrong(proto: onnx.ModelProto, inputs: Arrays, name: str, want: Any, got: Any) -> str:
    """Who is nearer to ONNX's reference implementation in float64? Empty if we are, or if it is the model's own rounding."""
    apart = spread.statistics(want, got)
    if apart is not None and spread.exceeds(apart, own_spread(proto, inputs, name, want), 0.0) is None:
        return ""
    if not proto.graph.input:
        return "folded, which the reference cannot judge: it is what folds"
    try:
        try:
            exact = reference(proto, inputs)[name]
        except Exception:  # some of its operators know no float64
            exact = reference(proto, inputs, wide=False)[name]
    except Exception as error:  # it does not know an operator, or not for such values
        return f"{UNSAID}: {type(error).__name__}"
    with np.errstate(all="ignore"):
        ours, theirs = (_distance(np.asarray(x).astype(np.float64), np.asarray(exact)) for x in (got, want))
        if ours <= 2 * max(theirs, _rounding(proto, inputs, name, exact)):
            return ""
    return f"off by {ours:.3g}, ONNX Runtime by {theirs:.3g}"


def _rounding(proto: onnx.ModelProto, inputs: Arrays, name: str, exact: Any) -> float:
    """How far the reference is from itself if it rounds every value to the model's own types; ONNX Runtime keeps halves as floats."""
    try:
        rounded = _distance(
            np.asarray(reference(proto, inputs, wide=False)[name]).astype(np.float64), np.asarray(exact)
        )
    except Exception:
        return 0.0
    return rounded if np.isfinite(rounded) else 0.0


def unordered(proto: onnx.ModelProto, inputs: Arrays) -> bool:
    """Whether one of ORDERED reads a NaN or an infinity there, or one of OF_NOTHING nothing."""
    with np.errstate(all="ignore"):
        strange = any(not np.isfinite(v.astype(np.float64)).all() for v in _read(proto, inputs, ORDERED))
        return strange or any(v.size == 0 for v in _read(proto, inputs, OF_NOTHING))


def _read(proto: onnx.ModelProto, inputs: Arrays, places: dict[str, slice]) -> list[np.ndarray[Any, Any]]:
    """What operators read at PLACES among their inputs."""
    names = {i for n in proto.graph.node for i in n.input[places.get(n.op_type, slice(0))] if i}
    if not names:
        return []
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(names))
    return [np.asarray(v) for v in session(model.SerializeToString()).run(None, inputs)]


def _distance(a: Any, b: Any) -> float:
    if a.shape != b.shape:
        return float("inf")
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return (
        float(np.abs(np.where(same, 0, a - b)).max(initial=0))
        if np.isfinite(np.where(same, 0, a - b)).all()
        else float("inf")
    )


def own_spread(proto: onnx.ModelProto, inputs: Arrays, name: str, want: Any) -> dict[str, float]:
    """How far the model is from itself on these inputs: a tie that rounding turns over is no error of ours."""
    widest: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="opsmith-fuzz-") as folder:
        path = Path(folder) / "m.onnx"
        onnx.save(proto, path)
        place = [o.name for o in proto.graph.output].index(name)
        for _, outputs in spread.answers(path, [(inputs, {})], True, 1):
            for statistic, size in (spread.statistics(want, outputs[place]) or {}).items():
                widest[statistic] = max(size, widest.get(statistic, 0.0))
    return widest


def unset(proto: onnx.ModelProto, inputs: Arrays, name: str) -> bool:
    """Whether ONNX Runtime leaves some of a value unset: it then answers with what fresh memory is filled with."""
    libc = ctypes.CDLL(None)
    place = [o.name for o in proto.graph.output].index(name)
    answers = []
    for filling in (0x5A, 0x3C):
        libc.mallopt(M_PERTURB, filling)
        try:
            answers.append(session(proto.SerializeToString()).run(None, inputs)[place])
        finally:
            libc.mallopt(M_PERTURB, 0)
    return not close(*answers)


def reference(proto: onnx.ModelProto, inputs: Arrays, wide: bool = True) -> Arrays:
    """What ONNX's own implementation gives; WIDE: computed in float64."""
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    if wide:
        _widen(model.graph)
        for function in model.functions:
            _widen_nodes(function.node)
        inputs = {k: v.astype(np.float64) if v.dtype.kind == "f" else v for k, v in inputs.items()}
    found = ReferenceEvaluator(model).run(None, inputs)
    return dict(zip([o.name for o in model.graph.output], found))


def _widen(graph: onnx.GraphProto) -> None:
    halves = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
    for tensor in graph.initializer:
        if tensor.data_type in halves:
            tensor.CopyFrom(nh.from_array(nh.to_array(tensor).astype(np.float64), tensor.name))
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type in halves:
            value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    _widen_nodes(graph.node)


def _widen_nodes(nodes: Any) -> None:
    for node in nodes:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == onnx.TensorProto.FLOAT:
                attribute.i = onnx.TensorProto.DOUBLE
            if attribute.type == onnx.AttributeProto.TENSOR and attribute.t.data_type == onnx.TensorProto.FLOAT:
                attribute.t.CopyFrom(nh.from_array(nh.to_array(attribute.t).astype(np.float64), attribute.t.name))
            if attribute.type == onnx.AttributeProto.GRAPH:
                _widen(attribute.g)


LEVELS = (1, 2, 3)


def rewritten(case: Case, levels: Sequence[int] = LEVELS) -> str:
    """What is wrong with the model after rewriting at any level; empty if nothing is."""
    for level in levels:
        try:
            model = ir.from_proto(case.proto)
            rewrite_model(model, level=level)
            found = difference(case, session(ir.to_proto(model).SerializeToString()))
        except Exception as error:
            found = (
                "" if "with a negative size" in str(error) else f"{type(error).__name__}: {error}"
            )  # a window, too large
        if found:
            return f"level {level}: {found}"
    return ""


def compiled(
    cases: Sequence[Case],
    sanitize: bool = False,
    objects: Path | None = None,
    on_compare: Callable[[int], None] = lambda _: None,
) -> list[str]:
    """The same after compiling, all in one compiler run; kernels that another run has left in OBJECTS are not built again."""
    from batch import compile_batch

    found = []
    with tempfile.TemporaryDirectory(prefix="opsmith-fuzz-") as folder:
        models = [(f"g{i}", case.proto.SerializeToString()) for i, case in enumerate(cases)]
        flags = ["-O1", *SANITIZE] if sanitize else ["-O0"]
        library, built = compile_batch(models, Path(folder), optimize=flags, objects=objects)
        for i, (case, result) in enumerate(zip(cases, built)):
            on_compare(i)
            found.append(result.error or (_apart(case, result.path, library) if result.regions else ""))
    return found


def _apart(case: Case, path: str, library: Path | None) -> str:
    try:
        return difference(case, session(path, library))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


# --- reducing ---


LONGEST = 90.0  # seconds; after that a finding is reduced no further


def reduce(proto: onnx.ModelProto, fails: Callable[[onnx.ModelProto], bool]) -> onnx.ModelProto:
    """The fewest nodes that still fail: each value in turn is the only output; then each node in turn is an input."""
    best, ends = proto, time.monotonic() + LONGEST
    for name in [o for n in proto.graph.node for o in n.output if o]:
        smaller = _only(proto, name)
        if (
            time.monotonic() < ends
            and len(smaller.graph.node) < len(best.graph.node)
            and asked(smaller) is not None
            and fails(smaller)
        ):
            best = smaller
            break
    for _ in range(len(best.graph.node)):
        for smaller in _without_one(best):
            if time.monotonic() < ends and asked(smaller) is not None and fails(smaller):
                best = smaller
                break
        else:
            break
    return best


def _only(proto: onnx.ModelProto, name: str) -> onnx.ModelProto:
    smaller = onnx.ModelProto()
    smaller.CopyFrom(proto)
    del smaller.graph.output[:]
    smaller.graph.output.append(_typed(proto, name))
    _drop_unused(smaller)
    return smaller


def _without_one(proto: onnx.ModelProto) -> Iterator[onnx.ModelProto]:
    """Each node with one result in turn replaced by an input."""
    for node in list(proto.graph.node)[:-1]:
        info = _typed(proto, node.output[0])
        if len(node.output) == 1 and info.type.tensor_type.elem_type:
            smaller = onnx.ModelProto()
            smaller.CopyFrom(proto)
            smaller.graph.node.remove(next(n for n in smaller.graph.node if n.output[:1] == node.output[:1]))
            smaller.graph.input.append(info)
            _drop_unused(smaller)
            yield smaller


def _typed(proto: onnx.ModelProto, name: str) -> onnx.ValueInfoProto:
    try:
        inferred = onnx.shape_inference.infer_shapes(proto).graph
    except Exception:
        inferred = proto.graph
    values = (*inferred.value_info, *inferred.output, *inferred.input)
    return next((v for v in values if v.name == name), onnx.ValueInfoProto(name=name))


def _drop_unused(model: onnx.ModelProto) -> None:
    needed = {o.name for o in model.graph.output}
    kept = []
    for node in reversed(model.graph.node):
        if needed & set(node.output):
            kept.append(node)
            needed |= set(node.input) | {i for a in node.attribute for n in a.g.node for i in n.input}
            needed |= {o.name for a in node.attribute for o in a.g.output}
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in reversed(kept)]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    for field in (model.graph.initializer, model.graph.input):
        for item in [i for i in field if i.name not in needed]:
            field.remove(item)
    del model.graph.value_info[:]


def report(proto: onnx.ModelProto, why: str, what: str, seed: int) -> None:
    """What was found, as a test."""
    text = onnx.printer.to_text(proto)
    print(
        f'\n--- seed {seed}: {why}\ndef test_finding_{seed}() -> None:\n    proto = onnx.parser.parse_model("""{text}""")',
        flush=True,
    )
    print("    case = fuzz.asked(proto)", flush=True)
    check = 'rewritten(case) == ""' if what == "rewrite" else 'compiled([case]) == [""]'
    print(f"    assert case is not None and fuzz.{check}", flush=True)


# --- files ---


def mutated(seeds: list[bytes], rng: random.Random) -> bytes:
    """A file with some bytes changed, removed, doubled or exchanged between two."""
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice([1, 1, 2, 4, 16])):
        place = rng.randrange(len(data))
        how = rng.randrange(5)
        if how == 0:
            data[place] = rng.randrange(256)
        elif how == 1:
            data[place] ^= 1 << rng.randrange(8)
        elif how == 2:
            del data[place : place + rng.randrange(1, 9)]
        elif how == 3:
            data[place:place] = data[place : place + rng.randrange(1, 33)]
        else:
            other = rng.choice(seeds)
            begin = rng.randrange(len(other))
            data[place : place + 8] = other[begin : begin + 8]
        if not data:
            break
    return bytes(data)


def opened(path: Path) -> str:
    """Inspect and optimize at level 1; empty, or what came out other than an OpsmithError."""
    try:
        flops(path, run=False)
        rewrite_model(store.open_model(path), level=1)
    except OpsmithError:
        pass
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


# --- running ---


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["rewrite", "compile", "bytes"])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument(
        "--from", dest="source", default="random", help="random, suite, schema, nnsmith, or a folder with models"
    )
    parser.add_argument("--sanitize", action="store_true")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no further batch after this time")
    options = parser.parse_args()
    if options.sanitize and "libasan" not in os.environ.get("LD_PRELOAD", ""):
        _begin_again_with_asan()
    started = time.monotonic()
    ends = started + 60 * options.minutes
    if options.what == "bytes":
        total = fuzz_bytes(options.count, options.seed, options.nodes, options.source, ends)
    else:
        total = fuzz_graphs(
            options.what, options.count, options.seed, options.nodes, options.source, options.sanitize, ends
        )
    more = f", {total.memory / 2**30:.2f} GiB" if total.memory else ""
    print(
        f"{options.what} from {options.source}: seeds {options.seed} to {options.seed + options.count - 1}, {total.ran} checked, "
        f"{total.refused} refused by ONNX Runtime, {len(total.findings)} findings, {time.monotonic() - started:.0f} s, "
        f"slowest {total.slowest:.1f} s{more}"
    )
    return 1 if total.findings else 0


def _begin_again_with_asan() -> None:
    """Its library has to come before Python's own allocations, and the C++ library with it, for what ONNX Runtime throws."""
    files = [
        subprocess.check_output(["gcc", f"-print-file-name={n}"], text=True) for n in ("libasan.so", "libstdc++.so")
    ]
    os.environ |= {"LD_PRELOAD": " ".join(f.strip() for f in files), "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1"}
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def draw(seed: int, nodes: int, source: str) -> onnx.ModelProto:
    if source == "random":
        return Graphs(seed).draw(nodes)
    if source == "schema":
        return fuzz_schema.draw(seed)
    if source == "nnsmith":
        return _nnsmith(seed, nodes)
    return fuzz_mutate.mutant(seed, None if source == "suite" else Path(source))


def _nnsmith(seed: int, nodes: int) -> onnx.ModelProto:
    """Its graphs go through torch's older exporter: the newer one cannot trace their checks."""
    import torch
    from nnsmith.graph_gen import model_gen
    from nnsmith.materialize import Model

    random.seed(seed)
    np.random.seed(seed)
    export = torch.onnx.export
    torch.onnx.export = functools.partial(export, dynamo=False)
    try:
        kind = Model.init("onnx", "cpu")
        generated = model_gen(opset=kind.operators(), seed=seed, max_nodes=nodes, timeout_ms=10000)
        return onnx.ModelProto.FromString(kind.from_gir(generated.make_concrete()).native_model.SerializeToString())
    finally:
        torch.onnx.export = export


# --- a process of its own for everything that may crash ---

PATIENCE = 60  # seconds of processor time without news; of waiting, which a busy machine makes long, 20 times as many


def sheltered(task: Callable[[Callable[..., None]], None]) -> tuple[list[tuple[Any, ...]], str]:
    """Run TASK in a child; gives what it told, and how it died if it did."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        faulthandler.disable()  # ONNX Runtime crashes on some graphs: the parent tells of it in a word
        gc.freeze()  # sessions of the parent's have threads that are not here: to collect one would wait for them for ever
        os.close(reader)
        status = 1
        try:
            with os.fdopen(writer, "w") as pipe:

                def tell(*news: Any) -> None:
                    signal.alarm(20 * PATIENCE)
                    signal.setitimer(signal.ITIMER_PROF, PATIENCE)
                    print(json.dumps(news), file=pipe, flush=True)

                tell("began")
                task(tell)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)  # at the usual end, ONNX Runtime would wait for threads of the parent's
    os.close(writer)
    with os.fdopen(reader) as pipe:
        told = [tuple(json.loads(line)) for line in pipe]
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return told, f"{signal.Signals(os.WTERMSIG(status)).name}"
    return told, "" if status == 0 else f"exit {os.WEXITSTATUS(status)}"


@dataclasses.dataclass
class Outcome:
    ran: int = 0
    refused: int = 0  # by ONNX Runtime, which also crashes on some
    findings: list[tuple[int, str]] = dataclasses.field(default_factory=list)
    slowest: float = 0.0  # seconds of processor time
    memory: int = 0  # bytes


@dataclasses.dataclass(frozen=True)
class Task:
    """What is done with the models of a run."""

    what: str  # rewrite, compile
    make: Callable[[int], onnx.ModelProto]
    sanitize: bool = False
    objects: Path | None = None  # kernels that were built before
    every_level: bool = False  # or one per graph: three graphs then cost as much as one at all levels


def check_seeds(seeds: Sequence[int], task: Task) -> Outcome:
    """Check the models of some seeds; one that crashes is left out, and the others are checked again."""
    outcome = Outcome()
    todo = list(seeds)
    single = False
    while todo:
        now = todo[:1] if single else todo
        told, death = sheltered(lambda tell, now=now: _check(now, task, tell))  # type: ignore[misc]
        done: set[int] = set()
        for kind, *news in told:
            if kind == "done":
                done.add(news[0])
                outcome.ran += 1
                outcome.slowest = max(outcome.slowest, news[2])
                outcome.findings += [(news[0], news[1])] if news[1] else []
            elif kind == "refused":
                done.add(news[0])
                outcome.refused += 1
        if not death:
            done |= set(now)
        elif told[-1][0] == "stock":
            outcome.refused += 1
            done.add(told[-1][1])
        elif told[-1][0] == "comparing" or len(now) == 1:
            culprit = told[-1][1] if told[-1][0] == "comparing" else now[0]
            outcome.findings.append((culprit, f"died of {death}"))
            done.add(culprit)
        else:
            single = True  # while compiling: which one was it?
        todo = [s for s in todo if s not in done]
    return outcome


def _check(seeds: Sequence[int], task: Task, tell: Callable[..., None]) -> None:
    cases: dict[int, Case] = {}
    for seed in seeds:
        proto = task.make(seed)
        tell("stock", seed)
        case = asked(proto)
        if case is None:
            tell("refused", seed)
        elif task.what == "rewrite":
            tell("comparing", seed)
            clock = time.process_time()
            levels = LEVELS if task.every_level else LEVELS[seed % 3 : seed % 3 + 1]
            tell("done", seed, rewritten(case, levels), time.process_time() - clock)
        else:
            cases[seed] = case
    if cases:
        tell("compiling", 0)
        numbers = list(cases)
        found = compiled(list(cases.values()), task.sanitize, task.objects, lambda i: tell("comparing", numbers[i]))
        for seed, why in zip(numbers, found):
            tell("done", seed, why, 0.0)


def fuzz_graphs(
    what: str, count: int, seed: int, nodes: int, source: str = "random", sanitize: bool = False, ends: float = 1e99
) -> Outcome:
    total = Outcome()
    with tempfile.TemporaryDirectory(prefix="opsmith-fuzz-") as objects:
        task = Task(what, functools.partial(draw, nodes=nodes, source=source), sanitize, Path(objects))
        for begin in range(seed, seed + count, BATCH):
            if time.monotonic() > ends:
                break
            outcome = check_seeds(range(begin, min(begin + BATCH, seed + count)), task)
            total.ran, total.refused = total.ran + outcome.ran, total.refused + outcome.refused
            total.slowest = max(total.slowest, outcome.slowest)
            total.findings += outcome.findings
            for number, why in outcome.findings:
                report(reduce(task.make(number), functools.partial(_still, task)), why, what, number)
            print(f"{begin}: {total.ran} checked, {total.refused} refused, {len(total.findings)} findings", flush=True)
    return total


def _still(task: Task, proto: onnx.ModelProto) -> bool:
    one = dataclasses.replace(task, make=lambda _: proto, objects=None, every_level=True)
    return bool(check_seeds([0], one).findings)


def fuzz_bytes(count: int, seed: int, nodes: int, source: str = "random", ends: float = 1e99) -> Outcome:
    """Files by the thousand in a child, which says before each what it opens."""
    total = Outcome()
    seeds = [p.SerializeToString() for p in (draw(seed + i, nodes, source) for i in range(60))]
    folder = Path(tempfile.mkdtemp(prefix="opsmith-fuzz-"))
    for begin in range(seed, seed + count, 1000):
        if time.monotonic() > ends:
            break
        todo = list(range(begin, min(begin + 1000, seed + count)))
        while todo:
            told, death = sheltered(lambda tell, todo=todo: _open(todo, seeds, folder, tell))  # type: ignore[misc]
            for kind, number, *news in (t for t in told if t[0] != "began"):
                if kind == "done":
                    total.ran, total.slowest = total.ran + 1, max(total.slowest, news[1])
                    total.memory = max(total.memory, news[2])
                    total.findings += [(number, news[0])] if news[0] else []
            last = told[-1][1] if len(told) > 1 else todo[0]
            total.findings += [(last, f"died of {death}")] if death else []
            todo = [n for n in todo if death and n > last]
    for number, why in total.findings:
        kept = folder / f"finding_{number}.onnx"
        kept.write_bytes(mutated(seeds, random.Random(number)))
        print(f"\n--- {why}\n{kept}", flush=True)
    return total


def _open(numbers: Sequence[int], seeds: list[bytes], folder: Path, tell: Callable[..., None]) -> None:
    path = folder / "m.onnx"
    for number in numbers:
        path.write_bytes(mutated(seeds, random.Random(number)))
        tell("opening", number)
        clock = time.process_time()
        why = opened(path)
        tell("done", number, why, time.process_time() - clock, memory("VmHWM"))


if __name__ == "__main__":
    sys.exit(main())
