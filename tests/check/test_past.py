"""Decoders are judged on a past that they made themselves, not on noise."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from small_models import decoder
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

import opsmith
from opsmith.check import inputs, passage, past
from opsmith.check.next_token import compare_logits, next_token
from opsmith.check.verify import verify
from opsmith.cli.compile import show_error


def test_a_variant_that_differs_on_noise_alone_is_right() -> None:
    """The table is positive: of a past that the model makes, the absolute value is what it is."""
    result = verify(decoder(), decoder(of_past="Abs"))
    assert result.ok, result.problems
    assert [case.name for case in result.cases] == [
        "random batch=1 sequence=1 past=128, its own past",
        "random batch=2 sequence=16 past=0",
        "random batch=3 sequence=7 past=5, its own past",
    ]
    assert not verify(decoder(), decoder(of_past="Neg")).ok


def test_values_that_the_caller_gives_for_the_past_stay() -> None:
    given = {"past_key_values.0.key": np.full((1, 1, 3, 16), -1, np.float32)}
    assert not verify(decoder(), decoder(of_past="Abs"), inputs=given).ok


def test_the_run_before_reads_as_much_of_the_mask_as_there_is_past() -> None:
    model = ir.from_proto(decoder())
    wanted, dims = inputs.specs(model), {"batch": 2, "sequence": 3, "past": 4}
    mask = np.array([[0, 0, 1, 1, 1, 1, 1], [1] * 7])
    key = np.zeros((2, 1, 4, 16), np.float32)
    feed = {"input_ids": np.ones((2, 3), np.int64), "attention_mask": mask, "past_key_values.0.key": key}
    made = past.before(model, wanted, feed, dims, past.Lengths(4, 3), [0])
    assert past.lengths(wanted, dims) == past.Lengths(4, 3)
    assert made["input_ids"].shape == (2, 4)
    assert made["past_key_values.0.key"].shape == (2, 1, 0, 16)
    assert made["attention_mask"].tolist() == mask[:, :4].tolist()


def test_a_decoder_of_single_steps_keeps_random_values() -> None:
    result = verify(decoder(tokens=1), decoder(tokens=1))
    assert result.ok and not any(case.name.endswith("past") for case in result.cases if "past=0" not in case.name)
    assert not verify(decoder(tokens=1), decoder(tokens=1, of_past="Abs")).ok


def test_a_past_that_is_no_number_or_of_another_size_is_not_taken() -> None:
    feed, pairs = {"past_key_values.0.key": np.zeros((1, 1, 2, 4), np.float32)}, {"past_key_values.0.key": "present"}
    assert past.with_past(feed, pairs, {"present": np.full((1, 1, 2, 4), np.nan, np.float32)}) is None
    assert past.with_past(feed, pairs, {"present": np.ones((1, 1, 3, 4), np.float32)}) is None
    assert past.with_past(feed, pairs, {"present": np.ones((1, 1, 2, 4), np.float32)}) is not None


def test_what_is_expected_next_is_compared_over_all_positions() -> None:
    result = verify(decoder(), decoder(of_logits="Neg"))
    assert result.next_token is not None and result.next_token.positions == 1 + 2 * 16 + 3 * 7
    assert result.next_token.top1 < 0.2 and result.next_token.kl > 0.1
    same = verify(decoder(), decoder()).next_token
    assert same is not None and same.top1 == 1 and same.kl == 0
    assert verify(decoder(), decoder()).to_dict()["next_token"] == same


def test_divergence_and_agreement_of_known_distributions() -> None:
    a, b = np.log([[0.5, 0.5], [0.9, 0.1]]), np.log([[0.25, 0.75], [0.9, 0.1]])
    kl, top1 = next_token(a, b)
    assert kl == pytest.approx((0.5 * np.log(2) + 0.5 * np.log(2 / 3)) / 2) and top1 == 0.5
    found = compare_logits(np.array([[np.nan, 0], [1, 2]]), np.array([[np.nan, 0], [1, 2]]))
    assert found is not None and found.positions == 1  # a padded position says nothing


def test_compile_in_bf16_says_what_a_decoder_expects_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(decoder(), tmp_path / "decoder.onnx")
    result = opsmith.compile(tmp_path / "decoder.onnx", tmp_path / "narrow", precision="bf16", regions="all")
    assert result.verified is not None and result.variant is not None
    stated = opsmith.store.read_record(result.variant.path)["next_token"]
    assert stated["positions"] == 54 and 0 < stated["kl"] < 1e-3 and stated["top1"] > 0.9
    show_error(result.verified)
    assert f"the same at {stated['top1']:.1%} of 54 positions" in " ".join(capsys.readouterr().out.split())


def _tokenizer(folder: Path, **config: object) -> None:
    words = sorted({word for sentence in passage.SENTENCES for word in sentence.split()})
    made = Tokenizer(WordLevel({"[s]": 0, "[?]": 1} | {w: 2 + i % 38 for i, w in enumerate(words)}, unk_token="[?]"))
    made.pre_tokenizer = WhitespaceSplit()
    made.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(config))


def test_a_tokenizer_beside_the_model_makes_a_text_behind_the_padding(tmp_path: Path) -> None:
    _tokenizer(tmp_path, vocab_size=40, bos_token_id=0)
    onnx.save(decoder(), tmp_path / "decoder.onnx")
    result = verify(tmp_path / "decoder.onnx", decoder(of_logits="Neg"))
    assert [case.name.split()[0] for case in result.cases] == ["text"] * 3
    last = result.cases[-1]
    assert last.inputs is not None
    whole = passage.tokens(tmp_path, 3, 12)
    assert whole is not None and (whole[:, 0] == 0).all() and len({tuple(row) for row in whole}) == 3
    padded = (last.inputs["attention_mask"] != 0).argmax(axis=1)
    assert padded.max() > 0
    for row, ids, behind in zip(whole, last.inputs["input_ids"], padded):
        assert ids.tolist() == row[5 - behind : 12 - behind].tolist()


@pytest.mark.parametrize("config", [{}, {"vocab_size": 20}], ids=["size not told", "other tokens than the model has"])
def test_without_a_tokenizer_that_fits_the_tokens_are_random(tmp_path: Path, config: dict[str, object]) -> None:
    _tokenizer(tmp_path, **config)
    onnx.save(decoder(), tmp_path / "decoder.onnx")
    assert {case.name.split()[0] for case in verify(tmp_path / "decoder.onnx", decoder()).cases} == {"random"}
    assert passage.tokens(tmp_path / "none", 1, 1) is None
