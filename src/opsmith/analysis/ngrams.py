"""TfIdfVectorizer: how often given n-grams occur. x (length,) or (rows, length) -> (columns,) or (rows, columns)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from opsmith.analysis.registry import Node, infers
from opsmith.analysis.values import Abstract, Array, DataType, Unsupported, abstract


@dataclass(frozen=True)
class Ngrams:
    pool: Array  # tokens of all n-grams, one after the other
    grams: Array  # (count, 3): where it starts in the pool, its length, its column; sorted by the first token
    columns: int
    weights: Array | None  # per column


def ngrams_of(node: Node) -> Ngrams:
    pool, starts = node.attribute("pool_int64s"), [int(s) for s in node.attribute("ngram_counts") or []]
    indexes = [int(i) for i in node.attribute("ngram_indexes") or []]
    shortest, longest = (int(node.attribute(f"{a}_gram_length", 1)) for a in ("min", "max"))
    if not pool or not indexes or min(indexes) < 0:
        raise Unsupported("n-grams of strings stay with ONNX Runtime")
    rows: list[tuple[int, int, int]] = []
    column = 0
    for n, (start, stop) in enumerate(zip(starts, [*starts[1:], len(pool)]), 1):
        if start > stop or (stop - start) % n or column + (stop - start) // n > len(indexes):
            raise Unsupported("its n-grams do not fit their counts")
        for at in range(start, stop, n):
            if shortest <= n <= longest:
                rows.append((at, n, indexes[column]))
            column += 1
    weights = node.attribute("weights")
    if weights and indexes != list(range(len(weights))):
        raise Unsupported("weights of n-grams that share columns")
    rows.sort(key=lambda r: pool[r[0]])
    return Ngrams(
        np.array(pool, np.int64),
        np.array(rows, np.int64).reshape(-1, 3),
        max(indexes) + 1,
        np.array(weights, np.float32) if weights else None,
    )


@infers("TfIdfVectorizer")
def _tf_idf(node: Node) -> list[Abstract]:
    x = node.input(0)
    if x.dtype not in (DataType.INT32, DataType.INT64) or x.rank not in (1, 2):
        raise Unsupported(f"TfIdfVectorizer on {x.dtype.name} of rank {x.rank}")
    if str(node.attribute("mode")) not in ("TF", "IDF", "TFIDF"):
        raise Unsupported(f"mode {node.attribute('mode')}")
    return [abstract(DataType.FLOAT, [*x.dims[:-1], ngrams_of(node).columns])]
