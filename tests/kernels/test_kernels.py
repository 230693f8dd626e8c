"""Every tests/kernels/test_*.cpp, compiled and run: as fast code, and under ASan + UBSan.

The fast build uses this CPU's widest vectors, the sanitized one AVX2 (or the CPU's own outside x86), and the slow ones
the baseline of the architecture and single floats, so that all lane counts are exercised on one machine where the CPU allows it.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from opsmith.compiler.geometry import AVX2, SCALAR

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "src" / "opsmith" / "kernels"
X86 = platform.machine() in ("x86_64", "AMD64")

COMMON = ["-std=c++20", "-Wall", "-Wextra", "-Werror", "-Wno-psabi", "-pthread", f"-I{KERNELS}", f"-I{HERE}"]
BUILDS = {
    "native": ["-O2", "-march=native"],
    "sanitized": [
        "-O1",
        "-g1",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
        *(AVX2.flags if X86 else ["-march=native"]),
    ],
    "baseline": ["-O2"],
    "scalar": ["-O2", SCALAR.choice],
}


@pytest.mark.parametrize("source", sorted(p.name for p in HERE.glob("test_*.cpp")))
@pytest.mark.parametrize(
    "build", ["native", "sanitized", *(pytest.param(b, marks=pytest.mark.slow) for b in ("baseline", "scalar"))]
)
def test_kernel(build: str, source: str, tmp_path: Path) -> None:
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    program = tmp_path / "test"
    command = [compiler, *COMMON, *BUILDS[build], str(HERE / source), "-o", str(program), "-lm"]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    ran = subprocess.run([str(program)], capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
