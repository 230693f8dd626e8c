"""A compressed model's test data: its parent's inputs with what it makes of them itself. `verify` and `compile` hold it to that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from opsmith import session, store
from opsmith.compress.quality import Feed


def write_test_data(
    source: Path, draft: store.Draft, threads: int | None, adapt: Callable[[Feed], Feed] = lambda feed: feed
) -> None:
    """ADAPT turns an input of SOURCE into one of the compressed model."""
    cases = [(i, data.inputs) for i, data in enumerate(store.read_test_data(source)) if data.inputs]
    if not cases:
        return
    running = session.load(draft.path, threads=threads)
    names = [o.name for o in running.get_outputs()]
    for i, inputs in cases:
        feed = adapt(inputs)
        store.write_test_data(draft.folder, feed, dict(zip(names, session.run(running, feed, names))), i)
