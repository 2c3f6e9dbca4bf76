"""A mask after the softmax, renormalised: sums over what is kept, relative to its own maximum (mask_references.py)."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

from aicf.scalar import Expr, call, cast, const, evaluate, index, var
from aicf.streaming.derive import derive
from aicf.streaming.evaluate import run
from aicf.streaming.stream_program import Reduction, StreamProgram

J, S, V, T = index("j"), var("s", "f32"), var("v", "f32"), var("t", "f32")
M, L, L2 = var("m", "f32"), var("l", "f32"), var("l2", "f32")
KEEP = call("gt", T, const(0.0, "f32"))


def _program(renormalised: Expr, keep: Expr = KEEP) -> StreamProgram:
    p = call("mul", call("div", call("exp", call("sub", S, M)), L), cast(keep, "f32"))
    made = derive(
        [
            Reduction("m", "max", S),
            Reduction("l", "sum", call("exp", call("sub", S, M))),
            Reduction("l2", "sum", p),
            Reduction("o", "sum", call("mul", call("div", p, renormalised), V)),
        ],
        {"o": var("o", "f32")},
        J,
        scores=[S, T, V],
    )
    assert isinstance(made, StreamProgram)
    return made


def _eager(s: np.ndarray, t: np.ndarray, v: np.ndarray) -> np.ndarray:
    p = np.exp(s - s.max())
    p = p / p.sum() * (t > 0)
    return (p / p.sum() * v).sum()


def _run(made: StreamProgram, s: np.ndarray, t: np.ndarray, v: np.ndarray, **options: object) -> float:
    env = {"j": np.arange(len(s)), "s": s, "t": t, "v": v}
    return float(run(made, env, [2], **options)["o"])  # type: ignore[arg-type]


@pytest.mark.parametrize("gap", [0.0, 40.0, 88.0, 95.0, 101.0])
def test_kept_terms_are_as_exact_far_below_the_maximum_as_beside_it(gap: float) -> None:
    made = _program(L2)
    assert len(made.bases) == 2
    s = np.array([gap, 0.25, -0.5, 0.0, gap - 1], np.float32)
    t = np.array([0, 1, 1, 1, 0], np.float32)
    v = np.array([5, 1, -2, 3, 7], np.float32)
    exact = _eager(s.astype(np.float64), t, v)
    assert abs(_run(made, s, t, v, double=False) - exact) < 1e-6


def test_where_every_kept_probability_rounds_to_0_the_result_is_nan_as_in_the_source() -> None:
    made = _program(L2)
    t, v = np.array([0, 1, 1], np.float32), np.ones(3, np.float32)
    with np.errstate(all="ignore"):
        for gap in (102.0, 103.0, 104.0, 110.0, 3e38):
            s = np.array([gap, 0, -1], np.float32)
            assert np.isnan(_run(made, s, t, v, double=False)) == np.isnan(_eager(s, t, v)), gap
        nothing = np.zeros(3, np.float32)
        assert np.isnan(_run(made, np.ones(3, np.float32), nothing, v, double=False))
        assert np.isnan(_run(made, np.array([np.nan, 1, 1], np.float32), t, v, double=False))


@pytest.mark.parametrize("gap", [0.0, 88.0, 101.0])
def test_what_selects_from_the_kept_terms_is_relative_to_their_maximum(gap: float) -> None:
    """A mask as a number of whatever type, and another one after the division by the sum."""
    chosen = call("gt", V, const(-1.0, "f32"))
    p = call("mul", call("div", call("exp", call("sub", S, M)), L), cast(cast(KEEP, "f16"), "f32"))
    weight = call("where", chosen, call("div", p, L2), const(0.0, "f32"))
    made = derive(
        [
            Reduction("m", "max", S),
            Reduction("l", "sum", call("exp", call("sub", S, M))),
            Reduction("l2", "sum", p),
            Reduction("o", "sum", call("mul", weight, V)),
        ],
        {"o": var("o", "f32")},
        J,
        scores=[S, T, V],
    )
    assert isinstance(made, StreamProgram)
    s = np.array([gap, 0.25, -0.5, 0.0, gap - 1], np.float32)
    t = np.array([0, 1, 1, 1, 0], np.float32)
    v = np.array([5, 1, -2, 3, 7], np.float32)
    wide = s.astype(np.float64)
    exact = (np.exp(wide - wide.max()) * (t > 0) * (v > -1) * v).sum() / (np.exp(wide - wide.max()) * (t > 0)).sum()
    assert abs(_run(made, s, t, v, double=False) - exact) < 1e-6


@pytest.mark.parametrize("gap", [0.0, 88.0, 101.0])
def test_a_maximum_that_starts_from_a_sink_is_the_reference_of_all_elements_only(gap: float) -> None:
    top, sink = call("max", M, var("sink", "f32")), var("sink", "f32")
    e = call("exp", call("sub", S, top))
    total = call("add", L, call("exp", call("sub", sink, top)))
    p = call("mul", call("div", e, total), cast(KEEP, "f32"))
    made = derive(
        [
            Reduction("m", "max", S),
            Reduction("l", "sum", e),
            Reduction("l2", "sum", p),
            Reduction("o", "sum", call("mul", call("div", p, L2), V)),
        ],
        {"o": var("o", "f32")},
        J,
        scores=[S, T, V],
    )
    assert isinstance(made, StreamProgram)
    s = np.array([0.25, -0.5, 0.0, 0.5, -1.0], np.float32)
    t = np.array([0, 1, 1, 1, 0], np.float32)
    v = np.array([5, 1, -2, 3, 7], np.float32)
    w = np.exp(s.astype(np.float64)) * (t > 0)
    got = float(run(made, {"j": np.arange(5), "s": s, "t": t, "v": v, "sink": np.float32(gap)}, [2], double=False)["o"])
    assert abs(got - (w / w.sum() * v).sum()) < 1e-6


@pytest.mark.parametrize("fn", ["add", "max"])
@pytest.mark.parametrize("epsilon", [1e-6, 1e-9, 1e-12, 1e-20, 1e-37])
def test_what_is_no_ratio_keeps_the_reference_of_all_elements(epsilon: float, fn: Literal["add", "max"]) -> None:
    made = _program(call(fn, L2, const(epsilon, "f32")))
    assert len(made.bases) == 1


def test_a_condition_of_the_row_alone_needs_no_reference() -> None:
    made = _program(L2, call("gt", var("row", "f32"), const(0.0, "f32")))
    assert len(made.bases) == 1


def test_the_condition_is_inside_of_the_new_exponential() -> None:
    """Outside of it `inf * 0` would be NaN: what is not kept may be far above the reference."""
    made = _program(L2)
    kept = next(x for x in made.sums if x.name == "G_l2")
    assert evaluate(kept.weight, {"s": np.float32(500), "t": np.float32(0), made.bases[1].ref.name: np.float32(-500)}) == 0


@pytest.mark.parametrize("gap", [0.0, 40.0, 88.0, 101.0])
def test_a_second_mask_that_is_normalised_again_has_a_maximum_of_its_own(gap: float) -> None:
    l3 = var("l3", "f32")
    chosen = cast(call("gt", V, const(0.0, "f32")), "f32")
    p = call("mul", call("div", call("exp", call("sub", S, M)), L), cast(KEEP, "f32"))
    again = call("mul", call("div", p, L2), chosen)
    made = derive(
        [
            Reduction("m", "max", S),
            Reduction("l", "sum", call("exp", call("sub", S, M))),
            Reduction("l2", "sum", p),
            Reduction("l3", "sum", again),
            Reduction("o", "sum", call("mul", call("div", again, l3), V)),
        ],
        {"o": var("o", "f32")},
        J,
        scores=[S, T, V],
    )
    assert isinstance(made, StreamProgram) and len(made.bases) == 3
    s = np.array([gap, gap - 1, 0.25, -0.5, 0.0], np.float32)
    t = np.array([0, 1, 1, 1, 1], np.float32)
    v = np.array([5, -2, 1, 3, -7], np.float32)
    exact = np.exp(s.astype(np.float64)) * (t > 0) * (v > 0)
    assert abs(_run(made, s, t, v, double=False) - (exact * v).sum() / exact.sum()) < 1e-6
