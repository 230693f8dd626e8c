"""Small files that ask for much: every verb ends, soon and with little memory; each file has a process of its own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import onnx
import onnx.parser
import pytest

from opsmith import bounds, store
from opsmith.check.flops import flops
from opsmith.errors import OpsmithError
from opsmith.rewriter import rewrite_model

HEAD = '<ir_version: 9, opset_import: ["": 18{}]>\ng (float[2,3] x) => (float[?,?] y) '


def range_bomb() -> onnx.ModelProto:
    body = "k = Range(a, b, c) f = Cast<to=1>(k) q = ReduceSum<keepdims=0>(f) y = Add(x, q)"
    return onnx.parser.parse_model(
        HEAD.format("") + f"<int64 a = {{0}}, int64 b = {{1000000000000}}, int64 c = {{1}}> {{ {body} }}"
    )


def _doubled(first: str, last: str) -> onnx.ModelProto:
    concats = " ".join(f"c{i + 1} = Concat<axis=0>(c{i}, c{i})" for i in range(40))
    return onnx.parser.parse_model(HEAD.format("") + f"<{first}> {{ {concats} {last} }}")


def concat_bomb() -> onnx.ModelProto:
    return _doubled("float[2] c0 = {1, 1}", "q = ReduceSum<keepdims=0>(c40) y = Add(x, q)")


def shape_bomb() -> onnx.ModelProto:
    return _doubled("int64[1] c0 = {1}", "y = Reshape(x, c40)")


def call_bomb() -> onnx.ModelProto:
    text = HEAD.format(', "loc": 1') + "{ y = loc.F0(x) }"
    head = '<domain: "loc", opset_import: ["": 18, "loc": 1]>'
    for i in range(24):
        text += f"{head} F{i} (a) => (b) {{ m = loc.F{i + 1}(a) b = loc.F{i + 1}(m) }}"
    return onnx.parser.parse_model(text + f"{head} F24 (a) => (b) {{ b = Relu(a) }}")


def size_bomb() -> onnx.ModelProto:
    """A size that is squared a hundred times, as a polynomial of two dims."""
    squares = " ".join(f"s{i + 1} = Mul(s{i}, s{i})" for i in range(100))
    body = f"d = Shape(x) s0 = ReduceSum<keepdims=1>(d) {squares} z = Mul(s100, zero) t = Concat<axis=0>(z, d) "
    body += "n = Slice(t, one, three) y = Reshape(x, n)"
    return onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> g (float[n,m] x) => (float[?,?] y) '
        f"<int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] three = {{3}}> {{ {body} }}"
    )


def _loop(count: int, more: str) -> onnx.ModelProto:
    body = f"b (int64 i, bool go, float[k,3] s) => (bool more, float[k,3] t) {{ t = Neg(s) {more} }}"
    return onnx.parser.parse_model(
        HEAD.format("")
        + f"<int64 a = {{{count}}}, bool yes = {{1}}, float l = {{0}}> {{ y = Loop<body = {body}>(a, yes, x) }}"
    )


def loop_bomb() -> onnx.ModelProto:
    return _loop(1 << 62, "more = Identity(go)")


BOMBS = [range_bomb, concat_bomb, shape_bomb, call_bomb, size_bomb, loop_bomb]
VERBS = [
    ["inspect"],
    ["optimize", "--level", "1"],
    ["compile", "--dry-run"],
    ["quantize", "--method", "dynamic"],
    ["verify"],
]
# Memory counts what Python and its packages take by themselves. Processor time, as the machine may be busy.
RUN = """
import json, os, sys
from opsmith.cli import main
from opsmith.timing.worker import memory  # ru_maxrss would count what the test's own process held before exec
for arguments in json.loads(sys.argv[1]):
    before = sum(os.times()[:4])
    try:
        main(arguments)
    except SystemExit as end:
        print("ended", arguments[0], end.code or 0, memory("VmHWM"), sum(os.times()[:4]) - before, file=sys.stderr)
"""


@pytest.mark.parametrize("make", BOMBS)
def test_every_verb_ends_soon_and_with_little_memory(make: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    path = tmp_path / "bomb.onnx"
    onnx.save(make(), path)
    assert path.stat().st_size < 6000
    calls = []
    for verb, *options in VERBS:
        where = [] if verb == "inspect" else [str(path)] if verb == "verify" else [str(tmp_path / verb)]
        calls.append([verb, str(path), *where, *options])
    command = [sys.executable, "-c", RUN, json.dumps(calls)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0 and "Traceback" not in result.stderr, result.stderr
    ended = re.findall(r"^ended (\w+) (\d+) (\d+) (\S+)$", result.stderr, re.M)
    assert [verb for verb, *_ in ended] == [verb for verb, *_ in VERBS], result.stderr
    for verb, code, peak, seconds in ended:
        assert code in ("0", "2"), (verb, result.stderr)
        assert int(peak) < 2**30, f"{verb}: {int(peak) / 2**30:.1f} GiB"
        assert float(seconds) < 10, f"{verb}: {seconds} s of processor time"


def test_a_loop_is_refused_only_if_nothing_ends_it() -> None:
    computed = "q = ReduceSum<keepdims=0>(t) more = Less(q, l)"
    for count, more in ((1 << 62, computed), (1000, "more = Identity(go)"), (1 << 62, "more = Not(go)")):
        bounds.check_values(_loop(count, more), "model")
    for more in ("more = Identity(go)", "m = Identity(go) more = Identity(m)", "more = Identity(yes)"):
        with pytest.raises(
            OpsmithError, match="model: the Loop that makes .'y'. has no end: 4611686018427387904 rounds"
        ):
            bounds.check_values(_loop(1 << 62, more), "model")


@pytest.mark.parametrize("count, fits", [(3, True), (12, False)])
def test_constants_that_do_not_fit_into_memory_together_are_refused(
    count: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds.machine, "memory_bytes", lambda: 8 << 30)
    fills = " ".join(f"k{i} = ConstantOfShape(s) q{i} = ReduceSum<keepdims=0>(k{i})" for i in range(count))
    text = HEAD.format("") + f"<int64[2] s = {{16384, 16384}}> {{ {fills} t = Sum({{}}) y = Add(x, t) }}"
    model = onnx.parser.parse_model(text.replace("Sum({})", f"Sum({', '.join(f'q{i}' for i in range(count))})"))
    with nullcontext() if fits else pytest.raises(OpsmithError, match="constants takes 12 GiB"):
        bounds.check_values(model, "model")


def test_functions_that_call_themselves_are_refused() -> None:
    text = HEAD.format(', "loc": 1') + '{ y = loc.F(x) } <domain: "loc", opset_import: ["": 18, "loc": 1]> '
    with pytest.raises(OpsmithError, match="calls itself"):
        bounds.check_calls(onnx.parser.parse_model(text + "F (a) => (b) { m = Relu(a) b = loc.F(m) }"), "model")


def test_calls_inside_branches_count(monkeypatch: pytest.MonkeyPatch) -> None:
    body = "y = If(c) <then_branch = t () => (float[2,3] p) { p = loc.F(x) }, else_branch = e () => (float[2,3] q) "
    text = '<ir_version: 9, opset_import: ["": 18, "loc": 1]> g (float[2,3] x, bool c) => (float[2,3] y) '
    text += (
        "{"
        + body
        + '{ q = loc.F(x) }> } <domain: "loc", opset_import: ["": 18]> F (a) => (b) { m = Relu(a) b = Neg(m) }'
    )
    proto = onnx.parser.parse_model(text)
    bounds.check_calls(proto, "model")
    monkeypatch.setattr(bounds, "MOST_NODES", 4)
    with pytest.raises(OpsmithError, match="5 nodes"):
        bounds.check_calls(proto, "model")


def test_short_vectors_are_followed_and_long_ones_are_not() -> None:
    def model(count: int) -> onnx.ModelProto:
        text = f'<ir_version: 9, opset_import: ["": 18]> g (float[2,3] x) => (float[?,?] y) <int64 a = {{0}}, int64 b = {{{count}}}, '
        text += "int64 c = {1}> { k = Range(a, b, c) s = Shape(x) y = ConstantOfShape(s) }"
        return onnx.parser.parse_model(text)

    def dims(count: int) -> list[int]:
        inferred = bounds.infer_shapes(model(count))
        return [d.dim_value for d in inferred.graph.output[0].type.tensor_type.shape.dim]

    assert dims(10) == [2, 3]
    assert dims(10**9) != [2, 3]


def test_a_model_in_a_file_is_checked_before_it_is_opened(tmp_path: Path) -> None:
    onnx.save(call_bomb(), tmp_path / "m.onnx")
    with pytest.raises(OpsmithError, match="16,777,216 nodes"):
        store.open_model(tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (r'y = Einsum<equation = "\b\n>ab">(x)', "no equation"),  # kept ONNX's inference busy for ever
        (
            "e = Expand(x, deep) y = Slice(e, zero, two, zero, two)",
            "the size -576460752303423487",
        ),  # aborted the process
    ],
)
def test_what_onnx_itself_does_not_survive_is_refused_first(body: str, problem: str, tmp_path: Path) -> None:
    constants = "int64[2] deep = {-576460752303423487, 1}, int64[1] zero = {0}, int64[1] two = {2}"
    model = onnx.parser.parse_model(HEAD.format("") + f"<{constants}> {{ {body} }}")
    for node in model.graph.node:
        for attribute in node.attribute:
            attribute.s = b"\x08\n\x06>ab"
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(OpsmithError, match=problem):
        store.open_model(tmp_path / "model.onnx")


NEGATIVE = {
    "Pad": "y = Pad(x, cut)",
    "Conv": "y = Conv(x, filter)",
    "MaxPool": "y = MaxPool<kernel_shape = [9]>(x)",
    "ConvTranspose": "y = ConvTranspose<pads = [9, 9]>(x, one)",
    "Split": "y, rest = Split<axis = 2>(x, parts)",
    "Resize": "y = Resize(x, , scales)",
}


@pytest.mark.parametrize("op", NEGATIVE)
def test_a_negative_size_does_not_end_the_process(op: str, tmp_path: Path) -> None:
    """ONNX's inference aborts on a Slice of it."""
    constants = """int64[1] begin = {-2}, int64[1] end = {99}, int64[1] axis = {2}, int64[6] cut = {0, 0, -4, 0, 0, -4},
        float[1,1,9] filter = {1,1,1,1,1,1,1,1,1}, float[1,1,1] one = {1}, int64[2] parts = {-4, 7}, float[3] scales = {1, 1, -4}"""
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> g (float[1,1,3] x) => (float[a,b,c] z) <'
        + f"{constants}> {{ {NEGATIVE[op]} z = Slice(y, begin, end, axis) }}"
    )
    onnx.save(model, tmp_path / "model.onnx")
    assert flops(tmp_path / "model.onnx", run=False).nodes  # without sizes
    with pytest.raises(OpsmithError, match="negative size"):
        rewrite_model(store.open_model(tmp_path / "model.onnx"), level=1)


def test_sizes_stored_as_minus_one_can_be_sliced(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> g (float[n,3] x) => (float[m,3] z) <int64[1] begin = {-2}, int64[1] end = {99}>'
        "{ z = Slice(x, begin, end) }"
    )
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    onnx.save(model, tmp_path / "model.onnx")
    assert len(flops(tmp_path / "model.onnx", run=False).nodes) == 1
    rewrite_model(store.open_model(tmp_path / "model.onnx"), level=3)
