"""Rows of a profile: how many runs a trace may hold."""

from __future__ import annotations

from onnx import parser

from opsmith.timing.rows import _affordable, _events

LOOP = """g (int64 n, bool c, float[4] x) => (float[4] y)
{ y = Loop (n, c, x) <body = b (int64 i, bool on, float[4] h) => (bool on_, float[4] h_) { on_ = Identity(on)  h_ = Exp(h) }> }"""


def test_a_graph_without_loops_makes_an_event_per_node_and_one_with_a_loop_as_many_as_its_time_allows():
    plain = parser.parse_graph("g (float[4] x) => (float[4] y) { a = Exp(x) y = Neg(a) }")
    assert _events(plain, seconds=0.015) == 2
    assert _events(parser.parse_graph(LOOP), seconds=0.015) == 15_000


def test_the_time_that_a_trace_takes_to_read_counts_and_a_small_graph_has_a_hundred_runs():
    assert (
        _affordable(once=0.001, events=3000, budget=2.0) < 20
    )  # 3,000 small nodes: 0.15 s of reading for 1 ms of running
    assert _affordable(once=0.001, events=30, budget=2.0) == 100
    assert _affordable(once=0.3, events=30, budget=2.0) == 8
    assert _affordable(once=10.0, events=30, budget=2.0) == 3
