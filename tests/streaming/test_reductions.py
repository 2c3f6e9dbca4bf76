"""Regions without values: reductions over an axis of scores, weights among the operands; and what is left alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from aicf.driver import LARGE, Options, compile_graph
from aicf.scalar import MONOIDS, DType, integer
from aicf.semantic import GraphBuilder, Node
from aicf.semantic.types import product as elements

from .regions import Build, check, compiled, graph_of, random_inputs, streamed

H, N, M, D = 2, 70, 50, 16
Reduced = Callable[[GraphBuilder, Node], list[Node]]


def of_scores(reduced: Reduced, n: int = N, m: int = M, d: int = D) -> Build:
    def make(b: GraphBuilder, dtype: DType) -> list[Node]:
        q, k = b.input("q", dtype, (H, n, d)), b.input("k", dtype, (H, m, d))
        return reduced(b, b.op("matmul", q, b.permute(k, (0, 2, 1))))

    return make


def lse(b: GraphBuilder, s: Node, axis: int = -1) -> Node:
    return b.op("logsumexp", s, axis=axis, keepdims=False)


KINDS: dict[str, Reduced] = {
    "max": lambda b, s: [b.reduce("max", s, [-1])],
    "min of a function": lambda b, s: [b.reduce("min", b.op("tanh", b.op("mul", s, 0.1)), [-1])],
    "log-sum-exp": lambda b, s: [lse(b, s)],
    "sum of exponentials": lambda b, s: [b.reduce("sum", b.op("exp", b.op("mul", s, 0.1)), [-1])],
    "any": lambda b, s: [b.reduce("any", b.op("gt", s, 11.0), [-1])],
    "all": lambda b, s: [b.reduce("all", b.op("gt", s, -9.0), [-1])],
    "count": lambda b, s: [b.reduce("sum", b.op("gt", s, 3.0), [-1])],
    "in halves": lambda b, s: [b.reduce("max", b.cast(s, "f16"), [-1])],
    "with its axis": lambda b, s: [b.reduce("max", s, [-1], keepdims=True)],
    "over the rows": lambda b, s: [b.reduce("max", s, [-2])],
    "spread": lambda b, s: [b.op("sub", b.reduce("max", s, [-1]), b.reduce("min", s, [-1]))],
    "entropy": lambda b, s: [
        b.op("neg", b.reduce("sum", b.op("mul", b.op("softmax", s, axis=-1), b.op("log_softmax", s, axis=-1)), [-1]))
    ],
}


def no_scores(existed: Sequence[Sequence[Node]]) -> bool:
    return not any(integer(elements(n.type.shape), {}) >= H * N * M for nodes in existed for n in nodes)


@pytest.mark.parametrize("kind", KINDS)
def test_reductions_of_scores_stream(kind: str) -> None:
    made, existed = check(of_scores(KINDS[kind]))
    assert made.regions and all(r.status == "streamed" and r.kind == "reduction" for r in made.regions)
    assert no_scores(existed)


def test_several_reductions_are_one_region() -> None:
    def several(b: GraphBuilder, s: Node) -> list[Node]:
        return [f(b, s)[0] for f in (KINDS["max"], KINDS["log-sum-exp"], KINDS["count"], KINDS["any"], KINDS["all"])]

    made, existed = check(of_scores(several))
    assert [len(names) for names in streamed(made)] == [5] and no_scores(existed)


def test_reductions_along_both_axes_are_two_regions() -> None:
    made, existed = check(of_scores(lambda b, s: [lse(b, s), lse(b, s, -2)]))
    assert len(streamed(made)) == 2 and no_scores(existed)


def test_weights_are_operands_like_others() -> None:
    """The log-probability of what follows, and the likeliest one's, of hidden states and a vocabulary's weights."""

    def make(b: GraphBuilder, dtype: DType) -> list[Node]:
        x, w = b.input("x", dtype, (N, D)), b.input("w", dtype, (300, D))
        logits = b.op("add", b.op("matmul", x, b.permute(w, (1, 0))), b.input("bias", dtype, (300,)))
        return [b.reduce("max", b.op("log_softmax", logits, axis=-1), [-1]), lse(b, logits)]

    given = random_inputs(graph_of(make))
    made = compile_graph(graph_of(make), Options(fuse="always", threads=1))
    weights = [n for n in made.graph.inputs if n.name in ("w", "bias")]
    made = compile_graph(made.graph, Options(fuse="always", threads=1), parameters=weights)
    assert [r.kind for r in made.regions] == ["reduction"]
    check(make, given)


def test_special_values() -> None:
    """Rows of -inf, infinities and NaN."""
    make = of_scores(lambda b, s: [f(b, s)[0] for f in (KINDS["max"], KINDS["min of a function"], KINDS["log-sum-exp"])])
    q, k = random_inputs(graph_of(make))
    q[0, 3], q[0, 5, 2], q[1, 7] = 0, np.nan, 0
    q[0, 3, 1], q[1, 7, 0], k[:, :, 1] = -np.inf, np.inf, np.abs(k[:, :, 1])
    check(make, [q, k])


def test_an_attention_whose_scores_are_reduced_along_the_other_axis_as_well() -> None:
    """The reduction is a region of its own, so that neither needs the scores."""

    def make(b: GraphBuilder, dtype: DType) -> list[Node]:
        q, k, v = (b.input(x, dtype, (H, n, D)) for x, n in (("q", N), ("k", M), ("v", M)))
        s = b.op("mul", b.op("matmul", q, b.permute(k, (0, 2, 1))), 0.25)
        return [b.op("matmul", b.op("softmax", s, axis=-1), v), b.reduce("max", s, [-2])]

    made, existed = check(make, fuse="auto")
    assert sorted(r.kind for r in made.regions) == ["attention", "reduction"] and no_scores(existed)


LEFT: dict[str, Build] = {
    "the scores are returned": of_scores(lambda b, s: [s, b.reduce("max", s, [-1])]),
    "a product": of_scores(lambda b, s: [b.reduce("prod", b.op("sigmoid", s), [-1])]),
    "statistics of features": of_scores(lambda b, s: [b.reduce("max", s, [-1])], d=64),
}


@pytest.mark.parametrize("why", LEFT)
def test_what_is_no_large_intermediate_that_is_only_reduced_is_left_alone(why: str) -> None:
    assert compiled(LEFT[why]).regions == []


def test_small_scores_are_left_alone_unless_asked_for() -> None:
    make = of_scores(KINDS["max"])
    assert compiled(make, fuse="auto").regions == [] and len(compiled(make).regions) == 1
    large = compiled(of_scores(KINDS["log-sum-exp"], 1024, 2048, 64), fuse="auto")
    assert 2 * 4 * H * 1024 * 2048 >= LARGE and [r.status for r in large.regions] == ["streamed"]


# ------------------------------------------------------------------------------------------------ the table


@pytest.mark.parametrize("op", MONOIDS)
@pytest.mark.parametrize("dtype", ["f32", "f16", "i64", "i32", "u8", "bool"])
def test_the_identity_of_each_row_is_one(op: str, dtype: DType) -> None:
    from aicf.scalar import call, const

    if dtype == "bool" and op in ("sum", "prod", "max", "min"):
        return
    row = MONOIDS[op]
    for value in (0, 1) if dtype in ("bool", "u8") or op in ("any", "all") else (-3, 0, 5):
        x = const(value, dtype if op not in ("any", "all") else "bool")
        unit = row.nothing(x.dtype)
        assert call(row.combine, x, unit) is x and call(row.combine, unit, x) is x
