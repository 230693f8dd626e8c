"""The studio's models: compiling in the background, the cache, measured speeds; the server as a process; memory."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import onnx
import pytest
from serving import ended, visitor_of

from opsmith.errors import OpsmithError
from opsmith.pipelines.diffusion import Cancelled
from opsmith.starter import in_use
from opsmith.studio import speeds
from opsmith.studio.core import Studio
from opsmith.studio.forge import Forge, Progress
from opsmith.studio.models import Models
from opsmith.studio.verbs import run_opsmith


def test_a_part_is_compiled_into_the_cache_and_the_package_stays_as_it_is(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPSMITH_CACHE", str(tmp_path))
    models = Models()
    package = models.home("pictures")
    before = sorted(package.rglob("*"))
    every = Models.parts
    monkeypatch.setattr(Models, "parts", lambda self: {"text_encoder": every(self)["text_encoder"]})  # the quickest
    told: list[Progress] = []
    assert [part.name for part in models.uncompiled()] == ["text_encoder"]
    assert models.compile("fp32", told.append, lambda: False) == []
    assert {now.note for now in told} == {"compiling text encoder, 1 of 1"}
    shares = [now.share for now in told]
    assert shares == sorted(shares)
    assert 0 < shares[-1] < 1  # the bar moves while the part is compiled
    assert told[-1].seconds_left < told[0].seconds_left
    assert models.uncompiled() == []
    assert tmp_path in models.home("pictures").parents
    assert sorted(package.rglob("*")) == before
    again = Models()  # another start finds it
    assert again.uncompiled() == []
    assert in_use.folder("pictures") == models.home("pictures")  # and so do imagine, edit and write


def test_the_time_to_compile_is_estimated_from_this_machine(tmp_path: Path) -> None:
    parts = Models().uncompiled()
    forge = Forge(tmp_path / "forge.json")
    assert forge.estimate(parts) is None  # nothing is known yet
    forge.probe()
    first = forge.estimate(parts)
    assert first is not None
    assert first > 1
    assert Forge(tmp_path / "forge.json").estimate(parts) == first  # kept
    (tmp_path / "forge.json").write_text('{"seconds_per_node": 2}')  # what a slow machine learned
    slow = Forge(tmp_path / "forge.json")
    assert slow.estimate(parts[:1]) == 2 * len(onnx.load(parts[0].original.path).graph.node)


def test_a_verb_in_a_process_of_its_own_fails_with_its_line_and_ends_when_told() -> None:
    with pytest.raises(OpsmithError, match="nowhere"):
        run_opsmith(["inspect", "nowhere"], lambda: False)
    started = time.monotonic()
    with pytest.raises(Cancelled):
        run_opsmith(["demo", "never"], lambda: True)
    assert time.monotonic() - started < 15
    assert not Path("never").exists()


def test_speeds_are_kept_for_the_next_start(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPSMITH_CACHE", str(tmp_path))
    models = Models()
    name = models.variants()[0].name
    assert models.variants()[0].seconds_per_step is None
    assert models.note_speed(name, [0.5, 0.2]) is False  # too few
    assert models.note_speed(name, [9.0, 0.2, 0.3, 0.4]) is True  # the first one warms up
    assert models.note_speed(name, [0.1, 0.9, 0.8, 0.9]) is False  # a busy machine
    assert models.variants()[0].seconds_per_step == 0.3
    assert Models().variants()[0].seconds_per_step == 0.3
    assert Models(threads=1).variants()[0].seconds_per_step is None


def test_variants_are_timed_in_turn_and_only_then_compared(
    pipeline: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPSMITH_CACHE", str(tmp_path))
    monkeypatch.setattr(speeds, "SECONDS", 1)
    monkeypatch.setattr(speeds, "PROCESSES", 1)
    models = Models(pictures=pipeline, threads=1)
    first, second = (choice.name for choice in models.variants())
    models.note_speed(first, [9.0, 0.1, 0.1, 0.1])  # at one moment
    models.note_speed(second, [9.0, 0.9, 0.9, 0.9])  # at another
    assert models.best() == second  # moments are not compared: the newest is taken
    assert models.untimed()
    models.time_variants(lambda: False)
    timed = models.variants()
    assert all(choice.together and choice.seconds_per_step for choice in timed)
    assert models.best() == min(timed, key=lambda choice: choice.seconds_per_step or 0).name
    assert models.untimed() == any(choice.busy for choice in timed)  # a busy machine: again when there is time
    again = Models(pictures=pipeline, threads=1)
    assert again.variants() == timed  # kept
    unet = pipeline / "unet" / second
    os.utime(next(unet.glob("*.onnx")))  # made anew: no longer what was timed
    assert not any(choice.together for choice in again.variants())


def test_warming_up_measures_the_speed(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPSMITH_CACHE", str(tmp_path))
    studio = Studio(Models(), tmp_path / "pictures")
    job = studio.warm_up()
    until = time.monotonic() + 60
    while job.state not in ("done", "failed", "cancelled") and time.monotonic() < until:
        time.sleep(0.02)
    assert (job.state, job.error) == ("done", "")
    assert studio.models.variants()[0].seconds_per_step
    assert not (tmp_path / "pictures").exists()  # its picture is kept nowhere
    studio.jobs.close()


@contextlib.contextmanager
def served(verb: str, folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`opsmith VERB` as a process of its own in FOLDER, and its address."""
    more = ["--no-browser"] if verb == "studio" else []
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "opsmith", verb, "--port", "0", *more],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=_absolute(),
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert address, line
        yield process, address[0]
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()


@pytest.mark.parametrize(("verb", "where"), [("studio", "/"), ("serve", "/v1/models")])
def test_the_command_serves_and_ends_politely(home: Path, tmp_path: Path, verb: str, where: str) -> None:
    with served(verb, tmp_path) as (process, address):
        assert httpx.get(address + where, timeout=60).status_code == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stdout is not None
        assert "Traceback" not in process.stdout.read()
    assert list(tmp_path.iterdir()) == []  # nothing is written before a picture is made


def test_an_interrupt_while_a_page_is_open_and_a_picture_is_made_prints_nothing(home: Path, tmp_path: Path) -> None:
    with served("studio", tmp_path) as (process, address), visitor_of(address) as client:
        with client.stream("GET", "/api/events") as page:
            next(page.iter_lines())
            body = {"prompt": "a red apple", "steps": 150, "width": 256, "height": 256}
            job = client.post("/api/pictures", json=body).json()
            waits = client.post("/api/pictures", json=body).json()
            while not client.get(f"/api/jobs/{job['id']}").json()["step"]:
                time.sleep(0.02)
            assert client.get(f"/api/jobs/{waits['id']}").json()["state"] == "queued"
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        assert process.stdout is not None
        assert process.stdout.read() == ""


def _absolute() -> dict[str, str]:
    paths = [str(Path(p).resolve()) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def test_memory_stays_flat_over_fifty_generations(home: Path, tmp_path: Path) -> None:
    """As the page asks for them, with previews after the first of two steps; what the first ten need may stay. The server is a process of its own: in this one,
    what earlier tests left on the heap is taken and given back meanwhile."""
    with served("studio", tmp_path) as (process, address), visitor_of(address) as client:
        statm = Path(f"/proc/{process.pid}/statm")
        resident = []
        for seed in range(50):
            body = {"prompt": "a red apple on a yellow background", "steps": 2, "guidance": 1, "seed": seed}
            job = ended(client, client.post("/api/pictures", json=body))
            assert job["state"] == "done", job["error"]
            resident.append(int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20)
    growth = sum(resident[-10:]) / 10 - sum(resident[10:20]) / 10
    print(f"memory: {resident[0]:.0f} MB after the first, {resident[10]:.0f} after 11, {resident[-1]:.0f} after 50")
    assert growth < 12, resident


@pytest.mark.slow
def test_all_starter_models_are_compiled_in_the_background(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPSMITH_CACHE", str(tmp_path))
    studio = Studio(Models(), tmp_path / "pictures")
    job = studio.compile()
    assert studio.compile() is job  # who asks twice gets the same one
    until = time.monotonic() + 900
    while job.state not in ("done", "failed", "cancelled") and time.monotonic() < until:
        time.sleep(0.1)
    assert (job.state, job.error) == ("done", "")
    assert studio.models.uncompiled() == []
    assert [c.compiled for c in studio.models.variants()] == [False, True]
    assert all(c.together for c in studio.models.variants())  # timed in turn before the job ended
    print({c.name: c.seconds_per_step for c in studio.models.variants()})
    report = studio.report("unet")
    while report.state not in ("done", "failed", "cancelled") and time.monotonic() < until:
        time.sleep(0.1)
    assert (report.state, report.error) == ("done", "")
    text = studio.models.report_file("unet").read_text(encoding="utf-8")
    assert "Where the time goes" in text
    assert all(c.name in text for c in studio.models.variants())
    studio.jobs.close()
