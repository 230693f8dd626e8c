"""Settings: command line over environment over one TOML file in the user's config folder.

# ~/.config/opsmith/config.toml (or the file named by OPSMITH_CONFIG)
cache = "/big/disk/opsmith"    # OPSMITH_CACHE     compiled kernels, machine figures
threads = 4                    # OPSMITH_THREADS   of ONNX Runtime and of the compiled code
search = 1                     # OPSMITH_SEARCH    how long the compiler looks for faster kernels: 0, 1, 2
precision = "bf16"             # OPSMITH_PRECISION of compiled products: fp32, bf16, int8, auto
compiler = "clang++"           # OPSMITH_COMPILER  instead of the first of g++, clang++, zig
"""

from __future__ import annotations

import dataclasses
import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import platformdirs

from opsmith.errors import OpsmithError, near

PRECISIONS = ("fp32", "bf16", "int8", "auto")  # compiler/precision.py says what they mean


@dataclasses.dataclass(frozen=True)
class Settings:
    cache: Path
    threads: int | None = None  # None: as many as there are cores
    search: int = 0
    precision: str = "fp32"
    compiler: str | None = None  # None: the first one found
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict)  # key -> where its value comes from


def _cache(value: Any) -> Path:
    if not isinstance(value, (str, Path)) or not str(value):
        raise ValueError("a folder")
    return Path(value).expanduser()


def _threads(value: Any) -> int:
    number = _whole(value)
    if number < 1:
        raise ValueError("a whole number from 1 up")
    return number


def _search(value: Any) -> int:
    number = _whole(value)
    if number not in (0, 1, 2):
        raise ValueError("0, 1 or 2")
    return number


def _whole(value: Any) -> int:
    try:
        if isinstance(value, (bool, float)):
            raise ValueError
        return int(value)
    except (TypeError, ValueError):
        raise ValueError("a whole number") from None


def _precision(value: Any) -> str:
    if value not in PRECISIONS:
        raise ValueError(f"{', '.join(PRECISIONS[:-1])} or {PRECISIONS[-1]}")
    return str(value)


def _compiler(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("the name or path of a compiler")
    return value


_KEYS: dict[str, Callable[[Any], Any]] = {
    "cache": _cache,
    "threads": _threads,
    "search": _search,
    "precision": _precision,
    "compiler": _compiler,
}
# Environment variables that are not settings: where the file is, and what compiled libraries look at.
_OTHER_VARIABLES = {"OPSMITH_CONFIG", "OPSMITH_CPU", "OPSMITH_PROFILE", "OPSMITH_PROFILE_FILE"}
_OTHER_PREFIXES = ("OPSMITH_STUDIO_", "OPSMITH_TEST_")


def config_file() -> Path:
    named = os.environ.get("OPSMITH_CONFIG")
    return Path(named) if named else Path(platformdirs.user_config_dir("opsmith", appauthor=False)) / "config.toml"


def get(**command_line: Any) -> Settings:
    """The settings in force; COMMAND_LINE values win unless they are None."""
    if unknown := set(command_line) - set(_KEYS):
        raise TypeError(f"not settings: {sorted(unknown)}")
    layers = [
        ("the command line", {k: v for k, v in command_line.items() if v is not None}),
        ("the environment", _from_environment()),
        (str(config_file()), _from_file(config_file())),
    ]
    values: dict[str, Any] = {"cache": Path(platformdirs.user_cache_dir("opsmith", appauthor=False))}
    sources: dict[str, str] = {}
    for key, check in _KEYS.items():
        for where, layer in layers:
            if key in layer:
                try:
                    values[key] = check(layer[key])
                except ValueError as error:
                    raise OpsmithError(f"{key} = {layer[key]!r} in {where}: expected {error}") from None
                sources[key] = where
                break
    return Settings(**values, sources=sources)


# kind, as `doctor --clean` names it -> the folders of the cache that hold it
CACHE_KINDS = {
    "kernels": ("objects", "regions", "provider", "zig"),  # compiled code
    "tuning": ("tuning",),  # what `compile --search` measured
    "pipelines": ("pipelines", "studio", "fleet"),  # compiled parts of pipelines, copies on nodes of a cluster
    "figures": ("machine", "traces", "logs"),  # the machine's peaks, profiles, build logs
}
CACHE_MARK = "CACHEDIR.TAG"  # the usual mark of a cache folder: backups skip it, `doctor --clean` trusts it


def cache_folder(name: str) -> Path:
    """The folder NAME inside the cache, made if it is not there."""
    root = get().cache
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    mark = root / CACHE_MARK
    if not mark.exists():
        mark.write_text("Signature: 8a477f597d28d172789f06886806bc55\n# Made by Opsmith.\n", encoding="utf-8")
    return folder


def _from_environment() -> dict[str, str]:
    values = {}
    for name, value in os.environ.items():
        if not name.startswith("OPSMITH_") or name in _OTHER_VARIABLES or name.startswith(_OTHER_PREFIXES):
            continue
        key = name.removeprefix("OPSMITH_").lower()
        if key not in _KEYS:
            known = [f"OPSMITH_{k.upper()}" for k in _KEYS]
            hint = f"{near(name, known, 0.0)}known: {', '.join(known)}"
            raise OpsmithError(f"unknown environment variable {name}", hint)
        values[key] = value
    return values


def _from_file(path: Path) -> dict[str, Any]:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        if os.environ.get("OPSMITH_CONFIG"):
            raise OpsmithError(f"OPSMITH_CONFIG names {path}, which does not exist") from None
        return {}
    except OSError as error:
        raise OpsmithError(f"{path} cannot be read: {error.strerror}") from error
    try:
        values: dict[str, Any] = tomllib.loads(text.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OpsmithError(f"{path} is not valid TOML: {error}") from error
    for key in values:
        if key not in _KEYS:
            raise OpsmithError(
                f"{path}: unknown key {key!r}", f"{near(key, list(_KEYS), 0.0)}known: {', '.join(_KEYS)}"
            )
    return values
