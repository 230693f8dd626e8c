"""compare: everything that changed from A to B in one look.

graph     operators by type, nodes, parameters, size
outputs   how far B's are from A's
speed     the ratio with its interval (bench)
time      where it went, by type and by original node (profile)
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from opsmith import session, store
from opsmith.check.feed import Given
from opsmith.check.verify import VerifyResult, verify
from opsmith.measure import profile as profiling
from opsmith.measure.bench import BenchResult, bench
from opsmith.measure.inspect import parameters
from opsmith.nodes import operator_name
from opsmith.plain import Shown


@dataclasses.dataclass(frozen=True)
class GraphFacts:
    nodes: int
    parameters: int | None  # unknown for a compiled model, whose weights are packed
    size: int
    ops: dict[str, int]  # op type, with its domain if it is not ONNX's own -> how many


@dataclasses.dataclass(repr=False)
class CompareResult(Shown):
    a: GraphFacts
    b: GraphFacts
    verified: VerifyResult
    bench: BenchResult
    profiles: list[profiling.Profile]

    @property
    def ops(self) -> list[tuple[str, int, int]]:
        """(op, how many in A, how many in B) of the types whose number changed, the largest change first."""
        names = {**self.a.ops, **self.b.ops}
        rows = [(op, self.a.ops.get(op, 0), self.b.ops.get(op, 0)) for op in names]
        return sorted((r for r in rows if r[1] != r[2]), key=lambda r: (-abs(r[2] - r[1]), r[0]))

    def to_dict(self) -> dict[str, Any]:
        return {
            "a": dataclasses.asdict(self.a),
            "b": dataclasses.asdict(self.b),
            "verified": self.verified.ok,
            "outputs": [dataclasses.asdict(check) for check in self.verified.worst],
            "bench": self.bench.to_dict(),
            **profiling.to_dict(self.profiles),
        }


def compare(
    a: store.PathLike | store.Variant,
    b: store.PathLike | store.Variant,
    *,
    threads: int | None = None,
    seconds: float = 10.0,
    rounds: int | None = None,
    processes: int | None = None,
    iterations: int | None = None,
    shapes: Mapping[str, int | Sequence[int]] | None = None,
    inputs: Given | None = None,
    seed: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
) -> CompareResult:
    """Compare variant B with A: what it is made of, what it computes, how fast it is and where the time goes."""
    pair = [store.find_model(a), store.find_model(b)]
    facts = [graph_facts(path) for path in pair]
    asked = dict(shapes) if shapes else 1
    checked = verify(*pair, rtol=rtol, atol=atol, seed=seed, shapes=asked, inputs=inputs, threads=threads)
    timed = bench(
        pair,
        threads=threads,
        seconds=seconds,
        rounds=rounds,
        processes=processes,
        shapes=shapes,
        inputs=inputs,
        seed=seed,
        rtol=rtol,
        atol=atol,
    )
    found = profiling.profile(pair, threads=threads, iterations=iterations, shapes=shapes, inputs=inputs, seed=seed)
    return CompareResult(facts[0], facts[1], checked, timed, found)


def graph_facts(model: store.PathLike | store.Variant) -> GraphFacts:
    """Counts of the file as it is, functions not expanded."""
    opened = store.open_model(model)
    ops = collections.Counter(operator_name(n) for n in opened.graph)
    path = store.find_model(model)
    count = None if store.is_packed(path) else parameters(opened)
    return GraphFacts(len(opened.graph), count, session.size_on_disk(path), dict(ops))
