"""Parquet: parts are joined to row groups of some size; vectors of a fixed size are fixed-size lists."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from opsmith.batch.arrow import arrow
from opsmith.batch.rows import Answer, Chunk, Column, PartData
from opsmith.batch.sinks.writing import answered, failures
from opsmith.errors import OpsmithError

ROW_GROUP = 32 << 20  # bytes, about


class ParquetSink:
    suffix = ".parquet"

    def __init__(self, columns: Mapping[str, Column]) -> None:
        arrow()
        self.columns = columns

    def part(self, chunk: Chunk, answers: Sequence[Answer], keep: Sequence[str]) -> PartData:
        pa = arrow()
        import pyarrow.parquet

        rows = list(answered(answers))
        arrays = {"row": pa.array([chunk.first + i for i, _ in rows], pa.int64())}
        for name in keep:
            arrays[name] = _kept(name, [chunk.columns[name][i] for i, _ in rows])
        for name, column in self.columns.items():
            arrays[name] = _array([answer[name] for _, answer in rows], column)
        buffer = io.BytesIO()
        pyarrow.parquet.write_table(pa.table(arrays), buffer, **_form(self.columns, arrays))
        return PartData(chunk.part, len(rows), failures(chunk, answers), buffer.getvalue(), {})

    def finish(self, parts: Sequence[Path], target: Path) -> None:
        pa = arrow()
        import pyarrow.parquet

        try:
            # A part whose kept values are all missing does not know their type.
            schema = pa.unify_schemas([pyarrow.parquet.read_schema(p) for p in parts], promote_options="permissive")
        except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
            raise OpsmithError(
                f"a kept column changes its type: {error}", "keep fewer columns, or write .jsonl"
            ) from error
        with pyarrow.parquet.ParquetWriter(target, schema, **_form(self.columns, schema.names)) as writer:
            waiting: list[Any] = []
            for part in parts:
                waiting.append(pyarrow.parquet.read_table(part, memory_map=True).cast(schema))
                if sum(table.nbytes for table in waiting) > ROW_GROUP:
                    writer.write_table(pa.concat_tables(waiting))
                    waiting = []
            if waiting:
                writer.write_table(pa.concat_tables(waiting))


def _form(columns: Mapping[str, Column], names: Iterable[str]) -> dict[str, Any]:
    """How it is stored. Vectors hardly repeat: a dictionary of their numbers would be larger than they are."""
    repeating = [n for n in names if n not in columns or columns[n].dtype == "str"]
    return {"compression": "zstd", "compression_level": 1, "use_dictionary": repeating}


def _kept(name: str, values: list[Any]) -> Any:
    pa = arrow()
    try:
        return pa.array([str(v) if isinstance(v, Path) else v for v in values])
    except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
        raise OpsmithError(
            f"column {name} holds values of several types: {error}", "do not keep it, or write .jsonl"
        ) from error


def _array(values: list[Any], column: Column) -> Any:
    pa = arrow()
    if column.dtype == "str" and not column.shape:
        return pa.array(values, pa.string())
    kind = pa.string() if column.dtype == "str" else pa.from_numpy_dtype(np.dtype(column.dtype))
    if not column.shape:
        return pa.array([v.item() if isinstance(v, np.generic) else v for v in map(_scalar, values)], kind)
    if None in column.shape or not values:
        return pa.array([np.asarray(v).tolist() for v in values], _list_type(kind, column.shape))
    flat = pa.array(np.stack(values).reshape(-1), kind)  # (rows, *shape)
    for size in reversed(column.shape):
        flat = pa.FixedSizeListArray.from_arrays(flat, size)
    return flat


def _list_type(kind: Any, shape: Sequence[int | None]) -> Any:
    for size in reversed(shape):
        kind = arrow().list_(kind) if size is None else arrow().list_(kind, size)
    return kind


def _scalar(value: Any) -> Any:
    return np.asarray(value).reshape(()).item() if isinstance(value, np.ndarray) else value
