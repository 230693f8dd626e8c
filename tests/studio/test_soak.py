"""benchmarks/soak.py for a few seconds: eight clients, and every answer is the one that its request gives alone."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import models
import pytest
from serving import Running, begin

import opsmith
from opsmith.studio.core import Studio
from opsmith.studio.models import Models

FILE = Path(__file__).parents[2] / "benchmarks" / "soak.py"


@pytest.fixture(scope="module")
def benchmark() -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("soak_benchmark", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["soak_benchmark"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["soak_benchmark"]


@pytest.fixture(scope="module")
def shared(home: Path) -> Iterator[Running]:
    """A compiled writer: its requests share steps."""
    folder = home / "models" / "llama"
    shutil.copytree(models.tiny_model("llama"), folder)
    opsmith.compile(folder / "dynamo", folder / "fast", regions="whole", verify=False)
    made = begin(Studio(Models(writer=folder), home / "soaked"))
    yield made
    made.stop()


def test_eight_clients_get_what_each_gets_alone(shared: Running, benchmark: Any) -> None:
    found = benchmark.soak(shared.url, 4.0, kinds=("chat", "completion", "embedding"))
    assert found.wrong == [] and found.failed == []
    assert found.counts["chat"] > 8 and found.counts["aborted"] > 2
    assert shared.studio.models.shared_writer().slots == 8
    jobs = shared.studio.jobs
    assert jobs.busy()["writer"] <= 1  # who was cut off does not write on
