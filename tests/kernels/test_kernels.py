"""Every tests/kernels/test_*.cpp, compiled and run: as fast code, and under ASan + UBSan.

The fast build uses this CPU's widest vectors, the sanitized one AVX2 (or the CPU's own outside x86), and the slow ones
the baseline of the architecture and single floats, so that all lane counts are exercised on one machine where the CPU allows it.

Most of the time is the compiler's, and of that most goes to the sanitizers' checks: each becomes a trap, which says nothing but is
a third of the code, and most programs are not optimized. What fails is built once more, with checks that tell file and line.
"""

from __future__ import annotations

import functools
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
SANITIZED = ["-fsanitize=address,undefined", *(AVX2.flags if X86 else ["-march=native"])]
TRAPS, TELLS = "-fsanitize-undefined-trap-on-error", "-fno-sanitize-recover=all"
BUILDS = {
    "native": ["-O2", "-march=native"],
    "sanitized": [*SANITIZED, TRAPS],
    "baseline": ["-O2"],
    "scalar": ["-O2", SCALAR.choice],
}
# Under the sanitizers these run for longer at -O0 than it takes to optimize them.
RUN_LONG = {f"test_{name}.cpp" for name in ("attention", "conv_stem", "conv_transpose", "pool", "resize", "winograd")}


@functools.cache
def compiler() -> str:
    found = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if found is None:
        pytest.skip("no C++ compiler")
    return found


def compiled(source: Path, program: Path, *flags: str) -> Path:
    command = [compiler(), *COMMON, *flags, str(source), "-o", str(program), "-lm"]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return program


def run(program: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(program)], capture_output=True, text=True, timeout=600)


def told(source: Path, folder: Path) -> str:
    """What the sanitizers say of SOURCE, with file and line."""
    ran = run(compiled(source, folder / "telling", *SANITIZED, TELLS, "-O1", "-g1"))
    return ran.stdout[-4000:] + ran.stderr[-4000:]


@pytest.mark.parametrize("source", sorted(p.name for p in HERE.glob("test_*.cpp")))
@pytest.mark.parametrize(
    "build", ["native", "sanitized", *(pytest.param(b, marks=pytest.mark.slow) for b in ("baseline", "scalar"))]
)
def test_kernel(build: str, source: str, tmp_path: Path) -> None:
    sanitized = build == "sanitized"
    level = ["-O1" if source in RUN_LONG else "-O0"] if sanitized else []
    ran = run(compiled(HERE / source, tmp_path / "test", *BUILDS[build], *level))
    said = ran.stdout[-4000:] + ran.stderr[-4000:]
    assert ran.returncode == 0, said + (told(HERE / source, tmp_path) if sanitized else "")


FAULTS = {
    "signed integer overflow": "volatile int big = 2147483647; big = big + 1;",
    "heap-buffer-overflow": "float* volatile a = new float[3]; volatile float x = a[argc + 2]; delete[] a; (void)x;",
    "load of misaligned address": "alignas(4) char c[8] = {}; volatile int x = *(int*)(c + argc); (void)x;",
}


@pytest.mark.parametrize("level", ["-O0", "-O1"])
@pytest.mark.parametrize("fault", FAULTS)
def test_the_sanitized_build_stops_at_a_fault_and_tells_where(fault: str, level: str, tmp_path: Path) -> None:
    source = tmp_path / "faulty.cpp"
    source.write_text(f"int main(int argc, char**) {{\n(void)argc;\n{FAULTS[fault]}\n}}\n")
    assert run(compiled(source, tmp_path / "test", *BUILDS["sanitized"], level)).returncode != 0
    assert fault in (said := told(source, tmp_path)) and "faulty.cpp:3" in said
