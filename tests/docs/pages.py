"""Commands that stand on pages of docs/."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from quick import own_cache

DOCS = Path(__file__).parents[2] / "docs"


def commands(page: Path) -> list[str]:
    """The shell blocks of a page, which are meant to be run; lines that continue an open quote stay together."""
    return re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.S)


def run_page(page: Path, folder: Path) -> Path:
    """Run a page's commands in order, in an empty folder, which is returned."""
    tools, work = folder / "bin", folder / "work"
    tools.mkdir()
    work.mkdir()
    for name, call in (("opsmith", "-m opsmith "), ("python", "")):  # of this checkout, whether or not it is installed
        (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {call}"$@"\n')
        (tools / name).chmod(0o755)
    source = str(DOCS.parent / "src")
    env = {
        **os.environ,
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH")))),
        "OPSMITH_CACHE": str(own_cache(folder / "cache")),
        "HF_HUB_OFFLINE": "1",
    }
    for block in commands(page):
        done = subprocess.run(["sh", "-e", "-c", block], cwd=work, env=env, capture_output=True, text=True)
        assert done.returncode == 0, f"{block}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    return work
