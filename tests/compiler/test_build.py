"""The compiler driver: headers parsed once for many files change time, never the code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from small import graph

import opsmith
from opsmith.compiler import build as driver
from opsmith.compiler.build import FILES_WORTH_PARSING_ONCE, build, find_compiler
from opsmith.compiler.emit import Source

SOURCES = [
    Source(
        f"twice{i}.cpp",
        f'#include "simd.hpp"\nnamespace opsmith {{ void twice{i}(float* x) {{ x[0] *= {i + 2}.0f; }} }}\n',
    )
    for i in range(FILES_WORTH_PARSING_ONCE)
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if find_compiler().name != "g++":
        pytest.skip("headers are parsed once by g++ only")
    monkeypatch.setenv("OPSMITH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "objects"


def objects(cache: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in cache.glob("*.o")}


def test_many_files_parse_the_headers_once_and_give_the_same_code(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(SOURCES, tmp_path / "src", tmp_path / "lib.so")
    assert len(list(cache.glob("*.gch"))) == 1
    once = objects(cache)
    for path in cache.iterdir():
        path.unlink()
    monkeypatch.setattr(driver, "FILES_WORTH_PARSING_ONCE", 1000)
    build(SOURCES, tmp_path / "src", tmp_path / "lib.so")
    assert not list(cache.glob("*.gch"))
    assert objects(cache) == once and len(once) == len(SOURCES)


def test_every_file_includes_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As compilers other than g++ see it: with no header parsed before. A product of all types that weights may have."""
    monkeypatch.setattr(driver, "FILES_WORTH_PARSING_ONCE", 1000)
    for name, dtype in (("half", np.float16), ("float", np.float32)):
        model = graph("g (float[n, 96] x) => (float[n, 800] y) { m = Cast<to = 1>(matrix)  y = MatMul(x, m) }")
        matrix = np.random.default_rng(0).normal(size=(96, 800)).astype(dtype)
        model.graph.initializer.append(onnx.numpy_helper.from_array(matrix, "matrix"))
        for precision in ("fp32", "bf16", "int8"):
            out = tmp_path / f"{name}_{precision}"
            result = opsmith.compile(model, out, regions="whole", precision=precision, verify=False)
            assert (result.variant.folder / "src" / f"micro_float_{name}.cpp").exists() or precision != "fp32"


def test_a_damaged_parsed_header_is_made_anew(tmp_path: Path, cache: Path) -> None:
    build(SOURCES, tmp_path / "src", tmp_path / "lib.so")
    (parsed,) = cache.glob("*.gch")
    whole = parsed.stat().st_size
    parsed.write_bytes(parsed.read_bytes()[: whole // 2])
    for path in cache.glob("*.o"):
        path.unlink()
    build(SOURCES, tmp_path / "src", tmp_path / "lib.so")
    assert parsed.stat().st_size > 0.9 * whole and len(objects(cache)) == len(SOURCES)
