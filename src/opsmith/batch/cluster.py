"""The ray engine: actors that hold the model, on all nodes of a Ray cluster. Parts come back to this process, which alone writes.

An actor has as many CPUs as it has threads. Two chunks wait at each actor, so that it never idles and nothing piles up. A chunk whose
actor or node is lost goes to another one.

Without an address the cluster is of this machine alone: it listens on the loopback interface. Usage statistics, which also ask the cloud's
metadata services, are off in either case.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from opsmith import machine
from opsmith.batch.place import Parcel, is_here, pack, unpack
from opsmith.batch.rows import Chunk, PartData
from opsmith.batch.work import Task, Worker
from opsmith.errors import OpsmithError

WAITING = 2  # chunks per actor
TRIES = 5  # of one chunk, on whatever actor
PATIENCE = 600.0  # seconds until the first actor has its model: it may be fetched and compiled first
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_USAGE_STATS_PROMPT_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "1",
}
# Of a cluster of this machine's own. Ray takes 127.0.0.1 for the address of the outer interface, unless it believes itself to be where
# there are no clusters; and its workers stand back behind every other process, unless told not to.
OWN = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_worker_niceness": "0"}
CONNECT_SECONDS = 10.0


def start_ray(address: str | None) -> Any:
    """The package, connected: to the cluster at ADDRESS, or to one of this machine's own."""
    for name, value in (QUIET if address is not None else QUIET | OWN).items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise OpsmithError("the ray engine needs ray, which is not installed", 'pip install ".[ray]"') from error
    if ray.is_initialized():
        raise OpsmithError("this process is connected to a Ray cluster already", "ray.shutdown() first")
    if address is None:
        ray.init(
            address="local",
            num_cpus=machine.cores(),
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _node_ip_address="127.0.0.1",
        )
        return ray
    _check_address(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
    except Exception as error:
        raise OpsmithError(
            f"there is no Ray cluster at {address}: {' '.join(str(error).split())[:200]}",
            "host:port, as `ray start` says",
        ) from error
    return ray


def _check_address(address: str) -> None:
    """Ray itself tries for minutes."""
    import socket

    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        raise OpsmithError(f"{address!r} is not an address", "host:port, as `ray start` says")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise OpsmithError(f"there is no Ray cluster at {address}: {error.strerror or error}") from error


class _Holder:
    """What an actor is: a worker with its model."""

    def __init__(self, task: Task, parcel: Parcel, threads: int) -> None:
        self.task, self.parcel, self.threads = task, parcel, threads
        self.worker: Worker | None = None

    def load(self, content: Mapping[str, Any] | None) -> bool:
        """Whether it has the model now; CONTENT holds references to the files, for a node that has none."""
        if content is None and not is_here(self.parcel):
            return False
        import ray

        model = unpack(self.parcel, lambda name: bytes(ray.get((content or {})[name])))
        self.worker = Worker(dataclasses.replace(self.task, model=model, variant=self.parcel.variant), self.threads)
        return True

    def work(self, chunk: Chunk, batch: int) -> PartData:
        assert self.worker is not None, "load comes before work"
        return self.worker.work(chunk, batch)


@dataclasses.dataclass(frozen=True)
class _Sent:
    """What an actor was asked for: a chunk, or (None) to load the model."""

    actor: int
    chunk: Chunk | None = None
    tries: int = 0


class Cluster:
    def __init__(
        self, task: Task, address: str | None, actors: int | None, threads: int, pictures: frozenset[str] = frozenset()
    ) -> None:
        """PICTURES: the columns that name files."""
        self.task, self.threads, self.pictures = task, threads, pictures
        self.ray = start_ray(address)
        try:
            self.parcel = pack(task.model, task.variant)
            self.content: dict[str, Any] | None = None  # the model's files in the object store, if a node needs them
            rooms = [int(node["Resources"].get("CPU", 0)) // threads for node in self._nodes()]
            if not sum(rooms):
                raise OpsmithError(f"no node of the cluster has {threads} CPUs", "--threads 1")
            self.sent: dict[Any, _Sent] = {}
            self.actors: dict[int, Any] = {}
            self.ready: set[int] = set()
            self.started = 0
            for _ in range(actors or sum(rooms)):
                self._start_actor()
        except BaseException:
            self.end()
            raise

    def _nodes(self) -> list[dict[str, Any]]:
        return [node for node in self.ray.nodes() if node["Alive"]]

    def _start_actor(self) -> None:
        holder = self.ray.remote(num_cpus=self.threads)(_Holder)
        number, self.started = self.started, self.started + 1
        self.actors[number] = holder.remote(self.task, self.parcel, self.threads)
        self.sent[self.actors[number].load.remote(self.content)] = _Sent(number)

    def _deliver(self, number: int) -> None:
        """The model for an actor whose node does not have it."""
        if self.content is None:
            self.content = {name: self.ray.put((self.parcel.root / name).read_bytes()) for name in self.parcel.files}
        self.sent[self.actors[number].load.remote(self.content)] = _Sent(number)

    def run(self, chunks: Iterator[Chunk], batch: int) -> Iterator[PartData]:
        """The parts, in the order in which they become ready."""
        again: collections.deque[_Sent] = collections.deque()  # lost ones
        while True:
            more = self._fill(again, chunks, batch)
            if not more and not any(one.chunk for one in self.sent.values()):
                return
            ready, _ = self.ray.wait(list(self.sent), num_returns=1, timeout=PATIENCE)
            if not ready and not self.ready:
                raise OpsmithError("no actor began to work", "the cluster may have no free CPUs; ray status says so")
            for reference in ready:
                one = self.sent.pop(reference)
                data = self._answer(reference, one, again)
                if data is not None:
                    yield data

    def _answer(self, reference: Any, one: _Sent, again: collections.deque[_Sent]) -> PartData | None:
        """A part, if it is one; what is lost goes to AGAIN."""
        try:
            answer: PartData | bool = self.ray.get(reference)
        except self.ray.exceptions.RayActorError as error:  # the actor or its node is gone
            self._lost(one, error)
            if one.chunk is not None:
                again.append(dataclasses.replace(one, tries=one.tries + 1))
            return None
        except self.ray.exceptions.RayTaskError as error:
            raise as_ours(error) from error
        if answer is False:
            self._deliver(one.actor)
            return None
        self.ready.add(one.actor)
        return answer if isinstance(answer, PartData) else None

    def _lost(self, one: _Sent, error: Any) -> None:
        """One actor less; a new one if it was the last."""
        self.actors.pop(one.actor, None)
        self.ready.discard(one.actor)
        if one.tries + 1 >= TRIES or (one.chunk is None and not self.actors):
            rows = f"rows from {one.chunk.first} on: " if one.chunk is not None else ""
            raise OpsmithError(
                f"{rows}an actor was lost: {' '.join(str(error).split())[-200:]}",
                "what is done is kept; look at the cluster, then go on with the same command",
            ) from error
        if not self.actors:
            self._start_actor()

    def _fill(self, again: collections.deque[_Sent], chunks: Iterator[Chunk], batch: int) -> bool:
        """Every actor that is ready gets WAITING chunks, those first that have least; whether there may be more."""
        load = collections.Counter(dict.fromkeys(self.ready, 0))
        load.update(one.actor for one in self.sent.values() if one.actor in self.ready)
        while load and min(load.values()) < WAITING:
            actor = min(load, key=lambda i: load[i])
            chunk = next(chunks, None) if not again else again[0].chunk
            if chunk is None:
                return False
            tries = again.popleft().tries if again else 0
            self.sent[self.actors[actor].work.remote(with_contents(chunk, self.pictures), batch)] = _Sent(
                actor, chunk, tries
            )
            load[actor] += 1
        return True

    def end(self) -> None:
        self.ray.shutdown()


def with_contents(chunk: Chunk, pictures: frozenset[str]) -> Chunk:
    """Files are read here: other machines may not see them. A row whose file cannot be read fails there, alone."""
    contents = {name: [_content(value) for value in chunk.columns[name]] for name in pictures}
    return dataclasses.replace(chunk, contents=contents)


def _content(value: Any) -> bytes | None:
    if not isinstance(value, (str, Path)):
        return None
    try:
        return Path(value).read_bytes()
    except (OSError, ValueError):
        return None


def as_ours(error: Any) -> OpsmithError:
    cause = getattr(error, "cause", None)
    if isinstance(cause, OpsmithError):
        return OpsmithError(cause.message, cause.hint)
    return OpsmithError(f"an actor failed: {' '.join(str(error).split())[-300:]}")
