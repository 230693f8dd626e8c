"""The provider's own library, built once per machine; and what Python asks it."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
from pathlib import Path

from opsmith import settings
from opsmith._version import __version__
from opsmith.compiler import geometry
from opsmith.compiler.build import build, find_compiler, headers_digest
from opsmith.compiler.emit import Source
from opsmith.compiler.system import System
from opsmith.errors import OpsmithError

SOURCES = Path(__file__).parent


@functools.cache
def library(compiler: str | None = None, system: System | None = None) -> Path:
    """The library, for any CPU of the architecture; SYSTEM None: this machine's."""
    tool = find_compiler(compiler, system)
    version = f'#define OPSMITH_VERSION "{__version__}"\n'
    sources = [Source("provider.cpp", version + (SOURCES / "provider.cpp").read_text(encoding="utf-8"))]
    sources += [Source(h.name, h.read_text(encoding="utf-8")) for h in sorted(SOURCES.glob("*.hpp"))]
    parts = [*(s.text for s in sources), headers_digest(), tool.name, tool.version, *tool.flags(geometry.GENERIC)]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    home = settings.cache_folder("provider")
    target = home / f"libopsmith_provider_{key}.so"
    if not target.exists():
        fresh = home / f"{target.stem}.{os.getpid()}.so"  # others may have the old one mapped: never written in place
        build(sources, home / f"src_{key}", fresh, compiler=tool, isa=geometry.GENERIC)
        fresh.replace(target)
    return target


@functools.cache
def _door() -> ctypes.CDLL:
    door = ctypes.CDLL(str(library()))
    door.OpsmithReport.restype = ctypes.c_size_t
    return door


def digest(path: Path) -> str:
    """The digest by which the provider knows a file."""
    text = ctypes.create_string_buffer(33)
    if not _door().OpsmithDigest(os.fsencode(path), text):
        raise OpsmithError(f"{path} cannot be read")
    return text.value.decode("ascii")


def last_report() -> list[str]:
    """What became of the regions of the session that was made last in this process."""
    door = _door()
    text = ctypes.create_string_buffer(door.OpsmithReport(None, 0) + 65536)
    door.OpsmithReport(text, ctypes.c_size_t(len(text)))
    return [line for line in text.value.decode("utf-8", "replace").splitlines() if line]
