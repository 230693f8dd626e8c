"""Encoders: BERT and its relatives, CLIP's text and image towers.

BERT     input_ids, attention_mask, token_type_ids [B,S] -> last_hidden_state [B,S,C], pooler_output [B,C] if any
         with a head (TASKS)                             -> logits [B,S,V] of fill-mask, [B,labels] of text-classification
CLIP     text_model:   input_ids, attention_mask [B,S]   -> text_embeds [B,E],  last_hidden_state [B,S,C]
         vision_model: pixel_values [B,3,H,W] (H, W of the config) -> image_embeds [B,E], last_hidden_state [B,T,C]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from opsmith.exporter import source as sources
from opsmith.exporter.graph import Graph, Part, Plan, Sizes

if TYPE_CHECKING:
    import torch

# Encoders with BERT's interface; each is proved by the same checks.
_BERT_LIKE = {"bert", "roberta", "xlm-roberta", "distilbert", "electra"}
FEATURES, FILL_MASK, CLASSIFY = TASKS = ("feature-extraction", "fill-mask", "text-classification")


def accepts(config: dict[str, Any]) -> bool:
    return config.get("model_type") in {*_BERT_LIKE, "clip"}


def tasks(config: dict[str, Any]) -> tuple[str, ...]:
    """What a model may be exported as; the first if nothing is asked for."""
    return TASKS if config["model_type"] in _BERT_LIKE else ()


def plan(source: sources.Source, task: str | None = None) -> Plan:
    config = source.config()
    if config["model_type"] == "clip":
        parts = [
            Part("text_model", lambda: clip_text(source), config.get("text_config")),
            Part("vision_model", lambda: _clip_vision(source), config.get("vision_config")),
        ]
        return Plan(
            parts, [*source.tokenizer_files(), *source.present("preprocessor_config.json")], {"config.json": config}
        )
    return Plan([Part("", lambda: _bert(source, task or FEATURES), config)], source.tokenizer_files())


def _bert(source: sources.Source, task: str) -> Graph:
    from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification

    heads = {FILL_MASK: AutoModelForMaskedLM, CLASSIFY: AutoModelForSequenceClassification}
    if task in heads:
        model = sources.load_transformers(source, heads[task])
    else:
        model = sources.load_transformers(source, AutoModel, optional="pooler")
    config = model.config
    typed = getattr(config, "type_vocab_size", 0) > 1
    pooled = getattr(model, "pooler", None) is not None
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if typed else [])]
    tokens = {0: "batch", 1: "sequence"}
    outputs: dict[str, dict[int, str]] = {"last_hidden_state": tokens}
    if task in heads:
        outputs = {"logits": tokens if task == FILL_MASK else {0: "batch"}}
    elif pooled:
        outputs["pooler_output"] = {0: "batch"}

    def example(sizes: Sizes, random: torch.Generator) -> Sequence[torch.Tensor]:
        import torch

        shape = (sizes["batch"], sizes["sequence"])
        ids = torch.randint(2, config.vocab_size, shape, generator=random)  # ids 0 and 1 pad in one model or another
        tensors = [ids, padding_mask(*shape)]
        if typed:
            second = torch.arange(shape[1]) >= shape[1] // 2  # a pair of sentences
            tensors.append(second.to(torch.int64).repeat(shape[0], 1))
        return tensors

    def call(model: Any, mask: torch.Tensor, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        extra = {"token_type_ids": tensors[2]} if typed else {}
        result = model(tensors[0], attention_mask=mask, **extra)
        if task in heads:
            return [result.logits]
        return [result.last_hidden_state, *([result.pooler_output] if pooled else [])]

    def forward(model: Any, *tensors: torch.Tensor) -> list[torch.Tensor]:
        return call(model, tensors[1].bool()[:, None, None, :], tensors)  # [B,1,1,S], kept as it is by the model

    def original(model: Any, *tensors: torch.Tensor) -> list[torch.Tensor]:
        return call(model, tensors[1], tensors)

    return Graph(
        model=model,
        inputs={name: {0: "batch", 1: "sequence"} for name in names},
        outputs=outputs,
        forward=forward,
        original=original,
        example=example,
        trace_at={"batch": 2, "sequence": 7},
        cases=[
            {"batch": 1, "sequence": min(128, config.max_position_embeddings // 2)},
            {"batch": 2, "sequence": 9},
            {"batch": 3, "sequence": 1},
        ],
    )


def padding_mask(batch: int, sequence: int) -> torch.Tensor:
    """Ones, with the last third of every second row masked as padding."""
    import torch

    mask = torch.ones(batch, sequence, dtype=torch.int64)
    mask[1::2, sequence - sequence // 3 :] = 0
    return mask


def clip_text(
    source: sources.Source, folder: str = "", *, projected: bool = True, masked: bool = True, layers: bool = False
) -> Graph:
    """CLIP's text tower. Without a mask it is the text encoder of a Stable Diffusion, whose pipelines also read the states
    of its LAYERS: the embeddings', then each layer's."""
    from transformers import CLIPTextModel, CLIPTextModelWithProjection

    model = sources.load_transformers(source, CLIPTextModelWithProjection if projected else CLIPTextModel, folder)
    config = model.config
    longest = config.max_position_embeddings

    def example(sizes: Sizes, random: torch.Generator) -> Sequence[torch.Tensor]:
        import torch

        shape = (sizes["batch"], sizes["sequence"])
        end = config.eos_token_id if config.eos_token_id != 2 else config.vocab_size - 1
        ids = torch.randint(3, min(config.vocab_size, end) - 1, shape, generator=random)
        ids[:, -1] = end  # the pooled state is that of the end token
        ids[0, shape[1] // 2 :] = end
        return [ids, padding_mask(*shape)] if masked else [ids]

    def original(model: Any, ids: torch.Tensor, mask: torch.Tensor | None = None) -> list[torch.Tensor]:
        result = model(ids, attention_mask=mask, output_hidden_states=layers)
        first = [result.text_embeds] if projected else []
        last = [] if projected else [result.pooler_output]
        return [*first, result.last_hidden_state, *last, *(result.hidden_states if layers else ())]

    def forward(model: Any, ids: torch.Tensor, mask: torch.Tensor | None = None) -> list[torch.Tensor]:
        return original(model, ids, causal_mask(ids, mask))

    dims = {0: "batch", 1: "sequence"}
    states = {f"hidden_states.{i}": dims for i in range(config.num_hidden_layers + 1)} if layers else {}
    return Graph(
        model=model,
        inputs={"input_ids": dims, "attention_mask": dims} if masked else {"input_ids": dims},
        outputs=(
            {"text_embeds": {0: "batch"}, "last_hidden_state": dims, **states}
            if projected
            else {"last_hidden_state": dims, "pooler_output": {0: "batch"}, **states}
        ),
        forward=forward,
        original=original,
        example=example,
        trace_at={"batch": 2, "sequence": 7},
        cases=[{"batch": 1, "sequence": longest}, {"batch": 2, "sequence": 9}, {"batch": 3, "sequence": 4}],
    )


def causal_mask(ids: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """[B,S] ids and padding mask -> which keys each query may see, [1 or B,1,S,S]."""
    import torch

    positions = torch.arange(ids.shape[1])
    causal = (positions.unsqueeze(0) <= positions.unsqueeze(1))[None, None]
    return causal if mask is None else causal & mask.bool()[:, None, None, :]


def _clip_vision(source: sources.Source) -> Graph:
    from transformers import CLIPVisionModelWithProjection

    model = sources.load_transformers(source, CLIPVisionModelWithProjection)
    size = model.config.image_size

    def example(sizes: Sizes, random: torch.Generator) -> Sequence[torch.Tensor]:
        import torch

        return [torch.randn(sizes["batch"], 3, size, size, generator=random)]

    def forward(model: Any, pixels: torch.Tensor) -> list[torch.Tensor]:
        result = model(pixels)
        return [result.image_embeds, result.last_hidden_state]

    return Graph(
        model=model,
        inputs={"pixel_values": {0: "batch"}},
        outputs={"image_embeds": {0: "batch"}, "last_hidden_state": {0: "batch"}},
        forward=forward,
        example=example,
        trace_at={"batch": 2},
        cases=[{"batch": 1}, {"batch": 3}],
    )
