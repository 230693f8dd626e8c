"""How noise falls from the first step to the last: the spacings of sigma that people choose by name.

karras       Karras et al., "Elucidating the Design Space of Diffusion-Based Generative Models", equation 5, rho 7
exponential  even steps of the logarithm
beta         Lee et al., "Beta Sampling is All You Need": quantiles of the beta distribution B(0.6, 0.6)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"

BETA = 0.6  # both parameters of the beta distribution


def karras(low: float, high: float, count: int) -> Array:
    ramp = np.linspace(0, 1, count)
    return np.asarray((high ** (1 / 7) + ramp * (low ** (1 / 7) - high ** (1 / 7))) ** 7)


def exponential(low: float, high: float, count: int) -> Array:
    return np.exp(np.linspace(math.log(high), math.log(low), count))


def beta(low: float, high: float, count: int) -> Array:
    return np.array([low + (high - low) * beta_quantile(1 - p) for p in np.linspace(0, 1, count)])


SPACINGS: dict[str, Callable[[float, float, int], Array]] = {"karras": karras, "exponential": exponential, "beta": beta}


def beta_quantile(p: float, a: float = BETA, b: float = BETA) -> float:
    """The x at which the beta distribution has gathered P. Bisection: its curve is vertical at both ends, where Newton fails."""
    low, high = 0.0, 1.0
    if p <= 0 or p >= 1:
        return float(p >= 1)
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if gathered(middle, a, b) < p else (low, middle)
    return (low + high) / 2


def gathered(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by its continued fraction (Abramowitz and Stegun 26.5.8)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast below
        return 1 - gathered(1 - x, b, a)
    logs = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(logs + a * math.log(x) + b * math.log1p(-x)) / a
    fraction = 0.0
    for m in range(60, 0, -1):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m - 1) * (a + b + m - 1) * x / ((a + 2 * m - 2) * (a + 2 * m - 1))
        fraction = odd / (1 + even / (1 + fraction))
    return front / (1 + fraction)
