"""`opsmith pack`: all that a program needs to run a compiled model, in one zip file that refers to no machine.

model.onnx, model.onnx.data       the model; as it was, for the execution provider
libmodel_<hash>.so                the library of custom ops, or the folder model.onnx.opsmith of the provider
load.c, load.hpp, load.py         a session on it, in a few lines
opsmith.json                      what opsmith.load reads
LICENSE.txt, NOTICE.txt, README.txt, SHA256SUMS
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import onnx

from opsmith import model_checks, store
from opsmith._version import __version__
from opsmith.errors import OpsmithError
from opsmith.provider.folder import PROVIDER, is_whole, sidecar
from opsmith.store import PathLike

SUFFIX = ".opsmith.zip"
LOADERS = Path(__file__).parent / "loaders"
_DATE = (1980, 1, 1, 0, 0, 0)  # of every file: the same model packs to the same bytes


def pack(variant: PathLike, dest: PathLike | None = None) -> Path:
    """Write DEST, a zip file with the compiled VARIANT; by default beside it. Gives its path."""
    model = store.find_model(variant)
    target = Path(dest) if dest is not None else model.with_name(f"{model.stem}{SUFFIX}")
    if target.suffix != ".zip" or target.is_dir():
        raise OpsmithError(f"{target} is not the name of a zip file", f"an example: {model.stem}{SUFFIX}")
    if not target.absolute().parent.is_dir():
        raise OpsmithError(f"the folder {target.parent} does not exist")
    entries = list(_entries(model))
    part = target.with_name(f".{target.name}.part")
    try:
        with zipfile.ZipFile(part, "w", allowZip64=True) as archive:
            sums = "".join(_write(archive, target, name, content) for name, content in entries)
            _write(archive, target, "SHA256SUMS", sums.encode())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return target


def _write(archive: zipfile.ZipFile, target: Path, name: str, content: Path | bytes) -> str:
    """Add a file, in the folder that the zip unpacks to; its row of SHA256SUMS."""
    entry = zipfile.ZipInfo(str(PurePosixPath(target.name.removesuffix(".zip").removesuffix(".opsmith"), name)), _DATE)
    entry.external_attr = 0o644 << 16
    digest = hashlib.sha256()
    stored = isinstance(content, Path) and content.suffix not in (".onnx", ".json")  # packed weights hardly shrink
    entry.compress_type = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
    with archive.open(entry, "w", force_zip64=isinstance(content, Path)) as out:
        if isinstance(content, bytes):
            out.write(content)
            digest.update(content)
        else:
            with content.open("rb") as file:
                while piece := file.read(1 << 22):
                    out.write(piece)
                    digest.update(piece)
    return f"{digest.hexdigest()}  {name}\n"


def _entries(model: Path) -> Iterator[tuple[str, Path | bytes]]:
    """Name in the zip -> its content."""
    record = store.read_record(model)
    compiled = record.get("compiled") or {}
    home = model.resolve().parent
    for file in sorted(model_checks.external_files(model)):
        yield file.relative_to(home).as_posix(), file
    if compiled.get("library"):
        library = store.library_of(model, compiled)
        yield model.name, _without_traces(model)
        yield library.name, library
        yield from _texts(model.name, library.name, "custom_ops", _facts(record))
    elif is_whole(sidecar(model), model):
        yield model.name, model  # byte for byte: the folder knows it by its digest
        for file in sorted(sidecar(model).iterdir()):
            if file.is_file() and not file.name.startswith("opsmith"):
                yield f"{sidecar(model).name}/{file.name}", file
        yield from _texts(model.name, f"{sidecar(model).name}/{PROVIDER}", "provider", None)
    elif compiled:
        raise OpsmithError(f"there is no library to pack: {store.NOTHING_NATIVE}", f"ship {model.name} as it is")
    else:
        raise OpsmithError(f"{model} is not a compiled model", "opsmith compile MODEL, or opsmith compile MODEL --ep")
    for file in sorted(model.parent.glob("LICEN[SC]E*")):
        if file.is_file():
            yield f"model.{file.name}", file


def _without_traces(model: Path) -> bytes:
    """The model without what exporters note for debugging: paths and lines of the program that made it."""
    proto = store.read_proto(model)
    graphs = [proto.graph]
    while graphs:
        graph = graphs.pop()
        graph.doc_string = ""
        for item in (*graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer):
            item.doc_string = ""
            del item.metadata_props[:]
        for node in graph.node:
            for attribute in node.attribute:
                graphs += [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs
    for function in proto.functions:
        for node in function.node:
            node.doc_string = ""
            del node.metadata_props[:]
    return bytes(proto.SerializeToString(deterministic=True))


def _facts(record: dict[str, Any]) -> dict[str, Any]:
    """Of the record what a session needs; not where, when and on what it was made."""
    compiled = record["compiled"]
    kept = ("library", "sha256", "domain", "cpu_features", "forms", "cache")
    options = {k: v for k, v in (record.get("options") or {}).items() if k in ("precision", "cpu", "system")}
    return {
        "opsmith": __version__,
        "verb": "pack",
        "options": options,
        "compiled": {k: compiled[k] for k in kept if k in compiled},
        "verified": record.get("verified"),
    }


def _texts(model: str, library: str, kind: str, facts: dict[str, Any] | None) -> Iterator[tuple[str, bytes]]:
    for loader in (*sorted((LOADERS / kind).iterdir()), LOADERS / "load.hpp.in"):
        text = loader.read_text(encoding="utf-8").replace("@MODEL@", model).replace("@LIBRARY@", library)
        yield loader.name.removesuffix(".in"), text.encode()
    if facts is not None:
        yield store.RECORD, (json.dumps(facts, indent=2, sort_keys=True) + "\n").encode()
    for name in ("LICENSE", "NOTICE"):
        yield f"{name}.txt", _licence(name).encode()
    yield "README.txt", README.format(model=model, library=library, version=__version__).encode()


README = """{model}, compiled by Opsmith {version} for ONNX Runtime 1.24 or newer. Nothing else is needed.

load.py, load.c and load.hpp open a session on it: they register {library}.
`sha256sum -c SHA256SUMS` checks the files. LICENSE.txt and NOTICE.txt are those of Opsmith, whose kernels are in the library; the
model has the licence that its makers gave it.
"""


def _licence(name: str) -> str:
    """A file of Opsmith's own distribution."""
    for file in importlib.metadata.files("opsmith") or []:
        if file.name == name and "dist-info" in str(file):
            return file.read_text()
    source = Path(__file__).parents[3] / name  # a checkout that is not installed
    if source.is_file():
        return source.read_text(encoding="utf-8")
    raise OpsmithError(f"this installation of Opsmith lacks its file {name}", "install it again")
