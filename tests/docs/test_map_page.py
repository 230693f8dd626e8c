"""The worked examples of docs/map.md run as they stand, and give what the page says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import real_models
from pages import DOCS, commands, run_page


def _run(blocks: list[str], folder: Path) -> Path:
    page = folder / "page.md"
    page.write_text("\n".join(f"```sh\n{block}```" for block in blocks))
    return run_page(page, folder)


def test_pictures_are_made_of_a_table_and_recognised_by_a_classifier(tmp_path: Path) -> None:
    work = _run(commands(DOCS / "map.md")[:2], tmp_path)
    manifest = [json.loads(line) for line in (work / "pictures" / "manifest.jsonl").read_text().splitlines()]
    assert [(m["name"], m["settings"]["seed"]) for m in manifest] == [("f1", 1), ("c1", 2), ("a1", 3)]
    labels = [json.loads(line) for line in (work / "labels.jsonl").read_text().splitlines()]
    assert [row["file"] for row in labels] == [m["file"] for m in manifest]
    assert [row["label"] for row in labels] == [0, 1, 2]  # frog, castle, apple


@pytest.mark.slow
def test_texts_become_vectors(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    real_models.minilm()  # skips where the registry cannot be reached
    work = _run(commands(DOCS / "map.md")[2:], tmp_path)
    vectors = np.array(pq.read_table(work / "vectors.parquet")["embedding"].to_pylist())
    assert vectors.shape == (3, 384)
    near, far = vectors[0] @ vectors[1], vectors[0] @ vectors[2]
    assert near > 0.7 > 0.3 > far
