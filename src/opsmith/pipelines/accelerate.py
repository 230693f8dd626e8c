"""`opsmith.accelerate(pipe)`: a live diffusers pipeline runs on compiled components; `opsmith.restore(pipe)` undoes it.

    key      hash of the weights and configs of unet, vae and text encoder
    export   the pipeline, saved, into the cache folder under that key             (skipped if it is there)
    compile  each component                                                         (skipped if it is there)
    swap     unet.forward, vae.decode, text_encoder.forward: same signatures, torch tensors in and out

A call with arguments that the compiled component does not know (LoRA scales, control nets, clip_skip) goes to the
original, with a warning. The only file of `pipelines` that imports torch, and only when it is used.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

import opsmith
from opsmith import session, settings, store
from opsmith._version import __version__
from opsmith.errors import OpsmithError
from opsmith.pipelines.create import compile_components
from opsmith.pipelines.text import choose_variant

Array = np.ndarray[Any, Any]

_SWAPPED = (("text_encoder", "forward"), ("unet", "forward"), ("vae", "decode"))
_NEEDED = ("text_encoder", "unet", "vae_decoder")
_MARK = "_opsmith"  # on a swapped function


class TorchNoise:
    """torch's generator in the shape of numpy's, so that a picture of diffusers can be made again."""

    def __init__(self, seed: int) -> None:
        if importlib.util.find_spec("torch") is None:
            raise OpsmithError("torch's noise needs torch", 'pip install "opsmith[export]"')
        import torch

        self._torch = torch
        self._generator = torch.Generator("cpu").manual_seed(seed)

    def standard_normal(self, size: tuple[int, ...], dtype: Any = np.float32) -> Array:
        drawn = self._torch.randn((1, *size), generator=self._generator, dtype=self._torch.float32)
        return np.asarray(drawn[0].numpy(), dtype)


def accelerate(
    pipe: Any,
    *,
    folder: store.PathLike | None = None,
    search: int = 0,
    regions: str = "auto",
    threads: int | None = None,
) -> Any:
    """Swap the components of PIPE, in place, and return it. FOLDER keeps the compiled pipeline, instead of the cache folder."""
    parts = {name: getattr(pipe, name, None) for name in ("text_encoder", "unet", "vae")}
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
            pipe.save_pretrained(source)
            opsmith.export(source, home)
    compile_components(home, _NEEDED, search=search, regions=regions)
    loaded = {name: session.load(choose_variant(home / name), threads=threads) for name in _NEEDED}
    pipe.text_encoder.forward = _text_encoder(pipe.text_encoder.forward, loaded["text_encoder"])
    pipe.unet.forward = _unet(pipe.unet.forward, loaded["unet"])
    pipe.vae.decode = _vae_decoder(pipe.vae.decode, loaded["vae_decoder"])
    return pipe


def restore(pipe: Any) -> Any:
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
        feeds = {
            "sample": sample,
            "timestep": when.reshape(-1)[:1],
            "encoder_hidden_states": encoder_hidden_states,
        }
        found = _run(loaded, feeds, sample.dtype)[0]
        if not return_dict:
            return (found,)
        from diffusers.models.unets.unet_2d_condition import UNet2DConditionOutput

        return UNet2DConditionOutput(sample=found)

    return _marked(forward)


def _vae_decoder(original: Callable[..., Any], loaded: ort.InferenceSession) -> Callable[..., Any]:
    def decode(z: Any, return_dict: bool = True, generator: Any = None) -> Any:
        found = _run(loaded, {"latent_sample": z}, z.dtype)[0]
        if not return_dict:
            return (found,)
        from diffusers.models.autoencoders.vae import DecoderOutput

        return DecoderOutput(sample=found)

    return _marked(decode)


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

        found = _run(loaded, {"input_ids": input_ids}, torch.float32)
        return BaseModelOutputWithPooling(last_hidden_state=found[0], pooler_output=found[1])

    return _marked(forward)


def _given(arguments: Mapping[str, Any]) -> list[str]:
    return [name for name, value in arguments.items() if value is not None]


def _warn(part: str, unknown: list[str]) -> None:
    warnings.warn(
        f"opsmith: the compiled {part} does not take {', '.join(unknown)}; the original ran instead", stacklevel=4
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
