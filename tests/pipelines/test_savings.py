"""The UNet in pieces: what each of them holds, and that the picture is the same."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import models
import numpy as np
import onnx
import pytest

from opsmith import session, starter, store
from opsmith.errors import OpsmithError
from opsmith.pipelines import pictures
from opsmith.pipelines.diffusion import DiffusionApp, cut, fast, merge
from opsmith.pipelines.diffusion.fast import Fast
from opsmith.pipelines.diffusion.pieces import Pieces, Steps, Values

Array = np.ndarray[Any, Any]


def unet_path(exporter: str) -> Path:
    return store.find_model(models.tiny_pipeline(exporter) / "unet" / exporter)


@functools.cache
def planned(exporter: str) -> cut.Cut:
    return cut.plan(store.read_proto(unet_path(exporter)))


@functools.cache
def pieces(exporter: str, optimize: bool = True) -> tuple[Pieces, Any]:
    """And the whole UNet."""
    path = unet_path(exporter)
    load = functools.partial(session.load, path, threads=1, optimize=optimize)
    loaded = {p.name: load(edit=functools.partial(cut.extract, piece=p)) for p in planned(exporter).pieces}

    def run(piece: cut.Piece, feeds: Any) -> Values:
        kinds = {i.name: np.int64 if "int64" in i.type else np.float32 for i in loaded[piece.name].get_inputs()}
        typed = {name: value.astype(kinds[name]) for name, value in feeds.items()}
        return dict(zip(piece.outputs, session.run(loaded[piece.name], typed, list(piece.outputs))))

    return Pieces(planned(exporter), run, (4, 4)), load()


def feeds(pictures: int, side: int = 8) -> tuple[Array, Array]:
    """sample [B,4,side,side] and states [2B,7,X]"""
    source = np.random.default_rng(3)
    states = source.standard_normal((2 * pictures, 7, 64), dtype=np.float32)
    return source.standard_normal((pictures, 4, side, side), dtype=np.float32), states


def run_whole(whole: Any, sample: Array, timestep: float, states: Array) -> Array:
    doubled = np.concatenate([sample, sample])
    told = {"sample": doubled, "timestep": np.array([timestep], np.float32), "encoder_hidden_states": states}
    return np.asarray(session.run(whole, told)[0])


@pytest.mark.parametrize("exporter", models.EXPORTERS)
def test_every_weight_is_in_one_piece_and_each_piece_depends_on_what_it_says(exporter: str) -> None:
    held: list[set[str]] = []
    ends = {piece.name: piece for piece in planned(exporter).pieces}
    for piece in planned(exporter).pieces:
        proto = store.read_proto(unet_path(exporter))
        cut.extract(proto, piece)
        held.append({t.name for t in proto.graph.initializer if len(t.dims) > 1})
    assert sum(map(len, held)) == len(set().union(*held)) > 100
    assert set(ends) == {"text", "time", "first_shared", "deep_shared", "deep", "last"}
    assert ends["text"].inputs == ("encoder_hidden_states",)
    assert len(ends["text"].outputs) == 8  # keys and values of four cross-attentions
    assert set(ends["time"].inputs) == {"sample", "timestep"}  # the sample for its size
    assert ends["deep"].outputs == (planned(exporter).hidden,)


@pytest.mark.parametrize("exporter", models.EXPORTERS)
def test_pieces_compute_the_same_bits_as_the_whole(exporter: str) -> None:
    """Without ONNX Runtime's fusions, which see less of the graph in a piece."""
    unet, whole = pieces(exporter, optimize=False)
    for count in (1, 2):
        sample, states = feeds(count)
        steps = Steps(unet, {"encoder_hidden_states": states}, count, {})
        for timestep in (900.0, 500.0):
            expected = run_whole(whole, sample, timestep, states)
            assert np.array_equal(steps.predict(sample, timestep), expected)


def test_each_piece_runs_as_often_as_it_must() -> None:
    unet, _ = pieces("dynamo")
    sample, states = feeds(1)
    runs: list[tuple[str, int]] = []

    def counted(piece: cut.Piece, told: Any) -> Values:
        runs.append((piece.name, len(told["sample"]) if "sample" in told else 0))
        return unet.run(piece, told)

    steps = Steps(Pieces(unet.cut, counted, (4, 4)), {"encoder_hidden_states": states}, 1, times := {})
    assert steps.pieces.grows
    runs.clear()
    for timestep in (900.0, 500.0, 500.0):
        steps.predict(sample, timestep)
    names = [name for name, _ in runs]
    assert [names.count(name) for name in ("text", "time", "first_shared", "deep", "last")] == [1, 2, 3, 3, 3]
    assert {batch for name, batch in runs if name in ("time", "first_shared", "deep_shared")} == {1}
    assert {batch for name, batch in runs if name == "last"} == {2}
    Steps(steps.pieces, {"encoder_hidden_states": states}, 1, times).predict(sample, 900.0)
    assert [name for name, _ in runs].count("time") == 2  # known from the first picture
    runs.clear()
    steps.predict(sample, 500.0, fresh=False)
    assert {name for name, _ in runs} == {"first_shared", "last"}


def test_deep_features_of_the_same_step_give_the_same_and_halves_can_be_told_apart() -> None:
    unet, _ = pieces("dynamo")
    sample, states = feeds(2)
    steps = Steps(unet, {"encoder_hidden_states": states}, 2, {})
    fresh = steps.predict(sample, 500.0)
    assert np.array_equal(steps.predict(sample, 500.0, fresh=False), fresh)
    other = steps.predict(sample, 300.0, fresh=False)
    assert not np.allclose(other, steps.predict(sample, 300.0), atol=1e-6)
    steps.predict(sample, 500.0)
    narrowed = steps.unguided()
    assert narrowed.can_reuse
    np.testing.assert_allclose(narrowed.predict(sample, 500.0, fresh=False), fresh[2:], atol=2e-6)
    np.testing.assert_allclose(narrowed.predict(sample, 500.0), fresh[2:], atol=2e-6)


@pytest.mark.parametrize("guidance", [1.0, 3.0])
@pytest.mark.parametrize("scheduler", ["ddim", "euler_a"])
def test_the_picture_is_the_same_with_savings(guidance: float, scheduler: str) -> None:
    made = {}
    for savings in ("off", "on"):
        app = DiffusionApp(starter.folder("pictures"), threads=1, savings=savings)
        told: dict[str, Any] = {"steps": 6, "guidance": guidance, "seed": 3, "n": 2, "batch": 2, "scheduler": scheduler}
        made[savings] = app.generate("a red apple", "blue", **told).images
    for plain, saved in zip(made["off"], made["on"]):
        # ONNX Runtime fuses less in a piece, so the last bits differ; a colour of 255 may round the other way.
        difference = np.abs(np.asarray(plain, np.int16) - np.asarray(saved, np.int16))
        assert difference.max() <= 1
        assert pictures.psnr(np.asarray(plain), np.asarray(saved)) > 70


def test_an_inpainting_unet_saves_too() -> None:
    image = models_picture()
    mask = image.convert("L").point(lambda v: 255 if v > 127 else 0)
    made = []
    for savings in ("off", "on"):
        app = DiffusionApp(models.tiny_pipeline("dynamo", inpainting=True), threads=1, savings=savings)
        made.append(np.asarray(app.generate("a", steps=3, init=image, mask=mask).images[0], np.int16))
    assert np.abs(made[0] - made[1]).max() <= 1


def models_picture() -> Any:
    from PIL import Image

    y, x = np.mgrid[0:32, 0:32]
    return Image.fromarray(np.stack([8 * x, 8 * y, 255 - 8 * x], -1).astype(np.uint8))


def test_a_unet_without_borders_runs_whole_and_says_why(tmp_path: Path) -> None:
    from onnx import TensorProto, helper

    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["b"]) for n in ("sample", "timestep", "out")]
    node = helper.make_node("Region", ["sample", "timestep"], ["out"], domain="custom")
    graph = helper.make_graph([node], "g", ends[:2], ends[2:])
    one = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid("custom", 1)])
    assert not cut.plan(one).saves
    twisted = onnx.ModelProto.FromString(one.SerializeToString())
    twisted.graph.node.insert(0, helper.make_node("Relu", ["out"], ["unused"]))
    with pytest.raises(OpsmithError, match="order"):
        cut.plan(twisted)
    with pytest.raises(OpsmithError, match="no choice of savings 'some'"):
        DiffusionApp(models.tiny_pipeline("dynamo"), savings="some")


def test_presets_are_near_the_plain_picture_and_run_less() -> None:
    app = DiffusionApp(starter.folder("pictures"), threads=1)
    runs: list[str] = []
    run_piece = app.parts.run_piece

    def counted(name: str, stride: int, piece: cut.Piece, told: Any) -> Values:
        runs.append(f"{piece.name} {len(told['sample'])}" if "sample" in told else piece.name)
        return run_piece(name, stride, piece, told)

    app.parts.run_piece = counted  # type: ignore[method-assign]
    plain = np.asarray(app.generate("a red apple on a yellow background", steps=10, seed=1).images[0])
    assert runs.count("deep") + runs.count("deep 2") == 10
    near = [100.0]
    for level, deep, least in (
        (1, 5, 35),
        (2, 4, 25),
        (3, 2, 15),
    ):  # docs/imagine.md: 40.5, 29.9 and 22.2 dB on the mean
        runs.clear()
        made = app.generate("a red apple on a yellow background", steps=10, seed=1, fast=level)
        assert sum(name.split()[0] == "deep" for name in runs) == deep
        assert made.settings[0]["fast"] == dataclasses.asdict(fast.PRESETS[level])
        near.append(pictures.psnr(np.asarray(made.images[0]), plain))
        assert near[-2] > near[-1] > least


def test_guidance_in_no_step_is_guidance_1() -> None:
    for folder in (starter.folder("pictures"), models.tiny_pipeline("dynamo")):
        app = DiffusionApp(folder, threads=1, savings="off")
        none = app.generate("a frog", steps=3, guidance=3.0, fast=Fast(guided=0.0)).images[0]
        assert np.array_equal(none, app.generate("a frog", steps=3, guidance=1.0).images[0])


def test_wrong_presets_are_one_line_and_reuse_needs_pieces() -> None:
    app = DiffusionApp(models.tiny_pipeline("dynamo"), threads=1, savings="off")
    with pytest.raises(OpsmithError, match="cannot be reused: savings are off"):
        app.generate("a", steps=2, fast=2)
    for wrong, words in (({"level": 4}, "no preset 4"), ({"level": 1, "reuse": 0}, "every 0th")):
        with pytest.raises(OpsmithError, match=words):
            fast.preset(**wrong)
    with pytest.raises(OpsmithError, match=r"share of 1\.5"):
        Fast(guided=1.5)
    assert app.explain(Fast(guided=0.5), 10, 7.5) == [
        "the UNet runs whole in every step: savings are off",
        "exact: both halves of guidance in one batch",
        "approximate: the first 5 of 10 steps are guided",
    ]


def test_a_merged_attention_sees_every_nth_token_where_there_are_enough() -> None:
    """Of one attention alone: keys and values are those of numpy's own slices, and a small picture is left as it is."""
    random = np.random.default_rng(0)
    x = random.standard_normal((2, 300, 8), dtype=np.float32)
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        attention (float[B,N,8] sample) => (float[B,N,8] y) {
            k = Transpose <perm = [0, 2, 1]> (sample)
            s = MatMul (sample, k)
            p = Softmax <axis = -1> (s)
            v = Mul (sample, sample)
            y = MatMul (p, v)
        }""")
    whole = session.load(proto, threads=1)
    assert merge.put(proto, 3, smallest=200) == 1
    onnx.checker.check_model(proto, full_check=True)
    thin = session.load(proto, threads=1)

    def expected(x: Array, step: int) -> Array:
        scores = x @ x[:, ::step].transpose(0, 2, 1)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        return np.asarray(shares / shares.sum(-1, keepdims=True) @ (x * x)[:, ::step])

    assert np.allclose(session.run(thin, {"sample": x})[0], expected(x, 3), atol=1e-5)
    assert np.allclose(session.run(whole, {"sample": x})[0], expected(x, 1), atol=1e-5)
    small = x[:, :199]
    assert np.array_equal(session.run(thin, {"sample": small})[0], session.run(whole, {"sample": small})[0])


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_merging_touches_self_attention_alone_and_can_be_cut(exporter: str) -> None:
    proto = store.read_proto(unet_path(exporter))
    attentions = sum(node.op_type == "Softmax" for node in proto.graph.node)
    assert merge.put(proto, 2) == attentions / 2  # every block has one over itself and one over the words
    assert [p.name for p in cut.plan(proto).pieces] == [p.name for p in planned(exporter).pieces]


def test_merged_pictures_are_near_the_plain_one() -> None:
    app = DiffusionApp(starter.folder("pictures"), threads=1)
    told = {"steps": 3, "seed": 1, "width": 288, "height": 288}  # 18x18 tokens within the outermost level
    plain = np.asarray(app.generate("a red apple on a yellow background", **told).images[0])
    near = [
        np.asarray(app.generate("a red apple on a yellow background", fast=Fast(merge=n), **told).images[0])
        for n in (2, 3)
    ]
    assert 60 > pictures.psnr(near[0], plain) > pictures.psnr(near[1], plain) > 20
    with pytest.raises(OpsmithError, match="cannot be merged: savings are off"):
        DiffusionApp(starter.folder("pictures"), threads=1, savings="off").generate("a", steps=1, fast=Fast(merge=2))
    with pytest.raises(OpsmithError, match="every 0th token"):
        Fast(merge=0)
