"""How the captions of the small world are worded; its things and colours: opsmith/starter/vocabulary.py."""

from __future__ import annotations

from opsmith.starter.vocabulary import PLAIN_PHRASES as PLAIN_PHRASES
from opsmith.starter.vocabulary import SETTING_PHRASES as SETTING_PHRASES
from opsmith.starter.vocabulary import SIZES as SIZES

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
