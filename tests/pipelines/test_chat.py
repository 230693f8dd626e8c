"""Chat templates: as transformers renders them, and nothing more than that."""

from __future__ import annotations

import json

import pytest

from opsmith.errors import OpsmithError
from opsmith.pipelines.chat import load_chat

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nBe brief.<|im_end|>\\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
MESSAGES = [
    {"role": "user", "content": "Hello {{ 7 * 7 }}"},
    {"role": "assistant", "content": "Hi"},
    {"role": "user", "content": "How are\nyou?"},
]


def folder(tmp_path, **config):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return load_chat(tmp_path)


def test_a_template_renders_as_in_transformers(tmp_path):
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    (tmp_path / "t").mkdir()
    lines = "{% for m in messages -%}\n    {% if m.role == 'user' %}\n{{ bos_token }}{{ m | tojson }}\n    {% endif %}\n{%- endfor %}"
    for template in (CHATML, lines):
        theirs = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), bos_token="<s>")
        expected = theirs.apply_chat_template(
            MESSAGES, chat_template=template, tokenize=False, add_generation_prompt=True
        )
        assert folder(tmp_path, chat_template=template, bos_token={"content": "<s>"}).prompt(MESSAGES) == expected


def test_a_file_of_its_own_comes_first_and_of_several_the_default(tmp_path):
    several = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "d{{ eos_token }}"}]
    assert folder(tmp_path, chat_template=several, eos_token="</s>").prompt(MESSAGES) == "d</s>"
    (tmp_path / "chat_template.jinja").write_text("own")
    assert load_chat(tmp_path).prompt(MESSAGES) == "own"


def test_without_a_template_roles_are_written_plainly(tmp_path):
    chat = load_chat(tmp_path)
    assert chat.prompt(MESSAGES[:2]) == "User: Hello {{ 7 * 7 }}\nAssistant: Hi\nAssistant:"
    assert "\nUser:" in chat.stop and chat.special


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ messages.append(1) }}",
        "{% for i in range(10000000) %}x{% endfor %}",
        "{{ 1 / 0 }}",
        "{{ messages[9]['content'] }}",
        "{% include 'x' %}",
        "{{ no_such_function() }}",
        "{% if %}",
    ],
)
def test_a_template_cannot_do_harm(tmp_path, template):
    with pytest.raises(OpsmithError, match="chat template .* fails"):
        folder(tmp_path, chat_template=template).prompt(MESSAGES)


def test_a_template_may_refuse(tmp_path):
    with pytest.raises(OpsmithError, match="refuses these messages: no system prompt"):
        folder(tmp_path, chat_template="{{ raise_exception('no system prompt') }}").prompt(MESSAGES)
