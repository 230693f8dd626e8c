"""What a user relies on: the compiled model is a drop-in, refuses what it must, and fails with a clear line."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import re
import subprocess
import sys

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import onnxruntime as ort
import pytest
from small import MLP, graph

import opsmith
from opsmith import store
from opsmith.compiler.lower import plan_winograd
from opsmith.errors import OpsmithError
from opsmith.measure.bench import expand


@pytest.fixture(scope="module")
def mlp(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mlp")
    onnx.save(MLP, folder / "mlp.onnx")
    result = opsmith.compile(folder / "mlp.onnx", folder / "models" / "compiled", regions="whole")
    return folder / "mlp.onnx", result


def run(model, feed):
    return opsmith.load(model).run(None, feed)


def test_the_whole_graph_is_one_op_with_the_same_signature(mlp):
    source, result = mlp
    model = onnx.load(result.variant.path, load_external_data=False)
    assert [n.op_type for n in model.graph.node] == ["region0"]
    before, after = ort.InferenceSession(source), opsmith.load(result.variant)
    for side in ("get_inputs", "get_outputs"):
        old, new = getattr(before, side)(), getattr(after, side)()
        assert [(v.name, v.type, v.shape) for v in new] == [(v.name, v.type, v.shape) for v in old]


@pytest.mark.parametrize("batch, seq", [(1, 1), (2, 7), (5, 64), (0, 3), (2, 0)])
def test_one_library_serves_every_shape(mlp, batch, seq):
    source, result = mlp
    x = np.random.default_rng(0).normal(size=(batch, seq, 8)).astype(np.float32)
    np.testing.assert_allclose(run(result.variant, {"x": x})[0], run(source, {"x": x})[0], rtol=1e-5, atol=1e-6)


def test_concurrent_runs_of_one_session_agree(mlp):
    source, result = mlp
    session = opsmith.load(result.variant)
    feeds = [np.random.default_rng(i).normal(size=(i % 4 + 1, 33, 8)).astype(np.float32) for i in range(24)]
    wanted = [run(source, {"x": x})[0] for x in feeds]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for got, want in zip(pool.map(lambda x: session.run(None, {"x": x})[0], feeds), wanted):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_two_compiled_models_live_in_one_session(mlp, tmp_path):
    _, first = mlp
    other = graph("g (float[n] x) => (float[n] y) { a = Exp(x)  y = Add(a, x) }")
    second = opsmith.compile(other, tmp_path / "m" / "compiled", regions="whole")
    options = ort.SessionOptions()
    for result in (first, second):
        record = result.variant.record["compiled"]
        options.register_custom_ops_library(str(result.variant.folder / record["library"]))
    x = np.linspace(-1, 1, 9, dtype=np.float32)
    got = ort.InferenceSession(second.variant.path, options).run(None, {"x": x})[0]
    np.testing.assert_allclose(got, np.exp(x) + x, rtol=1e-6)
    assert ort.InferenceSession(first.variant.path, options).get_inputs()[0].name == "x"


def test_it_runs_where_opsmith_is_not_installed(mlp):
    _, result = mlp
    library = result.variant.folder / result.variant.record["compiled"]["library"]
    script = (
        "import sys; sys.modules['opsmith'] = None\n"
        "import numpy as np, onnxruntime as ort\n"
        "options = ort.SessionOptions()\n"
        f"options.register_custom_ops_library({str(library)!r})\n"
        f"session = ort.InferenceSession({str(result.variant.path)!r}, options)\n"
        "print(session.run(None, {'x': np.ones((1, 2, 8), np.float32)})[0].shape)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "(1, 2, 4)"


SESSIONS = """
import sys
import numpy as np
import opsmith
from pathlib import Path

def own():  # kB
    return int(Path("/proc/self/status").read_text().partition("RssAnon:")[2].split()[0])

x, before = np.ones(8 << 20, np.float32), 0
for _ in range(6):
    session = opsmith.load(sys.argv[1])
    session.run(None, {"x": x})
    del session
    before = before or own()
print(own() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted in /proc")
def test_a_session_that_is_closed_gives_its_memory_back(tmp_path):
    text = '<ir_version: 9, opset_import: ["" : 18]> g (float[n] x) => (float[n] y) { a = Exp (x)  b = CumSum (a, zero)  y = Neg (b) }'
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.int64(0), "zero"))
    opsmith.compile(model, tmp_path / "m.onnx", regions="whole", verify=False)
    done = subprocess.run(
        [sys.executable, "-c", SESSIONS, tmp_path / "m.onnx"], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 32 << 10  # kB: five sessions had a result of 32 MB each


def test_a_changed_weights_file_is_refused(mlp, tmp_path):
    _, result = mlp
    copy = tmp_path / "m" / "copy"
    copy.mkdir(parents=True)
    for file in result.variant.folder.iterdir():
        if file.is_file():
            (copy / file.name).write_bytes(file.read_bytes())
    (data,) = copy.glob("*.data")
    content = bytearray(data.read_bytes())
    content[0] ^= 1
    data.write_bytes(content)
    with pytest.raises(OpsmithError, match="changed after compilation"):
        opsmith.load(copy)


def test_a_library_for_another_cpu_is_refused(mlp, tmp_path):
    _, result = mlp
    copy = tmp_path / "m" / "copy"
    copy.mkdir(parents=True)
    for file in result.variant.folder.iterdir():
        if file.is_file():
            (copy / file.name).write_bytes(file.read_bytes())
    record = json.loads((copy / "opsmith.json").read_text())
    record["compiled"]["cpu_features"].append("warp9")
    (copy / "opsmith.json").write_text(json.dumps(record))
    with pytest.raises(OpsmithError, match="warp9, which this CPU lacks"):
        opsmith.load(copy)


def test_an_error_inside_a_region_names_it_and_the_node(tmp_path):
    model = graph(
        "g (float[rows, 4] table, int64[n] at) => (float[n, 4] y) { picked = Gather(table, at)  y = Neg(picked) }"
    )
    result = opsmith.compile(model, tmp_path / "m" / "c", regions="whole")
    session = opsmith.load(result.variant)
    table = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(session.run(None, {"table": table, "at": np.array([2, -3])})[0], -table[[2, 0]])
    with pytest.raises(Exception, match=r"region0.*Gather.*index is out of range"):
        session.run(None, {"table": table, "at": np.array([0, 3])})


def test_inconsistent_sizes_are_an_error_not_a_crash(tmp_path):
    model = graph("g (float[a, 4] x, float[a, 4] y) => (float[a, 4] z) { z = Add(x, y) }")
    result = opsmith.compile(model, tmp_path / "m" / "c", regions="whole")
    with pytest.raises(Exception, match="size of axis 0 is 3, expected 2"):
        opsmith.load(result.variant).run(None, {"x": np.ones((2, 4), np.float32), "y": np.ones((3, 4), np.float32)})


def test_masks_and_dynamic_broadcasts_are_kept(tmp_path):
    text = """g (float[a, b] x, float[c, b] y, bool[a, b] m) => (float[a, b] z) { s = Add(x, y)  z = Where(m, s, x) }"""
    result = opsmith.compile(graph(text), tmp_path / "m" / "c", regions="whole", verify=False)
    session, rng = opsmith.load(result.variant), np.random.default_rng(0)
    for rows in (1, 5):
        x, y = (rng.normal(size=(n, 6)).astype(np.float32) for n in (5, rows))
        m = rng.random((5, 6)) > 0.5
        np.testing.assert_allclose(session.run(None, {"x": x, "y": y, "m": m})[0], np.where(m, x + y, x), rtol=1e-6)
    with pytest.raises(Exception, match="do not broadcast"):
        session.run(None, {"x": x, "y": y[:2], "m": m})


def test_control_flow_stays_with_ort_and_whole_says_so(tmp_path):
    text = """g (float[n] x, bool c) => (float[n] y) {
      e = Exp(x)
      i = If(c) <then_branch = t () => (float[n] o1) { o1 = Neg(e) }, else_branch = f () => (float[n] o2) { o2 = Identity(e) }>
      y = Add(i, x) }"""
    with pytest.raises(OpsmithError, match="cannot be one op: If.*control flow"):
        opsmith.compile(graph(text), tmp_path / "m" / "w", regions="whole")
    assert not (tmp_path / "m").exists()
    result = opsmith.compile(graph(text), tmp_path / "m" / "c", regions="all")
    assert [op for op, _, _ in result.left] == ["If"]
    x = np.linspace(-1, 1, 5, dtype=np.float32)
    session = opsmith.load(result.variant)
    np.testing.assert_allclose(session.run(None, {"x": x, "c": np.array(True)})[0], x - np.exp(x), rtol=1e-6)


def test_chosen_nodes_only(tmp_path):
    model = graph("g (float[n] x) => (float[n] y) { a = Exp(x)  b = Neg(a)  y = Tanh(b) }")
    result = opsmith.compile(model, tmp_path / "m" / "c", regions="Exp,Neg")
    assert [op for op, _, why in result.left if why == "not chosen"] == ["Tanh"]
    with pytest.raises(OpsmithError, match="no node or function matches 'Foo'"):
        opsmith.compile(model, tmp_path / "m" / "d", regions="Foo")


def test_a_fixed_shape_is_taken_over(tmp_path):
    result = opsmith.compile(MLP, tmp_path / "m" / "c", regions="whole", shapes={"x": (2, 3, 8)})
    assert opsmith.load(result.variant).get_inputs()[0].shape == [2, 3, 8]
    with pytest.raises(OpsmithError, match="'z', which is neither an input nor a dim"):
        opsmith.compile(MLP, tmp_path / "m" / "d", shapes={"z": (1,)})


def test_weights_that_are_inputs_with_a_default_are_named_in_a_remark(tmp_path):
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[n, 32] x, float[32, 32] v) => (float[n, 32] y) { h = MatMul(x, v)  y = MatMul(h, w) }""")
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.eye(32, dtype=np.float32), n) for n in "vw")
    (remark,) = opsmith.compile(model, tmp_path / "c", dry_run=True).remarks
    assert remark.startswith("its weight 'v' is an input with a default") and "'w'" not in remark
    del model.graph.input[1]
    assert not opsmith.compile(model, tmp_path / "c", dry_run=True).remarks


def test_a_dry_run_writes_nothing_and_emit_only_builds_nothing(tmp_path):
    planned = opsmith.compile(MLP, tmp_path / "m" / "c", dry_run=True)
    assert planned.variant is None and planned.regions[0].calls == 2 and not (tmp_path / "m").exists()
    emitted = opsmith.compile(MLP, tmp_path / "m" / "c", emit_only=True)
    assert (emitted.variant.folder / "src" / "region0.cpp").exists()
    assert not list(emitted.variant.folder.glob("*.so"))


def test_what_emit_only_wrote_can_be_built_on_its_own(tmp_path):
    home = tmp_path / "m"
    opsmith.compile(MLP, home / "plain", regions="all")
    emitted = opsmith.compile(MLP, home / "emitted", regions="all", emit_only=True)
    with pytest.raises(OpsmithError, match="not built yet"):
        opsmith.load(emitted.variant)
    assert [p.parent.name for p in expand(home)] == ["plain"]  # so the folder can still be benched
    subprocess.run(["sh", "build.sh"], cwd=emitted.variant.folder / "src", check=True, capture_output=True)
    assert opsmith.verify(home / "plain", emitted.variant, shapes=1).ok
    assert len(expand(home)) == 2


@pytest.fixture
def wrong_neg(monkeypatch):
    """A compiler that takes Neg for Identity."""
    from opsmith import ops

    monkeypatch.setitem(
        ops.TABLE, ("", "Neg"), dataclasses.replace(ops.TABLE["", "Neg"], expression=lambda node, x: x[0])
    )


def test_a_failed_verification_of_the_whole_graph_leaves_nothing(tmp_path, wrong_neg):
    with pytest.raises(opsmith.NotTheSame):
        opsmith.compile(graph("g (float[n] x) => (float[n] y) { y = Neg(x) }"), tmp_path / "m" / "c", regions="whole")
    assert not (tmp_path / "m").exists()


def test_a_node_that_is_wrong_goes_back_to_onnx_runtime_and_the_rest_stays(tmp_path, wrong_neg):
    text = "g (float[n] x) => (float[n] y) { a = Exp(x)  s = Softmax(a)  b = Neg(s)  c = Softmax(b)  y = Tanh(c) }"
    result = opsmith.compile(graph(text), tmp_path / "m" / "c", regions="all")
    assert [op for op, _, why in result.left] == ["Neg"] and "something else than ONNX Runtime" in result.left[0][2]
    assert len(result.regions) == 2 and result.verified.ok
    assert "Neg" in result.remarks[0] and "defect of ours" in result.remarks[0]


def test_without_patience_all_nodes_among_which_one_is_wrong_go_back(tmp_path, wrong_neg, monkeypatch):
    monkeypatch.setattr(sys.modules["opsmith.compiler.find_wrong"], "PATIENCE", 0.0)
    text = "g (float[n] x) => (float[n] y) { a = Exp(x)  b = Neg(a)  y = Tanh(b) }"
    result = opsmith.compile(graph(text), tmp_path / "m" / "c", regions="all")
    assert [op for op, _, _ in result.left] == ["Exp", "Neg", "Tanh"] and not result.regions
    assert result.remarks[0].startswith("one of 3 nodes up to Tanh")


def test_what_is_left_with_onnx_runtime_is_the_source_byte_for_byte(tmp_path):
    path = tmp_path / "strings.onnx"
    onnx.save(graph("g (string[n] x) => (string[n] y) { y = Identity(x) }"), path)
    store.write_test_data(tmp_path / "test_data_set_0", {"x": np.array(["a", "b"], dtype=object)}, {})
    result = opsmith.compile(path, tmp_path / "m" / "c")
    assert not result.regions and result.variant.path.read_bytes() == path.read_bytes()
    assert "stays as it is" in result.remarks[0] and result.verified is None
    assert [why for _, _, why in result.left] == ["element type STRING stays with ONNX Runtime"]


def test_nodes_that_stay_are_not_rewritten(tmp_path):
    """A spelled-out SiLU before a node without a kernel: the part that stays keeps its nodes and their names."""
    model = graph(
        """g (float[n, 4] x) => (int64[r, m] y, float[n, 4] z) {
          [sigmoid] s = Sigmoid(x)  [silu] m0 = Mul(x, s)  [where] y = NonZero(m0)  [soft] z = Softmax(m0) }"""
    )
    result = opsmith.compile(model, tmp_path / "m" / "c", regions="Softmax")
    kept = onnx.load(result.variant.path).graph.node
    assert [n.name for n in kept if n.domain == ""] == ["sigmoid", "silu", "where"]


def test_strict_mode_uses_no_winograd(tmp_path):
    w = onnx.numpy_helper.from_array(np.random.default_rng(0).normal(size=(16, 16, 3, 3)).astype(np.float32), "w")
    model = graph(
        "g (float[1, 16, height, width] x) => (float[1, 16, height, width] y) { y = Conv<pads=[1,1,1,1]>(x, w) }"
    )
    model.graph.initializer.append(w)
    fast = opsmith.compile(model, tmp_path / "m" / "fast", regions="whole")
    strict = opsmith.compile(model, tmp_path / "m" / "strict", regions="whole", strict=True)
    assert fast.variant.record["compiled"]["algorithms"] == {"winograd F(4x4,3x3)": 1}
    assert strict.variant.record["compiled"]["algorithms"] == {}


def test_a_convolution_of_stride_two_goes_through_winograd_where_the_image_is_large_enough(tmp_path):
    """30 x 37 pixels pay, 9 x 9 go the direct way; both are right."""
    rng = np.random.default_rng(0)
    w = rng.normal(size=(24, 20, 3, 3)).astype(np.float32)
    model = graph(
        "g (float[n, 20, height, width] x) => (float[n, 24, h, v] y) { y = Conv<strides=[2,2], pads=[1,1,1,1]>(x, w) }"
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    result = opsmith.compile(model, tmp_path / "m" / "c", regions="whole")
    assert result.variant.record["compiled"]["algorithms"] == {"winograd F(4x4,3x3) stride 2": 1}
    session, stock = opsmith.load(result.variant.path), opsmith.load(model)
    for size in ((2, 20, 30, 37), (1, 20, 9, 9), (1, 20, 1, 1)):
        x = rng.normal(size=size).astype(np.float32)
        got, want = (s.run(None, {"x": x})[0] for s in (session, stock))
        np.testing.assert_allclose(got, want, atol=3e-6 * np.abs(want).max())


@pytest.mark.parametrize("value", [1e6, np.inf, np.nan])
def test_an_extreme_pixel_reaches_what_reads_it_and_nothing_else(tmp_path, value):
    rng = np.random.default_rng(0)
    model = graph("g (float[1, 16, 24, 24] x) => (float[1, 16, 24, 24] y) { y = Conv<pads=[1,1,1,1]>(x, w) }")
    w = np.abs(rng.normal(size=(16, 16, 3, 3))).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    result = opsmith.compile(model, tmp_path / "m" / "c", regions="whole")
    assert "winograd F(4x4,3x3)" in result.variant.record["compiled"]["algorithms"]
    x = np.abs(rng.normal(size=(1, 16, 24, 24))).astype(np.float32)
    x[0, 0, 5, 5] = value
    got, want = (opsmith.load(m).run(None, {"x": x})[0] for m in (result.variant.path, model))
    np.testing.assert_allclose(got, want, rtol=1e-4)


def test_weights_stored_in_half_precision_are_read_as_such(tmp_path):
    """A direct convolution and a product behind a Cast from float16: the weights file holds two bytes a number (constants of
    less than 65536 elements are folded)."""
    rng = np.random.default_rng(0)
    kernel = rng.normal(0, 0.03, size=(96, 96, 3, 3)).astype(np.float16)
    matrix = rng.normal(0, 0.1, size=(96, 800)).astype(np.float16)
    model = graph(
        """g (float[n, 96, h, w] x) => (float[n, p, 800] y) <int64[3] s = {0, 96, -1}> {
          k = Cast<to = 1>(kernel)  m = Cast<to = 1>(matrix)
          c = Conv<pads = [1, 1, 1, 1], strides = [3, 3]>(x, k)  r = Reshape(c, s)  t = Transpose<perm = [0, 2, 1]>(r)
          y = MatMul(t, m) }"""
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(kernel, "kernel"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(matrix, "matrix"))
    result = opsmith.compile(model, tmp_path / "m" / "compiled", regions="whole")
    (data,) = result.variant.folder.glob("*.data")
    assert data.stat().st_size < 2.2 * (kernel.size + matrix.size)
    onnx.save(model, tmp_path / "plain.onnx")
    for size in (1, 2, 9):
        x = rng.normal(size=(2, 96, size, size)).astype(np.float32)
        np.testing.assert_allclose(
            run(result.variant, {"x": x})[0], run(tmp_path / "plain.onnx", {"x": x})[0], rtol=1e-4, atol=1e-4
        )


def test_a_size_that_a_convolution_and_shape_arithmetic_write_differently_is_one(tmp_path):
    """Halved by the convolution with floor, by Div with truncation: no broadcast is left, and an empty image is refused."""
    rng = np.random.default_rng(0)
    model = graph(
        """g (float[1, 16, h, w] x) => (float[1, 16, a, b] y) <int64[1] one = {1}, int64[1] two = {2}, int64[2] head = {1, 16}> {
          c = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(x, kernel)  s = Shape<start = 2>(x)  m = Sub(s, one)  d = Div(m, two)
          p = Add(d, one)  t = Concat<axis = 0>(head, p)  e = Expand(bias, t)  y = Add(c, e) }"""
    )
    kernel = rng.normal(0, 0.1, size=(16, 16, 3, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(kernel, "kernel"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((16, 1, 1), np.float32), "bias"))
    result = opsmith.compile(model, tmp_path / "m" / "compiled", regions="whole")
    source = "".join(f.read_text() for f in (result.variant.folder / "src").glob("region*.cpp"))
    assert "broadcast(" not in source and "trunc_div(" not in source
    onnx.save(model, tmp_path / "plain.onnx")
    for size in (1, 2, 9):
        x = rng.normal(size=(1, 16, size, size + 1)).astype(np.float32)
        np.testing.assert_allclose(
            run(result.variant, {"x": x})[0], run(tmp_path / "plain.onnx", {"x": x})[0], rtol=1e-4, atol=1e-4
        )
    with pytest.raises(Exception, match="smaller than the kernel"):
        run(result.variant, {"x": np.zeros((1, 16, 0, 4), np.float32)})


def test_weights_behind_a_cast_count_once_in_the_budget_of_winograd(tmp_path, monkeypatch):
    """Two layers of 36 bytes a pair of channels may read 54 more; F(2x2,3x3) reads 64 for 18, so one of them gets it."""
    monkeypatch.setattr(plan_winograd, "FREE_BYTES", 0)
    kernel = np.random.default_rng(0).normal(0, 0.03, size=(96, 96, 3, 3)).astype(np.float16)
    model = graph(
        """g (float[n, 96, h, w] x) => (float[n, 96, h, w] z) {
          k = Cast<to = 1>(kernel)  m = Cast<to = 1>(other)
          y = Conv<pads = [1, 1, 1, 1]>(x, k)  z = Conv<pads = [1, 1, 1, 1]>(y, m) }"""
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(kernel, "kernel"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(kernel[::-1].copy(), "other"))
    result = opsmith.compile(model, tmp_path / "m" / "compiled", regions="whole", emit_only=True)
    assert result.sources
    calls = [
        c
        for source in result.sources
        for c in re.findall(r"^ *(conv2d(?:_winograd.)?)_\w+\(pool, ConvShape", source.text, re.M)
    ]
    assert sorted(calls) == ["conv2d", "conv2d_winograd2"]


def test_kernels_name_the_nodes_of_the_source_that_they_compute(tmp_path):
    model = graph(
        """g (float[n, 8] x) => (float[n, 8] y) {
          [p] h = MatMul(x, x2)  [s] s0 = Sigmoid(h)  [m] g0 = Mul(h, s0)  [e] y = Exp(g0) }"""
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(8, dtype=np.float32), "x2"))
    result = opsmith.compile(model, tmp_path / "m" / "c", regions="whole")
    (calls,) = store.read_origins(result.variant.path).values()
    assert sorted(name for call in calls for name in call) == ["e", "m", "p", "s"]


def test_code_that_the_compiler_refuses_goes_back_to_onnx_runtime(tmp_path, monkeypatch):
    """As a defect of ours would show: the rest of the model is native, and the user is told."""
    from opsmith.compiler import forms

    right = forms.emit_instances

    def broken(needed):
        files = right(needed)
        return [dataclasses.replace(f, text="no C++;\n") if "matmul" in f.name else f for f in files]

    monkeypatch.setattr(forms, "emit_instances", broken)
    text = "(float[n,4] x, float[4,n] w) => (float[n,n] y) { a = Sigmoid(x)  b = Sin(a)  c = MatMul(b, w)  y = Cos(c) }"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 20]> m {text}'), tmp_path / "m.onnx")
    result = opsmith.compile(tmp_path / "m.onnx", tmp_path / "c", regions="all")
    assert {op for op, *_ in result.left} >= {"MatMul"} and result.native >= 2
    assert any("does not compile" in r and "a defect of ours" in r for r in result.remarks)
    assert opsmith.verify(tmp_path / "m.onnx", tmp_path / "c").ok
    assert not list((tmp_path / "c").glob("attempt*"))
    with pytest.raises(OpsmithError, match="could not compile"):
        opsmith.compile(tmp_path / "m.onnx", tmp_path / "d", regions="whole")
    assert not (tmp_path / "d").exists()
