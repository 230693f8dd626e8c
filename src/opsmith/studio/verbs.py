"""Verbs of the command line as processes of their own: what they need of memory goes away with them, and they can be ended."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Sequence

from opsmith.errors import OpsmithError
from opsmith.pipelines.diffusion import Cancelled

PATIENCE = 0.2  # seconds between two looks whether to stop


def run_opsmith(arguments: Sequence[str], stopped: Callable[[], bool], fine: Sequence[int] = (0,)) -> str:
    """Run a verb; returns what it printed. Exit codes that are not FINE become an error with its last line.

    STOPPED is asked several times a second; it may raise as well.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "opsmith", "--quiet", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while True:
            try:
                printed, words = process.communicate(timeout=PATIENCE)
                break
            except subprocess.TimeoutExpired:
                if stopped():
                    raise Cancelled("cancelled") from None
    finally:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode not in fine:
        lines = [line for line in words.strip().splitlines() if line.strip()]
        raise OpsmithError(lines[-1].removeprefix("error: ") if lines else f"exit code {process.returncode}")
    return printed
