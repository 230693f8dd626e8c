"""Another checkpoint in compiled code: on disk, and in a live session."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper as nh
from quick import own_cache
from safetensors.numpy import save_file
from test_provider import save, weight

import opsmith
from opsmith import machine, provider
from opsmith.cli import main
from opsmith.compiler import geometry
from opsmith.errors import NotTheSame, OpsmithError
from opsmith.provider import native

# The second product stays with ONNX Runtime where a test says so; `first` and `second` are read by two regions then.
MODEL = """
<ir_version: 10, opset_import: ["" : 20]>
m (float[n, 64] x) => (float[n, 64] y) {
  a = MatMul(x, first)  b = Tanh(a)  c = Erf(b)  d = MatMul(c, second)  y = Relu(d)
}"""
X = weight(3, 64, seed=5)


def checkpoint(path: Path, seed: int, text: str = MODEL) -> Path:
    return save(text, path, first=weight(64, 64, seed=seed) / 8, second=weight(64, 64, seed=seed + 1) / 8)


def stock(path: Path) -> np.ndarray:
    return ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": X})[0]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """one.onnx and two.onnx, checkpoints of one model; `compiled` made of the first, and its folder of the provider."""
    folder = tmp_path_factory.mktemp("weights")
    one = checkpoint(folder / "one.onnx", 0)
    checkpoint(folder / "two.onnx", 10)
    opsmith.compile(one, folder / "compiled", regions="all")
    opsmith.compile_ep(one, regions="MatMul*,Tanh*,Relu*")
    return folder


def test_a_second_checkpoint_shares_the_library(home: Path, tmp_path: Path) -> None:
    result = opsmith.weights(home / "compiled", home / "two.onnx", tmp_path / "again")
    assert result.verified is not None and result.verified.ok
    libraries = [next(f.glob("lib*.so")) for f in (home / "compiled", tmp_path / "again")]
    assert libraries[0].name == libraries[1].name and libraries[0].read_bytes() == libraries[1].read_bytes()
    got = opsmith.load(tmp_path / "again").run(None, {"x": X})[0]
    np.testing.assert_allclose(got, stock(home / "two.onnx"), rtol=1e-5, atol=1e-6)
    assert not np.allclose(got, stock(home / "one.onnx"), atol=1e-3)


def test_what_was_made_from_another_model_is_replaced_on_request(home: Path, tmp_path: Path) -> None:
    kept = shutil.copy(home / "one.onnx", tmp_path / "again.onnx")
    with pytest.raises(OpsmithError, match="was not made by opsmith.*--overwrite"):
        opsmith.weights(home / "compiled", home / "two.onnx", kept, verify=False)
    assert Path(kept).read_bytes() == (home / "one.onnx").read_bytes()
    opsmith.weights(home / "compiled", home / "two.onnx", kept, verify=False, overwrite=True)
    assert Path(kept).read_bytes() != (home / "one.onnx").read_bytes()


def test_weights_in_files_of_their_own(home: Path, tmp_path: Path) -> None:
    two = tmp_path / "two.onnx"
    onnx.save(onnx.load(home / "two.onnx"), two, save_as_external_data=True, location="two.bin", size_threshold=0)
    opsmith.weights(home / "compiled", two, tmp_path / "again")
    got = opsmith.load(tmp_path / "again").run(None, {"x": X})[0]
    np.testing.assert_allclose(got, stock(two), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("prefix", ["", "model."])
def test_tensors_by_name(home: Path, tmp_path: Path, prefix: str) -> None:
    tensors = {prefix + t.name: nh.to_array(t) for t in onnx.load(home / "two.onnx").graph.initializer}
    save_file(tensors, tmp_path / "two.safetensors")
    opsmith.weights(home / "compiled", tmp_path / "two.safetensors", tmp_path / "again", source=home / "one.onnx")
    got = opsmith.load(tmp_path / "again").run(None, {"x": X})[0]
    np.testing.assert_allclose(got, stock(home / "two.onnx"), rtol=1e-5, atol=1e-6)


def test_a_tensor_that_is_missing_or_of_another_shape_is_named(home: Path, tmp_path: Path) -> None:
    save_file({"first": weight(64, 64)}, tmp_path / "a.safetensors")
    with pytest.raises(NotTheSame, match="has no tensor second"):
        opsmith.weights(home / "compiled", tmp_path / "a.safetensors", tmp_path / "x", source=home / "one.onnx")
    save_file({"first": weight(64, 32), "second": weight(64, 64)}, tmp_path / "b.safetensors")
    with pytest.raises(NotTheSame, match=r"first is \[64, 64\] in the model and \[64, 32\]"):
        opsmith.weights(home / "compiled", tmp_path / "b.safetensors", tmp_path / "x", source=home / "one.onnx")
    assert not (tmp_path / "x").exists()


def test_another_structure_is_refused_with_its_first_difference(home: Path, tmp_path: Path) -> None:
    other = checkpoint(tmp_path / "other.onnx", 10, MODEL.replace("Tanh", "Sigmoid"))
    with pytest.raises(
        NotTheSame,
        match=r"does not have the structure that was compiled: first in region0: '.*Tanh_b.*' is '.*Sigmoid_b",
    ):
        opsmith.weights(home / "compiled", other, tmp_path / "x")


def test_weights_of_another_library_are_refused(home: Path, tmp_path: Path) -> None:
    """Not only by size: the seal says which library they were packed for."""
    other = checkpoint(tmp_path / "other.onnx", 10, MODEL.replace("Tanh", "Sigmoid"))
    opsmith.compile_ep(other, regions="MatMul*,Sigmoid*,Relu*")
    running = ort.InferenceSession(str(home / "one.onnx"), opsmith.session_options())
    with pytest.raises(OpsmithError, match="weights stay as they are: .*does not belong to this library"):
        opsmith.swap(running, other)
    np.testing.assert_allclose(running.run(None, {"x": X})[0], stock(home / "one.onnx"), rtol=1e-5, atol=1e-6)


def test_a_second_model_gets_its_folder_without_compiling(
    home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    two = Path(shutil.copy(home / "two.onnx", tmp_path))
    with pytest.raises(SystemExit) as stop:
        main(["weights", str(home / "one.onnx"), str(two), "--ep", "--quiet"])
    assert stop.value.code == 0 and capfd.readouterr().out == f"{provider.sidecar(two)}\n"
    running = ort.InferenceSession(str(two), opsmith.session_options())
    assert all("runs natively" in line for line in native.last_report())
    np.testing.assert_allclose(running.run(None, {"x": X})[0], stock(two), rtol=1e-5, atol=1e-6)


def test_a_live_session_gets_other_weights_and_its_own_back(home: Path) -> None:
    opsmith.weights_ep(home / "one.onnx", home / "two.onnx")
    running = ort.InferenceSession(str(home / "one.onnx"), opsmith.session_options())
    expected = [stock(home / f"{name}.onnx") for name in ("one", "two")]
    for which in (1, 0, 1):
        opsmith.swap(running, home / ("two.onnx" if which else "one.onnx"))
        np.testing.assert_allclose(running.run(None, {"x": X})[0], expected[which], rtol=1e-5, atol=1e-6)


def test_named_arrays_in_a_live_session(home: Path, tmp_path: Path) -> None:
    changed = weight(64, 64, seed=99)
    model = onnx.load(home / "one.onnx")
    model.graph.initializer[0].CopyFrom(nh.from_array(changed, "first"))
    onnx.save(model, tmp_path / "changed.onnx")
    running = ort.InferenceSession(str(home / "one.onnx"), opsmith.session_options())
    opsmith.swap(running, {"first": changed})
    np.testing.assert_allclose(running.run(None, {"x": X})[0], stock(tmp_path / "changed.onnx"), rtol=1e-5, atol=1e-6)
    with pytest.raises(NotTheSame, match="no weight third"):
        opsmith.swap(running, {"third": changed})
    with pytest.raises(NotTheSame, match="first is"):
        opsmith.swap(running, {"first": changed[:3]})


def test_a_weight_that_onnxruntime_reads_itself_is_refused(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "m.onnx", 0)
    opsmith.compile_ep(path, regions="MatMul_d,Relu*")
    running = ort.InferenceSession(str(path), opsmith.session_options())
    with pytest.raises(OpsmithError, match="first is read by MatMul_a, which runs in ONNX Runtime"):
        opsmith.swap(running, {"first": weight(64, 64)})


def test_a_checkpoint_with_other_weights_in_onnxruntimes_own_part_is_refused(tmp_path: Path) -> None:
    """Half of its weights would be the old ones: a third model, which nobody asked for."""
    one, two = (checkpoint(tmp_path / f"{name}.onnx", seed) for name, seed in (("one", 0), ("two", 10)))
    opsmith.compile_ep(one, regions="MatMul_d,Relu*")
    opsmith.weights_ep(one, two)
    running = ort.InferenceSession(str(one), opsmith.session_options())
    with pytest.raises(OpsmithError, match="differs in what ONNX Runtime itself runs"):
        opsmith.swap(running, two)
    np.testing.assert_allclose(running.run(None, {"x": X})[0], stock(one), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(  # the model itself is fine
        ort.InferenceSession(str(two), opsmith.session_options()).run(None, {"x": X})[0],
        stock(two),
        rtol=1e-5,
        atol=1e-6,
    )


@pytest.mark.skipif(not geometry.CPUS["x86-64-v4"].features <= machine.cpu_features(), reason="both must run here")
def test_a_folder_for_several_cpus_gets_weights_for_each(tmp_path: Path) -> None:
    one, two = (checkpoint(tmp_path / f"{name}.onnx", seed) for name, seed in (("one", 0), ("two", 10)))
    opsmith.compile_ep(one, regions="all", cpu="x86-64-v4,x86-64-v3")
    opsmith.weights_ep(one, two)
    for target in ("x86-64-v4", "x86-64-v3"):
        running = ort.InferenceSession(str(one), opsmith.session_options(target=target))
        assert f"code for {target} is used" in native.last_report()
        for path in (two, one):
            opsmith.swap(running, path)
            np.testing.assert_allclose(running.run(None, {"x": X})[0], stock(path), rtol=1e-5, atol=1e-6)
        opsmith.swap(running, {t.name: nh.to_array(t) for t in onnx.load(two).graph.initializer})
        np.testing.assert_allclose(running.run(None, {"x": X})[0], stock(two), rtol=1e-5, atol=1e-6)


def test_regions_in_the_cache_take_other_weights_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPSMITH_CACHE", str(own_cache(tmp_path / "cache")))
    one, two = (checkpoint(tmp_path / f"{name}.onnx", seed) for name, seed in (("one", 0), ("two", 10)))
    opsmith.compile_ep(one, cache=True, regions="all")
    running = ort.InferenceSession(str(one), opsmith.session_options())
    opsmith.swap(running, {t.name: nh.to_array(t) for t in onnx.load(two).graph.initializer})
    np.testing.assert_allclose(running.run(None, {"x": X})[0], stock(two), rtol=1e-5, atol=1e-6)
    with pytest.raises(OpsmithError, match="two.onnx has no compiled regions .opsmith compile"):
        opsmith.swap(running, two)


def test_a_session_without_the_provider_is_refused(home: Path) -> None:
    with pytest.raises(OpsmithError, match="sessions of the execution provider"):
        opsmith.swap(opsmith.load(home / "one.onnx"), home / "two.onnx")


def test_a_thousand_concurrent_runs_see_all_of_a_set_or_none_of_it(home: Path) -> None:
    """Two regions with ONNX Runtime's node between them: half old, half new would be a third result."""
    opsmith.weights_ep(home / "one.onnx", home / "two.onnx")
    running = ort.InferenceSession(str(home / "one.onnx"), opsmith.session_options(threads=1))
    assert len(native.last_report()) == 2
    expected = np.stack([stock(home / f"{name}.onnx") for name in ("one", "two")])
    runs, wrong, seen = [0], [], set()
    lock = threading.Lock()

    def work() -> None:
        while runs[0] < 1000 or (seen != {0, 1} and runs[0] < 100_000):
            with lock:
                runs[0] += 1
            errors = abs(expected - running.run(None, {"x": X})[0]).reshape(2, -1).max(1)
            seen.add(int(errors.argmin()))
            if errors.min() > 1e-5:
                wrong.append(errors)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    swaps = 0
    while any(t.is_alive() for t in threads):
        opsmith.swap(running, home / ("two.onnx" if swaps % 2 == 0 else "one.onnx"))
        swaps += 1
    for t in threads:
        t.join()
    assert wrong == [] and seen == {0, 1}
    assert provider.sidecar(home / "two.onnx").exists() and swaps >= 2
