"""The models people run, small: each compiles to one op from the graphs of both exporters, and computes the same.

`compile` itself verifies on the stored data and on three random shapes; here the result is checked once more from outside.
"""

from __future__ import annotations

import models
import numpy as np
import onnx
import pytest

import opsmith

CASES = [
    ("bert", ""),
    ("gpt2", ""),
    ("llama", ""),
    ("clip", "text_model"),
    ("clip", "vision_model"),
    ("clipseg", ""),
    ("stable-diffusion", "text_encoder"),
    ("stable-diffusion", "unet"),
    ("stable-diffusion", "vae_encoder"),
    ("stable-diffusion", "vae_decoder"),
]


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("name, part", CASES)
def test_it_compiles_to_one_op(name, part, exporter, tmp_path):
    source = models.tiny_variant(name, exporter, part)
    result = opsmith.compile(source, tmp_path / name / "compiled", regions="whole")
    proto = onnx.load(result.variant.path, load_external_data=False)
    assert len(proto.graph.node) == 1, [n.op_type for n in proto.graph.node]
    assert len({str(c.dims) for c in result.verified.cases}) >= 3
    again = opsmith.verify(source, result.variant, rtol=1e-3, atol=1e-4, seed=7)
    assert again.ok, again.problems


def test_gpt2_decodes_its_own_presents_to_the_same_tokens(tmp_path):
    source = models.tiny_variant("gpt2", "dynamo")
    result = opsmith.compile(source, tmp_path / "gpt2" / "compiled", regions="whole")
    stock, compiled = opsmith.load(source), opsmith.load(result.variant)
    assert decode(stock, 200) == decode(compiled, 200)


def decode(session, count):
    """Greedy tokens, fed one by one with the session's own presents."""
    names = [i.name for i in session.get_inputs()]
    past = {
        i.name: np.zeros(
            [1 if isinstance(d, str) and k == 0 else 0 if isinstance(d, str) else d for k, d in enumerate(i.shape)],
            np.float32,
        )
        for i in session.get_inputs()
        if i.name.startswith("past")
    }
    outputs = [o.name for o in session.get_outputs()]
    tokens, ids, length = [], np.array([[5]], np.int64), 0
    limit = 60  # the tiny model's positions end there: start over with an empty past
    while len(tokens) < count:
        feed = {"input_ids": ids, **past}
        if "attention_mask" in names:
            feed["attention_mask"] = np.ones((1, length + 1), np.int64)
        if "position_ids" in names:
            feed["position_ids"] = np.array([[length]], np.int64)
        found = dict(zip(outputs, session.run(None, feed)))
        tokens.append(int(found["logits"][0, -1].argmax()))
        length += 1
        if length == limit:
            past, length = {n: a[:, :, :0] for n, a in past.items()}, 0
        else:
            past = {n: found[n.replace("past_key_values", "present")] for n in past}
        ids = np.array([[tokens[-1]]], np.int64)
    return tokens
