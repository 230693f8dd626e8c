"""Heavy work is off the event loop, and what is too large is refused first: others are answered meanwhile.

No clock is read. The heavy step is replaced by one that ends when another request was answered; on the event loop it would wait
for ever.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from PIL import Image
from serving import Running

PATIENCE = 60.0


def png(side: int = 64) -> bytes:
    file = io.BytesIO()
    Image.new("RGBA", (side, side), "white").save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], tuple[threading.Event, threading.Event]]]:
    """Makes a function wait inside until it is let go."""
    gates: list[threading.Event] = []

    def hold(name: str) -> tuple[threading.Event, threading.Event]:
        from importlib import import_module

        module, _, attribute = name.rpartition(".")
        original = getattr(import_module(module), attribute)
        inside, go = threading.Event(), threading.Event()

        def waits(*given: Any, **more: Any) -> Any:
            inside.set()
            assert go.wait(PATIENCE)
            return original(*given, **more)

        monkeypatch.setattr(name, waits)
        gates.append(go)
        return inside, go

    yield hold
    for gate in gates:
        gate.set()


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/api/uploads", "opsmith.studio.uploads._decoded"),
        ("/api/uploads", "opsmith.pipelines.pictures.save"),
        ("/v1/images/edits", "opsmith.studio.uploads._decoded"),
        ("/v1/images/generations", "opsmith.studio.openai_api.png"),
        ("/v1/completions", "opsmith.pipelines.text.encode"),
        ("/v1/chat/completions", "opsmith.pipelines.text.encode"),
        ("/v1/embeddings", "opsmith.pipelines.embed.encode"),
    ],
)
def test_others_are_answered_during(running: Running, held: Any, path: str, name: str) -> None:
    inside, go = held(name)
    bodies: dict[str, dict[str, Any]] = {
        "/api/uploads": {"content": png()},
        "/v1/images/edits": {"files": {"image": png()}, "data": {"prompt": "a frog", "steps": "1"}},
        "/v1/images/generations": {"json": {"prompt": "a frog", "steps": 1}},
        "/v1/completions": {"json": {"model": "writer", "prompt": "frog:", "max_tokens": 1}},
        "/v1/chat/completions": {
            "json": {"model": "writer", "messages": [{"role": "user", "content": "frog"}], "max_tokens": 1}
        },
        "/v1/embeddings": {"json": {"model": "embedder", "input": "frog"}},
    }
    answers: list[httpx.Response] = []
    with running.visitor() as client:
        ask = threading.Thread(target=lambda: answers.append(client.post(path, **bodies[path])))
        ask.start()
        assert inside.wait(PATIENCE)
        assert httpx.get(f"{running.url}/v1/models", timeout=PATIENCE / 2).status_code == 200
        go.set()
        ask.join(PATIENCE)
    assert answers[0].status_code == 200, answers[0].text


def test_a_long_prompt_is_refused_before_it_is_split_into_tokens(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(*_: object) -> None:
        raise AssertionError("it is too long for that")

    monkeypatch.setattr("opsmith.pipelines.text.encode", encode)
    monkeypatch.setattr("opsmith.pipelines.embed.encode", encode)
    long = "x " * 1_500_000
    for path, body in (
        ("completions", {"model": "writer", "prompt": long}),
        ("chat/completions", {"model": "writer", "messages": [{"role": "user", "content": long}]}),
        ("embeddings", {"model": "embedder", "input": long}),
    ):
        answer = httpx.post(f"{running.url}/v1/{path}", json=body, timeout=60)
        assert answer.status_code == 400
        assert "characters" in answer.text or "do not fit" in answer.text


def test_json_has_a_lower_limit_than_pictures(running: Running) -> None:
    body = b'{"model": "writer", "prompt": "' + b"x" * 5_000_000 + b'"}'
    assert httpx.post(f"{running.url}/v1/completions", content=body, timeout=60).status_code == 413
    with running.visitor() as client:
        assert client.post("/api/uploads", content=bytes(5_000_000)).status_code == 400  # no picture, but not too large
