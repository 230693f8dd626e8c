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
