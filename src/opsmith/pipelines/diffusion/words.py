"""The text side: prompt and negative prompt -> what the UNet is conditioned on."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from opsmith import store
from opsmith.errors import OpsmithError
from opsmith.pipelines.clip_tokenizer import ClipTokenizer
from opsmith.pipelines.diffusion import reading
from opsmith.pipelines.diffusion.geometry import Geometry
from opsmith.pipelines.diffusion.parts import Parts
from opsmith.pipelines.diffusion.request import Job
from opsmith.pipelines.text import read_config

Array = np.ndarray[Any, Any]

_LAST = "last_hidden_state"
_FINAL_NORM = ("final_layer_norm.weight", "final_layer_norm.bias")


@dataclasses.dataclass(frozen=True)
class Conditions:
    """What the UNet reads beside latents and time, by the names of its inputs: one row, or two with the negative prompt first."""

    feeds: dict[str, Array]  # encoder_hidden_states [1|2,S,X], ...

    def repeated(self, count: int) -> dict[str, Array]:
        """The feeds for COUNT pictures: [B,...], or [2B,...] with the negative half first."""
        return {name: np.repeat(rows, count, axis=0) for name, rows in self.feeds.items()}


class Words:
    """One text encoder, or XL's two, whose states stand side by side; the second gives the pooled prompt, too."""

    def __init__(self, parts: Parts, geometry: Geometry) -> None:
        self._parts, self._geometry = parts, geometry
        self._encoders = [name for name in ("text_encoder", "text_encoder_2") if name in parts]
        self._tokenizers = [
            ClipTokenizer(parts.folder / name.replace("text_encoder", "tokenizer")) for name in self._encoders
        ]
        limits = [self.tokenizer.longest, *(parts.config(n).get("max_position_embeddings") for n in self._encoders)]
        self.length = min([int(n) for n in limits if n] or [77])
        index = read_config(parts.folder / "model_index.json")
        self._zeros = bool(index.get("force_zeros_for_empty_prompt", self.pooled))
        self._scored = bool(index.get("requires_aesthetics_score"))  # XL's refiner

    @property
    def tokenizers(self) -> dict[str, ClipTokenizer]:
        """By text encoder."""
        return dict(zip(self._encoders, self._tokenizers))

    @property
    def tokenizer(self) -> ClipTokenizer:
        return self._tokenizers[0]

    @property
    def pooled(self) -> bool:
        """Whether the UNet wants the pooled prompt and sizes: XL."""
        return "text_encoder_2" in self._encoders

    def conditions(self, job: Job) -> tuple[Conditions, list[str]]:
        """And remarks on what was cut."""
        texts = [job.negative, job.prompt] if job.guided else [job.prompt]
        remarks = [
            f"{text[:40]!r}... is longer than {self.length - 2} tokens and was cut"
            for text in texts
            if job.plain_prompt and self.tokenizer.padded(text, self.length)[1]
        ]
        if job.embeds is not None and self.pooled:
            raise OpsmithError("prompt_embeds are not possible with XL", "give a prompt")
        if job.embeds is not None:
            made = Conditions({"encoder_hidden_states": job.embeds})
        else:
            skips = [0] * (len(texts) - 1) + [job.clip_skip]  # diffusers reads the negative prompt whole
            made = self.encode(texts, job.padded, plain=job.plain_prompt, skips=skips)
        if job.embeds is None and job.guided and not job.negative and self._zeros:
            for name in ("encoder_hidden_states", "text_embeds"):
                made.feeds[name][0] = 0
        if count := self._geometry.guidance_channels:
            made.feeds["timestep_cond"] = embedded_guidance(job.guidance, count)
        for name in self._encoders:
            self._parts.done_with(name)
        return made, remarks

    def encode(
        self, texts: Sequence[str], size: tuple[int, int], *, plain: bool = True, skips: Sequence[int] = ()
    ) -> Conditions:
        """A row per text; SIZE is height and width of the picture. Not PLAIN: with weights, in as many chunks as it takes.
        SKIPS: how many of the last layers each text leaves out."""
        left_out = skips or [0] * len(texts)
        outputs = [self._states(i, texts, plain, left_out) for i in range(len(self._encoders))]
        feeds = {"encoder_hidden_states": np.concatenate([states for states, _ in outputs], axis=-1)}
        if self.pooled:
            feeds |= {"text_embeds": outputs[-1][1], "time_ids": self._time_ids(size, len(texts))}
        return Conditions({name: rows.astype(np.float32) for name, rows in feeds.items()})

    def _states(self, encoder: int, texts: Sequence[str], plain: bool, skips: Sequence[int]) -> tuple[Array, Array]:
        """States [B,S,X] and the pooled prompt [B,P] of one encoder."""
        name, tokenizer = self._encoders[encoder], self._tokenizers[encoder]
        chunks, rows, weights = reading.rows(texts, tokenizer, self.length, plain=plain)
        layers = [self._layer(name, skip) for skip in skips]
        pooled = "text_embeds" if self.pooled and name == "text_encoder_2" else "pooler_output"
        outputs = list(dict.fromkeys([*layers, pooled]))
        self._check_layers(name, outputs)
        made = dict(zip(outputs, self._parts.run_for(name, {"input_ids": rows}, outputs)))
        whole = {k: v.reshape(len(texts), -1, v.shape[-1]) for k, v in made.items() if k != pooled}  # chunks one by one
        normed = {k: self._normed(name, v) if k != _LAST and not self.pooled else v for k, v in whole.items()}
        joined = np.stack([normed[layer][i] for i, layer in enumerate(layers)])
        return reading.weighted(joined, weights), made[pooled][::chunks]

    def _layer(self, name: str, skip: int) -> str:
        """The output that holds the states SKIP layers before the end; XL reads the layer before the last."""
        layers = int(self._parts.config(name).get("num_hidden_layers") or 0)
        if skip < 0 or (skip and skip >= layers):
            raise OpsmithError(f"a clip skip of {skip} is not possible", f"the {name} has {layers} layers")
        if self.pooled:
            return f"hidden_states.{layers - 1 - skip}"
        return f"hidden_states.{layers - skip}" if skip else _LAST

    def _check_layers(self, name: str, outputs: Sequence[str]) -> None:
        there = {o.name for o in self._parts.session(name).get_outputs()}
        if missing := [output for output in outputs if output not in there]:
            raise OpsmithError(
                f"the {name} does not give {missing[0]}", "export the pipeline again, or leave clip skip"
            )

    def _normed(self, name: str, states: Array) -> Array:
        """What the encoder does behind its last layer, for the states of an earlier one."""
        scale, shift = self._final_norm(name)
        states = states.astype(np.float32)
        centred = states - states.mean(-1, keepdims=True)
        epsilon = float(self._parts.config(name).get("layer_norm_eps") or 1e-5)
        spread = np.sqrt((centred**2).mean(-1, keepdims=True) + np.float32(epsilon))
        return np.asarray(centred / spread * scale + shift, np.float32)

    def _final_norm(self, name: str) -> list[Array]:
        weights = store.open_model(self._parts.named(name)).graph.initializers
        found = []
        for end in _FINAL_NORM:
            tensors = [v.const_value for k, v in weights.items() if k.endswith(end) and v.const_value is not None]
            if len(tensors) != 1:
                raise OpsmithError(f"the {name} has lost the name of its {end}", "export the pipeline again")
            found.append(np.asarray(tensors[0].numpy(), np.float32))
        return found

    def _time_ids(self, size: tuple[int, int], count: int) -> Array:
        """XL was told the size of each training picture, its crop and its size afterwards: [B,6]; the refiner a score: [B,5]."""
        if self._scored:
            return np.array([[*size, 0, 0, 2.5], [*size, 0, 0, 6.0]], np.float32)[-count:]
        return np.array([[*size, 0, 0, *size]] * count, np.float32)

    def unknown_remarks(self, prompt: str) -> list[str]:
        """A line if PROMPT has words that the pipeline was never shown, where that can be told."""
        return [unknown_remark(words)] if (words := self.tokenizer.unknown(prompt)) else []


def embedded_guidance(scale: float, channels: int) -> Array:
    """[1,C]: sines, then cosines, of the scale beyond 1, as consistency models were distilled with it."""
    frequencies = np.exp(np.arange(channels // 2, dtype=np.float32) * -(np.log(10000.0) / (channels // 2 - 1)))
    angles = np.float32((scale - 1) * 1000) * frequencies.astype(np.float32)
    waves = np.concatenate([np.sin(angles), np.cos(angles), np.zeros(channels % 2)])
    return np.asarray(waves[None], np.float32)


def unknown_remark(words: Sequence[str]) -> str:
    return f"this model was never shown {_listed(words)}: the picture may show something else"


def _listed(words: Sequence[str]) -> str:
    quoted = [repr(word) for word in words[:6]] + (["more"] if len(words) > 6 else [])
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} and {quoted[-1]}"
