"""What a mask made of many pieces costs: analyses grow with the shared nodes of its expression, never with its paths.

Counted in calls of functions, which is the same on every machine; no clock.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import pytest

from aicf.driver import Options, RegionResult, compile_graph
from aicf.semantic import GraphBuilder, Node
from aicf.streaming.conditions import WORK

N, D = 96, 16
Mask = Callable[[GraphBuilder, Node, Node, Node, int], Node]


def graph_of(mask: Mask, pieces: int):
    """Attention whose scores `mask` changes, in so many pieces."""
    b = GraphBuilder(share=True)
    q, k, v = (b.input(name, "f32", (2, N, D)) for name in "QKV")
    scores = b.op("matmul", q, b.permute(k, (0, 2, 1)))
    i = b.reshape(b.iota(N), (N, 1))
    j = b.reshape(b.iota(N), (1, N))
    scores = mask(b, scores, i, j, pieces)
    return b.output(b.op("matmul", b.op("softmax", scores, axis=-1), v))


def hidden(b: GraphBuilder, scores: Node, keep: Node) -> Node:
    return b.op("where", keep, scores, float("-inf"))


def inside(b: GraphBuilder, x: Node, low: int, high: int) -> Node:
    return b.op("and", b.op("ge", x, low), b.op("lt", x, high))


def blocks(b: GraphBuilder, scores: Node, i: Node, j: Node, pieces: int) -> Node:
    """mask[s:e, s:e] = True, one line per document."""
    n = N // pieces
    keep = b.op("lt", b.op("add", i, j), 0)
    for p in range(pieces):
        here = b.op("and", inside(b, i, p * n, (p + 1) * n), inside(b, j, p * n, (p + 1) * n))
        keep = b.op("where", here, True, keep)
    return hidden(b, scores, keep)


def filled(b: GraphBuilder, scores: Node, i: Node, j: Node, pieces: int) -> Node:
    """bias[…, s:e, s:e] = 0, of numbers that are added."""
    n = N // pieces
    bias = b.op("where", b.op("lt", b.op("add", i, j), 0), 0.0, -3e38)
    for p in range(pieces):
        here = b.op("and", inside(b, i, p * n, (p + 1) * n), inside(b, j, p * n, (p + 1) * n))
        bias = b.op("where", here, 0.0, bias)
    return b.op("add", scores, bias)


def assigned(b: GraphBuilder, scores: Node, i: Node, j: Node, pieces: int) -> Node:
    """scores[…, s:e, e:] = -inf, line by line."""
    n = N // pieces
    for p in range(pieces):
        here = b.op("and", inside(b, i, p * n, (p + 1) * n), b.op("ge", j, (p + 1) * n))
        scores = b.op("where", here, float("-inf"), scores)
    return scores


def columns(b: GraphBuilder, scores: Node, i: Node, j: Node, pieces: int) -> Node:
    for p in range(pieces):
        scores = b.op("where", b.op("eq", j, 3 * p), float("-inf"), scores)
    return scores


def xors(b: GraphBuilder, scores: Node, i: Node, j: Node, pieces: int) -> Node:
    keep = b.op("le", j, i)
    for p in range(pieces):
        keep = b.op("xor", keep, b.op("lt", j, 3 * p + 1))
    return hidden(b, scores, keep)


def chosen(b: GraphBuilder, scores: Node, i: Node, j: Node, pieces: int) -> Node:
    """keep = where(i < c, keep & (j > d), keep | (j == e)): each step holds the one before twice."""
    keep = b.op("le", j, i)
    for p in range(pieces):
        keep = b.op(
            "where", b.op("lt", i, 5 * p + 1), b.op("and", keep, b.op("gt", j, p)), b.op("or", keep, b.op("eq", j, 2 * p))
        )
    return hidden(b, scores, keep)


def counted(b: GraphBuilder, scores: Node, i: Node, j: Node, pieces: int) -> Node:
    """count = count * (i < c) + count: numbers that hold the one before twice, compared at the end."""
    count = b.cast(b.op("le", j, i), "i32")
    for p in range(pieces):
        count = b.op("add", b.op("mul", count, b.cast(b.op("lt", i, p), "i32")), count)
    return hidden(b, scores, b.op("ne", count, 0))


def graded(b: GraphBuilder, scores: Node, i: Node, j: Node, pieces: int) -> Node:
    """bias = where(j < c, bias * 0.5, bias): numbers, not a mask."""
    bias = b.cast(b.op("sub", i, j), "f32")
    for p in range(pieces):
        bias = b.op("where", b.op("lt", j, 4 * p), b.op("mul", bias, 0.5), bias)
    return b.op("add", scores, bias)


def rescored(b: GraphBuilder, scores: Node, i: Node, j: Node, pieces: int) -> Node:
    """scores = where(j < c, scores * 0.5, scores)."""
    for p in range(pieces):
        scores = b.op("where", b.op("lt", j, 4 * p + 1), b.op("mul", scores, 0.5), scores)
    return scores


def smallest(b: GraphBuilder, scores: Node, i: Node, j: Node, pieces: int) -> Node:
    """bias = minimum(bias, bias shifted): as distances to the next border are made."""
    bias = b.cast(b.op("abs", b.op("sub", i, j)), "f32")
    for p in range(pieces):
        bias = b.op("min", bias, b.op("add", b.op("max", bias, float(p)), 1.0))
    return b.op("sub", scores, bias)


MASKS = [blocks, filled, assigned, columns, xors, chosen, counted, graded, rescored, smallest]


def compiled(mask: Mask, pieces: int) -> tuple[int, RegionResult]:
    """(calls of functions, the region)."""
    graph = graph_of(mask, pieces)
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        (region,) = compile_graph(graph, Options(fuse="always", threads=1, target="avx2")).regions
    finally:
        sys.setprofile(before)
    return calls, region


@pytest.mark.parametrize("mask", MASKS, ids=lambda m: m.__name__)
def test_a_mask_in_many_pieces_costs_as_much_as_it_has_nodes(mask: Mask):
    compiled(mask, 3)  # what is made once for all
    few, some, many = (compiled(mask, n)[0] for n in (8, 16, 32))
    # Twice the pieces, twice the calls, and what words may cost at most (conditions.WORK). What doubles with every piece would
    # be 65 000 times as many here.
    assert many - some < 3 * (some - few) + 20 * WORK, (few, some, many)
