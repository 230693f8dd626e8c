"""The compiler driver: C++ files in, one shared library out, through a content-addressed cache.

The key of an object file is its source, the kernel headers, the flags, the compiler's version and the CPU's features; the same
model on the same machine is therefore built once, and kernels are shared between models.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from opsmith import machine, settings
from opsmith.compiler import geometry
from opsmith.compiler.emit import Source
from opsmith.compiler.geometry import InstructionSet
from opsmith.errors import OpsmithError
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
LINK_FLAGS = (
    "-shared",
    "-Wl,-z,nodelete",  # ORT may unload the library while its threads still hold code addresses
)


@dataclasses.dataclass(frozen=True)
class Compiler:
    command: tuple[str, ...]
    name: str  # "g++", "clang++" or "zig"
    version: str

    def compile_command(self, source: Path, target: Path, includes: Sequence[Path], isa: InstructionSet) -> list[str]:
        inputs = [*(f"-I{i}" for i in includes), "-c", str(source), "-o", str(target)]
        return [*self.command, *self.flags(isa), *inputs]

    def flags(self, isa: InstructionSet) -> list[str]:
        flags = [*FLAGS, *machine_flags(isa)]
        if self.name == "zig":
            flags += ["-x", "c++", "-fno-sanitize=all"]  # zig turns UBSan traps on by default
        return flags

    def link_command(self, objects: Sequence[Path], target: Path) -> list[str]:
        # The C driver links no C++ runtime: the library needs nothing but libc and libm.
        command = [c.replace("g++", "gcc") if self.name == "g++" else c for c in self.command]
        if self.name == "clang++":
            command = [*self.command, "-nostdlib++"]
        if self.name == "zig":
            command = [*self.command, "-nostdlib++"]
        return [*command, *LINK_FLAGS, *(str(o) for o in objects), "-o", str(target), "-lm"]


def machine_flags(isa: InstructionSet) -> list[str]:
    return [*(["-march=native"] if isa == geometry.native() else isa.flags), isa.choice]


def write_buildable(sources: Sequence[Source], folder: Path, library: Path, isa: InstructionSet) -> None:
    """Write the sources, the kernel headers that they include, and a script that builds LIBRARY from them."""
    folder.mkdir(parents=True, exist_ok=True)
    for source in sources:
        (folder / source.name).write_text(source.text, encoding="utf-8")
    shutil.copytree(KERNELS, folder / "kernels", ignore=lambda _, names: [n for n in names if not n.endswith(".hpp")])
    script = folder / BUILD_SCRIPT
    script.write_text(
        _SCRIPT.format(
            library=library.name,
            flags=shlex.join((*FLAGS, *machine_flags(isa))),
            link=" ".join(LINK_FLAGS),
            files=" ".join(source.name for source in sources if source.compiled),
        ),
        encoding="utf-8",
    )
    script.chmod(0o755)


BUILD_SCRIPT = "build.sh"
_SCRIPT = """#!/bin/sh
# Builds ../{library}, which ../opsmith.json names. With clang: CXX=clang++ CC=clang sh build.sh
set -e
cd "$(dirname "$0")"
objects=$(mktemp -d)
trap 'rm -rf "$objects"' EXIT
for file in {files}; do
  "${{CXX:-g++}}" {flags} -Ikernels -I. -c "$file" -o "$objects/${{file%.cpp}}.o"
done
"${{CC:-gcc}}" {link} "$objects"/*.o -o "../{library}" -lm
"""


def find_compiler(wanted: str | None = None) -> Compiler:
    """g++, clang++, then zig from PyPI; `wanted` or the user's settings name one."""
    wanted = settings.get(compiler=wanted).compiler
    for name in [wanted] if wanted else ["g++", "clang++", "zig"]:
        found = _compiler(name)
        if found is not None:
            return found
    if wanted:
        raise OpsmithError(
            f"the C++ compiler {wanted!r} was not found", "name another, or none to take the first one found"
        )
    raise OpsmithError("no C++ compiler was found", 'install g++ or clang++, or run: pip install ".[toolchain]"')


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


@functools.cache
def headers_digest() -> str:
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
    for source in sources:
        (folder / source.name).write_text(source.text, encoding="utf-8")
    shared = "".join(s.text for s in sources if not s.compiled and s.name != "instances.hpp")
    declared = "".join(s.text for s in sources if s.name == "instances.hpp")
    cache = settings.cache_folder("objects")
    sweep_files(cache, "*.*.o")
    objects: list[Path] = []
    todo: list[tuple[Source, Path]] = []
    for source in (s for s in sources if s.compiled):
        text = source.text + shared + (declared if "instances.hpp" in source.text else "")
        target = cache / f"{_key(text, compiler, isa)}.o"
        objects.append(target)
        if not _is_whole(target):
            todo.append((source, target))
    # The largest files first, so that the last one to finish is a small one.
    todo.sort(key=lambda t: -len(t[0].text))
    with concurrent.futures.ThreadPoolExecutor(jobs or machine.cores()) as pool:
        futures = {pool.submit(_compile, compiler, folder / s.name, target, folder, isa): s for s, target in todo}
        try:
            for future in concurrent.futures.as_completed(futures):
                future.result()
                on_step(futures[future].name)
        except BaseException:
            for future in futures:
                future.cancel()
            raise
    _run(compiler.link_command(objects, library), compiler, "link the library")
    return library


def _key(text: str, compiler: Compiler, isa: InstructionSet) -> str:
    parts = [
        text,
        headers_digest(),
        " ".join(compiler.flags(isa)),
        compiler.name,
        compiler.version,
        *sorted(machine.cpu_features()),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]


def _compile(compiler: Compiler, source: Path, target: Path, folder: Path, isa: InstructionSet) -> None:
    temporary = target.with_name(f"{target.stem}.{os.getpid()}.o")  # swept if this process is killed
    try:
        _run(compiler.compile_command(source, temporary, [KERNELS, folder], isa), compiler, f"compile {source.name}")
        _sum_of(target).write_text(hashlib.sha256(temporary.read_bytes()).hexdigest(), encoding="ascii")
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _sum_of(target: Path) -> Path:
    return target.with_suffix(".sha256")


def _is_whole(target: Path) -> bool:
    """Whether the cache has this object, byte for byte as the compiler wrote it: a full disk or a crash may have cut it."""
    try:
        return _sum_of(target).read_text(encoding="ascii") == hashlib.sha256(target.read_bytes()).hexdigest()
    except (OSError, UnicodeDecodeError):
        return False


def _run(command: list[str], compiler: Compiler, what: str) -> None:
    environment = dict(os.environ)
    if compiler.name == "zig":
        for variable in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"):
            environment.setdefault(variable, str(settings.cache_folder("zig")))
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if result.returncode != 0:
        log = settings.cache_folder("logs") / "build.log"
        log.write_text(" ".join(command) + "\n" + result.stderr, encoding="utf-8")
        first = next((line for line in result.stderr.splitlines() if "error" in line), result.stderr[:200])
        raise OpsmithError(f"{compiler.name} could not {what}: {first.strip()}", f"the whole log is in {log}")
