"""For tests: a parity test from distilled folders in one line.

    from opsmith.testing import parity_test

    test_attention = parity_test("tests/data/attention", opsmith.optimize)

Every model under the folder becomes one case: it is changed by the given verb, and what comes out must compute what
the model does, on its stored tensors and on fresh ones. Without a verb the model must give its own stored outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from opsmith import store
from opsmith.check.verify import verify
from opsmith.errors import OpsmithError


def cases(folder: store.PathLike) -> list[Path]:
    """The model files under FOLDER, in order."""
    paths = sorted(Path(folder).rglob("*.onnx"))
    if not paths:
        raise OpsmithError(f"{folder} holds no distilled models", "make some with `opsmith distill`")
    return paths


def parity_test(
    folder: store.PathLike,
    change: Callable[..., Any] | None = None,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    **options: Any,
) -> Callable[..., None]:
    """A pytest function, one case per model under FOLDER. CHANGE is called as change(source, destination, **options)."""
    import pytest

    paths = cases(folder)

    @pytest.mark.parametrize("model", paths, ids=[str(p.parent.relative_to(folder)) for p in paths])
    def test(model: Path, tmp_path: Path) -> None:
        if change is None:
            result = verify(model, rtol=rtol, atol=atol)
        else:
            target = tmp_path / "net" / "changed"
            change(model, target, **options)
            result = verify(model, target, rtol=rtol, atol=atol)
        assert result.ok, "; ".join(result.problems)

    return test
