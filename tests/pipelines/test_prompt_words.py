"""What a prompt may say and how pictures may be asked for, each against diffusers from the same noise."""

from __future__ import annotations

import functools
from typing import Any

import models
import numpy as np
import pytest
from live_pipeline import pipeline
from PIL import Image

from opsmith.errors import OpsmithError
from opsmith.pipelines import pictures
from opsmith.pipelines.create import StableDiffusion
from opsmith.pipelines.diffusion import Cancelled, DiffusionApp
from opsmith.pipelines.diffusion.request import Request, check
from opsmith.pipelines.prompt_weights import parse

LONG = " ".join(["a red apple on a blue table and a green pear"] * 4)  # the tiny tokenizer spells: far more than 77 ids


@functools.cache
def app() -> DiffusionApp:
    return DiffusionApp(models.tiny_pipeline("dynamo"), threads=1)


@functools.cache
def live() -> Any:
    return pipeline()


def seed(number: int) -> Any:
    import torch

    return torch.Generator("cpu").manual_seed(number)


def apart(a: Image.Image, b: Image.Image) -> float:
    return pictures.psnr(np.asarray(a), np.asarray(b))


def theirs(prompt: str = "", number: int = 4, **options: Any) -> Image.Image:
    given = {"num_inference_steps": 3, "guidance_scale": 4.0, "generator": seed(number), **options}
    return live()(prompt, **given).images[0] if prompt else live()(**given).images[0]


def ours(prompt: str = "", **options: Any) -> Image.Image:
    return app().generate(prompt, **{"steps": 3, "guidance": 4.0, "seed": 4, "torch_noise": True, **options}).images[0]


def read(prompt: str) -> np.ndarray[Any, Any]:
    """The states [1,S,X] that the UNet gets of PROMPT."""
    asked = Request(prompt, "", 1, 4.0, None, None, 0, 1, 1, None, None, None, None, False)
    conditions, _ = app().words.conditions(check(asked, app().geometry))
    return conditions.feeds["encoder_hidden_states"][1:]


def states(chunks: list[list[int]], weights: list[list[float]]) -> Any:
    """As the field does it, in torch: chunks encoded one by one, tokens weighted, the mean kept."""
    import torch

    pipe = live()
    ends = pipe.tokenizer
    rows = []
    for ids in chunks:
        row = [ends.bos_token_id, *ids, ends.eos_token_id]
        rows.append(row + [ends.pad_token_id] * (77 - len(row)))
    with torch.no_grad():
        made = torch.cat([pipe.text_encoder(torch.tensor([row]))[0] for row in rows], dim=1)
    flat = [w for row in weights for w in [1.0, *row, *[1.0] * (76 - len(row))]]
    changed = made * torch.tensor(flat)[None, :, None]
    return changed * (made.mean() / changed.mean())


def ids(text: str) -> list[int]:
    return list(live().tokenizer(text, add_special_tokens=False).input_ids)


def test_weights_do_what_scaled_states_do_in_diffusers() -> None:
    words = [("a ", 1.0), ("red", 1.4), (" apple and a ", 1.0), ("pear", 1 / 1.1)]
    tokens = [(i, w) for text, w in words for i in ids(text)]
    told = states([[i for i, _ in tokens]], [[w for _, w in tokens]])
    free = states([[]], [[]])
    expected = theirs(prompt_embeds=told, negative_prompt_embeds=free)
    assert apart(ours("a (red:1.4) apple and a [pear]"), expected) >= 45
    np.testing.assert_allclose(read("a (red:1.4) apple and a [pear]"), told.numpy(), atol=1e-5)
    assert np.abs(read("a red apple and a pear") - told.numpy()).max() > 0.1  # pictures of random weights tell less
    assert ours(r"a \(red\) apple").tobytes() == ours("a (red) apple", plain_prompt=True).tobytes()


def test_a_long_prompt_is_read_in_chunks() -> None:
    tokens = ids(LONG)
    chunks = [tokens[i : i + 75] for i in range(0, len(tokens), 75)]
    assert len(chunks) >= 2
    told, free = states(chunks, [[1.0] * len(c) for c in chunks]), states([[]] * len(chunks), [[]] * len(chunks))
    np.testing.assert_allclose(read(LONG), told.numpy(), atol=1e-5)
    assert apart(ours(LONG), theirs(prompt_embeds=told, negative_prompt_embeds=free)) >= 45


def test_a_plain_prompt_is_cut_as_in_diffusers() -> None:
    made = app().generate(LONG, steps=3, guidance=4.0, seed=4, torch_noise=True, plain_prompt=True)
    assert apart(made.images[0], theirs(LONG)) >= 45
    assert any("was cut" in line for line in made.remarks)


def test_embeds_instead_of_a_prompt() -> None:
    told, free = states([ids("a red apple")], [[1.0] * len(ids("a red apple"))]), states([[]], [[]])
    made = ours(prompt_embeds=told.numpy(), negative_prompt_embeds=free.numpy()[0])
    assert apart(made, theirs("a red apple")) >= 45
    for wrong, message in (
        ({"prompt_embeds": told.numpy()}, "need negative_prompt_embeds"),
        ({"negative_prompt_embeds": free.numpy()}, "need prompt_embeds"),
        ({"prompt_embeds": told.numpy(), "negative_prompt_embeds": free.numpy()[:, :5]}, "are not possible"),
        ({"prompt": "a", "prompt_embeds": told.numpy(), "guidance": 1.0}, "at once"),
    ):
        with pytest.raises(OpsmithError, match=message):
            ours(**wrong)


def test_a_list_of_prompts_gives_a_list_of_pictures() -> None:
    prompts = ["a red apple", "a blue pear"]
    seen: list[tuple[int, int]] = []
    made = app().generate(
        prompts,
        ["green", "yellow"],
        steps=3,
        guidance=4.0,
        seed=4,
        torch_noise=True,
        callback=lambda step, total, _: seen.append((step, total)),
    )
    expected = live()(
        prompts,
        negative_prompt=["green", "yellow"],
        num_inference_steps=3,
        guidance_scale=4.0,
        generator=[seed(4), seed(5)],
    ).images
    assert [apart(a, b) >= 45 for a, b in zip(made.images, expected)] == [True, True]
    assert [s["prompt"] for s in made.settings] == prompts and [s["index"] for s in made.settings] == [0, 1]
    assert [step for step, _ in seen] == [*range(1, len(seen) + 1)] and {total for _, total in seen} == {len(seen)}
    with pytest.raises(OpsmithError, match="2 prompts and 1 negative"):
        app().generate(prompts, ["one"])


def test_diffusers_words() -> None:
    steps: list[int] = []

    def told(pipe: Any, step: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        steps.append(step)
        return tensors

    words: dict[str, Any] = {"negative_prompt": "blue", "num_inference_steps": 3, "guidance_scale": 4.0}
    made = app()("a red apple", generator=seed(4), callback_on_step_end=told, **words)
    expected = live()("a red apple", generator=seed(4), **words).images
    assert apart(made.images[0], expected[0]) >= 45
    assert steps == [*range(len(steps))] and steps
    assert app()("a red apple", seed=4, torch_noise=True, **words).images[0].tobytes() == made.images[0].tobytes()


@pytest.mark.parametrize(
    "words, message",
    [
        ({"num_inference_step": 3}, "'num_inference_step' is not known .did you mean 'num_inference_steps'"),
        ({"guidence": 3}, "did you mean 'guidance'"),
        ({"num_inference_steps": 3, "steps": 3}, "steps is given twice"),
        ({"generator": 5}, "not torch's"),
        ({"output_type": "latent"}, "other outputs than pictures"),
    ],
)
def test_words_that_do_not_work_are_said(words: dict[str, Any], message: str) -> None:
    with pytest.raises(OpsmithError) as caught:
        app()("a", **words)
    assert __import__("re").search(message, f"{caught.value} ({caught.value.hint})")


def test_a_used_generator_is_refused_and_a_callback_can_interrupt() -> None:
    import torch

    used = seed(4)
    torch.rand(3, generator=used)
    with pytest.raises(OpsmithError, match="was used before"):
        app()("a", generator=used)
    own = DiffusionApp(models.tiny_pipeline("dynamo"), threads=1)
    with pytest.raises(Cancelled):
        own("a", num_inference_steps=3, callback_on_step_end=lambda pipe, *_: setattr(pipe, "_interrupt", True))


def test_the_one_call_form_takes_them_too() -> None:
    small = StableDiffusion(models.tiny_pipeline("dynamo"), threads=1)
    small.height, small.width = 32, 24
    made = small.generate_image(["a", "b"], num_inference_steps=2, guidance_scale=1.0)
    assert [image.size for image in made] == [(24, 32)] * 2


@pytest.mark.parametrize(
    "prompt, phrases",
    [
        ("a (red:1.4) apple", [("a ", 1.0), ("red", 1.4), (" apple", 1.0)]),
        ("((a)) [b]", [("a", 1.21), (" ", 1.0), ("b", 1 / 1.1)]),
        (r"\(a\) \[b\] \\", [("(a) [b] \\", 1.0)]),
        ("(a (b:1.5) c:2)", [("a ", 2.0), ("b", 3.0), (" c", 2.0)]),
        ("x) (y", [("x) ", 1.0), ("y", 1.1)]),
        ("a: 3, Big", [("a: 3, Big", 1.0)]),
        ("(a:b:-.5)", [("a:b", -0.5)]),
    ],
)
def test_the_syntax(prompt: str, phrases: list[tuple[str, float]]) -> None:
    assert [(p.text, pytest.approx(p.weight)) for p in parse(prompt)] == phrases


def test_break_begins_a_chunk() -> None:
    assert [p.breaks for p in parse("a BREAK b")] == [False, True, False]
    told = states([ids("a red apple"), ids("a pear")], [[1.0] * len(ids("a red apple")), [1.0] * len(ids("a pear"))])
    expected = theirs(prompt_embeds=told, negative_prompt_embeds=states([[], []], [[], []]))
    np.testing.assert_allclose(read("a red apple BREAK a pear"), told.numpy(), atol=1e-5)
    assert apart(ours("a red apple BREAK a pear"), expected) >= 45


@pytest.mark.parametrize("skip", [1])
def test_clip_skip_is_that_of_diffusers(skip: int) -> None:
    told = {"num_inference_steps": 3, "guidance_scale": 4.0}
    encoder = live().text_encoder
    if not hasattr(encoder, "text_model"):  # transformers 5 has its layers where diffusers looks for them in vain
        vars(encoder)["text_model"] = encoder
    expected, whole = (
        live()("a red apple", negative_prompt="blue", generator=seed(3), clip_skip=k, **told).images[0]
        for k in (skip, None)
    )
    made = app()("a red apple", negative_prompt="blue", seed=3, torch_noise=True, clip_skip=skip, **told)
    assert apart(made.images[0], expected) >= 45
    assert apart(expected, whole) < 45
    assert made.settings[0]["clip_skip"] == skip
    for wrong in (-1, 2):
        with pytest.raises(OpsmithError, match=f"a clip skip of {wrong}"):
            app().generate("a", steps=1, clip_skip=wrong)
