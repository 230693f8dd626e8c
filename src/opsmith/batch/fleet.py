"""Tuning for a fleet: one node of every kind of CPU measures the kernels of a model, and all results come into this machine's database."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opsmith import machine, progress, store
from opsmith.batch.cluster import as_ours, start_ray
from opsmith.batch.place import Parcel, pack, unpack
from opsmith.compiler.tune.database import Database

SEARCH = 2  # the wide one: it is done once for all


class _Node:
    """A node, asked by an actor that has all its CPUs: nothing else of Ray's runs beside a measurement."""

    def kind(self) -> str:
        return machine.cpu_model()

    def tune(self, parcel: Parcel, content: Mapping[str, Any]) -> bytes:
        """What the node's database has for its CPU once the model was compiled with a search, as an export."""
        import ray

        from opsmith.compiler import compile

        model = unpack(parcel, lambda name: bytes(ray.get(content[name])))
        with tempfile.TemporaryDirectory(prefix="opsmith-tune-") as folder:
            compile(model, Path(folder) / "tuned" / "compiled", search=SEARCH)
            file = Path(folder) / "results.jsonl"
            Database().export(file)
            return file.read_bytes()


def tune(model: store.PathLike, address: str | None = None) -> dict[str, int]:
    """Kind of CPU -> how many results its node gave; MODEL is a variant that is not compiled."""
    parcel = pack(store.find_model(model), None)
    ray = start_ray(address)
    try:
        kinds = _one_of_each_kind(ray)
        content = {name: ray.put((parcel.root / name).read_bytes()) for name in parcel.files}
        asked = {kind: node.tune.remote(parcel, content) for kind, node in kinds.items()}
        counts = {}
        with progress.task("tuning", total=len(asked)) as step, tempfile.TemporaryDirectory() as folder:
            for number, (kind, reference) in enumerate(asked.items()):
                file = Path(folder) / f"{number}.jsonl"
                file.write_bytes(_got(ray, reference))
                counts[kind] = Database().load(file)
                step(kind)
        return counts
    finally:
        ray.shutdown()


def _one_of_each_kind(ray: Any) -> dict[str, Any]:
    """Kind of CPU -> an actor on the first node that has it."""
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    actors = []
    for node in ray.nodes():
        if node["Alive"] and (cpus := node["Resources"].get("CPU")):
            where = strategy(node["NodeID"], soft=False)
            actors.append(ray.remote(num_cpus=cpus, scheduling_strategy=where)(_Node).remote())
    kinds: dict[str, Any] = {}
    for actor in actors:
        kinds.setdefault(_got(ray, actor.kind.remote()), actor)
    return kinds


def _got(ray: Any, reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:
        raise as_ours(error) from error
