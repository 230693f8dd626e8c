"""`opsmith weights`: another checkpoint of the same structure in a compiled variant. Only its weights are packed; the library and its
source stay as they are.

    new weights   an .onnx of the same structure; or tensors by name (safetensors, a Hugging Face folder) put into the source
    cut           as the variant was cut: same regions, same nodes handed back
    compare       the code that this gives must be the variant's own, letter by letter: then only weights differ
    pack          the weights, and the model around them
"""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from opsmith import store
from opsmith.check.verify import VerifyResult
from opsmith.check.verify import verify as verify_models
from opsmith.compiler.build import find_compiler
from opsmith.compiler.convert import Blob, replace_regions, save_converted, seal_weights
from opsmith.compiler.cut import Cut
from opsmith.compiler.forms import cut_forms, form_folder, main_cut, pack_weights, tuned, write_code
from opsmith.compiler.geometry import NATIVE
from opsmith.compiler.precision import FP32, PRECISIONS, cheapest
from opsmith.compiler.program import show
from opsmith.compiler.request import Request
from opsmith.compiler.source import load, prepare
from opsmith.compiler.system import System, here
from opsmith.errors import NotTheSame, OpsmithError
from opsmith.plain import Shown
from opsmith.store import PathLike, Variant

LEAST_WEIGHT = (
    64  # elements: smaller constants of a model (epsilons, scales, shapes) are not looked for in a checkpoint
)


@dataclasses.dataclass(repr=False)
class WeightsResult(Shown):
    variant: Variant
    tensors: int  # packed
    seconds: float
    verified: VerifyResult | None


def weights(
    variant: PathLike,
    new: PathLike | ir.Model,
    dest: PathLike,
    *,
    source: PathLike | None = None,
    verify: bool = True,
    overwrite: bool = False,
) -> WeightsResult:
    """Write DEST: the compiled VARIANT with the weights of NEW.

    NEW is an .onnx of the same structure, or a .safetensors file or Hugging Face folder, whose tensors are put into SOURCE, the
    model that VARIANT was compiled from (found by itself if it lies beside it). Or it is a model in memory. OVERWRITE: replace DEST even
    if it was made from another model.
    """
    started = time.monotonic()
    old = Variant(store.find_model(variant))
    library = next(iter(store.libraries(old.path)), None)
    if library is None:
        if "compiled" in old.record:
            raise OpsmithError(
                f"{old.path} has no packed weights: {store.NOTHING_NATIVE}", "use the new model, or compile it"
            )
        raise OpsmithError(f"{old.path} is not a compiled variant with a library of its own")
    with store.new_variant(
        dest, verb="weights", parent=old, options=old.record["options"], overwrite=overwrite
    ) as draft:
        model = new_model(new, source or _parent(old))
        data = draft.path.with_name(f"{draft.path.name}.data")
        code = _code(old.path)
        cuts, blobs = pack_again(model, old.record, code, data, "the model" if isinstance(new, ir.Model) else str(new))
        shutil.copyfile(library, draft.folder / library.name)
        if code is not None:
            shutil.copytree(code, draft.source_folder)
        domain = old.record["compiled"]["domain"]
        pieces = main_cut(cuts)
        save_converted(replace_regions(pieces.source, pieces.regions, blobs, domain, data), draft.path, data)
        draft.record["compiled"] = {**old.record["compiled"], "measured": None}
        draft.write_record()
        options = old.record["options"]
        precision, bound = cheapest(options.get("precision", FP32.name)).name, options.get("max_error")
        # A model that lies on disk is read from there: it need not be written once more.
        reference = model if isinstance(new, ir.Model) or tensor_files(new) else store.find_model(new)
        verified = verify_models(reference, draft.path, precision=precision, bound=bound) if verify else None
        if verified is not None and not verified.ok and verified.unchecked is None:
            raise NotTheSame(f"with the new weights it differs from its source: {'; '.join(verified.problems[:3])}")
    count = sum(len(p.weights) for c in cuts.values() for p in c.programs)
    return WeightsResult(Variant(store.find_model(dest)), count, time.monotonic() - started, verified)


def pack_again(
    model: ir.Model, record: Mapping[str, Any], code: Path | None, data: Path, name: str
) -> tuple[dict[str, Cut], list[Sequence[Blob]]]:
    """Pack the weights of MODEL into the file DATA, for the library that RECORD tells of; CODE is its source.

    A model for which that library is not the right one is refused.
    """
    cuts = _cut_again(model, record.get("options") or {}, record["compiled"])
    forms = pack_weights(cuts, data)
    _, domain = write_code(cuts, forms)
    if domain != record["compiled"]["domain"]:
        raise NotTheSame(f"{name} does not have the structure that was compiled: {_difference(cuts, code)}")
    seal_weights(data, [b for form in forms for b in form.blobs], domain)
    return cuts, [form.blobs for form in forms]


def _cut_again(model: ir.Model, options: Mapping[str, Any], compiled: Mapping[str, Any]) -> dict[str, Cut]:
    """The regions of the variant, of the new model."""
    handed_back = dict.fromkeys(compiled.get("handed_back") or [], "as in the variant")
    request = Request(
        model,
        "",
        options.get("regions", "auto"),
        int(options.get("search") or 0),
        bool(options.get("strict")),
        options.get("shapes"),
        tool=find_compiler() if options.get("search") else None,
        precision=cheapest(options.get("precision", FP32.name)),
        cpu=options.get("cpu", NATIVE),
        system=System(**options["system"]) if options.get("system") else here(),
    )
    sizes = compiled.get("sizes") or {}
    chosen = {line["node"]: PRECISIONS[line["precision"]] for line in compiled.get("chosen") or []}
    targets = {c: dataclasses.replace(t, sizes=sizes, precisions=chosen) for c, t in request.targets.items()}
    cuts = cut_forms(prepare(load(model, request.shapes)), request.regions, targets, handed_back)
    return {cpu: tuned(pieces, request, targets[cpu], handed_back)[0] for cpu, pieces in cuts.items()}


def _difference(cuts: Mapping[str, Cut], folder: Path | None) -> str:
    """The first line in which the new program is not the old one."""
    for cpu, program in [(cpu, program) for cpu, pieces in cuts.items() for program in pieces.programs]:
        file = folder / form_folder(cpu, cuts) / f"{program.name}.txt" if folder is not None else None
        if file is None or not file.exists():
            continue
        before, after = file.read_text(encoding="utf-8").splitlines(), show(program).splitlines()
        for a, b in zip([*before, "(the end)"], [*after, "(the end)"]):
            if a != b:
                return f"first in {program.name}: {a.strip()!r} is {b.strip()!r}"
    return "it gives other code (another version of Opsmith, another CPU, or other constants)"


def _code(path: Path) -> Path | None:
    return next((f for f in (store.source_folder(path), path.parent / "src") if f.is_dir()), None)


def _parent(old: Variant) -> Path | None:
    """The model that a variant was compiled from, if it lies where `compile` found it."""
    name = old.record.get("parent")
    for place in (old.folder / str(name), old.folder.parent / str(name)):
        if name and place.exists():
            return store.find_model(place)
    return None


# --- tensors by name ---


def new_model(new: PathLike | ir.Model, source: PathLike | None) -> ir.Model:
    if isinstance(new, ir.Model):
        return new
    path, files = Path(new), tensor_files(new)
    if not files:
        return store.open_model(path)
    if source is None:
        raise OpsmithError(f"{new} holds tensors only", "name the model that was compiled: --source MODEL")
    model = store.open_model(source)
    put_tensors(model, dict(_tensors(files)), path)
    return model


def tensor_files(new: PathLike) -> list[Path]:
    """Where a checkpoint without a graph has its tensors; none if NEW is a model."""
    path = Path(new)
    return [path] if path.suffix == ".safetensors" else sorted(path.glob("*.safetensors")) if path.is_dir() else []


def _tensors(files: list[Path]) -> Iterator[tuple[str, ir.TensorProtocol]]:
    from safetensors import safe_open

    for file in files:
        with safe_open(str(file), framework="np") as opened:
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                yield name, ir.tensor(opened.get_tensor(name), name=name)


def put_tensors(model: ir.Model, tensors: Mapping[str, ir.TensorProtocol], where: object) -> None:
    """Give every weight of the model its tensor."""
    initializers = [v for v in model.graph.initializers.values() if v.const_value is not None]
    tied = {}
    for value in initializers:
        old = value.const_value
        assert old is not None
        tensor = _named(value.name or "", tensors)
        if tensor is not None:
            if tuple(tensor.shape.numpy()) != tuple(old.shape.numpy()):
                raise NotTheSame(f"{value.name} is {list(old.shape)} in the model and {list(tensor.shape)} in {where}")
            tied[_content(old)] = tensor
    for value in initializers:
        old = value.const_value
        assert old is not None
        tensor = _named(value.name or "", tensors) or tied.get(_content(old))
        if tensor is not None:
            value.const_value = ir.tensor(tensor.numpy().astype(old.dtype.numpy()), name=value.name)
        elif old.size >= LEAST_WEIGHT and old.dtype.is_floating_point():
            raise NotTheSame(
                f"{where} has no tensor {value.name}",
                "the exporter renamed or transposed it: export the checkpoint, and give the .onnx instead",
            )


def _named(name: str, tensors: Mapping[str, ir.TensorProtocol]) -> ir.TensorProtocol | None:
    """The tensor of this name; checkpoints leave out the model's own prefix, or add one."""
    if name.endswith(store.TRANSPOSED):
        tensor = _named(name.removesuffix(store.TRANSPOSED), tensors)
        return None if tensor is None else ir.tensor(tensor.numpy().T, name=name)
    if name in tensors:
        return tensors[name]
    alike = [k for k in tensors if name.endswith(f".{k}") or k.endswith(f".{name}")]
    return tensors[alike[0]] if len(alike) == 1 else None


def _content(tensor: ir.TensorProtocol) -> tuple[Any, ...]:
    """What tells whether two weights are tied: they have the same numbers."""
    flat = tensor.numpy().reshape(-1)
    return (tuple(tensor.shape.numpy()), flat[:: max(1, flat.size // 64)].tobytes())
