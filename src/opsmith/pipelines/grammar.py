"""What `edit --change` understands: a small grammar, read in this order.

    replace   replace [it] with X · swap it for X · turn it into X · change it [in]to X        (X is no colour)
    remove    remove it · delete · erase · take it away · get rid of it
    blur      blur it [slightly | strongly]
    brighten  brighten it · make it brighter · make it lighter    [a little | a lot]
    darken    darken it · make it darker                          [a little | a lot]
    recolour  make it blue · paint it light green · turn it #ff8800 · change its colour to red · blue

"it" may be any words ("make the big apple blue"): what is changed is said by --select.
"""

from __future__ import annotations

import dataclasses
import re

from PIL import ImageColor

from opsmith.errors import OpsmithError

KINDS = (
    "make it blue (any named colour or #rrggbb)",
    "replace it with a pear",
    "remove it",
    "blur it",
    "make it brighter",
    "make it darker",
)


@dataclasses.dataclass(frozen=True)
class Change:
    kind: str  # recolour, replace, remove, blur, brighten, darken
    colour: tuple[int, int, int] | None = None
    text: str = ""  # what comes instead
    amount: float = 1.0  # of blur, brighten and darken: 0.5 a little, 2 a lot


_REPLACE = (
    r"(?:replace|swap|exchange)\b.*?\b(?:with|by|for)\s+(?P<new>.+)",
    # "into an orange" is a thing, "into orange" is a colour
    r"(?:turn|change|transform|make)\b.*?\b(?:into|to)\s+(?P<new>(?:an?|the|some|two|three)\s.+)",
    r"(?:turn|change|transform|make)\b.*?\binto\s+(?P<new>.+)",
    r"change\b.*?\bto\s+(?P<new>.+)",
)
_REMOVE = (
    r"(?:remove|delete|erase|drop)\b.*|take\b.*\b(?:away|out)|get rid of\b.*|(?:make\b.*\b)?(?:disappear|vanish|gone)"
)
_BLUR = r"(?:blur|soften)\b.*|make\b.*\b(?:blurry|blurred|blurrier)\b.*"
_BRIGHTEN = (
    r"(?:brighten|lighten)\b.*|make\b.*\b(?:brighter|lighter)\b.*|(?:a (?:bit|little|lot) )?(?:brighter|lighter)"
)
_DARKEN = r"darken\b.*|make\b.*\bdarker\b.*|(?:a (?:bit|little|lot) )?darker"
_RECOLOUR = (
    r"(?:re)?colou?r\b(?:.*?\b(?:to|in|as))?\s*(?P<colour>.+)",
    r"(?:change|set|turn)\b.*\bcolou?r\b.*?\b(?:to|into)\s+(?P<colour>.+)",
    r"(?:make|paint|turn|dye|tint|change)\b\s*(?P<colour>.+)",
    r"(?P<colour>.+)",
)
_LITTLE, _LOT = r"\b(?:slightly|a bit|a little|gently|somewhat)\b", r"\b(?:strongly|a lot|much|very|heavily)\b"
# Words of everyday speech that CSS does not name this way.
_MORE = {
    "dark yellow": "goldenrod",
    "light red": "lightcoral",
    "light orange": "navajowhite",
    "light purple": "plum",
    "dark purple": "indigo",
    "dark pink": "mediumvioletred",
    "bright red": "red",
    "bright green": "lime",
    "bright blue": "dodgerblue",
    "bright yellow": "yellow",
}


def parse(sentence: str) -> Change:
    wish = " ".join(sentence.lower().split()).strip(" .!")
    if not wish:
        raise OpsmithError("the change is empty", f"understood are: {'; '.join(KINDS)}")
    amount = 0.5 if re.search(_LITTLE, wish) else 2.0 if re.search(_LOT, wish) else 1.0
    for i, pattern in enumerate(_REPLACE):
        matched = re.fullmatch(pattern, wish)
        if matched and (new := matched["new"].strip()) and (i < 2 or _colour_at_end(new) is None):
            return Change("replace", text=new)
    for kind, pattern in (("remove", _REMOVE), ("blur", _BLUR), ("brighten", _BRIGHTEN), ("darken", _DARKEN)):
        if re.fullmatch(pattern, wish):
            return Change(kind, amount=amount)
    for pattern in _RECOLOUR:
        matched = re.fullmatch(pattern, wish)
        if matched and (colour := _colour_at_end(matched["colour"])) is not None:
            return Change("recolour", colour=colour)
    raise OpsmithError(f"the change {sentence!r} is not understood", f"understood are: {'; '.join(KINDS)}")


def _colour_at_end(text: str) -> tuple[int, int, int] | None:
    """The colour that the words end in: "the apple light blue" -> light blue; "a pear" -> None."""
    words = re.sub(r"\bcolou?r(?:ed)?$", "", text).split()
    for start in (len(words) - 2, len(words) - 1):
        if start < 0:
            continue
        name = " ".join(words[start:])
        name = _MORE.get(name, name.replace(" ", "")).replace("bright", "")
        try:
            red, green, blue = ImageColor.getrgb(name)[:3]
            return red, green, blue
        except ValueError:
            continue
    return None
