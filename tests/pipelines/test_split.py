"""The pieces of a UNet as model folders: they chain to the UNet's own output, and are compiled."""

from __future__ import annotations

import shutil
from pathlib import Path

import models
import numpy as np
import pytest

import opsmith
from opsmith import session, store
from opsmith.errors import OpsmithError
from opsmith.pipelines.diffusion import DiffusionApp, cut, split


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    return Path(shutil.copytree(models.tiny_pipeline("dynamo"), tmp_path / "sd"))


def test_pieces_chain_to_the_unets_stored_output_and_are_made_once(pipeline: Path) -> None:
    homes = split.write_pieces(pipeline)
    assert [h.name for h in homes] == [
        "unet_text",
        "unet_time",
        "unet_first_shared",
        "unet_deep_shared",
        "unet_deep",
        "unet_last",
    ]
    path = store.find_model(pipeline / "unet" / "dynamo")
    (case, *_) = store.read_test_data(path)
    values = dict(case.inputs)
    for home in homes:
        piece = store.find_model(home / "dynamo")
        loaded = session.load(piece, threads=1)
        names = [o.name for o in loaded.get_outputs()]
        made = dict(zip(names, session.run(loaded, {i.name: values[i.name] for i in loaded.get_inputs()})))
        (stored, *_) = store.read_test_data(piece)
        for name, value in made.items():
            np.testing.assert_allclose(value, stored.outputs[name], atol=1e-5)
        values |= made
    (last,) = case.outputs
    np.testing.assert_allclose(values[last], case.outputs[last], rtol=1e-3, atol=1e-4)
    before = [store.find_model(h / "dynamo").stat().st_mtime_ns for h in homes]
    split.write_pieces(pipeline)
    assert [store.find_model(h / "dynamo").stat().st_mtime_ns for h in homes] == before
    changed = store.read_proto(path)
    changed.doc_string = "another"
    path.write_bytes(changed.SerializeToString())
    split.write_pieces(pipeline)
    assert all(store.find_model(h / "dynamo").stat().st_mtime_ns > m for h, m in zip(homes, before))


def test_a_unet_with_nothing_to_cut_is_one_line(pipeline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = cut.Cut((cut.Piece("first", (0,), ("sample",), ("out",)),), None)
    monkeypatch.setattr(cut, "plan", lambda proto: whole)
    with pytest.raises(OpsmithError, match="nothing in .* that could be computed once"):
        split.write_pieces(pipeline)
    assert split.stored(store.find_model(pipeline / "unet" / "dynamo")).startswith("it is one operator")  # type: ignore[union-attr]


@pytest.mark.slow
def test_compiled_pieces_stand_in_for_the_compiled_unet_until_it_changes(pipeline: Path) -> None:
    app = opsmith.create_stable_diffusion(pipeline, regions="whole", threads=1, pieces=True)
    assert app.variants["unet"] == "dynamo_compiled"
    told = {"steps": 4, "guidance": 5.0}
    saved = np.asarray(app.generate("a cat", **told).images[0], np.int16)
    assert {"unet/deep", "unet/text"} <= app.parts.sessions.keys()
    plain = DiffusionApp(pipeline, threads=1, savings="off")
    assert np.abs(saved - np.asarray(plain.generate("a cat", **told).images[0])).max() <= 1
    app.generate("a cat", **told, fast=2)
    path = store.find_model(pipeline / "unet" / "dynamo")
    changed = store.read_proto(path)
    changed.doc_string = "another"
    path.write_bytes(changed.SerializeToString())
    stale = DiffusionApp(pipeline, threads=1)
    assert "made from another UNet" in stale.unet.why_whole
    with pytest.raises(OpsmithError, match="deep features of the UNet cannot be reused"):
        stale.generate("a cat", **told, fast=2)
