"""Streams and errors of the text API, byte by byte as OpenAI's: the shapes lie in streams/."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from serving import Running

from opsmith.pipelines.text import TextGenerator

SHAPES = Path(__file__).with_name("streams")
PLACES = {
    "id": r"[0-9A-Za-z-]+",
    "time": r"[1-9][0-9]{9}",
    "model": "writer",
    "text": r'(?:[^"\\\n]|\\.)+',
    "reason": "(?:stop|length)",
    "number": "[1-9][0-9]*",
}
SAME = ("id", "time", "model")  # in all events of one stream
BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": {"model": "writer", "messages": [{"role": "user", "content": "Frog"}], "temperature": 0},
    "completions": {"model": "writer", "prompt": "frog:", "temperature": 0},
}
PATHS = {"chat": "chat/completions", "completion": "completions"}


def pattern(shape: str) -> re.Pattern[str]:
    """The shape's file as an expression; an event with <text> comes once or more often."""
    seen: set[str] = set()

    def place(name: str) -> str:
        if name in SAME and name in seen:
            return f"(?P={name})"
        seen.add(name)
        return f"(?P<{name}>{PLACES[name]})" if name in SAME else PLACES[name]

    events = []
    for event in re.split(r"(?<=\n\n)", (SHAPES / f"{shape}.txt").read_bytes().decode()):
        parts = re.split(r"<(id|time|model|text|reason|number)>", event)
        found = "".join(place(part) if i % 2 else re.escape(part) for i, part in enumerate(parts))
        events.append(f"(?:{found})+" if "<text>" in event else found)
    return re.compile("".join(events))


def post(running: Running, path: str, **more: Any) -> httpx.Response:
    return httpx.post(f"{running.url}/v1/{path}", json={**BODIES[path], **more}, timeout=120)


@pytest.mark.parametrize("kind", PATHS)
@pytest.mark.parametrize("usage", [False, True], ids=["", "usage"])
@pytest.mark.parametrize("more", [{"max_tokens": 4}, {"stop": ["ture"], "max_tokens": 20}], ids=["length", "stop"])
def test_a_stream_is_openais_byte_by_byte(running: Running, kind: str, usage: bool, more: dict[str, Any]) -> None:
    options = {"stream_options": {"include_usage": True}} if usage else {}
    answer = post(running, PATHS[kind], stream=True, **options, **more)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    shape = f"{kind}_usage" if usage else kind
    assert pattern(shape).fullmatch(answer.content.decode()), answer.text
    reason = "stop" if "stop" in more else "length"
    assert answer.text.count(f'"finish_reason":"{reason}"') == 1


def test_the_shapes_refuse_what_differs() -> None:
    first = (SHAPES / "chat.txt").read_text()
    for name, value in {"id": "a1", "time": "1700000000", "model": "writer", "text": " x", "reason": "stop"}.items():
        first = first.replace(f"<{name}>", value)
    assert pattern("chat").fullmatch(first)
    for wrong in (
        first.replace("data: ", "data:", 1),
        first.replace("\n\n", "\n", 1),
        first.replace("a1", "b2", 1),
        first.replace('"delta":{},', '"delta":{"content":""},'),
        first.removesuffix("data: [DONE]\n\n"),
        first + "\n",
    ):
        assert wrong != first and not pattern("chat").fullmatch(wrong)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_refused_is_an_error_and_no_stream(running: Running, path: str, stream: bool) -> None:
    answer = post(running, path, stream=stream, max_tokens=1000)
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/json")
    assert pattern("refused").fullmatch(answer.text), answer.text


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_before_the_first_word_is_an_error_and_no_stream(
    running: Running, monkeypatch: pytest.MonkeyPatch, path: str, stream: bool
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(TextGenerator, "generate", fails)
    answer = post(running, path, stream=stream)
    assert (answer.status_code, answer.headers["content-type"]) == (500, "application/json")
    assert pattern("failed").fullmatch(answer.text), answer.text


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The writer says a word, and fails when the event is set."""
    seen = threading.Event()

    def fails(*_: object, on_text: Any, **__: object) -> None:
        on_text(0, " a")
        assert seen.wait(60)
        raise ZeroDivisionError

    monkeypatch.setattr(TextGenerator, "generate", fails)
    return seen


@pytest.mark.parametrize("kind", PATHS)
def test_a_failure_in_a_stream_ends_it_with_an_error_and_without_done(
    running: Running, failing: threading.Event, kind: str
) -> None:
    body, text = {**BODIES[PATHS[kind]], "stream": True}, ""
    with httpx.stream("POST", f"{running.url}/v1/{PATHS[kind]}", json=body, timeout=120) as answer:
        assert answer.status_code == 200
        for part in answer.iter_text():
            text += part
            if '" a"' in text:
                failing.set()
    assert pattern(f"{kind}_failing").fullmatch(text), text


def test_the_client_raises_for_a_failure_in_a_stream(running: Running, failing: threading.Event) -> None:
    client = openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0, timeout=120)
    stream = client.chat.completions.create(**BODIES["chat/completions"], stream=True)
    with pytest.raises(openai.APIError, match="internal error"):
        for event in stream:
            if event.choices[0].delta.content:
                failing.set()
