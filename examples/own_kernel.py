"""A kernel of one's own: teach the compiler an operator that it leaves to ONNX Runtime.

An elementwise operator is a row of the table in opsmith/ops.py: inference, fusion and printing follow from it. This one is
`com.example::SignedSquare(x) = 0.5 x |x|`, on vector registers, together with whatever stands around it.

    python examples/own_kernel.py [FOLDER]
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx.parser

import opsmith
from opsmith import ops
from opsmith.expressions import f

# What the operator computes from its operand; abs is in kernels/math.hpp for vectors and scalars alike.
ops.row("com.example::SignedSquare", lambda x: 0.5 * x * f.abs(x), arity=1, kinds="f")

TEXT = """<ir_version: 10, opset_import: ["" : 20, "com.example" : 1]>
g (float[n, 8] x) => (float[n, 8] y) { s = com.example.SignedSquare(x)  y = Add(s, x) }"""


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(onnx.parser.parse_model(TEXT), folder / "model.onnx")
    # Stock ONNX Runtime has no such operator, so there is nothing to verify against but numpy.
    result = opsmith.compile(folder / "model.onnx", folder / "signed" / "compiled", regions="whole", verify=False)
    x = np.linspace(-2, 2, 24, dtype=np.float32).reshape(3, 8)
    got = opsmith.load(result.variant).run(None, {"x": x})[0]
    print(f"largest difference from numpy: {np.abs(got - (0.5 * x * np.abs(x) + x)).max():.1e}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(temporary))
