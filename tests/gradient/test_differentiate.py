"""Derived gradients against PyTorch's autograd, and what they save and read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from aicf.driver import Options, compile_graph
from aicf.gradient import NotDifferentiable, TooLarge, differentiate, planned
from aicf.scalar import DType
from aicf.semantic import GraphBuilder, Node, run_graph
from tests.contract import assert_contract

Shapes = Sequence[tuple[int, ...]]
Build = Callable[..., Node]
Plain = Callable[..., torch.Tensor]


def swapped(b: GraphBuilder, x: Node) -> Node:
    return b.permute(x, (*range(x.type.rank - 2), x.type.rank - 1, x.type.rank - 2))


def graph_of(make: Build, shapes: Shapes, dtype: DType = "f32") -> tuple[list[Node], Node]:
    b = GraphBuilder(share=True)
    inputs = [b.input(f"x{k}", dtype, s) for k, s in enumerate(shapes)]
    return inputs, make(b, *inputs)


def check(make: Build, plain: Plain, shapes: Shapes, *, positive: bool = False, free: bool = False) -> None:
    """Runs the derived forward and backward with NumPy and holds output and gradients against the contract."""
    inputs, output = graph_of(make, shapes)
    gradient = differentiate(inputs, [output], range(len(inputs)), free)
    random = np.random.default_rng(len(shapes))
    values = [random.standard_normal(s).astype(np.float32) for s in shapes]
    values = [np.abs(x) + np.float32(0.5) for x in values] if positive else values
    expected: list[list[Any]] = []
    cotangent: Any = None
    for dtype in (torch.float32, torch.float64):
        given = [torch.from_numpy(x).to(dtype).requires_grad_() for x in values]
        y = plain(*given)
        if cotangent is None:
            cotangent = random.standard_normal(y.shape).astype(np.float32)
        y.backward(torch.from_numpy(np.asarray(cotangent)).to(dtype))
        expected.append([y, *(torch.zeros_like(x) if x.grad is None else x.grad for x in given)])
    made, *saved = run_graph(gradient.forward, values)
    given, found = [*values, *saved, cotangent], list[Any]()
    for graph in gradient.backward:
        found = run_graph(graph, given)
        given += found
    for k, (got, one, best) in enumerate(zip([made, *found], *expected, strict=True)):
        assert_contract(got, one.detach(), best.detach(), "f32", f"tensor {k}")


# ------------------------------------------------------------------------------------------------ rows of the table

UNARY: list[tuple[str, Plain, bool]] = [
    ("neg", torch.neg, False), ("abs", torch.abs, False), ("exp", torch.exp, False), ("exp2", torch.exp2, False),
    ("expm1", torch.expm1, False), ("log", torch.log, True), ("log2", torch.log2, True), ("log1p", torch.log1p, True),
    ("sqrt", torch.sqrt, True), ("rsqrt", torch.rsqrt, True), ("tanh", torch.tanh, False), ("sigmoid", torch.sigmoid, False),
    ("softplus", torch.nn.functional.softplus, False), ("erf", torch.erf, False), ("sin", torch.sin, False),
    ("cos", torch.cos, False), ("floor", torch.floor, False), ("sign", torch.sign, False),
]  # fmt: skip


@pytest.mark.parametrize("name, plain, positive", UNARY, ids=[u[0] for u in UNARY])
def test_functions_of_one_number(name: str, plain: Plain, positive: bool) -> None:
    check(lambda b, x: b.op(name, x), plain, [(3, 50)], positive=positive)


BINARY: list[tuple[str, Plain]] = [
    ("add", torch.add), ("sub", torch.sub), ("mul", torch.mul), ("div", torch.div), ("max", torch.maximum),
    ("min", torch.minimum),
]  # fmt: skip


@pytest.mark.parametrize("name, plain", BINARY, ids=[x[0] for x in BINARY])
@pytest.mark.parametrize("other", [(4, 1, 30), (30,), (1, 5, 1)], ids=str)
def test_functions_of_two_numbers_where_one_is_repeated(name: str, plain: Plain, other: tuple[int, ...]) -> None:
    try:
        check(lambda b, x, y: b.op(name, x, y), plain, [(4, 5, 30), other], positive=True)
    except NotDifferentiable as no:
        assert "all pairs share" in str(no)


def test_powers_and_choices() -> None:
    check(lambda b, x: b.op("pow", x, 3.0), lambda x: x**3, [(3, 20)])

    def make(b: GraphBuilder, x: Node, y: Node) -> Node:
        return b.op("where", b.op("gt", x, y), b.op("mul", x, x), b.op("exp", y))

    check(make, lambda x, y: torch.where(x > y, x * x, y.exp()), [(3, 20), (3, 20)])


VIEWS: list[tuple[Build, Plain]] = [
    (lambda b, x: b.reshape(x, (6, 20)), lambda x: x.reshape(6, 20)),
    (lambda b, x: b.permute(x, (2, 0, 1)), lambda x: x.permute(2, 0, 1)),
    (lambda b, x: b.expand(b.reshape(x, (3, 1, 4, 10)), (3, 2, 4, 10)), lambda x: x[:, None].expand(3, 2, 4, 10)),
    (lambda b, x: b.slice(x, (1, 0, 2), (2, 4, 5)), lambda x: x[1:3, :, 2:7]),
    (lambda b, x: b.slice(x, (0, 0, 9), (3, 4, 10), (1, 1, -1)), lambda x: x.flip(-1)),
    (lambda b, x: b.op("concat", x, b.op("mul", x, 2.0), axis=1), lambda x: torch.cat([x, x * 2], 1)),
    (
        lambda b, x: b.op("softmax", b.op("mul", x, 2.0), axis=1),
        lambda x: (x * 2).softmax(1),
    ),
    (lambda b, x: b.op("log_softmax", x, axis=-1), lambda x: x.log_softmax(-1)),
    (lambda b, x: b.op("logsumexp", x, axis=2, keepdims=False), lambda x: x.logsumexp(2)),
    (lambda b, x: b.reduce("sum", b.op("mul", x, x), [2]), lambda x: (x * x).sum(2)),
    (lambda b, x: b.reduce("sum", b.op("exp", x), [0], keepdims=True), lambda x: x.exp().sum(0, keepdim=True)),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(VIEWS)))
def test_views_and_reductions(number: int) -> None:
    make, plain = VIEWS[number]
    check(lambda b, x: b.op("sin", make(b, b.op("mul", x, x))), lambda x: plain(x * x).sin(), [(3, 4, 10)])


@pytest.mark.parametrize(
    "left, right", [((2, 5, 6), (2, 6, 7)), ((2, 5, 6), (6, 7)), ((1, 5, 6), (3, 6, 7)), ((5, 6), (3, 6, 7))]
)
def test_products(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    check(lambda b, x, y: b.op("matmul", x, y), torch.matmul, [left, right])


@pytest.mark.parametrize("equation", ["bid,bjd->bij", "bid,bjd->ijb", "bij,bjd->bid", "bid,jd->bij", "bid,bjd->bi"])
def test_einsums(equation: str) -> None:
    sizes = {"b": 2, "i": 5, "j": 6, "d": 7}
    terms, output = equation.split("->")
    shapes = [tuple(sizes[x] for x in t) for t in terms.split(",")]
    check(
        lambda b, x, y: b.einsum(terms.split(","), output, x, y),
        lambda x, y: torch.einsum(equation, x, y),
        shapes,
    )


# ------------------------------------------------------------------------------------------------ attention


def attention(b: GraphBuilder, q: Node, k: Node, v: Node) -> Node:
    scores = b.op("mul", b.op("matmul", q, swapped(b, k)), 0.25)
    return b.op("matmul", b.op("softmax", scores, axis=-1), v)


def written_out(b: GraphBuilder, q: Node, k: Node, v: Node) -> Node:
    scores = b.op("mul", b.op("matmul", q, swapped(b, k)), 0.25)
    e = b.op("exp", b.op("sub", scores, b.reduce("max", scores, [-1], keepdims=True)))
    return b.op("matmul", b.op("div", e, b.reduce("sum", e, [-1], keepdims=True)), v)


def normalised_last(b: GraphBuilder, q: Node, k: Node, v: Node) -> Node:
    scores = b.op("mul", b.op("matmul", q, swapped(b, k)), 0.25)
    e = b.op("exp", b.op("sub", scores, b.reduce("max", scores, [-1], keepdims=True)))
    return b.op("div", b.op("matmul", e, v), b.reduce("sum", e, [-1], keepdims=True))


SHAPES = [(2, 70, 16), (2, 50, 16), (2, 50, 24)]


@pytest.mark.parametrize("make", [attention, written_out, normalised_last])
def test_attention_saves_numbers_per_row_and_needs_no_scores(make: Build) -> None:
    check(make, lambda q, k, v: (q @ k.mT / 4).softmax(-1) @ v, SHAPES, free=True)
    inputs, output = graph_of(make, SHAPES)
    gradient = differentiate(inputs, [output], (0, 1, 2), True)
    rows = 2 * 70
    assert all(np.prod([d.value for d in n.type.shape]) <= rows * 24 for n in gradient.saved)  # type: ignore[attr-defined]
    centred = [] if make is normalised_last else [1]  # D2, in f32
    counts: list[int] = []
    for graph in (gradient.forward, *gradient.backward):
        made = compile_graph(graph, Options(fuse="always", threads=1), all_reductions=True)
        regions = [r for r in made.regions if r.status == "streamed"]
        plan = planned(graph, regions, 2 * 70 * 50, {}, [output])  # raises for a tensor of the size of the scores
        counts.append(len(regions))
        # Beside the regions there is D = rowsum(dO * O) and what divides by the row's sum: nothing sums over keys.
        assert not any(n.op == "matmul" for n in plan.single)
    assert counts == [1, *centred, 2]


@pytest.mark.parametrize("make", [attention, written_out])
def test_weights_of_one_key_leave_nothing(make: Build) -> None:
    """Where one key has all of a row's weight, gradients of scores cancel as exactly as in the source."""
    peaked: Build = lambda b, q, k, v: make(b, b.op("mul", q, 12.0), k, v)  # noqa: E731
    check(peaked, lambda q, k, v: (12 * q @ k.mT / 4).softmax(-1) @ v, SHAPES, free=True)


def test_halves_are_centred_once() -> None:
    inputs, output = graph_of(attention, SHAPES, "bf16")
    assert len(differentiate(inputs, [output], (0, 1, 2)).backward) == 1


def test_a_maximum_that_is_a_result_has_no_gradient_here() -> None:
    def make(b: GraphBuilder, q: Node, k: Node) -> Node:
        return b.reduce("max", b.op("matmul", q, swapped(b, k)), [-1])

    inputs, output = graph_of(make, SHAPES[:2])
    with pytest.raises(NotDifferentiable, match="max over an axis"):
        differentiate(inputs, [output], (0, 1))


def test_only_what_is_wanted_is_derived() -> None:
    inputs, output = graph_of(attention, SHAPES)
    assert len(differentiate(inputs, [output], (2,)).backward[-1].outputs) == 1
    table = GraphBuilder()
    x, at = table.input("x", "f32", (9, 4)), table.input("at", "i64", (5,))
    taken = table.op("take", x, at, axes=(0,), position=0)
    y = table.input("y", "f32", (5, 4))
    output = table.op("mul", taken, y)
    differentiate([x, at, y], [output], (2,))
    with pytest.raises(NotDifferentiable, match="take"):
        differentiate([x, at, y], [output], (0,))


def test_a_gradient_as_large_as_the_scores_is_not_planned() -> None:
    def make(b: GraphBuilder, q: Node, k: Node, v: Node, bias: Node) -> Node:
        scores = b.op("add", b.op("matmul", q, swapped(b, k)), bias)
        return b.op("matmul", b.op("softmax", scores, axis=-1), v)

    inputs, output = graph_of(make, [*SHAPES, (2, 70, 50)])
    backward = differentiate(inputs, [output], (0, 3)).backward[-1]
    regions = [r for r in compile_graph(backward, Options(fuse="always", threads=1)).regions if r.status == "streamed"]
    with pytest.raises(TooLarge, match="size of the scores"):
        planned(backward, regions, 2 * 70 * 50, {}, [output])
