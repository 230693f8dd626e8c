"""The components of a pipeline folder: which variant of each is used, its config, its session."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from opsmith import model_checks, session, store
from opsmith.errors import OpsmithError
from opsmith.pipelines.diffusion import merge
from opsmith.pipelines.diffusion.cut import Piece, extract
from opsmith.pipelines.text import choose_variant, read_config

Array = np.ndarray[Any, Any]

COMPONENTS = ("text_encoder", "text_encoder_2", "unet", "vae_decoder", "vae_encoder")
CONTROL = "controlnet"  # and controlnet_1, ...


def components(folder: Path) -> list[str]:
    """Those that the pipeline folder has."""
    controls = sorted(f.name for f in folder.glob(f"{CONTROL}*") if f.is_dir())
    return [name for name in (*COMPONENTS, *controls) if (folder / name).is_dir()]


def needed(folder: Path) -> list[str]:
    """Those that it cannot do without; XL's refiner has its second text encoder alone."""
    text = "text_encoder_2" if (folder / "text_encoder_2").is_dir() else "text_encoder"
    return [text, "unet", "vae_decoder"]


class Parts:
    """Sessions are loaded when they are first needed."""

    def __init__(
        self,
        folder: store.PathLike,
        variant: str | Mapping[str, str] | None = None,
        threads: int | None = None,
        low_memory: bool = False,
        vae: store.PathLike | None = None,
    ) -> None:
        self.folder = _existing("pipeline", folder)
        self.vae = None if vae is None else _existing("VAE", vae)
        if threads is not None and threads < 1:
            raise OpsmithError(f"{threads} threads are not possible", "give 1 or more")
        self.threads, self.low_memory = threads, low_memory
        there = components(self.folder)
        names = [*there, *(name for name in needed(self.folder) if name not in there)]
        self.paths = {name: self._find(name, variant) for name in names if not self._chosen(name)}
        for name in ("vae_decoder", "vae_encoder") if self.vae is not None else ():
            if name == "vae_decoder" or self.home(name).is_dir():
                self.paths[name] = self._find(name, variant)
        self.sessions: dict[str, ort.InferenceSession] = {}
        self.piece_paths: dict[str, Path] = {}  # of pieces that are compiled on their own
        self._overrides: dict[str, Path] = {}  # component -> its model with other weights

    def _chosen(self, name: str) -> bool:
        """Whether the component is that of the VAE that was chosen instead of the pipeline's own."""
        return self.vae is not None and name.startswith("vae_")

    def home(self, name: str) -> Path:
        """The component's model folder."""
        return (self.vae if self.vae is not None and self._chosen(name) else self.folder) / name

    def _find(self, name: str, variant: str | Mapping[str, str] | None) -> Path:
        folder = self.home(name)
        if not folder.is_dir() and self._chosen(name):
            raise OpsmithError(f"{self.vae} has no {name}", "opsmith export makes such a folder of an autoencoder")
        if not folder.is_dir():
            raise OpsmithError(
                f"the pipeline {self.folder} has no {name}", f"a pipeline folder holds {', '.join(needed(self.folder))}"
            )
        wanted = variant.get(name) if isinstance(variant, Mapping) else variant
        if (
            wanted is not None
            and not isinstance(variant, Mapping)
            and name != "unet"
            and not (folder / wanted).is_dir()
        ):
            wanted = None  # a variant of the UNet alone; `variants` and the settings say what the others are
        if wanted is not None and not (folder / wanted).is_dir():
            there = ", ".join(v.name for v in store.variants(folder))
            raise OpsmithError(f"{folder} has no variant {wanted!r}", f"there are: {there or 'none'}")
        return choose_variant(folder, wanted)

    def __contains__(self, name: str) -> bool:
        return name in self.paths

    @property
    def variants(self) -> dict[str, str]:
        return {name: path.parent.name for name, path in self.paths.items()}

    @functools.cached_property
    def hashes(self) -> dict[str, str]:
        """Of each component's .onnx file and the names and sizes of the files it points at."""
        return {name: _hash(path) for name, path in self.paths.items()}

    def named(self, name: str) -> Path:
        """The model of component NAME whose weights have names: the one that it was compiled from, else itself."""
        path = self.paths[name]
        if not store.libraries(path):
            return path
        parent = store.read_record(path).get("parent")
        for place in (path.parent / str(parent), path.parent.parent / str(parent)):
            if parent and place.exists():
                return store.find_model(place)
        raise OpsmithError(
            f"the model that {path.parent} was compiled from is gone", "it is needed here: its weights have names"
        )

    def config(self, name: str) -> dict[str, Any]:
        return read_config(self.home(name) / "config.json")

    def inputs(self, name: str) -> list[str]:
        return [i.name for i in self.session(name).get_inputs()]

    def session(self, name: str) -> ort.InferenceSession:
        """Loaded when it is first needed."""
        if name not in self.sessions:
            self.sessions[name] = session.load(self._overrides.get(name, self.paths[name]), threads=self.threads)
        return self.sessions[name]

    def piece(self, name: str, piece: Piece, stride: int = 1) -> ort.InferenceSession:
        """Of component NAME, with STRIDE tokens merged, only PIECE; loaded when it is first needed."""
        key = f"{name}/{piece.name}" + (f"/{stride}" if stride > 1 else "")
        if key not in self.sessions and key in self.piece_paths:
            self.sessions[key] = session.load(self.piece_paths[key], threads=self.threads)
        elif key not in self.sessions:
            edit = functools.partial(_edited, piece=piece, stride=stride)
            self.sessions[key] = session.load(
                self._overrides.get(name, self.paths[name]), threads=self.threads, edit=edit
            )
        return self.sessions[key]

    def has_old_pieces(self, name: str) -> bool:
        """Whether the compiled pieces of component NAME hold other weights than it runs with."""
        return name in self._overrides and any(key.startswith(f"{name}/") for key in self.piece_paths)

    def override(self, name: str, path: Path | None) -> None:
        """Run component NAME from PATH, the same model with other weights; None: its own again."""
        self.release(name)
        if path is None:
            self._overrides.pop(name, None)
        else:
            self._overrides[name] = path

    def release(self, name: str | None = None) -> None:
        """Drop one component's session and those of its pieces, or all; the next call loads them again."""
        for key in list(self.sessions):
            if name is None or key == name or key.startswith(f"{name}/"):
                self.sessions.pop(key, None)

    def run(self, name: str, feeds: Mapping[str, Array]) -> Array:
        """The first output of component NAME; feeds are cast to what it reads."""
        return self.run_for(name, feeds, [self.session(name).get_outputs()[0].name])[0]

    def run_for(self, name: str, feeds: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        """The OUTPUTS of component NAME."""
        return [np.asarray(a) for a in self._compute(name, self.session(name), feeds, outputs)]

    def run_piece(self, name: str, stride: int, piece: Piece, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """All that PIECE of component NAME gives; STRIDE as for `piece`."""
        made = self._compute(name, self.piece(name, piece, stride), feeds, piece.outputs)
        return dict(zip(piece.outputs, made))

    def _compute(
        self, name: str, loaded: ort.InferenceSession, feeds: Mapping[str, Array], outputs: Sequence[str]
    ) -> list[Array]:
        kinds = {i.name: i.type for i in loaded.get_inputs()}
        typed = {k: np.ascontiguousarray(v, _DTYPES.get(kinds.get(k, ""), v.dtype)) for k, v in feeds.items()}
        try:
            return session.run(loaded, typed, outputs)
        except MemoryError as error:
            raise _too_large(name) from error
        except OpsmithError as error:
            if any(word in str(error).lower() for word in ("bad_alloc", "failed to allocate", "bad allocation")):
                raise _too_large(name) from error
            raise

    def done_with(self, name: str) -> None:
        if self.low_memory:
            self.release(name)


def _edited(proto: onnx.ModelProto, piece: Piece, stride: int) -> None:
    if stride > 1:
        merge.put(proto, stride)
    extract(proto, piece)


_DTYPES = {
    "tensor(float16)": np.float16,
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}


def _existing(kind: str, given: store.PathLike) -> Path:
    folder = Path(given)
    if not folder.is_dir():
        wrong = "is not a folder" if folder.exists() else "does not exist"
        raise OpsmithError(f"the {kind} folder {folder} {wrong}")
    return folder


class TooLarge(OpsmithError):
    """A component ran out of memory."""


def _too_large(name: str) -> OpsmithError:
    return TooLarge(f"not enough memory for the {name} at this size", "choose a smaller size or a smaller batch")


def _hash(path: Path) -> str:
    digest = hashlib.sha256(path.read_bytes())
    for file in sorted(model_checks.external_files(path)):
        digest.update(f"{file.name} {file.stat().st_size}".encode())
    return digest.hexdigest()[:16]
