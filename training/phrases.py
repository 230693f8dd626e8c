"""How the captions of the small world are worded; its things and colours: opsmith/starter/vocabulary.py."""

from __future__ import annotations

# small / (medium, unsaid) / big, and the words that say so
SIZES: dict[str, tuple[str, ...]] = {
    "small": ("small", "little", "tiny"),
    "medium": (),
    "big": ("big", "large", "huge"),
}

# What a background is called; {colour} stands for the name of a plain one.
PLAIN_PHRASES: tuple[str, ...] = (
    "on a {colour} background",
    "against a {colour} background",
    "in front of a {colour} wall",
)
SETTING_PHRASES: dict[str, tuple[str, ...]] = {
    "sky": ("in the sky", "high in the blue sky", "among the clouds"),
    "grass": ("on the grass", "in a green meadow", "on a grassy field"),
    "sea": ("on the sea", "out at sea", "on the waves"),
    "night": ("at night", "under the stars", "in the night sky"),
}

# relation -> its words. "beside": the first stands left of the second, as one reads.
RELATIONS: dict[str, tuple[str, ...]] = {
    "beside": ("beside", "next to", "and", "with"),
    "left": ("to the left of", "left of"),
    "right": ("to the right of", "right of"),
    "above": ("above", "over", "on top of"),
    "below": ("below", "under", "underneath"),
}

# Where a single thing stands.
PLACES: dict[str, tuple[str, ...]] = {
    "middle": ("in the middle", "in the center"),
    "left": ("on the left",),
    "right": ("on the right",),
    "top": ("at the top",),
    "bottom": ("at the bottom",),
}

OPENERS: tuple[str, ...] = ("", "a picture of ", "a drawing of ", "there is ", "imagine ")
