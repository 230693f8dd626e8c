"""Models of every kind answer rows, each row as it would be answered alone."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from PIL import Image
from small_models import mlp, save

import opsmith
from opsmith import starter
from opsmith.batch.rows import Failed
from opsmith.batch.runners import open_runner
from opsmith.batch.runners.graph import WHOLE, rows_of_a_run
from opsmith.batch.runners.values import option_of
from opsmith.batch.work import answers
from opsmith.errors import OpsmithError
from opsmith.pipelines import pictures, preprocess
from opsmith.pipelines.diffusion import DiffusionApp
from opsmith.pipelines.text import TextGenerator

PICTURES, WRITER, VISION = starter.folder("pictures"), starter.folder("writer"), starter.folder("clip") / "vision_model"


def asked(runner: Any, **given: Any) -> dict[str, Any]:
    """A row with the defaults of all options."""
    return {"row": 0, **{n: o.default for n, o in runner.traits.options.items()}, **given}


def test_a_decoder_writes_what_it_writes_alone() -> None:
    runner = open_runner(WRITER, None, 1)
    prompts = ["frog:", "castle:", "", "a red apple:", "night:"]
    options = {"max_new_tokens": 8, "temperature": 0.8, "seed": 3}
    found = runner.run([asked(runner, prompt=p, **options) for p in prompts], 8)
    assert found[2] == Failed("prompt is empty")
    alone = [runner.run([asked(runner, prompt=p, **options)], 1)[0] for p in prompts]
    assert found == alone
    greedy = TextGenerator(WRITER, threads=1).generate("frog:", max_new_tokens=8)[0]
    (mine,) = runner.run([asked(runner, prompt="frog:", max_new_tokens=8)], 1)
    assert mine == {"text": greedy.text, "ended": greedy.ended}


def test_a_picture_depends_on_its_row_alone() -> None:
    runner = open_runner(PICTURES, None, 1)
    rows = [asked(runner, prompt=p, steps=2, row=i) for i, p in enumerate(["a frog", "", "a castle"])]
    rows[2]["seed"] = 7
    first, empty, second = runner.run(rows, 1)
    assert isinstance(empty, Failed) and not isinstance(first, Failed) and not isinstance(second, Failed)
    direct = DiffusionApp(PICTURES, threads=2).generate("a castle", steps=2, seed=7)  # other threads, the same bits
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(second["picture"]))), np.asarray(direct.images[0]))
    assert first["settings"]["seed"] == 0 and second["settings"]["seed"] == 7
    assert runner.run(rows[:1], 1)[0] == first


def test_any_model_reads_columns_of_numbers(tmp_path: Path) -> None:
    model = save(mlp(width=4), tmp_path / "mlp" / "original")
    runner = open_runner(model, None, 1)
    assert runner.traits.inputs == ("x",) and runner.traits.columns["y"].shape == (4,)
    values = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    rows: list[dict[str, Any]] = [{"x": v.tolist()} for v in values]
    rows[1] = {"x": json.dumps(values[1].tolist())}
    rows += [{"x": [1, 2]}, {"x": "frog"}, {"x": None}]
    found = runner.run(rows, 2)
    expected = opsmith.load(model).run(None, {"x": values})[0]
    np.testing.assert_allclose([a["y"] for a in found[:5]], expected, atol=1e-6)  # type: ignore[index]
    reasons = [a.reason for a in found[5:] if isinstance(a, Failed)]
    assert reasons[0] == "x has the shape [2], the model wants [4]" and "not numbers" in reasons[1]
    assert reasons[2] == "x is empty"


def test_a_model_made_for_a_fixed_number_of_rows_gets_that_many(tmp_path: Path) -> None:
    proto = mlp(width=4)
    for value in (proto.graph.input[0], proto.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_value = 3
    runner = open_runner(save(proto, tmp_path / "mlp" / "original"), None, 1)
    rows = [{"x": [float(i)] * 4} for i in range(5)]
    free = open_runner(save(mlp(width=4), tmp_path / "free" / "original"), None, 1)
    for mine, theirs in zip(runner.run(rows, 64), free.run(rows, 64)):
        np.testing.assert_allclose(mine["y"], theirs["y"], atol=1e-6)  # type: ignore[index]


def test_a_model_whose_first_axis_does_not_count_rows_is_run_once_per_row(tmp_path: Path) -> None:
    """A state of four layers beside a batch, and a number for the answer: rows hold whole tensors, or one of a batch."""
    text = """<ir_version: 9, opset_import: ["" : 18]>
        g (float[batch, n] x, float[4, 1] state, float rate) => (float[4, n] y, float[] total) {
        scaled = Mul (x, rate)  y = Add (scaled, state)  total = ReduceSum<keepdims = 0> (y) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    runner = open_runner(tmp_path / "m.onnx", None, 1)
    assert runner.traits.batches == (1,) and runner.traits.columns["total"].shape == ()
    state = np.arange(4, dtype=np.float32)[:, None]
    rows: list[dict[str, Any]] = [
        {"x": [[1.0, 2.0]], "state": state.tolist(), "rate": 2.0},
        {"x": [1.0, 2.0, 3.0], "state": state.tolist(), "rate": 1.0},
        {"x": [1.0], "state": [[0.0]], "rate": 1.0},
    ]
    found = runner.run(rows, 32)
    np.testing.assert_array_equal(found[0]["y"], state + np.array([2.0, 4.0]))  # type: ignore[index]
    assert found[1]["total"] == 4 * 6 + 3 * 6  # type: ignore[index]
    assert isinstance(found[2], Failed) and found[2].reason == "state has the shape [1, 1], the model wants [4, 1]"


@pytest.mark.parametrize(
    ("inputs", "outputs", "rows"),
    [
        ([["n", 3], ["n"]], [["n", 2]], None),
        ([[4, 3]], [[4, 2]], 4),
        ([[1, 3], ["n", 3]], [["n"]], 1),
        ([["n", 3], [4, 1, 8]], [["n"]], WHOLE),  # the state of four layers
        ([[1, 3, 8], [2, 1, 8]], [[1, 1]], WHOLE),
        ([["n", 3]], [[1, 2]], WHOLE),  # one answer for all
        ([["n", 3], []], [["n"]], WHOLE),
    ],
)
def test_how_many_rows_a_run_has(inputs: list[list[Any]], outputs: list[list[Any]], rows: int | None) -> None:
    assert rows_of_a_run(inputs, outputs) == rows


def test_pictures_are_read_as_the_folder_says(tmp_path: Path) -> None:
    runner = open_runner(VISION, None, 1)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (50, 70, 3), np.uint8))
    image.save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"no picture")
    (name,) = runner.traits.inputs
    files = [tmp_path / "a.png", (tmp_path / "a.png").read_bytes(), tmp_path / "b.png"]
    found = runner.run([{name: f} for f in files], 4)
    settings = json.loads((VISION.parent / preprocess.FILE).read_text())
    pixels = preprocess.pixels(pictures.read(tmp_path / "a.png"), settings)[None]
    expected = opsmith.load(opsmith.Variant(next((VISION / "fp16").glob("*.onnx")))).run(
        ["image_embeds"], {name: pixels}
    )
    for answer in found[:2]:
        np.testing.assert_allclose(answer["image_embeds"], expected[0][0], atol=1e-5)  # type: ignore[index]
    assert isinstance(found[2], Failed) and "is not a readable picture" in found[2].reason


def test_preprocessing_resizes_by_the_short_edge_and_crops_the_middle() -> None:
    picture = Image.new("RGB", (40, 20), (255, 0, 0))
    settings = {"size": {"shortest_edge": 10}, "do_center_crop": True, "crop_size": 8, "do_normalize": False}
    made = preprocess.pixels(picture, settings)
    assert made.shape == (3, 8, 8) and made[0].min() == 1 and made[1:].max() == 0
    with pytest.raises(OpsmithError, match="size is"):
        preprocess.pixels(picture, {"size": {"longest": 3}})


def test_a_row_that_the_model_refuses_fails_alone(tmp_path: Path) -> None:
    """Gather: an index that is out of range ends the whole run of ONNX Runtime."""
    data = helper.make_tensor("data", TensorProto.FLOAT, [3], [1.0, 2.0, 3.0])
    graph = helper.make_graph(
        [helper.make_node("Gather", ["data", "i"], ["y"])],
        "pick",
        [helper.make_tensor_value_info("i", TensorProto.INT64, ["rows"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows"])],
        [data],
    )
    file = tmp_path / "pick.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), str(file))
    found = answers(open_runner(file, None, 1), [{"i": i} for i in (0, 2, 9, 1)], 8)
    assert [None if isinstance(a, Failed) else float(a["y"]) for a in found] == [1, 3, None, 2]


def test_options_have_types() -> None:
    options = open_runner(PICTURES, None, 1).traits.options
    assert option_of("7", "steps", options["steps"]) == 7
    assert option_of("", "steps", options["steps"]) == 25
    assert option_of(None, "guidance", options["guidance"]) is None
    for wrong in ("seven", 2.5):
        with pytest.raises(OpsmithError, match="expected a whole number"):
            option_of(wrong, "steps", options["steps"])


def test_a_table_becomes_a_folder_of_pictures_with_a_manifest(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("prompt,seed,name\na frog,5,one\na castle,,two\na castle,x,three\n")
    made = opsmith.map(PICTURES, table, tmp_path / "out", constants={"steps": 2}, keep=["name"], part=2)
    assert (made.rows, made.failed) == (2, 1)
    manifest = [json.loads(line) for line in (made.output / "manifest.jsonl").read_text().splitlines()]
    assert [(m["row"], m["name"], m["settings"]["seed"]) for m in manifest] == [(0, "one", 5), (1, "two", 1)]
    app = DiffusionApp(PICTURES)
    for entry in manifest:
        again = app.generate(entry["settings"]["prompt"], steps=2, seed=entry["settings"]["seed"]).images[0]
        assert np.array_equal(np.asarray(Image.open(made.output / entry["file"])), np.asarray(again))
    assert "seed is 'x' (expected a whole number)" in (tmp_path / "out.job" / "errors.jsonl").read_text()
    with pytest.raises(OpsmithError, match="the model makes pictures .name a folder"):
        opsmith.map(PICTURES, table, tmp_path / "out.parquet")
