"""`export --task`: an encoder with the head that was asked for gives what transformers gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest

import opsmith
from opsmith import OpsmithError, store

HEADS = {"fill-mask": "AutoModelForMaskedLM", "text-classification": "AutoModelForSequenceClassification"}
SIZES = {"vocab_size": 90, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 48, "max_position_embeddings": 66, "num_labels": 5}
DISTIL = {"vocab_size": 90, "dim": 32, "n_layers": 1, "n_heads": 2, "hidden_dim": 48, "max_position_embeddings": 66}
KINDS: dict[str, dict[str, Any]] = {
    "bert": SIZES,
    "roberta": SIZES,
    "xlm-roberta": SIZES,
    "electra": SIZES | {"embedding_size": 32},
    "distilbert": DISTIL | {"num_labels": 5},
}


def write(kind: str, task: str, folder: Path) -> Any:
    """A tiny model with the task's head, saved in FOLDER as Hugging Face would."""
    import torch
    import transformers

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        config = transformers.AutoConfig.for_model(kind, **KINDS[kind])
        model = getattr(transformers, HEADS[task]).from_config(config).eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("task", HEADS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_head_gives_the_logits_of_transformers(tmp_path: Path, kind: str, task: str) -> None:
    import torch

    model = write(kind, task, tmp_path / "source")
    result = opsmith.export(tmp_path / "source", tmp_path / "model", task=task)
    path = store.find_model(result.variants[0].folder)
    assert store.read_record(path)["options"]["task"] == task
    running = opsmith.load(path)
    ids = np.random.default_rng(5).integers(2, 90, (3, 6))
    mask = np.ones_like(ids)
    mask[1, 4:] = 0
    fed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    fed = {i.name: fed[i.name] for i in running.get_inputs()}
    with torch.no_grad():
        expected = model(**{name: torch.from_numpy(array) for name, array in fed.items()}).logits.numpy()
    (logits,) = running.run(["logits"], fed)
    assert expected.shape == ((3, 6, 90) if task == "fill-mask" else (3, 5)) and expected.std() > 1e-2
    np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("source", "task", "message", "hint"),
    [
        ("bert", "text-clasification", "is not exported as that", "did you mean text-classification? known: feature"),
        ("gpt2", "fill-mask", "is not exported as that", "known: text-generation"),
        ("clip", "fill-mask", "in one way only", "leave out --task"),
        ("bert", "text-classification", "the weights lack 2 of the model's tensors, e.g. classifier.bias", ""),
    ],
)
def test_a_task_that_does_not_fit_is_one_line(tmp_path: Path, source: str, task: str, message: str, hint: str) -> None:
    with pytest.raises(OpsmithError) as caught:
        opsmith.export(models.tiny_source(source), tmp_path / "model", task=task)
    assert message in caught.value.message and hint in (caught.value.hint or "")
    assert not (tmp_path / "model" / "dynamo").exists()
