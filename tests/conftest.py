"""Shared by all tests. This folder is on sys.path, so any test can `import models` for the tiny exported models."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # tests never ask a hub


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """The whole suite runs in as many processes as there are cores; named files or tests run in this one."""
    whole = config.args_source is not pytest.Config.ArgsSource.ARGS
    return len(os.sched_getaffinity(0)) if whole and hasattr(os, "sched_getaffinity") else 0
