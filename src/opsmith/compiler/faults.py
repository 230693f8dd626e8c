"""Verify an attempt, and say what of it has to go back to ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opsmith import session
from opsmith.check.verify import VerifyResult
from opsmith.check.verify import verify as verify_models
from opsmith.compiler.attempt import Attempt
from opsmith.compiler.cut import Cut
from opsmith.compiler.emit import instance_of
from opsmith.compiler.find_wrong import SHOWN, Fault, find_wrong
from opsmith.compiler.precision import FP32, PRECISIONS, Precision
from opsmith.compiler.request import Request
from opsmith.compiler.result import Clock
from opsmith.compiler.step_by_step import find_hidden, passed_by_spread
from opsmith.errors import DoesNotCompile, NotTheSame, OpsmithError
from opsmith.store import Variant

MOST_WRONG = 8  # nodes that may be found wrong, one by one, before their whole region goes back


def find_fault(source: Path, attempt: Attempt, request: Request, wrong: int, clock: Clock) -> Fault | None:
    """What goes back to ONNX Runtime because the attempt differs from its source; None if it holds, or is not to be verified. WRONG is
    how many faults were found before, here and below."""
    if not request.verify:
        return None
    if not attempt.cut.regions:
        session.load(source, optimize=False)  # a copy of what does not even load is no result
        return None
    if request.tool is None:
        return None
    fault = examine(source, attempt, request, wrong)
    clock.lap("verify")
    return fault


def cannot_compile(error: DoesNotCompile, cuts: Mapping[str, Cut], request: Request, wrong: int) -> Fault:
    """What of a cut goes back to ONNX Runtime because the compiler refuses its code."""
    nodes: set[str] = set()
    for pieces in cuts.values():
        for region, program in zip(pieces.regions, pieces.programs, strict=True):
            calls = [c for c in program.calls if not c.kernel.inline and instance_of(c).name in error.files]
            whole = region.name in error.files or (calls and wrong >= MOST_WRONG)
            nodes |= {n.name or "" for n in region.nodes} if whole else {name for c in calls for name in c.nodes}
    if request.regions == "whole" or not nodes:
        raise error
    why = f"its code does not compile ({error.message[:SHOWN]})"
    return Fault(
        dict.fromkeys(nodes, why), f"{len(nodes)} nodes go back to ONNX Runtime: {why}. This is a defect of ours"
    )


def examine(source: Path, attempt: Attempt, request: Request, wrong: int) -> Fault | None:
    """Verify what of an attempt this CPU can run; gives what has to go back to ONNX Runtime."""
    result = attempt.result
    for cpu, pieces in attempt.cuts.items():
        assert pieces.target is not None
        if not request.runs(pieces.target):
            what = "this CPU" if request.system.runs_here else "this machine"
            where = cpu if request.system.runs_here else f"{cpu}, {request.system}"
            result.remarks.append(f"not verified: {what} cannot run what was compiled for {where}")
            continue
        forced = cpu if len(attempt.cuts) > 1 else None
        with session.forced_cpu(forced):
            verified = check(source, attempt, request)
        if result.verified is None:  # what a session here runs; of the others a line says that they are as exact
            result.verified = verified
        if (why := verified.unchecked) is not None:
            result.remarks.append(f"not verified, no inputs were found that the source runs on: {why}")
            return None
        with session.forced_cpu(forced):
            if (fault := what_differs(attempt, pieces, verified, request, wrong)) is not None:
                return fault
        if forced:
            result.remarks.append(f"verified for {cpu}: largest error {verified.of_scale:.1e} of an output's scale")
    return None


def what_differs(attempt: Attempt, pieces: Cut, verified: VerifyResult, request: Request, wrong: int) -> Fault | None:
    """What of a verified attempt has to go back to ONNX Runtime; None if nothing has to."""
    target, hidden = pieces.target, None
    assert target is not None
    if verified.ok:
        if not passed_by_spread(verified) or wrong >= MOST_WRONG or request.precision is not FP32:
            return None
        try:
            hidden = find_hidden(pieces, verified, target)
        except OpsmithError as error:
            attempt.result.remarks.append(
                f"it passed by its own spread, and not all of its parts were compared: {error}"
            )
        if hidden is None:
            return None
    problems = "; ".join(verified.problems[:3]) or (hidden.remark if hidden else "")
    if request.precision is not FP32 and not any(c.problem for c in verified.cases):
        raise NotTheSame(
            f"in {request.options['precision']} the model is too far from its source: {problems}",
            "allow more with --max-error"
            if request.max_error is not None
            else f"compile it with --precision {' or '.join(_more_exact(request.precision))}",
        )
    if request.regions == "whole":
        raise NotTheSame(f"the compiled model differs from its source: {problems}")
    return hidden or find_wrong(pieces, verified, target, give_up=wrong >= MOST_WRONG)


def _more_exact(precision: Precision) -> list[str]:
    names = list(PRECISIONS)
    return names[names.index(precision.name) - 1 :: -1]


def check(source: Path, attempt: Attempt, request: Request) -> VerifyResult:
    """Verify an attempt against the unchanged model, on its test data and on fresh random inputs."""
    options: dict[str, Any] = {"precision": request.precision.name, "bound": request.max_error}
    return verify_models(source, Variant(attempt.draft.path), inputs=request.inputs, **options)
