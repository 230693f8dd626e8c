"""What exporters leave behind, put in order.

names      dims and weights are called what they are called in the source
privacy    no stack traces, which hold paths of this machine
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from opsmith import store
from opsmith.dim_names import parse, spell
from opsmith.errors import OpsmithError
from opsmith.exporter.graph import Graph


def identifier(dim: str) -> str:
    """Exporters take identifiers only: `past + sequence` -> `dim_past_sequence`, renamed back by `tidy`."""
    return dim if dim.isidentifier() else "dim_" + re.sub(r"\W+", "_", dim)


def tidy(model: ir.Model, graph: Graph, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """`arrays` are one case's inputs and outputs; they tell the sizes of the dims that never vary."""
    for part in (model.graph, *(f.graph for f in model.functions.values())):
        part.metadata_props.clear()
        part.doc_string = None
        for node in part.all_nodes():
            node.metadata_props.clear()
            node.doc_string = None
    model.metadata_props.clear()
    model.doc_string = None
    for weight in list(model.graph.initializers.values()):
        weight.name = (weight.name or "").removeprefix("model.")  # the attribute of the traced wrapper
    _name_transposed(model, graph.model)

    names = {identifier(n): n for dims in graph.inputs.values() for n in dims.values() if not n.isidentifier()}
    for node in model.graph.all_nodes():
        for value in node.outputs:
            if value.shape is not None:
                value.shape = ir.Shape([_renamed(dim, names) for dim in value.shape])
    for values, dims in ((model.graph.inputs, graph.inputs), (model.graph.outputs, graph.outputs)):
        for value in values:
            _declare(value, dims[value.name or ""], arrays[value.name or ""].shape)


def _name_transposed(model: ir.Model, module: Any) -> None:
    """Exporters store the weight of a linear layer as its product reads it, [in,out], under a name of their own: it becomes that of
    the layer's weight and TRANSPOSED, so that checkpoints and adapters find it."""
    left = {n: p.detach() for n, p in module.named_parameters() if p.dim() == 2 and n not in model.graph.initializers}
    for value in list(model.graph.initializers.values()):
        tensor = value.const_value
        if tensor is None or len(tensor.shape) != 2 or not tensor.dtype.is_floating_point():
            continue
        array = tensor.numpy()
        for name, weight in left.items():
            if tuple(weight.shape) == array.shape[::-1] and np.array_equal(weight.float().numpy().T, array):
                value.name = name + store.TRANSPOSED
                del left[name]
                break


def _renamed(dim: int | ir.SymbolicDim, names: Mapping[str, str]) -> int | str | None:
    """`dim_past_sequence` and `sequence + past` -> `past + sequence`, `(dim_8_height//2)` -> `4*height`."""
    if isinstance(dim, int) or dim.value is None:
        return dim if isinstance(dim, int) else None
    renamed = re.sub(r"\b[^\W\d]\w*", lambda word: f"({names[word[0]]})" if word[0] in names else word[0], dim.value)
    if dim.value.isidentifier() and renamed == dim.value:
        return renamed
    size = parse(renamed)
    if size is not None:
        return spell(size)
    # a function of torch's own stays as it was written; `Concatpresent.0.key_dim_0` torchscript made up
    return None if re.search(r"\.\d|:", renamed) else renamed


def _declare(value: ir.Value, names: Mapping[int, str], shape: Sequence[int]) -> None:
    """Dynamic dims by name, all others with their size, which torchscript forgets."""
    for axis, dim in enumerate(value.shape or ()):
        if isinstance(dim, int) and axis in names:
            raise OpsmithError(f"the exporter made dim {axis} ({names[axis]}) of {value.name} a constant")
    value.shape = ir.Shape([names.get(axis, size) for axis, size in enumerate(shape)])
