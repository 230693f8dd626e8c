"""One library with code for several CPUs: it picks at load, an option forces one, and their kernels do not mix."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import c_host
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper
from small import graph

import opsmith
from opsmith import machine, model_checks, store
from opsmith.compiler import CompileResult, forms, geometry
from opsmith.compiler.lower import Target
from opsmith.compiler.source import load, prepare
from opsmith.errors import OpsmithError

MODEL = graph(
    """g (float[n, 3, h, w] x) => (float[n, 5] y) {
      c = Conv<pads=[1,1,1,1]>(x, k)  r = Relu(c)  p = GlobalAveragePool(r)  f = Flatten(p)  m = MatMul(f, w)  y = Softmax(m) }"""
)
BOTH = "x86-64-v3,x86-64-v4"
CPUS = geometry.CPUS
FEED = {"x": np.random.default_rng(0).standard_normal((2, 3, 9, 7)).astype(np.float32)}


def runs(cpu: str) -> bool:
    return CPUS[cpu].features <= machine.cpu_features()


pytestmark = pytest.mark.skipif(not runs("x86-64-v3"), reason="an x86-64 CPU with AVX2 is needed")
BEST = "x86-64-v4" if runs("x86-64-v4") else "x86-64-v3"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng, model = np.random.default_rng(1), onnx.ModelProto()
    model.CopyFrom(MODEL)
    for name, shape in (("k", (8, 3, 3, 3)), ("w", (8, 5))):
        model.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
    path = tmp_path_factory.mktemp("source") / "model.onnx"
    onnx.save(model, path)
    return path


@pytest.fixture(scope="module")
def compiled(source: Path, tmp_path_factory: pytest.TempPathFactory) -> CompileResult:
    return opsmith.compile(source, tmp_path_factory.mktemp("fleet") / "both", regions="whole", cpu=BOTH)


def expected(source: Path) -> np.ndarray:
    (y,) = ort.InferenceSession(str(source), providers=["CPUExecutionProvider"]).run(None, FEED)
    return y


def folder(result: CompileResult) -> Path:
    assert result.variant is not None
    return result.variant.folder


def test_every_form_that_runs_here_is_verified_and_the_others_are_named(compiled: CompileResult) -> None:
    for cpu in ("x86-64-v3", "x86-64-v4"):
        said = [r for r in compiled.remarks if cpu in r]
        assert len(said) == 1
        assert said[0].startswith(f"verified for {cpu}: largest error" if runs(cpu) else "not verified")
    assert compiled.variant is not None
    facts = compiled.variant.record["compiled"]
    assert list(facts["forms"]) == ["x86-64-v4", "x86-64-v3"]  # the best first, however they were named
    assert set(facts["cpu_features"]) == CPUS["x86-64-v3"].features
    assert len(list(folder(compiled).glob("*.so"))) == 1


def test_the_best_runs_by_itself_and_each_by_force(
    compiled: CompileResult, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for forced in (None, *filter(runs, ("x86-64-v3", "x86-64-v4"))):
        if forced:
            monkeypatch.setenv("OPSMITH_CPU", forced)
        (y,) = opsmith.load(folder(compiled)).run(None, FEED)
        np.testing.assert_allclose(y, expected(source), rtol=1e-5, atol=1e-6)
        assert (folder(compiled) / "src" / (forced or BEST) / store.ORIGINS).exists()
        assert store.read_origins(store.find_model(folder(compiled)))["region0"]


def test_a_session_option_forces_one_too_and_goes_before_the_environment(
    compiled: CompileResult, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPSMITH_CPU", "pentium")
    with pytest.raises(Exception, match="this library has no code for the CPU pentium"):
        opsmith.load(folder(compiled))
    session = opsmith.load(folder(compiled), config={"opsmith.cpu": "x86-64-v3"})
    np.testing.assert_allclose(session.run(None, FEED)[0], expected(source), rtol=1e-5, atol=1e-6)


def test_the_option_decides_which_code_reads_which_weights(compiled: CompileResult, tmp_path: Path) -> None:
    """With the weights of one form damaged, that form is refused and the other one runs."""
    shutil.copytree(folder(compiled), tmp_path / "damaged")
    path = store.find_model(tmp_path / "damaged")
    packed = [t for t in model_checks.tensors(store.read_proto(path)) if t.name.endswith(".weights")]
    second = {e.key: e.value for e in packed[1].external_data}
    with path.with_name(second["location"]).open("r+b") as file:
        file.seek(int(second["offset"]))
        file.write(b"\xff" * 64)
    with pytest.raises(OpsmithError, match="the weights file was changed"):
        opsmith.load(path, config={"opsmith.cpu": "x86-64-v3"})
    if runs("x86-64-v4"):
        opsmith.load(path, config={"opsmith.cpu": "x86-64-v4"}).run(None, FEED)


def test_each_form_maps_its_own_weights_unless_they_are_packed_alike(source: Path, tmp_path: Path) -> None:
    def packed(cpu: str) -> list[int]:
        dest = tmp_path / cpu.replace(",", "_")
        opsmith.compile(source, dest, regions="whole", cpu=cpu, verify=False)
        tensors = model_checks.tensors(store.read_proto(store.find_model(dest)))
        return [t.dims[0] for t in tensors if t.name.endswith(".weights")]

    assert len(packed(BOTH)) == 2  # vectors of 8 and of 16 floats
    assert len(packed("x86-64-v4,zen4")) == 1


def test_kernels_of_two_forms_share_no_symbol(compiled: CompileResult, tmp_path: Path) -> None:
    """The linker keeps one of two functions with one name: the CPU with AVX2 would run into AVX-512."""
    objects: dict[str, set[str]] = {}
    for cpu, space in (("x86-64-v3", "opsmith_x86_64_v3"), ("x86-64-v4", "opsmith_x86_64_v4")):
        for file in (folder(compiled) / "src" / cpu).glob("*.cpp"):
            made = tmp_path / f"{cpu}.{file.stem}.o"
            flags = [*CPUS[cpu].flags, CPUS[cpu].choice, f"-Dopsmith={space}", "-std=c++20", "-O0", "-fno-exceptions"]
            kernels = Path(opsmith.__file__).parent / "kernels"
            subprocess.run(["g++", *flags, f"-I{kernels}", "-c", file, "-o", made], check=True)
            named = subprocess.run(["nm", "-g", "--defined-only", made], capture_output=True, text=True, check=True)
            objects.setdefault(cpu, set()).update(re.findall(r" [A-Za-z] (\S+)$", named.stdout, re.MULTILINE))
    v3, v4 = objects.values()
    assert len(v3) > 3 and len(v4) > 3
    assert not v3 & v4


@pytest.mark.skipif(shutil.which("qemu-x86_64") is None, reason="qemu-user is not installed")
@pytest.mark.parametrize(("cpu", "message"), [("Haswell", ""), ("Nehalem", "a CPU with .*, which this CPU lacks")])
def test_an_emulated_cpu_without_avx512_picks_its_own_form(
    compiled: CompileResult, source: Path, tmp_path: Path, cpu: str, message: str
) -> None:
    host = c_host.build(tmp_path / "host")
    (runtime,) = (Path(ort.__file__).parent / "capi").glob("libonnxruntime.so.*")
    path = store.find_model(folder(compiled))
    (library,) = path.parent.glob("*.so")
    done = c_host.run(["qemu-x86_64", "-cpu", cpu, host], runtime, library, path, FEED, tmp_path)
    if message:
        assert done.returncode == 1 and re.search(message, done.stderr), done.stderr
        return
    assert done.returncode == 0, done.stderr
    assert c_host.compiled_code_ran(tmp_path)
    y = np.fromfile(tmp_path / "y.out", np.float32).reshape(2, 5)
    np.testing.assert_allclose(y, expected(source), rtol=1e-5, atol=1e-6)


def test_other_weights_for_both_forms(compiled: CompileResult, source: Path, tmp_path: Path) -> None:
    model = onnx.load(source)
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * 2, tensor.name))
    onnx.save(model, tmp_path / "twice.onnx")
    result = opsmith.weights(folder(compiled), tmp_path / "twice.onnx", tmp_path / "new")
    for cpu in filter(runs, ("x86-64-v3", "x86-64-v4")):
        (y,) = opsmith.load(result.variant, config={"opsmith.cpu": cpu}).run(None, FEED)
        np.testing.assert_allclose(y, expected(tmp_path / "twice.onnx"), rtol=1e-5, atol=1e-6)


def test_what_one_cpu_cannot_have_stays_for_all(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = forms.cut

    def picky(given, wanted, target, handed_back=None):  # as if AVX2 had no Softmax
        back = dict(handed_back or {})
        if target.isa.lanes == 8:
            back |= {n.name: "no such kernel" for n in given.working.graph if n.op_type == "Softmax"}
        return real(given, wanted, target, back)

    monkeypatch.setattr(forms, "cut", picky)
    handed_back: dict[str, str] = {}
    targets = {cpu: Target(CPUS[cpu]) for cpu in ("x86-64-v4", "x86-64-v3")}
    cuts = forms.cut_forms(prepare(load(source)), "all", targets, handed_back)
    assert list(handed_back.values()) == ["no such kernel"]
    first, second = ([[n.op_type for n in r.nodes] for r in c.regions] for c in cuts.values())
    assert first == second and "Softmax" not in first[0]


def test_bad_names(source: Path, tmp_path: Path) -> None:
    with pytest.raises(OpsmithError, match="there is no CPU 'pentium'"):
        opsmith.compile(source, tmp_path / "x", cpu="x86-64-v3,pentium")
