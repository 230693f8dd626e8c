"""Where training keeps its files: $OPSMITH_TRAINING_DIR, or the user's cache folder."""

from __future__ import annotations

import os
import subprocess
import tarfile
from functools import cache
from pathlib import Path

import platformdirs

EMOJI_PACKAGE = "emoji-datasource-google@16.0.0"


def folder(*parts: str) -> Path:
    """A folder of the training directory, made if it is not there."""
    root = Path(os.environ.get("OPSMITH_TRAINING_DIR") or platformdirs.user_cache_path("opsmith") / "training")
    path = root.joinpath(*parts)
    path.mkdir(parents=True, exist_ok=True)
    return path


@cache
def emoji_folder() -> Path:
    """The 64 px emoji pictures; fetched from npm the first time (74 MB)."""
    root = folder("emoji")
    pictures = root / "package" / "img" / "google" / "64"
    if not pictures.is_dir():
        subprocess.run(["npm", "pack", EMOJI_PACKAGE, "--silent"], cwd=root, check=True)
        with tarfile.open(next(root.glob("emoji-datasource-google-*.tgz"))) as archive:
            wanted = ("package/img/google/64/", "package/LICENSE", "package/package.json")
            archive.extractall(root, [m for m in archive.getmembers() if m.name.startswith(wanted)], filter="data")
    return pictures
