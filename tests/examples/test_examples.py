"""Every example runs as a user would run it, and says what it should."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import opsmith
from opsmith import store

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *arguments: object) -> str:
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_bert(tmp_path):
    out = run("bert.py", tmp_path)
    assert "one op for" in out
    assert float(out.split("largest difference:")[1]) < 1e-4


def test_gpt2_decode(tmp_path):
    assert "the same in both: True" in run("gpt2_decode.py", tmp_path)


def test_subgraph(tmp_path):
    out = run("subgraph.py", tmp_path)
    assert "left to ONNX Runtime: attention_like, Add_y" in out
    assert "region0" in out and "Softmax" in out


def test_own_kernel(tmp_path):
    assert float(run("own_kernel.py", tmp_path).split(":")[1]) < 1e-6


def test_new_kernel(tmp_path):
    out = run("new_kernel.py", tmp_path)
    assert "r = running_max(rows=n, cols=m, x=in0_x)" in out
    assert float(out.split("numpy:")[1]) == 0.0


def test_plain_onnxruntime(tmp_path):
    sys.path.insert(0, str(Path(__file__).parents[1] / "compiler"))
    from small import MLP

    result = opsmith.compile(MLP, tmp_path / "mlp" / "compiled", regions="whole")
    assert run("plain_onnxruntime.py", result.variant.folder).strip() == "y float32 (1, 1, 4)"


def test_plain_onnxruntime_on_integers_test_data_and_a_file_on_its_own(tmp_path):
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 20]>
        take (int64[n] ids, float[4] t) => (float[n] y) { y = Gather(t, ids) }""")
    onnx.save(model, tmp_path / "take.onnx")
    opsmith.compile(tmp_path / "take.onnx", tmp_path / "fast.onnx", regions="whole")
    assert run("plain_onnxruntime.py", tmp_path / "fast.onnx").strip() == "y float32 (1,)"
    feed = {"ids": np.array([3, 1, 2]), "t": np.zeros(4, np.float32)}
    store.write_test_data(tmp_path, feed, {"y": np.zeros(3, np.float32)})
    assert run("plain_onnxruntime.py", tmp_path / "fast.onnx").strip() == "y float32 (3,)"


def test_plain_onnxruntime_takes_nameless_test_data_in_the_order_of_the_inputs(tmp_path):
    """input_10.pb comes behind input_9.pb, not behind input_1.pb."""
    inputs = [f"x{i}" for i in range(11)]
    declared = ", ".join(f"float[{i + 1}] {name}" for i, name in enumerate(inputs))
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 20]>
        join ({declared}) => (float[66] y) {{ y = Concat<axis = 0>({", ".join(inputs)}) }}""")
    onnx.save(model, tmp_path / "join.onnx")
    opsmith.compile(tmp_path / "join.onnx", tmp_path / "fast.onnx", regions="whole")
    (tmp_path / "test_data_set_0").mkdir()
    for i in range(11):
        onnx.save_tensor(
            onnx.numpy_helper.from_array(np.zeros(i + 1, "f4")), tmp_path / f"test_data_set_0/input_{i}.pb"
        )
    assert run("plain_onnxruntime.py", tmp_path / "fast.onnx").strip() == "y float32 (66,)"


@pytest.mark.parametrize("example", sorted(p.name for p in EXAMPLES.glob("*.py")))
def test_each_example_is_run_above(example):
    assert f'"{example}"' in Path(__file__).read_text()
