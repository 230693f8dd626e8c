"""Textual inversion files: new words for a text encoder, each of one or more vectors that its table of tokens does not have.

    one tensor [X] or [N,X], named by its word (diffusers), or emb_params (the web interfaces): the word is then the file's name
    clip_l and clip_g: vectors for each of XL's two text encoders

A word's vectors become new rows of the table: ids -> table [V,X] + rows [N,X] -> embeddings, so that the word is N tokens long.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from opsmith import store
from opsmith.errors import OpsmithError
from opsmith.nodes import ONNX

Array = np.ndarray[Any, Any]

_NAMED_BY_FILE = "emb_params"
_XL = {"clip_l": "text_encoder", "clip_g": "text_encoder_2"}
_SYNTAX = r"[\s()\[\]\\]"  # of prompts


@dataclasses.dataclass(frozen=True)
class Inversion:
    path: Path
    token: str
    vectors: Mapping[str, Array]  # component -> [N,X]; the component is empty where the file does not tell


def read(path: store.PathLike, token: str | None = None) -> Inversion:
    """A .safetensors file; TOKEN is the word for it, instead of the file's own."""
    file = Path(path)
    if not file.is_file():
        raise OpsmithError(f"the embedding {file} does not exist")
    if file.suffix != ".safetensors":
        hint = "pickled weights are never loaded; convert it: safetensors.torch.save_file({word: tensor}, ...)"
        raise OpsmithError(f"{file} is not a .safetensors file", hint)
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        tensors = load_file(file)
    except (SafetensorError, OSError, TypeError, KeyError) as error:
        raise OpsmithError(f"{file} cannot be read as safetensors: {' '.join(str(error).split())[:200]}") from error
    if tensors and tensors.keys() <= _XL.keys():
        found, own = {_XL[name]: array for name, array in tensors.items()}, file.stem
    elif len(tensors) == 1:
        ((name, array),) = tensors.items()
        found, own = {"": array}, file.stem if name == _NAMED_BY_FILE else name
    else:
        listed = ", ".join(sorted(tensors)[:3]) or "nothing"
        raise OpsmithError(
            f"{file} is no textual inversion: it holds {listed}", "one tensor is expected, or clip_l and clip_g"
        )
    token = own if token is None else token
    if not token or re.search(_SYNTAX, token):
        raise OpsmithError(f"{token!r} cannot be a word of a prompt", "give it another: FILE:word")
    return Inversion(file, token, {name: _rows(array, file) for name, array in found.items()})


def _rows(array: Array, file: Path) -> Array:
    """[N,X]"""
    rows = np.asarray(array, np.float32)
    rows = rows[None] if rows.ndim == 1 else rows
    if rows.ndim != 2 or not rows.size:
        raise OpsmithError(
            f"{file} is no textual inversion: its tensor is {list(array.shape)}, not [size] or [n, size]"
        )
    return rows


# --- on a model ---


def table(model: ir.Model) -> ir.Value:
    """The weight [V,X] from which the text encoder takes its tokens' embeddings."""
    for node in model.graph:
        if node.op_type == "Gather" and node.domain in ONNX and _is_ids(node.inputs[1]):
            weight = _behind(node.inputs[0], ("Cast", "Identity"))
            held = None if weight is None else weight.const_value
            if weight is not None and held is not None and len(held.shape) == 2 and held.dtype.is_floating_point():
                return weight
    raise OpsmithError("the text encoder's table of tokens is not found", "it may be quantized; choose another variant")


def _is_ids(value: ir.Value | None) -> bool:
    origin = _behind(value, ("Reshape", "Cast", "Identity", "Squeeze", "Unsqueeze", "Flatten"))
    return origin is not None and origin.name == "input_ids"


def _behind(value: ir.Value | None, passed: tuple[str, ...]) -> ir.Value | None:
    """What VALUE was made from, behind nodes of the kinds PASSED."""
    while value is not None and (node := value.producer()) is not None and node.op_type in passed:
        value = node.inputs[0]
    return value


def put(model: ir.Model, rows: Array) -> None:
    """Append ROWS [N,X] to the table of MODEL."""
    weight = table(model)
    assert weight.const_value is not None
    old = weight.const_value.numpy()
    weight.const_value = ir.tensor(np.concatenate([old, rows.astype(old.dtype)]), name=weight.name)
    weight.shape = weight.const_value.shape  # type: ignore[assignment]
    for node in weight.consumers():
        if node.op_type in ("Cast", "Identity"):
            node.outputs[0].shape = weight.shape
