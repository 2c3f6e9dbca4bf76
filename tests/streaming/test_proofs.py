"""Proofs are proofs: what holds of nearly all numbers, but not of all, is not taken for true.

The conditions here hold for one number in a million; no sampling would meet them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from aicf.scalar import Expr, call, cast, const, index, load, var
from aicf.streaming.derive import derive
from aicf.streaming.equality import same_value
from aicf.streaming.evaluate import run
from aicf.streaming.shift_invariance import rebases, rescales, scaling, shift_invariant_references
from aicf.streaming.stream_program import Reduction, StreamProgram

J, I, S, T, V = index("j"), index("i"), var("s", "f32"), var("t", "f32"), var("v", "f32")
M, L, O = var("m", "f32"), var("l", "f32"), var("o", "f32")
X = load("x", (I,), "f32")
SELDOM = 0.123456
RARE = call("eq", X, const(SELDOM, "f32"))  # one number of many millions
NARROW = call("lt", call("abs", call("sub", X, const(SELDOM, "f32"))), const(1e-7, "f32"))
FAR = call("gt", call("mul", X, call("sin", X)), const(1e6, "f32"))
INF, NAN, ZERO, ONE = (const(v, "f32") for v in (float("inf"), float("nan"), 0.0, 1.0))


def attention(outputs: dict[str, Expr]) -> StreamProgram:
    p = call("div", call("exp", call("sub", S, M)), L)
    cascade = [
        Reduction("m", "max", S),
        Reduction("l", "sum", call("exp", call("sub", S, M))),
        Reduction("o", "sum", call("mul", p, V)),
    ]
    made = derive(cascade, outputs, J, scores=[S, V])
    assert isinstance(made, StreamProgram)
    return made


def free(**outputs: Expr) -> bool:
    return shift_invariant_references(attention(outputs)) == frozenset({"B_m"})


def test_what_does_not_depend_on_the_reference_is_proved_to() -> None:
    lse = call("add", M, call("log", L))
    assert free(o=O) and free(lse=lse) and free(o=O, lse=lse)
    assert free(o=call("where", RARE, O, call("mul", O, X)))
    assert free(d=call("exp", call("sub", X, lse)))
    assert free(s=call("sqrt", call("mul", call("exp", M), L)))


@pytest.mark.parametrize("condition", [RARE, NARROW, FAR], ids=["equal", "near", "far"])
def test_a_trace_of_the_reference_in_rows_that_are_seldom_met(condition: Expr) -> None:
    for trace in (M, L, call("tanh", M), call("add", O, M)):
        assert not free(o=call("where", condition, trace, O))
    assert not free(o=call("add", O, cast(call("and", condition, call("gt", M, X)), "f32")))


@pytest.mark.parametrize(
    "trace",
    [
        call("mul", const(1e-12, "f32"), M),
        call("div", M, call("add", M, const(1e12, "f32"))),
        call("max", call("sub", M, const(1e6, "f32")), ZERO),
        call("floor", call("div", M, const(1e9, "f32"))),
        cast(call("gt", M, const(1e9, "f32")), "f32"),
        call("tanh", call("mul", M, const(1e-9, "f32"))),
    ],
    ids=["small", "flat", "below", "floored", "above", "tanh"],
)
def test_a_trace_too_small_or_too_far_away_to_be_seen(trace: Expr) -> None:
    assert not free(o=call("add", O, trace))


def test_a_condition_on_sums_may_depend_on_the_reference() -> None:
    assert not free(o=call("where", call("gt", L, const(1e-6, "f32")), O, ZERO))
    assert free(o=call("where", call("gt", L, ZERO), O, ZERO))  # a sum's sign does not


# ------------------------------------------------------------------------------------------------ growth with sums


def kept(outputs: dict[str, Expr]) -> StreamProgram:
    p = call("mul", call("div", call("exp", call("sub", S, M)), L), cast(call("gt", T, ZERO), "f32"))
    cascade = [
        Reduction("m", "max", S),
        Reduction("l", "sum", call("exp", call("sub", S, M))),
        Reduction("l2", "sum", p),
        Reduction("o", "sum", call("mul", p, V)),
    ]
    made = derive(cascade, outputs, J, scores=[S, T, V])
    assert isinstance(made, StreamProgram)
    return made


RATIO = call("div", O, var("l2", "f32"))


def test_ratios_are_proved_to_be_ratios() -> None:
    assert len(kept({"r": RATIO}).bases) == 2
    assert len(kept({"r": call("where", RARE, RATIO, call("mul", RATIO, X))}).bases) == 2


@pytest.mark.parametrize("condition", [RARE, NARROW, FAR], ids=["equal", "near", "far"])
def test_a_sum_that_is_no_ratio_in_rows_that_are_seldom_met(condition: Expr) -> None:
    """Relative to a maximum of their own the sums would be wrong wherever the condition holds."""
    made = kept({"r": call("where", condition, O, RATIO)})
    assert len(made.bases) == 1
    s, t, v = np.array([40.0, 0.5, -0.5, 0.25]), np.array([0.0, 1, 1, 1]), np.array([5.0, 1, -2, 3])
    env = {"j": np.arange(4), "s": s, "t": t, "v": v, "i": 0}
    tensors = {"x": np.array([np.float32(SELDOM)])}
    p = np.exp(s - 40) / np.exp(s - 40).sum() * (t > 0)
    expected = (p * v).sum() if condition is not FAR else (p * v).sum() / p.sum()
    assert np.isclose(run(made, env, [2], tensors)["r"], expected, rtol=1e-6)


def test_growth_is_proved_or_not_known() -> None:
    made = attention({"o": O})
    sums = [s.name for s in made.sums]
    assert scaling(made, sums, ["o"]) == 0 and scaling(made, [sums[0]], ["l"]) == 1
    assert scaling(made, [sums[1]], ["o"]) == 1 and scaling(made, [sums[0]], ["o"]) is None
    seldom = attention({"o": call("where", FAR, L, O)})
    assert scaling(seldom, [s.name for s in seldom.sums], ["o"]) is None


# ------------------------------------------------------------------------------------------------ equal values


def chosen(condition: Expr, a: Expr, b: Expr) -> Expr:
    return call("where", condition, a, b)


SAME: list[tuple[Expr, Expr]] = [
    (NAN, call("mul", NAN, X)),
    (chosen(RARE, NAN, X), chosen(RARE, call("add", NAN, X), X)),
    (chosen(call("not", RARE), X, NAN), chosen(RARE, call("sub", X, NAN), X)),
    (call("div", call("mul", ZERO, X), ZERO), NAN),
    (chosen(call("gt", NAN, X), ONE, X), X),
]
OTHER: list[tuple[Expr, Expr]] = [
    (chosen(RARE, NAN, X), X),
    (chosen(NARROW, ONE, X), X),
    (chosen(call("and", RARE, FAR), NAN, ONE), ONE),
    (chosen(call("isnan", X), ONE, X), X),
    (call("mul", ZERO, X), ZERO),
    (call("add", X, const(1e-6, "f32")), X),
    (call("max", X, const(-1e30, "f32")), X),
]


@pytest.mark.parametrize("k", range(len(SAME)))
def test_equal_values(k: int) -> None:
    assert same_value(*SAME[k])


@pytest.mark.parametrize("k", range(len(OTHER)))
def test_values_that_differ_seldom_differ(k: int) -> None:
    assert not same_value(*OTHER[k])


def test_many_conditions_that_must_all_hold_are_no_proof() -> None:
    """Ten conditions together hold for a thousandth of their outcomes."""
    value: Expr = NAN
    for k in range(10):
        value = chosen(call("gt", load("x", (const(k, "i64"),), "f32"), ZERO), value, ONE)
    assert not same_value(value, ONE)


# ------------------------------------------------------------------------------------------------ how sums move


def test_a_body_moves_with_its_reference_as_it_says() -> None:
    ref, old = var("ref_m", "f32"), var("old_m", "f32")
    weight = call("exp", call("sub", S, ref))
    one, two = const(1.0, "f32"), const(2.0, "f32")
    moves: list[tuple[Expr, Expr, bool]] = [
        (weight, one, True),
        (call("mul", weight, weight), two, True),
        (call("mul", weight, weight), one, False),
        (call("mul", weight, call("sub", S, ref)), one, False),
        (chosen(call("gt", S, ref), weight, ZERO), one, False),
        (chosen(RARE, weight, ZERO), one, True),
        (chosen(RARE, weight, ONE), one, False),
    ]
    for body, power, yes in moves:
        assert rebases(body, {"ref_m": power}) == yes
    scales: Callable[[Expr], bool] = lambda scale: rescales(scale, [(old, ref, one)])  # noqa: E731
    assert scales(call("exp", call("sub", old, ref)))
    assert not scales(call("exp", call("sub", ref, old)))
    assert not scales(call("mul", two, call("exp", call("sub", old, ref))))
    assert not scales(call("exp", call("add", const(1e-9, "f32"), call("sub", old, ref))))
