"""Decoders (GPT-2, OPT, GPT-NeoX, Llama, Qwen, Gemma, Phi, Mistral ...): one graph with a real KV cache, for prompt and decode alike.

    input_ids [B,S], attention_mask [B,P+S], position_ids [B,S], past_key_values.N.key/value [B,H,P,D]
      -> logits [B,S,V], present.N.key/value [B,H,P+S,D]

P may be 0. Masks are built from attention_mask and the two lengths inside the graph (masks.py), so left padding works.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from opsmith.errors import OpsmithError
from opsmith.exporter import masks
from opsmith.exporter import source as sources
from opsmith.exporter.graph import Graph, Part, Plan, Sizes

if TYPE_CHECKING:
    import torch


TASK = "text-generation"
FIRST = "first position"  # of the new tokens, in a case that is about places rather than lengths


def accepts(config: dict[str, Any]) -> bool:
    return any(a.endswith(("ForCausalLM", "LMHeadModel")) for a in config.get("architectures") or [])


def plan(source: sources.Source) -> Plan:
    config = source.config()
    return Plan([Part("", lambda: _load(source), config)], source.tokenizer_files())


def _load(source: sources.Source) -> Graph:
    from transformers import AutoModelForCausalLM

    model = _with_softcap(sources.load_transformers(source, AutoModelForCausalLM))
    config = model.config
    shapes = _cache_shapes(model, source.name)
    longest = context_of(config) or 1 << 30
    prompt, past = min(16, longest // 2), min(24, longest // 2)

    inputs: dict[str, dict[int, str]] = {
        "input_ids": {0: "batch", 1: "sequence"},
        "attention_mask": {0: "batch", 1: "past + sequence"},
        "position_ids": {0: "batch", 1: "sequence"},
    }
    outputs: dict[str, dict[int, str]] = {"logits": {0: "batch", 1: "sequence"}}
    for i in range(len(shapes)):
        for kind in ("key", "value"):
            inputs[f"past_key_values.{i}.{kind}"] = {0: "batch", 2: "past"}
            outputs[f"present.{i}.{kind}"] = {0: "batch", 2: "past + sequence"}

    def example(sizes: Sizes, random: torch.Generator) -> Sequence[torch.Tensor]:
        import torch

        batch, sequence, past = sizes["batch"], sizes["sequence"], sizes["past"]
        ids = torch.randint(0, config.vocab_size, (batch, sequence), generator=random)
        mask = torch.ones(batch, past + sequence, dtype=torch.int64)
        first = sizes.get(FIRST, past)
        positions = torch.arange(first, first + sequence).repeat(batch, 1)
        if batch > 1:  # the second row is left-padded, as batches of prompts are
            mask[1, : past // 2] = 0
            positions[1] -= past // 2
        empty = [torch.zeros(batch, heads, 0, size) for pair in shapes for heads, size in pair]
        if not past:
            return [ids, mask, positions, *empty]
        # The cache is one that the model itself makes: on noise, rounding grows tenfold in a trained model of 30 layers.
        before = torch.randint(0, config.vocab_size, (batch, past), generator=random)
        with torch.no_grad():
            seen = mask[:, :past]
            cache = _forward(model, before, seen, (seen.cumsum(1) - 1).clamp(min=0), *empty)[1:]
        return [ids, mask, positions, *(t.clone() for t in cache)]

    return Graph(
        model=model,
        inputs=inputs,
        outputs=outputs,
        forward=_forward,
        original=_original,
        example=example,
        trace_at={"batch": 2, "sequence": 5, "past": 3},
        cases=[
            {"batch": 1, "sequence": prompt, "past": 0},
            {"batch": 1, "sequence": 1, "past": past},
            {"batch": 2, "sequence": 5, "past": 7},
            {"batch": 2, "sequence": 6, "past": 0},
            *_beyond(config),
        ],
    )


def _forward(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, *past: torch.Tensor
) -> list[torch.Tensor]:
    with masks.traceable(model, mask, ids.shape[1]):
        return _run(model, ids, mask, positions, past)


def _original(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, *past: torch.Tensor
) -> list[torch.Tensor]:
    return _run(model, ids, mask, positions, past)


def _run(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, past: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    cache = cache_of(past)
    asked = inspect.signature(model.forward).parameters
    placed = {"position_ids": positions} if "position_ids" in asked or "kwargs" in asked else {}
    result = model(ids, attention_mask=mask, past_key_values=cache, use_cache=True, **placed)
    return [result.logits, *contents(cache)]


def cache_of(tensors: Sequence[torch.Tensor]) -> Any:
    """A cache that holds keys and values, layer by layer."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    cache = DynamicCache()
    cache.layers = []
    for key, value in zip(tensors[0::2], tensors[1::2]):
        layer = DynamicLayer()
        layer.lazy_initialization(key, value)
        layer.keys, layer.values = key, value
        cache.layers.append(layer)
    return cache


def contents(cache: Any) -> list[torch.Tensor]:
    return [t for layer in cache.layers for t in (layer.keys, layer.values)]


def _cache_shapes(model: Any, name: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Heads and size of keys and of values, layer by layer, as the model itself makes them."""
    import torch
    from transformers import DynamicCache

    cache = DynamicCache()
    ids = torch.zeros(1, 2, dtype=torch.int64)
    try:
        with torch.no_grad():
            model(ids, attention_mask=torch.ones_like(ids), past_key_values=cache, use_cache=True)
        pairs = [(layer.keys, layer.values) for layer in cache.layers]
        shapes = [((k.shape[1], k.shape[3]), (v.shape[1], v.shape[3])) for k, v in pairs if k.shape[2] == 2]
    except (AttributeError, IndexError, TypeError, ValueError, RuntimeError) as error:
        raise OpsmithError(f"{name}: its cache cannot be exported: {type(error).__name__}: {error}") from error
    if not shapes or len(shapes) < len(pairs):
        raise OpsmithError(
            f"{name}: its cache is not keys and values of every layer", "only attention layers are supported"
        )
    return shapes


def context_of(config: Any) -> int | None:
    """How many tokens the model was made for, under the names that configs have for it; None if it has no limit."""
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
    return next((int(size) for name in names if (size := getattr(config, name, None))), None)


def _beyond(config: Any) -> list[dict[str, int]]:
    """A case beyond the length from which rotary frequencies change, where they do."""
    rope = getattr(config, "rope_parameters", None) or {}
    changes = rope.get("original_max_position_embeddings") if rope.get("rope_type") == "longrope" else None
    return [{"batch": 1, "sequence": 5, "past": 3, FIRST: int(changes)}] if changes else []


def _with_softcap(model: Any) -> Any:
    """PyTorch's fused attention knows no soft cap; the plain one does."""
    if getattr(model.config, "attn_logit_softcapping", None):
        model.set_attn_implementation("eager")
    return model
