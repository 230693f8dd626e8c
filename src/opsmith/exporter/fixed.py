"""Dynamic dims that the user fixes: {"sequence": 32} or {"input_ids": (1, 32)} -> a graph that is static there.

attention_mask [batch, past + sequence]  at sequence=1  ->  [batch, past + 1]
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping

from opsmith.dim_names import parse, spell
from opsmith.errors import OpsmithError
from opsmith.exporter.graph import Dims, Graph, Sizes

Shapes = Mapping[str, int | tuple[int, ...]]


def fix(graph: Graph, shapes: Shapes) -> tuple[Graph, set[str]]:
    """The graph with those dims fixed that it has, and the keys of SHAPES that it knew."""
    sizes: dict[str, int] = {}
    known = set()
    for key, shape in shapes.items():
        for name, size in _dims_of(graph, key, shape):
            known.add(key)
            if sizes.setdefault(name, size) != size:
                raise OpsmithError(f"{name} is to be {sizes[name]} and {size}", "give each dim one size")
    if not known:
        return graph, known
    cases = [{**case, **sizes} for case in graph.cases]
    return (
        dataclasses.replace(
            graph,
            inputs=_without(graph.inputs, sizes),
            outputs=_without(graph.outputs, sizes),
            trace_at={**graph.trace_at, **sizes},
            cases=[case for i, case in enumerate(cases) if case not in cases[:i]],
        ),
        known,
    )


def dims(graph: Graph) -> list[str]:
    """What can be fixed."""
    return sorted(graph.trace_at)


def _dims_of(graph: Graph, key: str, shape: int | tuple[int, ...]) -> Iterator[tuple[str, int]]:
    """The dims that KEY names, a dim or an input, with their sizes."""
    sizes = (shape,) if isinstance(shape, int) else shape
    if key in graph.trace_at and len(sizes) == 1:
        yield key, sizes[0]
    elif key in graph.inputs:
        for axis, name in graph.inputs[key].items():
            if axis >= len(sizes):
                raise OpsmithError(f"{key} has more than {len(sizes)} dims", f"give all, or one by name: {name}=2")
            if name in graph.trace_at:
                yield name, sizes[axis]


def _without(values: Dims, sizes: Sizes) -> Dims:
    """{axis: dim} of every value without what is fixed now; `past + sequence` becomes `past + 1`."""
    return {
        value: {axis: dim for axis, dim in ((a, _at(d, sizes)) for a, d in dims.items()) if not dim.isdecimal()}
        for value, dims in values.items()
    }


def _at(dim: str, sizes: Sizes) -> str:
    written = re.sub(r"[^\W\d]\w*", lambda word: str(sizes.get(word[0], word[0])), dim)
    size = parse(written) if written != dim else None
    return dim if size is None else spell(size)
