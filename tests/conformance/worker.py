"""The child process of the conformance tests.

build FOLDER SET    compile the batch of cases in FOLDER, for an instruction set of geometry.py or "native"
run FOLDER FIRST    run them one after the other, from FIRST on
malform FOLDER      run them with nonsense in their integer inputs
"""

from __future__ import annotations

import dataclasses
import json
import pickle
import resource
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import suite  # noqa: E402


def build(folder: Path, cases: list[suite.Case], isa: str) -> None:
    import batch
    import quick

    from opsmith.compiler.geometry import SETS

    quick.as_the_tests_do()
    library, built = batch.compile_batch([(c.name, c.model) for c in cases], folder, isa=SETS.get(isa))
    record = {"library": str(library) if library else None, "built": [dataclasses.asdict(b) for b in built]}
    (folder / "built.json").write_text(json.dumps(record))


def run(folder: Path, cases: list[suite.Case], first: int) -> None:
    record = json.loads((folder / "built.json").read_text())
    for case, built in list(zip(cases, record["built"]))[first:]:
        outcome = suite.judge(case, built, record["library"])
        print(json.dumps(dataclasses.asdict(outcome)), flush=True)


def malform(folder: Path, cases: list[suite.Case]) -> None:
    """Run the compiled models with nonsense in their integer inputs; print what is tried, and how often it raised."""
    import numpy as np
    import onnxruntime as ort

    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
    record = json.loads((folder / "built.json").read_text())
    random = np.random.default_rng(0)
    values = np.array([-(2**63), 2**63 - 1, 2**40, -(2**31), -7, -2, -1, 0, 1, 2, 3, 9], np.int64)
    counts = {"raised": 0, "answered": 0}
    for case, built in zip(cases, record["built"]):
        if not built["regions"] or built["left"] or built["error"]:
            continue
        options = suite.session_options(record["library"])
        # What nonsense asked for must not stay taken, or the next session finds no room.
        options.enable_cpu_mem_arena = False
        session = ort.InferenceSession(built["path"], options)
        good = suite.feed(session, case)
        for attempt in range(12):
            feed = dict(good)
            for name, x in good.items():
                if isinstance(x, np.ndarray) and x.dtype.kind == "i" and x.size:
                    wild = random.choice(values, x.shape).astype(x.dtype)
                    feed[name] = np.where(random.random(x.shape) < 0.5, wild, x).astype(x.dtype)
            print(case.name, attempt, flush=True)
            try:
                session.run(None, feed)
                counts["answered"] += 1
            except Exception:
                counts["raised"] += 1
    print(json.dumps(counts))


if __name__ == "__main__":
    action, where = sys.argv[1], Path(sys.argv[2])
    sys.modules["suite"] = suite
    loaded = pickle.loads((where / "cases.pkl").read_bytes())
    if action == "build":
        build(where, loaded, sys.argv[3])
    elif action == "malform":
        malform(where, loaded)
    else:
        run(where, loaded, int(sys.argv[3]))
