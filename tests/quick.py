"""Models are compiled at -O0 in a test run: the same kernels in a fifth of g++'s time, which is most of the suite's. Timings are
taken once: tests run beside each other, where no machine is quiet.

`pytest -m slow`, the demo's test, programs that tests start, and tests that use the fixture `optimized` compile as users do.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path

from opsmith import settings

VARIABLE = "OPSMITH_TEST_QUICK"  # for the processes that tests start with code of their own
keep = importlib.import_module("opsmith.compiler.keep")
build = importlib.import_module("opsmith.compiler.build")  # the package has a function of this name
USERS_FLAGS = build.FLAGS
FLAG = "-O0"
BUILT = ("objects", "provider", "zig")  # folders of the cache in which all is found by its content


def compile_quickly() -> None:
    os.environ[VARIABLE] = "1"
    keep.AGAIN = 0
    # zig protects the stack at -O0, by a symbol that Windows does not have.
    build.FLAGS = (*(FLAG if flag == "-O3" else flag for flag in USERS_FLAGS), "-fno-stack-protector")


def as_the_tests_do() -> None:
    """In a process that a test started."""
    if os.environ.get(VARIABLE):
        compile_quickly()


def own_cache(folder: Path) -> Path:
    """A cache for a test of its own, in FOLDER; what compilers made, which takes most of the time, is shared with all others."""
    shared = {name: settings.cache_folder(name) for name in BUILT}
    folder.mkdir(parents=True)
    for name, target in shared.items():
        (folder / name).symlink_to(target.absolute(), target_is_directory=True)
    return folder
