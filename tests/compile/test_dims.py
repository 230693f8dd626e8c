"""Symbolic sizes: one normal form, exact division, C++ text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from opsmith.compile.dims import (
    assuming,
    atom,
    broadcast,
    contiguous,
    dim,
    estimate,
    exact_div,
    floor_div,
    lower_bound,
    trunc_div,
    truncated,
)

B, P, S = atom("batch"), atom("past"), atom("seq")


def test_equal_sizes_compare_equal_however_they_were_built():
    assert B * (P + S) * 64 == 64 * (S * B + P * B)
    assert (P + S) - P == S
    assert P - P == 0


def test_a_reshape_finds_its_missing_dim_by_exact_division():
    assert exact_div(B * (P + S) * 64, B * 64) == P + S
    assert exact_div(B * (P + S) * 64, P + S) == B * 64
    assert exact_div(B * 64, 3) is None
    assert exact_div(B + 1, 2) is None


def test_what_polynomials_cannot_express_becomes_a_call():
    assert floor_div(S + 1, 2).cpp() == "floor_div((seq + 1), 2)"
    assert floor_div(S * 8, 8) == S
    assert floor_div(dim(7), 2) == 3


def test_broadcasting_is_decided_now_where_it_can_be():
    assert broadcast(B, 1) == B
    assert broadcast(1, S) == S
    assert broadcast(B, 8) == 8
    assert broadcast(B, S) == broadcast(S, B)
    assert "broadcast(" in broadcast(B, S).cpp()


def test_channels_last_strides():
    n, c, h, w = contiguous([B, 3, P, S], (0, 2, 3, 1))
    assert (c, w, h, n) == (1, 3, S * 3, P * S * 3)


def test_estimates_follow_the_names():
    assert estimate(B * S * 4) == 1 * 128 * 4
    assert estimate(floor_div(atom("height") + 1, 2)) == 32


@given(st.lists(st.tuples(st.integers(-5, 5), st.sampled_from([B, P, S, dim(1)])), max_size=4), st.integers(1, 9))
def test_dividing_a_product_by_a_factor_gives_the_other(terms, factor):
    total = sum((d * c for c, d in terms), dim(0))
    divisor = B * factor + P
    assert exact_div(total * divisor, divisor) == total


def test_one_size_written_in_two_ways_is_one_where_a_check_makes_it_so():
    """A convolution halves by floor_div, shape arithmetic by trunc_div; they differ below zero only."""
    height = atom("height")
    halved = floor_div(floor_div(height - 1, 2) + 1 - 1, 2) + 1
    assert halved != trunc_div(height - 1, 4) + 1
    assert truncated([trunc_div(height - 1, 4) + 1, halved]) == {height - 1}
    with assuming([height - 1]):
        assert halved == trunc_div(height - 1, 4) + 1
        doubled = 4 * (trunc_div(height - 1, 8) + 1)  # 4 at least, so it is never what is stretched
        assert broadcast(doubled, floor_div(height - 1, 2) + 1) == doubled
    assert halved != trunc_div(height - 1, 4) + 1


@given(st.integers(-40, 40), st.integers(1, 9), st.integers(-40, 40), st.integers(1, 9), st.integers(-5, 5))
def test_floor_divisions_are_simplified_to_the_same_number(n, inner, added, outer, factor):
    size = floor_div(factor * floor_div(atom("n") + added, inner) + added, outer)
    assert estimate(size, {"n": n}) == (factor * ((n + added) // inner) + added) // outer


@given(st.integers(0, 40), st.integers(-9, 9), st.integers(1, 9))
def test_a_lower_bound_is_one(n, added, divisor):
    for size in (atom("n") + added, 3 * floor_div(atom("n") + added, divisor) + added):
        least = lower_bound(size)
        assert least is None or least <= estimate(size, {"n": n})
