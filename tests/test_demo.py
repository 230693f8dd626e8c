"""The demo: its model is the same everywhere, and a fault at any station shows in the exit code."""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import pytest
from PIL import Image

from opsmith import demo, store
from opsmith.check.verify import verify
from opsmith.cli import console, main
from opsmith.errors import OpsmithError
from opsmith.pipelines import masks

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))
import capture  # noqa: E402


def test_the_model_is_valid_dynamic_and_the_same_every_time() -> None:
    first, second = demo.tiny_model(), demo.tiny_model()
    assert first.SerializeToString() == second.SerializeToString()
    onnx.checker.check_model(first, full_check=True)
    result = verify(first, second)
    assert result.ok and sum(c.name.startswith("random") for c in result.cases) == 3 and not result.dropped


def test_the_road_is_walked_as_the_page_and_the_picture_show_it(
    optimized: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "BENCH_ROUNDS", 2)
    monkeypatch.setattr(console, "out", console._Console(highlight=False, width=capture.COLUMNS))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["demo"])
    said = capsys.readouterr().out
    assert not stop.value.code and [line.split()[0] for line in said.splitlines() if "✗" in line] == []
    assert store.variants(tmp_path / "opsmith_demo" / "tiny")[0].record["verb"] == "demo"
    shown = capture.transcript((ROOT / "docs" / "demo.md").read_text(encoding="utf-8"))
    assert capture.shape(said) == capture.shape(shown), "stale: run benchmarks/capture.py"
    assert (ROOT / "docs" / "pictures" / "demo.svg").read_text(encoding="utf-8") == capture.svg(shown)


@pytest.mark.parametrize("fault", ["differs", "breaks"])
def test_a_fault_shows_in_the_exit_code(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def station(work: demo.Work) -> demo.Outcome:
        if fault == "breaks":
            raise OpsmithError("the anvil is cold")
        return demo.Outcome("the anvil is cold", ok=False)

    def absent(work: demo.Work) -> demo.Outcome:
        raise demo.NotHere("`hammer` is not part of this version yet")

    monkeypatch.setattr(demo, "STATIONS", [demo.STATIONS[0], ("absent", absent), ("faulty", station)])
    with pytest.raises(SystemExit) as stop:
        main(["demo", str(tmp_path)])
    said = capsys.readouterr().out
    assert stop.value.code == 1 and "✗ faulty" in said and "the anvil is cold" in said and "- absent" in said


def test_an_edit_changes_only_what_is_selected(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    work = demo.Work(tmp_path / "tiny")
    with pytest.raises(demo.NotHere):
        demo._edit(work)
    work.picture = Image.new("RGB", (96, 96), (200, 60, 40))
    work.mask = masks.from_box(work.picture, (20, 20, 60, 60), feather=1.0)
    outcome = demo._edit(work)
    assert outcome.ok and "0 of them outside" in outcome.headline
    red, _, blue = Image.open(tmp_path / "pictures" / "edited.png").getpixel((40, 40))
    assert blue > red


def test_a_picture_without_the_thing_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "THRESHOLD", 1.01)
    work = demo.Work(tmp_path / "tiny", picture=Image.new("RGB", (96, 96)))
    with pytest.raises(demo.NotHere, match="no frog was found"):
        demo._mask(work)
