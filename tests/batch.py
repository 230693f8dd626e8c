"""Many models, one compiler run: for tests that compile hundreds of small graphs.

The steps are those of `opsmith.compiler.compile(regions="all")`, up to the C++ sources; those of all models together
become one file and one library, in which every region has a name of its own.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import subprocess
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from quick import FLAG

from opsmith.compiler import geometry
from opsmith.compiler.build import KERNELS, find_compiler
from opsmith.compiler.convert import Blob, replace_regions, save_converted, seal_weights, write_weights
from opsmith.compiler.cut import cut
from opsmith.compiler.emit import Form, Source, emit_instances, emit_region, emit_registration, instances
from opsmith.compiler.geometry import InstructionSet
from opsmith.compiler.lower import Target
from opsmith.compiler.plan import plan_memory
from opsmith.compiler.precision import FP32, Precision
from opsmith.compiler.source import load, prepare
from opsmith.errors import OpsmithError


@dataclasses.dataclass
class Built:
    """What became of one model."""

    name: str
    path: str = ""  # the compiled model; empty if it could not be compiled
    regions: int = 0
    left: list[tuple[str, str]] = dataclasses.field(default_factory=list)  # operator, reason: what stayed with ORT
    error: str = ""  # the compiler failed: a bug

    @property
    def native(self) -> bool:
        """Every node runs in a compiled region, and there is one."""
        return self.regions > 0 and not self.left and not self.error


@dataclasses.dataclass
class _Lowered:
    built: Built
    cut: Any  # opsmith.compiler.cut.Cut


def compile_batch(
    models: Sequence[tuple[str, bytes]],
    folder: Path,
    optimize: Sequence[str] = (FLAG,),
    isa: InstructionSet | None = None,
    precision: Precision = FP32,
    objects: Path | None = None,
) -> tuple[Path | None, list[Built]]:
    """Compile the models into `folder`; gives the library (None if nothing was compiled) and what became of each.

    OBJECTS is a folder in which kernels are kept from batch to batch, all with the same flags.
    """
    isa = isa or geometry.native()
    folder.mkdir(parents=True, exist_ok=True)
    results: list[Built] = []
    lowered: list[_Lowered] = []
    for i, (name, model) in enumerate(models):
        built = Built(name)
        results.append(built)
        try:
            pieces = _lower(model, f"m{i}_", Target(isa, precision=precision))
        except OpsmithError as error:
            built.error = f"{type(error).__name__}: {error}"
            continue
        except Exception:
            built.error = traceback.format_exc(limit=-4)
            continue
        reasons = {n.name: why for n, why in pieces.reasons.items()}
        built.left = [(n.op_type, reasons.get(n.name, "not chosen")) for n in pieces.left]
        built.regions = len(pieces.regions)
        lowered.append(_Lowered(built, pieces))
    library = _build(lowered, folder, _Builder(isa, tuple(optimize), objects))
    return library, results


def _lower(model: bytes, prefix: str, target: Target) -> Any:
    source = prepare(load(ir.from_proto(onnx.load_from_string(model))))
    pieces = cut(source, "all", target)
    for region, program in zip(pieces.regions, pieces.programs):
        region.name = program.name = prefix + region.name
    return pieces


def _build(lowered: list[_Lowered], folder: Path, builder: _Builder) -> Path | None:
    """Emit and build. Models whose C++ is refused are blamed, left out, and the rest is built again."""
    digest = hashlib.sha256(str(folder).encode() + "".join(x.built.name for x in lowered).encode()).hexdigest()[:12]
    domain = f"opsmith.batch{digest}"
    work = [(x, _convert(x, folder, domain)) for x in lowered]
    library = folder / f"lib{digest}.so"
    for _ in range(4):
        if not any(x.cut.programs for x, _ in work):
            return None
        complaint = builder.build(work, domain, library)
        if complaint is None:
            return library
        guilty = [(x, found) for x, _ in work if (found := _blame(x, complaint)) is not None]
        if not guilty:
            raise OpsmithError(f"the batch does not build: {complaint[:2000]}")
        for x, found in guilty:
            x.built.error = f"the C++ does not compile: {found}"
        work = [(x, blobs) for x, blobs in work if not x.built.error]
    raise OpsmithError(f"the batch does not build: {complaint[:2000]}")


def _blame(item: _Lowered, complaint: str) -> str | None:
    """The first error if one of the model's own source files is named in the compiler's output."""
    files = {f"{p.name}.cpp" for p in item.cut.programs} | {f"{i.name}.cpp" for i in instances(item.cut.programs)}
    named = set(re.findall(r"\w+\.cpp(?=:)", complaint))
    if not files & named:
        return None
    return next((line for line in complaint.splitlines() if "error" in line), "")


_Work = tuple[_Lowered, list[Blob]]


def _convert(item: _Lowered, folder: Path, domain: str) -> list[Blob]:
    """Write weights and the converted model. Lowering is done: the cut's programs are complete."""
    path = folder / f"{item.built.name}.onnx"
    data = folder / f"{item.built.name}.onnx.data"
    blobs = write_weights(item.cut.programs, data)
    seal_weights(data, blobs, domain)
    save_converted(replace_regions(item.cut.source, item.cut.regions, [blobs], domain, data), path, data)
    item.built.path = str(path)
    return blobs


@dataclasses.dataclass
class _Builder:
    isa: InstructionSet
    optimize: tuple[str, ...]
    objects: Path | None

    def build(self, work: Sequence[_Work], domain: str, library: Path) -> str | None:
        """The compiler's complaint, or None. Every kernel appears once, whichever models use it."""
        programs = [p for x, _ in work for p in x.cut.programs]
        header, *kernels = emit_instances(instances(programs))
        regions = [emit_region(p, plan_memory(p)) for p in programs]
        blobs = [b for _, some in work for b in some]
        cut_out = [r for x, _ in work for r in x.cut.regions]
        regions.append(emit_registration(domain, cut_out, [Form(programs, blobs)]))
        if self.objects is None:
            return self._compile([header, *kernels, *regions], [], library)
        kept = self._kept()
        new = [k for k in kernels if k.name not in kept]
        if new:
            made = self.objects / f"{library.stem}.o"
            if complaint := self._compile([header, *new], ["-c"], made):
                return complaint
            made.with_suffix(".names").write_text("\n".join(k.name for k in new), encoding="utf-8")
            kept |= dict.fromkeys((k.name for k in new), made)
        used = sorted({str(kept[k.name]) for k in kernels})
        return self._compile([header, *regions], [*used, "-Wl,--gc-sections"], library)

    def _kept(self) -> dict[str, Path]:
        assert self.objects is not None
        lists = sorted(self.objects.glob("*.names"))
        return {name: names.with_suffix(".o") for names in lists for name in names.read_text("utf-8").splitlines()}

    def _compile(self, sources: Sequence[Source], extra: Sequence[str], target: Path) -> str | None:
        """One C++ file for all of them."""
        text = "\n".join(
            f'#line 1 "{s.name}"\n' + re.sub(r'#include "instances.hpp"|#pragma once', "", s.text) for s in sources
        )
        source = target.with_suffix(".cpp")
        source.write_text(text, encoding="utf-8")
        tool = find_compiler()
        flags = [f for f in tool.flags(self.isa) if not f.startswith("-O")]
        command = [*tool.command, *flags, *self.optimize, "-ffunction-sections", f"-I{KERNELS}", str(source), *extra]
        command += ["-o", str(target)]
        command += [] if "-c" in extra else ["-shared", "-Wl,-z,nodelete", "-lm"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        return None if result.returncode == 0 else result.stderr
