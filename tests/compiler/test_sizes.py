"""Symbolic sizes: one normal form, exact division, bounds, evaluation, names of dims."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsmith.dim_names import parse, spell
from opsmith.sizes import (
    Element,
    Size,
    as_size,
    at,
    broadcast,
    contiguous,
    element,
    equal,
    estimate,
    exact_div,
    floor_div,
    is_count,
    lower_bound,
    maximum,
    minimum,
    name,
    names,
    reads_data,
    trunc_div,
    truncated,
    walk,
)

B, P, S = name("batch"), name("past"), name("seq")


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
    assert str(floor_div(S + 1, 2)) == "floor_div((seq + 1), 2)"
    assert floor_div(S * 8, 8) == S
    assert floor_div(as_size(7), 2) == 3


def test_broadcasting_is_decided_now_where_it_can_be():
    assert broadcast(B, 1) == B
    assert broadcast(1, S) == S
    assert broadcast(B, 8) == 8
    assert broadcast(B, S) == broadcast(S, B)
    assert str(broadcast(B, S)) == "broadcast(batch, seq)"
    assert broadcast(S, minimum(S, 512)) == broadcast(minimum(512, S), S) == S  # 512 positions beside any sequence
    assert broadcast(S, minimum(S, 1)) != S and broadcast(S, minimum(B, 512)) != S


def test_channels_last_strides():
    n, c, h, w = contiguous([B, 3, P, S], (0, 2, 3, 1))
    assert (c, w, h, n) == (1, 3, S * 3, P * S * 3)


def test_estimates_follow_the_names():
    assert estimate(B * S * 4) == 1 * 128 * 4
    assert estimate(floor_div(name("height") + 1, 2)) == 32


@given(st.lists(st.tuples(st.integers(-5, 5), st.sampled_from([B, P, S, as_size(1)])), max_size=4), st.integers(1, 9))
def test_dividing_a_product_by_a_factor_gives_the_other(terms, factor):
    total = sum((d * c for c, d in terms), as_size(0))
    divisor = B * factor + P
    assert exact_div(total * divisor, divisor) == total


def test_one_size_written_in_two_ways_is_one_where_a_check_makes_it_so():
    """A convolution halves by floor_div, shape arithmetic by trunc_div; they differ below zero only."""
    height = name("height")
    halved = floor_div(floor_div(height - 1, 2) + 1 - 1, 2) + 1
    assert halved != trunc_div(height - 1, 4) + 1
    assert truncated([trunc_div(height - 1, 4) + 1, halved]) == {height - 1}
    given = frozenset([height - 1])
    assert halved == trunc_div(height - 1, 4, given) + 1
    doubled = 4 * (trunc_div(height - 1, 8, given) + 1)  # 4 at least, so it is never what is stretched
    assert broadcast(doubled, floor_div(height - 1, 2) + 1, given) == doubled


@given(st.integers(-40, 40), st.integers(1, 9), st.integers(-40, 40), st.integers(1, 9), st.integers(-5, 5))
def test_floor_divisions_are_simplified_to_the_same_number(n, inner, added, outer, factor):
    size = floor_div(factor * floor_div(name("n") + added, inner) + added, outer)
    assert estimate(size, {"n": n}) == (factor * ((n + added) // inner) + added) // outer


@given(st.integers(0, 40), st.integers(-9, 9), st.integers(1, 9))
def test_a_lower_bound_is_one(n, added, divisor):
    for size in (name("n") + added, 3 * floor_div(name("n") + added, divisor) + added):
        least = lower_bound(size)
        assert least is None or least <= estimate(size, {"n": n})


def test_two_sizes_are_equal_different_or_unknown():
    assert equal(B * 2, B + B) is True
    assert equal(B + 1, B) is False
    assert equal(B + 1, 0) is False  # a size is never negative
    assert equal(B, S) is None
    assert equal(B, 4) is None


def test_what_a_size_depends_on_is_read_from_its_atoms():
    wanted = element("shape", 0)
    assert reads_data(floor_div(wanted + B, 2)) and not reads_data(floor_div(S + B, 2))
    assert Element("shape", 0) in set(walk([floor_div(wanted + B, 2)]))
    assert is_count(S * 2 + 1) and not is_count(wanted)
    assert names(floor_div(S + B, P)) == {"batch", "past", "seq"}


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("s10*s21", "s21*s10"),
        ("2*batch + 3", "3 + batch + batch"),
        ("(((height - 1)//2)) + 1", "1 + (height - 1)//2"),
        ("4*(n//2)", "2*(n//2) + 2*(n//2)"),
        ("a*(b + c)", "a*b + a*c"),
    ],
)
def test_one_size_spelled_in_two_ways_is_one(left, right):
    assert parse(left) == parse(right) is not None


def test_unlike_sizes_are_not_equal():
    assert parse("a*b") != parse("a + b") and parse("2*(n//2)") != name("n")
    assert at(parse("2*a*b + 3"), {"a": 5, "b": 7}) == 73 and at(parse("2*a*b + 3"), {"a": 5}) is None


def test_a_model_s_names_of_dims_are_read_and_written():
    assert parse("past + seq") == P + S
    assert parse("2*seq - seq") == S
    assert parse("(seq + 1)//2") == floor_div(S + 1, 2)
    assert parse("batch-size") == B - name("size")
    assert parse("seq/2 + batch**2") == floor_div(S, 2) + B * B and parse("7 % 4") == 3
    assert parse("Max(seq + 1, seq)") == S + 1 and parse("Min(batch, seq)") == minimum(B, S)
    assert spell(2 * S * B - 4) == "2*batch*seq - 4" and spell(floor_div(S + 1, 2) * 3) == "3*((seq + 1)//2)"
    assert parse("Reshape/model_dim_0") is None
    assert parse("Max(1)") is None and parse("f(1, n)") is None and parse("seq//0") is None and parse("a b") is None
    assert parse("(" * 5000) is None


@given(
    st.recursive(
        st.one_of(st.integers(-9, 9).map(as_size), st.sampled_from([B, P, S])),
        lambda inner: st.one_of(
            st.tuples(inner, inner).map(lambda t: t[0] + t[1]),
            st.tuples(inner, inner).map(lambda t: t[0] * t[1]),
            st.tuples(inner, st.integers(1, 6)).map(lambda t: floor_div(*t)),
            st.tuples(inner, inner).map(lambda t: minimum(*t)),
        ),
        max_leaves=6,
    )
)
def test_a_spelled_size_reads_back_as_itself(size: Size):
    assert parse(spell(size)) == size


def test_a_residual_stream_of_broadcasts_stays_one_short_size() -> None:
    a, b = name("a"), name("b")
    one = broadcast(a, b)
    stream = one
    for _ in range(50):
        stream = broadcast(broadcast(stream, a), broadcast(b, stream))
    assert stream == one
    three = broadcast(broadcast(b, name("c")), a)
    assert three == broadcast(name("c"), one)
    for values in ({"a": 1, "b": 1, "c": 7}, {"a": 5, "b": 1, "c": 5}, {"a": 1, "b": 4, "c": 1}):
        assert at(three, values) == max(values.values())
    assert broadcast(a - 2, maximum(0, a - 2)) == a - 2  # no dim is negative
