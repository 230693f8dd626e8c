"""Encoder-decoders (T5, BART, Whisper ...): two graphs, so that the source is read once for all tokens of the answer.

    encoder   input_ids, attention_mask [B,E], or input_features [B,mel,frames] for speech
                -> last_hidden_state [B,E,C], cross.N.key/value [B,H,E,D]
    decoder   input_ids [B,S], attention_mask [B,P+S], encoder_attention_mask [B,E] (not for speech),
              past_key_values.N.key/value [B,H,P,D], cross.N.key/value
                -> logits [B,S,V], present.N.key/value [B,H,P+S,D]

What the decoder's layers look at in the source, cross.N, depends on the source alone: the encoder gives it, and it stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from opsmith.exporter import masks
from opsmith.exporter import source as sources
from opsmith.exporter.causal_lm import cache_of, contents, context_of
from opsmith.exporter.encoder import padding_mask
from opsmith.exporter.graph import Graph, Part, Plan, Sizes

if TYPE_CHECKING:
    import torch

    Tensors = Sequence[torch.Tensor]

_TEXT = {0: "batch", 1: "source"}


def accepts(config: dict[str, Any]) -> bool:
    return bool(config.get("is_encoder_decoder")) and any(
        a.endswith(("ForConditionalGeneration", "MTModel")) for a in config.get("architectures") or []
    )


def plan(source: sources.Source) -> Plan:
    config = source.config()
    parts = [Part("encoder", lambda: _encoder(source), config), Part("decoder", lambda: _decoder(source), config)]
    copies = [*source.tokenizer_files(), *source.present("preprocessor_config.json")]
    return Plan(parts, copies, {"config.json": config})


class _Model:
    """What both graphs know of the model."""

    def __init__(self, source: sources.Source) -> None:
        import torch
        from transformers import AutoModelForSeq2SeqLM, AutoModelForSpeechSeq2Seq

        self.speech = "num_mel_bins" in source.config()
        kind = AutoModelForSpeechSeq2Seq if self.speech else AutoModelForSeq2SeqLM
        self.model = sources.load_transformers(source, kind)
        self.config = self.model.config
        given = self.source(1, 2, torch.Generator().manual_seed(0))
        with torch.no_grad():
            # Heads and their size, of the cross tensors; the past has the same.
            self.heads = [(t.shape[1], t.shape[3]) for t in self.encode(*given)[1:]]

    def source(self, batch: int, length: int, random: torch.Generator) -> list[torch.Tensor]:
        """Inputs of the encoder. Speech has a length of its own."""
        import torch

        if self.speech:
            frames = 2 * self.config.max_source_positions
            return [torch.randn(batch, self.config.num_mel_bins, frames, generator=random)]
        ids = torch.randint(2, self.config.vocab_size, (batch, length), generator=random)
        return [ids, padding_mask(batch, length)]

    def encode(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """last_hidden_state and cross keys and values: the decoder makes them when it reads a first token, whatever that is."""
        import torch
        from transformers import DynamicCache, EncoderDecoderCache

        named = {} if self.speech else {"attention_mask": tensors[1]}
        hidden = self.model.get_encoder()(tensors[0], **named).last_hidden_state
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        seen = {} if self.speech else {"encoder_attention_mask": tensors[1]}
        first = torch.zeros(hidden.shape[0], 1, dtype=torch.int64)
        self.model.get_decoder()(
            input_ids=first, encoder_hidden_states=hidden, past_key_values=cache, use_cache=True, **seen
        )
        return [hidden, *contents(cache.cross_attention_cache)]

    def decode(self, ids: torch.Tensor, mask: torch.Tensor, *rest: torch.Tensor) -> list[torch.Tensor]:
        import torch
        from transformers import EncoderDecoderCache
        from transformers.modeling_outputs import BaseModelOutput

        seen = {} if self.speech else {"attention_mask": rest[0]}
        pairs = rest[len(seen) :]
        past, cross = cache_of(pairs[: len(pairs) // 2]), cache_of(pairs[len(pairs) // 2 :])
        cache = EncoderDecoderCache(past, cross)
        cache.is_updated = dict.fromkeys(range(len(cross.layers)), True)
        # The source is in the cache; of the encoder's output only its size is asked.
        unread = BaseModelOutput(torch.zeros(ids.shape[0], cross.layers[0].keys.shape[2], 1))
        result = self.model(
            decoder_input_ids=ids, decoder_attention_mask=mask, encoder_outputs=unread, past_key_values=cache,
            use_cache=True, **seen,
        )  # fmt: skip
        return [result.logits, *contents(past)]

    def names(self, kind: str) -> list[str]:
        return [f"{kind}.{i // 2}.{('key', 'value')[i % 2]}" for i in range(len(self.heads))]


def _encoder(source: sources.Source) -> Graph:
    known = _Model(source)
    length = {} if known.speech else {2: "source"}

    def forward(model: Any, *tensors: torch.Tensor) -> list[torch.Tensor]:
        import torch

        one = torch.ones(tensors[0].shape[0], 1, dtype=torch.int64)
        with masks.traceable(model, one, 1):
            return known.encode(*tensors)

    hidden = {0: "batch"} if known.speech else _TEXT
    return Graph(
        model=known.model,
        inputs={"input_features": {0: "batch"}} if known.speech else {"input_ids": _TEXT, "attention_mask": _TEXT},
        outputs={"last_hidden_state": hidden, **{n: {0: "batch", **length} for n in known.names("cross")}},
        forward=forward,
        original=lambda model, *tensors: known.encode(*tensors),
        example=lambda sizes, random: known.source(sizes["batch"], sizes.get("source", 0), random),
        trace_at={"batch": 2, "source": 7},
        cases=[{"batch": 1, "source": 24}, {"batch": 2, "source": 9}],
    )


def _decoder(source: sources.Source) -> Graph:
    known = _Model(source)
    longest = context_of(known.config) or getattr(known.config, "max_target_positions", None) or 1 << 30
    across = {0: "batch"} if known.speech else {0: "batch", 2: "source"}
    inputs: dict[str, dict[int, str]] = {
        "input_ids": {0: "batch", 1: "sequence"},
        "attention_mask": {0: "batch", 1: "past + sequence"},
        **({} if known.speech else {"encoder_attention_mask": _TEXT}),
        **{n: {0: "batch", 2: "past"} for n in known.names("past_key_values")},
        **dict.fromkeys(known.names("cross"), across),
    }

    def forward(model: Any, ids: torch.Tensor, mask: torch.Tensor, *rest: torch.Tensor) -> list[torch.Tensor]:
        with masks.traceable(model, mask, ids.shape[1]):
            return known.decode(ids, mask, *rest)

    def example(sizes: Sizes, random: torch.Generator) -> Sequence[torch.Tensor]:
        import torch

        batch, sequence, past = sizes["batch"], sizes["sequence"], sizes["past"]
        given = known.source(batch, sizes.get("source", 0), random)
        ids = torch.randint(2, known.config.vocab_size, (batch, past + sequence), generator=random)
        before = [torch.zeros(batch, heads, 0, size) for heads, size in known.heads]
        with torch.no_grad():
            cross = known.encode(*given)[1:]
            if past:
                ones = torch.ones(batch, past, dtype=torch.int64)
                before = known.decode(ids[:, :past], ones, *given[1:], *before, *cross)[1:]
        mask = torch.ones(batch, past + sequence, dtype=torch.int64)
        return [ids[:, past:], mask, *given[1:], *(t.clone() for t in before), *(t.clone() for t in cross)]

    return Graph(
        model=known.model,
        inputs=inputs,
        outputs={
            "logits": {0: "batch", 1: "sequence"},
            **{n: {0: "batch", 2: "past + sequence"} for n in known.names("present")},
        },
        forward=forward,
        original=lambda model, *tensors: known.decode(*tensors),
        example=example,
        trace_at={"batch": 2, "sequence": 5, "past": 3, "source": 7},
        cases=[
            {"batch": 1, "sequence": 1, "past": min(24, longest // 2), "source": 16},
            {"batch": 2, "sequence": 4, "past": 7, "source": 9},
            {"batch": 1, "sequence": 6, "past": 0, "source": 11},
        ],
    )
