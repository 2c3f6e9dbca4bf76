"""What a maximum says: scales that go to it, and differences that are at most zero."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aicf.backends.llvm.codegen.maxima import at_most_zero, fold_scales
from aicf.kernel import Axis, Contract, Kernel, LoadTile, Loop, Map, Parallel, Reduce, Stmt, StoreTile, TensorParam, Tile
from aicf.scalar import Expr, call, const, index, load, var
from tests.kernel.handmade import attention

from .running import execute

pytestmark = pytest.mark.usefixtures("code_path")

S, U, P = (Tile(n, "f32", ("i", "j"), "register") for n in ("s", "u", "p"))
TOP, OLD, NEW, REF = (Tile(n, "f32", ("i",), "register") for n in ("top", "old", "new", "ref"))
Q, K, V, OUT = (
    Tile(n, "f32", axes, "shared") for n, axes in zip("qkvo", (("i", "d"), ("j", "d"), ("j", "e"), ("i", "e")), strict=True)
)
LOW, ZERO = const(-np.inf, "f32"), const(0.0, "f32")


def f(tile: Tile) -> Expr:
    return var(tile.name, "f32")


def times(tile: Tile, c: float) -> Expr:
    return call("mul", f(tile), const(c, "f32"))


PRODUCT = Contract(S, Q, K, "d")
REFERENCE = Map(REF, call("where", call("eq", f(NEW), LOW), ZERO, f(NEW)))
WEIGHT = call("sub", f(U), f(REF))


def softmax(scale: float = 0.5, op: str = "max") -> tuple[Stmt, ...]:
    return (
        PRODUCT,
        Map(U, times(S, scale)),
        Reduce(TOP, op, "j", f(U)),  # type: ignore[arg-type]
        Map(NEW, call(op, f(OLD), f(TOP))),
        REFERENCE,
        Map(P, call("exp", WEIGHT)),
        Map(OLD, f(NEW)),
    )


def folded(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    return fold_scales(Kernel("k", (), (), (), (), body)).body


def written_to(tile: Tile, body: tuple[Stmt, ...]) -> bool:
    return any(isinstance(s, Map) and s.tile == tile for s in body)


def test_a_positive_scale_goes_to_the_maximum():
    body = folded(softmax())
    assert not written_to(U, body)
    assert Reduce(TOP, "max", "j", f(S)) in body and Map(TOP, times(TOP, 0.5)) in body
    assert Map(P, call("exp", call("sub", times(S, 0.5), f(REF)))) in body


@pytest.mark.parametrize("scale", [-0.5, 0.0, float("inf"), float("nan")])
def test_other_scales_stay(scale: float):
    assert folded(softmax(scale)) == softmax(scale)


def test_a_tile_that_is_multiplied_or_summed_stays():
    for other in (Contract(OUT, U, V, "j"), Reduce(TOP, "sum", "j", f(U)), Reduce(TOP, "max", "j", f(U), True), Map(U, f(P))):
        body = (*softmax(), other)
        assert folded(body) == body, other


def test_weights_below_their_maximum_are_at_most_zero():
    known = at_most_zero(softmax())
    assert WEIGHT in known
    assert call("sub", times(S, 0.5), f(REF)) in at_most_zero(folded(softmax()))
    rescale = call("sub", f(OLD), f(REF))
    assert rescale in at_most_zero((*softmax()[:5], Map(P, call("exp", rescale))))


def test_what_is_not_the_maximum_of_the_same_numbers_proves_nothing():
    assert not at_most_zero(softmax(op="min"))
    body = softmax()
    assert not at_most_zero((*body[:3], *body[4:]))  # the reference is an old one
    assert not at_most_zero((*body[:5], Map(U, f(P)), *body[5:]))  # the numbers changed after
    assert not at_most_zero((*body[:5], Map(REF, ZERO), *body[5:]))  # the reference did
    bare = (*body[:4], Map(REF, call("where", call("eq", f(NEW), ZERO), ZERO, f(NEW))), *body[5:])
    assert not at_most_zero(bare)  # another case than -inf is replaced
    assert WEIGHT not in at_most_zero((*body, Map(REF, ZERO), Map(P, call("exp", WEIGHT))))  # it holds at one place only


KERNEL = attention(d=8, dv=12, scale=0.5)


def computed(q: Any, k: Any, v: Any) -> Any:
    return execute(KERNEL, {"Q": q, "K": k, "V": v}, {"B": 1, "H": 1, "N": q.shape[2], "M": k.shape[2]})["O"]


@pytest.mark.parametrize("size", [1.0, 1e3, 1e10, 1e18])
def test_scores_of_any_size(size: float):
    """Against softmax of the same rounded scores: exp of the largest is 1, whatever the scores' size."""
    rng = np.random.default_rng(0)
    q, k = np.ones((1, 1, 9, 8), np.float32), np.zeros((1, 1, 70, 8), np.float32)
    k[0, 0, :, 0] = (rng.standard_normal(70) * size).astype(np.float32)
    v = rng.standard_normal((1, 1, 70, 12)).astype(np.float32)
    assert at_most_zero(fold_scales(KERNEL).body)
    scores = (np.float32(0.5) * k[0, 0, :, 0]).astype(np.float64)
    weights = np.exp(scores - scores.max())
    expected = weights / weights.sum() @ v[0, 0].astype(np.float64)
    np.testing.assert_allclose(computed(q, k, v)[0, 0], np.broadcast_to(expected, (9, 12)), rtol=2e-6, atol=2e-7)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_special_scores(bad: float):
    rng = np.random.default_rng(1)
    q, k = np.ones((1, 1, 9, 8), np.float32), np.zeros((1, 1, 70, 8), np.float32)
    k[0, 0, :, 0] = rng.standard_normal(70).astype(np.float32)
    k[0, 0, 40, 0] = bad
    v = rng.standard_normal((1, 1, 70, 12)).astype(np.float32)
    q[0, 0, :, 1:] = 0
    scores = np.float32(0.5) * k[0, 0, :, 0]
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max())
    expected = (weights / weights.sum()) @ v[0, 0]
    out = computed(q, k, v)[0, 0]
    np.testing.assert_array_equal(np.isnan(out), np.isnan(np.broadcast_to(expected, out.shape)))
    if not np.isnan(expected).any():
        np.testing.assert_allclose(out, np.broadcast_to(expected, out.shape), rtol=1e-5, atol=1e-6)


def weights_of(numbers: Any) -> Any:
    """exp(x - max of the row) of an array [rows, 64], as generated."""
    n, j = index("N"), index("j")
    s, p, top = Tile("s", "f32", ("i", "j"), "register"), Tile("p", "f32", ("i", "j"), "register"), TOP
    body = (
        LoadTile(s, "S", (index("i"), j)),
        Reduce(top, "max", "j", f(s)),
        Map(p, call("exp", call("sub", f(s), f(top)))),
        StoreTile("O", (index("i"), j), ("i", "j"), f(p)),
    )
    assert at_most_zero(body)
    kernel = Kernel(
        "weights",
        (TensorParam("S", "f32", (n, const(64, "i64")), "in", 1), TensorParam("O", "f32", (n, const(64, "i64")), "out", 1)),
        ("N",),
        (),
        (Axis("i", n, 6), Axis("j", const(64, "i64"), 64)),
        (Parallel((Loop(index("i0"), n, 6),), body),),
    )
    return execute(kernel, {"S": numbers}, {"N": len(numbers)})["O"]


def test_weights_are_those_of_float64():
    """Within two roundings, and what the argument's reduction with log2(e) as one f32 takes."""
    x = -np.random.default_rng(0).uniform(0, 87, (500, 64)).astype(np.float32)
    x[::2] *= np.float32(0.05)
    x[:, 0] = 0.0
    found, exact = weights_of(x).astype(np.float64), np.exp(x.astype(np.float64))
    assert (np.abs(found / exact - 1) <= 2 * 2.0**-23 + 1.4e-8 * np.abs(x)).all()
    assert (found[:, 0] == 1).all()


def test_weights_of_nothing_are_zero_and_nan_stays():
    x = np.zeros((7, 64), np.float32)
    x[:, 1:6] = [-np.inf, np.finfo(np.float32).min, -1e30, -104.0, -88.1]
    x[1, 9] = np.nan
    x[2, 9] = np.array([0xFFFFFFFF], np.uint32).view(np.float32)[0]
    x[3] = -np.inf
    found = weights_of(x)
    for row in (0, 4, 5, 6):
        assert (found[row, 1:6] == 0).all() and (np.delete(found[row], range(1, 6)) == 1).all()
    for row in (1, 2, 3):
        assert np.isnan(found[row]).all()  # their maximum is NaN, or -inf less itself
    x = np.linspace(-88.1, -86.9, 640, dtype=np.float32).reshape(10, 64)
    x[:, 0] = 0.0
    found = weights_of(x)[:, 1:]
    assert (found >= 0).all() and (found <= 1.1 * np.exp(-86.9)).all()
    assert (found[x[:, 1:] > -87.3] > 0).all()


def test_a_product_by_a_power_of_two_is_exact_in_a_sum():
    """Whether it is computed by itself or within the sum."""
    n, i = index("N"), index("i")
    x = np.random.default_rng(1).standard_normal(640).astype(np.float32) * np.float32(1e3)
    y = np.random.default_rng(2).standard_normal(640).astype(np.float32)
    a, b = load("X", (i,), "f32"), load("Y", (i,), "f32")
    for scale in (0.125, 1.0, 0.3):
        product = call("mul", a, const(scale, "f32"))
        cases = {
            "add": x * np.float32(scale) + y,
            "sub": x * np.float32(scale) - y,
        }
        for name, expected in cases.items():
            expr = call(name, product, b)
            kernel = Kernel(
                "sum",
                tuple(TensorParam(t, "f32", (n,), "out" if t == "O" else "in", 0) for t in "XYO"),
                ("N",),
                (),
                (Axis("i", n, 64),),
                (Parallel((Loop(index("i0"), n, 64),), (StoreTile("O", (i,), ("i",), expr),)),),
            )
            assert (execute(kernel, {"X": x, "Y": y}, {"N": 640})["O"] == expected).all()
            swapped = execute(
                Kernel(
                    "swapped", kernel.tensors, ("N",), (), kernel.axes,
                    (Parallel((Loop(index("i0"), n, 64),), (StoreTile("O", (i,), ("i",), call(name, b, product)),)),),
                ),
                {"X": x, "Y": y}, {"N": 640},
            )["O"]  # fmt: skip
            assert (swapped == (expected if name == "add" else -expected)).all()
