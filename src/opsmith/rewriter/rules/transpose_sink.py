"""Transpose(f(Transpose(x, p)), q) -> f(x) or f(Transpose(x, p q)), f any chain of elementwise ops of one input

Cases: (1) p and q cancel; (2) they merge into one.
"""

from __future__ import annotations

import onnx_ir as ir

from opsmith import ops
from opsmith.rewriter.rule import DOMAIN, Site, attribute, input_of, is_op, rule

ELEMENTWISE = (
    *sorted((ops.names(arity=1) | {"Identity"}) - {"CastLike"}),
    *(f"{DOMAIN}.{name}" for name in sorted(ops.names(arity=1, domain=DOMAIN))),
)


@rule("transpose_sink", "Transpose(f(Transpose(x))) -> f(x), f elementwise", roots=("Transpose",), makes=("Transpose",))
def transpose_sink(site: Site) -> None:
    chain: list[ir.Node] = []
    node = site.producer(input_of(site.root, 0), "Transpose", *ELEMENTWISE)
    while not is_op(node, "Transpose"):
        chain.append(node)
        node = site.producer(input_of(node, 0), "Transpose", *ELEMENTWISE)
    x = input_of(node, 0)
    assert x is not None
    first, last = attribute(node, "perm"), attribute(site.root, "perm")
    if first is None or last is None:
        site.miss("a Transpose does not spell out its order", node)
    merged = [first[i] for i in last]
    value = x if merged == sorted(merged) else site.op("Transpose", x, perm=merged)  # (1) (2)
    site.need(chain or value is not x, "nothing in between: simplifying removes the pair")
    for one in reversed(chain):
        attributes = {a.name: a.value for a in one.attributes.values()}
        value = site.op(one.op_type, value, domain=one.domain, **attributes)
        value.type = one.outputs[0].type
    site.replace(site.root.outputs[0], value)
