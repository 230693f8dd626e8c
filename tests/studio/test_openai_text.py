"""Completions and chat: asked by the real client, and read byte by byte."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import openai
import pytest
from serving import Running

ASK: dict[str, Any] = {"model": "writer", "messages": [{"role": "user", "content": "Frog"}], "temperature": 0}


@pytest.fixture(scope="module")
def client(running: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0, timeout=120)


def events(running: Running, path: str, body: dict[str, Any]) -> list[str]:
    """The stream as it is, with the id and the time taken out."""
    answer = httpx.post(f"{running.url}/v1/{path}", json={**body, "stream": True}, timeout=120)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    *parts, rest = answer.text.split("\n\n")
    assert rest == ""
    seen, names = [], set()
    for part in parts:
        assert part.startswith("data: ") and "\n" not in part
        if part == "data: [DONE]":
            seen.append("[DONE]")
            continue
        data = json.loads(part.removeprefix("data: "))
        names.add((data.pop("id"), data.pop("created")))
        seen.append(json.dumps(data))
    assert len(names) == 1
    return seen


def chunk(delta: dict[str, Any], reason: str | None, index: int = 0, **more: Any) -> str:
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
    return json.dumps({"object": "chat.completion.chunk", "model": "writer", "choices": [choice], **more})


def test_a_chat_stream_has_openais_shape(running: Running) -> None:
    seen = events(running, "chat/completions", {**ASK, "max_tokens": 3})
    first, *pieces, reason, last = seen
    assert first == chunk({"role": "assistant", "content": "", "refusal": None}, None)
    words = [json.loads(p)["choices"][0]["delta"]["content"] for p in pieces]  # a busy server joins some
    assert pieces == [chunk({"content": word}, None) for word in words]
    assert "".join(words) == " a picture of"
    assert (reason, last) == (chunk({}, "length"), "[DONE]")


def test_a_chat_stream_with_usage_and_several_choices(running: Running) -> None:
    body = {**ASK, "max_tokens": 2, "n": 2, "stream_options": {"include_usage": True}}
    seen = events(running, "chat/completions", body)
    first = [chunk({"role": "assistant", "content": "", "refusal": None}, None, i, usage=None) for i in (0, 1)]
    assert seen[:2] == first
    assert seen[-4:-2] == [chunk({}, "length", i, usage=None) for i in (0, 1)]
    usage = {"prompt_tokens": 2, "completion_tokens": 4, "total_tokens": 6}
    assert json.loads(seen[-2]) == {
        "model": "writer",
        "object": "chat.completion.chunk",
        "choices": [],
        "usage": usage,
    }
    assert seen[-1] == "[DONE]"


def test_a_completions_stream_has_openais_shape(running: Running) -> None:
    seen = events(running, "completions", {"model": "writer", "prompt": "frog:", "max_tokens": 2, "temperature": 0})

    def piece(text: str, reason: str | None) -> str:
        choice = {"text": text, "index": 0, "logprobs": None, "finish_reason": reason}
        return json.dumps({"object": "text_completion", "choices": [choice], "model": "writer"})

    *pieces, reason, last = seen
    words = [json.loads(p)["choices"][0]["text"] for p in pieces]
    assert pieces == [piece(word, None) for word in words]
    assert "".join(words) == " a picture"
    assert (reason, last) == (piece("", "length"), "[DONE]")


def test_chat_by_the_models_own_template(client: openai.OpenAI) -> None:
    """The starter's writer continues `frog:`, and its folder says so."""
    made = client.chat.completions.create(**ASK, max_completion_tokens=12)
    assert made.object == "chat.completion"
    assert made.choices[0].message.role == "assistant"
    plain = client.completions.create(model="writer", prompt="frog:", max_tokens=12, temperature=0)
    assert made.choices[0].message.content == plain.choices[0].text
    assert made.usage is not None and plain.usage is not None
    assert made.usage.prompt_tokens == plain.usage.prompt_tokens == 2
    parts = [{"type": "text", "text": "Fr"}, {"type": "text", "text": "og"}]
    again = client.chat.completions.create(**{**ASK, "messages": [{"role": "user", "content": parts}]}, max_tokens=12)
    assert again.choices[0].message.content == made.choices[0].message.content


def test_a_chat_without_a_number_of_tokens_ends_by_itself(client: openai.OpenAI) -> None:
    made = client.chat.completions.create(**ASK)
    assert made.choices[0].finish_reason == "stop"
    assert made.choices[0].message.content.endswith("wall")


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_that_span_tokens_do_not_leak(client: openai.OpenAI, stream: bool) -> None:
    made = client.chat.completions.create(**ASK, stop=["ture of"], stream=stream)
    if stream:
        text = "".join(c.choices[0].delta.content or "" for c in made)
    else:
        text, reason = made.choices[0].message.content, made.choices[0].finish_reason
        assert reason == "stop"
    assert text == " a pic"


def test_log_probabilities(client: openai.OpenAI) -> None:
    made = client.chat.completions.create(**ASK, max_tokens=3, logprobs=True, top_logprobs=2)
    content = made.choices[0].logprobs.content
    assert "".join(t.token for t in content) == made.choices[0].message.content
    assert [len(t.top_logprobs) for t in content] == [2, 2, 2]
    for token in content:
        assert token.logprob == token.top_logprobs[0].logprob <= 0  # greedy takes the likeliest
        assert token.logprob > token.top_logprobs[1].logprob
    old = client.completions.create(model="writer", prompt="frog:", max_tokens=3, temperature=0, logprobs=2)
    table = old.choices[0].logprobs
    assert table.token_logprobs == [t.logprob for t in content]
    assert [old.choices[0].text[i:][:2] for i in table.text_offset] == [t[:2] for t in table.tokens]


def test_bias_and_penalties_are_honoured(client: openai.OpenAI) -> None:
    plain = client.completions.create(model="writer", prompt="frog:", max_tokens=12, temperature=0).choices[0].text
    names = {"a": 0, "of": 0}
    from opsmith import starter
    from opsmith.pipelines.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(starter.folder("writer"))
    for word in names:
        names[word] = tokenizer.encode(f" {word}").ids[0]
    banned = client.completions.create(
        model="writer", prompt="frog:", max_tokens=12, temperature=0, logit_bias={str(names["a"]): -100}
    )
    assert plain.split().count("a") > 1
    assert "a" not in banned.choices[0].text.split()
    once = client.completions.create(
        model="writer", prompt="frog:", max_tokens=12, temperature=0, frequency_penalty=2, presence_penalty=2
    )
    assert once.choices[0].text.split().count("a") < plain.split().count("a")


@pytest.mark.parametrize(
    "extra",
    [
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"response_format": {"type": "json_object"}},
        {"functions": [{"name": "f"}]},
        {"audio": {"voice": "a"}},
        {"reasoning_effort": "high"},
        {"store": True},
        {"n": 100},
        {"logprobs": True, "stream": True},
        {"top_logprobs": 2},
        {"stream_options": {"include_usage": True}},
        {"stop": ["x"] * 100},
        {"presence_penalty": 3},
        {"logit_bias": {"frog": 1}},
        {"temperature": -1},
        {"beam_width": 4},
        {"messages": []},
        {"messages": [{"role": "tool", "content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]},
        {"messages": [{"role": "user", "content": "word " * 100}]},
        {"max_tokens": 1000},
    ],
    ids=lambda e: json.dumps(e)[:40],
)
def test_what_is_not_supported_is_refused_and_not_ignored(running: Running, extra: dict[str, Any]) -> None:
    answer = httpx.post(f"{running.url}/v1/chat/completions", json={**ASK, **extra}, timeout=60)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert "internal" not in error["message"]


@pytest.mark.parametrize("extra", [{"best_of": 3}, {"suffix": "x"}, {"logprobs": 9}, {"n": 17}, {"foo": 1}, {"n": 9, "prompt": ["a", "b"]}, {"echo": True, "logprobs": 1}], ids=str)  # fmt: skip
def test_completions_refuse_what_they_do_not_do(running: Running, extra: dict[str, Any]) -> None:
    body = {"model": "writer", "prompt": "frog:", **extra}
    assert httpx.post(f"{running.url}/v1/completions", json=body, timeout=60).status_code == 400


@pytest.mark.parametrize(
    ("body", "kind", "message", "field"),
    [
        (b"{nope", "application/json", "the body is not JSON: .* at 1", None),
        (b"", "application/json", "the body is not a JSON object .send one, with content-type", None),
        (b"[]", "application/json", "the body is not a JSON object", None),
        (json.dumps(ASK).encode(), "text/plain", "send one, with content-type: application/json", None),
        (
            json.dumps({**ASK, "messages": [{"role": "user", "content": [{"type": "image_url"}]}]}).encode(),
            "application/json",
            "messages.0.content.0.type: Input should be 'text'",
            "messages.0.content.0.type",
        ),
        (
            json.dumps({**ASK, "messages": [{"role": "user", "content": None}]}).encode(),
            "application/json",
            "messages.0.content: Input should be a valid string",
            "messages.0.content",
        ),
    ],
)
def test_an_invalid_body_is_told_by_what_is_wrong_in_it(
    running: Running, body: bytes, kind: str, message: str, field: str | None
) -> None:
    answer = httpx.post(f"{running.url}/v1/chat/completions", content=body, headers={"content-type": kind})
    error = answer.json()["error"]
    assert answer.status_code == 400 and re.search(message, error["message"]), error
    assert error["param"] == field


def test_what_holds_anyway_may_be_said(client: openai.OpenAI) -> None:
    extra = {"response_format": {"type": "text"}, "tools": [], "store": False, "user": "me", "service_tier": "auto"}
    assert client.chat.completions.create(**ASK, max_tokens=1, extra_body=extra).choices
    assert client.completions.create(model="writer", prompt="frog:", max_tokens=1, best_of=1, suffix="").choices


@pytest.mark.parametrize("path", ["completions", "chat/completions", "images/generations", "embeddings"])
def test_half_a_character_is_a_bad_request(running: Running, path: str) -> None:
    half = "frog\ud800"
    bodies: dict[str, list[dict[str, Any]]] = {
        "completions": [{"model": "writer", "prompt": half}, {"model": "writer", "prompt": "x", "stop": half}],
        "chat/completions": [{**ASK, "messages": [{"role": "user", "content": half}]}],
        "images/generations": [{"prompt": half, "steps": 1}, {"prompt": "x", "negative_prompt": half, "steps": 1}],
        "embeddings": [{"model": "embedder", "input": half}],
    }
    for body in [*bodies[path], {"model": half, "prompt": "x", "input": "x"}, {half: 1}]:
        headers = {"content-type": "application/json"}
        answer = httpx.post(f"{running.url}/v1/{path}", content=json.dumps(body), headers=headers, timeout=60)
        if "stop" not in body:  # which never occurs, and so changes nothing
            assert answer.status_code in (400, 404), answer.text
        assert "internal" not in answer.text


def test_unknown_paths_and_methods_are_errors_in_openais_form(running: Running) -> None:
    for method, path, status, code in (
        ("POST", "/v1/responses", 404, "unknown_url"),
        ("GET", "/v1/files/x", 404, "unknown_url"),
        ("DELETE", "/v1/models/writer", 405, "method_not_supported"),
        ("GET", "/v1/completions", 405, "method_not_supported"),
        ("GET", "/v1/models/gpt-9", 404, "model_not_found"),
    ):
        answer = httpx.request(method, running.url + path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), path
    assert httpx.get(f"{running.url}/nowhere").headers["content-type"].startswith("text/html")


def test_a_mistake_of_ours_is_a_500(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("opsmith.pipelines.text.TextGenerator.generate", fails)
    answer = httpx.post(f"{running.url}/v1/chat/completions", json=ASK, timeout=60)
    assert answer.status_code == 500
    assert "internal error" in answer.json()["error"]["message"]
