"""What Python shows of results and of long steps."""

from __future__ import annotations

import dataclasses
import sys
import types

import pytest
from PIL import Image
from small_models import mlp, save

import opsmith
from opsmith import progress
from opsmith.pipelines.diffusion.app import Generated
from opsmith.plain import ROWS, Shown


@dataclasses.dataclass(repr=False)
class Result(Shown):
    name: str
    seconds: float
    rows: list[dict[str, object]]
    note: str | None = None


def test_a_result_is_one_line_at_a_prompt_and_tables_in_a_notebook() -> None:
    result = Result("<b>", 0.125, [{"op": "Add", "us": 1.5, "deep": [1]}] * (ROWS + 2))
    assert repr(result) == f"Result(name='<b>', seconds=0.125, rows: {ROWS + 2})"
    page = result._repr_html_()
    assert "&lt;b&gt;" in page and "<th>op</th><th>us</th></tr>" in page and "deep" not in page
    assert page.count("<td>Add</td><td>1.5</td>") == ROWS and "2 more" in page


def test_a_real_result_shows_itself(tmp_path) -> None:
    model = save(mlp(), tmp_path / "m" / "original")
    checked = opsmith.verify(model, model, shapes=1)
    assert repr(checked).startswith("VerifyResult(ok=True, cases: ") and "<th>name</th>" in checked._repr_html_()
    assert repr(opsmith.inspect(model)).startswith("ModelInfo(path=")
    (profiled,) = opsmith.profile([model], iterations=2)
    assert repr(profiled).startswith("Profile(label='original'") and "<b>nodes</b>" in profiled._repr_html_()


def test_a_watcher_is_called_at_every_step_and_only_while_it_watches() -> None:
    seen: list[tuple[str, str, int, int | None]] = []
    with progress.watch(lambda *step: seen.append(step)), progress.task("work", 3) as step:
        step("one")
        step("two", 2)
    with progress.task("work", 1) as step:
        step("later")
    assert seen == [("work", "one", 1, 3), ("work", "two", 3, 3)]


def test_a_verb_reports_to_the_watcher(tmp_path) -> None:
    model = save(mlp(), tmp_path / "m" / "original")
    titles = set()
    with opsmith.progress.watch(lambda title, *_: titles.add(title)):
        opsmith.verify(model, model, shapes=1)
    assert any("verify" in title for title in titles)


def test_a_notebook_gets_a_line_that_renews_itself_and_goes_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_enabled", None)  # whatever a command in this process set
    monkeypatch.setattr("sys.ps1", "In : ", raising=False)
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    with progress.task("compiling", 2) as step:
        step("kernel 1", 2)
    lines = capsys.readouterr().err.split("\r")
    assert lines[1].strip() == "compiling" and lines[2].startswith(f"compiling: kernel 1  [{'#' * progress.CELLS}] 2/2")
    assert lines[-2].isspace() and len(lines[-2]) == len(lines[2]) and lines[-1] == ""


def test_pictures_are_shown_in_a_notebook() -> None:
    made = Generated([Image.new("RGB", (8, 8), "red")] * 2, [{"prompt": "a <red> one"}] * 2, [0.1] * 3, 0.5, [])
    assert repr(made) == "Generated(2 pictures, 3 steps, 0.5 s)"
    page = made._repr_html_()
    assert page.count("data:image/png;base64,") == 2 and "a &lt;red&gt; one" in page


@pytest.mark.parametrize("interactive", [False, True])
def test_no_bar_where_nobody_looks(interactive: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if interactive:
        monkeypatch.setattr("sys.ps1", ">>> ", raising=False)
    assert not progress._looked_at()  # stderr is no terminal here
