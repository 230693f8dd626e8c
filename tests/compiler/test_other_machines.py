"""Libraries for machines that are not here: aarch64 runs under qemu, Windows under wine, macOS is linked and looked at."""

from __future__ import annotations

import importlib.util
import re
import shutil
import struct
import subprocess
from pathlib import Path

import c_host
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from models import cache_folder
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


# --- Windows, macOS, an old Linux: all by zig ---

ZIG = pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="zig is not installed")
HOST_FOR_WINDOWS = "x86_64-w64-mingw32-gcc"


@pytest.fixture(scope="module")
def windows(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled model; its library holds code for two CPUs."""
    dest = tmp_path_factory.mktemp("windows") / "fast"
    result = opsmith.compile(source, dest, regions="whole", os="windows", cpu="x86-64-v3,x86-64-v4")
    assert (
        all(r.startswith("not verified: this machine cannot run") for r in result.remarks) and len(result.remarks) == 2
    )
    assert {f.suffix for f in dest.iterdir() if f.is_file()} == {".onnx", ".data", ".dll", ".json"}
    return Path(opsmith.Variant(next(dest.glob("*.onnx"))))


@ZIG
def test_a_windows_library_exports_its_doors_and_needs_only_what_windows_has(windows: Path) -> None:
    (library,) = windows.parent.glob("*.dll")
    table = subprocess.run(["objdump", "-p", library], capture_output=True, text=True, check=True).stdout
    assert {name.lower() for name in re.findall(r"DLL Name: (\S+)", table)} == {"kernel32.dll", "ucrtbase.dll"}
    assert "RegisterCustomOps" in table and "OpsmithRegions" in table


@ZIG
@pytest.mark.skipif(
    shutil.which("wine") is None or shutil.which(HOST_FOR_WINDOWS) is None,
    reason="wine or gcc-mingw-w64-x86-64 is not installed",
)
def test_it_runs_under_wine_with_the_wheels_own_onnxruntime(windows: Path, source: Path, tmp_path: Path) -> None:
    host = c_host.build(tmp_path / "host.exe", HOST_FOR_WINDOWS)
    runtime = onnxruntime_for("win_amd64", "onnxruntime.dll")
    (library,) = windows.parent.glob("*.dll")
    own = {"WINEPREFIX": str(cache_folder() / "wine"), "WINEDEBUG": "-all", "HOME": str(tmp_path)}
    done = c_host.run(["wine", host], runtime, library, windows, FEED, tmp_path, **own)
    assert done.returncode == 0, done.stderr
    assert_written(tmp_path, expected(source, FEED), rtol=1e-5, atol=1e-6)


@ZIG
def test_a_mac_library_links_and_exports_its_doors(source: Path, tmp_path: Path) -> None:
    """It is not run: there is no Mac here, and nothing that emulates one."""
    opsmith.compile(source, tmp_path / "mac", regions="whole", os="macos", cpu="aarch64")
    (library,) = (tmp_path / "mac").glob("*.dylib")
    exported = mach_o_exports(library.read_bytes())
    own = {name for name in exported if not name.startswith("__")}  # the others are the linker's
    assert own == {"_RegisterCustomOps", "_OpsmithRegions"}


def mach_o_exports(content: bytes) -> set[str]:
    """Names of the symbols that a 64-bit Mach-O file for ARM defines for others."""
    magic, cpu, _, kind, commands = struct.unpack_from("<5I", content)
    assert (magic, cpu, kind) == (0xFEEDFACF, 0x0100000C, 6)  # 64 bits, arm64, a dynamic library
    names: set[str] = set()
    at = 32
    for _ in range(commands):
        command, size = struct.unpack_from("<2I", content, at)
        if command == 2:  # the table of symbols
            table, count, strings, _ = struct.unpack_from("<4I", content, at + 8)
            for i in range(count):
                place, bits = struct.unpack_from("<IB", content, table + 16 * i)
                if bits & 0x0F == 0x0F:  # defined in a section, and external; not private
                    end = content.index(b"\0", strings + place)
                    names.add(content[strings + place : end].decode())
        at += size
    return names


@ZIG
def test_a_library_for_an_old_linux_asks_for_no_newer_symbol_and_is_verified_here(source: Path, tmp_path: Path) -> None:
    cpu = "aarch64" if here().architecture == "aarch64" else "x86-64-v3"
    result = opsmith.compile(source, tmp_path / "old", regions="whole", glibc="2.17", cpu=cpu)
    assert result.verified is not None and result.verified.ok
    (library,) = (tmp_path / "old").glob("*.so")
    table = subprocess.run(["objdump", "-T", library], capture_output=True, text=True, check=True).stdout
    versions = {tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([0-9.]+)", table)}
    assert versions and max(versions) <= (2, 17)


# --- what cannot be ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"os": "beos"}, "there is no system 'beos'"),
        ({"cpu": "aarch64,x86-64-v3"}, "one library cannot hold code for aarch64 and x86_64"),
        ({"os": "windows", "glibc": "2.17"}, "--glibc 2.17 is not a version"),
        ({"glibc": "new"}, "--glibc new is not a version"),
        ({"os": "windows", "compiler": "g++"}, "g\\+\\+ is not used to build for windows"),
        ({"os": "windows", "cpu": "aarch64"}, "Windows is built for on x86-64 only"),
        ({"cpu": "aarch64", "search": 1}, "cannot be measured"),
    ],
)
def test_bad_wishes_are_one_line(source: Path, tmp_path: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(OpsmithError, match=message):
        opsmith.compile(source, tmp_path / "x", **options)  # type: ignore[arg-type]
