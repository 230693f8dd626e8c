"""A process of the local engine: holds a loaded model and answers chunks, one message at a time.

    open  (model, variant, threads, cpus)  ->  what kind of model it is
    bind  (task)                           ->  nothing; from now on it knows what to do with a row
    work  (chunk, batch)                   ->  the part, and the seconds that it took

Messages are pickles with their length before them, on pipes between parent and child. A parent that is gone, however it went, is the
end of standard input: the child ends, too.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

from opsmith.batch.rows import Chunk, PartData, Traits
from opsmith.batch.work import Task, Worker
from opsmith.errors import OpsmithError

# --- the parent's side ------------------------------------------------------------------------------------


class Died(OpsmithError):
    """The process ended before it answered."""


class Process:
    def __init__(self, model: Path, variant: str | None, threads: int, cpus: Sequence[int]) -> None:
        self.opening = ("open", model, variant, threads, tuple(cpus))
        package = Path(__file__).parents[2]
        env = {**os.environ, "TOKENIZERS_PARALLELISM": "false" if threads == 1 else "true"}
        env["RAYON_NUM_THREADS"] = str(threads)
        env["PYTHONPATH"] = os.pathsep.join(p for p in (str(package), env.get("PYTHONPATH", "")) if p)
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from opsmith.batch.worker import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
            start_new_session=True,  # Ctrl-C is the parent's to handle
        )
        self.send(*self.opening)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, *message: Any) -> None:
        try:
            _put(cast(BinaryIO, self._process.stdin), message)
        except BrokenPipeError as error:
            raise Died(f"a worker process {self._ending()}") from error

    def receive(self) -> Any:
        answer = _get(cast(BinaryIO, self._process.stdout))
        if answer is None:
            raise Died(f"a worker process {self._ending()}")
        fine, value = answer
        if not fine:
            message, hint = value
            raise OpsmithError(message, hint)
        return value

    def traits(self) -> Traits:
        """What it says once the model is loaded."""
        return cast(Traits, self.receive())

    def work(self, chunk: Chunk, batch: int) -> tuple[PartData, float]:
        self.send("work", chunk, batch)
        return cast("tuple[PartData, float]", self.receive())

    def bind(self, task: Task) -> None:
        self.send("bind", task)
        self.receive()

    def _ending(self) -> str:
        code = self._process.wait()
        return "was killed, perhaps for want of memory" if code == -9 else f"ended with code {code}"

    def end(self) -> None:
        """At once: what it was doing is not entered anywhere, so nothing is lost."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def _put(pipe: BinaryIO, message: Any) -> None:
    content = pickle.dumps(message, protocol=5)
    pipe.write(len(content).to_bytes(8, "little") + content)
    pipe.flush()


def _get(pipe: BinaryIO) -> Any:
    """The next message; None at the end."""
    size = pipe.read(8)
    if len(size) < 8:
        return None
    content = pipe.read(int.from_bytes(size, "little"))
    return pickle.loads(content)


# --- the child's side -------------------------------------------------------------------------------------


class _Child:
    def __init__(self) -> None:
        self.worker: Worker | None = None
        self.runner: Any = None

    def answer(self, do: str, arguments: tuple[Any, ...]) -> Any:
        if do == "open":
            from opsmith.batch.runners import open_runner

            model, variant, threads, cpus = arguments
            if cpus and hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(0, cpus)
            self.runner = open_runner(model, variant, threads)
            return self.runner.traits
        if do == "bind":
            self.worker = Worker(arguments[0], None, self.runner)
            return None
        assert self.worker is not None, "bind comes before work"
        chunk, batch = arguments
        began = time.perf_counter()
        return self.worker.work(chunk, batch), time.perf_counter() - began


def main() -> None:
    # What a library prints goes to standard error: standard output is the answer's.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    child = _Child()
    while (message := _get(cast(BinaryIO, sys.stdin.buffer))) is not None:
        do, *arguments = message
        try:
            answer: tuple[bool, Any] = (True, child.answer(do, tuple(arguments)))
        except OpsmithError as error:
            answer = (False, (error.message, error.hint))
        except MemoryError:
            answer = (False, ("a worker process ran out of memory", "--processes 1, or a smaller --batch"))
        except Exception as error:  # a bug: it is told as one, with its place
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(place.filename).name}:{place.lineno}"
            answer = (False, (f"{type(error).__name__} in a worker: {error} ({where}); please report it", None))
        try:
            _put(answers, answer)
        except BrokenPipeError:
            return
