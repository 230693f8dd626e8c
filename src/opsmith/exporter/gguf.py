"""A GGUF file, as llama.cpp has them, becomes a folder in Hugging Face's layout; from there on it is exported like any other.

Weights in blocks (Q8_0, Q4_0, Q4_1, the K kinds ...) become the floats that they stand for, until gguf_blocks.py makes blocks of them
again. The tokenizer, the chat template and the tokens that end a text come along.
"""

from __future__ import annotations

import collections
import contextlib
import importlib.util
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opsmith.errors import OpsmithError

_FLOATS = ("F32", "F16", "BF16")
_ENDS = ("eos", "eot", "eom")  # of the text, of a turn, of a message


def unpack(file: Path, folder: Path) -> None:
    """Write config.json, model.safetensors, tokenizer files and generation_config.json of FILE into FOLDER."""
    if importlib.util.find_spec("gguf") is None:
        raise OpsmithError("reading GGUF files needs gguf", 'pip install ".[gguf]"')
    import torch
    from safetensors.torch import save_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        where: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
        with contextlib.redirect_stderr(io.StringIO()):  # bars that no switch of transformers turns off
            model = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **where)
            tokenizer = AutoTokenizer.from_pretrained(file.parent, **where)
    except KeyboardInterrupt:
        raise
    except Exception as error:
        words = " ".join(str(error).split())[:200]
        raise OpsmithError(f"{file} cannot be read as GGUF: {type(error).__name__}: {words}") from error
    save_model(model, str(folder / "model.safetensors"), metadata={"format": "pt"})
    tokenizer.save_pretrained(folder)
    config = {**model.config.to_dict(), "architectures": [type(model).__name__]}
    config.pop("quantization_config", None)  # they are floats now
    ends = ends_of(_facts(file)) or config.get("eos_token_id")
    for name, content in (("config", config), ("generation_config", {"eos_token_id": ends})):
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def remarks(file: Path, kept: Mapping[str, int]) -> list[str]:
    """Which kinds of weights stayed blocks (KEPT: uses of each kind), and which became floats."""
    from gguf import GGUFReader

    kinds = collections.Counter(tensor.tensor_type.name for tensor in GGUFReader(file).tensors)
    floats = [f"{n} of {kind}" for kind, n in kinds.most_common() if kind not in _FLOATS and kind not in kept]
    found = []
    if kept:
        found.append(f"weights stay in their blocks: {', '.join(f'{n} of {kind}' for kind, n in kept.items())}")
    if floats:
        found.append(f"weights in blocks became floats: {', '.join(floats)}; `opsmith quantize` makes them small again")
    return found


def _facts(file: Path) -> dict[str, Any]:
    """The file's single values, by name."""
    from gguf import GGUFReader, GGUFValueType

    fields = GGUFReader(file).fields
    return {name: f.contents() for name, f in fields.items() if f.types and f.types[0] != GGUFValueType.ARRAY}


def ends_of(facts: dict[str, Any]) -> list[int]:
    named = [facts.get(f"tokenizer.ggml.{kind}_token_id") for kind in _ENDS]
    return sorted({int(token) for token in named if token is not None})
