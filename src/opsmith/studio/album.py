"""The pictures of a studio: each is a PNG with its settings in a folder, with the same settings as JSON beside it."""

from __future__ import annotations

import dataclasses
import json
import secrets
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from opsmith.errors import OpsmithError
from opsmith.pipelines import pictures

KEPT = 1000  # entries of the gallery; files on disk stay


@dataclasses.dataclass(frozen=True)
class Picture:
    id: str
    owner: str
    kind: str  # made, edited, upload, difference
    path: Path
    width: int
    height: int
    settings: dict[str, Any]
    parent: str | None  # the picture it was edited from
    created: float

    def describe(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "kind": self.kind,
            "url": f"api/pictures/{self.id}.png",
            "file": self.path.name,
            "width": self.width,
            "height": self.height,
            "settings": self.settings,
            "parent": self.parent,
            "created": self.created,
        }


class Album:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._all: dict[str, Picture] = {}
        self._lock = threading.Lock()

    def add(
        self, image: Image.Image, settings: Mapping[str, Any], owner: str, kind: str, parent: Picture | None = None
    ) -> Picture:
        """File names are ours: the time and a random number. Nothing that a user sent becomes part of a path."""
        identity = secrets.token_hex(8)
        now = time.time()
        stem = f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}-{kind}-{identity[:6]}"
        path = pictures.save(image, self.folder / f"{stem}.png", settings)
        try:
            path.with_suffix(".json").write_text(json.dumps(settings, indent=2, default=str) + "\n", encoding="utf-8")
        except OSError as error:
            raise OpsmithError(f"{self.folder} cannot be written: {error.strerror}") from error
        made = Picture(
            identity, owner, kind, path, image.width, image.height, dict(settings), parent.id if parent else None, now
        )
        with self._lock:
            self._all[identity] = made
            while len(self._all) > KEPT:
                del self._all[next(iter(self._all))]
        return made

    def get(self, identity: str, owner: str) -> Picture:
        picture = self._all.get(identity)
        if picture is None or picture.owner != owner:
            raise OpsmithError("this picture is no longer in the gallery", "its file is still in the folder")
        return picture

    def of(self, owner: str) -> list[Picture]:
        with self._lock:
            return [p for p in self._all.values() if p.owner == owner]
