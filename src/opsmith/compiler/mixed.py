"""`--precision auto` inside `compile`: plans of precisions are built and verified (auto.py says which)."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
from pathlib import Path

from opsmith.check.feed import Judged
from opsmith.compiler import auto
from opsmith.compiler.attempt import build_attempt
from opsmith.compiler.cut import cut
from opsmith.compiler.faults import check
from opsmith.compiler.find_wrong import all_values
from opsmith.compiler.lower import Target
from opsmith.compiler.precision import Precision
from opsmith.compiler.request import Request
from opsmith.compiler.result import Clock
from opsmith.compiler.source import Source
from opsmith.errors import OpsmithError
from opsmith.store import Draft


def choose_precisions(
    source: Source,
    path: Path,
    request: Request,
    targets: dict[str, Target],
    judged: Judged | None,
    draft: Draft,
    clock: Clock,
) -> tuple[dict[str, Target], list[auto.Choice]]:
    """The target with a precision for every product, found by building and verifying (auto.py), if that was asked for."""
    if request.max_error is None:
        return targets, []
    if judged is None or not request.runs_here:
        raise OpsmithError("--precision auto builds and measures: it needs a compiler and the CPU that it compiles for")
    if len(targets) > 1:
        raise OpsmithError(
            "--precision auto chooses for one CPU", "name one with --cpu, or a precision for all of them"
        )
    ((cpu, target),) = targets.items()
    pieces = cut(source, request.regions, target)
    products = auto.layers(pieces, all_values(pieces, judged.required()))
    number = itertools.count()
    closer = dataclasses.replace(request, max_error=auto.MARGIN * request.max_error)

    def within(chosen: dict[str, Precision]) -> bool:
        trial = cut(source, request.regions, dataclasses.replace(target, precisions=chosen))
        attempt = build_attempt({cpu: trial}, request, draft, f"plan{next(number)}", clock)
        verified = check(path, attempt, closer)
        shutil.rmtree(attempt.draft.folder)
        return verified.ok or verified.unchecked is not None

    chosen = auto.search(products, within) if products else {}
    clock.lap("choose")
    return {cpu: dataclasses.replace(target, precisions=chosen)}, auto.table(products, chosen)
