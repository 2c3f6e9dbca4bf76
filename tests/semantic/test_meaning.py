"""Every op's two meanings agree: the scalar meaning, evaluated at every index, is the NumPy meaning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aicf.scalar import FUNCTIONS, Expr, Load, Var, const, evaluate, size
from aicf.semantic import OPS, Graph, GraphBuilder, run_graph
from aicf.streaming.pull import Puller, output_index


def by_elements(graph: Graph, values: list[np.ndarray]) -> np.ndarray:
    """The graph's output from its scalar meaning, all the way down to the inputs."""
    (out,) = graph.outputs
    at, known = output_index(out)
    puller = Puller(cut=lambda node, at: False)
    puller.extents.update(known)
    element = puller.pull(out, at)
    shape = [int(d.value) for d in out.type.shape]  # type: ignore[union-attr]
    grid = np.meshgrid(*(np.arange(n) for n in shape), indexing="ij", sparse=True)
    # A dim of one element is indexed by 0, without a variable.
    env = {v.name: g for v, g in zip(at, grid, strict=True) if isinstance(v, Var)}
    tensors = {n.name: v for n, v in zip(graph.inputs, values, strict=True)}
    tensors |= {n.name: np.asarray(n.attrs["value"]) for n in puller.loads.values() if n.op == "constant"}

    def read(node: Load, where: tuple[Any, ...]) -> Any:  # an element that `where` or `pad` does not select may be out of range
        t = tensors[node.tensor]
        inside = tuple(np.clip(w, 0, max(n - 1, 0)) for w, n in zip(where, t.shape, strict=True))
        return t[inside]

    return np.broadcast_to(evaluate(element, env, tensors, read=read), shape)


def check(make: Callable[[GraphBuilder], None], *shapes: tuple[int, ...], dtype: str = "f32", whole: bool = False) -> None:
    rng = np.random.default_rng(0)
    b = GraphBuilder()
    values = []
    for k, s in enumerate(shapes):
        b.input(f"x{k}", dtype, s)  # type: ignore[arg-type]
        v = rng.integers(-5, 6, s) if whole or dtype[0] == "i" else rng.standard_normal(s)
        values.append(v.astype({"f32": np.float32, "f16": np.float16, "i64": np.int64, "bool": np.bool_}[dtype]))
    make(b)
    want = np.asarray(run_graph(b.graph, values)[0])
    got = by_elements(b.graph, values)
    assert got.shape == want.shape
    if want.dtype.kind in "biu":
        np.testing.assert_array_equal(got, want)
    else:
        # Sums are added up in another order: a few roundings of the largest partial sum.
        eps = np.finfo(want.dtype).eps
        np.testing.assert_allclose(got, want, rtol=16 * eps, atol=16 * eps)


FLOATS = sorted(n for n, f in FUNCTIONS.items() if f.kind not in ("logic",))


@pytest.mark.parametrize("name", FLOATS)
def test_elementwise(name: str) -> None:
    arity = FUNCTIONS[name].arity

    def make(b: GraphBuilder) -> None:
        args = b.graph.inputs
        if name == "where":
            args = [b.op("gt", args[0], 0.0), args[1], args[2]]
        b.output(b.op(name, *args))

    with np.errstate(all="ignore"):
        check(make, *[(3, 4), (4,), (3, 1)][:arity])


@pytest.mark.parametrize("name", ["and", "or", "xor", "not"])
def test_logic(name: str) -> None:
    check(lambda b: b.output(b.op(name, *b.graph.inputs)) and None, *[(3, 4), (4,)][: FUNCTIONS[name].arity], dtype="bool")
    check(lambda b: b.output(b.op(name, *b.graph.inputs)) and None, *[(3, 4), (4,)][: FUNCTIONS[name].arity], dtype="i64")


VIEWS: dict[str, tuple[Callable[[GraphBuilder], None], tuple[tuple[int, ...], ...]]] = {
    "reshape_split": (lambda b: b.output(b.reshape(b.graph.inputs[0], (2, 3, 2, 5))) and None, ((6, 10),)),
    "reshape_merge": (lambda b: b.output(b.reshape(b.graph.inputs[0], (6, 5))) and None, ((2, 3, 5),)),
    "reshape_across": (lambda b: b.output(b.reshape(b.graph.inputs[0], (4, 9))) and None, ((6, 6),)),
    "reshape_ones": (lambda b: b.output(b.reshape(b.graph.inputs[0], (1, 6, 1, 5, 1))) and None, ((2, 3, 5),)),
    "permute": (lambda b: b.output(b.permute(b.graph.inputs[0], (2, 0, 1))) and None, ((2, 3, 5),)),
    "expand": (lambda b: b.output(b.expand(b.graph.inputs[0], (4, 3, 5))) and None, ((3, 1),)),
    "slice": (lambda b: b.output(b.slice(b.graph.inputs[0], (1, 5), (2, 3), (1, -2))) and None, ((4, 6),)),
    "concat": (lambda b: b.output(b.op("concat", *b.graph.inputs, axis=1)) and None, ((2, 3), (2, 1), (2, 4))),
    "pad": (
        lambda b: b.output(
            b.op("pad", b.graph.inputs[0], low=(size(1), size(-1)), high=(size(0), size(2)), value=0.5)
        ) and None,
        ((2, 3),),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VIEWS)
def test_views(name: str) -> None:
    make, shapes = VIEWS[name]
    check(make, *shapes)


@pytest.mark.parametrize("op", ["sum", "max", "min", "prod"])
@pytest.mark.parametrize("axes", [(0,), (-1,), (0, 2)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reduce(op: str, axes: tuple[int, ...], keepdims: bool) -> None:
    check(lambda b: b.output(b.reduce(op, b.graph.inputs[0], axes, keepdims)) and None, (2, 3, 4))


@pytest.mark.parametrize("op", ["any", "all"])
def test_reduce_bool(op: str) -> None:
    check(lambda b: b.output(b.reduce(op, b.graph.inputs[0], (1,))) and None, (3, 2), dtype="bool")


@pytest.mark.parametrize("shapes", [((3, 4), (4, 5)), ((2, 1, 3, 4), (5, 4, 2)), ((1, 4), (4, 1))])
def test_matmul(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    check(lambda b: b.output(b.op("matmul", *b.graph.inputs)) and None, *shapes)


@pytest.mark.parametrize("equation", ["bid,bjd->bij", "ij,jk->ik", "bij->bi", "i,j->ij", "bhid,bhjd->bij", "ij->ji"])
def test_einsum(equation: str) -> None:
    left, out = equation.split("->")
    extents = {"b": 2, "h": 2, "i": 3, "j": 4, "k": 2, "d": 5}
    terms = left.split(",")
    check(lambda b: b.output(b.einsum(terms, out, *b.graph.inputs)) and None, *(tuple(extents[x] for x in t) for t in terms))


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax(op: str, axis: int) -> None:
    check(lambda b: b.output(b.op(op, b.graph.inputs[0], axis=axis)) and None, (2, 3, 4))


@pytest.mark.parametrize("keepdims", [False, True])
def test_logsumexp(keepdims: bool) -> None:
    check(lambda b: b.output(b.op("logsumexp", b.graph.inputs[0], axis=1, keepdims=keepdims)) and None, (2, 3, 4))


def test_logsumexp_of_infinities() -> None:
    b = GraphBuilder()
    b.input("x", "f32", (3, 2))
    b.output(b.op("logsumexp", b.graph.inputs[0], axis=1, keepdims=False))
    x = np.array([[-np.inf, -np.inf], [np.inf, 0], [-np.inf, 1]], np.float32)
    np.testing.assert_array_equal(run_graph(b.graph, [x])[0], by_elements(b.graph, [x]))


def test_take_and_gather() -> None:
    rng = np.random.default_rng(1)
    data = rng.standard_normal((5, 3)).astype(np.float32)
    where = np.array([[0, 4], [-1, 2]])
    b = GraphBuilder()
    table, idx = b.input("table", "f32", (5, 3)), b.input("idx", "i64", (2, 2))
    b.output(b.op("take", table, idx, axes=(0,), position=0))
    np.testing.assert_array_equal(run_graph(b.graph, [data, where])[0], data[where])
    np.testing.assert_array_equal(by_elements(b.graph, [data, where]), data[where])
    b = GraphBuilder()
    table, idx = b.input("table", "f32", (5, 3)), b.input("idx", "i64", (5, 2))
    b.output(b.op("gather", table, idx, axis=1))
    where = rng.integers(0, 3, (5, 2))
    np.testing.assert_array_equal(run_graph(b.graph, [data, where])[0], np.take_along_axis(data, where, 1))
    np.testing.assert_array_equal(by_elements(b.graph, [data, where]), np.take_along_axis(data, where, 1))


def test_sources() -> None:
    b = GraphBuilder()
    b.output(b.op("mul", b.op("add", b.iota(4), b.constant(2, "i64")), b.scalar(size(3))))
    np.testing.assert_array_equal(run_graph(b.graph, [])[0], (np.arange(4) + 2) * 3)
    np.testing.assert_array_equal(by_elements(b.graph, []), (np.arange(4) + 2) * 3)
    b = GraphBuilder()
    b.output(b.constant(np.array([1.5, 2.5]), "f32"))
    np.testing.assert_array_equal(by_elements(b.graph, []), np.array([1.5, 2.5]))


def test_every_op_is_tested() -> None:
    views = {"reshape", "permute", "expand", "slice", "concat", "pad", "take", "gather", "cast"}
    sources = {"input", "constant", "scalar", "iota"}
    sums = {"reduce", "matmul", "einsum", "softmax", "log_softmax", "logsumexp"}
    here = set(FUNCTIONS) | views | sources | sums
    assert set(OPS) == here


def test_halves_round_after_every_op() -> None:
    check(lambda b: b.output(b.op("mul", b.op("add", *b.graph.inputs), 3.0)) and None, (4, 4), (4,), dtype="f16")
    e: Expr = const(65504.0, "f16")
    assert e.dtype == "f16"
