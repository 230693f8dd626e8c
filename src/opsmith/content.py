"""What a component is by its content: config and weights, whatever folder, file or live module they come from.

Two components with the same key compute the same. Weights are hashed as float32, in which they are exported, so that a
checkpoint in half precision has the key of the module that was loaded from it.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_ABOUT_THE_FILE = ("transformers_version", "torch_dtype", "dtype", "architectures")
_TYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16, "I64": np.int64, "I32": np.int32}


def key(config: Mapping[str, Any], tensors: Mapping[str, Callable[[], Array]]) -> str:
    """Of a component's config and its weights by name, each read when its turn comes."""
    digest = hashlib.sha256(json.dumps(_plain(config), sort_keys=True, default=str).encode())
    for name in sorted(tensors):
        array = tensors[name]()
        digest.update(f"{name} {tuple(array.shape)}".encode())
        single = np.ascontiguousarray(array, np.float32 if array.dtype.kind == "f" else array.dtype)
        digest.update(single.reshape(-1).view(np.uint8).data if single.size else b"")
    return digest.hexdigest()[:32]


def key_of_folder(folder: Path) -> str | None:
    """Of a component's folder in Hugging Face's layout; None where it has no weights that can be read."""
    config, files = folder / "config.json", sorted(folder.glob("*.safetensors"))
    if not config.is_file() or not files:
        return None
    try:
        tensors = {name: read for file in files for name, read in _tensors(file)}
        return key(json.loads(config.read_text(encoding="utf-8")), tensors)
    except (OSError, ValueError, KeyError):
        return None


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is about the file, and without what says nothing."""
    return {k: v for k, v in config.items() if not k.startswith("_") and k not in _ABOUT_THE_FILE and v is not None}


def _tensors(file: Path) -> Iterator[tuple[str, Callable[[], Array]]]:
    """The format is a length, a JSON table of names, types, shapes and places, and the numbers."""
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        table = json.loads(opened.read(size))
    data = np.memmap(file, np.uint8, "r", offset=8 + size)
    for name, entry in table.items():
        if name != "__metadata__":
            yield name, functools.partial(_array, data, entry)


def _array(data: Array, entry: Mapping[str, Any]) -> Array:
    start, end = entry["data_offsets"]
    array = data[start:end].view(_TYPES[entry["dtype"]])
    if entry["dtype"] == "BF16":  # the upper half of a float32
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return np.asarray(array.reshape(entry["shape"]))
