"""Damaged, half-written and hostile files: one line that says so, never a crash, and the next run works."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

import opsmith
from opsmith import model_checks, store
from opsmith.cli import console, main
from opsmith.errors import OpsmithError


def model(path: Path, op: str = "Exp", name: str = "x") -> Path:
    values = [h.make_tensor_value_info(n, 1, ["n", 3]) for n in (name, "y")]
    graph = h.make_graph([h.make_node(op, [name], ["y"])], "g", values[:1], values[1:])
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=8), path)
    return path


def cli(*args: object) -> int:
    try:
        main([str(a) for a in args])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


# --- libraries and objects ---


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compiled")
    opsmith.compile(model(folder / "m.onnx"), folder / "c", regions="all")
    return folder / "c"


@pytest.mark.parametrize("part", [0, 0.1, 0.5, 0.9])
def test_a_library_that_was_cut_is_refused_before_it_is_loaded(compiled: Path, tmp_path: Path, part: float) -> None:
    shutil.copytree(compiled, tmp_path / "c")
    (library,) = (tmp_path / "c").glob("lib*.so")
    whole = library.read_bytes()
    library.write_bytes(whole[: int(len(whole) * part)])
    with pytest.raises(OpsmithError, match="damaged"):
        opsmith.load(tmp_path / "c")


def test_a_library_that_was_changed_is_refused(compiled: Path, tmp_path: Path) -> None:
    shutil.copytree(compiled, tmp_path / "c")
    (library,) = (tmp_path / "c").glob("lib*.so")
    content = bytearray(library.read_bytes())
    content[len(content) // 2] ^= 1
    library.write_bytes(content)
    with pytest.raises(OpsmithError, match="damaged"):
        opsmith.load(tmp_path / "c")


@pytest.mark.parametrize("damage", ["cut", "empty", "no sum"])
def test_a_damaged_object_is_built_again(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPSMITH_CACHE", str(tmp_path / "cache"))
    source = model(tmp_path / "m.onnx")
    opsmith.compile(source, tmp_path / "a", regions="all", verify=False)
    for file in (tmp_path / "cache" / "objects").glob("*.sha256" if damage == "no sum" else "*.o"):
        file.write_bytes(file.read_bytes()[: len(file.read_bytes()) // 2] if damage == "cut" else b"")
    opsmith.compile(source, tmp_path / "b", regions="all", verify=False)
    x = np.ones((2, 3), np.float32)
    assert np.allclose(opsmith.load(tmp_path / "b").run(None, {"x": x})[0], np.exp(x))


def test_objects_of_killed_processes_are_swept(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for process in (dead.pid, os.getpid()):
        (tmp_path / f"abc.{process}.o").touch()
    (tmp_path / "abc.o").touch()
    store.sweep_files(tmp_path, "*.*.o")
    assert {p.name for p in tmp_path.iterdir()} == {"abc.o", f"abc.{os.getpid()}.o"}


# --- variants ---


def test_leftovers_of_killed_processes_are_swept_and_what_they_moved_comes_back(tmp_path: Path) -> None:
    code = """if True:
        import os, sys
        from pathlib import Path
        from opsmith import store
        rename = Path.rename
        def stop(self, target):
            if str(self).endswith(".tmp"):
                os.kill(os.getpid(), 9)
            return rename(self, target)
        Path.rename = stop
        with store.new_variant(sys.argv[1], verb="test") as draft:
            draft.path.write_bytes(b"new")
    """
    folder = tmp_path / "model" / "variant"
    folder.mkdir(parents=True)
    (folder / "model_variant.onnx").write_bytes(b"old")
    (folder / "opsmith.json").write_text("{}")
    assert subprocess.run([sys.executable, "-c", code, str(folder)], check=False).returncode == -9
    assert not folder.exists()  # it was moved away, and the process died before the new one came
    assert len(list(folder.parent.iterdir())) == 2
    with store.new_variant(tmp_path / "model" / "other", verb="test") as draft:
        draft.path.write_bytes(b"x")
    assert sorted(p.name for p in folder.parent.iterdir()) == ["other", "variant"]
    assert (folder / "model_variant.onnx").read_bytes() == b"old"


@pytest.mark.parametrize("verb", [["optimize"], ["compile"], ["quantize"]])
@pytest.mark.parametrize("dest", ["m/v/m_v.onnx", "m/v"])
def test_a_result_never_replaces_its_source(
    verb: list[str], dest: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
    values = [h.make_tensor_value_info(n, 1, ["n", 256]) for n in "xy"]
    graph = h.make_graph(
        [h.make_node("MatMul", ["x", "w"], ["y"])], "g", values[:1], values[1:], [nh.from_array(weights, "w")]
    )
    path = tmp_path / "m" / "v" / "m_v.onnx"
    path.parent.mkdir(parents=True)
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=8), path)
    before = path.read_bytes()
    assert cli(*verb, path, tmp_path / dest) == 2
    assert "the model that is read" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_what_was_made_from_another_model_is_replaced_only_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = model(tmp_path / "one.onnx"), model(tmp_path / "two.onnx", "Neg")
    dest, own = tmp_path / "m" / "v", tmp_path / "own.onnx"
    shutil.copy(one, own)
    assert cli("optimize", one, dest, "--quick") == 0
    assert cli("compile", one, dest, "--regions", "all") == 0  # the same origin
    kept = {p: p.read_bytes() for p in (*dest.glob("*.onnx"), own)}
    assert cli("optimize", two, dest, "--quick") == 2
    assert "was made from one.onnx" in capsys.readouterr().err
    assert cli("optimize", two, own, "--quick") == 2
    assert "was not made by opsmith" in capsys.readouterr().err
    assert all(p.read_bytes() == content for p, content in kept.items())
    for place in (dest, own):
        assert cli("optimize", two, place, "--quick", "--overwrite") == 0
        assert np.array_equal(opsmith.load(place).run(None, {"x": np.ones((1, 3), np.float32)})[0], -np.ones((1, 3)))


# --- malformed models ---


def malformed(node: onnx.NodeProto, shape: list[int], constants: dict[str, Any] | None = None) -> onnx.ModelProto:
    tensors = [nh.from_array(array, name) for name, array in (constants or {}).items()]
    out = h.make_tensor_value_info("y", 1, None)
    graph = h.make_graph([node], "g", [h.make_tensor_value_info("x", 1, shape)], [out], tensors)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=8)


IMAGE = [1, 3, 4, 4]
WEIGHTS = {"w": np.ones((4, 3, 3, 3), np.float32)}
MALFORMED = {
    "strides of a convolution": malformed(h.make_node("Conv", ["x", "w"], ["y"], strides=[0, 0]), IMAGE, WEIGHTS),
    "permutation": malformed(h.make_node("Transpose", ["x"], ["y"], perm=[0, 5]), [2, 3]),
    "scales": malformed(
        h.make_node("Resize", ["x", "", "s"], ["y"], mode="linear"), IMAGE, {"s": np.array([1, 1, np.nan, 1], "f")}
    ),
    "sizes": malformed(h.make_node("Relu", ["x"], ["y"]), [2**40, 2**40]),
    "rank": malformed(h.make_node("Relu", ["x"], ["y"]), [1] * 1000),
    "strides of a pool": malformed(h.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], strides=[0, 1]), IMAGE),
    "pads": malformed(h.make_node("Pad", ["x", "p"], ["y"]), [2, 3], {"p": np.array([0, 0, 2**62, 2**62])}),
}


# What ONNX Runtime refuses to load, or what no input can be made for, is refused. It loads these two: the one has nothing that can
# be compiled, so it stays as it is; the other fails only when it runs, which every verb says.
TOLD = {
    ("rank", "compile"): (0, "the model stays as it is"),
    ("pads", "compile"): (0, "not verified, no inputs were found"),
    ("pads", "verify"): (1, "not checked: A runs on none"),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_a_malformed_model_is_one_line(what: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    proto = MALFORMED[what]
    proto.graph.output[0].type.tensor_type.shape.SetInParent()
    onnx.save(proto, tmp_path / "m.onnx")
    for verb, *options in (["optimize", "--level", "1"], ["compile", "--regions", "all"], ["verify"]):
        dest = tmp_path / "m.onnx" if verb == "verify" else tmp_path / verb
        code = cli(verb, tmp_path / "m.onnx", dest, *options)
        printed, error = capfd.readouterr()
        wanted, told = TOLD.get((what, verb), (2, ""))
        assert code == wanted, (verb, error)
        assert told in " ".join(printed.split()), printed
        if code == 2:
            assert error.startswith("opsmith: error: ") and error.count("\n") == 1, error
            assert "please report it" not in error, error  # which an exception of ours says
            assert not (tmp_path / verb).exists()
        else:
            assert not error, error


def test_a_tensor_that_is_too_short_is_refused(tmp_path: Path) -> None:
    for raw in (True, False):
        proto = malformed(h.make_node("Add", ["x", "w"], ["y"]), [4])
        values = np.ones(4, np.float32)
        proto.graph.initializer.append(h.make_tensor("w", 1, [4], values.tobytes() if raw else values, raw=raw))
        onnx.save(proto, tmp_path / "m.onnx")
        model_checks.check_external_data(tmp_path / "m.onnx")
        proto.graph.initializer[0].dims[0] = 53
        onnx.save(proto, tmp_path / "m.onnx")
        with pytest.raises(OpsmithError, match="the file has"):
            store.open_model(tmp_path / "m.onnx")


@pytest.mark.parametrize("kind", [T.INT32, T.FLOAT16, T.UINT8, T.UINT64, T.INT4, T.STRING, T.COMPLEX64])
def test_numbers_in_any_field_are_as_many_as_the_dims_say(kind: int, tmp_path: Path) -> None:
    values = ["a", "b", "c"] if kind == T.STRING else [1, 2, 3]
    proto = malformed(h.make_node("Identity", ["w"], ["y"]), [4])
    proto.graph.initializer.append(h.make_tensor("w", kind, [3], values))
    onnx.save(proto, tmp_path / "m.onnx")
    model_checks.check_external_data(tmp_path / "m.onnx")
    proto.graph.initializer[0].dims[0] = 5
    onnx.save(proto, tmp_path / "m.onnx")
    with pytest.raises(OpsmithError, match="the file has"):
        store.open_model(tmp_path / "m.onnx")


def test_numbers_in_the_field_of_another_type_are_refused(tmp_path: Path) -> None:
    proto = malformed(h.make_node("Identity", ["w"], ["y"]), [4])
    proto.graph.initializer.append(onnx.TensorProto(name="w", data_type=T.FLOAT16, dims=[2], uint64_data=[1, 2]))
    onnx.save(proto, tmp_path / "m.onnx")
    with pytest.raises(OpsmithError, match="has 0 of its type"):
        store.open_model(tmp_path / "m.onnx")


def test_text_that_is_not_utf8_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    proto = malformed(h.make_node("Pad", ["x", "p"], ["y"], mode=b"cons\xb4ant"), [2, 3], {"p": np.zeros(4, np.int64)})
    onnx.save(proto, tmp_path / "m.onnx")
    assert cli("inspect", tmp_path / "m.onnx") == 2
    assert "attribute 'mode' of a Pad is not UTF-8" in capfd.readouterr().err


def test_a_dim_of_minus_one_is_unknown(tmp_path: Path) -> None:
    proto = onnx.load(model(tmp_path / "m.onnx"))
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    onnx.save(proto, tmp_path / "m.onnx")
    assert cli("optimize", tmp_path / "m.onnx", tmp_path / "o") == 0
    x = np.ones((5, 3), np.float32)
    assert np.allclose(opsmith.load(tmp_path / "o").run(None, {"x": x})[0], np.exp(x))


# --- the terminal ---


def test_control_characters_of_names_never_reach_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = model(tmp_path / "m.onnx", name="x\x1b[31m\x07\x9b")
    assert cli("inspect", path) == 0
    assert cli("inspect", tmp_path / "no\x1b[2Jsuch.onnx") == 2
    printed = "".join(capfd.readouterr())
    assert "x\\x1b[31m" in printed and "no\\x1b[2Jsuch" in printed
    assert not any(c in printed for c in "\x1b\x07\x9b")


def test_libraries_do_not_speak_beside_a_result(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """onnx-ir warned of the result of an If, which had a shape and no type."""
    proto = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 18]>
        g (float[n, 3] x) => (float[n, 3] y) <int64 three = {3}> {
          size = Size(x)
          large = Greater(size, three)
          r = If (large) <then_branch = a () => (float[n, 3] b) { b = Neg(x) },
                          else_branch = b () => (float[n, 3] c) { c = Abs(x) }>
          y = Tanh(r) }""")
    for branch in proto.graph.node[2].attribute:
        branch.g.output[0].type.tensor_type.ClearField("shape")
    onnx.save(proto, tmp_path / "m.onnx")
    assert cli("optimize", tmp_path / "m.onnx", tmp_path / "o.onnx", "--quiet") == 0
    assert capfd.readouterr().err == ""
    rewritten = onnx.load(tmp_path / "o.onnx").graph
    results = [v for v in rewritten.value_info if v.name in {n.output[0] for n in rewritten.node if n.op_type == "If"}]
    assert [v.type.tensor_type.elem_type for v in results] == [T.FLOAT]


def test_line_ends_are_kept() -> None:
    assert console.printable("a\n\tb\x00\u202e") == "a\n\tb\\x00\\u202e"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("after", [0.15, 0.5])
def test_a_signal_during_imports_is_one_line(number: signal.Signals, after: float, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "opsmith", "doctor"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(after)
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    if process.returncode == 128 + number:
        assert error.startswith("opsmith: error: interrupted") and error.count("\n") == 1, error
    else:  # before Python came to our first line
        assert process.returncode == -number or "opsmith/" not in error


def test_strings_among_the_weights_are_no_mistake(tmp_path: Path) -> None:
    path = model(tmp_path / "m.onnx")
    proto = onnx.load(path)
    proto.graph.initializer.append(T(name="words", data_type=T.STRING, dims=[2], string_data=[b"a", b"\xff"]))
    onnx.save(proto, path)
    assert cli("inspect", path) == 0
    assert cli("profile", path) == 0


# --- sparse weights ---


def sparse_model(path: Path, dims: list[int], places: Any) -> Path:
    values = [h.make_tensor_value_info(n, 1, ["n", *dims]) for n in ("x", "y")]
    weight = onnx.SparseTensorProto(dims=dims)
    weight.values.CopyFrom(nh.from_array(np.array([1, 2], np.float32), "w"))
    weight.indices.CopyFrom(nh.from_array(np.array(places, np.int64), "places"))
    graph = h.make_graph(
        [h.make_node("Add", ["x", "w"], ["y"])], "g", values[:1], values[1:], sparse_initializer=[weight]
    )
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9), path)
    return path


@pytest.mark.parametrize(("dims", "places"), [([4], [0, 2]), ([2, 3], [1, 5]), ([2, 3], [[0, 1], [1, 2]])])
def test_sparse_weights_are_written_out(dims: list[int], places: Any, tmp_path: Path) -> None:
    path = sparse_model(tmp_path / "m.onnx", dims, places)
    opsmith.optimize(path, tmp_path / "o", level=1)
    weight = np.zeros(dims, np.float32)
    weight.flat[np.ravel_multi_index(np.transpose(places), dims) if np.ndim(places) == 2 else places] = [1, 2]
    x = np.ones((2, *dims), np.float32)
    for model in (path, onnx.load(path), tmp_path / "o"):
        assert np.array_equal(opsmith.load(model).run(None, {"x": x})[0], x + weight)


def test_a_sparse_weight_of_any_size_is_not_written_out(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = sparse_model(tmp_path / "m.onnx", [1 << 40], [0, 2])
    assert cli("optimize", path, tmp_path / "o") == 2
    error = capfd.readouterr().err
    assert "sparse weight 'w' of 1099511627776 is too large" in error and error.count("\n") == 1


UNNAMED = {
    "Split": 'y, "" = Split <axis = -1, num_outputs = 2> (x)',
    "If": """c = Constant <value = bool {1}> ()
        y, "" = If (c) <then_branch = t () => (float[n, 3] a, float[n, 3] b) { a = Neg(x) b = Abs(x) },
                        else_branch = e () => (float[n, 3] a2, float[n, 3] b2) { a2 = Abs(x) b2 = Neg(x) }>""",
    "BatchNormalization": 'y, "", "" = BatchNormalization <training_mode = 1> (x, w, w, w, w)',
}


def test_a_constant_with_two_values_is_refused(tmp_path: Path) -> None:
    text = """<ir_version: 9, opset_import: ["" : 18]> g (float[n] x) => (float[n] y) {
        c = Constant <value_float = 1.0, value_int = 3> ()  y = Add(x, c) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    with pytest.raises(OpsmithError, match="a Constant with 2 values"):
        opsmith.optimize(tmp_path / "m.onnx", tmp_path / "o")


def test_a_convolution_in_no_groups_is_refused_before_it_ends_the_process(tmp_path: Path) -> None:
    text = """<ir_version: 9, opset_import: ["" : 18]> g (float[1,3,8,8] x, float[3,4,3,3] w) => (float[1,4,10,10] y) {
        y = ConvTranspose <group = 0> (x, w) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    with pytest.raises(OpsmithError, match="a ConvTranspose whose group is 0"):
        opsmith.load(tmp_path / "m.onnx")


@pytest.mark.parametrize("what", UNNAMED)
def test_outputs_without_names_are_refused_where_they_end_the_process(what: str, tmp_path: Path) -> None:
    head = '<ir_version: 9, opset_import: ["" : 18]> g (float[n, 3] x) => (float[n, k] y) <float[3] w = {1, 1, 1}> '
    onnx.save(onnx.parser.parse_model(f"{head} {{ {UNNAMED[what]} }}"), tmp_path / "m.onnx")
    with pytest.raises(OpsmithError, match=f"a {what} has an output without a name"):
        opsmith.load(tmp_path / "m.onnx")


def test_an_attribute_of_a_function_outside_of_any_is_refused(tmp_path: Path) -> None:
    path = model(tmp_path / "m.onnx", "Softmax")
    proto = onnx.load(path)
    proto.graph.node[0].attribute.add(name="axis", type=onnx.AttributeProto.INT, ref_attr_name="nowhere")
    onnx.save(proto, path)
    with pytest.raises(OpsmithError, match="asks for the attribute of a function"):
        opsmith.optimize(path, tmp_path / "o", level=1)
