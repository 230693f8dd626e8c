"""Weights that change: another checkpoint for the same compiled regions, on disk (`weights_ep`) or in a live session (`swap`)."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from opsmith import session, store
from opsmith.compiler.convert import replace_regions
from opsmith.compiler.cut import Cut
from opsmith.compiler.repack import WeightsResult, new_model, pack_again
from opsmith.errors import NotTheSame, OpsmithError
from opsmith.provider.folder import MANIFEST, VERSION_LINE, WEIGHTS, found, identity, new_folder, sidecar
from opsmith.provider.rest import rest
from opsmith.store import PathLike, Variant

SWAP = "opsmith.weights"  # the provider's dynamic option


def weights_ep(model: PathLike, new: PathLike) -> WeightsResult:
    """Give NEW.onnx, a model of the same structure as MODEL, a folder of its own with MODEL's library and its own weights."""
    started = time.monotonic()
    old, path = _regions(store.find_model(model)), store.find_model(new)
    with new_folder(sidecar(path)) as scratch:
        cuts = _pack(old, new_model(path, None), identity(path), scratch, str(path))
        for file in old.iterdir():
            if file.is_dir():
                shutil.copytree(file, scratch / file.name)
            elif not (scratch / file.name).exists():
                shutil.copyfile(file, scratch / file.name)
    count = sum(len(program.weights) for pieces in cuts for program in pieces.programs)
    return WeightsResult(Variant(path), count, time.monotonic() - started, None)


def swap(running: ort.InferenceSession, new: PathLike | Mapping[str, object], *, model: PathLike | None = None) -> None:
    """Put other weights into a live session of the provider, between two runs; runs on other threads see all of them or none.

    NEW is a model whose folder `weights_ep` made, or that folder: its packed weights are mapped, nothing is computed. Or it is a
    mapping of names to arrays, which replace those of MODEL, the file that the session was made of, and are packed first.
    """
    if session.PROVIDER not in running.get_providers():
        raise OpsmithError("weights can be swapped in sessions of the execution provider", "opsmith.session_options()")
    if not isinstance(new, Mapping):
        path = Path(new)
        _set(running, _regions(path) if path.suffix == ".onnx" else path)
        return
    file = model or getattr(running, "_model_path", None)
    if file is None:
        raise OpsmithError("the session was made from bytes", "name the model: swap(session, weights, model=PATH)")
    path = store.find_model(file)
    changed = store.open_model(path)
    _put_arrays(changed, new)
    with tempfile.TemporaryDirectory(prefix="opsmith-swap-") as scratch:
        for pieces in _pack(_regions(path), changed, identity(path), Path(scratch), "the model with these weights"):
            _refuse_outside(pieces, new)
        _set(running, Path(scratch))  # what is mapped may go


def _set(running: ort.InferenceSession, folder: Path) -> None:
    try:
        running.set_ep_dynamic_options({SWAP: str(folder.absolute())})
    except Exception as error:
        raise OpsmithError(f"the weights stay as they are: {session.one_line(error)}") from error


def _regions(model: Path) -> Path:
    folder = found(model)
    if folder is None:
        raise OpsmithError(f"{model} has no compiled regions", f"opsmith compile {model} --ep")
    return folder


def _pack(old: Path, model: ir.Model, names: Sequence[str], into: Path, name: str) -> list[Cut]:
    """Weights of MODEL for every target of the folder OLD, and the manifest that goes with them; NAMES: its rows about the model."""
    rows = [VERSION_LINE, *names]
    cuts = []
    for target in _targets(old):
        if target.weights is None:
            rows += target.rows
            continue
        suffix = target.weights.removeprefix(WEIGHTS)
        record = json.loads((old / f"opsmith{suffix}.json").read_text(encoding="utf-8"))
        data = into / target.weights
        forms, blobs = pack_again(model, record, old / f"src{suffix}", data, name)
        os.truncate(data, max(b.offset + b.bytes for b in blobs[0]))
        (pieces,) = forms.values()
        domain = record["compiled"]["domain"]
        converted = replace_regions(pieces.source, pieces.regions, blobs, domain, data)
        rows += [f"rest {rest(converted, domain)}" if row.startswith("rest ") else row for row in target.rows]
        cuts.append(pieces)
    (into / MANIFEST).write_text("\n".join(rows) + "\n", encoding="utf-8")
    return cuts


@dataclasses.dataclass
class _Target:
    """One CPU's part of a manifest."""

    rows: list[str]
    weights: str | None = None  # the file; None: no region has any


def _targets(folder: Path) -> list[_Target]:
    targets: list[_Target] = []
    for row in (folder / MANIFEST).read_text(encoding="utf-8").splitlines()[1:]:
        word, _, value = row.partition(" ")
        if word == "target":
            targets.append(_Target([]))
        if targets:
            targets[-1].rows.append(row)
            if word == "weights":
                targets[-1].weights = value.partition(" ")[2]
    return targets


def _put_arrays(model: ir.Model, new: Mapping[str, object]) -> None:
    for name, given in new.items():
        value = model.graph.initializers.get(name)
        if value is None or value.const_value is None:
            raise NotTheSame(f"the model has no weight {name}")
        array, old = np.asarray(given), value.const_value
        if array.shape != tuple(old.shape.numpy()):
            raise NotTheSame(f"{name} is {list(old.shape.numpy())} in the model, and {list(array.shape)} was given")
        value.const_value = ir.tensor(array.astype(old.dtype.numpy()), name=name)


def _refuse_outside(pieces: Cut, new: Mapping[str, object]) -> None:
    """What ONNX Runtime's own nodes read cannot be changed."""
    for node in pieces.left:
        for value in node.inputs:
            if value is not None and value.name in new:
                raise OpsmithError(
                    f"{value.name} is read by {node.name}, which runs in ONNX Runtime", "compile it with --regions all"
                )
