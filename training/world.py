"""The world: scene -> picture, caption and exact masks, all from one seed.

    scene    = sample_scene(rng, split)      what is in the picture
    picture, masks = render(scene, rng)      uint8 [96, 96, 3], bool [objects, 96, 96]
    caption  = write_caption(scene, rng)     varied English
    parse_caption(caption) -> Scene | None   the inverse: what a caption of this world says

The split is by combination of (object, tint, background): one in ten, chosen by a hash of its words, is held
out. A training scene holds none of them; a held-out scene consists of nothing else.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from opsmith.starter.vocabulary import BACKGROUNDS, OBJECTS, PLAIN, TINTS
from training.paths import emoji_folder
from training.phrases import OPENERS, PLACES, PLAIN_PHRASES, RELATIONS, SETTING_PHRASES, SIZES

SIDE = 96
NAMES = tuple(OBJECTS)
HELD_OUT_SHARE = 0.1

# Pixels across, by number of things in the scene: a "big" thing among three is smaller than a big one alone.
PIXELS = {
    1: {"small": 32, "medium": 48, "big": 64},
    2: {"small": 32, "medium": 40, "big": 48},
    3: {"small": 24, "medium": 32, "big": 40},
}
# Things stand on a grid of 16 pixels, a position of the UNet's inner level (two latent cells): a thing then looks the same
# to it wherever it stands, which is learnt many times faster. "free" renderings ignore the grid and vary the sizes.
GRID = 16
# A thing painted in the colour of its background could hardly be seen.
CLASHES = {"sky": {"blue"}, "grass": {"green"}, "sea": {"blue"}, "night": set[str]()}

Picture = np.ndarray  # uint8 [96, 96, 3]


@dataclass(frozen=True)
class Thing:
    name: str
    tint: str | None
    size: str  # small, medium, big


@dataclass(frozen=True)
class Scene:
    things: tuple[Thing, ...]
    background: str
    relation: str | None = None  # two things only
    place: str | None = None  # one thing only


def held_out(name: str, tint: str | None, background: str) -> bool:
    """Whether this combination is kept from training."""
    digest = hashlib.sha256(f"{name}|{tint}|{background}".encode()).digest()
    return int.from_bytes(digest[:4], "big") < HELD_OUT_SHARE * 2**32


def clashes(tint: str | None, background: str) -> bool:
    return tint is not None and (tint == background or tint in CLASHES.get(background, ()))


def choose(rng: np.random.Generator, options):
    return options[int(rng.integers(len(options)))]


def sample_scene(rng: np.random.Generator, split: str = "train", count: int | None = None) -> Scene:
    """A scene of `count` things (1, 2 or 3 if not told), all of whose combinations are in `split`."""
    if count is None:
        count = int(rng.choice(3, p=[0.5, 0.4, 0.1])) + 1
    while True:
        background = choose(rng, BACKGROUNDS)
        names = [NAMES[i] for i in rng.choice(len(NAMES), size=count, replace=False)]
        things = []
        for name in names:
            tint = None if rng.random() < 0.4 else choose(rng, tuple(TINTS))
            size = str(rng.choice(["small", "medium", "big"], p=[0.25, 0.4, 0.35]))
            if clashes(tint, background) or held_out(name, tint, background) != (split == "held-out"):
                break
            things.append(Thing(name, tint, size))
        if len(things) == count:
            break
    relation = place = None
    if count == 1:
        place = str(rng.choice(tuple(PLACES), p=[0.6, 0.1, 0.1, 0.1, 0.1]))
    if count == 2:
        relation = str(rng.choice(tuple(RELATIONS), p=[0.5, 0.12, 0.12, 0.13, 0.13]))
    return Scene(tuple(things), background, relation, place)


# ---------------------------------------------------------------- pictures


@cache
def emoji(name: str) -> Image.Image:
    """The 64 px picture of one thing, premultiplied so that resizing leaves no dark seam."""
    picture = Image.open(emoji_folder() / f"{OBJECTS[name]}.png").convert("RGBA")
    pixels = np.asarray(picture, dtype=np.float32) / 255
    pixels = np.concatenate([pixels[..., :3] * pixels[..., 3:], pixels[..., 3:]], axis=-1)
    rows, columns = np.where(pixels[..., 3] > 0.05)
    top, bottom, left, right = rows.min(), rows.max() + 1, columns.min(), columns.max() + 1
    side = max(bottom - top, right - left)
    square = np.zeros((side, side, 4), np.float32)  # the thing centred in the smallest square that holds it
    y, x = (side - (bottom - top)) // 2, (side - (right - left)) // 2
    square[y : y + bottom - top, x : x + right - left] = pixels[top:bottom, left:right]
    return square


def paint(pixels: np.ndarray, tint: str | None) -> np.ndarray:
    """Colourise premultiplied pixels [h, w, 4]: lightness stays, hue becomes the tint's."""
    if tint is None:
        return pixels
    colour = np.array(TINTS[tint], np.float32) / 255
    alpha = pixels[..., 3:]
    rgb = pixels[..., :3] / np.maximum(alpha, 1e-3)
    light = rgb @ np.array([0.3, 0.59, 0.11], np.float32)
    mean = float((light * alpha[..., 0]).sum() / alpha.sum())
    light = np.clip(0.5 + (light - mean) * 0.9, 0.02, 0.98)[..., None]
    painted = np.where(light < 0.5, colour * light * 2, colour + (1 - colour) * (light - 0.5) * 2)
    return np.concatenate([(0.88 * painted + 0.12 * rgb) * alpha, alpha], axis=-1).astype(np.float32)


@cache
def sprite(name: str, tint: str | None, pixels: int) -> np.ndarray:
    """One thing at one size: float32 [pixels, pixels, 4], premultiplied."""
    painted = paint(emoji(name), tint)
    planes = [
        np.asarray(Image.fromarray(painted[..., c]).resize((pixels, pixels), Image.Resampling.LANCZOS))
        for c in range(4)
    ]
    return np.clip(np.stack(planes, axis=-1), 0, 1)


def draw_background(name: str, rng: np.random.Generator) -> np.ndarray:
    """float32 [96, 96, 3] in 0..1."""
    down = np.linspace(0, 1, SIDE, dtype=np.float32)[:, None, None]
    across = np.arange(SIDE, dtype=np.float32)[None, :, None]

    def colour(*rgb: int) -> np.ndarray:
        return np.array(rgb, np.float32) / 255

    if name in PLAIN:
        base = colour(*PLAIN[name]) + rng.normal(0, 0.012, 3).astype(np.float32)
        return np.broadcast_to(base, (SIDE, SIDE, 3)) * (1.02 - 0.04 * down)
    if name == "sky":
        picture = (
            colour(110, 180, 245) * (1 - down) + colour(205, 232, 252) * down + np.zeros((SIDE, SIDE, 3), np.float32)
        )
        for _ in range(3):
            x, y, w = rng.uniform(8, 88), rng.uniform(8, 88), rng.uniform(12, 20)
            distance = ((across[..., 0] - x) / w) ** 2 + (
                (np.arange(SIDE, dtype=np.float32)[:, None] - y) / (w * 0.4)
            ) ** 2
            cloud = np.clip(1.5 - 1.5 * distance, 0, 0.9)[..., None]
            picture = picture * (1 - cloud) + cloud
        return picture
    horizon = rng.uniform(0.28, 0.4)
    if name == "grass":
        below = np.clip((down - horizon) * 24 + 0.5, 0, 1)
        ground = colour(122, 196, 86) * (1.25 - 0.5 * down)
        return (
            (colour(190, 226, 250) + 0.1 * down) * (1 - below) + ground * below + np.zeros((SIDE, SIDE, 3), np.float32)
        )
    if name == "sea":
        phase = rng.uniform(0, 6.28)
        below = np.clip((down - horizon) * 24 + 0.5, 0, 1)
        waves = 0.05 * np.sin(across / 5 + phase + 6 * np.floor(down * 8)) * np.sin(down * 8 * 3.14159) ** 2
        water = colour(40, 120, 190) * (1.2 - 0.5 * down) + waves
        return (colour(225, 240, 250) - 0.1 * down) * (1 - below) + water * below
    picture = colour(16, 20, 56) * (1 - down) + colour(44, 44, 98) * down + np.zeros((SIDE, SIDE, 3), np.float32)
    for _ in range(8):
        x, y = rng.integers(2, SIDE - 4, 2)
        picture[y : y + 2, x : x + 2] = colour(250, 244, 200)
    return picture


def centres(scene: Scene, rng: np.random.Generator) -> list[tuple[float, float]]:
    """(x, y) of the middle of each thing, 0..96."""
    middle = SIDE / 2
    if len(scene.things) == 1:
        near, far, shift = 0.3 * SIDE, 0.7 * SIDE, rng.normal(0, 5, 2)
        x = {"left": near, "right": far}.get(scene.place or "", middle)
        y = {"top": near, "bottom": far}.get(scene.place or "", middle)
        return [(x + shift[0], y + shift[1])]
    if len(scene.things) == 2:
        first, second = 0.26 * SIDE, 0.74 * SIDE
        if scene.relation in ("right", "below"):
            first, second = second, first
        across = middle + rng.normal(0, 5, 2)
        along = np.array([first, second]) + rng.normal(0, 1.5, 2)
        if scene.relation in ("above", "below"):
            return [(across[0], along[0]), (across[1], along[1])]
        return [(along[0], across[0]), (along[1], across[1])]
    return [
        (0.18 * SIDE, middle + rng.normal(0, 6)),
        (middle, middle + rng.normal(0, 6)),
        (0.82 * SIDE, middle + rng.normal(0, 6)),
    ]


def render(scene: Scene, rng: np.random.Generator, free: bool = False) -> tuple[Picture, np.ndarray]:
    """The picture, uint8 [96, 96, 3], and one visible mask per thing, bool [things, 96, 96]."""
    picture = draw_background(scene.background, rng).astype(np.float32)
    masks = np.zeros((len(scene.things), SIDE, SIDE), bool)
    grid = 1 if free else GRID
    sizes = [
        PIXELS[len(scene.things)][thing.size] + (2 * int(rng.integers(-2, 3)) if free else 0) for thing in scene.things
    ]
    sizes = [min(side, 64) for side in sizes]
    for i, (thing, side, (x, y)) in enumerate(zip(scene.things, sizes, centres(scene, rng), strict=True)):
        left = int(np.clip(round((x - side / 2) / grid) * grid, 0, SIDE - side))
        top = int(np.clip(round((y - side / 2) / grid) * grid, 0, SIDE - side))
        pixels = sprite(thing.name, thing.tint, side)
        where = (slice(top, top + side), slice(left, left + side))
        alpha = pixels[..., 3:]
        picture[where] = picture[where] * (1 - alpha) + pixels[..., :3]
        covered = alpha[..., 0] > 0.5
        masks[:i, top : top + side, left : left + side] &= ~covered
        masks[i][where] = covered
    return (np.clip(picture, 0, 1) * 255 + 0.5).astype(np.uint8), masks


# ---------------------------------------------------------------- captions


def noun_phrase(thing: Thing, rng: np.random.Generator) -> str:
    words = [choose(rng, SIZES[thing.size])] if SIZES[thing.size] else []
    words += [thing.tint] if thing.tint else []
    words.append(thing.name)
    return ("an " if words[0][0] in "aeiou" else "a ") + " ".join(words)


def background_phrase(background: str, rng: np.random.Generator) -> str:
    if background in PLAIN:
        phrase = choose(rng, PLAIN_PHRASES).format(colour=background)
        return phrase.replace("a orange", "an orange")
    return choose(rng, SETTING_PHRASES[background])


def write_caption(scene: Scene, rng: np.random.Generator) -> str:
    nouns = [noun_phrase(thing, rng) for thing in scene.things]
    if len(nouns) == 1:
        subject = nouns[0]
        # The middle is where one expects a thing: seldom said. Any other place must be said, or it could not be learnt.
        if scene.place and (scene.place != "middle" or rng.random() < 0.2):
            subject += " " + choose(rng, PLACES[scene.place])
    elif len(nouns) == 2:
        subject = f"{nouns[0]} {choose(rng, RELATIONS[scene.relation or 'beside'])} {nouns[1]}"
    else:
        subject = f"{nouns[0]}, {nouns[1]} and {nouns[2]}"
    where = background_phrase(scene.background, rng)
    if rng.random() < 0.2:
        return f"{where}, {subject}"
    comma = "," if rng.random() < 0.5 else ""
    return f"{choose(rng, OPENERS)}{subject}{comma} {where}"


def alternatives(phrases: dict[str, str]) -> str:
    """A regular expression for any of the phrases, longest first."""
    return "|".join(re.escape(phrase) for phrase in sorted(phrases, key=len, reverse=True))


BACKGROUND_OF = {
    **{p.format(colour=c).replace("a orange", "an orange"): c for c in PLAIN for p in PLAIN_PHRASES},
    **{phrase: setting for setting, phrases in SETTING_PHRASES.items() for phrase in phrases},
}
RELATION_OF = {phrase: relation for relation, phrases in RELATIONS.items() for phrase in phrases}
PLACE_OF = {phrase: place for place, phrases in PLACES.items() for phrase in phrases}
SIZE_OF = {word: size for size, words in SIZES.items() for word in words}
NOUN = (
    rf"an? (?:(?:{alternatives(SIZE_OF)}) )?(?:(?:{alternatives(dict.fromkeys(TINTS, ''))}) )?"
    rf"(?:{alternatives(dict.fromkeys(NAMES, ''))})"
)
SUBJECT = (
    rf"(?P<first>{NOUN})(?: (?P<place>{alternatives(PLACE_OF)})| (?P<relation>{alternatives(RELATION_OF)}) (?P<second>{NOUN})"
    rf"|, (?P<middle>{NOUN}) and (?P<last>{NOUN}))?"
)
WHERE = rf"(?P<where>{alternatives(BACKGROUND_OF)})"
OPENER = rf"(?:{'|'.join(o for o in OPENERS if o)})?"
CAPTION = re.compile(rf"{OPENER}{SUBJECT},? {WHERE}")
CAPTION_TURNED = re.compile(rf"{WHERE}, {SUBJECT}")


def parse_noun(phrase: str) -> Thing:
    words = phrase.split()[1:]
    size = next((SIZE_OF[word] for word in words if word in SIZE_OF), "medium")
    return Thing(words[-1], next((word for word in words[:-1] if word in TINTS), None), size)


def parse_caption(caption: str) -> Scene | None:
    """What the caption says, or None if it is not a caption of this world."""
    found = CAPTION.fullmatch(caption.strip()) or CAPTION_TURNED.fullmatch(caption.strip())
    if not found:
        return None
    nouns = [found[part] for part in ("first", "second", "middle", "last") if found[part]]
    background = BACKGROUND_OF[found["where"]]
    place = PLACE_OF[found["place"]] if found["place"] else ("middle" if len(nouns) == 1 else None)
    relation = RELATION_OF[found["relation"]] if found["relation"] else None
    return Scene(tuple(parse_noun(noun) for noun in nouns), background, relation, place)


@dataclass(frozen=True)
class Sample:
    scene: Scene
    picture: Picture
    masks: np.ndarray
    caption: str


def sample(seed: int, split: str = "train", count: int | None = None, free: bool = False) -> Sample:
    """The seed-th sample of a split; the splits use different streams of random numbers."""
    rng = np.random.default_rng([seed, split == "held-out"])
    scene = sample_scene(rng, split, count)
    picture, masks = render(scene, rng, free)
    return Sample(scene, picture, masks, write_caption(scene, rng))


def sheet(pictures: list[Picture], columns: int, path: Path, zoom: int = 1) -> None:
    """Write pictures side by side into one PNG."""
    rows = -(-len(pictures) // columns)
    side = pictures[0].shape[0]
    page = np.full((rows * (side + 4) + 4, columns * (side + 4) + 4, 3), 255, np.uint8)
    for i, picture in enumerate(pictures):
        y, x = (i // columns) * (side + 4) + 4, (i % columns) * (side + 4) + 4
        page[y : y + side, x : x + side] = picture
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(page).resize((page.shape[1] * zoom, page.shape[0] * zoom), Image.Resampling.NEAREST).save(path)
