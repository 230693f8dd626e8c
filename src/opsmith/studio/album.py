"""The pictures of a studio: each is a PNG with its settings in a folder, with the same settings as JSON beside it.

The JSON also says what the gallery needs ("album": whose picture it is, what it was made from), so the folder is the
gallery: another start of the studio finds it there.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
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
NOTE = "album"  # the key in the JSON


@dataclasses.dataclass(frozen=True)
class Picture:
    id: str
    owner: str  # a hash: what a browser proves itself with is not written to disk
    kind: str  # made, edited, upload, compared, difference
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
        self._lock = threading.Lock()
        found = [picture for file in folder.glob("*.json") if (picture := _read(file)) is not None]
        found.sort(key=lambda picture: picture.created)
        self._all: dict[str, Picture] = {picture.id: picture for picture in found[-KEPT:]}

    def add(
        self, image: Image.Image, settings: Mapping[str, Any], owner: str, kind: str, parent: Picture | None = None
    ) -> Picture:
        """File names are ours: the time and a random number. Nothing that a user sent becomes part of a path."""
        identity = secrets.token_hex(8)
        now = time.time()
        stem = f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}-{kind}-{identity[:6]}"
        path = pictures.save(image, self.folder / f"{stem}.png", settings)
        made = Picture(
            identity,
            _hash(owner),
            kind,
            path,
            image.width,
            image.height,
            dict(settings),
            parent.id if parent else None,
            now,
        )
        try:
            path.with_suffix(".json").write_text(_note(made), encoding="utf-8")
        except OSError as error:
            raise OpsmithError(f"{self.folder} cannot be written: {error.strerror}") from error
        with self._lock:
            self._all[identity] = made
            while len(self._all) > KEPT:
                del self._all[next(iter(self._all))]
        return made

    def get(self, identity: str, owner: str) -> Picture:
        picture = self._all.get(identity)
        if picture is None or picture.owner != _hash(owner):
            raise OpsmithError("this picture is no longer in the gallery", "its file may still be in the folder")
        return picture

    def of(self, owner: str) -> list[Picture]:
        """Oldest first; those whose file was deleted meanwhile are left out."""
        whose = _hash(owner)
        with self._lock:
            return [p for p in self._all.values() if p.owner == whose and p.path.is_file()]

    def delete(self, identity: str, owner: str) -> None:
        """From the gallery and from the disk."""
        picture = self.get(identity, owner)
        try:
            picture.path.unlink(missing_ok=True)
            picture.path.with_suffix(".json").unlink(missing_ok=True)
        except OSError as error:
            raise OpsmithError(f"{picture.path.name} cannot be deleted: {error.strerror}") from error
        with self._lock:
            self._all.pop(identity, None)


def _hash(owner: str) -> str:
    return hashlib.sha256(owner.encode()).hexdigest()[:32]


def _note(picture: Picture) -> str:
    about = {name: getattr(picture, name) for name in ("id", "owner", "kind", "width", "height", "parent", "created")}
    return json.dumps({**picture.settings, NOTE: about}, indent=2, default=str) + "\n"


def _read(file: Path) -> Picture | None:
    """What `_note` wrote; None for any other JSON, or where the picture is gone."""
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
        about = settings.pop(NOTE)
        parent = about["parent"]
        read = Picture(
            str(about["id"]),
            str(about["owner"]),
            str(about["kind"]),
            file.with_suffix(".png"),
            int(about["width"]),
            int(about["height"]),
            settings,
            None if parent is None else str(parent),
            float(about["created"]),
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return read if re.fullmatch("[0-9a-f]{16}", read.id) and read.path.is_file() else None
