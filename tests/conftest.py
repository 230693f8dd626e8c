"""Shared by all tests. This folder is on sys.path, so any test can `import models` for the tiny exported models."""

from __future__ import annotations

import collections
import gc
import json
import os
from pathlib import Path

import pytest
import quick

from opsmith.compiler import geometry
from opsmith.errors import OpsmithError

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # tests never ask a hub
# torch and numpy with a thread each: where a test runs on every core, threads of tiny models only spin while they wait for each other
os.environ.setdefault("OMP_NUM_THREADS", "1")
SECONDS = Path(__file__).with_name("seconds.json")  # of the test files; written by `pytest --write-seconds`


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """The whole suite runs in as many processes as there are cores; named files or tests run in this one."""
    whole = config.args_source is not pytest.Config.ArgsSource.ARGS
    return len(os.sched_getaffinity(0)) if whole and hasattr(os, "sched_getaffinity") else 0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-seconds", action="store_true", help=f"write what each file took to {SECONDS.name}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files begin first, so that at the end no worker waits for the other."""
    seconds = json.loads(SECONDS.read_text(encoding="utf-8"))
    items.sort(key=lambda item: -seconds.get(_file(item.nodeid), 0))


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


class Seconds:
    """What each file takes, whichever process runs it."""

    def __init__(self) -> None:
        self._taken: collections.Counter[str] = collections.Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._taken[_file(report.nodeid)] += report.duration

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        known = json.loads(SECONDS.read_text(encoding="utf-8")) | self._taken
        here = {name: round(known[name]) for name in sorted(known) if (session.config.rootpath / name).exists()}
        SECONDS.write_text(json.dumps(here, indent=1) + "\n", encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    if "not slow" in config.getoption("markexpr"):
        quick.compile_quickly()
    if config.getoption("write_seconds") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Seconds())


@pytest.fixture(scope="module", autouse=True)
def garbage() -> None:
    """What is alive before a file's tests, modules above all, is not looked through again at every collection that compiling makes."""
    gc.collect()
    gc.freeze()


@pytest.fixture()
def optimized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile with the flags that users get."""
    monkeypatch.setattr(quick.build, "FLAGS", quick.USERS_FLAGS)


@pytest.fixture(scope="session", autouse=True)
def parsed_headers() -> None:
    """Parsed before the first model is compiled: each of hundreds of files then saves 0.4 s, though no test has many of them."""
    try:
        compiler = quick.build.find_compiler()
    except OpsmithError:
        return
    flags = tuple(compiler.flags(geometry.native()))
    quick.build._parsed_headers(compiler, flags, quick.build.FILES_WORTH_PARSING_ONCE)
