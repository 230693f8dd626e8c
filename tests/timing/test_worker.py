from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from small_models import mlp, save

from opsmith import store
from opsmith.timing.worker import Worker

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")


def state(pid: int) -> str:
    """R running, S sleeping, T stopped, Z dead and not waited for; empty when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def comes_to(pid: int, states: str) -> bool:
    ends = time.monotonic() + 20
    while time.monotonic() < ends:
        if state(pid) in states.split("|"):
            return True
        time.sleep(0.01)
    return False


@pytest.fixture
def order(tmp_path):
    """What makes a worker load a small model."""
    folder = save(mlp(), tmp_path / "net" / "a")
    store.write_test_data(tmp_path / "in", {"x": np.ones((1, 64), np.float32)}, {})
    return {
        "model": str(store.find_model(folder)),
        "runtime": "ort",
        "threads": 1,
        "inputs": str(tmp_path / "in"),
    }


def test_between_turns_a_worker_is_stopped(order):
    """A pool that still spins would run on the cores on which the next variant is timed."""
    with Worker("a", 1) as worker:
        worker.ask("load", **order)
        assert state(worker.pid) != "T"
        for _ in range(2):
            assert len(worker.ask("turn", runs=3, warm=0)["seconds"]) == 3
            assert comes_to(worker.pid, "T")
        worker.ask("quit")
    assert state(worker.pid) == ""  # a stopped one ends too


def test_a_stopped_worker_does_not_outlive_a_killed_parent(order):
    script = (
        "import json, sys, time\n"
        "from opsmith.timing.worker import Worker\n"
        "worker = Worker('a', 1)\n"
        "worker.ask('load', **json.loads(sys.argv[1]))\n"
        "worker.ask('turn', runs=1, warm=0)\n"
        "print(worker.pid, flush=True)\n"
        "time.sleep(60)\n"
    )

    command = [sys.executable, "-c", script, json.dumps(order)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert comes_to(pid, "T")
        parent.send_signal(signal.SIGKILL)
        assert comes_to(pid, "|Z")
