"""benchmarks/peers.py: one command from models to the table in the README."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from small_models import mlp, save

from opsmith.errors import OpsmithError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("peers_benchmark", ROOT / "benchmarks" / "peers.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "peers_benchmark", module)
    spec.loader.exec_module(module)
    goals = (module.Goal("fp32", module.BEST, 1e-6), module.Goal("int8", module.STOCK, 1e6))
    case = module.Case("tiny", "a tiny model", "tiny", {"batch": 3}, goals, ("fp32", "int8"), "bert")
    module.CASES = (case,)
    return module


def repository(folder: Path) -> Path:
    (folder / "docs").mkdir(parents=True)
    (folder / "README.md").write_text("# Name\n\nWords.\n")
    (folder / "docs" / "index.md").write_text("| | |\n|---|---|\n| [x](x.md) | y |\n")
    return folder


def test_from_a_model_to_the_readme(peers: Any, tmp_path: Path) -> None:
    save(mlp(), tmp_path / "models" / "tiny" / "dynamo")
    root, results = repository(tmp_path / "repo"), tmp_path / "results"
    command = [
        str(tmp_path / "models"),
        str(results),
        "--seconds",
        "0.2",
        "--threads",
        "1",
        "--peer",
        "ort-optimizer",
        "mnn",
    ]
    present = importlib.util.find_spec("MNN") is not None
    assert peers.main([*command, "--write"], root) == 0
    result = json.loads((results / "tiny.json").read_text())
    measured = {"ort", "opsmith-fp32", "opsmith-int8", "ort-optimizer"} | ({"mnn"} if present else set())
    assert set(result["runtimes"]) == measured
    assert result["machine"]["cpu"] and result["machine"]["versions"]["onnxruntime"]
    fp32 = result["runtimes"]["opsmith-fp32"]
    assert fp32["error"] < 1e-5 < result["runtimes"]["opsmith-int8"]["error"] < 0.1
    value, low, high = result["runtimes"]["ort"]["speedups"]["opsmith-fp32"]
    assert low <= value <= high
    if not present:
        assert "not installed" in result["failed"]["mnn"]
    readme = (root / "README.md").read_text()
    assert readme.startswith("# Name\n\nWords.\n") and "| a tiny model" in readme and result["machine"]["cpu"] in readme
    page = (root / "docs" / "benchmarks.md").read_text()
    assert "| a tiny model | fp32 1e-06x the best peer |" in page and "| yes |" in page and "| no |" in page
    assert "(benchmarks.md)" in (root / "docs" / "index.md").read_text()
    assert (root / "docs" / "pictures" / "peers.svg").read_text().count("<rect") == 1 + len(measured)

    # What is there is not measured again, and writing again changes nothing.
    stamp = (results / "tiny.json").stat().st_mtime_ns
    assert peers.main([*command, "--write"], root) == 0
    assert (results / "tiny.json").stat().st_mtime_ns == stamp
    assert (root / "README.md").read_text() == readme
    assert not peers.is_done(results / "tiny.json", ["openvino"])


def test_a_peer_that_fails_is_left_out_with_its_reason(
    peers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = mlp()
    folder = save(model, tmp_path / "models" / "tiny" / "dynamo")
    monkeypatch.setattr(peers.adapters, "check", lambda name: None)
    original = peers.bench

    def failing(paths: Any, *, peer: Any, **rest: Any) -> Any:
        if "openvino" in peer:
            raise OpsmithError("openvino: it has no kernel for this")
        return original(paths, peer=peer, **rest)

    monkeypatch.setattr(peers, "bench", failing)
    case = peers.Case("tiny", "a tiny model", "tiny", {"batch": 3}, (), ("fp32",))
    workshop = peers.Workshop(tmp_path / "models", tmp_path / "results", "dynamo", 0)
    assert workshop.source(case) == folder
    result = peers.measure(case, workshop, ["openvino", "ort-optimizer"], 0.1, None, 1)
    assert set(result["runtimes"]) == {"ort", "opsmith-fp32"}
    assert result["failed"]["openvino"] == "openvino: it has no kernel for this"
    assert "knows no such model" in result["failed"]["ort-optimizer"]
    assert "does not run: openvino: it has no kernel" in peers.detail_table([(case, result)])


def test_what_does_not_fit_into_memory_together_is_measured_in_sets(
    peers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers.store, "find_model", lambda path: path)
    monkeypatch.setattr(peers.session, "size_on_disk", lambda path: 4 << 30)
    monkeypatch.setattr(peers.machine, "memory_bytes", lambda: 24 << 30)
    assert peers.memory_sets(Path("a"), [Path("b")], ["x", "y", "z"]) == [["x"], ["y"], ["z"]]
    monkeypatch.setattr(peers.machine, "memory_bytes", lambda: 128 << 30)
    assert peers.memory_sets(Path("a"), [Path("b")], ["x", "y", "z"]) == [["x", "y", "z"]]
    assert peers.memory_sets(Path("a"), [Path("b")], []) == [[]]


def test_the_cases_are_those_of_the_contract() -> None:
    text = (ROOT / "benchmarks" / "peers.py").read_text()
    spec = importlib.util.spec_from_file_location("peers_cases", ROOT / "benchmarks" / "peers.py")
    assert spec is not None and spec.loader is not None and text
    module = importlib.util.module_from_spec(spec)
    sys.modules["peers_cases"] = module
    spec.loader.exec_module(module)
    names = [c.name for c in module.CASES]
    assert len(set(names)) == len(names)
    assert {
        "unet_64_b1",
        "unet_64_b2",
        "unet_32_b1",
        "unet_8_b1",
        "vae_32",
        "vae_64",
        "clip",
        "bert_b1",
        "bert_b8",
    } < set(names)
    assert {"gpt2_prompt", "gpt2_decode_128", "gpt2_decode_512", "terrain", "minilm"} < set(names)
    assert all(goal.variant in case.variants for case in module.CASES for goal in case.goals)


def test_the_readme_shows_the_ends_of_the_whole_table(peers: Any) -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    whole = page[page.index("| case |") :].split("\n\n")[0]
    readme = (ROOT / "README.md").read_text()
    assert f"{peers.BEGIN}\n{peers.short_table(whole)}\n" in readme


def test_the_short_table_names_the_fastest_peer_and_says_slower(peers: Any) -> None:
    whole = """| case | ONNX Runtime | MNN | Opsmith | times the best peer (95 % interval) | error |
|---|---:|---:|---:|---:|---:|
| a | 2.00 s | - | **1.00 s** | **2.00** (1.9 to 2.1) | 0e+00 |
| b | 2.00 s | 1.50 s | **1.00 s** fp32<br>**10.0 ms** int8 | **2.00** (1.9 to 2.1) fp32<br>**9.00** (8 to 9) int8 | 0e+00 |
| c | 800.0 ms | - | **1.00 s** | **0.80** (0.7 to 0.9) | 0e+00 |"""
    rows = peers.short_table(whole).splitlines()[2:]
    assert rows == [
        "| a | 2.00 s | 2.00 s (ONNX Runtime) | **1.00 s** | 2.00x faster (1.9 to 2.1) |",
        "| b | 2.00 s | 1.50 s (MNN) | **1.00 s** | 1.50x faster |",
        "| c | 800.0 ms | 800.0 ms (ONNX Runtime) | **1.00 s** | 0.80x **slower** (0.7 to 0.9) |",
    ]
