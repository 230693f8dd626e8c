"""A folder of pictures or of texts: one row per file, in the order of their names.

Columns: `file`, its name inside the folder, and `picture` (its path, read where it is used) or `text` (its content).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from opsmith.batch.rows import Chunk, Failed
from opsmith.batch.sources.reading import in_chunks
from opsmith.errors import OpsmithError

PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
TEXTS = (".txt", ".md", ".text")


class Folder:
    def __init__(self, path: Path) -> None:
        self.path = path
        files = sorted(f for f in path.rglob("*") if f.is_file() and not _hidden(f.relative_to(path)))
        pictures = [f for f in files if f.suffix.lower() in PICTURES]
        texts = [f for f in files if f.suffix.lower() in TEXTS]
        if pictures and texts:
            raise OpsmithError(
                f"{path} holds {len(pictures)} pictures and {len(texts)} texts", "map reads a folder of one kind"
            )
        self.files = pictures or texts
        if not self.files:
            raise OpsmithError(f"{path} holds no pictures and no texts", " ".join(PICTURES + TEXTS))
        self.natural: str | None = "picture" if pictures else "text"
        self.columns: tuple[str, ...] = ("file", "picture" if pictures else "text")
        self.rows = len(self.files)
        self.identity: Mapping[str, Any] = {"input": str(path.resolve()), "files": self._digest()}

    def _digest(self) -> str:
        digest = hashlib.sha256()
        for file in self.files:
            stat = file.stat()
            digest.update(f"{file.relative_to(self.path)} {stat.st_size} {stat.st_mtime_ns}\n".encode())
        return digest.hexdigest()[:32]

    def chunks(self, wanted: Sequence[str], size: int) -> Iterator[Chunk]:
        yield from in_chunks(map(self._row, self.files), wanted, size)

    def _row(self, file: Path) -> Mapping[str, Any] | Failed:
        row: dict[str, Any] = {"file": str(file.relative_to(self.path))}
        if self.natural == "picture":
            return row | {"picture": file.absolute()}
        try:
            return row | {"text": file.read_text(encoding="utf-8")}
        except (OSError, UnicodeDecodeError) as error:
            return Failed(f"{row['file']} cannot be read as UTF-8 text: {error}")


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
