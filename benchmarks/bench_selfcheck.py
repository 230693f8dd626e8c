"""Can `opsmith bench` be trusted? Two checks, to be run on a machine that is otherwise idle (about 15 minutes).

    python benchmarks/bench_selfcheck.py [--runs 20] [--seconds 10] [--json FILE]

1. Two identical copies of a model: the interval of the ratio must contain 1.0 in 19 of 20 runs.
2. A planted slow-down of 5 % (21 equal layers instead of 20): the interval must lie above 1.0 in 19 of 20 runs.

Exit code 1 if either fails. On a busy machine the intervals widen; the table then says how many samples were disturbed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import opsmith

WIDTH, BATCH = 384, 64


def chain(layers: int) -> onnx.ModelProto:
    """LAYERS times  x [batch,384] -> relu(x @ w + x) , every layer with weights of its own; no op that ORT could drop."""
    rng = np.random.default_rng(0)
    nodes, weights, x = [], [], "x"
    for i in range(layers):
        w = (rng.standard_normal((WIDTH, WIDTH)) / WIDTH).astype(np.float32)
        weights.append(numpy_helper.from_array(w, f"w{i}"))
        nodes.append(helper.make_node("MatMul", [x, f"w{i}"], [f"m{i}"]))
        nodes.append(helper.make_node("Add", [f"m{i}", x], [f"a{i}"]))
        nodes.append(helper.make_node("Relu", [f"a{i}"], [f"r{i}"]))
        x = f"r{i}"
    nodes.append(helper.make_node("Identity", [x], ["y"]))
    value = helper.make_tensor_value_info
    inputs, outputs = (
        [value("x", TensorProto.FLOAT, ["batch", WIDTH])],
        [value("y", TensorProto.FLOAT, ["batch", WIDTH])],
    )
    graph = helper.make_graph(nodes, "chain", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=10.0, help="time to spend on each comparison")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    found: dict[str, list[dict[str, object]]] = {"identical": [], "slower by 5 %": []}
    with tempfile.TemporaryDirectory() as folder:
        for name, layers in (("first", 20), ("copy", 20), ("slower", 21)):
            path = Path(folder) / "chain" / name
            path.mkdir(parents=True)
            onnx.save(chain(layers), str(path / f"chain_{name}.onnx"))
        for run in range(options.runs):
            for title, other in (("identical", "copy"), ("slower by 5 %", "slower")):
                pair = [Path(folder) / "chain" / "first", Path(folder) / "chain" / other]
                # The slower model computes something else, on purpose: only its time matters here.
                result = opsmith.bench(
                    pair,
                    seconds=options.seconds,
                    shapes={"batch": BATCH},
                    seed=run,
                    threads=options.threads,
                    rtol=1e9,
                    atol=1e9,
                )
                entry = result.entries[1]
                ratio = entry.speedup
                right = ratio.low <= 1.0 <= ratio.high if title == "identical" else ratio.high < 1.0
                found[title].append(
                    {
                        "speedup": ratio.value,
                        "low": ratio.low,
                        "high": ratio.high,
                        "right": right,
                        "disturbed": entry.disturbed,
                        "turns": entry.samples,
                        "clean": result.clean,
                    }
                )
                line = f"{title:14} {ratio.value:.4f} ({ratio.low:.4f} to {ratio.high:.4f})"
                print(
                    f"{line} {'as it should be' if right else 'WRONG':16} {entry.disturbed}/{entry.samples} disturbed",
                    flush=True,
                )
    good = True
    for title, runs in found.items():
        right = sum(bool(r["right"]) for r in runs)
        needed = -(-19 * len(runs) // 20)
        good &= right >= needed
        print(f"{title}: {right} of {len(runs)} right, {needed} needed")
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
