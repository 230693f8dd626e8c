"""The folder that the provider reads, `model.onnx.opsmith` or one in the cache: a model's compiled regions and their manifest.

folder.hpp says what the manifest holds.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from os import getpid
from pathlib import Path

from opsmith import model_checks, settings, store
from opsmith.check.feed import Given
from opsmith.compiler import CompileResult, compile
from opsmith.compiler.geometry import NATIVE, architecture, best_first
from opsmith.compiler.system import find_system
from opsmith.errors import OpsmithError
from opsmith.provider.native import digest, library
from opsmith.provider.rest import rest
from opsmith.store import PathLike

MANIFEST, WEIGHTS = "manifest", "weights"
VERSION_LINE = "opsmith regions 2"
PROVIDER = "libopsmith_provider.so"  # a copy, for hosts without Python


def sidecar(model: Path) -> Path:
    return model.with_name(f"{model.name}.opsmith")


def cached(model: Path) -> Path:
    """Where the provider looks if there is no folder beside the model."""
    return settings.cache_folder("regions") / digest(model)


def compile_ep(
    src: PathLike,
    *,
    cache: bool = False,
    regions: str = "auto",
    search: int | None = None,
    strict: bool = False,
    inputs: Given | None = None,
    verify: bool = True,
    compiler: str | None = None,
    precision: str | None = None,
    max_error: float | None = None,
    cpu: str = NATIVE,
    os: str | None = None,
    glibc: str | None = None,
) -> CompileResult:
    """Compile SRC for the execution provider; the model file stays as it is. Options are those of `compile`.

    The folder goes beside the model, or with CACHE into the cache of this machine. CPU: what to compile for, several separated by
    commas; the provider takes the best that the machine it runs on can run.
    """
    model = store.find_model(src)
    system = find_system(os, glibc, set(map(architecture, best_first(cpu))))
    if system.name != "linux":
        raise OpsmithError(f"the execution provider cannot be built for {system.name} yet", "compile without --ep")
    with new_folder(cached(model) if cache else sidecar(model)) as scratch:
        results = [
            compile(
                model,
                scratch / "compiled" / name,
                regions=regions,
                search=search,
                strict=strict,
                inputs=inputs,
                verify=verify,
                compiler=compiler,
                precision=precision,
                max_error=max_error,
                cpu=name,
                os=os,
                glibc=glibc,
            )
            for name in best_first(cpu)
        ]
        _arrange(scratch, [r.variant.path for r in results if r.variant is not None], model, library(compiler, system))
    for result in results[1:]:
        results[0].remarks += [r for r in result.remarks if r not in results[0].remarks]
    results[0].variant = None
    return results[0]


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder that takes the place of TARGET once it is written."""
    if target.exists() and not (target / MANIFEST).exists() and any(target.iterdir()):
        raise OpsmithError(f"{target} exists and is not a folder of compiled regions; it was left alone")
    store.sweep(target.parent)
    prefix = f".{target.name}.{getpid()}."
    scratch = Path(tempfile.mkdtemp(prefix=prefix, suffix=".tmp", dir=target.absolute().parent))
    scratch.chmod(0o755)
    try:
        yield scratch
        store.replace(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def found(model: Path) -> Path | None:
    """The folder of this model's regions, where the provider looks for it."""
    return next((folder for folder in (sidecar(model), cached(model)) if is_whole(folder, model)), None)


def is_whole(folder: Path, model: Path) -> bool:
    """Whether FOLDER is there and was compiled for exactly this model."""
    with contextlib.suppress(OSError):
        rows = (folder / MANIFEST).read_text(encoding="utf-8").splitlines()
        return rows[: 1 + len(identity(model))] == [VERSION_LINE, *identity(model)]
    return False


def identity(model: Path) -> list[str]:
    """The rows of the manifest that name the model by its content."""
    home = model.resolve().parent
    data = [f"data {digest(f)} {f.relative_to(home).as_posix()}" for f in sorted(model_checks.external_files(model))]
    return [f"model {digest(model)}", *data]


def _arrange(folder: Path, variants: Sequence[Path], model: Path, provider: Path) -> None:
    """What `compile` wrote, once for each CPU, becomes the folder of the provider."""
    rows = [VERSION_LINE, *identity(model)]
    for compiled in variants:
        facts, options = (store.read_record(compiled).get(k) or {} for k in ("compiled", "options"))
        if not facts.get("library"):  # nothing was worth compiling for this CPU
            continue
        cpu = options.get("cpu", NATIVE)
        suffix = "" if len(variants) == 1 else f".{cpu}"
        name = f"lib{model.stem}_{Path(facts['library']).stem.rsplit('_', 1)[1]}{suffix}.so"
        shutil.move(compiled.parent / facts["library"], folder / name)
        rows += [f"target {cpu}", f"features {' '.join(facts['cpu_features'])}"]
        rows.append(f"library {digest(folder / name)} {name}")
        rows.append(f"rest {rest(store.open_model(compiled), facts['domain'])}")
        if size := packed_bytes(compiled):
            data = compiled.with_name(f"{compiled.name}.data")
            with data.open("r+b") as file:
                file.truncate(size)  # behind the packed weights follow those that stay with ONNX Runtime
            shutil.move(data, folder / f"{WEIGHTS}{suffix}")
            rows.append(f"weights {size} {WEIGHTS}{suffix}")
        for kept in ("src", store.RECORD):
            if (compiled.parent / kept).exists():
                shutil.move(compiled.parent / kept, folder / f"{Path(kept).stem}{suffix}{Path(kept).suffix}")
    shutil.rmtree(folder / "compiled")
    shutil.copyfile(provider, folder / PROVIDER)
    (folder / MANIFEST).write_text("\n".join(rows) + "\n", encoding="utf-8")


def packed_bytes(compiled: Path) -> int:
    """Where the packed weights of a compiled model end in its data file."""
    ends = [0]
    for tensor in model_checks.tensors(store.read_proto(compiled)):  # those of bodies too
        entries = {e.key: e.value for e in tensor.external_data}
        if tensor.name.endswith(".weights") and "offset" in entries:
            ends.append(int(entries["offset"]) + int(entries["length"]))
    return max(ends)
