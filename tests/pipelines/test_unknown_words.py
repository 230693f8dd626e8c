"""What the starter can draw, and words that it was never shown."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from opsmith import starter
from opsmith.cli import build_app
from opsmith.pipelines.clip_tokenizer import ClipTokenizer
from opsmith.pipelines.diffusion import DiffusionApp
from opsmith.starter import vocabulary


def test_every_word_of_the_small_world_is_known_and_others_are_not() -> None:
    tokenizer = ClipTokenizer(starter.folder("pictures") / "tokenizer")
    words = [*vocabulary.OBJECTS, *vocabulary.TINTS, *vocabulary.PLAIN]
    words += [word for several in vocabulary.SIZES.values() for word in several]
    words += [phrase for several in vocabulary.SETTING_PHRASES.values() for phrase in several]
    words += [phrase.format(colour="gray") for phrase in vocabulary.PLAIN_PHRASES]
    words += [word for group in starter.draws().values() for word in group]
    assert tokenizer.unknown(", ".join(words)) == []
    assert tokenizer.unknown("A Zeppelin beside a red apple, 3 of them!") == ["zeppelin", "them"]


def test_a_tokenizer_of_many_words_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = ClipTokenizer(starter.folder("pictures") / "tokenizer")
    monkeypatch.setattr("opsmith.pipelines.clip_tokenizer.SMALL_WORLD", 100)  # as if it were a large one
    assert tokenizer.unknown("a zeppelin") == []


def test_a_picture_of_unknown_words_comes_with_a_remark() -> None:
    app = DiffusionApp(starter.folder("pictures"), threads=1)
    made = app.generate("a zeppelin on the grass", steps=1, guidance=1)
    assert made.remarks == ["this model was never shown 'zeppelin': the picture may show something else"]
    assert app.generate("a whale on the grass", steps=1, guidance=1).remarks == []


def test_imagine_lists_what_the_starter_draws() -> None:
    listed = CliRunner().invoke(build_app(), ["imagine", "--list"])
    assert listed.exit_code == 0
    lines = dict(line.split(": ", 1) for line in listed.stdout.splitlines())
    assert {kind: words.split(", ") for kind, words in lines.items()} == starter.draws()
    assert "a prompt is needed" in str(CliRunner().invoke(build_app(), ["imagine"]).exception)
    other = CliRunner().invoke(build_app(), ["imagine", "--list", "--model", "models/sd"])
    assert "does not say what it can draw" in str(other.exception)
