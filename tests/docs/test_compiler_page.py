"""docs/compiler.md follows one small model through the compiler: its blocks are the real text of each station.

OPSMITH_UPDATE_DOCS=1 writes them anew.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from opsmith.compiler import geometry
from opsmith.compiler.convert import Blob
from opsmith.compiler.cut import body_of, cut
from opsmith.compiler.emit import Form
from opsmith.compiler.forms import write_code
from opsmith.compiler.lower import Target
from opsmith.compiler.program import show
from opsmith.compiler.source import load, prepare, rewrite

PAGE = Path(__file__).parents[2] / "docs" / "compiler.md"
MODEL = """<ir_version: 10, opset_import: ["" : 20]>
gate (float[n, 8] x) => (float[n, 4] y) {
  h = MatMul(x, w)   a = Add(h, b)   s = Sigmoid(a)   g = Mul(a, s)
  size = Shape(g)    y = Reshape(g, size)
}"""


def nodes(graph: ir.Graph) -> str:
    lines = []
    for node in graph:
        kind = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        made = ", ".join(f"{v.name} {v.shape}" for v in node.outputs)
        lines.append(f"{made} = {kind}({', '.join(v.name or '' for v in node.inputs if v is not None)})")
    return "\n".join(lines)


def stations() -> dict[str, str]:
    model = onnx.parser.parse_model(MODEL)
    random = np.random.default_rng(0)
    for name, shape in (("w", (8, 4)), ("b", (4,))):
        array = random.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    source = prepare(load(ir.from_proto(model)))
    facts = source.scopes[0].analysis.facts
    known = [
        f"{v.name}: {facts[v].dtype.name.lower()}[{', '.join(map(str, facts[v].dims))}]"
        for n in source.working.graph
        for v in n.outputs
    ]
    pieces = cut(source, "whole", Target(geometry.AVX2))
    (region,) = pieces.regions
    body = body_of(region, source)
    rewrite(body)
    sources, _ = write_code(
        {"native": pieces}, [Form(pieces.programs, [Blob(0, p.weight_bytes) for p in pieces.programs])]
    )
    by_name = {s.name: s.text for s in sources}
    return {
        "model": MODEL,
        "working": nodes(source.working.graph),
        "analysis": "\n".join(known),
        "region": f"{region.name}: reads {[v.name for v in region.inputs]}, writes {[v.name for v in region.outputs]}\n\n"
        + nodes(body.graph),
        "program": show(pieces.programs[0]).rstrip(),
        "source": by_name["region0.cpp"].rstrip(),
        "instance": next(t for n, t in by_name.items() if n.startswith("gemm")).rstrip(),
    }


def test_every_station_shows_its_real_text():
    page = PAGE.read_text(encoding="utf-8")
    for name, text in stations().items():
        block = re.compile(rf"(<!-- station: {name} -->\n```\w*\n).*?(```)", re.S)
        assert block.search(page), f"the page has no block {name}"
        page = block.sub(lambda m, text=text: m.group(1) + text + "\n" + m.group(2), page)
    if os.environ.get("OPSMITH_UPDATE_DOCS"):
        PAGE.write_text(page, encoding="utf-8")
    assert page == PAGE.read_text(encoding="utf-8")


def test_every_file_that_a_recipe_names_is_there():
    root = PAGE.parents[1]
    named = re.findall(r"`((?:src|tests|examples|docs)/[\w/.<>*-]+)`", PAGE.read_text(encoding="utf-8"))
    assert len(named) > 12
    assert [n for n in named if "<" not in n and not list(root.glob(n))] == []
