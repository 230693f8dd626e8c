"""Reshape(Gemm(x, weight, bias), s) + residual -> MatMul(Reshape(x, s'), weight) + bias + residual

torch's addmm works on rows; the Reshape behind it hides from the compiler that bias and residual are one epilogue of the product.
s' is s with the width of x at its end.
"""

from __future__ import annotations

import onnx_ir as ir

from opsmith.rewriter.rule import Site, attribute, input_of, ints_of, is_op, rank_of, rule, size_of

_PLAIN = {"transA": 0, "transB": 0, "alpha": 1.0, "beta": 1.0}


@rule(
    "flat_linear",
    "Reshape(Gemm(x, weight, bias), s) + residual -> MatMul(Reshape(x, s'), weight) + bias + residual",
    roots=("Gemm",),
    makes=("MatMul", "Add"),
)
def flat_linear(site: Site) -> None:
    x, weight, bias = (input_of(site.root, i) for i in range(3))
    plain = [attribute(site.root, name, default) for name, default in _PLAIN.items()] == list(_PLAIN.values())
    site.need(plain, "transposed or scaled")
    if x is None or weight is None or bias is None:
        site.miss("there is no bias")
    site.need(rank_of(bias) == 1, "the bias is not a vector")
    width, columns = size_of(weight, 0), size_of(weight, 1)
    if not isinstance(width, int) or not isinstance(columns, int):
        site.miss("the size of the weight is not known")
    back = site.only_user(site.root.outputs[0], "Reshape")
    rows = back.outputs[0]
    site.need(size_of(rows, -1) == columns and (rank_of(rows) or 0) > 2, "the Reshape does not keep the columns", back)
    site.need(all(is_op(reader, "Add") for reader in rows.consumers()), "no addition follows", back)
    shape, zeros = input_of(back, 1), int(attribute(back, "allowzero", 0))
    sizes = ints_of(shape)
    if sizes is not None:
        site.need(zeros or 0 not in sizes, "the target copies sizes", back)
        target = site.constant([*sizes[:-1], width])
    else:
        ends = (site.constant([0]), site.constant([-1]), site.constant([0]))
        target = site.op("Concat", site.op("Slice", shape, *ends), site.constant([width]), axis=0)
    folded = site.op("Reshape", x, target, allowzero=zeros)
    product = site.op("MatMul", folded, weight)
    result = site.op("Add", product, bias)
    for value in (folded, product, result):
        value.type, value.shape = rows.type, rows.shape
    if rows.shape is not None:
        folded.shape = ir.Shape([*rows.shape[:-1], width])
    site.replace(rows, result)
