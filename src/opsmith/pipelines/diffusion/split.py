"""The pieces of a UNet as model folders beside it, so that each can be compiled: unet_text, unet_time, unet_deep, ...

    write_pieces("models/sd")            # from unet/dynamo: unet_text/dynamo, unet_deep/dynamo, ...
    opsmith.compile("models/sd/unet_deep/dynamo")

Each gets the inputs and outputs that it has within the UNet's own test case. A compiled UNet is one operator, which cannot be cut; the
pieces of its source, compiled under the same variant's name, are run in its place.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from opsmith import model_checks, session, store
from opsmith.errors import OpsmithError
from opsmith.pipelines.diffusion import cut
from opsmith.pipelines.text import choose_variant

Array = np.ndarray[Any, Any]


def write_pieces(pipeline: store.PathLike, variant: str | None = None) -> list[Path]:
    """Model folders of the pieces of the UNet's VARIANT, by default its newest that is not compiled. Made anew only if it changed."""
    folder = Path(pipeline) / "unet"
    plain = [v.name for v in store.variants(folder) if v.record.get("verb") != "compile"]
    if variant is None and not plain:
        raise OpsmithError(f"{folder} has no variant that could be cut", "compiled ones are one operator")
    path = choose_variant(folder, variant or plain[-1])
    planned = cut.plan(store.read_proto(path))
    if not planned.saves:
        raise OpsmithError(f"there is nothing in {path} that could be computed once")
    homes = [folder.with_name(f"{folder.name}_{piece.name}") for piece in planned.pieces]
    name = path.parent.name
    if all(_is_from(store.read_record(home / name / "model.onnx"), path) for home in homes):
        return homes
    cases = store.read_test_data(path)
    values: dict[str, Array] = dict(cases[0].inputs) if cases else {}
    for piece, home in zip(planned.pieces, homes):
        values = values | _write(path, piece, home / name, values)
    return homes


def _write(path: Path, piece: cut.Piece, dest: Path, values: Mapping[str, Array]) -> dict[str, Array]:
    """What PIECE gives for VALUES, if there are any."""
    options = {"piece": piece.name, "of": _digest(path)}
    with store.new_variant(dest, verb="split", parent=path.parent, options=options, overwrite=True) as draft:
        proto = store.read_proto(path)
        cut.extract(proto, piece)
        model = ir.from_proto(proto)
        ir.external_data.set_base_dir(model.graph, path.parent)
        store.save_model(model, draft.path)
        if not values:
            return {}
        feeds = {name: values[name] for name in piece.inputs}
        edit = functools.partial(cut.extract, piece=piece)
        made = dict(zip(piece.outputs, session.run(session.load(path, edit=edit), feeds, list(piece.outputs))))
        store.write_test_data(draft.folder, feeds, made)
        return made


def stored(unet: Path) -> tuple[cut.Cut, dict[str, Path]] | str:
    """How the source of the compiled UNET is cut and its pieces' compiled files, or why they are not to be used."""
    record = store.read_record(unet)
    source = unet.parent.parent / str(record.get("parent") or "")
    if record.get("verb") != "compile" or not record.get("parent") or not source.is_dir():
        return "it is one operator, and its source is not beside it"
    path = store.find_model(source)
    planned = cut.plan(store.read_proto(path))
    found = {}
    for piece in planned.pieces:
        home = unet.parent.parent.with_name(f"{unet.parent.parent.name}_{piece.name}")
        if not (home / unet.parent.name).is_dir():
            return "it is compiled as one operator, and its pieces are not compiled"
        plain, compiled = (store.read_record(home / name / "model.onnx") for name in (source.name, unet.parent.name))
        if not _is_from(plain, path) or str(compiled.get("created")) < str(plain.get("created")):
            return "it is compiled as one operator, and its pieces were made from another UNet"
        found[piece.name] = store.find_model(home / unet.parent.name)
    return planned, found


def _is_from(record: Mapping[str, Any], path: Path) -> bool:
    """Whether a piece with this RECORD was cut from the UNet at PATH."""
    return (record.get("options") or {}).get("of") == _digest(path)


@functools.cache
def _digest_of(path: Path, mtime: int, files: tuple[tuple[str, int, int], ...]) -> str:
    return hashlib.sha256(path.read_bytes() + repr([f[:2] for f in files]).encode()).hexdigest()[:16]


def _digest(path: Path) -> str:
    """Of the .onnx file and of the names and sizes of the files that it points at."""
    files = tuple((f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in sorted(model_checks.external_files(path)))
    return _digest_of(path, path.stat().st_mtime_ns, files)
