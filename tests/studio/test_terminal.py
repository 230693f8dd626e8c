"""The flow in a terminal, question by question."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from opsmith.cli import main
from opsmith.errors import OpsmithError
from opsmith.pipelines import pictures
from opsmith.studio import terminal
from opsmith.studio.models import Models


def answers(*lines: str) -> tuple[Iterator[str], list[str]]:
    return iter(lines), []


def talk(folder: Path, *lines: str) -> list[str]:
    """What is said to these answers; the end of the input ends the talk."""
    left, said = answers(*lines)

    def ask(words: str) -> str:
        said.append(words)
        try:
            return next(left)
        except StopIteration:
            raise EOFError from None

    terminal.converse(Models(), folder, ask, said.append)
    return said


def test_from_a_word_to_an_edited_picture(home: Path, tmp_path: Path) -> None:
    said = talk(tmp_path, "frog", "2", "7", "sing", "frog", "fly away", "frog", "make it blue", "", "")
    second = next(line for line in said if line.startswith("  2  "))[5:]
    kept = {p.name.split("-")[2]: p for p in sorted(tmp_path.glob("*.png"))}
    assert {"made"} <= set(kept)
    settings = pictures.settings_of(kept["made"])
    assert (settings["prompt"], settings["seed"]) == (second, 7)
    assert kept["made"].with_suffix(".json").is_file()
    assert said[-1] == f"pictures are in {tmp_path}"


def test_own_prompts_and_a_seed_that_is_none(home: Path, tmp_path: Path) -> None:
    said = talk(tmp_path, "frog", "a castle under the stars", "soon", "q")
    assert any("'soon' is not a number" in line for line in said)
    (made,) = tmp_path.glob("*-made-*.png")
    assert pictures.settings_of(made)["prompt"] == "a castle under the stars"


@pytest.mark.usefixtures("sure_eye")
def test_an_edit_is_saved_with_its_history(home: Path, tmp_path: Path) -> None:
    said = talk(tmp_path, "frog", "a red apple", "1", "apple", "sing it a song", "apple", "make it blue", "", "")
    assert any("is not understood" in line for line in said)
    (edited,) = tmp_path.glob("*-edited-*.png")
    settings = pictures.settings_of(edited)
    assert settings["prompt"] == "a red apple"
    assert settings["edits"] == [{"change": "make it blue", "kind": "recolour", "select": "apple"}]


@pytest.mark.parametrize("verb", ["studio", "serve"])
def test_the_command_refuses_open_doors_and_taken_ports(
    home: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from opsmith.studio import server

    with pytest.raises(SystemExit) as ended:
        main([verb, "--host", "0.0.0.0"])
    assert ended.value.code == 2
    assert "--host 0.0.0.0 lets other machines in, which needs a password" in capsys.readouterr().err
    with server._listen("127.0.0.1", 0) as taken, pytest.raises(SystemExit) as ended:
        main([verb, "--port", str(taken.getsockname()[1])])
    assert ended.value.code == 2
    assert "cannot listen on 127.0.0.1" in capsys.readouterr().err


def test_a_wrong_folder_is_told_at_once(home: Path, tmp_path: Path) -> None:
    with pytest.raises(OpsmithError, match="the pictures folder .* does not exist"):
        Models(pictures=tmp_path / "none")
    with pytest.raises(OpsmithError, match="is not a pipeline folder: it has no unet"):
        Models(pictures=tmp_path)
