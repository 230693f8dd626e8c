"""A model on its way to other machines: which files it consists of, and where they lie there.

A node that sees the same files (one machine, a shared disk) reads them in place. Others keep a copy in their cache, under a hash of its
content, fetched once. A variant that was compiled for other CPU features is compiled there from the variant that it was made of, once
per kind of CPU, and kept beside the copy.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from opsmith import machine, model_checks, settings, store
from opsmith.batch.runners import files_of, is_pipeline
from opsmith.errors import OpsmithError
from opsmith.pipelines.text import choose_variant

# What a folder says about its models. By name: other files beside a model are not its own.
WORDS = {
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json", "vocab.txt", "merges.txt"),
    *("config.json", "generation_config.json", "sentence_bert_config.json", "preprocessor_config.json"),
    *("model_index.json", "scheduler_config.json", "opsmith.json"),
}
AROUND = 2  # folders above a variant that may hold them


@dataclasses.dataclass(frozen=True)
class Parcel:
    """A model's files below ROOT; DIGEST is of names, sizes and content."""

    root: Path
    model: str  # below ROOT: what the runner is given
    variant: str | None
    files: tuple[str, ...]
    source: str | None  # the variant that it was compiled of, if that is in the parcel
    digest: str


def pack(model: Path, variant: str | None) -> Parcel:
    if is_pipeline(model):
        root, main, source = model.absolute(), ".", None
        files = {f for f in root.rglob("*") if f.is_file() and f.name in WORDS}
        files |= {f for path in files_of(root, variant) if path.suffix == ".onnx" for f in _variant_files(path)}
    else:
        path = choose_variant(model, variant).absolute()
        around = path.parents[: AROUND + 1]
        root, variant = around[-1], None
        main = str(path.relative_to(root))
        files = _variant_files(path)
        for folder in around:
            files |= {
                f for f in (*folder.glob("*.*"), *folder.glob("1_Pooling/*.json")) if f.is_file() and f.name in WORDS
            }
        parent = _source(path)
        files |= _variant_files(parent) if parent else set()
        source = str(parent.relative_to(root)) if parent else None
    names = tuple(sorted(str(f.relative_to(root)) for f in files))
    return Parcel(root, main, variant, names, source, _digest(root, names))


def _variant_files(path: Path) -> set[Path]:
    """A model file with its weights, its library and its record."""
    beside = {f for f in path.parent.glob("*.*") if f.suffix == ".so" or f.name in WORDS}
    return {path, *model_checks.external_files(path), *beside}


def _source(path: Path) -> Path | None:
    """The variant beside it that a compiled one was made of."""
    record = store.read_record(path)
    beside = path.parent.parent / str(record.get("parent") or "")
    if not (record.get("compiled") or {}).get("library") or not record.get("parent") or not beside.is_dir():
        return None
    return store.find_model(beside)


def _digest(root: Path, names: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{name} {store.checksum(root / name)}\n".encode())
    return digest.hexdigest()[:24]


def is_here(parcel: Parcel) -> bool:
    """Whether this machine sees the same files at the same place, or has its copy."""
    if (_home(parcel) / "whole").exists():
        return True
    there = all((parcel.root / name).is_file() for name in parcel.files)
    return there and _digest(parcel.root, parcel.files) == parcel.digest


def unpack(parcel: Parcel, read: Callable[[str], bytes]) -> Path:
    """The model on this machine; READ gives the content of a file, if there is none here yet."""
    root = parcel.root
    if not is_here(parcel) or (_home(parcel) / "whole").exists():
        root = _home(parcel)
        with _turn(parcel):
            if not (root / "whole").exists():
                shutil.rmtree(root, ignore_errors=True)
                for name in parcel.files:
                    (root / name).parent.mkdir(parents=True, exist_ok=True)
                    (root / name).write_bytes(read(name))
                (root / "whole").touch()
    return _built(parcel, root)


def _built(parcel: Parcel, root: Path) -> Path:
    """The model, or what was compiled of its source if it was compiled for another kind of CPU."""
    model = root / parcel.model
    if not model.is_file():
        return model
    try:
        store.libraries(model)
        return model
    except OpsmithError:
        if parcel.source is None:
            raise
    kind = hashlib.sha256(" ".join(sorted(machine.cpu_features())).encode()).hexdigest()[:12]
    # Beside its source, as a variant of the model: the tokenizer is found from there, too.
    target = _home(parcel) / Path(parcel.model).parents[1] / f"compiled_{kind}"
    with _turn(parcel):
        if not target.is_dir():
            from opsmith.compiler import compile

            _copy_words(parcel, root)
            compile(root / parcel.source, target)
    return store.find_model(target)


def _copy_words(parcel: Parcel, root: Path) -> None:
    """Tokenizer and configs beside what is compiled here."""
    for name in parcel.files:
        if Path(name).name in WORDS and root != _home(parcel):
            (_home(parcel) / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, _home(parcel) / name)


def _home(parcel: Parcel) -> Path:
    return settings.cache_folder("fleet") / parcel.digest


@contextlib.contextmanager
def _turn(parcel: Parcel) -> Iterator[None]:
    """One process of a machine at a time fetches or compiles."""
    with _home(parcel).with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
