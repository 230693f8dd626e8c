"""Pages of docs/: those about a task run as they stand, and no page shows a command that the command line would refuse."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer.main
from pages import DOCS, commands, run_page

from opsmith.cli import build_app

TASKS = {
    "first-model.md": ["fast.onnx", "model.onnx.opsmith/manifest"],
    "make-pictures.md": ["apple.png", "blue.png", "blue_mask.png", "blue_sheet.png"],
    "tune-a-graph.md": ["better.onnx", "parts/product_0/original/product_0_original.onnx"],
}
PAGES = [DOCS.parent / "README.md", *sorted(DOCS.glob("*.md"))]


@pytest.mark.parametrize("page", TASKS)
def test_a_task_page_runs_as_it_stands(page: str, tmp_path: Path) -> None:
    work = run_page(DOCS / page, tmp_path)
    for written in TASKS[page]:
        assert (work / written).is_file(), written


def shown(page: Path) -> list[str]:
    """Command lines in blocks of a page: fenced, or indented by four; `$` may stand before them."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(
        r"^```(\w*)\n(.*?)^```", text, re.S | re.M
    )  # of every language, so that ends are not taken for beginnings
    fenced = [block for language, block in blocks if language in ("", "sh", "console", "bash")]
    indented = re.findall(r"(?:^    .*\n)+", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M), re.M)
    found = []
    for block in [*fenced, *indented]:
        for line in re.sub(r"\\\n", " ", block).splitlines():
            # what stands in quotes is the command's own: "a <cat> on a table" is no redirection
            command = re.match(r"""\s*(?:\$ )?(?:.*&& )?(opsmith [a-z](?:"[^"]*"|'[^']*'|[^|>&#"'])*)""", line)
            if command and not re.search(
                r"[\[(…]", re.sub(r""""[^"]*"|'[^']*'""", "", command[1])
            ):  # which stand for choices
                found.append(re.split(r"   +", command[1])[0].strip())
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_command_that_a_page_shows_parses(page: Path) -> None:
    top = typer.main.get_command(build_app())
    for line in shown(page):
        words = shlex.split(line)[1:]
        command = top.commands[words[0]]  # type: ignore[attr-defined]
        words = words[1:]
        if hasattr(command, "commands") and words:
            command, words = command.commands[words[0]], words[1:]
        try:
            command.make_context("opsmith", [w for w in words if w != "..."])
        except Exception as error:
            pytest.fail(f"{page.name}: {line}: {error}")


def test_pages_that_run_show_commands() -> None:
    assert all(commands(DOCS / page) for page in TASKS)


def test_commands_are_found_behind_other_blocks_and_with_their_quotes(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nopsmith.load(1)\n```\n\n"
        '```\npip install ".[view]" && opsmith view m.onnx  # Netron\n```\n\n'
        '    $ opsmith imagine "a <cat> (big)" --steps 4 > log\n\n    opsmith verify A [B]\n'
    )
    assert shown(page) == ["opsmith view m.onnx", 'opsmith imagine "a <cat> (big)" --steps 4']
