"""The end of `compile`: the best attempt becomes the variant, or the source does; with test data and provenance."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np

from opsmith import session, store
from opsmith.check.feed import Judged
from opsmith.compiler.attempt import Attempt, facts
from opsmith.compiler.build import BUILD_SCRIPT
from opsmith.compiler.request import Request
from opsmith.compiler.result import CompileResult
from opsmith.store import Draft, ModelLike, Variant


def finish(best: Attempt | None, request: Request, draft: Draft) -> CompileResult:
    """The best attempt becomes the variant; where none is faster than the source, the source itself does."""
    assert best is not None
    result = best.result
    if not best.cut.regions or (result.timing is not None and result.timing.slower):
        return keep_source(best, request, draft)
    for file in best.draft.folder.iterdir():
        shutil.move(str(file), draft.folder / file.name)
    best.draft.folder.rmdir()
    record(draft, best, request)
    return result


def record(draft: Draft, best: Attempt, request: Request) -> None:
    """Provenance: what was compiled, for which CPU, with which algorithms, how exact and how fast it was measured to be."""
    result = best.result
    name = (best.draft.record["compiled"] or {}).get("library")
    library = draft.folder / name if name else None
    if request.tool is None:
        result.remarks.append(f"not built: {draft.source_folder.name}/{BUILD_SCRIPT} beside it does that")
    draft.record["compiled"] = facts(best.cuts, result, best.domain, library, request.tool)
    if result.verified is not None:
        worst = result.verified.worst
        draft.record["verified"] = {
            o.name: {
                "max_abs": o.max_abs,
                "max_rel": o.max_rel,
                **({} if o.bound is None else {"of_scale": o.of_scale, "cosine": o.cosine, "bound": o.bound}),
                **({} if o.spread is None else {"own_spread": o.spread}),
            }
            for o in worst
        }
        if (expected := result.verified.next_token) is not None:
            draft.record["next_token"] = dataclasses.asdict(expected)
    if result.judged is not None:
        draft.record["inputs"] = result.judged.record


def keep_source(best: Attempt, request: Request, draft: Draft) -> CompileResult:
    """Nothing is worth compiling: the variant is the source, byte for byte, with no error to speak of."""
    result = best.result
    slow = result.timing
    why = "nothing in it can be compiled" if slow is None else f"compiled it would run at {slow.ratio:.2g}x its speed"
    result.remarks.append(f"the model stays as it is, all with ONNX Runtime: {why}")
    shutil.rmtree(best.draft.folder)
    reasons = {name: why for _, name, why in result.left}
    stay = best.cut.source.nodes()
    result.left = [(n.op_type, n.name or "", reasons.get(n.name or "", "faster in ONNX Runtime")) for n in stay]
    result.regions, result.sources, result.verified = [], [], None
    store.copy_model(request.src, draft.path)
    _copy_test_data(request.src, draft)
    draft.record["compiled"] = facts(best.cuts, result, None, None, request.tool) | {"regions": []}
    return result


def give_test_data(source: Path, request: Request, draft: Draft, judged: Judged | None) -> None:
    """The source's test data; fresh data where --shape asks for another size than it has."""
    sizes = [{n: np.shape(a) for n, a in data.inputs.items()} for data in store.read_test_data(source)]
    if not request.shapes or not sizes:
        _copy_test_data(request.src, draft)
    elif judged is not None and judged.feed is not None:
        if all(size == {n: np.shape(a) for n, a in judged.feed.items()} for size in sizes):
            _copy_test_data(request.src, draft)
            return
        running = session.load(source, optimize=False)
        names = [o.name for o in running.get_outputs()]
        store.write_test_data(draft.folder, judged.feed, dict(zip(names, session.run(running, judged.feed))))


def _copy_test_data(src: ModelLike, draft: Draft) -> None:
    if isinstance(src, (str, Path, Variant)):
        store.copy_test_data(store.find_model(src), draft.folder)
