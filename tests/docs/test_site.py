"""The docs build as a site, strictly: every page is in the navigation, and nothing on it is fetched from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pages import DOCS


def test_the_site_builds_offline_with_every_page(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=DOCS.parent, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert {p.stem for p in DOCS.glob("*.md")} <= {p.stem for p in tmp_path.glob("*.html")}
    index = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(?:https?:)?//[^"]+"', index) == []
    assert (tmp_path / "search" / "search_index.json").stat().st_size > 50_000
