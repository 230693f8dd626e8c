"""A chosen subgraph: only the feed-forward part of a block becomes native code, the rest stays with ONNX Runtime.

python examples/subgraph.py [FOLDER]
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx.parser

import opsmith

TEXT = """<ir_version: 10, opset_import: ["" : 20]>
block (float[batch, sequence, 64] x) => (float[batch, sequence, 64] y) {
  [attention_like] p = Softmax<axis=-1>(x)
  [mlp_in] h = MatMul(p, w1)
  [mlp_act] a = Gelu(h)
  [mlp_out] o = MatMul(a, w2)
  y = Add(x, o)
}"""


def main(folder: Path) -> None:
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(TEXT)
    for name, shape in (("w1", (64, 256)), ("w2", (256, 64))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(rng.normal(0, 0.1, shape).astype(np.float32), name))
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / "block.onnx")

    result = opsmith.compile(folder / "block.onnx", folder / "block" / "compiled", regions="mlp_*")
    print("compiled as one op:", ", ".join(result.regions[0].nodes))
    print("left to ONNX Runtime:", ", ".join(name or op for op, name, _ in result.left))
    print(
        "nodes of the new model:",
        [n.op_type for n in onnx.load(result.variant.path, load_external_data=False).graph.node],
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(temporary))
