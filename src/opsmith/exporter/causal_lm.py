"""GPT-2 and Llama-type decoders: one graph with a real KV cache, for prompt and decode alike.

    input_ids [B,S], attention_mask [B,P+S], position_ids [B,S], past_key_values.N.key/value [B,H,P,D]
      -> logits [B,S,V], present.N.key/value [B,H,P+S,D]

P may be 0. Masks are built from attention_mask and the two lengths inside the graph, so left padding works.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from opsmith.errors import OpsmithError
from opsmith.exporter import source as sources
from opsmith.exporter.graph import Graph, Part, Plan, Sizes

if TYPE_CHECKING:
    import torch


def accepts(config: dict[str, Any]) -> bool:
    return any(a.endswith(("ForCausalLM", "LMHeadModel")) for a in config.get("architectures") or [])


def plan(source: sources.Source) -> Plan:
    config = source.config()
    return Plan([Part("", lambda: _load(source), config)], source.tokenizer_files())


def _load(source: sources.Source) -> Graph:
    from transformers import AutoModelForCausalLM

    model = sources.load_transformers(source, AutoModelForCausalLM)
    config = model.config
    if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        raise OpsmithError(f"{source.name}: sliding-window attention is not supported by the KV-cache export")
    layers = config.num_hidden_layers
    kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    longest = config.max_position_embeddings
    prompt, past = min(16, longest // 2), min(24, longest // 2)

    inputs: dict[str, dict[int, str]] = {
        "input_ids": {0: "batch", 1: "sequence"},
        "attention_mask": {0: "batch", 1: "past + sequence"},
        "position_ids": {0: "batch", 1: "sequence"},
    }
    outputs: dict[str, dict[int, str]] = {"logits": {0: "batch", 1: "sequence"}}
    for i in range(layers):
        for kind in ("key", "value"):
            inputs[f"past_key_values.{i}.{kind}"] = {0: "batch", 2: "past"}
            outputs[f"present.{i}.{kind}"] = {0: "batch", 2: "past + sequence"}

    def example(sizes: Sizes, random: torch.Generator) -> Sequence[torch.Tensor]:
        import torch

        batch, sequence, past = sizes["batch"], sizes["sequence"], sizes["past"]
        ids = torch.randint(0, config.vocab_size, (batch, sequence), generator=random)
        mask = torch.ones(batch, past + sequence, dtype=torch.int64)
        positions = torch.arange(past, past + sequence).repeat(batch, 1)
        if batch > 1:  # the second row is left-padded, as batches of prompts are
            mask[1, : past // 2] = 0
            positions[1] -= past // 2
        empty = [torch.zeros(batch, kv_heads, 0, head) for _ in range(2 * layers)]
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
        ],
    )


def _forward(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, *past: torch.Tensor
) -> list[torch.Tensor]:
    import torch

    sequence, before = ids.shape[1], past[0].shape[2]
    query = torch.arange(sequence).unsqueeze(1) + before  # [S,1]
    key = torch.arange(sequence + before).unsqueeze(0)  # [1,P+S]
    # A padding token sees itself: softmax over nothing is NaN in one runtime and a mean in another.
    keep = (key <= query) & (mask.bool()[:, None, None, :] | (key == query))  # [B,1,S,P+S]
    return _run(model, ids, keep, positions, past)


def _original(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, *past: torch.Tensor
) -> list[torch.Tensor]:
    return _run(model, ids, mask, positions, past)


def _run(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, past: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    cache = DynamicCache()
    cache.layers = []
    for key, value in zip(past[0::2], past[1::2]):
        layer = DynamicLayer()
        layer.lazy_initialization(key, value)
        layer.keys, layer.values = key, value
        cache.layers.append(layer)
    result = model(ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True)
    present = [t for layer in cache.layers for t in (layer.keys, layer.values)]
    return [result.logits, *present]
