"""Where exported pipelines are kept, and which of them has components of a given content.

One cache for `accelerate` and `create_stable_diffusion`: a pipeline is found again by what its components are (the key
that `export` writes into their records), not by how it was called.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path

from opsmith import content, settings, store
from opsmith._version import __version__
from opsmith.errors import OpsmithError
from opsmith.pipelines.diffusion.parts import components
from opsmith.pipelines.text import read_config

_SMALL = ("tokenizer", "tokenizer_2", "scheduler", "feature_extractor", "generation_config.json")


def cache() -> Path:
    return settings.cache_folder("pipelines")


def name_of(keys: Mapping[str, str]) -> str:
    whole = " ".join(f"{name} {keys[name]}" for name in sorted(keys))
    return hashlib.sha256(f"{__version__} {whole}".encode()).hexdigest()[:24]


def find(root: Path, keys: Mapping[str, str]) -> Path | None:
    """A pipeline folder below ROOT whose components (all but the VAE's encoder) are those of KEYS."""
    for home in sorted(root.iterdir()) if root.is_dir() else ():
        if (home / "model_index.json").is_file() and _contents(home) == dict(keys):
            return home
    return None


def _contents(home: Path) -> dict[str, str | None]:
    return {name: _content(home / name) for name in components(home) if name != "vae_encoder"}


def _content(folder: Path) -> str | None:
    """What an export of this version says of the component."""
    try:
        records = [variant.record for variant in store.variants(folder)]
    except OpsmithError:
        return None
    for record in records:
        if record.get("content") and record.get("opsmith") == __version__:
            return str(record["content"])
    return None


def keys_of_source(source: Path) -> dict[str, str] | None:
    """Of a pipeline in Hugging Face's layout, by the names of the exported components; None if one cannot be told."""
    index = read_config(source / "model_index.json")
    found = {}
    for name in components(source) + (["vae"] if (source / "vae").is_dir() else []):
        if name in index or name.startswith("controlnet_"):
            key = content.key_of_folder(source / name)
            if key is None:
                return None
            found["vae_decoder" if name == "vae" else name] = key
    return found or None


def view(found: Path, source: Path, target: Path) -> None:
    """The components of FOUND with the tokenizer and scheduler of SOURCE, as a pipeline folder of its own."""
    draft = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    for name in components(found):
        (draft / name).symlink_to((found / name).resolve(), target_is_directory=True)
    for name in _SMALL:
        if (source / name).is_dir():
            shutil.copytree(source / name, draft / name)
        elif (source / name).is_file():
            shutil.copyfile(source / name, draft / name)
    shutil.copyfile(found / "model_index.json", draft / "model_index.json")
    draft.rename(target)
