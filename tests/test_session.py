"""opsmith.load: any model in, ORT's own noise out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto as T
from onnx import helper as h

import opsmith
from opsmith import store
from opsmith.cli import main
from opsmith.errors import OpsmithError
from opsmith.session import run


def doubler(kind: int = T.FLOAT, shape: list[int | str] | None = None) -> onnx.ModelProto:
    """y = x + x"""
    dims = ["n"] if shape is None else shape
    graph = h.make_graph(
        [h.make_node("Add", ["x", "x"], ["y"], name="twice")],
        "g",
        [h.make_tensor_value_info("x", kind, dims)],
        [h.make_tensor_value_info("y", kind, dims)],
    )
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=10)


X = np.array([1, 2], np.float32)


def test_paths_and_models_in_memory_load(tmp_path: Path) -> None:
    onnx.save(doubler(), str(tmp_path / "m.onnx"))
    path = tmp_path / "m.onnx"
    for model in (path, str(path), tmp_path, store.Variant(path), doubler(), ir.from_proto(doubler())):
        np.testing.assert_array_equal(run(opsmith.load(model), {"x": X})[0], [2, 4])


def test_a_model_in_memory_with_large_weights_outlives_its_temporary_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "EMBED_LIMIT", 1000)
    model = doubler(shape=[4096])
    weight = np.arange(4096, dtype=np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    model.graph.node[0].input[1] = "w"
    session = opsmith.load(model, optimize=False)
    np.testing.assert_array_equal(run(session, {"x": np.ones(4096, np.float32)})[0], weight + 1)


def test_settings_reach_onnx_runtime(tmp_path: Path) -> None:
    session = opsmith.load(doubler(), threads=1, config={"session.disable_prepacking": "1"})
    assert session.get_session_options().intra_op_num_threads == 1
    traced = opsmith.load(doubler(), profile_prefix=str(tmp_path / "trace"))
    run(traced, {"x": X})
    assert Path(traced.end_profiling()).parent == tmp_path


def test_options_of_the_caller_are_kept() -> None:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    session = opsmith.load(doubler(), options=options)
    assert session.get_session_options().graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_BASIC


def test_the_graph_can_be_edited_on_its_way_in() -> None:
    model = doubler()
    model.graph.node.append(h.make_node("Neg", ["hidden"], ["y"]))
    model.graph.node[0].output[0] = "hidden"

    def also_hidden(proto: onnx.ModelProto) -> None:
        proto.graph.output.append(onnx.ValueInfoProto(name="hidden"))

    y, hidden = run(opsmith.load(model, edit=also_hidden), {"x": X})
    np.testing.assert_array_equal(y, -hidden)


def test_errors_of_onnx_runtime_are_one_short_line_and_nothing_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(OpsmithError) as failure:
        run(opsmith.load(doubler(shape=[3])), {"x": X})
    said = str(failure.value)
    assert "\n" not in said and "onnxruntime_src" not in said and "Got: 2 Expected: 3" in said
    assert capfd.readouterr().err == ""
    onnx.save(doubler(T.BOOL), str(tmp_path / "bool.onnx"))  # ONNX's checker lets it pass, ORT does not
    with pytest.raises(SystemExit) as stop:
        main(["verify", str(tmp_path / "bool.onnx"), str(tmp_path / "bool.onnx")])
    said = capfd.readouterr().err
    assert stop.value.code == 2 and said.count("\n") == 1 and "ONNX Runtime cannot load" in said


def test_bfloat16_goes_in_and_out() -> None:
    import ml_dtypes

    model = doubler(T.BFLOAT16)
    model.graph.node[0].op_type = "Identity"
    del model.graph.node[0].input[1:]
    x = np.array([[1.5, -2.0]], ml_dtypes.bfloat16)[0]
    (y,) = run(opsmith.load(model), {"x": x})
    assert y.dtype == ml_dtypes.bfloat16 and y.tolist() == [1.5, -2.0]
    assert run(opsmith.load(model), {"x": x[:0]})[0].shape == (0,)


def test_importing_opsmith_is_light() -> None:
    """Only what a verb needs is imported, when it is used, and never torch."""
    code = (
        "import sys, opsmith, opsmith.cli; opsmith.cli.build_app(); opsmith.load, opsmith.verify, opsmith.inspect\n"
        "assert not {'torch', 'transformers', 'diffusers'} & set(sys.modules), 'torch was imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_session_and_a_timing_process_start_without_onnx_ir(tmp_path: Path) -> None:
    """It takes half a second of processor time, more than the rest together."""
    model = tmp_path / "m.onnx"
    onnx.save(doubler(), str(model))
    store.write_test_data(tmp_path, {"x": X}, {})
    code = (
        "import sys; from opsmith import session, store; from opsmith.timing import worker; p = sys.argv[1]; "
        "session.run(session.load(p), store.read_test_data(p)[0].inputs); print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", code, str(model)], capture_output=True, text=True, check=True).stdout
    assert not {"onnx_ir", "sympy", "onnxscript"} & set(loaded.split())


def test_view_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: object) -> None:
    onnx.save(doubler(), str(tmp_path / "m.onnx"))
    monkeypatch.setitem(sys.modules, "netron", None)
    with pytest.raises(SystemExit) as stop:
        main(["view", str(tmp_path / "m.onnx")])
    assert stop.value.code == 2 and ".[view]" in capsys.readouterr().err  # type: ignore[attr-defined]


def test_view_serves_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import types

    onnx.save(doubler(), str(tmp_path / "m.onnx"))
    calls: list[object] = []

    def start(file: str, address: object = None, browse: bool = True) -> tuple[str, int]:
        calls.append((file, address, browse))
        return "localhost", 1234

    fake = types.SimpleNamespace(start=start, wait=lambda: calls.append("wait"))
    monkeypatch.setitem(sys.modules, "netron", fake)
    with pytest.raises(SystemExit) as stop:
        main(["view", str(tmp_path), "--no-browser", "--port", "5000"])
    assert not stop.value.code
    assert calls == [(str(tmp_path / "m.onnx"), ("localhost", 5000), False), "wait"]


def test_a_compiled_model_in_the_working_folder_loads_by_its_bare_name(tmp_path, monkeypatch):
    sys.path.insert(0, str(Path(__file__).parent / "compiler"))
    from small import MLP

    onnx.save(MLP, tmp_path / "mlp.onnx")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "mine.cpp").write_text("mine")
    monkeypatch.chdir(tmp_path)
    opsmith.compile("mlp.onnx", "mlp_compiled.onnx", regions="whole")
    assert opsmith.load("mlp_compiled.onnx").get_outputs()[0].name == "y"
    assert (tmp_path / "src" / "mine.cpp").read_text() == "mine"
    assert (tmp_path / "mlp_compiled.src" / "region0.cpp").exists()
