"""LoRA files: what they change, by the names that the model's own weights have.

A LoRA gives some layers a difference of low rank r: weight [out,in] + scale * alpha / r * up [out,r] @ down [r,in]; for convolutions
down is [r,in,h,w] and up [out,r,1,1]. Two families of key styles are in use:

    kohya            lora_unet_down_blocks_0_..._to_q.lora_down.weight, .lora_up.weight, .alpha; lora_te_..., lora_te1_..., lora_te2_...
    diffusers, peft  unet.down_blocks.0....to_q.lora_A.weight, .lora_B.weight; text_encoder....; and older ones: .lora.down.weight,
                     .lora_linear_layer.up.weight, .processor.to_q_lora.down.weight
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from opsmith import store
from opsmith.errors import OpsmithError

Array = np.ndarray[Any, Any]

_KOHYA = {"lora_unet_": "unet", "lora_te_": "text_encoder", "lora_te1_": "text_encoder", "lora_te2_": "text_encoder_2"}
_DOTTED = {"unet.": "unet", "text_encoder.": "text_encoder", "text_encoder_2.": "text_encoder_2"}
_HALVES = (  # how a key ends -> which half it is
    (".lora_down.weight", "down"),
    (".lora_up.weight", "up"),
    (".lora_A.weight", "down"),
    (".lora_B.weight", "up"),
    (".lora_A.default.weight", "down"),
    (".lora_B.default.weight", "up"),
    (".lora.down.weight", "down"),
    (".lora.up.weight", "up"),
    (".lora_linear_layer.down.weight", "down"),
    (".lora_linear_layer.up.weight", "up"),
    ("_lora.down.weight", "down"),
    ("_lora.up.weight", "up"),
    (".alpha", "alpha"),
)


@dataclasses.dataclass
class Layer:
    """What a LoRA does to one layer."""

    key: str  # of the file, for messages
    down: Array | None = None
    up: Array | None = None
    alpha: float | None = None
    root: bool = False  # alpha is divided by the square root of the rank

    def difference(self) -> Array:
        """In the shape of a checkpoint's weight: [out,in] or [out,in,h,w]."""
        assert self.down is not None and self.up is not None
        rank = self.down.shape[0]
        share = 1.0 if self.alpha is None else self.alpha / (rank**0.5 if self.root else rank)
        product = self.up.reshape(self.up.shape[0], -1) @ self.down.reshape(rank, -1)
        return np.asarray(share * product.reshape(self.up.shape[0], *self.down.shape[1:]), np.float32)


@dataclasses.dataclass(frozen=True)
class Lora:
    path: Path
    layers: Mapping[str, Mapping[str, Layer]]  # component -> layer as the file spells it -> what is done to it


def read(path: store.PathLike) -> Lora:
    """A .safetensors file, or a folder with one in it (diffusers' `save_lora_weights`)."""
    file = _find(Path(path))
    from safetensors import SafetensorError, safe_open

    layers: dict[str, dict[str, Layer]] = {}
    try:
        with safe_open(str(file), framework="np") as opened:
            metadata = _metadata(opened.metadata() or {}, file)
            for key in opened.keys():  # noqa: SIM118 - not a mapping
                _take(layers, key, opened.get_tensor(key), file)
    except (SafetensorError, OSError, TypeError) as error:
        raise OpsmithError(f"{file} cannot be read as safetensors: {' '.join(str(error).split())[:200]}") from error
    for component, named in layers.items():
        for name, layer in named.items():
            _check_whole(layer, file)
            _apply_metadata(layer, name, metadata.get(component, {}))
    if not layers:
        raise OpsmithError(f"{file} holds no LoRA: it is empty")
    return Lora(file, layers)


def _find(path: Path) -> Path:
    if path.is_dir():
        files = sorted(path.glob("*.safetensors"))
        if len(files) != 1:
            raise OpsmithError(f"{path} holds {len(files)} .safetensors files", "name the one to take")
        return files[0]
    if not path.is_file():
        raise OpsmithError(f"the LoRA {path} does not exist")
    if path.suffix != ".safetensors":
        raise OpsmithError(f"{path} is not a .safetensors file", "pickled weights are never loaded")
    return path


def _metadata(header: Mapping[str, str], file: Path) -> dict[str, dict[str, Any]]:
    """peft's settings by component, which newer diffusers write into the file's header."""
    text = header.get("lora_adapter_metadata")
    if not text:
        return {}
    try:
        flat = json.loads(text)
    except ValueError as error:
        raise OpsmithError(f"{file} has settings that are not JSON: {error}") from error
    found: dict[str, dict[str, Any]] = {}
    for key, value in flat.items():
        component, _, name = str(key).partition(".")
        found.setdefault(component, {})[name] = value
    for settings in found.values():
        if settings.get("use_dora"):
            raise OpsmithError(f"{file} is a DoRA, which is not supported")
    return found


def _apply_metadata(layer: Layer, name: str, settings: Mapping[str, Any]) -> None:
    if layer.alpha is None and settings.get("lora_alpha") is not None:
        own = [a for n, a in (settings.get("alpha_pattern") or {}).items() if name == n or name.endswith(f".{n}")]
        layer.alpha = float(own[0] if own else settings["lora_alpha"])
        layer.root = bool(settings.get("use_rslora"))


def _take(layers: dict[str, dict[str, Layer]], key: str, array: Array, file: Path) -> None:
    ending, half = next(((e, h) for e, h in _HALVES if key.endswith(e)), ("", ""))
    if not half:
        raise OpsmithError(f"{file}: the key {key} is not of a LoRA that is known", "kohya's and diffusers' styles are")
    component, name = _place(key.removesuffix(ending))
    layer = layers.setdefault(component, {}).setdefault(name, Layer(key))
    if half == "alpha":
        layer.alpha = float(np.asarray(array, np.float64).reshape(-1)[0])
    else:
        setattr(layer, half, np.asarray(array, np.float32))
        layer.key = key


def _place(name: str) -> tuple[str, str]:
    """The component, and the layer in it."""
    for prefix, component in _KOHYA.items():
        if name.startswith(prefix):
            return component, name.removeprefix(prefix)
    name = name.removeprefix("base_model.model.")
    component = "unet"  # files for one model only leave it out
    for prefix, named in _DOTTED.items():
        if name.startswith(prefix):
            component, name = named, name.removeprefix(prefix)
    return component, re.sub(r"\.to_out$", ".to_out.0", name.replace(".processor.", "."))


def _check_whole(layer: Layer, file: Path) -> None:
    if layer.down is None or layer.up is None:
        missing = "down (A)" if layer.down is None else "up (B)"
        raise OpsmithError(f"{file}: {layer.key} has no {missing} half")
    if layer.up.ndim != layer.down.ndim or layer.up[0].size != layer.down.shape[0]:
        raise OpsmithError(f"{file}: {layer.key} has halves {list(layer.down.shape)} and {list(layer.up.shape)}")


# --- on a model ---


def put(model: ir.Model, component: str, loras: Iterable[tuple[Lora, float]]) -> None:
    """Add the differences, each times its scale, to the weights of MODEL. What does not fit is named."""
    places = _places(model)
    changed: dict[str, Array] = {}
    for lora, scale in loras:
        for name, layer in lora.layers.get(component, {}).items():
            weight = places.get(_plain(name))
            if weight is None:
                raise OpsmithError(
                    f"{lora.path.name} does not fit: the {component} has no layer for {layer.key}", _hint(places)
                )
            value = model.graph.initializers[weight]
            assert value.const_value is not None
            if weight not in changed:
                changed[weight] = np.asarray(value.const_value.numpy(), np.float32).copy()
            _add(changed[weight], layer, scale, weight.endswith(store.TRANSPOSED), lora.path.name, component)
    for weight, array in changed.items():
        value = model.graph.initializers[weight]
        assert value.const_value is not None
        value.const_value = ir.tensor(array.astype(value.const_value.dtype.numpy()), name=weight)


def _add(weight: Array, layer: Layer, scale: float, transposed: bool, file: str, component: str) -> None:
    difference = layer.difference()
    wanted = weight.shape[::-1] if transposed else weight.shape
    if difference.shape != wanted:
        if difference.size != np.prod(wanted) or difference.shape[:2] != wanted[:2]:  # [out,in,1,1] is [out,in]
            raise OpsmithError(
                f"{file} does not fit: {layer.key} gives {list(difference.shape)}, "
                f"the {component}'s layer is {list(wanted)}",
                "it was made for another model",
            )
        difference = difference.reshape(wanted)
    weight += scale * (difference.T if transposed else difference)


def _places(model: ir.Model) -> dict[str, str]:
    """Layer, in the plainest spelling -> the initializer that holds its weight."""
    found = {}
    for name, value in model.graph.initializers.items():
        if value.const_value is not None and value.const_value.dtype.is_floating_point():
            plain = name.removesuffix(store.TRANSPOSED)
            if plain.endswith(".weight"):
                found[_plain(plain.removesuffix(".weight"))] = name
    return found


def _plain(name: str) -> str:
    """Kohya writes underscores for dots; some libraries put CLIP's layers below a text_model."""
    return name.replace(".", "_").removeprefix("text_model_")


def _hint(places: Mapping[str, str]) -> str:
    if not any(name.endswith(("_to_q", "_q_proj")) for name in places):
        return "its weights have lost their names: quantized, or exported before Opsmith kept them; export it again"
    return "it was made for another model"
