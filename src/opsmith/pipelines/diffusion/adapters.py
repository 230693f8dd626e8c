"""LoRAs and textual inversions that are on: components run with other weights, compiled ones too, without being compiled again.

load, set_scale, unload   note what is wanted
the next picture          gives each component that is touched a copy with those weights, in a temporary folder: only its weights are
                          packed, the library stays. A component that nothing touches, or nothing any more, is the pipeline's own.

New words make a text encoder's table longer, for which a compiled one has no room: while they are on, the one that it was compiled
from runs in its place, and a remark says so.
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import opsmith
from opsmith import store
from opsmith.errors import OpsmithError
from opsmith.pipelines import lora, textual_inversion
from opsmith.pipelines.diffusion.parts import Parts
from opsmith.pipelines.diffusion.tokens import Tokens

Array = np.ndarray[Any, Any]
State = tuple[object, ...]


@dataclasses.dataclass
class Adapter:
    lora: lora.Lora
    scale: float


class Adapters:
    def __init__(self, parts: Parts, tokens: Tokens) -> None:
        self._parts, self.tokens = parts, tokens
        self.on: dict[str, Adapter] = {}
        self._made: dict[str, State] = {}  # component -> what its weights hold now
        self._uncompiled: list[str] = []  # components that run without their library
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    def load(self, path: store.PathLike, scale: float = 1.0, name: str | None = None) -> str:
        """Read the file and see that it fits; its name, by which it is scaled and unloaded."""
        _check_scale(scale)
        found = lora.read(path)
        name = name or found.path.stem
        if name in self.on:
            raise OpsmithError(f"a LoRA {name!r} is on already", "give it another name, or unload it")
        missing = [c for c in found.layers if c not in self._parts]
        if missing:
            first = next(iter(found.layers[missing[0]].values())).key
            raise OpsmithError(f"{found.path.name} does not fit: the pipeline has no {missing[0]} for {first}")
        before = dict(self.on)
        self.on[name] = Adapter(found, scale)
        try:
            self.apply()
        except OpsmithError:
            self.on = before
            raise
        return name

    def set_scale(self, name: str, scale: float) -> None:
        _check_scale(scale)
        self._known(name).scale = scale

    def unload(self, name: str | None = None) -> None:
        """One LoRA, or all of them."""
        if name is None:
            self.on.clear()
        else:
            self._known(name)
            del self.on[name]

    def load_word(self, path: store.PathLike, token: str | None = None) -> str:
        """Read a textual inversion and see that it fits; its word."""
        token, word = self.tokens.read(path, token)
        self.tokens.on[token] = word
        try:
            self.apply()
        except OpsmithError:
            del self.tokens.on[token]
            raise
        return token

    def unload_word(self, token: str | None = None) -> None:
        """One textual inversion, or all of them."""
        if token is None:
            self.tokens.on.clear()
        elif token in self.tokens.on:
            del self.tokens.on[token]
        else:
            raise OpsmithError(f"no embedding {token!r} is on", f"there are: {', '.join(self.tokens.on) or 'none'}")

    def _known(self, name: str) -> Adapter:
        if name not in self.on:
            raise OpsmithError(f"no LoRA {name!r} is on", f"there are: {', '.join(self.on) or 'none'}")
        return self.on[name]

    def apply(self) -> None:
        """Bring every component up to date; nothing is done where nothing changed."""
        for component in self._parts.paths:
            here = {n: a for n, a in self.on.items() if component in a.lora.layers and a.scale}
            words = self.tokens.here(component)
            wanted = (*((n, a.scale) for n, a in here.items()), *((t, rows.tobytes()) for t, rows in words.items()))
            if wanted == self._made.get(component, ()):
                continue
            if wanted:
                self._reweigh(component, [(a.lora, a.scale) for a in here.values()], list(words.values()))
            else:
                self._parts.override(component, None)
            self._uncompiled = [c for c in self._uncompiled if c != component]
            if words and self._parts.named(component) != self._parts.paths[component]:
                self._uncompiled.append(component)
            self.tokens.number(component)
            self._made[component] = wanted

    def _reweigh(self, component: str, loras: list[tuple[lora.Lora, float]], words: list[Array]) -> None:
        path, source = self._parts.paths[component], self._parts.named(component)
        model = store.open_model(source)
        lora.put(model, component, loras)
        if self._scratch is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="opsmith-lora-", ignore_cleanup_errors=True)
        dest = Path(tempfile.mkdtemp(prefix=f"{component}-", dir=self._scratch.name)) / component
        if words:
            textual_inversion.put(model, np.concatenate(words))
        if source == path or words:
            dest.mkdir()
            store.save_model(model, dest / "model.onnx")
        else:
            opsmith.weights(path.parent, model, dest, verify=False)
        self._parts.override(component, store.find_model(dest))

    @property
    def remarks(self) -> list[str]:
        return [f"the {name} runs uncompiled: the compiled one has no room for new words" for name in self._uncompiled]

    @property
    def told(self) -> list[dict[str, Any]]:
        """For the settings of a picture."""
        return [{"name": n, "file": a.lora.path.name, "scale": a.scale} for n, a in self.on.items()]


def _check_scale(scale: float) -> None:
    if not -100 <= scale <= 100:  # NaN too
        raise OpsmithError(f"a LoRA's scale of {scale} is not possible", "1 is usual, 0 is off")
