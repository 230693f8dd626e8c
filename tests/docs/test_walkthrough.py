"""The walk-through in docs/ works: its commands are taken from the page and run in order, in an empty folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "walkthrough.md"
STATIONS = ("export", "optimize", "compile", "verify", "bench", "profile", "report", "distill")


def commands() -> list[str]:
    """The shell blocks of the page; lines that continue an open quote stay together."""
    return re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)


def test_the_page_shows_every_station_of_the_loop():
    text = "\n".join(commands())
    places = [text.index(f"opsmith {verb} ") for verb in STATIONS]
    assert places == sorted(places)


def test_every_command_on_the_page_works(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    tools = tmp_path / "bin"
    tools.mkdir()
    shim = tools / "opsmith"  # the command of this checkout, whether or not it is installed
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m opsmith "$@"\n')
    shim.chmod(0o755)
    source = str(PAGE.parents[1] / "src")
    env = {
        **os.environ,
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH")))),
        "OPSMITH_CACHE": str(tmp_path / "cache"),
        "HF_HUB_OFFLINE": "1",
    }
    work = tmp_path / "work"
    work.mkdir()
    for block in commands():
        done = subprocess.run(["sh", "-e", "-c", block], cwd=work, env=env, capture_output=True, text=True)
        assert done.returncode == 0, f"{block}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    assert {p.name for p in (work / "models" / "tiny").iterdir() if p.is_dir()} == {"dynamo", "rewritten", "compiled"}
    data = json.loads((work / "models" / "tiny" / "report.json").read_text())
    assert [e["verified"] for e in data["bench"]["entries"]] == [True] * 3
    assert (work / "models" / "tiny" / "report.html").stat().st_size > 10_000
    assert (work / "cut" / "attention_0" / "original" / "test_data_set_0" / "input_0.pb").is_file()
