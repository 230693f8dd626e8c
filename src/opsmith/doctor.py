"""What this machine can do with Opsmith, and what to install where something is missing."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import onnxruntime as ort

from opsmith import machine, settings, starter
from opsmith._version import __version__
from opsmith.errors import OpsmithError, no_such


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the report. `advice` says what to do, and is there only if something is missing."""

    topic: str
    name: str
    value: str
    ok: bool | None = True  # None: absent, and not needed
    advice: str | None = None


@dataclasses.dataclass(frozen=True)
class CacheInfo:
    path: Path
    files: int
    size: int

    def __str__(self) -> str:
        return f"{self.files} {'file' if self.files == 1 else 'files'}, {self.size / 1e6:.1f} MB"


# extra -> the packages it brings and what they are for
EXTRAS = {
    "export": (("torch", "transformers", "diffusers", "accelerate"), "export models from Hugging Face"),
    "studio": (("fastapi", "uvicorn", "multipart"), "run the studio and the server"),
    "view": (("netron",), "look at graphs"),
    "toolchain": (("ziglang",), "compile without g++ or clang++"),
}


def doctor() -> list[Finding]:
    return [*_machine(), *_compilers(), *_runtime(), *_settings(), *_extras(), _starter()]


def _machine() -> list[Finding]:
    features = machine.cpu_features()
    vectors = bool({"avx2", "asimd"} & features)
    slow = "kernels fall back to narrow vectors: expect little or no speed-up"
    memory = machine.memory_bytes()
    return [
        Finding("machine", "CPU", machine.cpu_name()),
        Finding("machine", "vectors", " ".join(sorted(features)) or "none known", vectors, None if vectors else slow),
        Finding("machine", "products", _products(features)),
        Finding("machine", "cores", str(machine.cores())),
        Finding("machine", "memory", f"{memory / 2**30:.1f} GiB" if memory else "unknown"),
        Finding("machine", "Python", sys.version.split()[0]),
    ]


def _products(features: frozenset[str]) -> str:
    """What matrices are multiplied in, and by which instructions."""
    bf16 = next(
        (f for f in ("amx_bf16", "avx512_bf16", "bf16") if f in features), "weights stored so, computed in fp32"
    )
    int8 = next((f for f in ("amx_int8", "avx512_vnni", "asimddp") if f in features), "as products of 16 bits")
    return f"fp32; bf16 ({bf16}); int8 ({int8})"


def _compilers() -> list[Finding]:
    findings: list[Finding] = []
    usable = False
    for name in ("g++", "clang++"):
        path = shutil.which(name)
        version = _version([path, "--version"]) if path else None
        usable = usable or version is not None
        findings.append(Finding("compiler", name, version or "not on PATH", True if version else None))
    zig = importlib.util.find_spec("ziglang") is not None
    zig_version = _version([sys.executable, "-m", "ziglang", "version"]) if zig else None
    usable = usable or zig_version is not None
    findings.append(Finding("compiler", "zig", zig_version or "not installed", True if zig_version else None))
    if not usable:
        advice = 'install g++ or clang++, or: pip install ".[toolchain]"'
        findings.append(Finding("compiler", "any", "none: models can be rewritten but not compiled", False, advice))
    return findings


def _version(command: list[str]) -> str | None:
    """The first line that a compiler says about itself; None if it does not run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return (done.stdout.strip().splitlines() or ["?"])[0]


def _runtime() -> list[Finding]:
    version = tuple(int(part) for part in ort.__version__.split(".")[:2])
    enough = version >= (1, 24)
    return [
        Finding("runtime", "opsmith", __version__),
        Finding(
            "runtime", "onnxruntime", ort.__version__, enough, None if enough else 'pip install "onnxruntime>=1.24"'
        ),
        Finding("runtime", "providers", ", ".join(ort.get_available_providers())),
        *(Finding("runtime", name, importlib.metadata.version(name)) for name in ("onnx", "onnx-ir", "onnxscript")),
    ]


def _settings() -> list[Finding]:
    file = settings.config_file()
    try:
        current = settings.get()
    except OpsmithError as error:
        return [Finding("settings", "file", str(file), False, str(error))]
    values = {
        "cache": str(current.cache),
        "threads": str(current.threads or f"all ({machine.cores()})"),
        "search": str(current.search),
        "precision": current.precision,
        "compiler": current.compiler or "the first one found",
    }
    findings = [Finding("settings", "file", str(file) if file.exists() else f"{file} (none)")]
    for key, value in values.items():
        findings.append(Finding("settings", key, f"{value}, from {current.sources.get(key, 'the defaults')}"))
    return [*findings, *_cache(current.cache)]


def _cache(root: Path) -> list[Finding]:
    """The cache and what it holds, by kind."""
    findings = []
    for kind in settings.CACHE_KINDS:
        info = _kind_info(root, kind)
        if info.files:
            findings.append(Finding("cache", kind, f"{info}; --clean {kind} removes them"))
    return [*findings, Finding("cache", "in all", f"{cache_info(root)}; --clean all empties it")]


def _extras() -> list[Finding]:
    findings = []
    for extra, (modules, purpose) in EXTRAS.items():
        missing = [name for name in modules if importlib.util.find_spec(name) is None]
        spare = extra == "toolchain" and bool(shutil.which("g++") or shutil.which("clang++"))
        value = f"to {purpose}: {'installed' if not missing else 'lacks ' + ', '.join(missing)}"
        advice = f'pip install ".[{extra}]"' if missing and not spare else None
        findings.append(Finding("extras", extra, value, None if missing else True, advice))
    return findings


def _starter() -> Finding:
    """The starter models are a package of their own."""
    try:
        return Finding("extras", "starter", f"models to try things with: in {starter.folder('pictures').parent}")
    except OpsmithError as error:
        return Finding("extras", "starter", "models to try things with: not installed", None, error.hint)


# --- the cache --------------------------------------------------------------------------------------------


def cache_info(path: Path) -> CacheInfo:
    files = [f for f in _walk(path) if not f.is_dir()]
    return CacheInfo(path, len(files), sum(f.lstat().st_size for f in files))


def _kind_info(root: Path, kind: str) -> CacheInfo:
    parts = [cache_info(root / name) for name in settings.CACHE_KINDS[kind]]
    return CacheInfo(root, sum(p.files for p in parts), sum(p.size for p in parts))


def clean_cache(kind: str = "all") -> CacheInfo:
    """Remove KIND (a key of CACHE_KINDS, or all) from the cache and say what it was. Only Opsmith's own entries go, links
    are not followed."""
    if kind != "all" and kind not in settings.CACHE_KINDS:
        raise no_such("kind of cached files", kind, ("all", *settings.CACHE_KINDS))
    path = settings.get().cache
    info = cache_info(path) if kind == "all" else _kind_info(path, kind)
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise OpsmithError(f"the cache {path} is not a folder of its own; it was left alone")
    if info.files and path.name != "opsmith" and not (path / settings.CACHE_MARK).exists():
        raise OpsmithError(f"{path} does not look like Opsmith's cache; it was left alone", "empty it by hand")
    if path.exists():
        for folder in [path] if kind == "all" else [path / name for name in settings.CACHE_KINDS[kind]]:
            if folder.is_symlink():
                folder.unlink()
            elif folder.exists():
                shutil.rmtree(folder)
    return info


def _walk(path: Path) -> list[Path]:
    paths: list[Path] = []
    for folder, folders, files in os.walk(path):
        paths += [Path(folder) / name for name in (*folders, *files)]
    return paths
