"""Figures as people read them."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """0.0123 -> 12.3 ms"""
    sign, seconds = ("-" if seconds < 0 else ""), abs(seconds)
    if seconds >= 1:
        return f"{sign}{seconds:.3g} s"
    return f"{sign}{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{sign}{seconds * 1e6:.3g} us"


def size(count: float) -> str:
    """1234567 -> 1.23 MB"""
    for unit in ("B", "kB", "MB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def counted(number: int, noun: str) -> str:
    """1 thread, 2 threads"""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def times(ratio: float) -> str:
    """1.284 -> 1.28x, 0.0041 -> 0.004x"""
    return f"{ratio:.2f}x" if ratio >= 0.05 else f"{ratio:.1g}x"


def faster(ratio: float) -> str:
    """Time before over time after, with the word: 1.28 -> 1.28x faster, 0.9 -> 0.90x: slower."""
    shown = times(ratio)
    return f"{shown} faster" if ratio >= 1.005 else f"{shown}: slower" if ratio < 0.995 else f"{shown}: as fast"
