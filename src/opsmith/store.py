"""The store: variant folders, test data, provenance. Input and output of every verb.

    models/<model>/<variant>/<model>_<variant>.onnx      (+ .onnx.data when larger than 256 MB)
    models/<model>/<variant>/test_data_set_0/input_0.pb, output_0.pb ...
    models/<model>/<variant>/opsmith.json                how it was made
    models/<model>/<variant>/lib<model>_<hash>.so        compiled variants only

A plain .onnx path works wherever a variant folder does. Nothing here copies weights: models are opened with
their external data memory-mapped, and written in a temporary folder that is renamed at the end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import hashlib
import importlib.metadata
import json
import mmap
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx

from opsmith import machine
from opsmith._version import __version__
from opsmith.errors import OpsmithError
from opsmith.later import Later
from opsmith.model_checks import check_external_data, check_model, external_files, in_numpy
from opsmith.model_file import as_run, from_proto, write_model
from opsmith.model_file import read_proto as read_proto

if TYPE_CHECKING:
    import onnx_ir as ir
else:
    ir = Later("onnx_ir")  # takes half a second (it imports sympy), which sessions and timing processes do not need

ModelLike: TypeAlias = "str | os.PathLike[str] | Variant | onnx.ModelProto | ir.Model"
PathLike: TypeAlias = "str | os.PathLike[str]"

RECORD = "opsmith.json"
FORCED_CPU = "OPSMITH_CPU"  # the code to run, of a library that has several forms: kernels/forms.hpp, the provider
NOTHING_NATIVE = "nothing in the model was worth compiling"  # so that what compile wrote has no library
ORIGINS = "origins.json"
TRANSPOSED = ".T"  # ends the name of a weight that is stored transposed to its checkpoint
EMBED_LIMIT = 256 * 1024 * 1024  # larger models keep their weights in <name>.onnx.data


@dataclasses.dataclass(frozen=True)
class Variant:
    """One model file of the store and what is known about it."""

    path: Path

    @property
    def folder(self) -> Path:
        return self.path.parent

    @property
    def place(self) -> Path:
        """What its writer calls it: the folder; of a file on its own, whose record bears its name, the file."""
        return self.path if self.path.with_suffix(".opsmith.json").is_file() else self.folder

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def model_name(self) -> str:
        return self.folder.parent.name

    def __fspath__(self) -> str:
        return str(self.path)

    @functools.cached_property
    def record(self) -> dict[str, Any]:
        """The contents of opsmith.json; empty for a model that Opsmith did not write."""
        return read_record(self.path)


# --- finding ---------------------------------------------------------------------------------------------


def find_model(where: PathLike | Variant) -> Path:
    """The .onnx file that a path means: itself, the one in a variant folder, or the only variant's."""
    if isinstance(where, Variant):
        return where.path
    path = Path(where)
    if path.is_file():
        if path.suffix != ".onnx":
            hint = "give a .onnx file or a variant folder"
            if path.suffix == ".ort":
                hint = "ONNX Runtime alone reads that format; give the .onnx file that it was converted from"
            raise OpsmithError(f"{path} is not an .onnx file", hint)
        return path
    if not path.exists():
        raise OpsmithError(f"{path} does not exist")
    if found := _model_in(path):
        return found
    inside = variants(path)
    if len(inside) == 1:
        return inside[0].path
    if inside:
        names = ", ".join(v.name for v in inside)
        raise OpsmithError(f"{path} holds several variants: {names}", f"name one, e.g. {path / inside[0].name}")
    raise OpsmithError(f"{path} holds no ONNX model", "expected a .onnx file or a variant folder")


def _model_in(folder: Path) -> Path | None:
    absolute = folder.absolute()
    named = folder / f"{absolute.parent.name}_{absolute.name}.onnx"
    if named.is_file():
        return named
    files = sorted(folder.glob("*.onnx"))
    if len(files) == 1:
        return files[0]
    if len(files) > 1:
        names = ", ".join(f.name for f in files)
        raise OpsmithError(f"{folder} holds several models: {names}", "name one of the files")
    return None


def variants(model_folder: PathLike) -> list[Variant]:
    """All variants of a model folder, oldest first."""
    present: list[Variant] = []
    for child in sorted(p for p in Path(model_folder).iterdir() if p.is_dir() and not p.name.startswith(".")):
        with contextlib.suppress(OpsmithError):
            if path := _model_in(child):
                present.append(Variant(path))
    return sorted(present, key=lambda v: (v.record.get("created", ""), v.path.stat().st_mtime, v.name))


def read_record(model: PathLike) -> dict[str, Any]:
    path = Path(model)
    for candidate in (path.with_suffix(".opsmith.json"), path.parent / RECORD):
        if candidate.is_file():
            try:
                record = json.loads(candidate.read_text(encoding="utf-8"))
            except ValueError as error:
                raise OpsmithError(f"{candidate} is not valid JSON: {error}") from error
            if not isinstance(record, dict):
                raise OpsmithError(f"{candidate} does not hold a JSON object")
            return record
    return {}


def libraries(model: PathLike) -> list[Path]:
    """The shared libraries that a compiled variant needs, checked against this machine."""
    path = Path(model)
    compiled = read_record(path).get("compiled")
    if not compiled:
        return []
    if not isinstance(compiled, dict) or not isinstance(compiled.get("library") or "", str):
        raise OpsmithError(f"{path}: its {RECORD} is damaged, no library can be read from it", "compile it again")
    if not compiled.get("library"):  # no region was worth compiling
        return []
    needed = set(map(str, compiled.get("cpu_features", [])))
    if missing := sorted(needed - machine.cpu_features()):
        raise OpsmithError(
            f"{path} was compiled for a CPU with {', '.join(missing)}, which this CPU lacks",
            "compile it again on this machine",
        )
    return [library_of(path, compiled)]


def library_of(path: Path, compiled: Mapping[str, Any]) -> Path:
    """The library that the record of a model names, whole; it may be for another machine."""
    library = path.parent / Path(compiled["library"]).name
    if not library.is_file() and compiled.get("compiler", "unknown") is None:
        raise OpsmithError(f"{path} is not built yet: it was compiled with --emit-only", "its source has a build.sh")
    if not library.is_file():
        raise OpsmithError(f"{path} needs its library {library.name}, which is missing", "compile it again")
    if "sha256" in compiled and compiled["sha256"] != checksum(library):
        raise OpsmithError(f"{path}: its library {library.name} is damaged or was changed", "compile it again")
    return library


def is_packed(model: Path) -> bool:
    """Whether MODEL is a compiled variant with regions of its own, whose weights are packed for the library."""
    compiled = read_record(model).get("compiled")
    return isinstance(compiled, dict) and bool(compiled.get("library"))


def is_built(model: Path) -> bool:
    """False for a variant that was written with --emit-only and whose library was not built since."""
    compiled = read_record(model).get("compiled")
    if not isinstance(compiled, dict) or compiled.get("compiler") or not compiled.get("library"):
        return True
    return (model.parent / Path(str(compiled["library"])).name).is_file()


def checksum(path: Path) -> str:
    """SHA-256 of a file, computed once as long as it stays as it is."""
    stat = path.stat()
    return _checksum(path.absolute(), stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=64)
def _checksum(path: Path, mtime: int, size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _form_here(model: Path) -> str:
    """The CPU whose code a library with several runs on this one; "" if there is but one form of the code."""
    forms: dict[str, list[str]] = (read_record(model).get("compiled") or {}).get("forms") or {}
    fitting = [cpu for cpu, features in forms.items() if set(features) <= machine.cpu_features()]
    forced = os.environ.get(FORCED_CPU, "")
    return forced if forced in forms else next(iter(fitting), "")


def write_origins(folder: Path, origins: Mapping[str, Sequence[Sequence[str]]]) -> None:
    """Beside generated source: region -> for each kernel call the nodes of the source it computes."""
    (folder / ORIGINS).write_text(json.dumps(origins), encoding="utf-8")


def read_origins(model: PathLike) -> dict[str, list[list[str]]]:
    """What `write_origins` wrote for the code that runs here; nothing where the source was not kept."""
    for folder in (source_folder(Path(model)), Path(model).parent / "src"):
        for form in _form_here(Path(model)), "":
            with contextlib.suppress(OSError, ValueError):
                origins = json.loads((folder / form / ORIGINS).read_text(encoding="utf-8"))
                return origins if isinstance(origins, dict) else {}
    return {}


def precision_of(model: Path) -> str:
    """What the products of a model compute in, by its own record."""
    record = read_record(model)
    precision = str((record.get("options") or {}).get("precision", "fp32"))
    if precision == "auto":  # the cheapest of those that were chosen
        used = (record.get("compiled") or {}).get("precision") or {}
        precision = next((p for p in ("int8", "bf16") if p in used), "fp32")
    return precision


def source_folder(model: Path) -> Path:
    """Where the generated source of a compiled .onnx file on its own lies."""
    return model.with_suffix(".src")


# --- opening ---------------------------------------------------------------------------------------------


def open_model(model: ModelLike) -> ir.Model:
    """An onnx-ir model with its weights memory-mapped."""
    if not isinstance(model, (str, os.PathLike, Variant)):
        return as_run(from_proto(model)) if isinstance(model, onnx.ModelProto) else model
    path = find_model(model)
    check_external_data(path)
    check_model(path)
    proto = read_proto(path)
    try:
        loaded = as_run(from_proto(proto, str(path)))
        ir.external_data.set_base_dir(loaded.graph, path.parent)
        loaded.graph.sort()  # ONNX Runtime runs nodes that are out of order, too
        return loaded
    except OpsmithError:
        raise
    except Exception as error:
        raise OpsmithError(f"{path} is not a valid ONNX model: {' '.join(str(error).split())[:300]}") from error


@contextlib.contextmanager
def on_disk(model: ModelLike) -> Iterator[Path]:
    """The model as a file: its own, or a temporary one for models that live in memory."""
    if isinstance(model, (str, os.PathLike, Variant)):
        yield find_model(model)
        return
    with tempfile.TemporaryDirectory(prefix="opsmith-") as folder:
        path = Path(folder) / "model.onnx"
        save_model(open_model(model), path)
        yield path


# --- writing ---------------------------------------------------------------------------------------------


def release(model: ir.Model) -> None:
    """Give back the memory of weights that were read from files; they are read again if they are needed again."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            mapped = value.const_value.raw if isinstance(value.const_value, ir.ExternalTensor) else None
            if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
                mapped.madvise(mmap.MADV_DONTNEED)


def save_model(model: ir.Model, path: Path) -> None:
    """Write a model; weights go to `<name>.onnx.data` when they are larger than 256 MB."""
    graphs = [model.graph, *(f.graph for f in model.functions.values())]
    weights = sum(v.const_value.nbytes for g in graphs for v in g.initializers.values() if v.const_value is not None)
    if weights > EMBED_LIMIT:
        write_model(model, path, external_data=f"{path.name}.data", size_threshold_bytes=1024)
    else:
        # What is left of a larger model may still point at that one's file.
        _load_weights(model)
        write_model(model, path)


def _load_weights(model: ir.Model) -> None:
    """Into memory. The file that they lay in stays mapped for whoever holds a view of it, which onnx-ir's own function refuses."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor):
                value.const_value = ir.Tensor(tensor.numpy().copy(), name=tensor.name, dtype=tensor.dtype)


def home_of(path: Path) -> Path:
    """The folder with the tokenizer of a model file: its own, that of its model, or that of the pipeline around it."""
    folders = path.absolute().parents[:3]
    return next((f for f in folders if (f / "tokenizer.json").is_file() or (f / "vocab.json").is_file()), folders[1])


def copy_model(source: ModelLike, path: Path) -> None:
    """SOURCE as it is at PATH: the same bytes, external data beside it under its own names."""
    if not isinstance(source, (str, os.PathLike, Variant)):
        save_model(open_model(source), path)
        return
    file = find_model(source)
    for data in external_files(file):
        target = path.parent / data.relative_to(file.parent.resolve())
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(data, target)
    shutil.copyfile(file, path)


@dataclasses.dataclass
class Draft:
    """A variant being written: put the model at `path`, anything else into `folder`, facts into `record`."""

    folder: Path
    path: Path
    record: dict[str, Any]
    plain: bool = False  # a .onnx file on its own, not a variant folder

    @property
    def source_folder(self) -> Path:
        """For generated source. A model on its own lies in a folder of the user's, which may have a `src` already."""
        return source_folder(self.path) if self.plain else self.folder / "src"

    def write_record(self) -> None:
        file = self.path.with_suffix(".opsmith.json") if self.plain else self.folder / RECORD
        file.write_text(json.dumps(self.record, indent=2, default=str) + "\n", encoding="utf-8")


@contextlib.contextmanager
def new_variant(
    dest: PathLike,
    *,
    verb: str,
    parent: ModelLike | str | None = None,
    options: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Iterator[Draft]:
    """Write a variant in a temporary folder beside DEST and move it into place at the end, or not at all.

    DEST is a variant folder, or a .onnx file for people who leave the road here. OVERWRITE: also one that was made from another
    model than PARENT.
    """
    target = Path(dest)
    plain = target.suffix == ".onnx"
    home = target.parent if plain else target
    _refuse_foreign_folder(target)
    _refuse_own_source(target, parent)
    if not overwrite:
        _refuse_other_origin(target, parent)
    created_from = next(p for p in (home.absolute(), *home.absolute().parents) if p.exists())
    absolute = target.absolute()
    name = target.name if plain else f"{absolute.parent.name}_{absolute.name}.onnx"
    # Beside the target, so that the move at the end is a rename within one file system.
    beside = home.absolute() if plain and home.exists() else home.absolute().parent
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        sweep(beside)
        temporary = Path(tempfile.mkdtemp(prefix=f".{absolute.name}.{os.getpid()}.", suffix=".tmp", dir=beside))
    except OSError as error:  # it names a folder that the user has never heard of
        raise OpsmithError(f"{target} cannot be written: {error.strerror or error}", "choose another place") from error
    temporary.chmod(0o755)
    started = time.monotonic()
    try:
        draft = Draft(temporary, temporary / name, _new_record(verb, parent, options), plain)
        yield draft
        draft.record["seconds"] = round(time.monotonic() - started, 3)
        draft.write_record()
        if plain:
            home.mkdir(parents=True, exist_ok=True)
            # The model comes last: until then the old one stays in place.
            for file in sorted(temporary.iterdir(), key=lambda f: f.name == name):
                replace(file, home / file.name)
        else:
            replace(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        _remove_empty_parents(home.absolute().parent, created_from)
        raise
    shutil.rmtree(temporary, ignore_errors=True)


def _refuse_foreign_folder(target: Path) -> None:
    if not target.exists() or target.suffix == ".onnx":
        return
    if not target.is_dir():
        raise OpsmithError(f"{target} is a file; give a folder for the variant")
    content = [p.name for p in target.iterdir()]
    if content and RECORD not in content and not any(n.endswith(".onnx") for n in content):
        raise OpsmithError(f"{target} exists and is not a variant folder; it was left alone", "choose another")


def _refuse_own_source(target: Path, parent: ModelLike | str | None) -> None:
    """A variant never replaces the model it is made from: a failure later on would leave neither."""
    if not isinstance(parent, (str, os.PathLike)):
        return
    try:
        source, place = find_model(parent).resolve(), target.resolve()
    except OpsmithError:  # not a model of ours: a checkpoint that is exported
        return
    if place in (source, source.parent):
        raise OpsmithError(f"{target} is, or holds, the model that is read", "choose another place for the result")


def _refuse_other_origin(target: Path, parent: ModelLike | str | None) -> None:
    """What was made from another model, or not by us at all, is replaced only if the user says so."""
    held = [target] if target.is_file() else sorted(target.glob("*.onnx")) if target.is_dir() else []
    origin = _parent_name(parent)
    if not held or origin is None:
        return
    before = read_record(held[0])
    if before.get("parent") in (origin, None) and "verb" in before:
        return
    made = f"was made from {before['parent']}" if before.get("parent") else "was not made by opsmith"
    raise OpsmithError(f"{target} {made}, not from {origin}; it was left alone", "replace it with --overwrite")


def sweep(folder: Path) -> None:
    """Remove what processes left in FOLDER that were killed while they wrote; a variant that they had moved away comes back."""
    for left in folder.glob(".*.*.*.*"):
        match = re.fullmatch(r"\.(.+)\.(\d+)\.\w+\.(tmp|old)", left.name)
        if match is None or not left.is_dir() or _is_alive(int(match[2])):
            continue
        moved, target = left / match[1], folder / match[1]
        if match[3] == "old" and moved.exists() and not target.exists():
            moved.rename(target)
        shutil.rmtree(left, ignore_errors=True)


def sweep_files(folder: Path, pattern: str) -> None:
    """The same for files in a cache, `<name>.<process>.<kind>`."""
    for left in folder.glob(pattern):
        process = left.name.split(".")[-2]
        if process.isdecimal() and not _is_alive(int(process)):
            left.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # another user's
    return True


def replace(source: Path, target: Path) -> None:
    """Move SOURCE to TARGET; an older TARGET disappears only after the new one is in place."""
    if not target.exists():
        source.rename(target)
        return
    prefix = f".{target.name}.{os.getpid()}."
    old = Path(tempfile.mkdtemp(prefix=prefix, suffix=".old", dir=target.absolute().parent))
    try:
        target.rename(old / target.name)
        source.rename(target)
    except BaseException:
        if (old / target.name).exists() and not target.exists():
            (old / target.name).rename(target)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def _remove_empty_parents(folder: Path, stop: Path) -> None:
    while folder != stop and folder.is_relative_to(stop):
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent


def _new_record(verb: str, parent: ModelLike | str | None, options: Mapping[str, Any] | None) -> dict[str, Any]:
    packages = ("numpy", "onnx", "onnx-ir", "onnxscript", "onnxruntime")
    return {
        "opsmith": __version__,
        "verb": verb,
        "parent": _parent_name(parent),
        "options": dict(options or {}),
        "versions": {p: importlib.metadata.version(p) for p in packages},
        "cpu": machine.cpu_name(),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _parent_name(parent: ModelLike | str | None) -> str | None:
    """The parent's name within its model folder: records hold no machine paths."""
    if not isinstance(parent, (str, os.PathLike, Variant)):
        return None
    if isinstance(parent, Variant):
        return parent.name
    path = Path(parent)
    if path.suffix == ".onnx":
        return path.name
    return path.absolute().name if path.is_dir() else str(parent)


# --- test data: ONNX's own layout ------------------------------------------------------------------------


def _to_proto(array: np.ndarray[Any, Any], name: str) -> onnx.TensorProto:
    if array.dtype.kind in "OUS":  # onnx-ir does not write strings
        return onnx.numpy_helper.from_array(array.astype(object), name)
    if array.dtype.kind in "biufc":
        return onnx.numpy_helper.from_array(array, name)
    return ir.serde.serialize_tensor(ir.tensor(array, name=name))


def write_test_data(
    folder: PathLike,
    inputs: Mapping[str, np.ndarray[Any, Any]],
    outputs: Mapping[str, np.ndarray[Any, Any]],
    index: int = 0,
) -> Path:
    """Write test_data_set_<index> with one TensorProto file per input and output, in graph order."""
    target = Path(folder) / f"test_data_set_{index}"
    target.mkdir(parents=True, exist_ok=True)
    for kind, arrays in (("input", inputs), ("output", outputs)):
        for i, (name, array) in enumerate(arrays.items()):
            tensor = _to_proto(array, name)
            (target / f"{kind}_{i}.pb").write_bytes(tensor.SerializeToString())
    return target


@dataclasses.dataclass(frozen=True)
class TestData:
    """One stored case: named inputs and the outputs that the original model gave for them."""

    folder: Path
    inputs: dict[str, np.ndarray[Any, Any]]
    outputs: dict[str, np.ndarray[Any, Any]]

    __test__ = False


def read_test_data(model: PathLike, names: tuple[Sequence[str], Sequence[str]] | None = None) -> list[TestData]:
    """All test_data_set_* beside a model. `names` are the graph's inputs and outputs, for nameless tensors."""
    cases = []
    for folder in sorted(Path(model).parent.glob("test_data_set_*")):
        sides = []
        for kind, fallback in zip(("input", "output"), names or ((), ())):
            arrays: dict[str, np.ndarray[Any, Any]] = {}
            named = [f for f in folder.glob(f"{kind}_*.pb") if re.fullmatch(rf"{kind}_\d+", f.stem, re.ASCII)]
            for i, file in enumerate(sorted(named, key=lambda f: int(f.stem.split("_")[1]))):
                tensor = onnx.TensorProto()
                try:
                    tensor.ParseFromString(file.read_bytes())
                    if tensor.data_location == onnx.TensorProto.EXTERNAL:
                        raise ValueError("it points at another file")
                    plain = in_numpy(tensor.data_type)
                    array = onnx.numpy_helper.to_array(tensor) if plain else ir.serde.deserialize_tensor(tensor).numpy()
                except Exception as error:
                    raise OpsmithError(f"{file} is not a readable test tensor: {error}") from error
                arrays[tensor.name or (fallback[i] if i < len(fallback) else f"{kind}_{i}")] = array
            sides.append(arrays)
        cases.append(TestData(folder, *sides))
    return cases


def copy_test_data(source: PathLike, folder: PathLike) -> None:
    """Give a new variant the test data of its parent."""
    for data in sorted(Path(source).parent.glob("test_data_set_*")):
        shutil.copytree(data, Path(folder) / data.name, dirs_exist_ok=True)
