"""One warm process per variant: loads a model, runs it when told to, reports times and memory.

The parent talks to it in JSON lines, one command and one answer at a time:

    load   model, runtime, threads, inputs, profile  ->  load seconds, memory before the load
    first  outputs                                   ->  seconds of the very first run; outputs written
    turn   runs, warm                                ->  seconds of each run, what others did to the CPU meanwhile;
                                                         then it is stopped until its next order
    trace                                            ->  path of ONNX Runtime's profile
    quit                                             ->  peak resident memory, by the kernel's own high-water mark
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from opsmith.errors import OpsmithError

# --- the parent's side ------------------------------------------------------------------------------------


class Worker:
    """A child process that holds one loaded model."""

    def __init__(
        self, label: str, threads: int, environment: Mapping[str, str] | None = None, runtime: str | None = None
    ) -> None:
        """RUNTIME: what to import at once, so that several workers do it side by side."""
        self.label = label
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        package = Path(__file__).parents[2]
        env = {**os.environ, **(environment or {})}
        env["PYTHONPATH"] = os.pathsep.join(p for p in (str(package), env.get("PYTHONPATH", "")) if p)
        # Peers bring their own pools; all of them obey this one, so that everyone has the same threads.
        env["OMP_NUM_THREADS"] = str(threads)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "opsmith.timing.worker", *([runtime] if runtime else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=env,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._let_run(True)
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            raise OpsmithError(f"{self.label}: the process that ran it {self._how_it_died()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise OpsmithError(f"{self.label}: {answer['error']}")
        if do == "turn":
            self._let_run(False)
        return answer

    def _let_run(self, run: bool) -> None:
        """Between turns a worker is stopped: pools spin for a while after a run (ONNX Runtime's for about 30 ms), on the very
        cores that the next variant is timed on."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT if run else signal.SIGSTOP)

    def _how_it_died(self) -> str:
        code = self._process.wait()
        self._errors.seek(0)
        last = self._errors.read().decode(errors="replace").strip().splitlines()[-1:]
        how = f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        return f"{how}{': ' + last[0] if last else ''}"

    def close(self) -> None:
        self._let_run(True)
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()  # the child ends when its orders end
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


# --- the child's side -------------------------------------------------------------------------------------


def memory(field: str) -> int:
    """Bytes of a field of /proc/self/status: VmRSS (now) or VmHWM (the most there ever was)."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    import resource  # not Linux: the best there is; on Linux it would also count the parent's memory before exec

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _end_with_parent() -> None:
    """A stopped process would outlive a parent that was killed: let the kernel end it, where it can (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class _Model:
    """What the child holds between commands."""

    def __init__(self) -> None:
        self.adapter: Any = None
        self.feed: Any = None
        self.threads = 1

    def load(self, order: dict[str, Any]) -> dict[str, Any]:
        from opsmith import store
        from opsmith.timing import peers

        data = store.read_test_data(Path(order["inputs"]) / "model.onnx")[0]
        self.threads = int(order["threads"])
        make = peers.find(order["runtime"])
        peers.warm_up_imports(order["runtime"])
        base = memory("VmRSS")
        started = time.perf_counter()
        self.adapter = make(Path(order["model"]), self.threads, order.get("settings") or {})
        self.feed = self.adapter.prepare(data.inputs)
        return {"load": time.perf_counter() - started, "base_rss": base}

    def first(self, order: dict[str, Any]) -> dict[str, Any]:
        import numpy as np

        from opsmith import store

        started = time.perf_counter()
        raw = self.adapter.run(self.feed)
        seconds = time.perf_counter() - started
        if order.get("outputs"):
            outputs = {n: a for n, a in self.adapter.outputs(raw).items() if isinstance(a, np.ndarray)}
            store.write_test_data(order["outputs"], {}, outputs)
        return {"first": seconds}

    def turn(self, order: dict[str, Any]) -> dict[str, Any]:
        from opsmith.timing import contention

        run, feed = self.adapter.run, self.feed
        for _ in range(order["warm"]):
            run(feed)
        seconds = []
        before = contention.read()
        for _ in range(order["runs"]):
            started = time.perf_counter()
            run(feed)
            seconds.append(time.perf_counter() - started)
        use = contention.between(before, contention.read())
        return {"seconds": seconds, "use": dataclasses.asdict(use)}

    def trace(self, order: dict[str, Any]) -> dict[str, Any]:
        return {"trace": self.adapter.end_profiling()}

    def ready(self, order: dict[str, Any]) -> dict[str, Any]:
        """Answers once everything is imported."""
        return {}

    def quit(self, order: dict[str, Any]) -> dict[str, Any]:
        return {"peak_rss": memory("VmHWM"), "rss": memory("VmRSS")}


def _import(runtime: str) -> None:
    from opsmith import store  # noqa: F401 - every model begins with reading test data
    from opsmith.timing import peers

    with contextlib.suppress(Exception):  # what is missing or broken is said when a model is loaded
        peers.warm_up_imports(runtime)


def main() -> None:
    # Libraries that print must not disturb the protocol: keep the real stdout, give them stderr.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    _end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes the pipe
    model = _Model()
    for runtime in sys.argv[1:]:
        _import(runtime)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = getattr(model, order["do"])(order)
        except OpsmithError as error:
            answer = {"error": str(error)}
        except Exception as error:  # the parent reports it as one line
            answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:600]}"}
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
