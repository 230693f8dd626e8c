"""Models that draw random numbers: two of them draw the same ones, and which outputs change from run to run nevertheless.

    x -> Dropout in training -> Relu -> y;  x -> Tanh -> z        y is drawn, z is not

With the same seed in the same node two models can be compared as any others. Where that does not make them agree (the node is
another, or its operator takes no seed) nobody can say whether a variant is right: its source disagrees with itself.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import onnx
import onnx_ir as ir

from opsmith import session
from opsmith.check.differences import Tolerance, compare_all
from opsmith.errors import OpsmithError

Edit: TypeAlias = Callable[[onnx.ModelProto], None]

RUNS = 4  # two draws of few numbers may be equal by chance
_TAKE_SEEDS = {
    *("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
}
_DRAW = _TAKE_SEEDS | {
    *("BiasDropout", "BitmaskBiasDropout", "BitmaskDropout", "Sampling"),  # com.microsoft
}
_KNOWN_DOMAINS = {"", "ai.onnx", "ai.onnx.ml", "com.microsoft", "opsmith"}


def draws(node: ir.Node) -> bool:
    """Whether a node may answer otherwise the next time. Of domains that are not known here all may."""
    return node.op_type in _DRAW or node.domain not in _KNOWN_DOMAINS


def same_draws(model: ir.Model) -> Edit | None:
    """For session.load: models draw the same numbers for values of the same names, if they run on the same inputs in the
    same order. None where nothing is drawn."""
    return _seed if any(map(draws, model.graph.all_nodes())) else None


def _seed(proto: onnx.ModelProto) -> None:
    _seed_graph(proto.graph)


def _seed_graph(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _seed_graph(inner)
        if (
            node.op_type in _TAKE_SEEDS
            and node.domain in ("", "ai.onnx")
            and all(a.name != "seed" for a in node.attribute)
        ):
            number = zlib.crc32(node.output[0].encode()) % 2**20  # which a float holds exactly
            node.attribute.append(
                onnx.helper.make_attribute("seed", number if node.op_type == "Dropout" else float(number))
            )


def drawn(
    path: Path,
    model: ir.Model,
    feeds: Iterable[Mapping[str, Any]],
    outputs: Sequence[str],
    tolerance: Tolerance,
    threads: int | None,
) -> set[str]:
    """Those of the OUTPUTS of MODEL, which lies at PATH, that change from run to run by more than TOLERANCE."""
    bodies = (function.all_nodes() for function in model.functions.values())
    if not any(map(draws, itertools.chain(model.graph.all_nodes(), *bodies))):
        return set()
    running = session.load(path, threads=threads, lean=True)
    changing: set[str] = set()
    for feed in feeds:
        try:
            first, *others = (dict(zip(outputs, session.run(running, feed))) for _ in range(RUNS))
        except OpsmithError:
            continue
        for other in others:
            changing |= {check.name for check in compare_all(first, other, tolerance) if not check.ok}
    return changing
