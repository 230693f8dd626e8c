"""The docs: no dead links, no command without a word in the README."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from opsmith.cli import build_app

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(
        r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M
    )  # C++ has brackets of its own
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose):
        if "://" not in target and not target.startswith("mailto:"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_page_is_reached_from_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "index.md" or f"({page.name})" in index, f"docs/index.md does not link {page.name}"


def test_every_command_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    group = typer.main.get_command(build_app())
    for name in group.commands:  # type: ignore[attr-defined]
        assert re.search(rf"`(opsmith )?{name}\b", readme), f"README.md does not mention `{name}`"


def test_ci_runs_the_two_commands_of_the_readme_as_they_are_written() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^pip install .* && (?:opsmith demo|pytest)$", readme, re.MULTILINE)
    assert len(commands) == 2
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for command in commands:
        install, _, run = command.partition(" && ")
        assert f"section '{command}'" in script
        assert re.search(rf"^ *{re.escape(install).replace('install', 'install -q')}$", script, re.MULTILINE), install
        assert re.search(rf"^ *(timeout \S+ )?{run}\b", script, re.MULTILINE), run
