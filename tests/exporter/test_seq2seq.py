"""Encoder-decoders: both graphs against transformers, and together token by token against its generate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest

import opsmith

IDS = {"vocab_size": 200, "bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0, "decoder_start_token_id": 2}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
BART = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
    "forced_eos_token_id": None,
}
SPEECH = {
    **BART,
    "num_mel_bins": 8,
    "max_source_positions": 20,
    "max_target_positions": 64,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}
FAMILIES = {
    "t5": ("T5Config", "T5ForConditionalGeneration", T5),
    "bart": ("BartConfig", "BartForConditionalGeneration", BART),
    "whisper": ("WhisperConfig", "WhisperForConditionalGeneration", SPEECH),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_encoder_and_decoder_write_what_generate_writes(tmp_path: Path, name: str) -> None:
    import torch
    import transformers

    config, kind, options = FAMILIES[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = getattr(transformers, kind)(getattr(transformers, config)(**IDS, **options)).eval()
        models._lively(model, 1.0 if name == "t5" else 4.0).save_pretrained(tmp_path / "source")
    exported = opsmith.export(tmp_path / "source", tmp_path / "model")
    assert 0 < exported.max_abs_error < 1e-3
    for part in ("encoder", "decoder"):
        result = opsmith.compile(tmp_path / "model" / part / "dynamo", tmp_path / "none", regions="whole", dry_run=True)
        assert result.left == [] and len(result.regions) == 1, part

    random = np.random.default_rng(1)
    if name == "whisper":
        source = {"input_features": random.standard_normal((1, 8, 40)).astype(np.float32)}
    else:
        source = {"input_ids": random.integers(4, 200, (1, 11)), "attention_mask": np.ones((1, 11), np.int64)}
    with torch.no_grad():
        expected = model.generate(
            **{k: torch.from_numpy(v) for k, v in source.items()},
            max_new_tokens=12,
            min_new_tokens=12,
            do_sample=False,
            num_beams=1,
            eos_token_id=None,
            forced_eos_token_id=None,
        )
    written = [t for t in expected[0].tolist() if t != 2]
    assert greedy(tmp_path / "model", source, 12)[: len(written)] == written


def greedy(folder: Path, source: dict[str, Any], count: int) -> list[int]:
    encoder, decoder = (opsmith.load(folder / part / "dynamo") for part in ("encoder", "decoder"))
    made = dict(zip([o.name for o in encoder.get_outputs()], encoder.run(None, source)))
    feed = {n: v for n, v in made.items() if n.startswith("cross.")}
    if "attention_mask" in source:
        feed["encoder_attention_mask"] = source["attention_mask"]
    for i in decoder.get_inputs():
        if i.name.startswith("past_key_values."):
            feed[i.name] = np.zeros((1, i.shape[1], 0, i.shape[3]), np.float32)
    tokens = [2]
    for _ in range(count):
        feed["input_ids"], feed["attention_mask"] = np.array([tokens[-1:]]), np.ones((1, len(tokens)), np.int64)
        outputs = dict(zip([o.name for o in decoder.get_outputs()], decoder.run(None, feed)))
        feed |= {n.replace("present", "past_key_values"): v for n, v in outputs.items() if n != "logits"}
        tokens.append(int(outputs["logits"][0, -1].argmax()))
    return tokens[1:]
