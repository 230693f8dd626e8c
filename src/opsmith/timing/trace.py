"""Reading ONNX Runtime's profile (Chrome trace events, microseconds) and the compiled library's kernel counters."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from opsmith.errors import OpsmithError

_WITH_SUBGRAPHS = {"If", "Loop", "Scan", "SequenceMap"}
_ARGUMENTS = ("op_name", "node_index", "provider", "output_type_shape", "activation_size")
_BYTES = {"bool": 1, "float16": 2, "bfloat16": 2, "float": 4, "double": 8}
_BYTES |= {f"{sign}int{bits}": bits // 8 for sign in ("", "u") for bits in (8, 16, 32, 64)}


@dataclasses.dataclass(frozen=True)
class Event:
    """One run of one node."""

    name: str
    op: str
    index: int
    start: int
    duration: int  # less the nodes of its subgraphs, which have events of their own
    provider: str
    outputs: tuple[tuple[tuple[int, ...], int], ...]  # (shape, bytes per element) of each output
    activations: int  # bytes of the inputs that are not weights


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of the whole model."""

    start: int
    duration: int
    events: tuple[Event, ...]

    @property
    def kernels(self) -> int:
        return sum(event.duration for event in self.events)


def read_runs(path: Path) -> list[Run]:
    """The runs of a profile in order, each with its node events."""
    whole, nodes = [], []
    for event in _read_events(path):
        if event.get("name") == "model_run":
            whole.append(event)
        elif event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            nodes.append(event)
    whole.sort(key=_start)
    nodes.sort(key=_start)
    runs, at = [], 0
    for run in whole:
        end = run["ts"] + run["dur"]
        inside = []
        while at < len(nodes) and nodes[at]["ts"] <= end:
            if nodes[at]["ts"] >= run["ts"]:
                inside.append(nodes[at])
            at += 1
        runs.append(Run(run["ts"], run["dur"], tuple(_exclusive(inside))))
    return runs


def _read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Each event has a line of its own: hundreds of megabytes are never held at once, and what no row shows is dropped."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if text := line.strip().strip("[],"):
                try:
                    event = json.loads(text)
                except ValueError as error:
                    raise OpsmithError(f"{path} is not a profile of ONNX Runtime: {error}") from error
                arguments = event.get("args", {})
                event["args"] = {name: arguments[name] for name in _ARGUMENTS if name in arguments}
                yield event


def _start(event: dict[str, Any]) -> tuple[int, int]:
    return event["ts"], -event["dur"]


def _exclusive(events: list[dict[str, Any]]) -> list[Event]:
    """Node events in order of start; a node with subgraphs keeps only the time that its inner nodes did not take."""
    inner = [0] * len(events)
    open_: list[int] = []
    for i, event in enumerate(events):
        while open_ and event["ts"] >= events[open_[-1]]["ts"] + events[open_[-1]]["dur"]:
            open_.pop()
        if open_:
            inner[open_[-1]] += event["dur"]
        if event["args"].get("op_name") in _WITH_SUBGRAPHS:
            open_.append(i)
    return [_event(event, taken) for event, taken in zip(events, inner)]


def _event(event: dict[str, Any], inner: int) -> Event:
    arguments = event["args"]
    outputs = []
    for entry in arguments.get("output_type_shape", []):
        ((kind, shape),) = entry.items()
        outputs.append((tuple(shape), _BYTES.get(kind, 4)))
    return Event(
        name=event["name"].removesuffix("_kernel_time"),
        op=arguments["op_name"],
        index=int(arguments.get("node_index", -1)),
        start=event["ts"],
        duration=max(0, event["dur"] - inner),
        provider=arguments.get("provider", ""),
        outputs=tuple(outputs),
        activations=int(arguments.get("activation_size") or 0),
    )


@dataclasses.dataclass(frozen=True)
class KernelCall:
    """One line that a compiled library wrote while OPSMITH_PROFILE was 1."""

    region: str
    call: int
    node: str
    kernel: str
    us: float
    flops: float
    bytes: float


def read_kernels(text: str) -> list[KernelCall]:
    calls = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            calls.append(KernelCall(**json.loads(line)))
        except (ValueError, TypeError) as error:
            raise OpsmithError(f"line {number} of the compiled library's profile is not readable: {error}") from error
    return calls


def size(outputs: tuple[tuple[tuple[int, ...], int], ...]) -> int:
    return sum(math.prod(shape) * width for shape, width in outputs)
