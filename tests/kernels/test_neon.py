"""The NEON build of the kernel tests, run: natively on an ARM machine through test_kernels.py, elsewhere here under qemu-user.

Needs `apt install qemu-user g++-aarch64-linux-gnu`; where they are missing the tests are skipped and say so. AVX-512 is only
compiled (test_cross.py) where the CPU does not have it: qemu-user does not emulate it.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "src" / "opsmith" / "kernels"
FLAGS = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-psabi", "-pthread", "-static"]
# An emulated core is some 50 times slower: the few that cover the microkernels and their layouts always run.
ALWAYS = ("test_conv.cpp", "test_gemm.cpp", "test_winograd.cpp")


@pytest.mark.skipif(
    platform.machine() in ("aarch64", "arm64"), reason="this is an ARM machine: test_kernels.py runs them"
)
@pytest.mark.parametrize(
    "source",
    [pytest.param(p.name, marks=() if p.name in ALWAYS else pytest.mark.slow) for p in sorted(HERE.glob("test_*.cpp"))],
)
@pytest.mark.parametrize("cpu", ["armv8-a", pytest.param("armv8.6-a", marks=pytest.mark.slow)])  # the second has bfdot
def test_kernel_under_emulation(cpu: str, source: str, tmp_path: Path) -> None:
    compiler, emulator = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
    if compiler is None or emulator is None:
        missing = [n for n, p in (("g++-aarch64-linux-gnu", compiler), ("qemu-user", emulator)) if p is None]
        pytest.skip(f"not installed: {', '.join(missing)}")
    program = tmp_path / "test"
    command = [
        compiler,
        *FLAGS,
        f"-march={cpu}",
        f"-I{KERNELS}",
        f"-I{HERE}",
        str(HERE / source),
        "-o",
        str(program),
        "-lm",
    ]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-4000:]
    ran = subprocess.run([emulator, "-cpu", "max", str(program)], capture_output=True, text=True, timeout=900)
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
