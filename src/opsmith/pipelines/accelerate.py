"""`opsmith.accelerate(pipe)`: a live diffusers pipeline runs on compiled components; `opsmith.restore(pipe)` undoes it.

    key      hash of the weights and configs of unet, vae and text encoder
    export   the pipeline, saved, into the cache folder under that key             (skipped if it is there)
    compile  each component                                                         (skipped if it is there)
    swap     unet.forward, vae.decode, text_encoder.forward: same signatures, torch tensors in and out

A call with arguments that the compiled component does not know (LoRA scales, control nets, clip_skip) goes to the
original, with a warning, and so does every call once the weights of the live component have changed. The only file of `pipelines` that imports torch, and only when it is used.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnxruntime as ort

import opsmith
from opsmith import session, settings, store
from opsmith._version import __version__
from opsmith.errors import OpsmithError
from opsmith.pipelines.create import compile_components
from opsmith.pipelines.text import choose_variant

Array = np.ndarray[Any, Any]
Pipe = TypeVar("Pipe")  # a class of diffusers; the caller gets back what was given

_SWAPPED = (("text_encoder", "forward"), ("unet", "forward"), ("vae", "decode"))
_NEEDED = ("text_encoder", "unet", "vae_decoder")
_MARK = "_opsmith"  # on a swapped function


class TorchNoise:
    """torch's generator in the shape of numpy's, so that a picture of diffusers can be made again."""

    def __init__(self, seed: int) -> None:
        if importlib.util.find_spec("torch") is None:
            raise OpsmithError("torch's noise needs torch", 'pip install ".[export]"')
        import torch

        self._torch = torch
        self._generator = torch.Generator("cpu").manual_seed(seed)

    def standard_normal(self, size: tuple[int, ...], dtype: Any = np.float32) -> Array:
        drawn = self._torch.randn((1, *size), generator=self._generator, dtype=self._torch.float32)
        return np.asarray(drawn[0].numpy(), dtype)


def accelerate(
    pipe: Pipe,
    *,
    folder: store.PathLike | None = None,
    search: int = 0,
    regions: str = "auto",
    precision: str | None = None,
    threads: int | None = None,
) -> Pipe:
    """Swap the components of PIPE, in place, and return it. FOLDER keeps the compiled pipeline, instead of the cache folder."""
    live: Any = pipe
    parts = {name: getattr(live, name, None) for name in ("text_encoder", "unet", "vae")}
    for name, part in parts.items():
        if part is None:
            raise OpsmithError(f"the pipeline has no {name}", "Stable Diffusion v1.x and v2.x pipelines are supported")
        if next(part.parameters()).device.type != "cpu":
            raise OpsmithError(f"the pipeline's {name} is not on the CPU", 'call pipe.to("cpu") first')
    restore(pipe)
    home = Path(folder) if folder is not None else settings.cache_folder("accelerated")
    home = home / _key(parts)
    if not (home / "model_index.json").is_file():
        with tempfile.TemporaryDirectory(prefix="opsmith-") as temporary:
            source = Path(temporary) / "pipeline"
            live.save_pretrained(source)
            opsmith.export(source, home)
    compile_components(home, _NEEDED, search=search, regions=regions, precision=precision)
    loaded = {name: session.load(choose_variant(home / name), threads=threads) for name in _NEEDED}
    live.text_encoder.forward = _fresh(live.text_encoder, "forward", _text_encoder, loaded["text_encoder"])
    live.unet.forward = _fresh(live.unet, "forward", _unet, loaded["unet"])
    live.vae.decode = _fresh(live.vae, "decode", _vae_decoder, loaded["vae_decoder"])
    return pipe


def _fresh(
    part: Any, method: str, swap: Callable[..., Callable[..., Any]], loaded: ort.InferenceSession
) -> Callable[..., Any]:
    """The compiled METHOD of PART, as long as its weights are those that were compiled."""
    original = getattr(part, method)
    compiled, weights = swap(original, loaded), Weights(part)

    def call(*args: Any, **others: Any) -> Any:
        if not weights.changed():
            return compiled(*args, **others)
        name = type(part).__name__
        warnings.warn(f"opsmith: the weights of {name} changed; the original ran, accelerate(pipe) again", stacklevel=3)
        return original(*args, **others)

    return _marked(call)


SAMPLED = 16  # elements of each tensor


class Weights:
    """What the weights of a live component were. Adapters are loaded and merged in many ways, some of which torch's own counters
    do not see, so that a few numbers of every tensor are looked at, too."""

    def __init__(self, part: Any) -> None:
        self._part = part
        self._tensors = self._now()
        self._flat = [self._flatten(t) for t in self._tensors]
        self._places = [np.linspace(0, max(f.size - 1, 0), min(SAMPLED, f.size)).astype(np.int64) for f in self._flat]
        self._seen = self._look()

    def changed(self) -> bool:
        now = self._now()
        if len(now) != len(self._tensors) or any(a is not b for a, b in zip(now, self._tensors)):
            return True
        pointers = [t.data_ptr() for t in now]
        return (pointers, self._versions()) != self._seen[:2] or not np.array_equal(self._samples(), self._seen[2])

    def _now(self) -> list[Any]:
        return [*self._part.parameters(), *self._part.buffers()]

    def _look(self) -> tuple[list[int], list[int], Array]:
        return [t.data_ptr() for t in self._tensors], self._versions(), self._samples()

    def _versions(self) -> list[int]:
        return [0 if t.is_inference() else t._version for t in self._tensors]

    def _samples(self) -> Array:
        return np.concatenate([f[p] for f, p in zip(self._flat, self._places)] or [np.zeros(0, np.uint8)])

    @staticmethod
    def _flatten(tensor: Any) -> Array:
        """The tensor's own memory as integers, which compare equal for NaN, too."""
        import torch

        plain = tensor.detach()
        if plain.dim() == 4 and not plain.is_contiguous():  # images' weights, channels last
            plain = plain.permute(0, 2, 3, 1)
        integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[plain.element_size()]
        return np.asarray(plain.reshape(-1).view(integers).numpy())


def restore(pipe: Pipe) -> Pipe:
    """Undo `accelerate`; a pipeline that was not accelerated stays as it is."""
    for name, method in _SWAPPED:
        part = getattr(pipe, name, None)
        if part is not None and hasattr(vars(part).get(method), _MARK):
            delattr(part, method)  # the class's own method shows again
    return pipe


def _key(parts: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(__version__.encode())
    for name, part in parts.items():
        config = part.config
        content = config.to_dict() if hasattr(config, "to_dict") else dict(config)
        digest.update(f"{name} {json.dumps(content, sort_keys=True, default=str)}".encode())
        for key, value in part.state_dict().items():
            array = value.detach().float().contiguous().numpy()
            digest.update(f"{key} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(memoryview(array).cast("B") if array.size else b"")
    return digest.hexdigest()[:24]


def _unet(original: Callable[..., Any], loaded: ort.InferenceSession) -> Callable[..., Any]:
    def forward(
        sample: Any, timestep: Any, encoder_hidden_states: Any, *args: Any, return_dict: bool = True, **others: Any
    ) -> Any:
        import torch

        unknown = _given({f"argument {i + 4}": a for i, a in enumerate(args)} | others)
        if unknown:
            _warn("unet", unknown)
            return original(sample, timestep, encoder_hidden_states, *args, return_dict=return_dict, **others)
        when = timestep if torch.is_tensor(timestep) else torch.tensor(timestep)
        if len(set(when.reshape(-1).tolist())) > 1:
            _warn("unet", ["several timesteps"])
            return original(sample, timestep, encoder_hidden_states, return_dict=return_dict)
        feeds = {"sample": sample, "timestep": when.reshape(-1)[:1], "encoder_hidden_states": encoder_hidden_states}
        noise = _run(loaded, feeds, sample.dtype)[0]
        if not return_dict:
            return (noise,)
        from diffusers.models.unets.unet_2d_condition import UNet2DConditionOutput

        return UNet2DConditionOutput(sample=noise)

    return forward


def _vae_decoder(original: Callable[..., Any], loaded: ort.InferenceSession) -> Callable[..., Any]:
    def decode(z: Any, return_dict: bool = True, generator: Any = None) -> Any:
        pixels = _run(loaded, {"latent_sample": z}, z.dtype)[0]
        if not return_dict:
            return (pixels,)
        from diffusers.models.autoencoders.vae import DecoderOutput

        return DecoderOutput(sample=pixels)

    return decode


def _text_encoder(original: Callable[..., Any], loaded: ort.InferenceSession) -> Callable[..., Any]:
    def forward(
        input_ids: Any = None, attention_mask: Any = None, position_ids: Any = None, *args: Any, **others: Any
    ) -> Any:
        # False and None are what the original does anyway; return_dict=False would ask for a tuple.
        asked = {k: v for k, v in others.items() if v not in (None, False) and not (k == "return_dict" and v is True)}
        if others.get("return_dict") is False:
            asked["return_dict"] = False
        unknown = _given({"attention_mask": attention_mask, "position_ids": position_ids}) + list(asked)
        if unknown or args or input_ids is None:
            _warn("text_encoder", unknown or ["other arguments"])
            return original(input_ids, attention_mask, position_ids, *args, **others)
        import torch
        from transformers.modeling_outputs import BaseModelOutputWithPooling

        states = _run(loaded, {"input_ids": input_ids}, torch.float32)
        return BaseModelOutputWithPooling(last_hidden_state=states[0], pooler_output=states[1])

    return forward


def _given(arguments: Mapping[str, Any]) -> list[str]:
    return [name for name, value in arguments.items() if value is not None]


def _warn(part: str, unknown: list[str]) -> None:
    warnings.warn(
        f"opsmith: the compiled {part} does not take {', '.join(unknown)}; the original ran instead", stacklevel=5
    )


def _marked(function: Callable[..., Any]) -> Callable[..., Any]:
    setattr(function, _MARK, True)
    return function


def _run(loaded: ort.InferenceSession, tensors: Mapping[str, Any], dtype: Any) -> list[Any]:
    import torch

    kinds = {i.name: i.type for i in loaded.get_inputs()}
    wanted = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64}
    feeds = {n: np.ascontiguousarray(_numpy(t), wanted.get(kinds[n])) for n, t in tensors.items()}
    return [torch.from_numpy(np.asarray(a)).to(dtype) for a in session.run(loaded, feeds)]


def _numpy(tensor: Any) -> Array:
    import torch

    plain = tensor.detach().cpu()
    return np.asarray((plain.float() if plain.dtype == torch.bfloat16 else plain).numpy())
