"""Libraries for machines that are not here: aarch64 runs under qemu, Windows under wine, macOS is linked and looked at."""

from __future__ import annotations

import shutil
from pathlib import Path

import c_host
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper
from real_models import onnxruntime_for, swift_f0
from small import graph

import opsmith
from opsmith.compiler.system import here
from opsmith.errors import OpsmithError

MODEL = """g (float[n, 8] x) => (float[n, 4] y) { h = MatMul(x, w)  s = Sigmoid(h)  g = Mul(h, s)  y = Softmax(g) }"""
FEED = {"x": np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = graph(MODEL)
    w = np.random.default_rng(1).standard_normal((8, 4)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    path = tmp_path_factory.mktemp("source") / "model.onnx"
    onnx.save(model, path)
    return path


def expected(path: Path, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return {o.name: y for o, y in zip(session.get_outputs(), session.run(None, feed), strict=True)}


def assert_written(folder: Path, wanted: dict[str, np.ndarray], **tolerance: float) -> None:
    for name, y in wanted.items():
        got = np.fromfile(folder / f"{name}.out", y.dtype).reshape(y.shape)
        np.testing.assert_allclose(got, y, **tolerance)
    assert c_host.compiled_code_ran(folder)


# --- aarch64 ---


def arm_root(folder: Path) -> Path:
    """What the emulated programs see: the C library, and a /proc/cpuinfo of an ARM machine, which ONNX Runtime reads at load."""
    (folder / "proc").mkdir(parents=True)
    (folder / "lib").symlink_to("/usr/aarch64-linux-gnu/lib")
    rows = "processor: {}\nFeatures: fp asimd\nCPU implementer: 0x41\nCPU architecture: 8\nCPU variant: 0x3\nCPU part: 0xd0c\nCPU revision: 1\n"
    (folder / "proc" / "cpuinfo").write_text("\n".join(rows.format(i) for i in range(2)))
    return folder


ARM = pytest.mark.skipif(
    shutil.which("qemu-aarch64") is None
    or shutil.which("aarch64-linux-gnu-gcc") is None
    or here().architecture == "aarch64",
    reason="qemu-user or gcc-aarch64-linux-gnu is not installed",
)


@ARM
def test_a_real_model_runs_on_aarch64_with_the_wheels_own_onnxruntime(tmp_path: Path) -> None:
    result = opsmith.compile(swift_f0(), tmp_path / "arm", regions="all", cpu="aarch64")
    assert result.native > 50
    assert result.remarks == ["not verified: this machine cannot run what was compiled for aarch64, linux on aarch64"]
    runtime = onnxruntime_for("manylinux_2_28_aarch64", "libonnxruntime.so.*")
    host = c_host.build(tmp_path / "host", "aarch64-linux-gnu-gcc")
    seconds = np.arange(4000, dtype=np.float32) / 16000
    feed = {
        "audio": np.sin(2 * np.pi * 220 * seconds)[None],
        "fmin": np.array(47, np.float32),
        "fmax": np.array(2093, np.float32),
    }
    assert result.variant is not None
    (library,) = result.variant.folder.glob("*.so")
    emulated = ["qemu-aarch64", "-L", arm_root(tmp_path / "root"), host]
    done = c_host.run(emulated, runtime, library, result.variant.path, feed, tmp_path)
    assert done.returncode == 0, done.stderr
    assert_written(tmp_path, expected(swift_f0(), feed), rtol=1e-3, atol=1e-4)


def test_a_library_for_another_architecture_is_refused_here(source: Path, tmp_path: Path) -> None:
    other = "x86-64-v3" if here().architecture == "aarch64" else "aarch64"
    opsmith.compile(source, tmp_path / "other", regions="whole", cpu=other)
    with pytest.raises(OpsmithError, match="was compiled for a CPU with .*, which this CPU lacks"):
        opsmith.load(tmp_path / "other")


# --- what cannot be ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"os": "beos"}, "there is no system 'beos'"),
        ({"cpu": "aarch64,x86-64-v3"}, "one library cannot hold code for aarch64 and x86_64"),
        ({"os": "windows", "glibc": "2.17"}, "--glibc 2.17 is not a version"),
        ({"glibc": "new"}, "--glibc new is not a version"),
        ({"os": "windows", "compiler": "g++"}, "g\\+\\+ is not used to build for windows"),
        ({"cpu": "aarch64", "search": 1}, "cannot be measured"),
    ],
)
def test_bad_wishes_are_one_line(source: Path, tmp_path: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(OpsmithError, match=message):
        opsmith.compile(source, tmp_path / "x", **options)  # type: ignore[arg-type]
