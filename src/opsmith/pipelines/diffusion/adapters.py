"""LoRAs that are on: components run with other weights, compiled ones too, without being compiled again.

load, set_scale, unload   note what is wanted
the next picture          gives each component that is touched a copy with those weights, in a temporary folder: only its weights are
                          packed, the library stays. A component that no LoRA touches, or none any more, is the pipeline's own.
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import opsmith
from opsmith import store
from opsmith.errors import OpsmithError
from opsmith.pipelines import lora
from opsmith.pipelines.diffusion.parts import Parts


@dataclasses.dataclass
class Adapter:
    lora: lora.Lora
    scale: float


class Adapters:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.on: dict[str, Adapter] = {}
        self._made: dict[str, tuple[tuple[str, float], ...]] = {}  # component -> what its weights hold now
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

    def _known(self, name: str) -> Adapter:
        if name not in self.on:
            raise OpsmithError(f"no LoRA {name!r} is on", f"there are: {', '.join(self.on) or 'none'}")
        return self.on[name]

    def apply(self) -> None:
        """Bring every component up to date; nothing is done where nothing changed."""
        for component in self._parts.paths:
            here = {n: a for n, a in self.on.items() if component in a.lora.layers and a.scale}
            wanted = tuple((n, a.scale) for n, a in here.items())
            if wanted == self._made.get(component, ()):
                continue
            if wanted:
                self._reweigh(component, [(a.lora, a.scale) for a in here.values()], len(self._made))
            else:
                self._parts.override(component, None)
            self._made[component] = wanted

    def _reweigh(self, component: str, loras: list[tuple[lora.Lora, float]], number: int) -> None:
        path = self._parts.paths[component]
        source = _source(path)
        model = store.open_model(source)
        lora.put(model, component, loras)
        if self._scratch is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="opsmith-lora-", ignore_cleanup_errors=True)
        dest = Path(tempfile.mkdtemp(prefix=f"{component}-", dir=self._scratch.name)) / component
        if source == path:
            dest.mkdir()
            store.save_model(model, dest / "model.onnx")
        else:
            opsmith.weights(path.parent, model, dest, verify=False)
        self._parts.override(component, store.find_model(dest))

    @property
    def told(self) -> list[dict[str, Any]]:
        """For the settings of a picture."""
        return [{"name": n, "file": a.lora.path.name, "scale": a.scale} for n, a in self.on.items()]


def _check_scale(scale: float) -> None:
    if not -100 <= scale <= 100:  # NaN too
        raise OpsmithError(f"a LoRA's scale of {scale} is not possible", "1 is usual, 0 is off")


def _source(path: Path) -> Path:
    """The model whose weights have names: the one that PATH was compiled from, else itself."""
    if not store.libraries(path):
        return path
    name = store.read_record(path).get("parent")
    for place in (path.parent / str(name), path.parent.parent / str(name)):
        if name and place.exists():
            return store.find_model(place)
    raise OpsmithError(
        f"the model that {path.parent} was compiled from is gone", "a LoRA needs it: its weights have names"
    )
