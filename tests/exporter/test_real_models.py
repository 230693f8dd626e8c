"""Models with trained weights, from the package registries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import real_models
from tokenizers import Tokenizer

import opsmith
from opsmith import store


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("real") / "all-MiniLM-L6-v2"
    opsmith.export(real_models.minilm(), folder, exporter="dynamo")
    return folder


def embed(folder: Path, sentences: list[str]) -> np.ndarray:
    """Mean over the tokens, then unit length, as the model's own pooling has it."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(sentences)
    feed = {
        "input_ids": np.array([e.ids for e in encoded]),
        "attention_mask": np.array([e.attention_mask for e in encoded]),
        "token_type_ids": np.array([e.type_ids for e in encoded]),
    }
    hidden = opsmith.load(folder / "dynamo").run(None, feed)[0]
    mask = feed["attention_mask"][:, :, None]
    mean = (hidden * mask).sum(axis=1) / mask.sum(axis=1)
    return mean / np.linalg.norm(mean, axis=1, keepdims=True)


def test_minilm_verifies_and_places_paraphrases_together(minilm: Path) -> None:
    record = store.read_record(store.find_model(minilm))
    assert record["verified"]["max_abs_error"] < 1e-4
    a, b, c, d = embed(
        minilm,
        [
            "A man is playing the guitar on the street.",
            "Someone plays guitar outdoors.",
            "The stock market fell sharply after the announcement.",
            "Shares dropped a lot following the news.",
        ],
    )
    paraphrases, unrelated = (a @ b, c @ d), (a @ c, a @ d, b @ c, b @ d)
    assert min(paraphrases) > 0.5
    assert max(unrelated) < 0.2


def test_terrain_unet_opens_through_the_store() -> None:
    model = store.open_model(real_models.terrain_unet())
    assert [v.name for v in model.graph.inputs] == ["noisy", "sigma", "difficulty"]
    assert sum(node.op_type == "Conv" for node in model.graph) == 196
    session = opsmith.load(real_models.terrain_unet())
    feed = {
        "noisy": np.random.default_rng(0).standard_normal((1, 1, 128, 128), np.float32),
        "sigma": np.array([1.0], np.float32),
        "difficulty": np.array([0.5], np.float32),
    }
    (terrain, *_) = session.run(None, feed)
    assert terrain.shape == (1, 1, 128, 128)
    assert np.isfinite(terrain).all()
