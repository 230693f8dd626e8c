"""TfIdfVectorizer: the n-grams are constants of the program, sorted by their first token."""

from __future__ import annotations

from opsmith.analysis.ngrams import ngrams_of
from opsmith.analysis.registry import Node
from opsmith.analysis.values import Array, Constant, DataType
from opsmith.compiler.kernel import Kernel, read, sizes, write
from opsmith.compiler.lower.builder import Builder
from opsmith.compiler.lower.registry import lowers
from opsmith.compiler.program import Enumerator, View
from opsmith.sizes import product

COUNT_NGRAMS = Kernel(
    "count_ngrams",
    "ngrams.hpp",
    [
        *sizes("rows", "length", "columns", "count", "max_skip"),
        *(read(n) for n in ("x", "tokens", "grams")),
        read("weights", dtype=DataType.FLOAT),
        write("y"),
    ],
    "how often n-grams occur",
)


@lowers("TfIdfVectorizer")
def _tf_idf(node: Node, builder: Builder) -> None:
    x, ngrams = builder.rows(node.ir.inputs[0]), ngrams_of(node)

    def stored(name: str, array: Array) -> View:
        return builder.weight(
            Constant(f"{name}({node.name})", DataType.from_numpy(array.dtype), array.shape, lambda: array)
        )

    builder.call(
        COUNT_NGRAMS,
        templates=(Enumerator(f"Frequency::{str(node.attribute('mode')).lower()}"),),
        rows=product(x.dims[:-1]),
        length=x.dims[-1],
        columns=ngrams.columns,
        count=len(ngrams.grams),
        max_skip=int(node.attribute("max_skip_count", 0)),
        x=x,
        tokens=stored("tokens", ngrams.pool),
        grams=stored("grams", ngrams.grams),
        weights=None if ngrams.weights is None else stored("weights", ngrams.weights),
        y=builder.result(node.ir.outputs[0]),
        comment=f"{len(ngrams.grams)} n-grams",
    )
