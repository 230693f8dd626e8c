"""Decoders of today, from tiny configs: what export proves against transformers, and that the compiler takes all of it.

Export itself compares prompt, decode and left-padded batches with transformers' own call (exporter/trace.py) and fails where they
differ; prompts here are longer than the sliding windows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import models
import pytest

import opsmith
from opsmith import store

SMALL: dict[str, Any] = {
    "vocab_size": models.VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "bos_token_id": 512,
    "eos_token_id": 513,
    "pad_token_id": 513,
}
GROUPED = {**SMALL, "num_key_value_heads": 2}
HEADS = {**GROUPED, "head_dim": 12}  # not hidden_size / heads
OTHER_NAMES = {"vocab_size": models.VOCABULARY, "bos_token_id": 512, "eos_token_id": 513}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [2.0, 2.5, 3.0, 3.5],
    "original_max_position_embeddings": 32,
}
ALTERNATING = ["sliding_attention", "full_attention"]
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-3": ("LlamaConfig", {**GROUPED, "rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "qwen-3": ("Qwen3Config", HEADS),
    "gemma-2": ("Gemma2Config", {**HEADS, "sliding_window": 8, "query_pre_attn_scalar": 12}),
    "phi-3": ("Phi3Config", {**GROUPED, "sliding_window": 8, "rope_parameters": LONG}),
    "gpt-neox": ("GPTNeoXConfig", SMALL),
    "opt": ("OPTConfig", {**SMALL, "ffn_dim": 48, "word_embed_proj_dim": 32}),
}
MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen-2.5": ("Qwen2Config", GROUPED),
    "gemma-3": ("Gemma3TextConfig", {**HEADS, "sliding_window": 8, "layer_types": ALTERNATING}),
    "smollm-3": ("SmolLM3Config", GROUPED),
    "mistral": ("MistralConfig", {**GROUPED, "sliding_window": 8}),
    "starcoder-2": ("Starcoder2Config", {**GROUPED, "sliding_window": 8}),
    "phi-2": ("PhiConfig", GROUPED),
    "stablelm": ("StableLmConfig", GROUPED),
    "granite": ("GraniteConfig", GROUPED),
    "olmo-2": ("Olmo2Config", GROUPED),
    "cohere": ("CohereConfig", GROUPED),
    "falcon": ("FalconConfig", SMALL),
    "gpt-j": (
        "GPTJConfig",
        {**OTHER_NAMES, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4},
    ),
    "bloom": ("BloomConfig", {**OTHER_NAMES, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "gpt-neo": (
        "GPTNeoConfig",
        {
            **OTHER_NAMES,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "max_position_embeddings": 64,
            "window_size": 8,
            "attention_types": [[["global", "local"], 1]],
        },
    ),
}


def source(folder: Path, kind: str, options: dict[str, Any]) -> Path:
    import torch
    import transformers

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, kind)(**options))
        models._lively(model).save_pretrained(folder)
    models._byte_tokenizer(folder, "PreTrainedTokenizerFast", "</s>")
    return folder


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *(pytest.param(*known, id=name) for name, known in FAMILIES.items()),
        *(pytest.param(*known, id=name, marks=pytest.mark.slow) for name, known in MORE.items()),
    ],
)
def test_a_decoder_exports_and_compiles_whole(tmp_path: Path, kind: str, options: dict[str, Any]) -> None:
    exported = opsmith.export(source(tmp_path / "source", kind, options), tmp_path / "model")
    assert 0 < exported.max_abs_error < 1e-4
    result = opsmith.compile(tmp_path / "model" / "dynamo", tmp_path / "none", regions="whole", dry_run=True)
    assert result.left == [] and len(result.regions) == 1
    if "num_key_value_heads" in options:
        session = opsmith.load(tmp_path / "model" / "dynamo")
        pasts = [i.shape[1] for i in session.get_inputs() if i.name.startswith("past")]
        assert pasts == [2] * 4  # keys are not repeated
    if options.get("tie_word_embeddings"):
        file = store.find_model(tmp_path / "model" / "dynamo")
        size = sum(f.stat().st_size for f in file.parent.iterdir() if f.suffix in (".onnx", ".data"))
        model = source_parameters(tmp_path / "source")
        assert size < 4 * model + 200_000  # the table of words is stored once
    if options.get("sliding_window"):
        cases = store.read_record(store.find_model(tmp_path / "model" / "dynamo"))["verified"]["cases"]
        assert max(c["sizes"]["past"] for c in cases) > options["sliding_window"]


def source_parameters(folder: Path) -> int:
    from transformers import AutoModelForCausalLM

    return sum(p.numel() for p in AutoModelForCausalLM.from_pretrained(folder).parameters())


def test_a_model_without_keys_and_values_is_refused(tmp_path: Path) -> None:
    options = {**OTHER_NAMES, "hidden_size": 32, "num_hidden_layers": 1, "state_size": 4}
    with pytest.raises(opsmith.OpsmithError, match="cache"):
        opsmith.export(source(tmp_path / "source", "MambaConfig", options), tmp_path / "model")
