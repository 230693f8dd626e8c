"""What a picture will take is told before: on a clock that the components themselves move, so that the answer is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import models
import pytest
from typer.testing import CliRunner

from opsmith import starter
from opsmith.pipelines.diffusion import DiffusionApp, app, estimate, loop
from opsmith.pipelines.diffusion.fast import Fast
from opsmith.pipelines.diffusion.parts import Parts


class Clock:
    """Time is what components cost: a tenth of a second for each output and row of the batch; the first run of each session two more."""

    def __init__(self) -> None:
        self.now = 0.0
        self.seen: set[int] = set()

    def perf_counter(self) -> float:
        return self.now

    def spend(self, loaded: Any, feeds: Any) -> None:
        self.now += 0.1 * max(len(v) for v in feeds.values()) * len(loaded.get_outputs())
        self.now += 2.0 * (id(loaded) not in self.seen)
        self.seen.add(id(loaded))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    compute = Parts._compute

    def counted(self: Parts, name: str, loaded: Any, feeds: Any, outputs: Any) -> Any:
        made.spend(loaded, feeds)
        return compute(self, name, loaded, feeds, outputs)

    monkeypatch.setattr(Parts, "_compute", counted)
    for module in (app, estimate, loop):
        monkeypatch.setattr(module.time, "perf_counter", made.perf_counter)
    return made


PLAIN = {"steps": 12, "guidance": 3.0}
JOBS: dict[str, dict[str, Any]] = {
    "plain": {},
    "unguided": {"guidance": 1.0},
    "deep features reused": {"fast": Fast(reuse=3)},
    "all at once": {"fast": Fast(reuse=3, guided=0.5), "n": 5, "batch": 2},
    "two prompts": {"prompt": ["a frog", "a fish"]},
}


@pytest.mark.parametrize("kind", JOBS)
def test_time_is_right_within_15_percent(clock: Clock, kind: str) -> None:
    options = {"prompt": "a frog"} | PLAIN | JOBS[kind]
    expected = DiffusionApp(starter.folder("pictures"), threads=1).estimate(**options)
    began = clock.now
    made = DiffusionApp(starter.folder("pictures"), threads=1).generate(**options)
    assert made.seconds == pytest.approx(clock.now - began)
    assert expected.seconds == pytest.approx(made.seconds, rel=0.15)
    assert expected.steps == len(made.step_seconds)
    assert expected.steps_seconds + expected.load_seconds == pytest.approx(sum(made.step_seconds), rel=0.15)


def test_a_picture_to_start_from_is_counted(clock: Clock) -> None:
    from PIL import Image

    options: dict[str, Any] = {"strength": 0.5, "steps": 8, "guidance": 3.0, "scheduler": "ddim"}
    options |= {"init": Image.new("RGB", (32, 32), "red")}
    expected = DiffusionApp(models.tiny_pipeline("dynamo"), threads=1).estimate("a pear", **options)
    made = DiffusionApp(models.tiny_pipeline("dynamo"), threads=1).generate("a pear", **options)
    assert expected.steps == len(made.step_seconds) == 4
    assert expected.seconds == pytest.approx(made.seconds, rel=0.15)


def test_the_command_says_time_and_memory_and_writes_nothing(tmp_path: Path) -> None:
    from opsmith.cli import build_app

    words = ["imagine", "a cat", "--estimate", "-m", str(models.tiny_pipeline("dynamo")), "-o", str(tmp_path / "o.png")]
    done = CliRunner().invoke(build_app(), [*words, "--steps", "3", "--scheduler", "ddim", "--threads", "1"])
    assert done.exit_code == 0, done.output
    assert "3 steps of" in done.output and "peak memory" in done.output
    assert not list(tmp_path.iterdir())
