"""Weights that change: another checkpoint for the same compiled regions, on disk (`weights_ep`) or in a live session (`swap`)."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from opsmith import session, store
from opsmith.compiler.cut import Cut
from opsmith.compiler.repack import new_model, pack_again
from opsmith.errors import NotTheSame, OpsmithError
from opsmith.provider.folder import MANIFEST, WEIGHTS, identity, sidecar
from opsmith.store import PathLike

SWAP = "opsmith.weights"  # the provider's dynamic option


def weights_ep(model: PathLike, new: PathLike) -> Path:
    """Give NEW.onnx, a model of the same structure as MODEL, a folder of its own with MODEL's library and its own weights."""
    old, path = sidecar(store.find_model(model)), store.find_model(new)
    target = sidecar(path)
    prefix = f".{target.name}.{os.getpid()}."
    scratch = Path(tempfile.mkdtemp(prefix=prefix, suffix=".tmp", dir=target.absolute().parent))
    scratch.chmod(0o755)
    try:
        _pack(old, new_model(path, None), scratch / WEIGHTS, str(path))
        for file in old.iterdir():
            if file.is_dir():
                shutil.copytree(file, scratch / file.name)
            elif file.name not in (WEIGHTS, MANIFEST):
                shutil.copyfile(file, scratch / file.name)
        rows = (old / MANIFEST).read_text(encoding="utf-8").splitlines()
        rows = [rows[0], *identity(path), *(r for r in rows[1:] if r.split(" ")[0] not in ("model", "data"))]
        (scratch / MANIFEST).write_text("\n".join(rows) + "\n", encoding="utf-8")
        store.replace(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def swap(running: ort.InferenceSession, new: PathLike | Mapping[str, object], *, model: PathLike | None = None) -> None:
    """Put other weights into a live session of the provider, between two runs; runs on other threads see all of them or none.

    NEW is a model whose folder `weights_ep` made, or that folder: its packed weights are mapped, nothing is computed. Or it is a
    mapping of names to arrays, which replace those of MODEL, the file that the session was made of, and are packed first.
    """
    if session.PROVIDER not in running.get_providers():
        raise OpsmithError("weights can be swapped in sessions of the execution provider", "opsmith.session_options()")
    if not isinstance(new, Mapping):
        path = Path(new)
        _set(running, (sidecar(path) if path.suffix == ".onnx" else path) / WEIGHTS)
        return
    file = model or getattr(running, "_model_path", None)
    if file is None:
        raise OpsmithError("the session was made from bytes", "name the model: swap(session, weights, model=PATH)")
    path = store.find_model(file)
    changed = store.open_model(path)
    _put_arrays(changed, new)
    with tempfile.TemporaryDirectory(prefix="opsmith-swap-") as scratch:
        packed = Path(scratch) / WEIGHTS
        pieces = _pack(sidecar(path), changed, packed, "the model with these weights")
        _refuse_outside(pieces, new)
        _set(running, packed)  # it stays mapped, and may go


def _set(running: ort.InferenceSession, file: Path) -> None:
    try:
        running.set_ep_dynamic_options({SWAP: str(file.absolute())})
    except Exception as error:
        raise OpsmithError(f"the weights stay as they are: {session.one_line(error)}") from error


def _pack(folder: Path, model: ir.Model, file: Path, name: str) -> Cut:
    record = store.read_record(folder / "model")
    if not (record.get("compiled") or {}).get("library"):
        raise OpsmithError(f"{folder} does not hold compiled regions", "opsmith compile MODEL --ep")
    cuts, blobs = pack_again(model, record, folder / "src", file, name)
    os.truncate(file, max(b.offset + b.bytes for b in blobs[0]))
    return next(iter(cuts.values()))


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
