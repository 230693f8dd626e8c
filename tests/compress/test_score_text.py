"""score text: figures of the definition, on models whose relation is known."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import models
import numpy as np
import pytest
from PIL import Image

from opsmith.check.next_token import log_softmax
from opsmith.cli import main
from opsmith.compress.quantize import quantize
from opsmith.errors import OpsmithError
from opsmith.measure.score_text import _generated, csv_text, markdown, score_text
from opsmith.pipelines.text import TextGenerator

WORDS = "a red apple on a table, a green frog under a tree, and a small cat that sleeps near the door"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model folder with its source, an int8 and an int4 variant, and a text."""
    home = tmp_path_factory.mktemp("score") / "tiny-llama"
    shutil.copytree(models.tiny_model("llama"), home)
    quantize(home / "dynamo", home / "int8", threads=1)
    quantize(home / "dynamo", home / "int4", bits=4, threads=1)
    (home / "words.txt").write_text(WORDS, encoding="utf-8")
    return home


@pytest.fixture(scope="module")
def rows(folder):
    variants = [folder / name for name in ("dynamo", "int8", "int4")]
    return score_text(variants, folder / "words.txt", window=40, decode=6, threads=1)


def test_perplexity_is_that_of_the_definition(folder, rows):
    generator = TextGenerator(folder, "dynamo", threads=1)
    ids = list(generator.tokenizer.encode(WORDS).ids)
    losses = []
    for start in range(0, len(ids), 40):
        part = ids[start : start + 40]
        feed = {"input_ids": np.array([part]), "attention_mask": np.ones((1, len(part)), np.int64)}
        feed["position_ids"] = np.arange(len(part))[None]
        for name in generator.past:
            shape = generator.inputs[name].shape
            feed[name] = np.zeros((1, shape[1], 0, shape[3]), np.float32)
        logits = generator.session.run(["logits"], feed)[0][0]
        losses += [-log_softmax(logits[i])[part[i + 1]] for i in range(len(part) - 1)]
    assert rows[0].predicted == len(losses)
    assert rows[0].perplexity == pytest.approx(np.exp(np.mean(losses)), rel=1e-4)


def test_the_reference_agrees_with_itself_and_fewer_bits_disagree_more(rows):
    assert rows[0].kl == 0 and rows[0].top1 == 1
    assert 0 < rows[1].kl < rows[2].kl and rows[1].top1 >= rows[2].top1
    assert rows[0].size > rows[1].size > rows[2].size
    assert [r.name for r in rows] == ["dynamo", "int8", "int4"]


def test_speed_and_memory_are_measured(rows):
    for row in rows:
        assert row.prompt_speed > 0 and row.decode_speed > 0 and 20e6 < row.peak_rss < 4e9
        assert row.distinct2 is None and row.keyword_hits is None  # nothing was generated from keywords


def test_distinct_pairs_and_keyword_hits_are_counted_over_all_texts():
    class Fixed:
        home = Path("elsewhere")  # without a prompts.toml

        def generate(self, prompt, n, **_):
            assert "apple" in prompt
            return [SimpleNamespace(text=t) for t in ["a red apple", "a red frog", "apples fall", ""][:n]]

    distinct, hits = _generated(Fixed(), ["apple"])
    assert distinct == pytest.approx(4 / 5)  # a red, red apple, a red, red frog, apples fall
    assert hits == 0.5


def test_tables_hold_every_model(rows):
    assert markdown(rows).count("\n") == 2 + len(rows)
    read = list(csv.DictReader(csv_text(rows).splitlines()))
    assert float(read[2]["kl"]) == pytest.approx(rows[2].kl)


def test_the_command_writes_its_tables(folder, capsys):
    source = str(folder / "dynamo")
    arguments = [
        "score",
        "text",
        source,
        "--text",
        str(folder / "words.txt"),
        "--decode",
        "4",
        "--without-cache",
        source,
    ]
    with pytest.raises(SystemExit) as ended:
        main(
            [
                *arguments,
                "--csv",
                str(folder / "out.csv"),
                "--markdown",
                str(folder / "out.md"),
                "--plot",
                str(folder / "out.png"),
                "--threads",
                "1",
            ]
        )
    assert ended.value.code == 0 and "perplexity" in capsys.readouterr().out
    assert (folder / "out.csv").read_text().startswith("name,perplexity") and "| dynamo |" in (
        folder / "out.md"
    ).read_text()
    read = list(csv.DictReader((folder / "out.csv").read_text().splitlines()))
    assert [r["name"] for r in read] == ["dynamo, no cache", "dynamo"] and float(read[1]["kl"]) < 1e-9
    with Image.open(folder / "out.png") as picture:
        assert picture.format == "PNG" and picture.width > 1000
        colours = {c for _, c in picture.convert("RGB").getcolors(1 << 24)}
    assert {(0x87, 0x96, 0xA8), (0xD9, 0x62, 0x2B)} <= colours  # a bar for each row


def test_bad_input_is_one_clear_line(folder, tmp_path):
    with pytest.raises(OpsmithError, match="does not exist"):
        score_text([folder / "dynamo"], tmp_path / "absent.txt")
    (tmp_path / "empty.txt").write_text("  ")
    with pytest.raises(OpsmithError, match="holds no text"):
        score_text([folder / "dynamo"], tmp_path / "empty.txt")
    with pytest.raises(OpsmithError, match="no past_key_values|not a text model"):
        score_text([models.tiny_variant("bert")], folder / "words.txt", threads=1)


def test_a_text_that_ends_at_once_has_a_decode_speed(folder, tmp_path):
    home = tmp_path / "ends"
    shutil.copytree(folder, home)
    generator = TextGenerator(home, "dynamo", threads=1)
    first = generator.generate(WORDS, max_new_tokens=1)[0].tokens[0]
    config = json.loads((home / "config.json").read_text())
    (home / "config.json").write_text(json.dumps({**config, "eos_token_id": first}))
    (row,) = score_text([home / "dynamo"], home / "words.txt", window=40, decode=6, threads=1)
    assert row.decode_speed > 0
