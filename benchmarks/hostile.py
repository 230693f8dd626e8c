"""Hostile files through every verb that reads a model: one line and exit code 2, or a result; no crash, no hang.

    python benchmarks/hostile.py                          every file through every verb
    python benchmarks/hostile.py fifo                     only files whose name contains a word
    python benchmarks/hostile.py '' inspect,optimize      only some verbs

Each command runs in a process of its own. It may use 10 s of processor time and 2 GiB, may not print control characters, and if it
fails says so in one line. docs/reliability.md has the latest figures.
"""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import os
import pkgutil
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

from opsmith.cli import main as cli

ROOMS = ("cli", "rewriter", "compiler", "compress", "check", "measure", "analysis")
for room in ROOMS:  # here, once: each command is a child
    package = importlib.import_module(f"opsmith.{room}")
    for module in pkgutil.walk_packages(package.__path__, f"opsmith.{room}."):
        importlib.import_module(module.name)

M = "{model}"
VERBS: dict[str, list[str]] = {
    "inspect": ["inspect", M],
    "optimize": ["optimize", M, "{dest}"],
    "quantize": ["quantize", M, "{dest}", "--method", "dynamic"],
    "prune": ["prune", M, "{dest}", "--method", "magnitude", "--ratio", "0.2", "--calibration", "generated"],
    "compile": ["compile", M, "{dest}", "--regions", "all"],
    "weights": ["weights", M, M, "{dest}"],
    "swap": ["weights", "{compiled}", M, "{dest}"],
    "pack": ["pack", M, "-o", "{dest}"],
    "verify": ["verify", M, "{good}"],
    "bench": ["bench", M, "--seconds", "0.2", "--processes", "1"],
    "profile": ["profile", M],
    "compare": ["compare", "{good}", M, "--seconds", "0.5"],
    "report": ["report", M, "-o", "{dest}", "--seconds", "0.2", "--processes", "1"],
    "map": ["map", M, "{rows}", "-o", "{dest}.jsonl", "--processes", "1"],
    "distill": ["distill", M, "{dest}", "--function", "Relu"],
    "explain-session": ["explain-session", M],
}
SECONDS, BYTES = 10.0, 2 << 30
CONTROL = re.compile(
    rb"[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]"
)  # all but line ends, tabs and the escapes of colours


# --- files ---


def simple(nodes: list[onnx.NodeProto] | None = None, opset: int = 18, **more: onnx.TensorProto) -> onnx.ModelProto:
    values = [h.make_tensor_value_info(name, T.FLOAT, ["n", 3]) for name in ("x", "y")]
    nodes = nodes or [h.make_node("Relu", ["x"], ["y"])]
    graph = h.make_graph(nodes, "g", values[:1], values[1:], list(more.values()))
    return h.make_model(graph, opset_imports=[h.make_opsetid("", opset)], ir_version=9)


def external(location: str, **entries: str) -> onnx.ModelProto:
    tensor = T(name="w", data_type=T.FLOAT, dims=[3], data_location=T.EXTERNAL)
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=value)
    return simple([h.make_node("Add", ["x", "w"], ["y"])], w=tensor)


def deep(levels: int) -> onnx.ModelProto:
    """Ifs in Ifs."""
    out = h.make_tensor_value_info("y", T.FLOAT, ["n", 3])
    body = [h.make_node("Relu", ["x"], ["y"])]
    for level in range(levels):
        graphs = {b: h.make_graph(body, f"{b}{level}", [], [out]) for b in ("then_branch", "else_branch")[:1]}
        graphs["else_branch"] = h.make_graph([h.make_node("Neg", ["x"], ["y"])], "else", [], [out])
        body = [h.make_node("If", ["c"], ["y"], **graphs)]
    return simple(body, c=nh.from_array(np.array(True), "c"))


def chain(length: int) -> onnx.ModelProto:
    names = ["x", *(f"v{i}" for i in range(length - 1)), "y"]
    return simple([h.make_node("Tanh", [a], [b]) for a, b in itertools.pairwise(names)])


def renamed(name: str) -> onnx.ModelProto:
    model = simple([h.make_node("Relu", [name], ["y"], name=name)])
    model.graph.input[0].name = name
    model.graph.name = model.producer_name = name
    return model


def sized(dims: list[int | str]) -> onnx.ModelProto:
    model = simple()
    for value in (*model.graph.input, *model.graph.output):
        value.CopyFrom(h.make_tensor_value_info(value.name, T.FLOAT, dims))
    return model


def twice(field: str) -> onnx.ModelProto:
    model = simple()
    getattr(model.graph, field).append(getattr(model.graph, field)[0])
    return model


def imported(domain: str, version: int) -> onnx.ModelProto:
    model = simple([h.make_node("Strange", ["x"], ["y"], domain=domain)])
    model.opset_import.append(h.make_opsetid(domain, version))
    return model


def swapped() -> onnx.ModelProto:
    return simple(
        [h.make_node("Add", ["x", "b"], ["a"]), h.make_node("Relu", ["a"], ["b"]), h.make_node("Neg", ["b"], ["y"])]
    )


def bombs() -> Iterator[tuple[str, onnx.ModelProto]]:
    one = nh.from_array(np.array([1], np.int64), "one")
    doubled = [h.make_node("Concat", [f"c{i}"] * 2, [f"c{i + 1}"], axis=0) for i in range(40)]
    yield (
        "concat bomb",
        simple(
            [h.make_node("Identity", ["one"], ["c0"]), *doubled, h.make_node("Expand", ["x", "c40"], ["y"])], one=one
        ),
    )
    numbers = {n: nh.from_array(np.array(v, np.int64), n) for n, v in (("a", 0), ("b", 10**12), ("c", 1))}
    yield (
        "range bomb",
        simple(
            [
                h.make_node("Range", ["a", "b", "c"], ["r"]),
                h.make_node("Cast", ["r"], ["f"], to=T.FLOAT),
                h.make_node("ReduceSum", ["f"], ["s"], keepdims=0),
                h.make_node("Add", ["x", "s"], ["y"]),
            ],
            **numbers,
        ),
    )
    huge = nh.from_array(np.array([1 << 40, 3], np.int64), "shape")
    yield "expand bomb", simple([h.make_node("Expand", ["x", "shape"], ["y"])], shape=huge)
    yield (
        "fill bomb",
        simple([h.make_node("ConstantOfShape", ["shape"], ["f"]), h.make_node("Add", ["x", "f"], ["y"])], shape=huge),
    )
    yield "tile bomb", simple([h.make_node("Tile", ["x", "shape"], ["y"])], shape=huge)
    long = nh.from_array(np.array(1 << 62, np.int64), "trips")
    info = h.make_tensor_value_info
    body = h.make_graph(
        [h.make_node("Identity", ["c"], ["d"]), h.make_node("Neg", ["s"], ["t"])],
        "b",
        [info("i", T.INT64, []), info("c", T.BOOL, []), info("s", T.FLOAT, ["n", 3])],
        [info("d", T.BOOL, []), info("t", T.FLOAT, ["n", 3])],
    )
    yes = nh.from_array(np.array(True), "yes")
    yield (
        "loop without end",
        simple([h.make_node("Loop", ["trips", "yes", "x"], ["y"], body=body)], trips=long, yes=yes),
    )


def with_functions(*functions: onnx.FunctionProto, call: str = "F0") -> onnx.ModelProto:
    model = simple([h.make_node(call, ["x"], ["y"], domain="local")])
    model.opset_import.append(h.make_opsetid("local", 1))
    model.functions.extend(functions)
    return model


def function(name: str, inner: str, domain: str = "local", opsets: bool = True) -> onnx.FunctionProto:
    imports = [h.make_opsetid("", 18), h.make_opsetid("local", 1)] if opsets else []
    return h.make_function("local", name, ["a"], ["b"], [h.make_node(inner, ["a"], ["b"], domain=domain)], imports)


def functions() -> Iterator[tuple[str, onnx.ModelProto]]:
    yield "function that calls itself", with_functions(function("F0", "F0"))
    yield "functions in a ring", with_functions(*(function(f"F{i}", f"F{(i + 1) % 3}") for i in range(3)))
    yield (
        "500 functions in a row",
        with_functions(*(function(f"F{i}", f"F{i + 1}") for i in range(500)), function("F500", "Relu", "")),
    )
    yield "function twice", with_functions(function("F0", "Relu", ""), function("F0", "Neg", ""))
    yield "function without imports", with_functions(function("F0", "Relu", "", opsets=False))
    yield "function of unknown operator", with_functions(function("F0", "Strange", ""))
    yield "function that is not there", with_functions(function("F0", "Relu", ""), call="F1")
    leaking = function("F0", "Relu", "")
    leaking.node[0].input[0] = "x"
    yield "function that reads the graph", with_functions(leaking)


def nested(levels: int) -> onnx.ModelProto:
    """Loops in Loops."""
    info = h.make_tensor_value_info
    body = [h.make_node("Relu", ["x"], ["y"])]
    for level in range(levels):
        inside = h.make_graph(
            [h.make_node("Identity", [f"c{level}"], [f"d{level}"]), *body, h.make_node("Neg", ["y"], [f"t{level}"])],
            f"b{level}",
            [info(f"i{level}", T.INT64, []), info(f"c{level}", T.BOOL, []), info(f"s{level}", T.FLOAT, ["n", 3])],
            [info(f"d{level}", T.BOOL, []), info(f"t{level}", T.FLOAT, ["n", 3])],
        )
        body = [h.make_node("Loop", ["trips", "", "x"], ["y"], body=inside)]
    return simple(body, trips=nh.from_array(np.array(1, np.int64), "trips"))


def branches(inner: list[onnx.NodeProto], result: str = "b") -> onnx.ModelProto:
    out = h.make_tensor_value_info(result, T.FLOAT, ["n", 3])
    graphs = {name: h.make_graph(inner, name, [], [out]) for name in ("then_branch", "else_branch")}
    return simple([h.make_node("If", ["c"], ["y"], **graphs)], c=nh.from_array(np.array(True), "c"))


def subgraphs() -> Iterator[tuple[str, onnx.ModelProto]]:
    yield "branch that reads its own If", branches([h.make_node("Relu", ["y"], ["b"])])
    yield "branch that reads itself", branches([h.make_node("Relu", ["b"], ["b"])])
    yield "branch without its result", branches([h.make_node("Relu", ["x"], ["other"])])
    yield "empty branch", branches([])
    yield "If without branches", simple([h.make_node("If", ["c"], ["y"])], c=nh.from_array(np.array(True), "c"))
    typed = simple([h.make_node("Relu", ["x"], ["y"], alpha=1)])
    typed.graph.node[0].attribute[0].type = onnx.AttributeProto.GRAPH
    yield "attribute of another type", typed
    typed = simple([h.make_node("Softmax", ["x"], ["y"], axis=1.5)])
    yield "axis that is a float", typed
    typed = simple([h.make_node("Softmax", ["x"], ["y"], axis=1)])
    typed.graph.node[0].attribute[0].ref_attr_name = "nowhere"
    yield "attribute of no function", typed
    for levels in (3, 12):
        yield f"{levels} Loops in each other", nested(levels)


def sparse(values: list[float], indices: Any, dims: list[int]) -> onnx.ModelProto:
    model = simple([h.make_node("Add", ["x", "w"], ["y"])])
    tensor = onnx.SparseTensorProto(dims=dims)
    tensor.values.CopyFrom(nh.from_array(np.array(values, np.float32), "w"))
    tensor.indices.CopyFrom(nh.from_array(np.array(indices, np.int64), "w_indices"))
    model.graph.sparse_initializer.append(tensor)
    return model


def tensors() -> Iterator[tuple[str, onnx.ModelProto]]:
    yield "sparse weights", sparse([1, 2], [0, 2], [3])
    yield "sparse beyond its end", sparse([1, 2], [0, 7], [3])
    yield "sparse before its start", sparse([1, 2], [-5, 1], [3])
    yield "sparse with too few indices", sparse([1, 2], [0], [3])
    yield "sparse bomb", sparse([1], [0], [1 << 40])
    yield "sparse of huge dims", sparse([1], [[0, 0]], [1 << 40, 1 << 40])
    words = T(name="w", data_type=T.STRING, dims=[3], string_data=[b"a", b"\xff\x1b[2J", b"c" * 100_000])
    yield "strings for numbers", simple([h.make_node("Add", ["x", "w"], ["y"])], w=words)
    yield "strings that nobody reads", simple(w=words)
    for name, dims, kind, raw in (
        ("raw data too short", [3], T.FLOAT, b"12"),
        ("raw data too long", [3], T.FLOAT, bytes(4000)),
        ("weights of negative size", [-3], T.FLOAT, b""),
        ("weights of 2^60", [1 << 60], T.FLOAT, b""),
        ("weights whose size overflows", [1 << 32, 1 << 32], T.FLOAT, b""),
        ("weights of no type", [3], T.UNDEFINED, bytes(12)),
        ("weights of type 999", [3], 999, bytes(12)),
        ("weights of 5 int4", [5], T.INT4, bytes(3)),
        ("weights of complex", [3], T.COMPLEX64, bytes(24)),
        ("weights of 8 bits", [3], T.FLOAT8E4M3FN, bytes(3)),
    ):
        yield (
            name,
            simple([h.make_node("Add", ["x", "w"], ["y"])], w=T(name="w", data_type=kind, dims=dims, raw_data=raw)),
        )
    both = nh.from_array(np.ones(3, np.float32), "w")
    both.float_data.extend([1, 2])
    yield "raw and other data", simple([h.make_node("Add", ["x", "w"], ["y"])], w=both)


def typed(**types: onnx.TypeProto) -> onnx.ModelProto:
    model = simple([h.make_node("Identity", ["x"], ["y"])])
    for value in (*model.graph.input, *model.graph.output):
        value.type.CopyFrom(types.get(value.name, onnx.TypeProto()))
    return model


def kinds() -> Iterator[tuple[str, onnx.ModelProto]]:
    plain = h.make_tensor_type_proto(T.FLOAT, ["n", 3])
    for name, kind in (
        ("sequence", h.make_sequence_type_proto(plain)),
        ("optional", h.make_optional_type_proto(plain)),
        ("optional sequence", h.make_optional_type_proto(h.make_sequence_type_proto(plain))),
        ("map", h.make_map_type_proto(T.INT64, plain)),
        ("sparse tensor", h.make_sparse_tensor_type_proto(T.FLOAT, [3])),
        ("string", h.make_tensor_type_proto(T.STRING, ["n"])),
        ("type 999", h.make_tensor_type_proto(999, [3])),
        ("no type", onnx.TypeProto()),
    ):
        yield f"values of {name}", typed(x=kind, y=kind)
    yield "an input of sequence, an output of tensor", typed(x=h.make_sequence_type_proto(plain), y=plain)


def headers() -> Iterator[tuple[str, onnx.ModelProto]]:
    for version in (0, -1, 1, 3, 99, 2**62):
        model = simple()
        model.ir_version = version
        yield f"IR version {version}", model
    model = simple()
    model.ClearField("opset_import")
    yield "no imports", model
    model = simple([h.make_node("Relu", ["x"], ["y"], domain="nowhere")])
    yield "domain that is not imported", model
    model = simple()
    model.opset_import.extend([h.make_opsetid("", 11), h.make_opsetid("ai.onnx", 22)])
    yield "three imports of one domain", model
    model = simple()
    training = model.training_info.add()
    training.algorithm.CopyFrom(model.graph)
    training.initialization.CopyFrom(swapped().graph)
    training.update_binding.add(key="w", value="nowhere")
    yield "training info", model
    model = simple()
    for i in range(1000):
        model.metadata_props.add(key="k", value=f"\x1b[2J{i}")
    model.doc_string = "\x07" * 1_000_000
    yield "metadata", model
    model = simple()
    model.ClearField("graph")
    yield "no graph", model
    model = simple([h.make_node("Split", ["x"], ["", "y"], num_outputs=2), h.make_node("Relu", [""], [""])])
    yield "values without names", model


def models() -> Iterator[tuple[str, onnx.ModelProto]]:
    yield "good", simple()
    for more in (functions, subgraphs, tensors, kinds, headers):
        yield from more()
    yield "no nodes", _without("node")
    yield "no outputs", _without("output")
    yield "no inputs", _without("input")
    yield "cycle", swapped()
    yield "node that reads itself", simple([h.make_node("Add", ["x", "y"], ["y"])])
    yield "undefined value", simple([h.make_node("Add", ["x", "nowhere"], ["y"])])
    yield "no operator name", simple([h.make_node("", ["x"], ["y"])])
    yield "unknown operator", simple([h.make_node("Fortify", ["x"], ["y"])])
    for domain in ("com.nobody", "ai.onnx.ml", "com.microsoft", "opsmith", "\x1b[31m"):
        yield f"domain {domain!r}", imported(domain, 1)
    for version in (0, -1, 1, 999, 2**62):
        yield f"opset {version}", simple(opset=version)
    for field in ("input", "output", "node"):
        yield f"{field} twice", twice(field)
    for name in (
        "\x1b[2J\x1b]0;owned\x07",
        "a\nb\r\nc",
        "../../etc/passwd",
        "x" * 100_000,
        "a b'\"`$(id);",
        "\u202etxt",
    ):
        yield f"name {name[:12]!r}", renamed(name)
    for dims in ([2**62, 3], [0, 0], [-7, 3], [1] * 300, [2**31, 2**31], ["n" * 5000, 3], ["n*1e9", 3], ["\x07", 3]):
        yield f"dims {str(dims)[:20]}", sized(dims)
    for levels in (5, 25):  # protobuf itself refuses 33
        yield f"{levels} Ifs in each other", deep(levels)
    yield "3000 nodes in a row", chain(3000)
    yield from bombs()
    for location in (
        "up/secret",
        "../secret",
        "/etc/passwd",
        "a/../../secret",
        "link",
        "fifo",
        "folder",
        "missing",
        "",
        "\x00",
        "C:\\x",
        "short",
        "self.onnx",
    ):
        yield f"data at {location!r}", external(location)
    for entries in (
        {"offset": "-1"},
        {"offset": "99999999999999999999"},
        {"length": "4"},
        {"length": "x"},
        {"offset": "1e3"},
    ):
        yield f"data with {entries}", external("weights", **entries)


def _without(field: str) -> onnx.ModelProto:
    model = simple()
    model.graph.ClearField(field)
    return model


def write(folder: Path) -> list[Path]:
    """Every hostile file, with what its external data points at."""
    rng = random.Random(0)
    (folder / "weights").write_bytes(np.ones(3, np.float32).tobytes())
    (folder / "short").write_bytes(b"12")
    (folder / "folder").mkdir()
    (folder.parent / "secret").write_bytes(bytes(12))
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "up").symlink_to("..")
    os.mkfifo(folder / "fifo")
    os.mkfifo(folder / "fifo.onnx")
    (folder / "folder.onnx").mkdir()
    (folder / "loop.onnx").symlink_to("loop.onnx")
    files = [folder / name for name in ("fifo.onnx", "folder.onnx", "loop.onnx", "absent.onnx")]
    made = [(name, model.SerializeToString()) for name, model in models()]
    whole = made[0][1]
    made += [(f"cut to {n}", whole[:n]) for n in (0, 1, 7, len(whole) // 2, len(whole) - 1)]
    made += [(f"noise {n}", rng.randbytes(n)) for n in (1, 100, 10_000, 3_000_000)]
    made += [
        ("zeros", bytes(1 << 20)),
        ("text", b"#!/bin/sh\necho hello\n"),
        ("zip", b"PK\x03\x04" + rng.randbytes(500)),
    ]
    made += [("length of 2^31", whole + b"\x3a\xff\xff\xff\xff\x07"), ("groups", b"\x0b" * 5000)]
    for i, (name, data) in enumerate(made):
        files.append(folder / f"{i:03} {re.sub('[^a-zA-Z0-9]+', '_', name)[:40]}.onnx")
        files[-1].write_bytes(data)
    (folder / "self.onnx").write_bytes(whole)
    return files


# --- running ---


@dataclasses.dataclass
class Ended:
    status: int
    seconds: float
    memory: int
    printed: bytes
    error: bytes


def run(arguments: list[str], room: Path) -> Ended:
    """A command in a child, with what it printed and used."""
    outs = [room / "stdout", room / "stderr"]
    child = os.fork()
    if child == 0:
        os.setsid()
        for number, out in enumerate(outs, 1):
            os.dup2(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
        signal.alarm(600)
        code = 0
        try:
            cli(arguments)
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException as error:
            os.write(2, f"Traceback: {type(error).__name__}: {error}".encode())
            code = 99
        os._exit(code)
    _, status, used = os.wait4(child, 0)
    seconds = used.ru_utime + used.ru_stime
    return Ended(os.waitstatus_to_exitcode(status), seconds, used.ru_maxrss << 10, *(o.read_bytes() for o in outs))


def problem(end: Ended) -> str:
    """What is wrong with how a command ended; empty if nothing is."""
    lines = end.error.decode(errors="replace").splitlines()
    checks: list[tuple[bool, str]] = [
        (end.status not in (0, 1, 2), f"exit code {end.status}: {lines[-1:]}"),
        (b"Traceback" in end.error or b"please report" in end.error, f"a traceback: {lines[-1:]}"),
        (end.status == 2 and len(lines) != 1, f"{len(lines)} lines: {lines[:3]}"),
        (end.seconds > SECONDS, f"{end.seconds:.0f} s"),
        (end.memory > BYTES, f"{end.memory / 2**30:.1f} GiB"),
        (bool(CONTROL.search(end.printed + end.error)), "control characters"),
    ]
    return "; ".join(said for wrong, said in checks if wrong)


def attack(only: str = "", verbs: Collection[str] = tuple(VERBS)) -> tuple[int, list[str]]:
    """How many commands ran, and what was wrong with them."""
    count, problems = 0, []
    with tempfile.TemporaryDirectory(prefix="opsmith-hostile-") as room:
        folder = Path(room) / "models"
        folder.mkdir()
        files = [f for f in write(folder) if only in f.name]
        good, dest = folder / "self.onnx", Path(room) / "dest"
        places = {"good": good, "compiled": Path(room) / "compiled", "rows": Path(room) / "rows.jsonl"}
        places["rows"].write_text('{"x": [1, 2, 3]}\n' * 5)
        if "swap" in verbs:
            run(["compile", str(good), str(places["compiled"]), "--regions", "all"], Path(room))
        for file in files:
            for verb, arguments in ((v, VERBS[v]) for v in verbs):
                end = run([a.format(model=file, dest=dest / verb, **places) for a in arguments], Path(room))
                count += 1
                if count % 50 == 0:
                    print(f"{count} commands, {len(problems)} problems", flush=True)
                if why := problem(end):
                    problems.append(f"{verb} {file.name}: {why}")
                    print(problems[-1][:400], flush=True)
                if end.status == 2 and dest.exists() and any(p.is_file() for p in dest.rglob("*")):
                    problems.append(f"{verb} {file.name}: half-written")
                    print(problems[-1][:400], flush=True)
                shutil.rmtree(dest, ignore_errors=True)
    return count, problems


if __name__ == "__main__":
    chosen = sys.argv[2].split(",") if len(sys.argv) > 2 else tuple(VERBS)
    ran, found = attack(*sys.argv[1:2], verbs=chosen)
    print(f"{ran} commands, {len(found)} problems")
    sys.exit(1 if found else 0)
