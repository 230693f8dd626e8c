"""What Python and the kernel headers both state is the same: the rows of geometry.py, and Winograd's estimate."""

from __future__ import annotations

import ctypes
import dataclasses
import importlib.util
import itertools
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from opsmith import machine
from opsmith.compiler import geometry, winograd
from opsmith.compiler.build import KERNELS, Compiler, _key
from opsmith.compiler.geometry import SETS, InstructionSet
from opsmith.settings import cache_folder

X86 = platform.machine() in ("x86_64", "AMD64")
ASSERTS = """#include "attention.hpp"
#include "gemm_micro.hpp"
using namespace opsmith;
static_assert(W == {isa.lanes} && gemm_mr == {isa.gemm_mr} && gemm_nv == {isa.gemm_nv} && gemm_nr == {isa.panel_columns});
static_assert(attention_mr == {isa.attention_mr} && attention_nv == {isa.attention_nv});
"""


def compiler_for(isa: InstructionSet) -> list[str] | None:
    """A compiler that builds for `isa`, here or across."""
    wants_arm = isa is geometry.NEON
    if (X86 or not isa.flags) and wants_arm != X86 and (own := shutil.which("g++")):
        return [own]
    if wants_arm and (cross := shutil.which("aarch64-linux-gnu-g++")):
        return [cross]
    if wants_arm and importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "c++", "-target", "aarch64-linux-gnu"]
    return None


def compiled(command: list[str], text: str, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"):
        monkeypatch.setenv(variable, str(cache_folder("zig")))
    source.write_text(text)
    done = subprocess.run(
        [*command, "-std=c++20", "-Wno-psabi", f"-I{KERNELS}", str(source)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("chosen", ["by the compiler's target", "by name"])
@pytest.mark.parametrize("isa", SETS.values(), ids=SETS)
def test_a_row_of_the_table_is_what_its_header_states(
    isa: InstructionSet, chosen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (command := compiler_for(isa)) is None:
        pytest.skip(f"no compiler for {isa.name}")
    if chosen == "by name":
        command = [*command, isa.choice]
    elif isa is geometry.SCALAR or (isa is geometry.GENERIC and not X86):
        pytest.skip("it is chosen by name only")
    # Compiled, as zig 0.17 fails after -fsyntax-only.
    command = [*command, *isa.flags, "-c", "-o", str(tmp_path / "row.o")]
    compiled(command, ASSERTS.format(isa=isa), tmp_path / "row.cpp", monkeypatch)


def test_the_running_cpu_gets_the_best_set_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    def native(*features: str) -> InstructionSet:
        monkeypatch.setattr(machine, "cpu_features", lambda: frozenset(features))
        return geometry.native()

    assert native("avx", "avx2", "fma", "f16c", "avx512f", "avx512bw") is geometry.AVX512
    assert native("avx", "avx2", "fma", "f16c") is geometry.AVX2
    assert native("avx", "f16c") is geometry.GENERIC
    assert native("asimd") is geometry.NEON
    fast = native("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_bf16")
    assert fast.multiplies_bf16 and dataclasses.replace(fast, multiplies_bf16=False) == geometry.AVX512
    tiles = "amx_tile", "amx_bf16", "amx_int8"
    assert not fast.multiplies_tiles and not native("avx2", "fma", "f16c", *tiles).multiplies_tiles
    assert native("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_bf16", *tiles).multiplies_tiles
    assert native("asimd", "bf16").multiplies_bf16 and not native("avx2", "fma", "f16c").multiplies_bf16
    assert native() is geometry.GENERIC


def test_an_object_is_cached_for_its_instruction_set_only() -> None:
    tool = Compiler(("g++",), "g++", "12")
    keys = {_key("int x;", tool, isa, tool.flags(isa)) for isa in SETS.values()}
    assert len(keys) == len(SETS)
    assert "-march=native" in tool.flags(geometry.native())
    assert "-march=native" not in tool.flags(geometry.SCALAR)


def test_a_changed_header_builds_anew_what_includes_it_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool, isa = Compiler(("g++",), "g++", "12"), geometry.SCALAR
    sources = {"near": '#include "near.hpp"\n', "far": '#include "far.hpp"\n'}

    def keys(inner: str) -> dict[str, str]:
        folder = tmp_path / inner
        folder.mkdir()
        (folder / "near.hpp").write_text('#include "inner.hpp"')
        (folder / "inner.hpp").write_text(inner)
        (folder / "far.hpp").write_text("")
        monkeypatch.setattr(sys.modules[_key.__module__], "KERNELS", folder)
        return {name: _key(text, tool, isa, tool.flags(isa)) for name, text in sources.items()}

    before, after = keys("one"), keys("two")
    assert before["near"] != after["near"] and before["far"] == after["far"]


def test_only_the_simd_headers_ask_what_they_are_built_for() -> None:
    conditional = re.compile(r"^\s*#\s*(if|ifdef|ifndef|elif|else)\b", re.MULTILINE)
    asking = {h.name for h in KERNELS.glob("*.hpp") if conditional.search(h.read_text(encoding="utf-8"))}
    # sets for products of bytes, which not every CPU of a set has; cpu.hpp and platform.hpp for the architecture and the system
    assert asking == {
        "simd.hpp",
        "simd_avx512.hpp",
        "simd_avx2.hpp",
        "simd_neon.hpp",
        "cpu.hpp",
        "platform.hpp",
        "forms.hpp",
    }


def test_winograd_pays_by_the_same_estimate_in_the_compiler_and_at_run_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (command := compiler_for(geometry.GENERIC)) is None:
        pytest.skip("no C++ compiler")
    text = """#include "winograd.hpp"
    using namespace opsmith;
    extern "C" bool pays(i64 tile, i64 stride, i64 batch, i64 height, i64 width, i64 dilation_h, i64 dilation_w) {
      ConvShape s{};
      s.batch = batch, s.out_height = height, s.out_width = width, s.dilation_h = dilation_h, s.dilation_w = dilation_w;
      return stride == 2 ? winograd_pays<4, 2>(s) : tile == 4 ? winograd_pays<4, 1>(s) : winograd_pays<2, 1>(s);
    }"""
    library = tmp_path / "pays.so"
    compiled([*command, "-shared", "-fPIC", "-o", str(library)], text, tmp_path / "pays.cpp", monkeypatch)
    pays = ctypes.CDLL(str(library)).pays
    pays.restype = ctypes.c_bool
    answers = []
    for way, (batch, height, width) in itertools.product(winograd.WAYS.values(), np.ndindex(3, 20, 20)):
        sizes = (1, 2, 8)[batch], height * 3 + 1, width * 3 + 1
        dilations = (1, 1) if way.stride == 2 else (1 + height % 3, 1 + width % 2)
        expected = way.cost(*sizes, dilations) < winograd.direct_cost(*sizes)
        assert pays(*(ctypes.c_int64(v) for v in (way.tile, way.stride, *sizes, *dilations))) == expected, (way, sizes)
        answers.append(expected)
    assert {True, False} == set(answers)


def test_winograd_needs_a_3x3_kernel_and_8_channels_on_both_sides_or_16_with_stride_2() -> None:
    assert list(winograd.fitting((16, 16, 3, 3), (1, 1), (1, 1), 1)) == ["conv2d_winograd4", "conv2d_winograd2"]
    assert list(winograd.fitting((16, 16, 3, 3), (2, 2), (1, 1), 1)) == ["conv2d_winograd4_stride2"]
    assert winograd.fitting((8, 8, 3, 3), (1, 1), (1, 1), 1)
    assert not winograd.fitting((7, 16, 3, 3), (1, 1), (1, 1), 1)
    assert not winograd.fitting((16, 7, 3, 3), (1, 1), (1, 1), 1)
    assert not winograd.fitting((15, 16, 3, 3), (2, 2), (1, 1), 1)
    assert not winograd.fitting((16, 16, 3, 1), (1, 1), (1, 1), 1)
    assert not winograd.fitting((16, 16, 3, 3), (1, 2), (1, 1), 1)
    assert not winograd.fitting((16, 16, 3, 3), (3, 3), (1, 1), 1)
    assert list(winograd.fitting((16, 16, 3, 3), (1, 1), (2, 1), 1)) == ["conv2d_winograd4", "conv2d_winograd2"]
    assert not winograd.fitting((16, 16, 3, 3), (2, 2), (2, 1), 1)
    assert not winograd.fitting((16, 16, 3, 3), (1, 1), (1, 1), 2)
