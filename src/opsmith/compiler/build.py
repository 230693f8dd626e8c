"""The compiler driver: C++ files in, one shared library out, through a content-addressed cache.

The key of an object file is its source, the kernel headers that it includes, the flags, the compiler's version and the CPU's
features; the same model on the same machine is therefore built once, and kernels are shared between models.
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import functools
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from opsmith import machine, settings
from opsmith.compiler import geometry
from opsmith.compiler.emit import NAMESPACE, Source
from opsmith.compiler.geometry import InstructionSet
from opsmith.compiler.system import System, here
from opsmith.errors import DoesNotCompile, OpsmithError
from opsmith.store import sweep_files

KERNELS = Path(__file__).parent.parent / "kernels"

FLAGS = (
    "-std=c++20",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",  # only RegisterCustomOps is exported: two libraries in one process cannot mix
    "-fno-exceptions",  # errors are ORT statuses; no unwinding tables
    "-fno-rtti",
    "-fno-math-errno",  # sqrt and friends become instructions
    "-fno-trapping-math",  # lets comparisons and conversions be vectorised; no result changes
    "-fwrapv",  # integer overflow wraps as ONNX integers do, instead of being undefined
    "-ffp-contract=fast",  # a * b + c as one FMA
    "-Wall",
)
# ORT may unload the library while its threads still hold code addresses. On Windows it pins itself: platform.hpp.
LINK_FLAGS = {"linux": ("-shared", "-Wl,-z,nodelete"), "windows": ("-shared", "-nostdlib", "-s"), "macos": ("-shared",)}
LIBRARIES = {"linux": ("-lm",), "windows": ("-lkernel32", "-lucrtbase"), "macos": ()}


@dataclasses.dataclass(frozen=True)
class Compiler:
    command: tuple[str, ...]
    name: str  # "g++", "clang++" or "zig"
    version: str
    system: System = dataclasses.field(default_factory=here)  # that it builds for

    def compile_command(self, source: Path, target: Path, includes: Sequence[Path], flags: Sequence[str]) -> list[str]:
        inputs = [*(f"-I{i}" for i in includes), "-c", str(source), "-o", str(target)]
        return [*self.command, *flags, *inputs]

    def flags(self, isa: InstructionSet, namespace: str = NAMESPACE) -> list[str]:
        flags = own_flags(isa, namespace, self.system)
        if self.name == "zig":  # it writes x86-64-v3 as x86_64_v3
            flags = [f"-march={f[7:].replace('-', '_')}" if f.startswith("-march=") else f for f in flags]
        if self.name == "zig":
            flags += ["-x", "c++", "-fno-sanitize=all"]  # zig turns UBSan traps on by default
        return [*flags, *self._target]

    @property
    def _target(self) -> list[str]:
        return ["-target", self.system.triple] if self.name == "zig" and self.system != here() else []

    def link_command(self, objects: Sequence[Path], target: Path) -> list[str]:
        # The C driver links no C++ runtime: the library needs nothing but libc and libm.
        command = [c.replace("g++", "gcc") if self.name == "g++" else c for c in self.command]
        if self.name == "clang++":
            command = [*self.command, "-nostdlib++"]
        if self.name == "zig":
            command = [*self.command, "-nostdlib++"]
        flags = [*LINK_FLAGS[self.system.name], *self._target]
        return [*command, *flags, *(str(o) for o in objects), "-o", str(target), *LIBRARIES[self.system.name]]


def own_flags(isa: InstructionSet, namespace: str, system: System) -> list[str]:
    """Those that every compiler takes."""
    common = [f for f in FLAGS if f != "-fPIC" or system.name != "windows"]
    flags = [*common, *(["-march=native"] if isa == geometry.native() else isa.flags), isa.choice]
    return flags + ([f"-D{NAMESPACE}={namespace}"] if namespace != NAMESPACE else [])


def write_buildable(sources: Sequence[Source], folder: Path, library: Path, isa: InstructionSet) -> None:
    """Write the sources, the kernel headers that they include, and a script that builds LIBRARY from them."""
    write_sources(sources, folder)
    shutil.copytree(KERNELS, folder / "kernels", ignore=lambda _, names: [n for n in names if not n.endswith(".hpp")])
    files: dict[str, list[str]] = {}
    for source in (s for s in sources if s.compiled):
        files.setdefault(shlex.join(own_flags(source.isa or isa, source.namespace, here())), []).append(source.name)
    compiled = [_LOOP.format(files=" ".join(names), flags=flags) for flags, names in files.items()]
    script = folder / BUILD_SCRIPT
    link = " ".join(LINK_FLAGS[here().name])
    text = _SCRIPT.format(library=library.name, compiled="".join(compiled), link=link)
    script.write_text(text, encoding="utf-8")
    script.chmod(0o755)


BUILD_SCRIPT = "build.sh"
_LOOP = """for file in {files}; do
  "${{CXX:-g++}}" {flags} -Ikernels -c "$file" -o "$objects/$(echo "$file" | tr / _).o"
done
"""
_SCRIPT = """#!/bin/sh
# Builds ../{library}, which ../opsmith.json names. With clang: CXX=clang++ CC=clang sh build.sh
set -e
cd "$(dirname "$0")"
objects=$(mktemp -d)
trap 'rm -rf "$objects"' EXIT
{compiled}"${{CC:-gcc}}" {link} "$objects"/*.o -o "../{library}" -lm
"""


def find_compiler(wanted: str | None = None, system: System | None = None) -> Compiler:
    """g++, clang++, then zig from PyPI; `wanted` or the user's settings name one. SYSTEM: to build for, None is this one."""
    if system is not None and system != here():
        return _cross_compiler(wanted, system)
    wanted = settings.get(compiler=wanted).compiler
    for name in [wanted] if wanted else ["g++", "clang++", "zig"]:
        compiler = _compiler(name)
        if compiler is not None:
            return compiler
    if wanted:
        raise OpsmithError(
            f"the C++ compiler {wanted!r} was not found", "name another, or none to take the first one found"
        )
    raise OpsmithError("no C++ compiler was found", 'install g++ or clang++, or run: pip install ".[toolchain]"')


def _cross_compiler(wanted: str | None, system: System) -> Compiler:
    """zig; for another architecture of Linux also the g++ of that name."""
    gnu = f"{system.architecture}-linux-gnu-g++"
    names = [gnu] if system.name == "linux" and system.glibc is None else []
    for name in [wanted] if wanted else [*names, "zig"]:
        if name not in (gnu, "zig"):
            raise OpsmithError(f"{name} is not used to build for {system}", "leave out --compiler, or name zig")
        if (compiler := _compiler(name)) is not None:
            return dataclasses.replace(compiler, system=system)
    raise OpsmithError(f"there is no compiler here that builds for {system}", 'pip install ".[toolchain]" brings zig')


@functools.cache
def _compiler(name: str) -> Compiler | None:
    if name == "zig":
        if importlib.util.find_spec("ziglang") is None:
            return None
        command: tuple[str, ...] = (sys.executable, "-m", "ziglang", "c++")
        version_command = [sys.executable, "-m", "ziglang", "version"]
    else:
        path = shutil.which(name)
        if path is None:
            return None
        command = (path,)
        version_command = [path, "--version"]
    result = subprocess.run(version_command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        return None
    kind = "clang++" if "clang" in Path(name).name else "zig" if name == "zig" else "g++"
    return Compiler(command, kind, result.stdout.splitlines()[0].strip())


_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def included(text: str, isa: InstructionSet) -> dict[str, str]:
    """The kernel headers that a source includes, also through each other, with their text."""
    headers: dict[str, str] = {}
    todo = [isa.header, *_INCLUDE.findall(text)]
    while todo:
        name = todo.pop()
        if name not in headers and (path := KERNELS / name).exists():
            headers[name] = _header(path)
            todo += _INCLUDE.findall(headers[name])
    return headers


@functools.cache
def _header(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@functools.cache
def headers_digest() -> str:
    """A hash of all kernel headers."""
    digest = hashlib.sha256()
    for header in sorted(KERNELS.glob("*.hpp")):
        digest.update(header.name.encode() + header.read_bytes())
    return digest.hexdigest()


def build(
    sources: Sequence[Source],
    folder: Path,
    library: Path,
    *,
    compiler: Compiler | None = None,
    isa: InstructionSet | None = None,
    on_step: Callable[[str], None] = lambda _: None,
    jobs: int | None = None,
) -> Path:
    """Write the sources to `folder`, compile what the cache does not have, link `library`. `isa` None: this CPU's best."""
    compiler = compiler or find_compiler()
    isa = isa or geometry.native()
    folder.mkdir(parents=True, exist_ok=True)
    write_sources(sources, folder)
    cache = settings.cache_folder("objects")
    sweep_files(cache, "*.*.o")
    objects: list[Path] = []
    todo: list[_Job] = []
    for source in (s for s in sources if s.compiled):
        own = source.isa or isa
        flags = tuple(compiler.flags(own, source.namespace))
        target = cache / f"{_key(_with_headers(source, sources), compiler, own, flags)}.o"
        objects.append(target)
        if not _is_whole(target):
            todo.append(_Job(source, target, flags))
    # What includes most first, so that the last one to finish is a small one.
    todo.sort(key=lambda j: -len(j.source.text) - sum(map(len, included(j.source.text, j.source.isa or isa).values())))
    _compile_all(todo, folder, compiler, jobs or machine.cores(), on_step)
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:  # for Windows linkers leave more than the library
        linked = Path(scratch) / library.name
        _run(compiler.link_command(objects, linked), compiler, "link the library")
        linked.replace(library)
    return library


class _Job(NamedTuple):
    """A source file to compile."""

    source: Source
    target: Path
    flags: tuple[str, ...]


def _compile_all(
    todo: Sequence[_Job], folder: Path, compiler: Compiler, cores: int, on_step: Callable[[str], None]
) -> None:
    """Compile the sources in FOLDER, in this order; DoesNotCompile names all files that the compiler refuses."""
    alike = collections.Counter(job.flags for job in todo)
    with concurrent.futures.ThreadPoolExecutor(cores) as pool:
        # Meanwhile the other cores begin with the largest files, without it.
        parsed = {flags: pool.submit(_parsed_headers, compiler, flags, files) for flags, files in alike.items()}
        futures = {
            pool.submit(_compile_with, parsed[flags], compiler, folder / source.name, target, flags): source
            for source, target, flags in todo
        }
        refused: list[DoesNotCompile] = []
        try:
            for future in concurrent.futures.as_completed(futures):
                try:
                    future.result()
                except DoesNotCompile as error:
                    refused.append(error)
                on_step(futures[future].name)
        except BaseException:
            for future in futures:
                future.cancel()
            raise
    if refused:
        first = refused[0]
        raise DoesNotCompile(first.message, first.hint or "", frozenset().union(*(error.files for error in refused)))


FILES_WORTH_PARSING_ONCE = 6  # parsing takes 1.9 s and saves 0.4 s of the 0.9 to 1.2 s of a file (Zen 4, g++ 12)
PARSED_KEPT = 4  # of 55 MB each


def _parsed_headers(compiler: Compiler, flags: Sequence[str], files: int) -> list[str]:
    """Flags with which a file begins with all kernel headers, parsed once for all files with the same FLAGS (g++'s precompiled
    header, in the cache). What the compiler cannot use, it parses as text: slower, never different."""
    if compiler.name != "g++":
        return []
    cache = settings.cache_folder("objects")
    parts = [headers_digest(), *flags, compiler.version, *sorted(machine.cpu_features())]
    header = cache / f"{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:40]}.hpp"
    parsed = header.with_suffix(".hpp.gch")
    if not _is_whole(parsed):
        if files < FILES_WORTH_PARSING_ONCE:
            return []
        sweep_files(cache, "*.*.gch")
        optional = ("simd_", "windows_")  # those that are included only for some machines
        names = [p.name for p in sorted(KERNELS.glob("*.hpp")) if not p.name.startswith(optional)]
        own = header.with_suffix(f".{os.getpid()}.hpp")
        own.write_text("".join(f'#include "{name}"\n' for name in names), encoding="utf-8")
        own.replace(header)
        _compile(compiler, header, parsed, [*flags, "-x", "c++-header"])
        for old in sorted(cache.glob("*.hpp.gch"), key=lambda p: p.stat().st_mtime)[:-PARSED_KEPT]:
            old.unlink(missing_ok=True)
    else:
        os.utime(parsed)  # the least recently used goes first
    return ["-include", str(header)]


def write_sources(sources: Sequence[Source], folder: Path) -> None:
    for source in sources:
        path = folder / source.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source.text, encoding="utf-8")


def _with_headers(source: Source, sources: Sequence[Source]) -> str:
    """The text of a source and of the headers in its folder that it may include."""
    home = Path(source.name).parent
    headers = [s for s in sources if not s.compiled and Path(s.name).parent == home]
    own = [s.text for s in headers if Path(s.name).name != "instances.hpp" or "instances.hpp" in source.text]
    return source.text + "".join(own)


def _key(text: str, compiler: Compiler, isa: InstructionSet, flags: Sequence[str]) -> str:
    parts = [
        text,
        *(f"{name}\n{header}" for name, header in sorted(included(text, isa).items())),
        " ".join(flags),
        compiler.name,
        compiler.version,
        *sorted(machine.cpu_features()),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]


def _compile(compiler: Compiler, source: Path, target: Path, flags: Sequence[str]) -> None:
    temporary = target.with_name(f"{target.stem}.{os.getpid()}{target.suffix}")  # swept if this process is killed
    try:
        command = compiler.compile_command(source, temporary, [KERNELS], flags)
        _run(command, compiler, f"compile {source.name}", source)
        _sum_of(target).write_text(hashlib.sha256(temporary.read_bytes()).hexdigest(), encoding="ascii")
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _compile_with(
    parsed: concurrent.futures.Future[list[str]], compiler: Compiler, source: Path, target: Path, flags: Sequence[str]
) -> None:
    """Compile a file, starting from the PARSED headers if they are there by now. The object is the same, byte for byte."""
    _compile(compiler, source, target, [*flags, *(parsed.result() if parsed.done() else ())])


def _sum_of(target: Path) -> Path:
    return target.with_suffix(".sha256")


def _is_whole(target: Path) -> bool:
    """Whether the cache has this object, byte for byte as the compiler wrote it: a full disk or a crash may have cut it."""
    try:
        return _sum_of(target).read_text(encoding="ascii") == hashlib.sha256(target.read_bytes()).hexdigest()
    except (OSError, UnicodeDecodeError):
        return False


def _run(command: list[str], compiler: Compiler, what: str, source: Path | None = None) -> None:
    """SOURCE: the file that the compiler reads, if it may find fault with it."""
    environment = dict(os.environ)
    if compiler.name == "zig":
        for variable in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"):
            environment.setdefault(variable, str(settings.cache_folder("zig")))
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if result.returncode != 0:
        log = settings.cache_folder("logs") / "build.log"
        log.write_text(" ".join(command) + "\n" + result.stderr, encoding="utf-8")
        first = next((line for line in result.stderr.splitlines() if "error" in line), result.stderr[:200])
        said = f"{compiler.name} could not {what}: {first.strip()}", f"the whole log is in {log}"
        if source is not None and source.name in first:
            raise DoesNotCompile(*said, frozenset([source.stem]))
        raise OpsmithError(*said)
