"""The facts in the table of functions: each one is compared with what the function computes, and a new row is enough for all that
reads them."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from aicf.scalar import (
    FUNCTIONS,
    Call,
    Expr,
    Function,
    call,
    cast,
    const,
    evaluate,
    index,
    integer_const,
    load,
    partial_derivatives,
    var,
)
from aicf.scalar.expr import raw
from aicf.scalar.ranges import Spans, span
from aicf.streaming import tiles
from aicf.streaming.context import Context, positive
from aicf.streaming.extrema import extremum

ROWS = [f for f in FUNCTIONS.values() if f.kind in ("arithmetic", "float", "select") and f.name != "inside"]
STEPS = {"floordiv", "floor", "ceil", "trunc", "round", "sign"}
POINTS = np.array([-2.3, -1.2, -0.7, -0.3, 0.2, 0.45, 0.8, 1.3, 2.6])
ENDS = np.array([-math.inf, -1e30, -50.0, -3.0, -0.5, -1e-3, 0.0, 1e-3, 0.5, 3.0, 50.0, 1e30, math.inf], np.float32)


@pytest.mark.parametrize("f", ROWS, ids=lambda f: f.name)
def test_derivatives_are_those_of_differences(f: Function) -> None:
    """Central differences in float64, at points where the function is defined and smooth."""
    types: list[Any] = ["bool", "f64", "f64"] if f.name == "where" else ["f64"] * f.arity
    e = call(f.name, *(var(f"x{k}", t) for k, t in enumerate(types)))
    assert isinstance(e, Call)
    partial = partial_derivatives(e)
    if f.name in STEPS:
        assert partial == (None,) * f.arity
        return
    compared = 0
    for values in itertools.product(*([False, True] if t == "bool" else POINTS for t in types)):
        at = {f"x{k}": v for k, v in enumerate(values)}
        if np.isnan(evaluate(e, at)) or (f.name in ("max", "min", "mod") and _near_a_kink(f.name, *values)):
            continue
        for k, d in enumerate(partial):
            if d is None:
                assert types[k] == "bool"
                continue
            h = 1e-5
            sides = [float(evaluate(e, {**at, f"x{k}": values[k] + s * h})) for s in (-1, 1)]
            slope = (sides[1] - sides[0]) / (2 * h)
            if math.isnan(slope):
                continue
            got = float(evaluate(d, at))
            # The error of central differences: h² times the third derivative, and what is lost in the subtraction.
            assert abs(got - slope) <= 1e-6 * max(1.0, abs(slope), abs(sides[0])), (at, k)
            compared += 1
    assert compared >= 4


def _near_a_kink(fn: str, a: float, b: float) -> bool:
    return abs(a - b) < 1e-3 if fn != "mod" else abs(a / b - round(a / b)) < 1e-3


def test_derivatives_at_ties_and_kinks_are_those_of_pytorch() -> None:
    x, y = var("x", "f64"), var("y", "f64")

    def at(e: Expr, a: float, b: float = 0.0) -> list[float]:
        assert isinstance(e, Call)
        return [float(evaluate(d, {"x": a, "y": b})) for d in partial_derivatives(e) if d is not None]

    assert at(call("max", x, y), 2.0, 2.0) == at(call("min", x, y), 2.0, 2.0) == [0.5, 0.5]
    assert at(call("max", x, y), 1.0, 2.0) == [0.0, 1.0] and at(call("min", x, y), 1.0, 2.0) == [1.0, 0.0]
    assert at(call("abs", x), 0.0) == [0.0]
    assert at(call("pow", x, y), 0.0, 0.0) == [0.0, 0.0] and at(call("pow", x, y), 0.0, 2.0) == [0.0, 0.0]
    assert at(call("pow", x, const(2.0, "f64")), 3.0)[0] == 6.0
    rounded = cast(x, "f32")
    assert isinstance(rounded, Call) and at(rounded, 3.0) == [1.0]
    whole = call("mul", index("i"), index("j"))
    assert isinstance(whole, Call) and partial_derivatives(whole) == (None, None)


@pytest.mark.parametrize("f", [f for f in FUNCTIONS.values() if f.monotone], ids=lambda f: f.name)
def test_monotone_functions_are(f: Function) -> None:
    with np.errstate(all="ignore"):
        inside = np.asarray(f.numpy(ENDS[f.domain <= ENDS]), np.float64)
        outside = f.numpy(ENDS[f.domain > ENDS])
    assert np.all(inside[1:] >= inside[:-1]) if f.monotone > 0 else np.all(inside[1:] <= inside[:-1])
    assert np.all(np.isnan(outside))


@pytest.mark.parametrize("f", [f for f in FUNCTIONS.values() if f.sign], ids=lambda f: f.name)
def test_signs_are_as_said(f: Function) -> None:
    numbers = np.array([-3.0, -0.5, 1e-3, 0.5, 3.0], np.float32)
    for values in itertools.product(numbers, repeat=f.arity):
        known = [v > 0 for v in values]
        if f.sign == "positive" or (any(known) if f.sign == "of any" else all(known)):
            assert f.numpy(*values) > 0, values


@pytest.mark.parametrize("f", [f for f in ROWS if f.arity == 2], ids=lambda f: f.name)
def test_what_infinite_operands_make_is_as_said(f: Function) -> None:
    """-inf is a mask's; beside a number that is not 0 it makes NaN only where nothing is said."""
    with np.errstate(all="ignore"):
        beside = [f.numpy(a, b) for x in (-2.0, 0.5, 3.0) for a, b in ((-np.inf, np.float64(x)), (np.float64(x), -np.inf))]
        if f.infinite:
            assert not np.any(np.isnan(beside))
        if f.infinite == "kept":
            assert not np.isnan(f.numpy(-np.inf, 0.0)) and not np.isnan(f.numpy(-np.inf, -np.inf))


@pytest.mark.parametrize("f", [f for f in FUNCTIONS.values() if f.interval or f.monotone], ids=lambda f: f.name)
def test_bounds_hold_all_values_and_reach_them(f: Function) -> None:
    """Over integers, for pairs of small intervals: nothing lies outside, and intervals of one number give one number."""
    if f.kind == "float":
        pytest.skip("no integers")
    names = [f"x{k}" for k in range(f.arity)]
    e = raw(f.name, tuple(index(n) for n in names), "i64")
    ends = [(a, b) for a in range(-4, 6) for b in range(a, 6)]
    known = 0
    for operands in itertools.product(ends[:: 1 if f.arity == 1 else 2], repeat=f.arity):
        if f.name == "inside" and operands[1][0] < 1:
            continue
        low, high = span(e, dict(zip(names, operands, strict=True)))
        grid = np.meshgrid(*(np.arange(a, b + 1) for a, b in operands), indexing="ij")
        with np.errstate(all="ignore"):
            values = np.asarray(f.numpy(*grid))
        if low == -(2**63):
            assert f.name in ("floordiv", "mod") and operands[1][0] < 1
            continue
        assert low <= values.min() and values.max() <= high
        if values.size == 1:
            assert low == high == values.min()
        known += 1
    assert known > 20


def test_integers_that_may_wrap_are_anything_of_their_type() -> None:
    i = var("i", "u8")
    assert span(raw("sub", (i, const(1, "u8")), "u8"), {"i": (0, 9)}) == (0, 255)
    assert span(raw("sub", (i, const(1, "u8")), "u8"), {"i": (1, 9)}) == (0, 8)
    assert Spans({"n": (2**40, 2**40)}).of(call("mul", index("n"), call("mul", index("n"), index("n")))) == (-(2**63), 2**63 - 1)


# ------------------------------------------------------------------------------------------------ a new function

I, J, N, M = index("i"), index("j"), index("N"), index("M")


@pytest.fixture
def cube(monkeypatch: pytest.MonkeyPatch) -> Function:
    """The cube of a number, and nothing but its row."""
    row = Function("cube", 1, "arithmetic", lambda x: x * x * x, monotone=1, wraps=True, sign="of all", cost="transcendental",
                   derivative=lambda o, r, a: (o.apply("mul", o.constant(3, r), o.apply("mul", a, a)),))  # fmt: skip
    monkeypatch.setitem(FUNCTIONS, "cube", row)
    return row


@pytest.fixture
def swell(monkeypatch: pytest.MonkeyPatch) -> Function:
    """exp(x / 2), and nothing but its row."""
    row = Function("swell", 1, "float", lambda x: np.exp(x / 2), monotone=1, sign="positive", cost="exponential",
                   derivative=lambda o, r, a: (o.apply("mul", r, o.constant(0.5, r)),))  # fmt: skip
    monkeypatch.setitem(FUNCTIONS, "swell", row)
    return row


def box() -> tiles.Box:
    return tiles.tile_box({I: (N, 32), J: (M, 16)})


def test_a_row_is_enough_for_ranges_and_tiles(cube: Function) -> None:
    assert span(call("cube", index("n")), {"n": (-2, 3)}) == (-8, 27)
    assert span(call("cube", index("n")), {"n": (0, 2**40)}) == (-(2**63), 2**63 - 1)
    kept = call("lt", call("cube", cast(J, "f32")), const(1000.0, "f32"))
    proof = tiles.must(box(), kept)
    for origin, all_kept in ((0, False), (16, False)):
        assert bool(evaluate(proof, {"j0": origin, "i0": 0, "N": 64, "M": 64})) is all_kept
    assert bool(evaluate(proof, {"j0": 0, "i0": 0, "N": 64, "M": 9}))
    # Of a tensor of the keys: the cube of its extremes over the tile.
    of_keys = tiles.interval(box(), call("cube", load("t", (J,), "f32")))
    assert of_keys is not None and all(isinstance(end, Call) and end.fn == "cube" for end in of_keys)


def test_a_row_is_enough_for_derivatives_and_signs(cube: Function) -> None:
    x = var("x", "f64")
    e = call("cube", x)
    assert isinstance(e, Call)
    (slope,) = partial_derivatives(e)
    assert slope is not None and float(evaluate(slope, {"x": 5.0})) == 75.0
    c = Context(frozenset({J}), "f32")
    assert positive(c, call("cube", call("exp", x))) and not positive(c, e)


def test_a_row_is_enough_for_running_extrema(cube: Function) -> None:
    """max over j of cube(s - m) is the cube of max s - m."""
    s, m = load("s", (I, J), "f32"), var("m", "f32")
    c = Context(frozenset({J}), "f32", row={m})
    found = extremum(c, call("cube", call("sub", s, m)), "max")
    assert isinstance(found, Call) and found.fn == "cube" and [b.body for b in c.bases.values()] == [s]


def test_a_row_is_enough_for_masked_tiles(swell: Function, cube: Function) -> None:
    """Where the mask's -inf is made 0, a tile that it hides is empty; and so is one whose every summand is the cube of 0."""
    s = var("s", "f32")
    masked = call("where", call("le", J, I), s, const(-math.inf, "f32"))
    for body in (call("swell", masked), call("cube", call("exp", masked)), call("mul", s, call("swell", masked))):
        empty = tiles.vanishes(box(), body, tiles.Fills())
        assert bool(evaluate(empty, {"i0": 0, "j0": 32, "N": 64, "M": 64})), body
        assert not bool(evaluate(empty, {"i0": 0, "j0": 16, "N": 64, "M": 64})), body
    never = tiles.vanishes(box(), call("cos", masked), tiles.Fills())
    assert not bool(evaluate(never, {"i0": 0, "j0": 32, "N": 64, "M": 64}))


def test_the_extremum_of_a_function_with_a_domain_is_nan_where_an_element_lies_outside() -> None:
    s, m = load("s", (J,), "f64"), var("m", "f64")
    for fn, op, expected in (("sqrt", "max", math.nan), ("rsqrt", "max", math.nan), ("sqrt", "min", math.nan)):
        for values in ([1.0, 4.0, 9.0], [-1.0, 4.0, 9.0]):
            c = Context(frozenset({J}), "f64", row={m})
            assert op in ("max", "min")
            result = extremum(c, call(fn, call("sub", s, m)), op)
            states = {b.state.name: getattr(np, b.op)(values) for b in c.bases.values()}
            with np.errstate(all="ignore"):
                wanted = getattr(np, op)(FUNCTIONS[fn].numpy(np.array(values)))
            assert np.isnan(wanted) == (min(values) < 0) and math.isnan(expected)
            np.testing.assert_equal(float(evaluate(result, {**states, "m": 0.0})), float(wanted))


def test_integers_of_sizes_are_ints() -> None:
    assert span(call("mod", index("n"), integer_const(7)), {"n": (0, 100)}) == (0, 6)
