r"""Weights in prompts, in the syntax that picture makers share.

    (apple)        1.1 times as strong; ((apple)) 1.21 times
    (apple:1.4)    1.4 times
    [apple]        1.1 times weaker
    \( \) \[ \]    the bracket itself; \\ a backslash
    BREAK          what follows begins a new chunk of 75 tokens

A bracket that is never closed counts to the end, one that was never opened is a word like any other.
"""

from __future__ import annotations

import dataclasses
import re

STRONGER = 1.1
BREAK = "BREAK"

_PIECES = re.compile(r"\\[\\()\[\]]|[()\[\]]|:\s*[+-]?(?:\d+\.?\d*|\.\d+)\s*\)|\bBREAK\b|[^\\()\[\]:B]+|.", re.DOTALL)
_CLOSES = re.compile(r":\s*([+-]?(?:\d+\.?\d*|\.\d+))\s*\)")


@dataclasses.dataclass
class Phrase:
    text: str
    weight: float = 1.0
    breaks: bool = False  # a new chunk begins here; there is no text


def parse(prompt: str) -> list[Phrase]:
    """Phrases in order; neighbours of equal weight are one."""
    phrases: list[Phrase] = []
    open_round, open_square = list[int](), list[int]()  # where each open bracket's phrases begin
    for piece in _PIECES.findall(prompt):
        closing = _CLOSES.fullmatch(piece)
        if piece.startswith("\\") and len(piece) == 2:
            phrases.append(Phrase(piece[1]))
        elif piece == "(":
            open_round.append(len(phrases))
        elif piece == "[":
            open_square.append(len(phrases))
        elif closing is not None and open_round:
            _strengthen(phrases, open_round.pop(), float(closing[1]))
        elif piece == ")" and open_round:
            _strengthen(phrases, open_round.pop(), STRONGER)
        elif piece == "]" and open_square:
            _strengthen(phrases, open_square.pop(), 1 / STRONGER)
        elif piece == BREAK:
            phrases.append(Phrase("", breaks=True))
        else:
            phrases.append(Phrase(piece))
    for start in open_round:
        _strengthen(phrases, start, STRONGER)
    for start in open_square:
        _strengthen(phrases, start, 1 / STRONGER)
    return _joined(phrases)


def _strengthen(phrases: list[Phrase], start: int, factor: float) -> None:
    for phrase in phrases[start:]:
        phrase.weight *= factor


def _joined(phrases: list[Phrase]) -> list[Phrase]:
    joined: list[Phrase] = []
    for phrase in phrases:
        last = joined[-1] if joined else None
        if last is not None and not last.breaks and not phrase.breaks and last.weight == phrase.weight:
            last.text += phrase.text
        else:
            joined.append(phrase)
    return joined
