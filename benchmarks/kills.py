"""SIGKILL at random moments: nothing half-written, the next run works, no leftovers.

    python benchmarks/kills.py --count 300 --seed 0

Each round runs a verb in a process of its own over an existing variant or beside none, and kills it after a random part of the
time that the verb takes. What stands at the destination then must be absent, or load and give the right values; the same verb
must work at once; and after it neither the folder nor the cache may hold anything of the killed one.
docs/reliability.md has the latest figures.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
from onnx import helper as h
from onnx import numpy_helper as nh

import opsmith
from opsmith.cli import main as cli

SRC = "m.onnx"
VERBS: dict[str, list[str]] = {
    "export": ["export", "config", "exported", "--random-weights"],
    "optimize": ["optimize", SRC, "made/optimize", "--quick"],
    "quantize": ["quantize", SRC, "made/quantize", "--method", "dynamic"],
    "prune": ["prune", SRC, "made/prune", "--method", "magnitude", "--ratio", "0.2", "--calibration", "generated"],
    "compile": ["compile", SRC, "made/compile", "--regions", "all"],
    "map": ["map", SRC, "rows.jsonl", "-o", "made/map.jsonl", "--part", "8", "--processes", "1", "--batch", "8"],
    "tune": ["compile", SRC, "made/tune", "--regions", "all", "--search", "1"],
}
ROWS = 200  # that `map` takes; a multiple of the 5 that are different
LEFTOVER = re.compile(r"\.(tmp|old)$|\.\d+\.(o|so|sha256)$")


def model(path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = [nh.from_array((rng.standard_normal((64, 64)) / 8).astype(np.float32), f"w{i}") for i in range(3)]
    nodes, x = [], "x"
    for i in range(3):
        nodes += [h.make_node("MatMul", [x, f"w{i}"], [f"h{i}"]), h.make_node("Relu", [f"h{i}"], [f"r{i}"])]
        x = f"r{i}"
    values = [h.make_tensor_value_info(name, 1, ["n", 64]) for name in ("x", x)]
    graph = h.make_graph(nodes, "g", values[:1], values[1:], weights)
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9), path)


def place_of(verb: str) -> Path:
    return Path({"export": "exported/dynamo", "map": "made/map.jsonl"}.get(verb, f"made/{verb}"))


def remove(verb: str) -> None:
    place = place_of(verb)
    for path in (place, place.with_name(f"{place.name}.job")):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _start(arguments: list[str]) -> int:
    """In a process of its own: a fork, which has the modules already, but for export: what torch's threads hold, no fork frees."""
    if arguments[0] == "export":
        command = [sys.executable, "-m", "opsmith", *arguments]
        return subprocess.Popen(
            command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ).pid
    child = os.fork()
    if child == 0:
        os.setsid()
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        code = 0
        try:
            cli(arguments)
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException:
            code = 99
        os._exit(code)
    return child


def run(arguments: list[str], kill_after: float | None = None) -> int:
    """A verb in a child; gives its exit code, or minus the signal that ended it."""
    child = _start(arguments)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(ProcessLookupError):
        while True:  # a C++ compiler that it started goes on writing
            os.killpg(child, 0)
            time.sleep(0.05)
    return os.waitstatus_to_exitcode(status)


def leftovers(*folders: Path) -> list[str]:
    return [str(p) for folder in folders for p in folder.rglob("*") if LEFTOVER.search(p.name)]


def wrong(verb: str, want: np.ndarray, x: np.ndarray) -> str:
    """What is wrong with the destination; empty if it is whole."""
    if verb == "export":
        try:
            return "" if opsmith.verify("exported/dynamo").ok else "its test data differs"
        except opsmith.OpsmithError as error:
            return str(error)
    if verb == "map":
        rows = [json.loads(line) for line in place_of(verb).read_text().splitlines()]
        if [row["row"] for row in rows] != list(range(ROWS)):
            return f"{len(rows)} rows"
        got = np.array([row["r2"] for row in rows], np.float32)
        return "" if np.allclose(got, np.tile(want, (ROWS // len(want), 1)), rtol=1e-4, atol=1e-5) else "other values"
    try:
        (got,) = opsmith.load(f"made/{verb}").run(None, {"x": x})
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    room = 0.5 if verb in ("quantize", "prune") else 1e-4
    return "" if np.abs(got - want).max() <= room * np.abs(want).max() else "other values"


def rounds(count: int, seed: int, verbs: list[str]) -> list[str]:
    rng = random.Random(seed)
    model(Path(SRC))
    x = np.random.default_rng(1).standard_normal((5, 64)).astype(np.float32)
    lines = [json.dumps({"x": x[i % len(x)].tolist()}) for i in range(ROWS)]
    Path("rows.jsonl").write_text("\n".join(lines) + "\n")
    (want,) = opsmith.load(SRC).run(None, {"x": x})
    cache = Path(os.environ["OPSMITH_CACHE"])
    takes: dict[str, float] = {}
    problems, killed = [], Counter[str]()
    for number in range(count):
        verb = verbs[number % len(verbs)]
        place = place_of(verb)
        if verb not in takes:
            shutil.rmtree(cache, ignore_errors=True)
            started = time.monotonic()
            if code := run(VERBS[verb]):
                problems.append(f"{verb} by itself: exit {code}")
            takes[verb] = time.monotonic() - started
        existing = rng.random() < 0.5
        if not existing:
            remove(verb)
        if rng.random() < 0.3:  # compile anew, and not from the cache
            shutil.rmtree(cache, ignore_errors=True)
        code = run(VERBS[verb], kill_after=rng.random() * takes[verb] * 1.1)
        kind = f"{verb}{' over a variant' if existing else ''}{'' if code == -signal.SIGKILL else ', too late'}"
        killed[kind] += 1
        if place.exists() and (why := wrong(verb, want, x)):
            moved = list(place.parent.glob(".*.old"))  # it comes back with the next run
            if not moved:
                problems.append(f"round {number}, {verb}: half-written: {why}")
        if code := run(VERBS[verb]):
            problems.append(f"round {number}, {verb}: the next run: exit {code}")
        elif why := wrong(verb, want, x):
            problems.append(f"round {number}, {verb}: the next run: {why}")
        if left := leftovers(Path(), cache):
            problems.append(f"round {number}, {verb}: leftovers {left[:3]}")
            for path in map(Path, left):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        print(f"round {number}: {kind}; {len(problems)} problems", flush=True)
    print(", ".join(f"{n} {what}" for what, n in sorted(killed.items())))
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verbs", default="optimize,quantize,prune,compile,map,tune", help="export needs torch")
    options = parser.parse_args()
    verbs = options.verbs.split(",")
    with tempfile.TemporaryDirectory(prefix="opsmith-kills-") as folder:
        if "export" in verbs:
            sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
            from models import tiny_source

            shutil.copytree(tiny_source("gpt2"), Path(folder) / "config")
        os.chdir(folder)
        os.environ["OPSMITH_CACHE"] = str(Path(folder) / "cache")
        problems = rounds(options.count, options.seed, verbs)
    print(f"{options.count} kills from seed {options.seed}: {len(problems)} problems", *problems, sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
