"""Weights packed by compile/pack.py, run through the kernels that read them, against numpy."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from opsmith.compile.pack import pack_gemm
from opsmith.errors import OpsmithError

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "src" / "opsmith" / "kernels"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    target = tmp_path_factory.mktemp("pack") / "pack_abi.so"
    flags = ["-std=c++20", "-O1", "-march=native", "-Wno-psabi", "-shared", "-fPIC", f"-I{KERNELS}"]
    subprocess.run([compiler, *flags, str(HERE / "pack_abi.cpp"), "-o", str(target)], check=True)
    return ctypes.CDLL(str(target))


def _call(function: object, *arguments: object) -> None:
    converted = [
        a.ctypes.data_as(ctypes.c_void_p) if isinstance(a, np.ndarray) else ctypes.c_int64(a) for a in arguments
    ]
    function(*converted)  # type: ignore[operator]


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (3, 47, 5), (9, 48, 17), (5, 131, 8), (2, 16, 0)])
def test_packed_gemm_weight_gives_the_matrix_product(library: ctypes.CDLL, m: int, n: int, k: int) -> None:
    rng = np.random.default_rng(m * n + k)
    a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
    c = np.full((m, n), np.nan, np.float32)
    _call(library.gemm_f32, m, n, k, a, pack_gemm(b, library.lanes()), c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-5, atol=1e-5)


def test_a_weight_of_the_wrong_rank_is_refused() -> None:
    with pytest.raises(OpsmithError, match="2 dims"):
        pack_gemm(np.zeros((2, 3, 4), np.float32), 8)


def test_unknown_vector_width_is_refused() -> None:
    with pytest.raises(OpsmithError, match="32 floats"):
        pack_gemm(np.zeros((3, 4), np.float32), 32)
