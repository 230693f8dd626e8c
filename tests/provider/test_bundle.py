"""`opsmith pack`: the zip is whole, refers to no machine, and loads where it is unpacked, from Python, C and C++."""

from __future__ import annotations

import getpass
import platform
import shutil
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

import opsmith
from opsmith.errors import OpsmithError

MODEL = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n, 8] x) => (float[n, 4] y) { h = MatMul(x, w)  s = Sigmoid(h)  y = Mul(h, s) }"""
FEED = {"x": np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)}
KINDS = ("custom ops", "provider")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    model = onnx.parser.parse_model(MODEL)
    w = np.random.default_rng(1).standard_normal((8, 4)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    for node in model.graph.node:  # as PyTorch's exporter writes it
        node.metadata_props.add(key="pkg.torch.onnx.stack_trace", value=f'File "{folder}/train.py", line 1')
    onnx.save(model, folder / "net.onnx")
    (folder / "LICENSE").write_text("Do what you like.\n")
    return folder / "net.onnx"


@pytest.fixture(scope="module", params=KINDS)
def unpacked(request: pytest.FixtureRequest, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder, on its own."""
    home = tmp_path_factory.mktemp("pack")
    if request.param == "provider":
        opsmith.compile_ep(source, regions="all")
        packed = opsmith.pack(source, home / "net.opsmith.zip")
    else:
        opsmith.compile(source, home / "fast", regions="whole")
        shutil.copyfile(source.parent / "LICENSE", home / "fast" / "LICENSE")
        packed = opsmith.pack(home / "fast", home / "net.opsmith.zip")
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    with zipfile.ZipFile(packed) as archive:
        archive.extractall(elsewhere)
    shutil.rmtree(home)
    return elsewhere / "net"


def expected(source: Path) -> np.ndarray:
    (y,) = ort.InferenceSession(str(source), providers=["CPUExecutionProvider"]).run(None, FEED)
    return y


def test_its_checksums_cover_every_file(unpacked: Path) -> None:
    done = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=unpacked, capture_output=True, text=True, check=True)
    names = {line.split(": ")[0] for line in done.stdout.splitlines()}
    files = {str(f.relative_to(unpacked)) for f in unpacked.rglob("*") if f.is_file()}
    assert names == files - {"SHA256SUMS"}
    assert {"load.py", "load.c", "load.hpp", "LICENSE.txt", "NOTICE.txt", "README.txt", "model.LICENSE"} <= names
    assert "Apache License" in (unpacked / "LICENSE.txt").read_text()


def test_nothing_in_it_refers_to_the_build_machine(unpacked: Path, source: Path) -> None:
    untouched = (
        {source.name} if (unpacked / f"{source.name}.opsmith").exists() else set()
    )  # the provider's is the user's own
    words = [platform.node(), str(Path.home()), str(source.parent), str(Path(opsmith.__file__).parent), sys.prefix]
    words += [f"/{getpass.getuser()}/", "/tmp/"]
    for file in (f for f in unpacked.rglob("*") if f.is_file() and f.name not in untouched):
        content = file.read_bytes()
        assert [w for w in words if len(w) > 3 and w.encode() in content] == [], file


def test_python_without_opsmith_loads_it(unpacked: Path, source: Path) -> None:
    script = f"""
        import sys; sys.path.insert(0, {str(unpacked)!r}); sys.modules["opsmith"] = None
        import numpy as np, load
        np.save("y.npy", load.load().run(None, {{"x": np.load("x.npy")}})[0])"""
    np.save(unpacked.parent / "x.npy", FEED["x"])
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], cwd=unpacked.parent, check=True)
    np.testing.assert_allclose(np.load(unpacked.parent / "y.npy"), expected(source), rtol=1e-5, atol=1e-6)


def test_opsmith_loads_the_folder(unpacked: Path, source: Path) -> None:
    np.testing.assert_allclose(opsmith.load(unpacked).run(None, FEED)[0], expected(source), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("language", ["c", "cpp"])
def test_c_and_cpp_load_it(unpacked: Path, tmp_path: Path, language: str) -> None:
    load = {
        "c": "OrtSession* s; OrtStatus* w = opsmith_load(ort, env, options, a[2], &s); if (w) { puts(ort->GetErrorMessage(w)); return 1; }",
        "cpp": "auto held = opsmith_session(ort, env, options, a[2]); OrtSession* s = held.get();",
    }[language]
    program = f"""
        #include "{unpacked}/load.{"hpp" if language == "cpp" else "c"}"
        #include <dlfcn.h>
        #include <stdio.h>
        int main(int n, char** a) {{
          const OrtApiBase* (*base)(void) = (const OrtApiBase* (*)(void))dlsym(dlopen(a[1], RTLD_NOW), "OrtGetApiBase");
          const OrtApi* ort = base()->GetApi(24);
          OrtEnv* env; OrtSessionOptions* options; size_t inputs = 0;
          ort->CreateEnv(3, "test", &env); ort->CreateSessionOptions(&options);
          {load}
          ort->SessionGetInputCount(s, &inputs);
          printf("%zu inputs\\n", inputs);
          return 0;
        }}"""
    file = tmp_path / f"host.{language}"
    file.write_text(textwrap.dedent(program))
    compiler = ["g++", "-std=c++17"] if language == "cpp" else ["cc"]
    headers = f"-I{Path(__file__).parents[1]}"
    subprocess.run([*compiler, "-Wall", "-Werror", headers, file, "-o", tmp_path / "host", "-ldl"], check=True)
    (runtime,) = (Path(ort.__file__).parent / "capi").glob("libonnxruntime.so.*")
    done = subprocess.run([tmp_path / "host", runtime, unpacked], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "1 inputs\n"), done.stdout + done.stderr


def test_the_same_variant_packs_to_the_same_bytes(source: Path, tmp_path: Path) -> None:
    opsmith.compile(source, tmp_path / "fast", regions="whole")
    packed = []
    for name in "ab":
        (tmp_path / name).mkdir()
        packed.append(opsmith.pack(tmp_path / "fast", tmp_path / name / "net.zip").read_bytes())
    assert packed[0] == packed[1]


@pytest.mark.parametrize("kind", ["plain", "stays", "cut", "name", "folder"])
def test_what_cannot_be_packed_is_one_line(source: Path, tmp_path: Path, kind: str) -> None:
    shutil.copyfile(source, tmp_path / "plain.onnx")
    target, message = tmp_path / "x.zip", "is not a compiled model"
    variant = tmp_path / "plain.onnx"
    if kind == "cut":
        opsmith.compile(source, tmp_path / "fast", regions="whole")
        (library,) = (tmp_path / "fast").glob("*.so")
        library.write_bytes(library.read_bytes()[:1000])
        variant, message = tmp_path / "fast", "is damaged or was changed"
    elif kind == "stays":
        text = """<ir_version: 9, opset_import: ["" : 18]> g (string[n] x) => (string[n] y) { y = Identity (x) }"""
        onnx.save(onnx.parser.parse_model(text), tmp_path / "words.onnx")
        opsmith.compile(tmp_path / "words.onnx", tmp_path / "fast.onnx")
        variant, message = tmp_path / "fast.onnx", "nothing in the model was worth compiling"
        with pytest.raises(OpsmithError, match=message):
            opsmith.weights(variant, tmp_path / "words.onnx", tmp_path / "new.onnx")
    elif kind == "name":
        target, message = tmp_path / "x.tar", "is not the name of a zip file"
    elif kind == "folder":
        target, message = tmp_path / "none" / "x.zip", "does not exist"
    with pytest.raises(OpsmithError, match=message):
        opsmith.pack(variant, target)
    assert not list(tmp_path.glob("*x.zip*"))
