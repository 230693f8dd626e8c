"""`opsmith.accelerate(pipe)`: a live diffusers pipeline runs on compiled components; `opsmith.restore(pipe)` undoes it.

    key      of each component's config and weights
    export   the pipeline, saved, into the cache folder        (skipped if the folder has a pipeline of these components)
    compile  each component                                    (skipped if it is there)
    swap     forward of unet, text encoders and ControlNets, vae.decode: same signatures, torch tensors in and out

A call with arguments that the compiled component does not know (LoRA scales, attention masks) goes to the
original, with a warning, and so does every call once the weights of the live component have changed. The only file of `pipelines` that imports torch, and only when it is used.
"""

from __future__ import annotations

import copy
import functools
import importlib.util
import shutil
import tempfile
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnxruntime as ort

import opsmith
from opsmith import content, session, store
from opsmith.errors import OpsmithError
from opsmith.pipelines import homes
from opsmith.pipelines.create import compile_components
from opsmith.pipelines.diffusion.control import scaled
from opsmith.pipelines.diffusion.parts import CONTROL
from opsmith.pipelines.text import choose_variant

Array = np.ndarray[Any, Any]
Pipe = TypeVar("Pipe")  # a class of diffusers; the caller gets back what was given

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
    parts = _parts(live)
    for name, part in parts.items():
        if next(part.parameters()).device.type != "cpu":
            raise OpsmithError(f"the pipeline's {name} is not on the CPU", 'call pipe.to("cpu") first')
    restore(pipe)
    root = Path(folder) if folder is not None else homes.cache()
    plain = {name: without_adapters(part) for name, part in parts.items()}
    keys = _keys(plain)
    home = homes.find(root, keys) or root / f"live-{homes.name_of(keys)}"
    if not (home / "model_index.json").is_file():
        with tempfile.TemporaryDirectory(prefix="opsmith-") as temporary:
            source = Path(temporary) / "pipeline"
            live.save_pretrained(source)
            for name in parts:
                if plain[name] is not parts[name]:  # saved with its adapters beside it, which an export does not read
                    shutil.rmtree(source / name)
                    plain[name].save_pretrained(source / name)
            opsmith.export(source, home)
    compile_components(home, list(keys), search=search, regions=regions, precision=precision)
    for name, part in parts.items():
        component, method, swap = _swap_of(name)
        loaded = session.load(choose_variant(home / component), threads=threads)
        setattr(part, method, _fresh(part, method, swap, loaded))
    return pipe


def _parts(live: Any) -> dict[str, Any]:
    """The components that are swapped, by name; several ControlNets are named as diffusers saves them."""
    found = {name: getattr(live, name, None) for name in ("text_encoder", "text_encoder_2", "unet", "vae")}
    needed = ["unet", "vae"] if found["text_encoder_2"] is not None else ["text_encoder", "unet", "vae"]
    for name in needed:
        if found[name] is None:
            raise OpsmithError(
                f"the pipeline has no {name}", "Stable Diffusion 1.x, 2.x and XL pipelines are supported"
            )
    control = getattr(live, CONTROL, None)
    nets = getattr(control, "nets", None) or ([] if control is None else [control])
    found |= {f"{CONTROL}_{i}" if i else CONTROL: net for i, net in enumerate(nets)}
    return {name: part for name, part in found.items() if part is not None}


def _swap_of(name: str) -> tuple[str, str, Callable[..., Callable[..., Any]]]:
    """The exported component, the method it stands for, and what swaps it."""
    if name == "vae":
        return "vae_decoder", "decode", _vae_decoder
    if name.startswith(CONTROL):
        return name, "forward", _controlnet
    return name, "forward", _unet if name == "unet" else _text_encoder


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


def _adapted(part: Any) -> dict[str, Any]:
    """peft's layers, by their place: each holds the layer that it stands for and adapters to it."""
    return {name: m for name, m in part.named_modules() if hasattr(m, "base_layer") and hasattr(m, "merged_adapters")}


def without_adapters(part: Any) -> Any:
    """A copy whose weights hold what its adapters do now, or PART itself if it has none."""
    if not _adapted(part):
        return part
    copied = copy.deepcopy(part)
    for place, layer in _adapted(copied).items():
        if layer.disable_adapters and layer.merged:
            layer.unmerge()
        elif not layer.disable_adapters and not layer.merged:
            layer.merge()
        parent, _, name = place.rpartition(".")
        setattr(copied.get_submodule(parent), name, layer.base_layer)
    # What save_pretrained would look at.
    for mark in ("peft_config", "_hf_peft_config_loaded"):
        vars(copied).pop(mark, None)
    return copied


SAMPLED = 16  # elements of each tensor


class Weights:
    """What the weights of a live component were. Adapters are loaded and merged in many ways, some of which torch's own counters
    do not see, so that a few numbers of every tensor are looked at, too; and of adapters which are on, and how strongly."""

    def __init__(self, part: Any) -> None:
        self._part = part
        self._tensors = self._now()
        self._flat = [self._flatten(t) for t in self._tensors]
        self._places = [np.linspace(0, max(f.size - 1, 0), min(SAMPLED, f.size)).astype(np.int64) for f in self._flat]
        self._seen = self._look()
        self._adapters = self._adapters_now()

    def changed(self) -> bool:
        now = self._now()
        if len(now) != len(self._tensors) or any(a is not b for a, b in zip(now, self._tensors)):
            return True
        if self._adapters_now() != self._adapters:
            return True
        pointers = [t.data_ptr() for t in now]
        return (pointers, self._versions()) != self._seen[:2] or not np.array_equal(self._samples(), self._seen[2])

    def _now(self) -> list[Any]:
        return [*self._part.parameters(), *self._part.buffers()]

    def _adapters_now(self) -> list[Any]:
        found = _adapted(self._part).values()
        return [(dict(m.scaling), list(m.active_adapters), list(m.merged_adapters), m.disable_adapters) for m in found]

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
    control = getattr(pipe, CONTROL, None)
    names = ("text_encoder", "text_encoder_2", "unet", "vae")
    for part in (*(getattr(pipe, name, None) for name in names), control, *(getattr(control, "nets", None) or ())):
        for method in ("forward", "decode") if part is not None else ():
            if hasattr(vars(part).get(method), _MARK):
                delattr(part, method)  # the class's own method shows again
    return pipe


def _keys(parts: Mapping[str, Any]) -> dict[str, str]:
    """The content of each exported component."""
    found = {}
    for name, part in parts.items():
        config = part.config
        plain = config.to_diff_dict() if hasattr(config, "to_diff_dict") else dict(config)
        tensors = {k: functools.partial(_numpy, v) for k, v in part.state_dict().items()}
        found[_swap_of(name)[0]] = content.key(plain, tensors)
    return found


def _unet(original: Callable[..., Any], loaded: ort.InferenceSession) -> Callable[..., Any]:
    def forward(
        sample: Any, timestep: Any, encoder_hidden_states: Any, *args: Any, return_dict: bool = True, **others: Any
    ) -> Any:
        residuals = list(others.get("down_block_additional_residuals") or ())
        middle = others.get("mid_block_additional_residual")
        given = _conditions(others)
        given |= {f"down_block_residual.{i}": value for i, value in enumerate(residuals)}
        given |= {} if middle is None else {"mid_block_residual": middle}
        feeds = {"sample": sample, "encoder_hidden_states": encoder_hidden_states, **given}
        unknown = _unknown(loaded, args, others, {*_CONDITIONS, *_RESIDUALS}, feeds)
        if residuals and residuals[0].shape[-2:] != sample.shape[-2:]:
            unknown.append("residuals of another size")
        made = None if unknown else _at_one_time(loaded, timestep, feeds, sample.dtype)
        if made is None:
            _warn("unet", unknown or ["several timesteps"])
            return original(sample, timestep, encoder_hidden_states, *args, return_dict=return_dict, **others)
        if not return_dict:
            return (made[0],)
        from diffusers.models.unets.unet_2d_condition import UNet2DConditionOutput

        return UNet2DConditionOutput(sample=made[0])

    return forward


_CONDITIONS = ("timestep_cond", "added_cond_kwargs")
_RESIDUALS = ("down_block_additional_residuals", "mid_block_additional_residual")


def _conditions(others: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs beside latents, time and text, by the names of the graph."""
    found = dict(others.get("added_cond_kwargs") or {})
    if others.get("timestep_cond") is not None:
        found["timestep_cond"] = others["timestep_cond"]
    return found


def _unknown(
    loaded: ort.InferenceSession,
    args: Sequence[Any],
    others: Mapping[str, Any],
    known: Collection[str],
    feeds: Mapping[str, Any],
) -> list[str]:
    """What was given and cannot be fed, and what the graph reads and was not given."""
    reads = {i.name for i in loaded.get_inputs()} - {"timestep"}
    more = {f"argument {i + 4}": a for i, a in enumerate(args)} | {k: v for k, v in others.items() if k not in known}
    missing = [f"a call without {name}" for name in sorted(reads - set(feeds))]
    return [*_given(more), *sorted(set(feeds) - reads), *missing]


def _at_one_time(loaded: ort.InferenceSession, timestep: Any, feeds: Mapping[str, Any], dtype: Any) -> list[Any] | None:
    """All outputs; None if the pictures of the batch are at different timesteps."""
    import torch

    when = timestep if torch.is_tensor(timestep) else torch.tensor(timestep)
    if len(set(when.reshape(-1).tolist())) > 1:
        return None
    return _run(loaded, {**feeds, "timestep": when.reshape(-1)[:1]}, dtype)


def _controlnet(original: Callable[..., Any], loaded: ort.InferenceSession) -> Callable[..., Any]:
    def forward(
        sample: Any,
        timestep: Any,
        encoder_hidden_states: Any,
        controlnet_cond: Any,
        conditioning_scale: float = 1.0,
        *args: Any,
        guess_mode: bool = False,
        return_dict: bool = True,
        **others: Any,
    ) -> Any:
        feeds = {
            "sample": sample,
            "encoder_hidden_states": encoder_hidden_states,
            "controlnet_cond": controlnet_cond,
            **_conditions(others),
        }
        unknown = _unknown(loaded, args, others, _CONDITIONS, feeds)
        made = None if unknown else _at_one_time(loaded, timestep, feeds, sample.dtype)
        if made is None:
            _warn(CONTROL, unknown or ["several timesteps"])
            told = {"guess_mode": guess_mode, "return_dict": return_dict, **others}
            return original(sample, timestep, encoder_hidden_states, controlnet_cond, conditioning_scale, *args, **told)
        return _scaled_residuals(original, made, conditioning_scale, guess_mode, return_dict)

    return forward


def _scaled_residuals(
    original: Callable[..., Any], made: Sequence[Any], scale: float, guess: bool, return_dict: bool
) -> Any:
    import torch
    from diffusers.models.controlnets.controlnet import ControlNetOutput

    net: Any = original.__self__  # type: ignore[attr-defined]
    arrays = {str(i): _numpy(value) for i, value in enumerate(made)}
    found = scaled(arrays, float(scale), guess=guess, pooled=bool(net.config.global_pool_conditions))
    tensors = [torch.from_numpy(np.array(a)).to(made[0].dtype) for a in found.values()]
    if not return_dict:
        return tensors[:-1], tensors[-1]
    return ControlNetOutput(down_block_res_samples=tensors[:-1], mid_block_res_sample=tensors[-1])


def _vae_decoder(original: Callable[..., Any], loaded: ort.InferenceSession) -> Callable[..., Any]:
    def decode(z: Any, return_dict: bool = True, generator: Any = None) -> Any:
        pixels = _run(loaded, {"latent_sample": z}, z.dtype)[0]
        if not return_dict:
            return (pixels,)
        from diffusers.models.autoencoders.vae import DecoderOutput

        return DecoderOutput(sample=pixels)

    return decode


def _text_encoder(original: Callable[..., Any], loaded: ort.InferenceSession) -> Callable[..., Any]:
    names = [o.name for o in loaded.get_outputs()]

    def forward(
        input_ids: Any = None, attention_mask: Any = None, position_ids: Any = None, *args: Any, **others: Any
    ) -> Any:
        layers = bool(others.get("output_hidden_states")) and "hidden_states.0" in names
        # False and None are what the original does anyway; return_dict=False would ask for a tuple.
        asked = {k: v for k, v in others.items() if v not in (None, False) and not (k == "return_dict" and v is True)}
        if others.get("return_dict") is False:
            asked["return_dict"] = False
        if layers:
            asked.pop("output_hidden_states")
        unknown = _given({"attention_mask": attention_mask, "position_ids": position_ids}) + list(asked)
        if unknown or args or input_ids is None:
            _warn("text_encoder", unknown or ["other arguments"])
            return original(input_ids, attention_mask, position_ids, *args, **others)
        import torch

        made = dict(zip(names, _run(loaded, {"input_ids": input_ids}, torch.float32)))
        states = tuple(value for name, value in made.items() if name.startswith("hidden_states."))
        return _encoded(made, states if layers else None)

    return forward


def _encoded(made: Mapping[str, Any], states: tuple[Any, ...] | None) -> Any:
    """In the class that the original gives."""
    from transformers.modeling_outputs import BaseModelOutputWithPooling
    from transformers.models.clip.modeling_clip import CLIPTextModelOutput

    last = made["last_hidden_state"]
    if "text_embeds" in made:
        return CLIPTextModelOutput(text_embeds=made["text_embeds"], last_hidden_state=last, hidden_states=states)
    return BaseModelOutputWithPooling(last_hidden_state=last, pooler_output=made["pooler_output"], hidden_states=states)


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
