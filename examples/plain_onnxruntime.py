"""A compiled model in plain ONNX Runtime: this file does not import Opsmith.

python examples/plain_onnxruntime.py COMPILED

COMPILED is the folder of a compiled variant, or a compiled .onnx file. It runs once on its test data, or on zeros where there is none.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort


def find(where: Path) -> tuple[Path, Path]:
    """The model, and the record beside it that names its library."""
    if where.is_file():
        alone = where.with_name(f"{where.stem}.opsmith.json")
        return where, alone if alone.is_file() else where.with_name("opsmith.json")
    (model,) = where.glob("*.onnx")
    return model, where / "opsmith.json"


def open_session(model: Path, record: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    compiled = json.loads(record.read_text())["compiled"]
    if compiled["library"]:  # none: nothing was worth compiling, the model is plain ONNX
        options.register_custom_ops_library(str((record.parent / compiled["library"]).absolute()))
    return ort.InferenceSession(model, options)


def inputs(session: ort.InferenceSession, folder: Path) -> dict[str, np.ndarray]:
    """Stored test data, else zeros, with 1 for every size that is open."""
    stored = sorted((folder / "test_data_set_0").glob("input_*.pb"), key=lambda file: int(file.stem.split("_")[1]))
    if stored:
        tensors = [onnx.load_tensor(file) for file in stored]
        return {t.name or i.name: onnx.numpy_helper.to_array(t) for t, i in zip(tensors, session.get_inputs())}
    feed = {}
    for value in session.get_inputs():
        shape = [d if isinstance(d, int) and d >= 0 else 1 for d in value.shape]
        kind = value.type.removeprefix("tensor(").removesuffix(")")  # "float", "int64", "bool", "string"
        numpy_kind = {"float": "float32", "double": "float64", "string": "object"}.get(kind, kind)
        feed[value.name] = np.full(shape, "", object) if kind == "string" else np.zeros(shape, numpy_kind)
    return feed


def main(where: Path) -> None:
    model, record = find(where)
    session = open_session(model, record)
    feed = inputs(session, model.parent)
    for output, value in zip(session.get_outputs(), session.run(None, feed)):
        print(output.name, value.dtype, value.shape)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
