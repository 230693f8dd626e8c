"""The store: finding, reading, writing whole or not at all, and what an untrusted model cannot do."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto as T
from onnx import helper as h

from opsmith import model_checks, store
from opsmith.cli import main
from opsmith.errors import OpsmithError
from opsmith.session import load, run, size_on_disk


def small_model(width: int = 4) -> onnx.ModelProto:
    """y = x @ w"""
    weight = onnx.numpy_helper.from_array(np.arange(width * 3, dtype=np.float32).reshape(width, 3), "w")
    graph = h.make_graph(
        [h.make_node("MatMul", ["x", "w"], ["y"], name="project")],
        "g",
        [h.make_tensor_value_info("x", T.FLOAT, ["n", width])],
        [h.make_tensor_value_info("y", T.FLOAT, ["n", 3])],
        [weight],
    )
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=10)


def write(path: Path, model: onnx.ModelProto | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes((model or small_model()).SerializeToString())
    return path


def everything(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


# --- finding ----------------------------------------------------------------------------------------------


def test_a_file_a_variant_folder_and_a_model_folder_with_one_variant_all_mean_the_model(tmp_path: Path) -> None:
    path = write(tmp_path / "bert" / "dynamo" / "bert_dynamo.onnx")
    for where in (path, path.parent, path.parent.parent, str(path), store.Variant(path)):
        assert store.find_model(where) == path


def test_folders_of_the_earlier_tools_are_read_as_they_are(tmp_path: Path) -> None:
    for exporter in ("dynamo", "torchscript"):
        write(tmp_path / "gpt2" / exporter / f"gpt2_{exporter}.onnx")
        write(tmp_path / "gpt2" / exporter / "leftover.onnx")  # the named one wins
    assert [v.name for v in store.variants(tmp_path / "gpt2")] == ["dynamo", "torchscript"]
    assert store.find_model(tmp_path / "gpt2" / "dynamo").name == "gpt2_dynamo.onnx"
    with pytest.raises(OpsmithError, match="several variants: dynamo, torchscript"):
        store.find_model(tmp_path / "gpt2")


def test_what_is_no_model_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text("hello")
    (tmp_path / "model.ort").write_text("hello")
    write(tmp_path / "two" / "a.onnx")
    write(tmp_path / "two" / "b.onnx")
    for name, message in {
        "nothing": "does not exist",
        "empty": "holds no ONNX model",
        "text.txt": "is not an .onnx file",
        "model.ort": "give the .onnx file that it was converted from",
        "two": r"several models: a\.onnx, b\.onnx",
    }.items():
        with pytest.raises(OpsmithError, match=message):
            store.find_model(tmp_path / name)


def test_hidden_folders_are_no_variants(tmp_path: Path) -> None:
    write(tmp_path / "m" / ".x.tmp" / "m_x.onnx")
    write(tmp_path / "m" / "x" / "m_x.onnx")
    assert [v.name for v in store.variants(tmp_path / "m")] == ["x"]


# --- reading ----------------------------------------------------------------------------------------------


def invalid_models() -> dict[str, tuple[bytes, str]]:
    unknown_op = small_model()
    unknown_op.graph.node[0].op_type = "Forge"
    unknown_opset = small_model()
    unknown_opset.opset_import[0].version = 9999
    undefined = small_model()
    undefined.graph.node[0].input[1] = "nowhere"
    cyclic = small_model()
    cyclic.graph.node.append(h.make_node("Relu", ["b"], ["a"]))
    cyclic.graph.node.append(h.make_node("Relu", ["a"], ["b"]))
    bad_attribute = small_model()
    bad_attribute.graph.node[0].attribute.append(h.make_attribute("colour", "red"))
    return {
        "text": (b"this is not a model", "does not parse"),
        "empty": (b"", "no graph"),
        "cut off": (small_model().SerializeToString()[:40], "ONNX model"),
        "unknown op": (unknown_op.SerializeToString(), "Forge"),
        "unknown opset": (unknown_opset.SerializeToString(), "needs ONNX opset 9999"),
        "undefined value": (undefined.SerializeToString(), "nowhere"),
        "cycle": (cyclic.SerializeToString(), "not a valid ONNX model"),
        "unknown attribute": (bad_attribute.SerializeToString(), "colour"),
    }


@pytest.mark.parametrize("name", invalid_models())
def test_an_invalid_model_is_one_line_and_exit_code_2(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    content, message = invalid_models()[name]
    path = tmp_path / "bad.onnx"
    path.write_bytes(content)
    with pytest.raises(OpsmithError, match=message):
        store.open_model(path)
    good = write(tmp_path / "good.onnx")
    for command in (["inspect", str(path)], ["verify", str(path), str(good)], ["verify", str(good), str(path)]):
        with pytest.raises(SystemExit) as stop:
            main(command)
        said = capfd.readouterr().err
        assert stop.value.code == 2 and said.count("\n") == 1 and said.startswith("opsmith: error: ")
    assert everything(tmp_path) == ["bad.onnx", "good.onnx"]


def test_ops_that_only_onnx_runtime_knows_are_let_through(tmp_path: Path) -> None:
    model = small_model()
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(3, np.float32), "scale"))
    model.graph.node[0].output[0] = "h"
    model.graph.node.append(h.make_node("SimplifiedLayerNormalization", ["h", "scale"], ["y"]))
    path = write(tmp_path / "m.onnx", model)
    store.open_model(path)
    (y,) = run(load(path), {"x": np.ones((1, 4), np.float32)})
    assert y.shape == (1, 3)


def test_a_damaged_record_is_a_clear_error(tmp_path: Path) -> None:
    path = write(tmp_path / "v" / "m.onnx")
    (tmp_path / "v" / "opsmith.json").write_text("{")
    with pytest.raises(OpsmithError, match="not valid JSON"):
        load(path)
    for damaged in ('{"compiled": {"library": 3}}', '{"compiled": "yes"}'):
        (tmp_path / "v" / "opsmith.json").write_text(damaged)
        with pytest.raises(OpsmithError, match="is damaged"):
            load(path)
    (tmp_path / "v" / "opsmith.json").write_text('{"compiled": {"library": null}}')  # nothing was worth compiling
    load(path)


def test_a_library_for_another_cpu_or_a_missing_one_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "v" / "m.onnx")
    record = tmp_path / "v" / "opsmith.json"
    record.write_text(json.dumps({"compiled": {"library": "libm.so", "cpu_features": ["avx9000"]}}))
    with pytest.raises(OpsmithError, match="avx9000"):
        load(path)
    record.write_text(json.dumps({"compiled": {"library": "../../etc/libm.so", "cpu_features": []}}))
    with pytest.raises(OpsmithError, match=r"needs its library libm\.so, which is missing"):
        load(path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200))
@example(b"\x08\x0a")
def test_random_bytes_never_crash_the_loader(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "fuzz.onnx"
    path.write_bytes(content)
    with pytest.raises(OpsmithError):
        store.open_model(path)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_model_opens_or_is_refused(tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(small_model().SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(content) - 1))
        content[position] = data.draw(st.integers(0, 255))
    path = tmp_path / "fuzz.onnx"
    path.write_bytes(bytes(content))
    try:
        model = store.open_model(path)
    except OpsmithError:
        return
    assert isinstance(model, ir.Model)


# --- external data: nothing outside the model's folder -----------------------------------------------------


def external(location: str, dims: tuple[int, ...] = (4, 3), name: str = "w", **entries: object) -> onnx.TensorProto:
    tensor = onnx.TensorProto(name=name, data_type=T.FLOAT, dims=dims, data_location=T.EXTERNAL)
    for key, value in {"location": location, **entries}.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, str(value)
    return tensor


def as_weight(tensor: onnx.TensorProto) -> onnx.ModelProto:
    model = small_model()
    model.graph.initializer[0].CopyFrom(tensor)
    return model


def as_constant(tensor: onnx.TensorProto) -> onnx.ModelProto:
    model = small_model()
    del model.graph.initializer[:]
    model.graph.node.insert(0, h.make_node("Constant", [], ["w"], value=tensor))
    return model


def in_subgraph(tensor: onnx.TensorProto) -> onnx.ModelProto:
    branch = h.make_graph(
        [h.make_node("Identity", ["w"], ["out"])],
        "branch",
        [],
        [h.make_tensor_value_info("out", T.FLOAT, [4, 3])],
        [tensor],
    )
    model = small_model()
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.array(True), "yes"))
    model.graph.node.insert(0, h.make_node("If", ["yes"], ["chosen"], then_branch=branch, else_branch=branch))
    model.graph.node[1].input[1] = "chosen"
    return model


def in_function(tensor: onnx.TensorProto) -> onnx.ModelProto:
    model = small_model()
    del model.graph.initializer[:]
    body = [h.make_node("Constant", [], ["out"], value=tensor)]
    model.functions.append(h.make_function("mine", "Weight", [], ["out"], body, [h.make_opsetid("", 18)]))
    model.graph.node.insert(0, h.make_node("Weight", [], ["w"], domain="mine"))
    model.opset_import.append(h.make_opsetid("mine", 1))
    return model


def as_sparse_weight(tensor: onnx.TensorProto) -> onnx.ModelProto:
    model = small_model()
    del model.graph.initializer[:]
    sparse = model.graph.sparse_initializer.add()
    tensor.dims[:] = [1]
    sparse.values.CopyFrom(tensor)
    sparse.indices.CopyFrom(onnx.numpy_helper.from_array(np.array([0], np.int64)))
    sparse.dims.extend([4, 3])
    return model


PLACES = [as_weight, as_constant, in_subgraph, in_function, as_sparse_weight]
OUTSIDE = ["../secret.bin", "sub/../../secret.bin", "..\\secret.bin", "C:\\secret.bin", "\\\\host\\secret.bin", ""]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("location", [*OUTSIDE, "absolute", "link.bin", "linked/secret.bin"])
def test_external_data_outside_the_folder_is_refused(tmp_path: Path, place: object, location: str) -> None:
    (tmp_path / "secret.bin").write_bytes(b"\1" * 48)
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    (folder / "linked").symlink_to(tmp_path)
    if location == "absolute":
        location = str(tmp_path / "secret.bin")
    path = write(folder / "m.onnx", place(external(location)))  # type: ignore[operator]
    for act in (store.open_model, load, size_on_disk, model_checks.check_external_data):
        with pytest.raises(OpsmithError, match="outside the model's folder"):
            act(path)


parts = st.sampled_from(["..", ".", "a", "link", "w.bin", "", "/", "~", "C:", "\\", "\x00", "%2e%2e", "*"])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(parts, max_size=5).map("/".join) | st.lists(parts, max_size=4).map("\\".join) | st.text(max_size=8))
def test_no_location_leads_out_of_the_folder(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "model"
    (folder / "a").mkdir(parents=True, exist_ok=True)
    for file in (tmp_path / "w.bin", folder / "w.bin", folder / "a" / "w.bin"):
        file.write_bytes(b"\1" * 48)
    if not (folder / "link").is_symlink():
        (folder / "link").symlink_to(tmp_path)
    try:
        path = write(folder / "m.onnx", as_weight(external(location)))
    except UnicodeEncodeError:  # a lone surrogate cannot be in a protobuf
        return
    try:
        files = model_checks.external_files(path)
    except OpsmithError:
        return
    assert files and all(f.resolve().is_relative_to(folder.resolve()) for f in files)


def test_external_data_with_several_hard_links_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret.bin").write_bytes(bytes(48))
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "w.bin").hardlink_to(tmp_path / "secret.bin")
    path = write(tmp_path / "net" / "m.onnx", as_weight(external("w.bin", length=48)))
    for act in (store.open_model, load, size_on_disk):
        with pytest.raises(OpsmithError, match=r"w\.bin has 2 hard links"):
            act(path)
    (tmp_path / "secret.bin").unlink()
    assert store.open_model(path).graph.initializers["w"].const_value is not None


def test_a_small_model_saved_elsewhere_takes_its_external_weights_along(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(np.arange(12, dtype=np.float32).tobytes())
    model = store.open_model(write(tmp_path / "m.onnx", as_weight(external("w.bin", length=48))))
    (tmp_path / "there").mkdir()
    store.save_model(model, tmp_path / "there" / "m.onnx")
    assert model_checks.external_files(tmp_path / "there" / "m.onnx") == set()
    kept = store.open_model(tmp_path / "there" / "m.onnx").graph.initializers["w"].const_value
    assert kept is not None
    assert kept.numpy().ravel().tolist() == list(range(12))


def test_a_model_named_by_a_relative_path_is_copied_with_its_external_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "w.bin").write_bytes(bytes(48))
    write(tmp_path / "net" / "m.onnx", as_weight(external("w.bin", length=48)))
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)
    store.copy_model("net/m.onnx", tmp_path / "there" / "copy.onnx")
    assert everything(tmp_path / "there") == ["copy.onnx", "w.bin"]


def test_a_model_is_saved_while_somebody_reads_its_external_weights(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(np.arange(12, dtype=np.float32).tobytes())
    model = store.open_model(write(tmp_path / "m.onnx", as_weight(external("w.bin", length=48))))
    tensor = model.graph.initializers["w"].const_value
    assert tensor is not None
    held = tensor.numpy().view()
    store.save_model(model, tmp_path / "copy.onnx")
    assert held.ravel().tolist() == list(range(12))
    assert store.external_files(tmp_path / "copy.onnx") == set()


@pytest.mark.parametrize("place", PLACES[:2])
def test_external_data_in_the_folder_is_read(tmp_path: Path, place: object) -> None:
    weights = np.arange(12, dtype=np.float32)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "w.bin").write_bytes(b"\0" * 8 + weights.tobytes())
    path = write(tmp_path / "m.onnx", place(external("sub/w.bin", offset=8, length=48)))  # type: ignore[operator]
    x = np.ones((1, 4), np.float32)
    np.testing.assert_allclose(run(load(path), {"x": x})[0], x @ weights.reshape(4, 3))
    assert size_on_disk(path) == path.stat().st_size + 56


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"offset": 2**62}, "too short"),
        ({"offset": 1}, "too short"),
        ({"offset": -4}, "bad external-data offset"),
        ({"offset": "1_0"}, "bad external-data offset"),
        ({"offset": "٣"}, "bad external-data offset"),
        ({"length": -48}, "bad external-data length"),
        ({"length": 2**40}, "takes 48 bytes"),
        ({"length": 4}, "takes 48 bytes"),
        ({"offset": 2**64}, "too short"),
    ],
)
def test_external_entries_that_do_not_fit_are_refused(tmp_path: Path, entries: dict[str, object], message: str) -> None:
    (tmp_path / "w.bin").write_bytes(b"\0" * 48)
    path = write(tmp_path / "m.onnx", as_weight(external("w.bin", **entries)))
    with pytest.raises(OpsmithError, match=message):
        store.open_model(path)


def test_a_tensor_too_large_for_its_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"\0" * 48)
    for dims, message in (((2**31, 2**31), "too short"), ((-4, -3), "negative dim")):
        with pytest.raises(OpsmithError, match=message):
            store.open_model(write(tmp_path / "m.onnx", as_weight(external("w.bin", dims))))


def test_tensors_may_share_their_bytes_but_not_overlap_in_part(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"\0" * 96)
    shared = as_weight(external("w.bin"))
    shared.graph.initializer.append(external("w.bin", name="tied"))
    store.open_model(write(tmp_path / "shared.onnx", shared))
    damaged = as_weight(external("w.bin"))
    damaged.graph.initializer.append(external("w.bin", name="other", offset=44))
    with pytest.raises(OpsmithError, match="'w' and 'other' overlap"):
        store.open_model(write(tmp_path / "damaged.onnx", damaged))


def test_a_missing_data_file_is_named_and_noticed_even_after_a_good_read(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"\0" * 48)
    path = write(tmp_path / "m.onnx", as_weight(external("w.bin")))
    store.open_model(path)
    (tmp_path / "w.bin").write_bytes(b"\0" * 20)
    with pytest.raises(OpsmithError, match="cut off"):
        store.open_model(path)
    (tmp_path / "w.bin").unlink()
    with pytest.raises(OpsmithError, match=r"external data file w\.bin, which is missing"):
        store.open_model(path)


def test_test_data_cannot_point_at_other_files(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx")
    store.write_test_data(tmp_path, {"x": np.ones((1, 4), np.float32)}, {})
    (tmp_path / "test_data_set_0" / "input_0.pb").write_bytes(external("/etc/passwd", (4,)).SerializeToString())
    with pytest.raises(OpsmithError, match="points at another file"):
        store.read_test_data(path)


# --- test data --------------------------------------------------------------------------------------------


def test_test_data_comes_back_as_it_was(tmp_path: Path) -> None:
    import ml_dtypes

    path = write(tmp_path / "m.onnx")
    inputs = {
        "a": np.array([[1, 2], [3, 4]], np.int64),
        "b": np.array([], np.float32).reshape(0, 3),
        "c": np.array(True),
        "d": np.array([1.5, 2.5], ml_dtypes.bfloat16),
        **{f"x{i}": np.float16(i) * np.ones(1, np.float16) for i in range(11)},  # input_10 after input_9
    }
    store.write_test_data(tmp_path, inputs, {"y": np.array([np.nan, np.inf], np.float32)})
    (data,) = store.read_test_data(path)
    assert list(data.inputs) == list(inputs)
    for name, array in inputs.items():
        assert data.inputs[name].dtype == array.dtype
        np.testing.assert_array_equal(data.inputs[name], array)
    np.testing.assert_array_equal(data.outputs["y"], np.array([np.nan, np.inf], np.float32))


def test_nameless_test_tensors_get_the_names_of_the_graph(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx")
    folder = tmp_path / "test_data_set_0"
    folder.mkdir()
    for kind in ("input_0", "output_0"):
        (folder / f"{kind}.pb").write_bytes(onnx.numpy_helper.from_array(np.ones(2, np.float32)).SerializeToString())
    (folder / "input_note.pb").write_bytes(b"ignored")
    (data,) = store.read_test_data(path, (["x"], ["y"]))
    assert list(data.inputs) == ["x"] and list(data.outputs) == ["y"]


def test_a_damaged_test_tensor_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx")
    (tmp_path / "test_data_set_0").mkdir()
    (tmp_path / "test_data_set_0" / "input_0.pb").write_bytes(b"\xff\xff\xff")
    with pytest.raises(OpsmithError, match=r"input_0\.pb is not a readable test tensor"):
        store.read_test_data(path)


# --- writing ----------------------------------------------------------------------------------------------


def test_a_variant_is_named_after_its_folders_and_records_how_it_was_made(tmp_path: Path) -> None:
    with store.new_variant(tmp_path / "bert" / "int8", verb="quantize", parent="dynamo", options={"bits": 8}) as draft:
        write(draft.path)
    assert everything(tmp_path / "bert") == ["int8", "int8/bert_int8.onnx", "int8/opsmith.json"]
    (variant,) = store.variants(tmp_path / "bert")
    assert (variant.name, variant.model_name) == ("int8", "bert")
    record = variant.record
    assert (record["verb"], record["parent"], record["options"]) == ("quantize", "dynamo", {"bits": 8})
    assert record["versions"]["onnxruntime"] and record["seconds"] >= 0 and str(tmp_path) not in json.dumps(record)


def test_a_failing_write_leaves_nothing_behind(tmp_path: Path) -> None:
    for failure in (OpsmithError("no"), KeyboardInterrupt(), OSError(28, "No space left on device")):
        with pytest.raises(type(failure)), store.new_variant(tmp_path / "a" / "b" / "c", verb="test") as draft:
            write(draft.path)
            raise failure
    assert everything(tmp_path) == []


def test_a_place_that_cannot_be_written_is_named_as_the_user_wrote_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = pytest.raises(OpsmithError, match=r"/file/out\.onnx cannot be written: .* \(choose another place\)$")
    with said, store.new_variant(tmp_path / "file" / "out.onnx", verb="test"):
        pass


def test_a_failing_write_leaves_the_old_variant_as_it_was(tmp_path: Path) -> None:
    dest = tmp_path / "m" / "v"
    with store.new_variant(dest, verb="first") as draft:
        write(draft.path)
    before = {p: p.read_bytes() for p in dest.iterdir()}
    with pytest.raises(KeyboardInterrupt), store.new_variant(dest, verb="second") as draft:
        draft.path.write_bytes(b"half")
        raise KeyboardInterrupt
    assert {p: p.read_bytes() for p in dest.iterdir()} == before
    assert everything(tmp_path / "m") == ["v", "v/m_v.onnx", "v/opsmith.json"]


def test_a_failing_move_puts_the_old_variant_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dest = tmp_path / "m" / "v"
    with store.new_variant(dest, verb="first") as draft:
        write(draft.path)
    real = Path.rename

    def rename(self: Path, target: Path) -> Path:
        if Path(target) == dest and ".tmp" in self.name:
            raise KeyboardInterrupt  # the worst moment: the old one is already out of the way
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(KeyboardInterrupt), store.new_variant(dest, verb="second") as draft:
        write(draft.path)
    monkeypatch.undo()
    assert store.Variant(dest / "m_v.onnx").record["verb"] == "first"
    assert everything(tmp_path / "m") == ["v", "v/m_v.onnx", "v/opsmith.json"]


def test_a_new_variant_replaces_the_old_one_whole(tmp_path: Path) -> None:
    dest = tmp_path / "m" / "v"
    for verb, extra in (("first", "old.txt"), ("second", "new.txt")):
        with store.new_variant(dest, verb=verb) as draft:
            write(draft.path)
            (draft.folder / extra).write_text("")
    assert everything(dest) == ["m_v.onnx", "new.txt", "opsmith.json"]


def test_a_plain_file_can_be_the_destination(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    for _ in range(2):
        with store.new_variant(tmp_path / "out.onnx", verb="test") as draft:
            write(draft.path)
    assert everything(tmp_path) == ["mine.txt", "out.onnx", "out.opsmith.json"]
    assert store.Variant(tmp_path / "out.onnx").record["verb"] == "test"


def test_a_folder_that_is_no_variant_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"meow")
    with pytest.raises(OpsmithError, match="left alone"), store.new_variant(tmp_path / "photos", verb="test"):
        raise AssertionError("not reached")
    assert everything(tmp_path) == ["photos", "photos/cat.jpg"]


def test_weights_go_outside_only_when_they_are_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ir.from_proto(small_model(2000))
    store.save_model(model, tmp_path / "small.onnx")
    monkeypatch.setattr(store, "EMBED_LIMIT", 1000)
    store.save_model(model, tmp_path / "large.onnx")
    assert everything(tmp_path) == ["large.onnx", "large.onnx.data", "small.onnx"]
    x = np.ones((1, 2000), np.float32)
    np.testing.assert_array_equal(
        run(load(tmp_path / "small.onnx"), {"x": x})[0], run(load(tmp_path / "large.onnx"), {"x": x})[0]
    )


# --- a full disk, Ctrl-C: for real, in a process of their own -----------------------------------------------

WRITER = """
import signal, sys, time
from pathlib import Path
from opsmith import store
from opsmith.cli import main

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
sys.path.insert(0, {tests!r})
from test_store import small_model
import onnx_ir as ir

def command():
    store.EMBED_LIMIT = {limit}
    with store.new_variant({dest!r}, verb="test") as draft:
        store.save_model(ir.from_proto(small_model(200_000)), draft.path)
        print("written", flush=True)
        if {wait}:
            time.sleep(60)

import opsmith.cli.inspect
opsmith.cli.inspect.command = command
main(["inspect"])
"""


def start_writer(tmp_path: Path, *, wait: bool, limit: int = 2**30, file_limit: int = 0) -> subprocess.Popen[str]:
    code = WRITER.format(tests=str(Path(__file__).parent), dest=str(tmp_path / "m" / "v"), wait=wait, limit=limit)

    def full_disk() -> None:
        if file_limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))

    source = str(Path(store.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=full_disk,
    )


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX limits")
@pytest.mark.parametrize("limit", [2**30, 1000], ids=["embedded", "external data"])
def test_a_disk_that_fills_up_is_one_line_exit_2_and_nothing_left(tmp_path: Path, limit: int) -> None:
    done = start_writer(tmp_path, wait=False, limit=limit, file_limit=100_000)
    _, said = done.communicate(timeout=60)
    assert done.returncode == 2, said
    assert said.startswith("opsmith: error: ") and said.count("\n") == 1
    assert everything(tmp_path) == []


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_in_the_middle_leaves_nothing_behind(tmp_path: Path, kind: signal.Signals) -> None:
    writer = start_writer(tmp_path, wait=True)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "written\n"
    assert any("m_v.onnx" in name for name in everything(tmp_path))  # it is in the temporary folder by now
    time.sleep(0.2)
    writer.send_signal(kind)
    _, said = writer.communicate(timeout=30)
    assert writer.returncode == 128 + kind, said
    assert said == "opsmith: error: interrupted; nothing half-written was left behind\n"
    assert everything(tmp_path) == []


def test_disk_room_is_given_back(tmp_path: Path) -> None:
    """on_disk writes a model in memory to a temporary file, which goes away."""
    with store.on_disk(ir.from_proto(small_model())) as path:
        assert path.is_file()
    assert not path.parent.exists()
    shutil.rmtree(tmp_path)


# --- larger than a protobuf may be -------------------------------------------------------------------------

ROWS, COLUMNS = 650_000, 1024  # 2.66 GB of float32


def huge_model(folder: Path, scale: float) -> Path:
    """y = table[ids] * scale, with a table whose file is all holes: 2.66 GB that take no room on disk."""
    folder.mkdir(parents=True)
    with (folder / "table.bin").open("wb") as file:
        file.truncate(ROWS * COLUMNS * 4)
        file.seek((ROWS - 1) * COLUMNS * 4)  # the last row, beyond 2 GB, is not zero
        file.write(np.ones(COLUMNS, np.float32).tobytes())
    graph = h.make_graph(
        [h.make_node("Gather", ["table", "ids"], ["rows"]), h.make_node("Mul", ["rows", "scale"], ["y"])],
        "g",
        [h.make_tensor_value_info("ids", T.INT64, ["n"])],
        [h.make_tensor_value_info("y", T.FLOAT, ["n", COLUMNS])],
        [external("table.bin", (ROWS, COLUMNS), "table"), onnx.numpy_helper.from_array(np.float32(scale), "scale")],
    )
    return write(folder / "m.onnx", h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=10))


@pytest.mark.skipif(sys.platform != "linux", reason="needs files with holes")
def test_models_beyond_two_gigabytes_are_mapped_not_read(tmp_path: Path) -> None:
    from opsmith.check.verify import verify
    from opsmith.measure.inspect import ModelInfo, inspect

    a, b = huge_model(tmp_path / "a", 1.0), huge_model(tmp_path / "b", 1.0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    store.write_test_data(a.parent, {"ids": np.array([0, ROWS - 1], np.int64)}, {})
    info = inspect(a)
    assert isinstance(info, ModelInfo) and info.parameters == ROWS * COLUMNS + 1 and (info.size or 0) > 2.6e9
    assert verify(a, b, shapes=1).ok
    (y,) = run(load(a), {"ids": np.array([ROWS - 1], np.int64)})
    assert y.sum() == COLUMNS
    parted = verify(a, huge_model(tmp_path / "c", 2.0), shapes=0, bisect=True).parting
    assert parted is not None and parted.value == "y"
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 1_000_000, f"{grown} kB more memory: the table was read"


def test_nodes_out_of_order_are_sorted_as_onnx_runtime_does(tmp_path):
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { a = Exp(x)  y = Neg(a) }'
    )
    nodes = [model.graph.node[1], model.graph.node[0]]
    shuffled = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del model.graph.node[:]
    model.graph.node.extend(shuffled)
    onnx.save(model, tmp_path / "m.onnx")
    assert [n.op_type for n in store.open_model(tmp_path / "m.onnx").graph] == ["Exp", "Neg"]


def test_a_graph_without_a_name_is_read_as_onnx_runtime_does_and_written_with_one(tmp_path: Path) -> None:
    model = small_model()
    model.graph.name = ""
    onnx.save(model, tmp_path / "m.onnx")
    assert cli("optimize", str(tmp_path / "m.onnx"), str(tmp_path / "better.onnx"), "--quick") == 0
    onnx.checker.check_model(str(tmp_path / "better.onnx"))
    assert cli("compile", str(tmp_path / "m.onnx"), "--dry-run") == 0


def cli(*words: str) -> object:
    """The exit code."""
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return ended.value.code


def classifier(path: Path) -> None:
    """As scikit-learn's converter writes it: a label, and for each row a map from class to score."""
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 15, "ai.onnx.ml": 1]>
        g (float[n, 4] x) => (int64[n] label, float scores) <float[1, 4] scale = {0.5, 2.0, 1.0, -1.0}> {
            even = Mul(x, scale)
            label, rows = ai.onnx.ml.LinearClassifier<classlabels_ints = [0, 1], post_transform = "SOFTMAX",
                coefficients = [1.0, 2.0, 3.0, 4.0, -1.0, 0.5, 0.25, 1.0], intercepts = [0.1, 0.2]>(even)
            scores = ai.onnx.ml.ZipMap<classlabels_int64s = [0, 1]>(rows)
        }""")
    kind = onnx.TypeProto.Map(key_type=T.INT64, value_type=h.make_tensor_type_proto(T.FLOAT, []))
    proto.graph.output[1].type.CopyFrom(h.make_sequence_type_proto(onnx.TypeProto(map_type=kind)))
    onnx.save(proto, path)


def test_a_classifier_that_answers_with_maps_is_rewritten_and_keeps_their_type(tmp_path: Path) -> None:
    classifier(tmp_path / "a.onnx")
    assert cli("optimize", str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx"), "--quick") == 0
    written = onnx.load(tmp_path / "b.onnx")
    onnx.checker.check_model(written)
    assert written.graph.output[1].type.sequence_type.elem_type.map_type.key_type == T.INT64
    assert cli("compile", str(tmp_path / "a.onnx"), "--dry-run") == 0


def test_verify_compares_the_scores_of_maps_within_the_tolerance(tmp_path: Path) -> None:
    classifier(tmp_path / "a.onnx")
    proto = onnx.load(tmp_path / "a.onnx")
    (constants,) = proto.graph.initializer
    for change, code in ((1e-7, 0), (0.5, 1)):
        moved = onnx.numpy_helper.to_array(constants) + np.float32(change)
        proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(moved, "scale"))
        onnx.save(proto, tmp_path / "b.onnx")
        assert cli("verify", str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx")) == code


def test_initializers_that_an_old_file_lists_as_inputs_are_constants(tmp_path: Path) -> None:
    old = small_model()
    old.ir_version = 3
    old.graph.input.append(h.make_tensor_value_info("w", T.FLOAT, [4, 3]))
    onnx.save(old, tmp_path / "old.onnx")
    assert [v.name for v in store.open_model(tmp_path / "old.onnx").graph.inputs] == ["x"]
    newer = small_model()  # here a caller can give another weight
    newer.graph.input.append(h.make_tensor_value_info("w", T.FLOAT, [4, 3]))
    onnx.save(newer, tmp_path / "newer.onnx")
    assert [v.name for v in store.open_model(tmp_path / "newer.onnx").graph.inputs] == ["x", "w"]
