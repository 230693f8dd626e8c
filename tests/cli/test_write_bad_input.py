"""write and quantize: a user's mistake is one clear line on stderr and exit code 2."""

from __future__ import annotations

import shutil

import models
import numpy as np
import pytest

from opsmith.cli import main


def refused(capfd, *arguments):
    capfd.readouterr()  # what making the model said
    with pytest.raises(SystemExit) as stop:
        main([str(a) for a in arguments])
    said = capfd.readouterr().err
    assert stop.value.code == 2 and "Traceback" not in said
    assert said.startswith("opsmith: error:") and len(said.strip().splitlines()) == 1
    return said


def answered(capfd, *arguments):
    capfd.readouterr()
    with pytest.raises(SystemExit) as stop:
        main([str(a) for a in arguments])
    assert not stop.value.code
    return capfd.readouterr()


def test_an_empty_prompt(capfd):
    assert "empty" in refused(capfd, "write", "  ", "--model", models.tiny_model("gpt2"), "--raw")


def test_a_prompt_longer_than_the_context(capfd):
    said = refused(capfd, "write", "word " * 400, "--model", models.tiny_model("gpt2"), "--raw", "--n", "1")
    assert "context" in said and "shorten the prompt" in said


def test_more_new_tokens_than_fit(capfd):
    model = models.tiny_model("gpt2")
    assert "ask for at most" in refused(capfd, "write", "word", "--model", model, "--raw", "--max-new-tokens", 5000)


def test_an_unknown_tokenizer(tmp_path, capfd):
    shutil.copytree(models.tiny_model("gpt2"), tmp_path / "m")
    for file in (tmp_path / "m").glob("*"):
        if file.is_file() and file.name != "config.json":
            file.unlink()
    assert "holds no tokenizer" in refused(capfd, "write", "word", "--model", tmp_path / "m", "--raw")
    (tmp_path / "m" / "tokenizer.json").write_text('{"version": "1.0", "model": {"type": "Unheard"}}')
    assert "cannot be read" in refused(capfd, "write", "word", "--model", tmp_path / "m", "--raw")


def test_a_model_without_past_inputs(capfd):
    said = refused(capfd, "write", "word", "--model", models.tiny_model("bert"), "--raw")
    assert "past_key_values" in said


@pytest.mark.parametrize("verb", [["quantize"], ["prune", "--ratio", "0.2"]])
def test_a_calibration_file_of_the_wrong_shape(tmp_path, capfd, verb):
    source = models.tiny_variant("bert")
    names = ("input_ids", "attention_mask", "token_type_ids")
    np.savez(tmp_path / "wrong.npz", **{n: np.ones((2, 3, 4), np.int64) for n in names})
    said = refused(capfd, *verb, source, tmp_path / "m" / "out", "--calibration", tmp_path / "wrong.npz")
    assert "shape 2x3x4" in said and not (tmp_path / "m" / "out").exists()


def test_defaults_of_raw_fit_the_starter_writer(capfd):
    """Its context is 64, the default number of new tokens too."""
    said = answered(capfd, "write", "--raw", "frog:")
    assert said.out.count("frog:") == 1 and "at most 62 new tokens" in said.err


def test_several_raw_texts_differ(capfd):
    assert len(set(answered(capfd, "--quiet", "write", "--raw", "frog:", "--n", "3").out.splitlines())) == 3
    assert "would all be the same" in refused(capfd, "write", "--raw", "frog:", "--n", "3", "--temperature", "0")


def test_half_a_character(capfd):
    assert "half a character" in refused(capfd, "write", "--raw", "frog\udcff")


@pytest.mark.parametrize(
    "misplaced",
    [
        ["--lookup", 3],
        ["--draft", "x"],
        ["--max-new-tokens", 5],
        ["--temperature", 0],
        ["--stop", "x"],
        ["--top-p", 0.5],
    ],
    ids=lambda m: m[0],
)
def test_options_that_would_be_ignored_are_refused(capfd, misplaced):
    said = " ".join(refused(capfd, "write", "frog", *misplaced).split())
    assert f"takes no {misplaced[0]}" in said and "add --raw" in said
    assert "takes no --style" in " ".join(refused(capfd, "write", "--raw", "frog", "--style", "general").split())


def test_a_draft_that_cannot_be_used_is_told_before_the_prompt_is_shown(capfd, tmp_path):
    with pytest.raises(SystemExit):
        main(["write", "--raw", "frog:", "--draft", str(tmp_path / "none")])
    out, err = capfd.readouterr()
    assert out == "" and "does not exist" in err


def test_a_draft_for_several_texts_is_told_to_do_nothing(capfd, tmp_path):
    said = answered(capfd, "write", "--raw", "frog:", "--n", "2", "--draft", tmp_path / "none")
    assert "nothing is guessed" in " ".join(said.err.split())
