"""ONNX's own node tests. Making them takes half a minute, so they are kept: several files of tests, and the fuzzer, start from them."""

from __future__ import annotations

import dataclasses
import fcntl
import pickle
import warnings
from typing import Any

import numpy as np
import onnx
from models import cache_folder
from onnx import numpy_helper


@dataclasses.dataclass(frozen=True)
class Case:
    """One node test: a model, its inputs, and the outputs that ONNX says are right."""

    name: str
    op: str
    model: bytes
    inputs: list[Any]
    outputs: list[Any]
    rtol: float
    atol: float


def load_cases() -> list[Case]:
    """All node tests of the installed ONNX."""
    kept = cache_folder() / f"onnx_node_tests_{onnx.__version__}.pkl"
    with kept.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a second worker waits instead of making them too
        if not kept.exists():
            made = kept.with_suffix(".making")
            made.write_bytes(pickle.dumps([dataclasses.astuple(c) for c in _make_cases()]))
            made.rename(kept)
    return [Case(*fields) for fields in pickle.loads(kept.read_bytes())]


def _make_cases() -> list[Case]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        tests = load_model_tests(kind="node")
    cases = []
    for test in tests:
        inputs, outputs = test.data_sets[0]
        plain = [[_plain(x) for x in side] for side in (inputs, outputs)]
        cases.append(Case(test.name, operator_of(test), test.model.SerializeToString(), *plain, test.rtol, test.atol))
    return cases


def _plain(x: Any) -> Any:
    if isinstance(x, onnx.TensorProto):
        return numpy_helper.to_array(x)
    if isinstance(x, (list, tuple)):
        return [_plain(y) for y in x]
    return x if x is None else np.asarray(x)


def operator_of(test: Any) -> str:
    """The operator under test. An `_expanded` test holds the function body of the operator it is named after."""
    names = [n.op_type for n in test.model.graph.node]
    if len(set(names)) == 1 or "expanded" not in test.name:
        return names[0] if names else "none"
    words = test.name.removeprefix("test_").split("_expanded")[0].replace("_", "")
    known = {s.name for s in onnx.defs.get_all_schemas()}
    return max((n for n in known if words.startswith(n.lower())), key=len, default=names[-1])
