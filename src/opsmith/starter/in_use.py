"""Where a starter model is used from: the package, or the copy in the cache that holds its compiled variants.

The package may be read-only. What the studio compiles of the starter models is kept in the user's cache, under a hash of
their files, together with a copy of them: `bench` and `report` then see both variants, and `imagine`, `edit` and `write`
use what was compiled.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
from pathlib import Path

from opsmith import settings, starter
from opsmith._version import __version__

COMPILED = ("pictures", "writer", "masks")


def folder(name: str) -> Path:
    """The copy with compiled variants, if there is one; else the package's own."""
    copy = settings.get().cache / "studio" / key() / name
    return copy if copy.is_dir() else starter.folder(name)


def copy(name: str) -> Path:
    """A folder to compile in; made by the first call."""
    home = settings.cache_folder("studio") / key()
    home.mkdir(exist_ok=True)
    target = home / name
    if not target.is_dir():
        partial = home / f".{name}.{os.getpid()}.tmp"
        shutil.copytree(starter.folder(name), partial)
        partial.rename(target)
    return target


@functools.cache
def key() -> str:
    """Of the version and of all starter models that can be compiled."""
    digest = hashlib.sha256(__version__.encode())
    for name in COMPILED:
        home = starter.folder(name)
        for file in sorted(f for f in home.rglob("*") if f.is_file()):
            stat = file.stat()
            digest.update(f"{name}/{file.relative_to(home)} {stat.st_size} {stat.st_mtime_ns}".encode())
    return f"starter-{digest.hexdigest()[:16]}"
