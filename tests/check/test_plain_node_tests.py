"""ONNX's node tests as plain files, without their data: inputs are found for every one that can be fed at all.

python tests/check/test_plain_node_tests.py [all]      counts them, and says what could not be fed and why
"""

from __future__ import annotations

import collections
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import onnx

sys.path.append(str(Path(__file__).parents[1]))  # for the run as a program
from node_tests import load_cases

from opsmith.check.feed import judged_feed
from opsmith.errors import OpsmithError

# What ONNX Runtime cannot be fed with from numpy, or lacks a kernel for.
CANNOT = ("is not a tensor", "no declared rank", "cannot load", "can't be converted to MLDataType")
# The declared sizes do not say which values fit (1), or ONNX Runtime refuses the test's own data too (2).
KNOWN = {
    "test_affine_grid_2d_expanded",  # 1
    "test_affine_grid_2d_align_corners_expanded",  # 1
    "test_attention_4d_diff_heads_mask4d_padded_kv",  # 2
    "test_convinteger_with_padding",  # 2
    "test_reduce_max_empty_set_bool",  # 2
}


def sampled(count: int | None) -> Iterator[tuple[str, onnx.ModelProto]]:
    cases = load_cases()
    for case in cases if count is None else random.Random(0).sample(cases, count):
        yield case.name, onnx.load_from_string(case.model)


def refused(models: Iterator[tuple[str, onnx.ModelProto]]) -> tuple[int, dict[str, str], dict[str, str]]:
    """How many run, which do not though they could, and which cannot be fed or loaded by ONNX Runtime at all."""
    runs, bad, remarks = 0, {}, {}
    for name, model in models:
        try:
            judged = judged_feed(model)
        except OpsmithError as error:
            remarks[name] = str(error)  # no valid model
            continue
        if judged.feed is not None:
            runs += 1
        elif any(word in str(judged.problem) for word in CANNOT):
            remarks[name] = str(judged.problem)
        else:
            bad[name] = str(judged.problem)
    return runs, bad, remarks


def test_no_sampled_node_test_is_refused_for_want_of_data() -> None:
    runs, bad, _ = refused(sampled(144))
    assert set(bad) <= KNOWN, bad
    assert runs > 100


if __name__ == "__main__":
    runs, bad, remarks = refused(sampled(None if "all" in sys.argv else 144))
    print(f"{runs} run, {len(bad)} do not, {len(remarks)} cannot be fed or loaded")
    for name, problem in bad.items():
        print(f"{name}: {problem}")
    for reason, count in collections.Counter(next(w for w in (*CANNOT, r) if w in r) for r in remarks.values()).items():
        print(f"{count}: {reason}")
