"""Reshape(f(Reshape(x, s)), t) -> f(Reshape(x, t)) or f(x), f any chain of elementwise ops of one input

Cases: (1) the result has the shape of x; (2) the inner Reshape is skipped: the target t must not copy (0) from s.
"""

from __future__ import annotations

import onnx_ir as ir

from opsmith.rewriter.rule import Site, attribute, input_of, ints_of, is_op, rule, sizes_of
from opsmith.rewriter.rules.transpose_sink import ELEMENTWISE


@rule("reshape_sink", "Reshape(f(Reshape(x))) -> f(Reshape(x)), f elementwise", roots=("Reshape",), makes=("Reshape",))
def reshape_sink(site: Site) -> None:
    chain: list[ir.Node] = []
    node = site.producer(input_of(site.root, 0), "Reshape", *ELEMENTWISE)
    while not is_op(node, "Reshape"):
        chain.append(node)
        node = site.producer(input_of(node, 0), "Reshape", *ELEMENTWISE)
    x = input_of(node, 0)
    assert x is not None
    before, after = sizes_of(x), sizes_of(site.root.outputs[0])
    if before is not None and before == after:  # (1)
        value = x
    else:  # (2)
        target = ints_of(input_of(site.root, 1))
        site.need(target is not None and 0 not in target, "the target copies sizes, or is not constant")
        value = site.op("Reshape", x, input_of(site.root, 1), allowzero=int(attribute(site.root, "allowzero", 0)))
    for one in reversed(chain):
        attributes = {a.name: a.value for a in one.attributes.values()}
        value = site.op(one.op_type, value, domain=one.domain, **attributes)
        value.type = one.outputs[0].type
    site.replace(site.root.outputs[0], value)
