"""A kernel from scratch: what an operator means for sizes, its C++, and the call that the compiler writes.

`com.example::RunningMax(x)`: along the last axis, the largest element so far. In the package these three parts are a function in
opsmith/analysis/, a header in opsmith/kernels/ and a function in opsmith/compiler/lower/; nothing else knows of the operator.

    python examples/new_kernel.py [FOLDER]
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx.parser

import opsmith
from opsmith.analysis.registry import Node, infers
from opsmith.analysis.values import Abstract
from opsmith.compiler.kernel import Kernel, read, sizes, write
from opsmith.compiler.lower.builder import Builder
from opsmith.compiler.lower.registry import lowers
from opsmith.sizes import product

TEXT = """<ir_version: 10, opset_import: ["" : 20, "com.example" : 1]>
g (float[n, m] x) => (float[n, m] y) { r = com.example.RunningMax(x)  y = Mul(r, x) }"""

HEADER = """#pragma once
#include "types.hpp"

namespace opsmith {

// y[r][c] = max of x[r][0..c]
template <class T>
void running_max(const Pool& pool, i64 rows, i64 cols, const T* x, T* y) {
  pool.parallel_ranges(rows, 64, [&](i64 first, i64 last) {
    for (i64 r = first; r < last; ++r) {
      for (i64 c = 0; c < cols; ++c) {
        const i64 at = r * cols + c;
        y[at] = c > 0 && y[at - 1] > x[at] ? y[at - 1] : x[at];
      }
    }
  });
}

}  // namespace opsmith
"""


@infers("com.example::RunningMax")
def _sizes(node: Node) -> list[Abstract]:
    x = node.input(0)
    return [Abstract(x.dtype, x.dims)]  # a new value: x itself may carry a constant, or elements that are known


def teach(header: Path) -> None:
    """Declare the kernel, and how a node becomes a call of it."""
    header.write_text(HEADER)
    kernel = Kernel("running_max", str(header), [*sizes("rows", "cols"), read("x"), write("y")], "running maximum")

    @lowers("com.example::RunningMax")
    def _running_max(node: Node, builder: Builder) -> None:
        x, y = builder.rows(node.ir.inputs[0]), builder.result(node.ir.outputs[0])
        builder.call(kernel, rows=product(x.dims[:-1]), cols=x.dims[-1], x=x, y=y)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    teach(folder.absolute() / "running_max.hpp")
    onnx.save(onnx.parser.parse_model(TEXT), folder / "model.onnx")
    # Stock ONNX Runtime has no such operator, so there is nothing to verify against but numpy.
    result = opsmith.compile(folder / "model.onnx", folder / "running" / "compiled", regions="whole", verify=False)
    x = np.random.default_rng(0).normal(size=(5, 9)).astype(np.float32)
    got = opsmith.load(result.variant).run(None, {"x": x})[0]
    print((result.variant.folder / "src" / "region0.txt").read_text())
    print(f"largest difference from numpy: {np.abs(got - np.maximum.accumulate(x, -1) * x).max():.1e}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(temporary))
