"""Which outputs of a model it does not answer alike twice: they depend on random numbers that it draws.

    x -> Dropout in training -> Relu -> y;  x -> Tanh -> z        y is drawn, z is not

Nobody can say whether a variant is right where its source disagrees with itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from opsmith import session
from opsmith.check.differences import Tolerance, compare_all
from opsmith.errors import OpsmithError

RUNS = 4  # two draws of few numbers may be equal by chance
_DRAW = {
    *("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
    *("BiasDropout", "BitmaskBiasDropout", "BitmaskDropout", "Sampling"),  # com.microsoft
}
_KNOWN_DOMAINS = {"", "ai.onnx", "ai.onnx.ml", "com.microsoft", "opsmith"}


def draws(node: ir.Node) -> bool:
    """Whether a node may answer otherwise the next time. Of domains that are not known here all may."""
    return node.op_type in _DRAW or node.domain not in _KNOWN_DOMAINS


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
