"""Models are compiled at -O1 in a test run: the same kernels in half of g++'s time, which is most of the suite's. Timings are
taken once: tests run beside each other, where no machine is quiet.

`pytest -m slow`, the demo's test, programs that tests start, and tests that use the fixture `optimized` compile as users do.
"""

from __future__ import annotations

import importlib
import os

VARIABLE = "OPSMITH_TEST_QUICK"  # for the processes that tests start with code of their own
keep = importlib.import_module("opsmith.compiler.keep")
build = importlib.import_module("opsmith.compiler.build")  # the package has a function of this name
USERS_FLAGS = build.FLAGS


def compile_quickly() -> None:
    os.environ[VARIABLE] = "1"
    keep.AGAIN = 0
    build.FLAGS = tuple("-O1" if flag == "-O3" else flag for flag in USERS_FLAGS)


def as_the_tests_do() -> None:
    """In a process that a test started."""
    if os.environ.get(VARIABLE):
        compile_quickly()
