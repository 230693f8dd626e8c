"""Work in a process of its own, so that memory and threads are its own: JSON in, one line of JSON out.

answer = alone.ask("opsmith.measure.score_text", order, "gpt2/int8")     # the parent
if __name__ == "__main__":                                               # the child, in score_text.py
    alone.answer(_measure)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opsmith.errors import OpsmithError


def ask(module: str, order: dict[str, Any], what: str) -> dict[str, Any]:
    """Run MODULE on ORDER; a user's mistake there is one here. WHAT is named if the process dies."""
    env = dict(os.environ)
    package = str(Path(__file__).parents[2])
    env["PYTHONPATH"] = os.pathsep.join(p for p in (package, env.get("PYTHONPATH", "")) if p)
    command = [sys.executable, "-m", module]
    done = subprocess.run(command, input=json.dumps(order), capture_output=True, text=True, env=env, check=False)
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise OpsmithError(f"{what} could not be scored: exit code {done.returncode}, {last}")
    found: dict[str, Any] = json.loads(lines[-1])
    if "error" in found:
        raise OpsmithError(str(found["error"]))
    return found


def answer(work: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries that print must not disturb the answer
    try:
        found = work(json.load(sys.stdin))
    except OpsmithError as error:
        found = {"error": str(error)}
    answers.write(json.dumps(found) + "\n")
    answers.flush()
