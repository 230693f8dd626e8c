"""Blocks of Stable Diffusion's UNet, GPT-2 and BERT, distilled from tiny exports of both exporters.

Made by `opsmith distill MODEL DEST --pattern RULE --max 1 --light` with small `--shape`s; the rule is in opsmith.json.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import opsmith
from opsmith.testing import cases, parity_test

DATA = Path(__file__).parents[1] / "data" / "distilled"

test_stored_outputs_are_reproduced = parity_test(DATA)
test_optimize_keeps_the_function = parity_test(DATA, opsmith.optimize, timing=False)
# every block is a compiler run of its own
test_compile_keeps_the_function = pytest.mark.slow(parity_test(DATA, opsmith.compile, regions="all"))


@pytest.mark.parametrize("model", cases(DATA), ids=lambda p: str(p.parent.parent.relative_to(DATA)))
def test_the_rule_that_a_block_was_cut_by_fires_in_it(model, tmp_path):
    rule = json.loads((model.parent / "opsmith.json").read_text())["options"]["pattern"]
    result = opsmith.optimize(model, tmp_path / "net" / "rewritten", timing=False, check=False)
    assert {r.rule: r.matches for r in result.rules}[rule] >= 1


def test_every_family_and_kind_of_block_is_here():
    found = {p.parent.parent.name.removesuffix("_0") for p in cases(DATA)}
    assert {"attention", "gelu", "gelu_tanh", "geglu", "group_norm", "group_norm_silu", "skip_layer_norm"} <= found
    assert {p.parents[2].name.split("_")[0] for p in cases(DATA)} == {"bert", "gpt2", "unet"}
    assert sum(f.stat().st_size for f in DATA.rglob("*") if f.is_file()) < 1_000_000
