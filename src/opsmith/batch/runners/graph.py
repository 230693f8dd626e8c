"""Any model: its inputs from columns, its outputs as columns.

x [rows, 8] -> y [rows, 3]                        rows run together: a row holds 8 numbers, and gets 3
sound [batch, n], state [4, 1, 96] -> score []    the first axis does not count rows: each row is a run of its own, of whole tensors

input_ids, with a tokenizer in the folder        reads `text`; texts of the same length run together, so nothing is padded
[rows, 3, H, W], with a preprocessor_config.json  reads pictures: files, or bytes of files
everything else                                   reads numbers: a value, or (nested) lists, or either as JSON text
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from opsmith import session, store
from opsmith.batch.rows import Answer, Column, Failed, Traits
from opsmith.batch.runners.groups import groups
from opsmith.batch.runners.values import text_of
from opsmith.errors import OpsmithError
from opsmith.pipelines import pictures, preprocess
from opsmith.pipelines.tokenizer import encode, load_tokenizer

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]  # of one row: input -> array, without the axis of rows
WHOLE = 0  # of rows in a run: the first axis does not count them
TEXT_INPUTS = {"input_ids", "attention_mask", "token_type_ids", "position_ids"}
DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(bool)": "bool",
    "tensor(string)": "str",
} | {f"tensor({kind})": kind for kind in "int8 int16 int32 int64 uint8 uint16 uint32 uint64".split()}


class Graph:
    def __init__(self, path: Path, threads: int | None) -> None:
        self.path = path
        self.session = session.load(path, threads=threads)
        self.specs = {i.name: i for i in self.session.get_inputs()}
        self.reads_text = "input_ids" in self.specs and self.specs.keys() <= TEXT_INPUTS
        self.tokenizer = load_tokenizer(store.home_of(path)) if self.reads_text else None
        self.preprocessor = preprocess.settings_near(path)
        for value in (*self.specs.values(), *self.session.get_outputs()):
            if value.type not in DTYPES:
                raise OpsmithError(f"{path}: {value.name} is a {value.type}", "map needs tensors")
        self.rows = rows_of_a_run([i.shape for i in self.specs.values()], [o.shape for o in self.session.get_outputs()])
        self.whole = self.rows == WHOLE
        inputs = ("text",) if self.reads_text else tuple(self.specs)
        batches = (self.rows or 1,) if self.rows is not None else (32, 1, 8, 128)
        pictures = tuple(name for name, spec in self.specs.items() if _is_picture(spec))
        self.traits = Traits("model", inputs, {}, 256, batches, self._columns(), pictures)

    def _columns(self) -> dict[str, Column]:
        return {
            o.name: Column(DTYPES[o.type], tuple(d if isinstance(d, int) else None for d in self._of_a_row(o.shape)))
            for o in self.session.get_outputs()
        }

    def _of_a_row(self, shape: Sequence[Any]) -> Sequence[Any]:
        return shape if self.whole else shape[1:]

    def run(self, rows: Sequence[Mapping[str, Any]], batch: int) -> list[Answer]:
        fed = [self._feeds(row) for row in rows]
        answers: list[Answer] = [f if isinstance(f, Failed) else Failed("not run") for f in fed]
        alike = {i: tuple(a.shape for a in f.values()) for i, f in enumerate(fed) if not isinstance(f, Failed)}
        for group in groups(alike, 1 if self.whole else self.rows or batch):
            for i, answer in zip(group, self._run([f for i in group if not isinstance(f := fed[i], Failed)])):
                answers[i] = answer
        return answers

    def _run(self, rows: list[Feeds]) -> list[Answer]:
        """Rows of the same shapes; a model made for more of them gets the last one again."""
        if self.whole:
            return [dict(zip(self.traits.columns, session.run(self.session, rows[0])))]
        count = len(rows)
        rows = rows + rows[-1:] * ((self.rows or count) - count)
        feeds = {name: np.stack([row[name] for row in rows]) for name in self.specs}
        outputs = dict(zip(self.traits.columns, session.run(self.session, feeds)))
        for name, output in outputs.items():
            if output.shape[:1] != (len(rows),):
                raise OpsmithError(f"the first axis of the output {name} does not count the rows: {output.shape}")
        return [{name: output[i] for name, output in outputs.items()} for i in range(count)]

    def _feeds(self, row: Mapping[str, Any]) -> Feeds | Failed:
        try:
            if self.reads_text:
                return self._text_feeds(row["text"])
            return {name: self._value(name, row[name]) for name in self.specs}
        except OpsmithError as error:
            return Failed(str(error))

    def _text_feeds(self, value: Any) -> Feeds | Failed:
        text = text_of(value, "text")
        if isinstance(text, Failed):
            return text
        ids = np.array(encode(self.tokenizer, text), np.int64)
        known = {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "token_type_ids": np.zeros_like(ids),
            "position_ids": np.arange(len(ids)),
        }
        return {name: self._fitting(name, known[name].astype(DTYPES[s.type])) for name, s in self.specs.items()}

    def _value(self, name: str, value: Any) -> Array:
        spec = self.specs[name]
        if isinstance(value, (Path, bytes)) or (isinstance(value, str) and _is_picture(spec)):
            return self._picture(name, value)
        if value is None:
            raise OpsmithError(f"{name} is empty")
        if spec.type == "tensor(string)":
            return self._fitting(name, np.array(value, object))
        try:
            array = np.array(json.loads(value) if isinstance(value, str) else value).astype(DTYPES[spec.type])
        except (TypeError, ValueError) as error:
            raise OpsmithError(f"{name} is not numbers: {' '.join(str(error).split())[:120]}") from error
        return self._fitting(name, array)

    def _picture(self, name: str, value: Any) -> Array:
        if self.preprocessor is None:
            raise OpsmithError(
                f"{name} is a picture, and no {preprocess.FILE} near {self.path} says how it is read",
                "put one beside the model, or give numbers",
            )
        image = pictures.read(io.BytesIO(value) if isinstance(value, bytes) else value)
        return self._fitting(name, preprocess.pixels(image, self.preprocessor).astype(DTYPES[self.specs[name].type]))

    def _fitting(self, name: str, array: Array) -> Array:
        wanted = self._of_a_row(self.specs[name].shape)
        if self.whole and array.ndim == len(wanted) - 1 and not (isinstance(wanted[0], int) and wanted[0] > 1):
            array = array[None]  # a batch of one
        if array.ndim != len(wanted) or any(isinstance(w, int) and w != d for w, d in zip(wanted, array.shape)):
            raise OpsmithError(f"{name} has the shape {list(array.shape)}, the model wants {wanted}")
        return array


def rows_of_a_run(inputs: Sequence[Sequence[Any]], outputs: Sequence[Sequence[Any]]) -> int | None:
    """How many rows the first axis of every input and output counts: a number that the model was made for, None where it
    takes any; WHOLE where the first axes have different sizes, or there is none, so that they cannot all count rows."""
    if not all((*inputs, *outputs)):
        return WHOLE
    firsts = [shape[0] for shape in inputs]
    fixed = {n for n in firsts if isinstance(n, int)}
    differ = len(fixed) > 1 or (fixed and fixed != {1} and len(fixed) < len(set(firsts)))
    rows = max(fixed, default=None)
    return WHOLE if differ or any(isinstance(o[0], int) and o[0] != rows for o in outputs) else rows


def _is_picture(spec: Any) -> bool:
    return len(spec.shape) == 4 and spec.type in ("tensor(float)", "tensor(float16)")
