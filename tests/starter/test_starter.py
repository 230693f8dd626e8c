"""The shipped models: there, small, loadable without torch, and equal to what was exported."""

import json
import subprocess
import sys
import types

import numpy as np
import onnxruntime
import pytest
from tokenizers import Tokenizer

import opsmith
from opsmith import starter, store
from opsmith.errors import OpsmithError

COMPONENTS = {
    "pictures/text_encoder": ({"input_ids"}, {"last_hidden_state", "pooler_output"}),
    "pictures/unet": ({"sample", "timestep", "encoder_hidden_states"}, {"out_sample"}),
    "pictures/vae_encoder": ({"sample"}, {"latent_parameters"}),
    "pictures/vae_decoder": ({"latent_sample"}, {"sample"}),
    "masks": ({"pixel_values", "input_ids", "attention_mask"}, {"logits"}),
    "clip/text_model": ({"input_ids", "attention_mask"}, {"text_embeds", "last_hidden_state"}),
    "clip/vision_model": ({"pixel_values"}, {"image_embeds", "last_hidden_state"}),
    "writer": None,
}


def component(path: str):
    name, _, inside = path.partition("/")
    return store.find_model(starter.folder(name) / inside)


@pytest.mark.parametrize("path", COMPONENTS)
def test_a_component_reproduces_its_stored_test_data(path):
    model = component(path)
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    if COMPONENTS[path]:
        inputs, outputs = COMPONENTS[path]
        assert {i.name for i in session.get_inputs()} == inputs
        assert {o.name for o in session.get_outputs()} == outputs
    names = ([i.name for i in session.get_inputs()], [o.name for o in session.get_outputs()])
    cases = store.read_test_data(model, names)
    assert cases
    for case in cases:
        results = session.run(list(case.outputs), case.inputs)
        for wanted, got in zip(case.outputs.values(), results, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-3 * max(1.0, float(np.abs(wanted).max())))


def test_all_models_together_are_small():
    files = [f for name in starter.NAMES for f in starter.folder(name).rglob("*") if f.is_file()]
    assert sum(f.stat().st_size for f in files) < 60e6


def test_the_picture_folder_is_a_diffusers_pipeline():
    index = json.loads((starter.folder("pictures") / "model_index.json").read_text())
    assert index["_class_name"] == "StableDiffusionPipeline"
    scheduler = json.loads((starter.folder("pictures") / "scheduler" / "scheduler_config.json").read_text())
    assert scheduler["prediction_type"] == "v_prediction"
    vae = json.loads((starter.folder("pictures") / "vae_decoder" / "config.json").read_text())
    assert 0.01 < vae["scaling_factor"] < 10


def test_every_word_of_the_world_is_one_token():
    tokenizer = Tokenizer.from_file(str(starter.folder("pictures") / "tokenizer" / "tokenizer.json"))
    for word in (*starter.OBJECTS, *starter.TINTS, *starter.PLAIN):
        assert len(tokenizer.encode(word).ids) == 3, word  # begin, word, end


def test_the_writer_takes_up_most_keywords_even_greedily():
    session = onnxruntime.InferenceSession(str(component("writer")), providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(str(starter.folder("writer") / "tokenizer.json"))
    empty = {
        i.name: np.zeros([1, i.shape[1], 0, i.shape[3]], np.float32)
        for i in session.get_inputs()
        if i.name.startswith("past")
    }
    held = 0
    for keyword in ("frog", "castle", "whale", "guitar", "owl"):
        ids = tokenizer.encode(starter.writer_prompt(keyword)).ids
        begun = len(ids)
        for _ in range(24):
            row = np.array([ids], np.int64)
            feeds = {"input_ids": row, "attention_mask": np.ones_like(row), **empty}
            feeds["position_ids"] = np.arange(len(ids))[None]
            logits = session.run(["logits"], {i.name: feeds[i.name] for i in session.get_inputs()})[0]
            ids.append(int(logits[0, -1].argmax()))
        held += keyword in tokenizer.decode(ids[begun:])
    assert held >= 4


def test_an_unknown_name_and_an_empty_keyword_are_clear_errors():
    with pytest.raises(OpsmithError, match="no starter model is called 'painter'"):
        starter.folder("painter")
    with pytest.raises(OpsmithError, match="empty keyword"):
        starter.writer_prompt("  ")


def test_without_the_package_the_clone_serves_and_without_both_it_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(starter.importlib.util, "find_spec", lambda name: None)
    assert starter.folder("writer").parts[-4:-2] == ("opsmith-starter", "src")
    monkeypatch.setattr(
        starter, "__file__", str(tmp_path / "lib" / "site-packages" / "opsmith" / "starter" / "__init__.py")
    )
    away, clone = tmp_path / "away", tmp_path / "a clone"
    away.mkdir()
    monkeypatch.chdir(away)
    noted = types.SimpleNamespace(read_text=lambda name: None)  # by pip, of what came from an index
    monkeypatch.setattr(starter.importlib.metadata, "distribution", lambda name: noted)
    with pytest.raises(OpsmithError, match="not installed.*pip install ./packages/opsmith-starter"):
        starter.folder("writer")
    home = clone / "packages" / "opsmith-starter" / "src" / "opsmith_starter" / "writer"
    home.mkdir(parents=True)
    noted.read_text = lambda name: json.dumps({"url": clone.as_uri(), "dir_info": {}})  # of `pip install CLONE`
    assert starter.folder("writer") == home
    noted.read_text = lambda name: None
    monkeypatch.chdir(clone)
    assert starter.folder("writer") == home


def test_no_torch_is_needed():
    code = "import sys, opsmith.starter as s; s.folder('pictures'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert opsmith.__version__
