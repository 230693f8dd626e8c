"""The parts of the training: linear start, optimizer, tokenizer, half-size weights."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from training import models, tokens, train_masks, train_words, world
from training.linear_start import start_linear
from training.optimizer import Muon, orthogonalise


def test_a_linear_start_gives_back_the_mean_colour_of_every_block():
    torch.manual_seed(0)
    vae = models.vae()
    start_linear(vae)
    colours = torch.rand(2, 3, 12, 12) * 1.6 - 0.8
    blocks = colours.repeat_interleave(8, 2).repeat_interleave(8, 3)
    with torch.no_grad():
        decoded = vae.decode(vae.encode(blocks).latent_dist.mean).sample
    right = np.corrcoef(decoded.flatten(), blocks.flatten())[0, 1]
    assert right > 0.97
    assert (decoded - blocks).square().mean() < 0.05 * blocks.square().mean()


def test_orthogonalise_brings_all_singular_values_near_one():
    torch.manual_seed(0)
    for shape in ((20, 50), (50, 20)):
        values = torch.linalg.svdvals(orthogonalise(torch.randn(shape)))
        assert values.min() > 0.5
        assert values.max() < 1.4


def test_the_optimizer_fits_a_linear_map_and_resumes():
    torch.manual_seed(0)
    wanted, x = torch.randn(32, 32) / 6, torch.randn(512, 32)
    layer = torch.nn.Linear(32, 32)
    optimizer = Muon(layer.named_parameters(), lr=0.1)

    def loss():
        return (layer(x) - x @ wanted.T).square().mean()

    before = loss().item()
    for i in range(60):
        if i == 30:  # as after a checkpoint
            state = optimizer.state_dict()
            optimizer = Muon(layer.named_parameters(), lr=0.1)
            optimizer.load_state_dict(state)
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * (1 - i / 60)
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    assert loss().item() < 0.02 * before


def test_a_mask_teaches_both_encoders():
    """The model's own forward stops gradients at its encoders, which then stay random."""
    torch.manual_seed(0)
    model = models.clipseg(64)
    pictures, ids = torch.randn(2, 3, world.SIDE, world.SIDE), torch.tensor([[62, 5, 63, 63], [62, 6, 63, 63]] * 2)
    logits, _ = train_masks.answer(model, pictures, ids)
    assert logits.shape == (2 * train_masks.WORDS, world.SIDE // 2, world.SIDE // 2)
    logits.square().mean().backward()
    for part in (model.clip.vision_model.embeddings.patch_embedding, model.clip.text_model.embeddings.token_embedding):
        assert part.weight.grad is not None
        assert part.weight.grad.abs().max() > 0
    with torch.no_grad():  # two words of one picture: the same as the model asked twice
        twice = model(input_ids=ids, pixel_values=pictures.repeat_interleave(train_masks.WORDS, 0)).logits
    torch.testing.assert_close(logits.detach(), twice, rtol=1e-3, atol=1e-3)


def test_every_question_about_a_caption_has_its_answer():
    scene = world.Scene((world.Thing("frog", "red", "big"), world.Thing("owl", None, "small")), "night", "above")
    answers = train_words.answers(scene)
    said = [question[i] for question, i in zip(train_words.QUESTIONS, answers, strict=True)]
    assert said == ["frog", "owl", "", "red", "", "", "big", "small", "", "night", "", "above"]


@pytest.fixture(scope="module")
def tokenizer():
    return tokens.build()


def test_words_of_the_world_are_single_tokens(tokenizer):
    encoded = tokenizer.encode("a big red apple, on a Yellow background").tokens
    assert encoded == [
        "<|startoftext|>",
        "a</w>",
        "big</w>",
        "red</w>",
        "apple</w>",
        ",</w>",
        "on</w>",
        "a</w>",
        "yellow</w>",
        "background</w>",
        "<|endoftext|>",
    ]


def test_other_words_still_encode_and_long_texts_are_cut(tokenizer):
    end = tokenizer.token_to_id(tokens.END)
    assert end not in tokenizer.encode("Zürich 7?").ids[1:-1]
    rows = tokens.encode(tokenizer, ["a frog " * 40, "frog"], 32)
    assert rows.shape == (2, 32)
    assert rows[0, -1] == end
    assert (rows[1, 2:] == end).all()


def test_halved_weights_compute_the_same():
    from training.export import halve

    rng = np.random.default_rng(0)
    weight = rng.standard_normal((64, 64)).astype(np.float16).astype(np.float32)
    inexact = rng.standard_normal((64, 64)).astype(np.float32)
    nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["h"]), onnx.helper.make_node("MatMul", ["h", "v"], ["y"])]
    info = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2, 64]) for n in ("x", "y")]
    tensors = [onnx.numpy_helper.from_array(a, n) for a, n in ((weight, "w"), (inexact, "v"))]
    model = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "g", info[:1], info[1:], tensors),
        opset_imports=[onnx.helper.make_opsetid("", 18)],
    )
    model.ir_version = 10
    x = rng.standard_normal((2, 64)).astype(np.float32)
    before = run(model, x)
    halve(model)
    assert {t.name: t.data_type for t in model.graph.initializer} == {
        "w.half": onnx.TensorProto.FLOAT16,
        "v": onnx.TensorProto.FLOAT,
    }
    assert np.array_equal(run(model, x), before)


def run(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]
