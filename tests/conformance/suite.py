"""ONNX's own node tests through the compiler: what became of each of them.

Every test model is compiled as `opsmith compile --regions all` does, in batches (see batch.py), and run in a process of its
own kind, so that a crash is seen and blamed on the test that caused it. Outcomes, best first:

  native   every node that is not constant ran in a compiled region, and the outputs are right
  mixed    some nodes ran in compiled regions, some in ORT, and the outputs are right
  ort      nothing was compiled: the model is left to ORT, with a reason
  refused  stock ORT does not load or run the original either, so there is nothing to drop into
  wrong    the outputs differ from the expected ones, and stock ORT's do not
  failed   the compiler raised an error, its C++ was refused, or the compiled model did not load or run
  crashed  the process died

`right` is the test's own rtol and atol for floats (two ulps for bfloat16, as in ONNX's runner) and equality for the rest.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
from node_tests import Case

HERE = Path(__file__).parent


@dataclasses.dataclass
class Outcome:
    name: str
    op: str
    status: str
    stock: bool  # stock ORT passes the test
    reasons: list[tuple[str, str]] = dataclasses.field(default_factory=list)  # operator, why it was left to ORT
    detail: str = ""


# --- running one test ---


def feed(session: ort.InferenceSession, case: Case) -> dict[str, Any]:
    types = {i.name: i.type.tensor_type.elem_type for i in onnx.load_from_string(case.model).graph.input}
    values: dict[str, Any] = {}
    for declared, x in zip(session.get_inputs(), case.inputs):
        if x is None:
            continue
        if isinstance(x, list):
            values[declared.name] = x
        elif x.dtype.type.__module__.startswith("ml_dtypes"):
            bits = np.ascontiguousarray(x).view(np.uint8 if x.dtype.itemsize == 1 else np.uint16)
            values[declared.name] = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, types[declared.name])
        else:
            values[declared.name] = x
    return values


def run(session: ort.InferenceSession, case: Case) -> list[Any]:
    values = feed(session, case)
    special = any(isinstance(v, ort.OrtValue) for v in values.values()) or any(
        hasattr(o, "dtype") and o.dtype.type.__module__.startswith("ml_dtypes") for o in case.outputs
    )
    if not special:
        return list(session.run(None, values))
    wrapped = {k: v if isinstance(v, ort.OrtValue) else ort.OrtValue.ortvalue_from_numpy(v) for k, v in values.items()}
    names = [o.name for o in session.get_outputs()]
    return [_numpy(v) for v in session.run_with_ort_values(names, wrapped)]


def _numpy(value: ort.OrtValue) -> Any:
    """Numbers of any element type; ORT's own conversion knows no bfloat16."""
    if value.element_type() != onnx.TensorProto.BFLOAT16:
        return value.numpy()
    shape = value.shape()
    data = ctypes.string_at(value.data_ptr(), 2 * int(np.prod(shape)))
    return np.frombuffer(data, ml_dtypes.bfloat16).reshape(shape)


def difference(got: Sequence[Any], want: Sequence[Any], rtol: float, atol: float) -> str:
    """What is wrong, in a line; empty if nothing is."""
    if len(got) != len(want):
        return f"{len(got)} outputs instead of {len(want)}"
    for i, (g, w) in enumerate(zip(got, want)):
        if isinstance(w, list):
            if not isinstance(g, list):
                return f"output {i} is no sequence"
            if inner := difference(g, w, rtol, atol):
                return f"output {i}: {inner}"
            continue
        g, w = np.asarray(g), np.asarray(w)
        if g.shape != w.shape or g.dtype != w.dtype:
            return f"output {i} is {g.dtype}{list(g.shape)} instead of {w.dtype}{list(w.shape)}"
        if w.dtype == ml_dtypes.bfloat16:
            g, w, rtol = g.astype(np.float32), w.astype(np.float32), max(rtol, 2**-6)
        same = g == w if w.dtype.kind in "OUSb" else np.isclose(g, w, rtol=rtol, atol=atol, equal_nan=True)
        if w.dtype.kind in "iu":
            same = g == w
        if not np.all(same):
            at = tuple(int(v) for v in np.argwhere(~np.asarray(same))[0]) if w.ndim else ()
            return f"output {i} at {list(at)} is {g[at]} instead of {w[at]} ({int(np.sum(~same))} of {w.size})"
    return ""


def stock_session(model: bytes) -> ort.InferenceSession:
    return ort.InferenceSession(model, session_options(), providers=["CPUExecutionProvider"])


def session_options(library: str | None = None) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    options.log_severity_level = 4
    if library is not None:
        options.register_custom_ops_library(library)
    return options


def judge(case: Case, built: dict[str, Any], library: str | None) -> Outcome:
    """Run stock ORT and the compiled model, and say what became of the test."""
    expected: list[Any] | None = None
    try:
        expected = run(stock_session(case.model), case)
        stock = difference(expected, case.outputs, case.rtol, case.atol)
    except Exception as error:
        stock = _line(error)
    outcome = Outcome(case.name, case.op, "failed", not stock, [tuple(r) for r in built["left"]])
    if built["error"]:
        outcome.detail = built["error"]
        return outcome
    if not built["regions"]:
        outcome.status = "ort" if expected is not None else "refused"
        outcome.detail = stock
        return outcome
    native = not built["left"]
    try:
        session = ort.InferenceSession(built["path"], session_options(library), providers=["CPUExecutionProvider"])
        got = run(session, case)
    except Exception as error:
        if expected is None:  # stock ORT cannot either
            outcome.status, outcome.detail = "refused", stock
        else:
            outcome.detail = _line(error)
        return outcome
    outcome.detail = difference(got, case.outputs, case.rtol, case.atol)
    if not outcome.detail:
        outcome.status = "native" if native else "mixed"
    elif not native and expected is not None and not difference(got, expected, case.rtol, case.atol):
        outcome.status = "mixed"  # stock ORT gives the same answer
    else:
        outcome.status = "wrong"
    return outcome


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


# --- a batch: built and run by child processes ---


def work_on(cases: Sequence[Case], folder: Path, isa: str = "native") -> list[Outcome]:
    """Compile and run a batch. A child that dies is started again behind the test that killed it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cases.pkl").write_bytes(pickle.dumps(list(cases)))
    command = [sys.executable, str(HERE / "worker.py")]
    with (folder / "build.log").open("w") as log:
        done = subprocess.run([*command, "build", str(folder), isa], stdout=log, stderr=log, check=False)
    if done.returncode != 0:
        if len(cases) == 1:
            text = (folder / "build.log").read_text()[-600:]
            return [Outcome(cases[0].name, cases[0].op, "crashed", False, [], f"while compiling: {text}")]
        half = len(cases) // 2
        return [*work_on(cases[:half], folder / "a", isa), *work_on(cases[half:], folder / "b", isa)]
    outcomes: list[Outcome] = []
    while len(outcomes) < len(cases):
        log = subprocess.run(
            [*command, "run", str(folder), str(len(outcomes))], capture_output=True, text=True, check=False
        )
        for line in log.stdout.splitlines():
            if line.startswith("{"):
                record = json.loads(line)
                outcomes.append(Outcome(**{**record, "reasons": [tuple(r) for r in record["reasons"]]}))
        if log.returncode != 0 and len(outcomes) < len(cases):
            victim = cases[len(outcomes)]
            outcomes.append(
                Outcome(victim.name, victim.op, "crashed", True, [], f"exit {log.returncode}: {log.stderr[-300:]}")
            )
    return outcomes


def run_suite(
    cases: Sequence[Case],
    folder: Path | None = None,
    batch: int = 64,
    jobs: int = 2,
    isa: str = "native",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Outcome]:
    """All cases, `jobs` batches at a time, in the order given."""
    with tempfile.TemporaryDirectory() as temporary:
        root = folder or Path(temporary)
        batches = [cases[i : i + batch] for i in range(0, len(cases), batch)]
        done = 0
        outcomes: list[Outcome] = []
        with ThreadPoolExecutor(jobs) as pool:
            for result in pool.map(lambda i: work_on(batches[i], root / f"batch{i}", isa), range(len(batches))):
                outcomes += result
                done += len(result)
                progress(done, len(cases))
    return outcomes


def count(outcomes: Iterable[Outcome]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for o in outcomes:
        counts[o.status] = counts.get(o.status, 0) + 1
    return counts
