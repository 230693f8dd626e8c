"""Small graphs in ONNX's own text form, for the compiler's tests."""

from __future__ import annotations

import onnx
import onnx.parser


def graph(text: str, opset: int = 20) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]>\n{text}')


MLP = graph(
    """mlp (float[batch, seq, 8] x) => (float[batch, seq, 4] y)
    <float[8, 16] w1 = {%s}, float[16] b1 = {%s}, float[16, 4] w2 = {%s}> {
      h = MatMul(x, w1)
      a = Add(h, b1)
      r = Relu(a)
      y = MatMul(r, w2)
    }"""
    % (
        ", ".join(str((i * 37 % 19 - 9) / 10) for i in range(128)),
        ", ".join(str(i / 10) for i in range(16)),
        ", ".join(str((i * 13 % 17 - 8) / 10) for i in range(64)),
    )
)
