"""Other clients of the OpenAI API, as their users call them: each gets the text that the openai package gets.

Their packages ask for versions of each other that do not fit together, so each may have an environment of its own:
OPSMITH_TEST_CLIENTS names Pythons (with `:` between them, `;` on Windows) beside the running one. A client that none of them has is skipped.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from serving import Running

SCRIPTS = Path(__file__).parent / "clients"
PACKAGES = {
    "langchain": "langchain-openai",
    "llamaindex": "llama-index-llms-openai-like",
    "litellm": "litellm",
    "llm": "llm",
}
MODULES = {
    "langchain": "langchain_openai",
    "llamaindex": "llama_index.llms.openai_like",
    "litellm": "litellm",
    "llm": "llm",
}
# Nothing is fetched: prices, tokenizers, usage reports.
OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "HF_HUB_OFFLINE": "1", "LANGCHAIN_TRACING_V2": "false"}


@functools.cache
def python_with(module: str) -> str | None:
    """The first Python that has MODULE."""
    look = f"import importlib.util as u, sys; sys.exit(not (u.find_spec({module.split('.')[0]!r}) and u.find_spec({module!r})))"
    named = [p for p in os.environ.get("OPSMITH_TEST_CLIENTS", "").split(os.pathsep) if p]
    for python in (sys.executable, *named):
        if subprocess.run([python, "-c", look], capture_output=True, cwd="/").returncode == 0:
            return python
    return None


def answers(client: str, running: Running) -> dict[str, Any]:
    """What the client's script prints."""
    if (python := python_with(MODULES[client])) is None:
        pytest.skip(f"{PACKAGES[client]} is not installed; name a Python that has it in OPSMITH_TEST_CLIENTS")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | OFFLINE
    command = [python, str(SCRIPTS / f"{client}.py"), f"{running.url}/v1"]
    made = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert made.returncode == 0, made.stderr[-2000:]
    return dict(json.loads(made.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def direct(running: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def expected(direct: openai.OpenAI) -> Any:
    return direct.chat.completions.create(model="writer", messages=[{"role": "user", "content": "frog"}], temperature=0)


def check_texts(found: dict[str, Any], expected: Any) -> None:
    assert len(expected.choices[0].message.content) > 5
    assert found["text"] == expected.choices[0].message.content
    assert "".join(found["streamed"]) == found["text"]


def check_vectors(found: list[list[float]], direct: openai.OpenAI) -> None:
    wanted = direct.embeddings.create(model="embedder", input=["a frog", "a castle"]).data
    np.testing.assert_allclose(found, [row.embedding for row in wanted], atol=1e-6)


def test_langchain(running: Running, direct: openai.OpenAI, expected: Any) -> None:
    found = answers("langchain", running)
    check_texts(found, expected)
    assert found["batch"] == [found["text"]] * 2
    assert found["tokens"] == expected.usage.total_tokens
    assert len(found["streamed"]) > 3
    check_vectors(found["vectors"], direct)
    assert "400" in found["refused"] and "tools is not supported" in found["refused"]


def test_llamaindex(running: Running, direct: openai.OpenAI, expected: Any) -> None:
    found = answers("llamaindex", running)
    check_texts(found, expected)
    assert found["completed"] == found["text"] and found["tokens"] == expected.usage.total_tokens
    plain = direct.completions.create(model="writer", prompt="frog:", max_tokens=8, temperature=0)
    assert found["continued"] == plain.choices[0].text


def test_litellm(running: Running, direct: openai.OpenAI, expected: Any) -> None:
    found = answers("litellm", running)
    check_texts(found, expected)
    assert found["tokens"] == expected.usage.total_tokens
    check_vectors(found["vectors"], direct)
    assert "there is no model 'gpt-9'" in found["refused"]


def test_the_llm_command(running: Running, expected: Any) -> None:
    found = answers("llm", running)
    check_texts(found, expected)
    assert found["kept"] == found["text"]
