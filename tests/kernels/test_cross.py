"""The kernel tests compile with clang (from the ziglang package) for NEON, AVX2 and AVX-512. Nothing is run here."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "src" / "opsmith" / "kernels"
FLAGS = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-psabi", f"-I{KERNELS}", f"-I{HERE}"]
TARGETS = {
    "neon": ["-target", "aarch64-linux-gnu"],
    "avx2": ["-target", "x86_64-linux-gnu", "-mcpu=x86_64_v3"],
    "avx512": ["-target", "x86_64-linux-gnu", "-mcpu=x86_64_v4"],
}


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="the ziglang package is not installed")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", sorted(p.name for p in HERE.glob("test_*.cpp")))
def test_kernel_compiles_with_clang(source: str, target: str, tmp_path: Path) -> None:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "opsmith" / "zig"
    env = dict(os.environ, ZIG_GLOBAL_CACHE_DIR=str(cache), ZIG_LOCAL_CACHE_DIR=str(cache))
    compiler = [sys.executable, "-m", "ziglang", "c++", *TARGETS[target]]
    command = [*compiler, *FLAGS, "-c", str(HERE / source), "-o", str(tmp_path / "test.o")]
    built = subprocess.run(command, capture_output=True, text=True, env=env)
    assert built.returncode == 0, built.stderr[-4000:]
