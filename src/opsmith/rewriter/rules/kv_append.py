"""Concat(past, new) along the sequence -> KvAppend(past, new)

past is an input of the model (B,H,P,D), new is computed (B,H,S,D), and the result leaves the model as the next past.
"""

from __future__ import annotations

from opsmith.rewriter.rule import Site, attribute, rank_of, rule, size_of


@rule("kv_append", "Concat(past, new, axis=2) -> KvAppend(past, new)", roots=("Concat",), makes=("opsmith.KvAppend",))
def kv_append(site: Site) -> None:
    site.need(len(site.root.inputs) == 2, "more than two parts")
    past, new = site.root.inputs
    assert past is not None and new is not None
    site.need(past.is_graph_input() and not past.is_initializer(), "the first part is not an input of the model")
    site.need(site.root.outputs[0].is_graph_output(), "the result does not leave the model")
    site.need(rank_of(past) == 4 and attribute(site.root, "axis") in (2, -2), "not along the sequence of (B,H,S,D)")
    site.need(not isinstance(size_of(past, 2), int), "the length of the past is fixed: not a cache")
    site.replace(site.root.outputs[0], site.call("KvAppend", past, new))
