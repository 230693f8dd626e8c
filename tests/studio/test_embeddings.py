"""Embeddings, metrics and the reference page."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest
import real_models
from serving import Running

import opsmith
from opsmith import starter
from opsmith.errors import OpsmithError
from opsmith.pipelines.embed import TextEncoder, _batches, _pooling, pool


@pytest.fixture(scope="module")
def client(running: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0, timeout=120)


def test_vectors_have_unit_length_and_like_texts_are_near(client: openai.OpenAI) -> None:
    made = client.embeddings.create(model="embedder", input=["a frog", "a castle at night", "a green frog"])
    vectors = np.array([d.embedding for d in made.data])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert [d.index for d in made.data] == [0, 1, 2]
    assert vectors[0] @ vectors[2] > vectors[0] @ vectors[1]
    assert made.usage.prompt_tokens == made.usage.total_tokens > 3


def test_base64_and_float_are_the_same_numbers(running: Running) -> None:
    def ask(form: str) -> object:
        body = {"model": "embedder", "input": "a frog", "encoding_format": form}
        return httpx.post(f"{running.url}/v1/embeddings", json=body, timeout=120).json()["data"][0]["embedding"]

    exact = np.frombuffer(base64.b64decode(ask("base64")), "<f4")
    np.testing.assert_allclose(ask("float"), exact, atol=1e-8)


def test_what_cannot_be_embedded_is_refused(client: openai.OpenAI) -> None:
    for more, said in (
        ({"input": []}, "0 texts"),
        ({"input": "a frog " * 20}, "the model holds 32"),
        ({"input": [[900000]]}, "there is no token"),
        ({"input": "x", "dimensions": 7}, "dimensions: 7 is not possible .the model gives 128"),
        ({"input": "x", "extra_body": {"pooling": "max"}}, "pooling"),
    ):
        with pytest.raises(openai.BadRequestError, match=said):
            client.embeddings.create(model="embedder", **more)
    with pytest.raises(openai.NotFoundError, match="there is no model 'writer'"):
        client.embeddings.create(model="writer", input="x")


def test_each_text_gets_the_vector_that_it_gets_alone() -> None:
    encoder = TextEncoder(starter.folder("clip") / "text_model")
    texts = ["a frog", "a small green frog beside a big red castle", "night", "an apple on a yellow background"]
    alone = np.concatenate([encoder.embed([t]) for t in texts])
    np.testing.assert_allclose(encoder.embed(texts), alone, atol=1e-6)


def test_texts_of_like_length_run_together() -> None:
    lengths = [3, 500, 4, 490, 2, 480, 5]
    batches = _batches(lengths)
    assert sorted(i for batch in batches for i in batch) == list(range(7))
    assert batches[0][:3] == [1, 3, 5]
    assert all(len(b) * 500 <= 4096 for b in _batches([500] * 100))


def test_pooling_is_what_it_is_called() -> None:
    states = np.arange(12.0).reshape(1, 4, 3)
    mask = np.array([[1, 1, 1, 0]])
    np.testing.assert_array_equal(pool(states, mask, "mean"), [[3, 4, 5]])
    np.testing.assert_array_equal(pool(states, mask, "cls"), [[0, 1, 2]])
    np.testing.assert_array_equal(pool(states, mask, "last"), [[6, 7, 8]])
    np.testing.assert_array_equal(pool(-states, mask, "max"), [[0, -1, -2]])


def test_the_folder_says_how_to_pool(tmp_path: Path) -> None:
    assert _pooling(tmp_path) == "mean"
    (tmp_path / "1_Pooling").mkdir()
    for keys, expected in (({"pooling_mode_cls_token": True}, "cls"), ({"pooling_mode_lasttoken": True}, "last")):
        (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(keys))
        assert _pooling(tmp_path) == expected
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_weightedmean_tokens": True}))
    with pytest.raises(OpsmithError, match="weightedmean"):
        _pooling(tmp_path)


@pytest.mark.slow
def test_minilm_is_pooled_as_sentence_transformers_does(tmp_path: Path) -> None:
    opsmith.export(real_models.minilm(), tmp_path / "minilm", exporter="dynamo")
    a, b, c = TextEncoder(tmp_path / "minilm").embed(
        ["A man is playing the guitar on the street.", "Someone plays guitar outdoors.", "The stock market fell."]
    )
    assert a @ b > 0.5 > 0.2 > a @ c


def test_metrics_count_what_was_done(running: Running, client: openai.OpenAI) -> None:
    def read() -> dict[str, float]:
        text = httpx.get(f"{running.url}/metrics", timeout=60).text
        assert all(re.fullmatch(r'[a-z_]+(\{worker="\w+"\})? [0-9.e+-]+', x) for x in text.splitlines() if x[0] != "#")
        return {line.split()[0]: float(line.split()[1]) for line in text.splitlines() if line[0] != "#"}

    before = read()
    client.completions.create(model="writer", prompt="frog:", max_tokens=5, temperature=0)
    client.embeddings.create(model="embedder", input="a frog")
    after = read()
    assert after["opsmith_prompt_tokens_total"] - before["opsmith_prompt_tokens_total"] == 2
    assert after["opsmith_decode_tokens_total"] - before["opsmith_decode_tokens_total"] == 5
    assert after["opsmith_decode_steps_total"] - before["opsmith_decode_steps_total"] == 4
    assert after["opsmith_embedded_tokens_total"] > before["opsmith_embedded_tokens_total"]
    assert after["process_resident_memory_bytes"] > 1e6
    assert after['opsmith_jobs{worker="writer"}'] == 0


def test_the_reference_page_loads_nothing_from_elsewhere(running: Running) -> None:
    page = httpx.get(f"{running.url}/docs", timeout=60)
    assert page.status_code == 200
    assert set(re.findall(r'(?:href|src)="([^"]+)"', page.text)) == {"/docs.css", "/openapi.json"}
    assert "<script" not in page.text and "style=" not in page.text  # the policy would forbid them
    for word in ("POST /v1/chat/completions", "max_completion_tokens", "POST /v1/embeddings", "POST /v1/images/edits"):
        assert word in page.text
    assert httpx.get(f"{running.url}/docs.css").headers["content-type"].startswith("text/css")
    described = httpx.get(f"{running.url}/openapi.json").json()
    assert "/api/pictures" not in described["paths"]  # the page's own
    assert described["components"]["schemas"]["ChatCompletion"]["additionalProperties"] is False
