"""CLIPSeg: a picture and a phrase -> a mask.

pixel_values [B,3,H,W], input_ids, attention_mask [B,S] -> logits [B,H,W]

H and W are what the preprocessor makes; CLIPSeg stretches its position embeddings from the size it was built for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from opsmith.exporter import source as sources
from opsmith.exporter.encoder import causal_mask, padding_mask
from opsmith.exporter.graph import Graph, Part, Plan, Sizes

if TYPE_CHECKING:
    import torch


def accepts(config: dict[str, Any]) -> bool:
    return config.get("model_type") == "clipseg"


def plan(source: sources.Source) -> Plan:
    copies = [*source.tokenizer_files(), *source.present("preprocessor_config.json")]
    return Plan([Part("", lambda: _load(source), source.config())], copies)


def _image_size(source: sources.Source) -> tuple[int, int]:
    size = source.config("preprocessor_config.json").get("size") if source.present("preprocessor_config.json") else None
    if isinstance(size, dict) and {"height", "width"} <= size.keys():
        return int(size["height"]), int(size["width"])
    side = size if isinstance(size, int) else source.config()["vision_config"]["image_size"]
    return int(side), int(side)


def _load(source: sources.Source) -> Graph:
    from transformers import CLIPSegForImageSegmentation

    model = sources.load_transformers(source, CLIPSegForImageSegmentation)
    text_config, (height, width) = model.config.text_config, _image_size(source)

    def example(sizes: Sizes, random: torch.Generator) -> Sequence[torch.Tensor]:
        import torch

        batch, sequence = sizes["batch"], sizes["sequence"]
        pixels = torch.randn(batch, 3, height, width, generator=random)
        end = text_config.eos_token_id if text_config.eos_token_id != 2 else text_config.vocab_size - 1
        ids = torch.randint(3, min(text_config.vocab_size, end) - 1, (batch, sequence), generator=random)
        ids[:, -1] = end
        return [pixels, ids, padding_mask(batch, sequence)]

    def original(model: Any, pixels: torch.Tensor, ids: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
        return [model(input_ids=ids, pixel_values=pixels, attention_mask=mask).logits]

    def forward(model: Any, pixels: torch.Tensor, ids: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
        return original(model, pixels, ids, causal_mask(ids, mask))

    dims = {0: "batch", 1: "sequence"}
    return Graph(
        model=model,
        inputs={"pixel_values": {0: "batch"}, "input_ids": dims, "attention_mask": dims},
        outputs={"logits": {0: "batch"}},
        forward=forward,
        original=original,
        example=example,
        trace_at={"batch": 2, "sequence": 7},
        cases=[{"batch": 1, "sequence": 8}, {"batch": 2, "sequence": 5}],
    )
