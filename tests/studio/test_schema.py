"""Requests drawn from our own description of the API, valid and not: none is answered with a 5xx, and the worker lives on."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from serving import Running

EXAMPLES = 15  # of each kind for each operation
ANSWERED: dict[str, dict[str, Any]] = {
    "/v1/completions": {"model": "writer", "prompt": "frog:"},
    "/v1/chat/completions": {"model": "writer", "messages": [{"role": "user", "content": "frog"}], "max_tokens": 4},
    "/v1/embeddings": {"model": "embedder", "input": "a frog"},
}
NAMES = {"/v1/embeddings": "embedder", "/v1/images/generations": "pictures"}


@pytest.fixture(scope="module")
def schema(running: Running) -> Any:
    return schemathesis.openapi.from_url(f"{running.url}/openapi.json")


def reachable(path: str, body: Any) -> Any:
    """Drawn names of models are unknown, and drawn numbers ask for long work: most requests shall get further than that."""
    if not isinstance(body, dict):
        return body
    names = {"model": NAMES.get(path, "writer")} if isinstance(body.get("model"), str) else {}
    few = {"steps": 1, "size": "32x32", "n": 1} if path.startswith("/v1/images") else {}
    return {**body, **names, **{k: v for k, v in few.items() if k in body}}


@pytest.mark.parametrize("valid", [True, False])
def test_no_request_that_the_description_allows_or_forbids_is_a_5xx(schema: Any, running: Running, valid: bool) -> None:
    mode = schemathesis.GenerationMode.POSITIVE if valid else schemathesis.GenerationMode.NEGATIVE
    seen: dict[str, set[int]] = {}
    for found in schema.get_all_operations():
        operation = found.ok()

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def ask(case: Any) -> None:
            path = case.operation.path
            case.body = reachable(path, case.body)
            answer = case.call(timeout=120)
            seen.setdefault(path, set()).add(answer.status_code)
            assert answer.status_code < 500, answer.text

        if valid or operation.body:
            ask()
    if valid:  # which of them are answered hangs on what was drawn in this process before
        assert any(200 in seen[path] for path in ANSWERED)
    for path, body in ANSWERED.items():
        assert httpx.post(f"{running.url}{path}", json=body, timeout=120).status_code == 200, path
