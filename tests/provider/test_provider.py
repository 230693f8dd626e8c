"""The execution provider: an untouched model runs with its compiled regions, and whatever is wrong with them is one line."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import c_host
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper as nh
from quick import own_cache

import opsmith
from opsmith import machine, provider, session
from opsmith.compiler import geometry
from opsmith.errors import OpsmithError
from opsmith.provider import native

# Two inputs, an elementwise end, and a Shape that reads from inside.
MLP = """
<ir_version: 10, opset_import: ["" : 20]>
mlp (float[n, 8] x, float[n, 4] bias) => (float[n, 4] y, int64[2] size) {
  h = MatMul(x, w)  a = Add(h, bias)  s = Sigmoid(a)  g = Mul(a, s)  size = Shape(g)  y = Softmax(g)
}"""


def save(text: str, path: Path, **weights: np.ndarray) -> Path:
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(nh.from_array(a, n) for n, a in weights.items())
    onnx.save(model, path)
    return path


def weight(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def stock(path: Path, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    return list(ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, feed))


def through(path: Path, feed: dict[str, np.ndarray], **options: str) -> tuple[list[np.ndarray], list[str]]:
    """Outputs through the provider, and what it says."""
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    settings.add_provider_for_devices(opsmith.register()[:1], options)
    running = ort.InferenceSession(str(path), settings)
    said = native.last_report()
    return list(running.run(None, feed)), said


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """mlp.onnx with its folder."""
    path = save(MLP, tmp_path_factory.mktemp("made") / "mlp.onnx", w=weight(8, 4))
    opsmith.compile_ep(path, regions="all")
    return path


@pytest.fixture
def mlp(made: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may damage."""
    shutil.copytree(made.parent, tmp_path / "m")
    return tmp_path / "m" / "mlp.onnx"


FEED = {"x": weight(5, 8, seed=1), "bias": weight(5, 4, seed=2)}


def assert_same(path: Path, got: list[np.ndarray]) -> None:
    for a, b in zip(stock(path, FEED), got, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_an_untouched_model_runs_natively(mlp: Path) -> None:
    got, said = through(mlp, FEED)
    assert_same(mlp, got)
    assert [line.split(",")[0] for line in said] == ["region0 runs natively"]


def test_two_lines_are_all_that_a_script_needs(mlp: Path) -> None:
    running = ort.InferenceSession(str(mlp), opsmith.session_options())
    assert running.get_providers()[0] == session.PROVIDER
    assert_same(mlp, running.run(None, FEED))


def test_the_command_line_makes_the_folder_and_verifies_through_it(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    from opsmith.cli import main

    path = save(MLP, tmp_path / "mlp.onnx", w=weight(8, 4))
    before = path.read_bytes()
    for command in (
        ["compile", path, "--ep", "--regions", "all"],
        ["verify", path, "--via", "ep"],
        ["explain-session", path],
    ):
        with pytest.raises(SystemExit) as end:
            main([str(c) for c in command])
        assert not end.value.code
    said = capsys.readouterr().out
    assert "region0 runs natively" in said and "the same" in said
    assert path.read_bytes() == before


def test_bench_adds_the_model_through_the_provider(mlp: Path) -> None:
    result = opsmith.bench(mlp, via="ep", rounds=1, processes=1, seconds=0.1)
    assert [e.label for e in result.entries] == ["m", "m via ep"]
    assert result.verified


def test_regions_are_claimed_behind_what_onnxruntime_fused_and_folded(tmp_path: Path) -> None:
    """Identity, a constant expression and a Conv with BatchNormalization all vanish before the provider sees the graph."""
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    m (float[1, 3, 6, 6] x) => (float[1, 4, 6, 6] y) {
      i = Identity(x)  c = Conv <pads=[1,1,1,1]> (i, w)  b = BatchNormalization(c, scale, shift, mean, var)
      two = Add(one, one)  r = Relu(b)  y = Mul(r, two)
    }"""
    four = {n: abs(weight(4, seed=i)) for i, n in enumerate(("scale", "shift", "mean", "var"))}
    path = save(text, tmp_path / "m.onnx", w=weight(4, 3, 3, 3), one=np.float32([1]), **four)
    opsmith.compile_ep(path, regions="all")
    feed = {"x": weight(1, 3, 6, 6)}
    got, said = through(path, feed)
    np.testing.assert_allclose(stock(path, feed)[0], got[0], rtol=1e-4, atol=1e-5)
    assert "runs natively" in said[0]


def test_several_regions_with_onnxruntimes_nodes_between_them(tmp_path: Path) -> None:
    path = save(MLP, tmp_path / "mlp.onnx", w=weight(8, 4))
    result = opsmith.compile_ep(path, regions="MatMul*,Add*,Softmax*")
    assert len(result.regions) == 2 and len(result.left) == 3
    got, said = through(path, FEED)
    assert_same(path, got)
    assert [line.split(",")[0] for line in said] == ["region0 runs natively", "region1 runs natively"]


def test_a_region_whose_input_is_gone_stays_with_a_reason(tmp_path: Path) -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 20]>
    m (float[4, 8] x) => (float[4, 4] y) { h = MatMul(x, w)  a = Add(h, b)  y = Exp(a) }"""
    path = save(text, tmp_path / "m.onnx", w=weight(8, 4), b=weight(4, seed=1))
    opsmith.compile_ep(path, regions="Add*,Exp*")  # ORT makes one Gemm of MatMul and Add: `h` vanishes
    feed = {"x": weight(4, 8)}
    got, said = through(path, feed)
    np.testing.assert_allclose(stock(path, feed)[0], got[0], rtol=1e-6)
    assert said == ["Opsmith: region0 stays with ONNX Runtime: its input h is gone: ONNX Runtime fused or folded it"]


def test_both_branches_of_an_if_with_values_of_the_same_names(tmp_path: Path) -> None:
    branch = "() => (float[n, 4] y) {{ h = {}(x)  y = MatMul(h, {}) }}"
    text = f"""
    <ir_version: 10, opset_import: ["" : 20]>
    m (float[n, 4] x, bool c) => (float[n, 4] z) {{
      y = If (c) <then_branch = t {branch.format("Exp", "w1")}, else_branch = e {branch.format("Neg", "w2")}>
      z = Relu(y)
    }}"""
    path = save(text, tmp_path / "m.onnx", w1=weight(4, 4), w2=weight(4, 4, seed=1))
    result = opsmith.compile_ep(path, regions="all")
    assert [op for op, _, _ in result.left] == ["If"]  # what the branches give has the name of what the If gives
    for c in (True, False):
        feed = {"x": weight(2, 4), "c": np.array(c)}
        got, said = through(path, feed)
        np.testing.assert_allclose(stock(path, feed)[0], got[0], rtol=1e-4, atol=1e-5)
        assert sum("runs natively" in line for line in said) == 3


def test_concurrent_runs_and_sessions_agree(mlp: Path) -> None:
    sessions = [ort.InferenceSession(str(mlp), opsmith.session_options(threads=2)) for _ in range(2)]
    expected = stock(mlp, FEED)[0]
    wrong: list[float] = []

    def work(running: ort.InferenceSession) -> None:
        for _ in range(50):
            error = float(abs(running.run(["y"], FEED)[0] - expected).max())
            if error > 1e-5:
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(s,)) for s in (*sessions, *sessions)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


# --- where the regions come from ---


def test_the_cache_is_found_by_content_wherever_the_model_lies(
    optimized: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is compiled here is kept only if it is fast."""
    monkeypatch.setenv("OPSMITH_CACHE", str(own_cache(tmp_path / "cache")))
    path = save(MLP, tmp_path / "mlp.onnx", w=weight(8, 4, seed=7))
    options = opsmith.session_options(path, compile=True)
    assert not provider.sidecar(path).exists()
    moved = Path(shutil.copy(path, tmp_path / "elsewhere.onnx"))
    assert_same(moved, ort.InferenceSession(str(moved), options).run(None, FEED))
    assert "runs natively" in native.last_report()[0]


def test_a_changed_model_is_never_run_with_old_code(mlp: Path) -> None:
    save(MLP.replace("Sigmoid", "Tanh"), mlp, w=weight(8, 4))
    got, said = through(mlp, FEED, cache="none")
    assert_same(mlp, got)
    assert len(said) == 1 and "was compiled for another model" in said[0]


def test_changed_external_data_is_noticed(tmp_path: Path) -> None:
    path = save(MLP, tmp_path / "mlp.onnx", w=weight(8, 4))
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="mlp.bin", size_threshold=0)
    opsmith.compile_ep(path, regions="all")
    assert "runs natively" in through(path, FEED)[1][0]
    data = bytearray((tmp_path / "mlp.bin").read_bytes())
    data[40] ^= 1
    (tmp_path / "mlp.bin").write_bytes(data)
    got, said = through(path, FEED)
    assert_same(path, got)
    assert "other weights than those in" in said[0]


def test_no_folder_is_said_once_and_the_model_runs(tmp_path: Path) -> None:
    path = save(MLP, tmp_path / "mlp.onnx", w=weight(8, 4, seed=9))
    got, said = through(path, FEED)
    assert_same(path, got)
    assert len(said) == 1 and "no compiled regions for" in said[0]
    with pytest.raises(OpsmithError, match="would run on ONNX Runtime alone"):
        provider.ready(path)


def test_a_folder_without_regions_names_the_command_that_makes_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider, "explain_session", lambda model: [])
    with pytest.raises(OpsmithError, match="nothing of it was worth compiling.*--ep --regions all"):
        provider.ready(tmp_path / "m.onnx")


# --- bad folders ---


def _other_version(folder: Path) -> None:
    text = (folder / "manifest").read_text()
    (folder / "manifest").write_text(text.replace("opsmith regions 2", "opsmith regions 99"))


def _manifest(old: str, new: str):
    def damage(folder: Path) -> None:
        text = (folder / "manifest").read_text()
        assert old in text
        (folder / "manifest").write_text(text.replace(old, new))

    return damage


def _cut(pattern: str):
    def damage(folder: Path) -> None:
        (file,) = folder.glob(pattern)
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])

    return damage


def _flip(pattern: str):
    def damage(folder: Path) -> None:
        (file,) = folder.glob(pattern)
        content = bytearray(file.read_bytes())
        content[len(content) // 3] ^= 16
        file.write_bytes(content)

    return damage


def _remove(pattern: str):
    return lambda folder: next(folder.glob(pattern)).unlink()


def _library_of_another_version(folder: Path) -> None:
    """As a future Opsmith would write it: whole, but with another table of regions."""
    (old,) = folder.glob("libmlp*.so")
    source = folder / "other.c"
    source.write_text("const unsigned table[4] = {99}; const void* OpsmithRegions(void) { return table; }")
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(old)], check=True)
    _redigest(folder, old)


def _redigest(folder: Path, file: Path) -> None:
    rows = (folder / "manifest").read_text().splitlines()
    rows = [f"library {native.digest(file)} {file.name}" if r.startswith("library ") else r for r in rows]
    (folder / "manifest").write_text("\n".join(rows) + "\n")


DAMAGES = {
    "manifest of another version": (_other_version, "another version of Opsmith"),
    "manifest that is cut": (_cut("manifest"), "is damaged|another model"),
    "empty manifest": (lambda f: (f / "manifest").write_bytes(b""), "is damaged"),
    "manifest that leads elsewhere": (_manifest(" libmlp", " ../libmlp"), "is damaged"),
    "library that is cut": (_cut("libmlp*.so"), "damaged or was changed"),
    "library that was changed": (_flip("libmlp*.so"), "damaged or was changed"),
    "library that is missing": (_remove("libmlp*.so"), "is missing"),
    "library of another version": (_library_of_another_version, "another version of Opsmith"),
    "weights that are cut": (_cut("weights"), "cut off"),
    "weights that were changed": (_flip("weights"), "changed after compilation"),
    "weights that are missing": (_remove("weights"), "is missing"),
    "another CPU": (_manifest("features ", "features avx1024 "), "a CPU with avx1024, which this CPU lacks"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_bad_folder_is_one_line_and_stock_onnxruntime(mlp: Path, kind: str) -> None:
    damage, expected = DAMAGES[kind]
    damage(provider.sidecar(mlp))
    got, said = through(mlp, FEED, cache="none")
    assert_same(mlp, got)
    assert len(said) == 1
    assert re.search(expected, said[0]), said[0]
    assert said[0].endswith("The model runs on ONNX Runtime alone.")


def test_an_old_onnxruntime_gets_one_line(tmp_path: Path) -> None:
    """The provider asks for API 24; a runtime without it must get a status, not a crash."""
    host = tmp_path / "host.c"
    host.write_text(
        textwrap.dedent("""
        #include <dlfcn.h>
        #include <stdint.h>
        #include <stdio.h>
        static void* status(int code, const char* message) { puts(message); return (void*)1; }
        static void* table[1] = {(void*)status};
        static const void* get(uint32_t version) { return version == 1 ? table : 0; }
        static const char* name(void) { return "1.10"; }
        struct { const void* (*get)(uint32_t); const char* (*name)(void); } base = {get, name};
        int main(int n, char** a) {
          void* (*make)(const char*, void*, void*, void**, size_t, size_t*) = dlsym(dlopen(a[1], RTLD_NOW), "CreateEpFactories");
          void* factory; size_t count;
          return make("x", &base, 0, &factory, 1, &count) ? 0 : 1;
        }""")
    )
    subprocess.run(["cc", str(host), "-o", str(tmp_path / "host"), "-ldl"], check=True)
    done = subprocess.run([tmp_path / "host", native.library()], capture_output=True, text=True, check=True)
    assert done.stdout == "opsmith: the execution provider needs ONNX Runtime 1.24 or newer\n"


# --- hosts other than Python ---


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return c_host.build(tmp_path_factory.mktemp("c") / "host")


def run_in_c(host: Path, model: Path, *emulator: str) -> subprocess.CompletedProcess[str]:
    """Outputs lie beside the model."""
    (runtime,) = (Path(ort.__file__).parent / "capi").glob("libonnxruntime.so.*")
    return c_host.run([*emulator, host], runtime, native.library(), model, FEED, model.parent)


def test_a_c_program_runs_it_with_the_wheels_own_library(mlp: Path, host: Path) -> None:
    done = run_in_c(host, mlp)
    assert done.returncode == 0, done.stderr
    got = [np.fromfile(mlp.parent / "y.out", np.float32).reshape(5, 4), np.fromfile(mlp.parent / "size.out", np.int64)]
    assert_same(mlp, got)
    assert c_host.compiled_code_ran(mlp.parent)


# --- EPContext ---


def test_onnxruntimes_compiler_writes_a_model_that_holds_our_regions(mlp: Path, tmp_path: Path) -> None:
    written = tmp_path / "out" / "ctx.onnx"
    written.parent.mkdir()
    ort.ModelCompiler(opsmith.session_options(), str(mlp)).compile_to_file(str(written))
    assert {n.op_type for n in onnx.load(written).graph.node} >= {"EPContext"}
    shutil.rmtree(mlp.parent)  # it stands on its own
    got, _ = through(written, FEED)
    save(MLP, tmp_path / "mlp.onnx", w=weight(8, 4))
    assert_same(tmp_path / "mlp.onnx", got)
    _flip("manifest")(provider.sidecar(written))
    with pytest.raises(Exception, match="EPContext"):
        through(written, FEED)


def test_a_compiled_model_for_another_cpu_is_refused(mlp: Path, tmp_path: Path, host: Path) -> None:
    written = tmp_path / "ctx.onnx"
    ort.ModelCompiler(opsmith.session_options(), str(mlp)).compile_to_file(str(written))
    model = onnx.load(written)
    (entry,) = model.metadata_props
    devices, answers = opsmith.register(), ort.capi._pybind_state.OrtCompiledModelCompatibility
    ask = ort.capi._pybind_state.get_model_compatibility_for_ep_devices
    assert ask(devices, entry.value) == answers.EP_SUPPORTED_OPTIMAL
    assert run_in_c(host, written).returncode == 0
    entry.value = entry.value.replace("features ", "features avx1024 ")
    onnx.save(model, written)
    assert ask(devices, entry.value) == answers.EP_UNSUPPORTED
    assert ask(devices, "opsmith regions 99; features avx") == answers.EP_UNSUPPORTED
    done = run_in_c(host, written)
    assert done.returncode == 1
    assert "Compiled model is not supported by execution provider: OpsmithExecutionProvider" in done.stderr


def test_a_process_that_never_saw_opsmith_needs_only_the_folder(mlp: Path) -> None:
    script = textwrap.dedent(f"""
        import numpy as np, onnxruntime as ort, sys
        ort.register_execution_provider_library("opsmith", {str(provider.sidecar(mlp) / "libopsmith_provider.so")!r})
        options = ort.SessionOptions()
        options.add_provider_for_devices([d for d in ort.get_ep_devices() if d.ep_name == "OpsmithExecutionProvider"], {{}})
        session = ort.InferenceSession({str(mlp)!r}, options)
        session.run(None, {{"x": np.ones((1, 8), np.float32), "bias": np.ones((1, 4), np.float32)}})
        assert "opsmith" not in sys.modules
    """)
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- one folder for several CPUs ---


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = save(MLP, tmp_path_factory.mktemp("fleet") / "mlp.onnx", w=weight(8, 4))
    opsmith.compile_ep(path, regions="all", cpu="x86-64-v3,x86-64-v4")
    return path


def _runs(cpu: str) -> bool:
    return geometry.CPUS[cpu].features <= machine.cpu_features()


X86 = pytest.mark.skipif(not _runs("x86-64-v3"), reason="an x86-64 CPU with AVX2 is needed")


@X86
def test_one_folder_holds_several_cpus_and_the_best_runs(fleet: Path) -> None:
    rows = (provider.sidecar(fleet) / "manifest").read_text().splitlines()
    assert [r for r in rows if r.startswith("target")] == ["target x86-64-v4", "target x86-64-v3"]
    got, said = through(fleet, FEED)
    assert_same(fleet, got)
    assert said[0] == f"code for {'x86-64-v4' if _runs('x86-64-v4') else 'x86-64-v3'} is used"
    got, said = through(fleet, FEED, target="x86-64-v3")
    assert_same(fleet, got)
    assert said[0] == "code for x86-64-v3 is used"
    got, said = through(fleet, FEED, target="zen9", cache="none")
    assert_same(fleet, got)
    assert "has no code for the target zen9" in said[0]


@X86
@pytest.mark.skipif(shutil.which("qemu-x86_64") is None, reason="qemu-user is not installed")
def test_a_cpu_without_avx512_picks_its_own_code(fleet: Path, host: Path, tmp_path: Path) -> None:
    """Haswell, emulated. The C host and ONNX Runtime run under the emulator, too."""
    done = run_in_c(host, fleet, "qemu-x86_64", "-cpu", "Haswell")
    assert done.returncode == 0, done.stderr
    got = [
        np.fromfile(fleet.parent / "y.out", np.float32).reshape(5, 4),
        np.fromfile(fleet.parent / "size.out", np.int64),
    ]
    assert_same(fleet, got)
    assert c_host.compiled_code_ran(fleet.parent)


@X86
def test_a_plain_variant_for_another_cpu_states_what_it_needs(tmp_path: Path) -> None:
    path = save(MLP, tmp_path / "mlp.onnx", w=weight(8, 4))
    result = opsmith.compile(path, tmp_path / "v3", regions="all", cpu="x86-64-v3")
    assert result.variant is not None and result.verified is not None and result.verified.ok
    assert set(result.variant.record["compiled"]["cpu_features"]) == geometry.CPUS["x86-64-v3"].features
    with pytest.raises(OpsmithError, match="there is no CPU 'pentium'"):
        opsmith.compile(path, tmp_path / "x", cpu="pentium")
