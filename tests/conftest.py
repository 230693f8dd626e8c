"""Shared by all tests. This folder is on sys.path, so any test can `import models` for the tiny exported models."""

from __future__ import annotations

import os

import pytest
import quick

from opsmith.compiler import geometry
from opsmith.errors import OpsmithError

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # tests never ask a hub


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """The whole suite runs in as many processes as there are cores; named files or tests run in this one."""
    whole = config.args_source is not pytest.Config.ArgsSource.ARGS
    return len(os.sched_getaffinity(0)) if whole and hasattr(os, "sched_getaffinity") else 0


# Begun first, so that at the end no worker waits for the other: seconds of processor time, Zen 4, empty caches.
LONGEST = (
    "kernels/test_kernels.py",  # about 400
    "compiler/test_models.py",  # 180
    "pipelines/test_accelerate.py",  # 170
    "docs/test_walkthrough.py",  # 95, most of it waiting for measurements
    "docs/test_pages.py",
    "tests/test_demo.py",  # 52
    "studio/test_browser.py",
    "compiler/test_other_machines.py",  # 77
    "compiler/test_precision.py",  # 61
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get("/".join(item.path.parts[-2:]), len(LONGEST)))


def pytest_configure(config: pytest.Config) -> None:
    if "not slow" in config.getoption("markexpr"):
        quick.compile_quickly()


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
