"""The walk-through in docs/ works: its commands are taken from the page and run in order, in an empty folder."""

from __future__ import annotations

import json

import pytest
from pages import DOCS, commands, run_page

PAGE = DOCS / "walkthrough.md"
STATIONS = ("export", "optimize", "compile", "verify", "bench", "profile", "report", "distill")


def test_the_page_shows_every_station_of_the_loop():
    text = "\n".join(commands(PAGE))
    places = [text.index(f"opsmith {verb} ") for verb in STATIONS]
    assert places == sorted(places)


def test_every_command_on_the_page_works(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    work = run_page(PAGE, tmp_path)
    assert {p.name for p in (work / "models" / "tiny").iterdir() if p.is_dir()} == {"dynamo", "rewritten", "compiled"}
    data = json.loads((work / "models" / "tiny" / "report.json").read_text())
    assert [e["verified"] for e in data["bench"]["entries"]] == [True] * 3
    assert (work / "models" / "tiny" / "report.html").stat().st_size > 10_000
    assert (work / "cut" / "attention_0" / "original" / "test_data_set_0" / "input_0.pb").is_file()
