"""benchmarks/peers.py: one command from models to the table in the README."""

from __future__ import annotations

import importlib
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
    """The benchmark with one tiny case, and its two modules beside it."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in ("peers", "peer_cases", "peer_tables"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    module, tables = importlib.import_module("peers"), importlib.import_module("peer_tables")
    cases = importlib.import_module("peer_cases")
    goals = (cases.over_best("fp32", 1e-6), cases.over("w8", 1e6, "ort"))
    case = cases.Case("tiny", "a tiny model", "tiny", {"batch": 3}, goals, ("fp32", "w8"), "bert")
    monkeypatch.setattr(module, "CASES", (case,))
    monkeypatch.setattr(tables, "CASES", (case,))
    monkeypatch.setattr(tables, "FIRST", (("tiny", "w8"),))
    return module


def repository(folder: Path) -> Path:
    (folder / "docs").mkdir(parents=True)
    why = "<!-- why: written by benchmarks/peers.py -->\nOld.\n<!-- /why -->"
    (folder / "README.md").write_text(f"# Name\n\n{why}\n\nWords.\n")
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
    measured = {"ort", "opsmith-fp32", "opsmith-w8", "ort-optimizer"} | ({"mnn"} if present else set())
    assert set(result["runtimes"]) == measured
    assert result["machine"]["cpu"] and result["machine"]["versions"]["onnxruntime"]
    fp32 = result["runtimes"]["opsmith-fp32"]
    assert fp32["error"] < 1e-5 < result["runtimes"]["opsmith-w8"]["error"] < 0.1
    value, low, high = result["runtimes"]["ort"]["speedups"]["opsmith-fp32"]
    assert low <= value <= high
    if not present:
        assert "not installed" in result["failed"]["mnn"]
    readme = (root / "README.md").read_text()
    assert "\n\nWords.\n" in readme and "| a tiny model" in readme and result["machine"]["cpu"] in readme
    assert "Old." not in readme and readme.startswith("# Name\n\n<!-- why") and "-->\n**Why:** on the same" in readme
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
    case = sys.modules["peer_cases"].Case("tiny", "a tiny model", "tiny", {"batch": 3}, (), ("fp32",))
    workshop = peers.Workshop(tmp_path / "models", tmp_path / "results", "dynamo", 0)
    assert workshop.source(case) == folder
    result = peers.measure(case, workshop, ["openvino", "ort-optimizer"], 0.1, None, 1)
    assert set(result["runtimes"]) == {"ort", "opsmith-fp32"}
    assert result["failed"]["openvino"] == "openvino: it has no kernel for this"
    assert "knows no such model" in result["failed"]["ort-optimizer"]
    assert "does not run: openvino: it has no kernel" in sys.modules["peer_tables"].detail_table([(case, result)])


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


def test_the_cases_are_those_of_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    cases = importlib.import_module("peer_cases")
    names = [c.name for c in cases.CASES]
    assert len(set(names)) == len(names)
    wanted = "unet_64_b1 unet_64_b2 unet_32_b1 unet_8_b1 vae_32 vae_64 clip bert_b1 bert_b8"
    assert set(wanted.split()) < set(names)
    assert {"gpt2_prompt", "gpt2_decode_128", "gpt2_decode_512", "terrain", "minilm"} < set(names)
    assert all(goal.variant in case.variants for case in cases.CASES for goal in case.goals)
    assert all(v in cases.OURS for case in cases.CASES for v in case.variants)


def measured(seconds: dict[str, float], ratios: dict[str, dict[str, list[float]]]) -> dict[str, Any]:
    rows = {n: {"seconds": s, "error": 1e-6, "speedups": ratios.get(n, {})} for n, s in seconds.items()}
    return {"runtimes": rows, "failed": {}, "clean": True}


def test_a_variant_is_held_against_its_error_class_and_finer_ones(peers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cases, tables = sys.modules["peer_cases"], sys.modules["peer_tables"]
    case = cases.Case("a", "a", "a", {}, (), ("fp32", "bf16"))
    seconds = {"ort": 2.0, "openvino": 0.8, "opsmith-fp32": 1.0, "opsmith-bf16": 1.0}
    ratios = {
        "ort": {"opsmith-fp32": [2.0, 1.9, 2.1], "opsmith-bf16": [2.0, 1.9, 2.1]},
        "openvino": {"opsmith-fp32": [0.8, 0.7, 0.9], "opsmith-bf16": [0.8, 0.7, 0.9]},
    }
    results = [(case, measured(seconds, ratios))]
    single, half = tables.short_table(results).splitlines()[2:]
    assert single == (
        "| a | fp32 | 2.00 s | 2.00 s (ONNX Runtime, error 1e-06) | **1.00 s** (error 1e-06) | 2.00x faster (1.90 to 2.10) |"
    )
    assert "800.0 ms (OpenVINO as installed" in half and "0.80x **slower** (0.70 to 0.90)" in half
    assert "| OpenVINO as installed |" not in tables.class_table(results, "fp32")
    monkeypatch.setattr(tables, "FIRST", (("a", "bf16"), ("absent", "bf16")))
    assert tables.first_sentence(results) == (
        "**Why:** on the same cores, a takes 1.00 s in bf16 where OpenVINO as installed takes 800.0 ms "
        "(0.80x **slower**; errors 1e-06 and 1e-06)."
    )
    assert tables.first_sentence([]) == ""
    assert "| OpenVINO as installed |" in tables.class_table(results, "bf16")
