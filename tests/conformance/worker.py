"""The child process of suite.py: `build FOLDER` compiles a batch of cases, `run FOLDER FIRST` runs them one after the other."""

from __future__ import annotations

import dataclasses
import json
import pickle
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import suite  # noqa: E402


def build(folder: Path, cases: list[suite.Case]) -> None:
    import batch

    library, built = batch.compile_batch([(c.name, c.model) for c in cases], folder)
    record = {"library": str(library) if library else None, "built": [dataclasses.asdict(b) for b in built]}
    (folder / "built.json").write_text(json.dumps(record))


def run(folder: Path, cases: list[suite.Case], first: int) -> None:
    record = json.loads((folder / "built.json").read_text())
    for case, built in list(zip(cases, record["built"]))[first:]:
        outcome = suite.judge(case, built, record["library"])
        print(json.dumps(dataclasses.asdict(outcome)), flush=True)


if __name__ == "__main__":
    action, where = sys.argv[1], Path(sys.argv[2])
    sys.modules["suite"] = suite
    loaded = pickle.loads((where / "cases.pkl").read_bytes())
    if action == "build":
        build(where, loaded)
    else:
        run(where, loaded, int(sys.argv[3]))
