"""The world: captions say what the scene holds, masks are exact, held-out combinations stay out of training."""

import numpy as np
import pytest

from opsmith.starter.vocabulary import BACKGROUNDS, TINTS
from training import world


@pytest.fixture(autouse=True)
def discs_instead_of_emoji(monkeypatch):
    """The emoji are fetched by training only; a grey disc stands for every thing here."""
    y, x = np.mgrid[:64, :64] - 31.5
    alpha = (np.hypot(x, y) < 31).astype(np.float32)[..., None]
    disc = np.concatenate([0.5 * alpha.repeat(3, -1), alpha], -1)
    monkeypatch.setattr(world, "emoji", lambda name: disc)
    world.sprite.cache_clear()
    yield
    world.sprite.cache_clear()


def scenes(split: str, number: int = 300):
    return [world.sample_scene(np.random.default_rng([i, 1]), split) for i in range(number)]


def test_a_caption_parses_back_to_its_scene():
    for i, scene in enumerate(scenes("train")):
        caption = world.write_caption(scene, np.random.default_rng(i))
        parsed = world.parse_caption(caption)
        assert parsed is not None, caption
        assert (parsed.things, parsed.background) == (scene.things, scene.background), caption
        assert (parsed.relation, parsed.place) == (scene.relation, scene.place), caption


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a frog",
        "a dragon on the grass",
        "a frog beside on the grass",
        "a frog on the grass on the grass",
        "big red a frog on the grass",
    ],
)
def test_what_is_not_a_caption_does_not_parse(text):
    assert world.parse_caption(text) is None


def test_training_scenes_hold_no_held_out_combination_and_held_out_scenes_nothing_else():
    for split, expected in (("train", False), ("held-out", True)):
        for scene in scenes(split):
            assert [world.held_out(t.name, t.tint, scene.background) for t in scene.things] == [expected] * len(
                scene.things
            )


def test_about_a_tenth_of_the_combinations_is_held_out():
    all_of_them = [(n, t, b) for n in world.NAMES for t in (None, *TINTS) for b in BACKGROUNDS]
    assert 0.08 < np.mean([world.held_out(*c) for c in all_of_them]) < 0.12


def test_a_sample_is_the_same_every_time():
    first, second = world.sample(7), world.sample(7)
    assert first.caption == second.caption
    assert np.array_equal(first.picture, second.picture)
    assert not np.array_equal(first.picture, world.sample(8).picture)


def test_masks_are_where_the_picture_differs_from_its_background():
    scene = world.Scene((world.Thing("frog", "red", "big"),), "white", place="middle")
    picture, masks = world.render(scene, np.random.default_rng(0))
    background = (np.clip(world.draw_background("white", np.random.default_rng(0)), 0, 1) * 255 + 0.5).astype(np.uint8)
    changed = np.abs(picture.astype(int) - background).sum(-1) > 0
    assert picture.shape == (96, 96, 3)
    assert masks.shape == (1, 96, 96)
    assert not (masks[0] & ~changed).any()
    assert masks[0].sum() > 0.9 * changed.sum()  # all but the soft rim


def test_masks_of_things_that_cover_each_other_do_not_overlap():
    things = tuple(world.Thing(name, None, "big") for name in ("frog", "cat", "dog"))
    for seed in range(20):
        masks = world.render(world.Scene(things, "grass"), np.random.default_rng(seed), free=True)[1]
        assert masks.sum(0).max() == 1


@pytest.mark.parametrize(
    ("relation", "axis", "first_is_smaller"),
    [("beside", 1, True), ("left", 1, True), ("right", 1, False), ("above", 0, True), ("below", 0, False)],
)
def test_things_stand_as_the_relation_says(relation, axis, first_is_smaller):
    things = (world.Thing("frog", None, "medium"), world.Thing("cat", None, "medium"))
    masks = world.render(world.Scene(things, "blue", relation), np.random.default_rng(1))[1]
    first, second = (np.argwhere(mask).mean(0)[axis] for mask in masks)
    assert bool(first < second) is first_is_smaller
