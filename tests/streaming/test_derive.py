"""The derivation on the cascades of many kinds (docs/theory.md, 2): one pass gives what the cascade as written gives."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from aicf.scalar import call, const, show
from aicf.semantic import Refusal
from aicf.streaming.derive import derive
from aicf.streaming.evaluate import run
from aicf.streaming.stream_program import Reduction, StreamProgram

from .cascades import (
    INF,
    J,
    N,
    S,
    T,
    V,
    W,
    X,
    check,
    close,
    data,
    derived,
    exp,
    fn,
    log,
    maximum,
    p,
    r,
    reduction,
    row,
    softmax,
    streamed,
    where,
)

Cascade = list[Reduction]
GAMMA, BETA = streamed("gamma"), streamed("beta")
KEEP = X(call("eq", call("mod", J, const(3, "i64")), const(0, "i64")))
LSE = r("m") + log(r("l"))
LOGP = S - r("m") - log(r("l"))
LOGQ = T - r("m2") - log(r("l2"))
SIGMA = fn("sqrt", r("q") + 1e-6)

ACCEPTED: dict[str, Cascade] = {
    "softmax times V, probabilities normalised first": [*softmax(), reduction("o", "sum", p() * V)],
    "logsumexp": softmax(),
    "differential attention": [
        *softmax(), *softmax(T, "m2", "l2"), reduction("o", "sum", (p() - 0.3 * p(T, "m2", "l2")) * V)
    ],
    "cross entropy with label smoothing": [
        *softmax(), reduction("z", "sum", streamed("onehot") * S), reduction("zs", "sum", S),
        reduction("n", "sum", fn("where", KEEP, 1.0, 1.0) + 0.0 * S),
    ],
    "entropy": [*softmax(), reduction("H", "sum", -p() * LOGP)],
    "KL of two logit streams": [*softmax(), *softmax(T, "m2", "l2"), reduction("kl", "sum", p() * (LOGP - LOGQ))],
    "sum of squared probabilities": [*softmax(), reduction("c", "sum", p() ** 2)],
    "two-pass variance": [
        reduction("n", "sum", X(const(1.0, "f64"))), reduction("mu", "sum", S / r("n")),
        reduction("var", "sum", (S - r("mu")) ** 2 / r("n")),
    ],
    "RMSNorm then matmul": [reduction("q", "sum", S**2 / N), reduction("y", "sum", S / SIGMA * GAMMA * W)],
    "LayerNorm then matmul": [
        reduction("mu", "sum", S / N), reduction("q", "sum", (S - r("mu")) ** 2 / N),
        reduction("y", "sum", ((S - r("mu")) / SIGMA * GAMMA + BETA) * W),
    ],
    "sigmoid attention": [reduction("o", "sum", 1.0 / (1.0 + exp(-S)) * V)],
    "soft nearest neighbours": [
        *softmax(-((S - T) ** 2) / 2), reduction("y", "sum", p(-((S - T) ** 2) / 2) * V)
    ],
    "int8 values with scales and zero points": [
        *softmax(), reduction("o", "sum", p() * (V - BETA) * streamed("scale"))
    ],
    "row quantised by its largest magnitude": [reduction("a", "max", fn("abs", S)), reduction("y", "sum", S / r("a") * W)],
    "second central moment under softmax": [
        *softmax(), reduction("o", "sum", p() * V), reduction("c", "sum", p() * (V - r("o")) ** 2)
    ],
    "largest distance from the mean": [reduction("mu", "sum", S / N), reduction("d", "max", fn("abs", S - r("mu")))],
    "largest exp of the distance": [reduction("mu", "sum", S / N), reduction("d", "max", exp(S - r("mu")))],
    "row maximum subtracted, then softmax": [
        reduction("m", "max", S), reduction("m2", "max", S - r("m")), reduction("l", "sum", exp(S - r("m") - r("m2"))),
        reduction("o", "sum", exp(S - r("m") - r("m2")) / r("l") * V),
    ],
    "an exponential relative to a mean": [reduction("mu", "sum", S / N), reduction("z", "sum", exp(S - r("mu")) * V)],
    "an exponential relative to other scores' maximum": [reduction("m", "max", T), reduction("z", "sum", exp(S - r("m")) * V)],
    "a log-sum-exp that takes the place of -inf": [
        *softmax(), reduction("z", "sum", exp(S - where(fn("eq", LSE, -INF), 0.0, LSE)) * V)
    ],
    "the product of two softmaxes of the same scores, one with a sink": [
        reduction("m", "max", S), reduction("l", "sum", exp(S - maximum(r("m"), row("sink")))),
        reduction("o", "sum", exp(S - maximum(r("m"), row("sink"))) / r("l") * exp(S - r("m")) * V),
    ],
}  # fmt: skip

REFUSED: dict[str, tuple[Cascade, str, str]] = {
    "mean absolute deviation": (
        [reduction("mu", "sum", S / N), reduction("mad", "sum", fn("abs", S - r("mu")))], "mad", "abs(s - mu)"
    ),
    "softmax of scores times the denominator": (
        [*softmax(), reduction("z", "sum", exp(S * r("l")))], "z", "s * l"
    ),
    "tanh of the distance from the mean": (
        [reduction("mu", "sum", S / N), reduction("z", "sum", fn("tanh", S - r("mu")))], "z", "tanh(s - mu)"
    ),
    "relu of the distance from the mean": (
        [reduction("mu", "sum", S / N), reduction("z", "sum", maximum(S - r("mu"), 0.0))], "z", "max(s - mu, 0.0)"
    ),
    "a condition on both": (
        [reduction("mu", "sum", S / N), reduction("z", "sum", where(fn("gt", S, r("mu")), S, 0.0))], "z", "s > mu"
    ),
    "maximum of a product": ([reduction("mu", "sum", S / N), reduction("z", "max", S * r("mu"))], "z", "s * mu"),
    "an exponential with a maximum for every column of the values": (
        [reduction("mu", "sum", S / N), reduction("z", "sum", exp(S + V - r("mu")))], "z", "-mu"
    ),
    "a divisor of both": (
        [reduction("mu", "sum", S / N), reduction("z", "sum", V / (S + r("mu")))], "z", "s + mu"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ACCEPTED)
def test_one_pass_gives_what_the_cascade_gives(name: str) -> None:
    check(ACCEPTED[name])


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_the_guilty_subexpression(name: str) -> None:
    cascade, guilty, where_ = REFUSED[name]
    no = derived(cascade)
    assert isinstance(no, Refusal), str(no)
    assert no.name == guilty and no.where is not None
    assert show(no.where) == where_
    assert guilty in str(no) and show(no.where) in str(no)


def test_the_rank_has_a_limit() -> None:
    no = derived([reduction("mu", "sum", S / N), reduction("z", "sum", (S + r("mu")) ** 8 * (T + r("mu")) ** 2)])
    assert isinstance(no, Refusal) and "rank" in no.reason
    assert isinstance(derived([reduction("mu", "sum", S / N), reduction("z", "sum", (S + r("mu")) ** 7)]), StreamProgram)


# ------------------------------------------------------------------------------------------------ the shape of what is derived


def program(cascade: Cascade, **outputs: X) -> StreamProgram:
    return check(cascade, outputs)


def test_a_reduction_that_others_share_is_carried_once() -> None:
    got = program([*softmax(), *softmax(S, "m2", "l2"), reduction("o", "sum", (p() - p(S, "m2", "l2")) * V)], o=r("o"), l=r("l"))
    assert [b.name for b in got.bases] == ["B_m"]
    assert "0.0" in show(got.finalize["o"])


def test_exponential_of_twice_the_scores_shares_the_maximum() -> None:
    got = program(ACCEPTED["sum of squared probabilities"], c=r("c"))
    (power,) = [s for s in got.sums if s.name == "G_c"]
    assert show(power.body) == "exp(2.0 * (s - ref_m))"
    assert show(power.stabilisers[0][1]) == "f64(2.0)"


def sink_cascade() -> tuple[Cascade, X]:
    """cat(scores, sink) -> subtract the maximum -> softmax -> drop the sink -> times V (`attention_sink`)."""
    sink = row("sink")
    top = maximum(r("m"), sink)
    shifted, last = S - top, sink - top
    top2 = maximum(r("m2"), last)
    e = exp(shifted - top2)
    total = r("l") + exp(last - top2)
    return [
        reduction("m", "max", S), reduction("m2", "max", shifted), reduction("l", "sum", e), reduction("o", "sum", e / total * V)
    ], r("o")  # fmt: skip


def test_a_sink_starts_the_maximum() -> None:
    cascade, o = sink_cascade()
    got = program(cascade, o=o)
    (base,) = got.bases
    assert show(base.body) == "s" and base.init is not None and show(base.init) == "sink[i]" and base.shift_invariant
    assert [show(s.body) for s in got.sums] == [f"exp(s - {base.ref.name})", f"exp(s - {base.ref.name}) * V[j, e]"]
    assert show(got.finalize["o"]) == f"G_o / (G_l + exp(sink[i] - {base.name}))"


def test_the_second_maximum_is_exactly_zero() -> None:
    got = program([reduction("m", "max", S), reduction("m2", "max", S - r("m"))], m2=r("m2"))
    assert show(got.finalize["m2"]) == "f64(0.0)" and got.bases == ()


def test_a_sink_far_above_the_scores_does_not_overflow() -> None:
    cascade, o = sink_cascade()
    d = data()
    d.tensors["sink"] = d.tensors["sink"] * 0 + 2000.0
    d.env["s"] = d.env["s"] - 1000.0
    check(cascade, {"o": o}, d)


def test_softmax_off_by_one_starts_its_maximum_at_zero() -> None:
    top = maximum(r("m"), 0.0)
    e = exp(S - top)
    got = program(
        [reduction("m", "max", S), reduction("l", "sum", e), reduction("o", "sum", e / (r("l") + exp(-top)) * V)], o=r("o")
    )
    (base,) = got.bases
    assert base.init is not None and show(base.init) == "f64(0.0)" and base.shift_invariant


def test_two_maxima_joined_bound_both_streams() -> None:
    top = maximum(r("m"), r("m2"))
    got = program(
        [
            reduction("m", "max", S), reduction("m2", "max", T), reduction("l", "sum", exp(S - top) + exp(T - top)),
            reduction("o", "sum", (exp(S - top) * V + exp(T - top) * W) / r("l")),
        ],
        o=r("o"),
    )  # fmt: skip
    (base,) = got.bases
    assert show(base.body) == "max(s, t)"
    assert all(s.stabilisers for s in got.sums)


def test_elementwise_attention_has_no_extremum() -> None:
    for weight in (fn("sigmoid", S), maximum(S, 0.0) ** 2):
        got = program([reduction("o", "sum", weight * V)], o=r("o") / 7.0)
        assert got.bases == () and len(got.sums) == 1 and got.sums[0].scale is None


def test_retention_is_divided_after_the_stream() -> None:
    got = program([reduction("n", "sum", S), reduction("o", "sum", S / maximum(fn("abs", r("n")), 1.0) * V)], o=r("o"))
    assert [show(s.body) for s in got.sums] == ["s", "s * V[j, e]"]
    assert show(got.finalize["o"]) == "G_o / max(abs(G_n), 1.0)"


@pytest.mark.parametrize("spelling", range(4))
def test_masks_before_the_softmax(spelling: int) -> None:
    masked = where(KEEP, S, -INF)
    e: X = [
        exp(masked - r("m")),
        exp(where(KEEP, S - r("m"), -INF)),
        where(KEEP, exp(S - r("m")), 0.0),
        exp(S + where(KEEP, 0.0, -INF) - r("m")),
    ][spelling]
    scores = S + where(KEEP, 0.0, -INF) if spelling == 3 else masked
    got = program([reduction("m", "max", scores), reduction("l", "sum", e), reduction("o", "sum", e / r("l") * V)], o=r("o"))
    assert len(got.bases) == 1
    assert all(s.stabilisers for s in got.sums)


def test_a_mask_after_the_softmax_selects_inside_the_sum() -> None:
    got = program([*softmax(), reduction("o", "sum", where(KEEP, p(), 0.0) * V)], o=r("o"))
    (masked,) = [s for s in got.sums if s.name == "G_o"]
    assert show(masked.weight) == "where(j % 3 == 0, exp(s - ref_m), 0.0)" and show(masked.value or masked.weight) == "V[j, e]"


def test_a_scale_of_the_row_goes_with_the_exponential() -> None:
    c = row("c")
    got = program(
        [
            reduction("m", "max", S), reduction("l", "sum", exp(c * (S - r("m")))),
            reduction("o", "sum", exp(c * (S - r("m"))) / r("l") * V),
        ],
        o=r("o"),
    )  # fmt: skip
    assert show(got.sums[0].body) == "exp(c[i] * (s - ref_m))"
    assert show(got.sums[0].stabilisers[0][1]) == "c[i]"


@pytest.mark.parametrize(
    "scores",
    [S, S / 4.0, S / math.sqrt(3), S * 0.3, S * row("c"), S + GAMMA, row("c") * S * 2.0, (S / math.sqrt(3) + T) ** 2 * 0.1],
    ids=lambda x: show(x.e),
)
def test_an_entropy_is_relative_to_the_spread_of_the_scores(scores: X) -> None:
    logp = scores - r("m") - log(r("l"))
    d = data()
    d.env["s"] = d.env["s"] + 1e6
    cascade = [*softmax(scores), reduction("H", "sum", exp(logp) * logp)]
    got = check(cascade, {"H": r("H")}, d)
    (centred,) = [s for s in got.sums if s.shift is not None]
    assert centred.shift is not None and centred.shift.partner == "G_l" and centred.shift.base == "B_m"
    assert show(got.finalize["H"]) == "G_H / G_l - log(G_l)"


@pytest.mark.parametrize("spread", [1.0, 10.0, 50.0])
def test_in_single_precision_the_error_is_that_of_the_cascade_as_written(spread: float) -> None:
    """Maximum and mean error against float64 within twice those of the same operations over whole rows in float32."""
    s, m, l = r("s", "f32"), r("m", "f32"), r("l", "f32")
    logp = s - m - log(l)
    cascade = [reduction("m", "max", s), reduction("l", "sum", exp(s - m)), reduction("H", "sum", exp(logp) * logp)]
    program = derived(cascade, {"H": r("H", "f32"), "lse": m + log(l)})
    assert isinstance(program, StreamProgram)
    scores = (np.random.default_rng(0).normal(size=(300, 400, 1)) * spread).astype(np.float32)

    def written(x: np.ndarray) -> dict[str, np.ndarray]:
        top = x.max(axis=0)
        total = np.exp(x - top).sum(axis=0, dtype=x.dtype)
        log_p = x - top - np.log(total)
        return {"H": (np.exp(log_p) * log_p).sum(axis=0, dtype=x.dtype), "lse": top + np.log(total)}

    exact, single = written(scores.astype(np.float64)), written(scores)
    env = {"s": scores, "j": np.arange(300).reshape(-1, 1, 1)}
    got = run(program, env, [64, 128, 192, 256], double=False)
    for name in exact:
        assert got[name].dtype == np.float32
        error, allowed = np.abs(got[name] - exact[name]), np.abs(single[name] - exact[name])
        rounding = np.spacing(np.abs(exact[name]).astype(np.float32)) / 2
        assert error.max() <= 2 * allowed.max() + rounding.max()
        assert error.mean() <= 2 * allowed.mean() + rounding.mean()


def test_base_two_stays_base_two() -> None:
    e = fn("exp2", S - r("m"))
    got = program([reduction("m", "max", S), reduction("l", "sum", e), reduction("o", "sum", e / r("l") * V)], o=r("o"))
    assert show(got.sums[0].body) == "exp2(s - ref_m)" and got.sums[0].scale is not None
    assert show(got.sums[0].scale) == "exp2(old_m - ref_m)"


def test_softmin_is_relative_to_the_minimum() -> None:
    e = exp(r("m") - S)
    got = program([reduction("m", "min", S), reduction("l", "sum", e), reduction("o", "sum", e / r("l") * V)], o=r("o"))
    assert [b.op for b in got.bases] == ["min"] and all(s.stabilisers for s in got.sums)


def test_a_probability_from_the_logsumexp() -> None:
    e = exp(S - (r("m") + log(r("l"))))
    got = program([*softmax(), reduction("o", "sum", e * V)], o=r("o"), lse=r("m") + log(r("l")))
    # Not G_o / G_l: where m is so large that log(l) is rounded away the source does not divide by l.
    assert show(got.finalize["o"]) == "exp(-(B_m + log(G_l) - B_m)) * G_o" and got.bases[0].shift_invariant
    assert all(s.stabilisers for s in got.sums)


def test_a_logsumexp_that_minds_infinities_keeps_its_sum_in_range() -> None:
    m, l = r("m"), r("l")
    lse = where(fn("eq", fn("abs", m), INF), m, m + log(l))
    got = program([*softmax(), reduction("o", "sum", exp(S - lse) * V)], o=r("o"))
    assert all(s.stabilisers for s in got.sums)


@pytest.mark.parametrize("size", [0.0, 1e3, -1e3])
def test_what_an_exponential_is_relative_to_may_be_far_from_zero(size: float) -> None:
    """exp(1000) is infinite and exp(-1000) is 0: the sum is of neither."""
    got = derived([*softmax(), reduction("o", "sum", exp(S - where(fn("eq", LSE, -INF), 0.0, LSE)) * V)], {"o": r("o")})
    assert isinstance(got, StreamProgram) and len(got.bases) == 1
    d = data()
    p = np.exp(d.env["s"])
    shifted = {**d.env, "s": d.env["s"] + size}
    close(run(got, shifted, [5], d.tensors)["o"], (p / p.sum(0) * d.tensors["V"][:, None, :]).sum(0), 1e-9, 1.0)


def test_a_sum_of_probabilities_is_not_simply_one() -> None:
    got = program([*softmax(), reduction("total", "sum", exp(S - r("m")) / r("l"))], total=r("total"))
    assert show(got.finalize["total"]) == "G_l / G_l"


def test_halves_are_carried_wide_and_their_casts_dropped() -> None:
    s16 = r("s", "f16")
    v16 = X(V.e).to("f16")
    wide = s16.to("f32")
    prob = (exp(wide - r("m", "f32")) / r("l", "f32")).to("f16")
    got = derived(
        [
            reduction("m", "max", wide), reduction("l", "sum", exp(wide - r("m", "f32"))),
            reduction("o", "sum", prob * v16),
        ],
        {"o": r("o", "f16")},
    )  # fmt: skip
    assert isinstance(got, StreamProgram)
    assert "f16(exp" not in str(got) and all(s.dtype != "f16" for s in got.sums)


def test_softmax_wholly_in_half_precision() -> None:
    s = r("s", "bf16")
    e = exp(s - r("m", "bf16"))
    got = derived(
        [reduction("m", "max", s), reduction("l", "sum", e), reduction("o", "sum", (e / r("l", "bf16")) * V.to("bf16"))],
        {"o": r("o", "bf16")},
    )
    assert isinstance(got, StreamProgram)
    assert [(b.dtype, b.shift_invariant) for b in got.bases] == [("f64", True)]  # V is float64 here


BOOLEANS: dict[str, Callable[[], Cascade]] = {
    "any": lambda: [reduction("y", "any", fn("gt", S, 6.0))],
    "all": lambda: [reduction("y", "all", fn("gt", S, -6.0))],
    "any score": lambda: [reduction("y", "any", fn("ne", where(KEEP, S, -INF), -INF))],
    "all masked": lambda: [reduction("y", "all", fn("eq", where(KEEP, S, -INF), -INF))],
    "count": lambda: [reduction("y", "sum", KEEP)],
    "product": lambda: [reduction("y", "prod", S)],
    "smallest": lambda: [reduction("mu", "sum", S / N), reduction("y", "min", r("mu") - S)],
    "largest probability": lambda: [*softmax(), reduction("y", "max", p())],
    "largest of two": lambda: [reduction("mu", "sum", S / N), reduction("y", "max", maximum(S - r("mu"), 2.0 * T))],
    "largest where kept": lambda: [reduction("mu", "sum", S / N), reduction("y", "max", where(KEEP, S - r("mu"), -INF))],
}


@pytest.mark.parametrize("name", BOOLEANS)
def test_other_reductions(name: str) -> None:
    check(BOOLEANS[name]())


def test_safe_softmax_is_selected_by_the_row() -> None:
    masked = where(KEEP, S, -INF)
    empty = r("empty", "bool")
    cascade = [
        *softmax(masked), reduction("empty", "all", fn("eq", masked, -INF)),
        reduction("o", "sum", where(empty, 0.0, p(masked)) * V),
    ]  # fmt: skip
    d = data()
    check(cascade, {"o": r("o")}, d)
    got = derived(cascade, {"o": r("o")})
    assert isinstance(got, StreamProgram) and [b.name for b in got.bases] == ["B_m"]
    d.env["s"][:, 1] = -INF
    check(cascade, {"o": r("o")}, d)


def test_malformed_cascades_are_errors_of_the_caller() -> None:
    with pytest.raises(ValueError, match="used twice"):
        derive([*softmax(), *softmax()], {}, J)
    with pytest.raises(ValueError, match="order the cascade"):
        derive(list(reversed(softmax())), {}, J)
    with pytest.raises(ValueError, match="keeps the streamed axis"):
        derive(softmax(), {"p": p(streamed("x")).e}, J)


def test_an_output_may_take_the_name_of_a_reduction() -> None:
    got = program([*softmax(), reduction("o", "sum", p() * V)], o=r("o") * 2.0, l=r("l"))
    assert show(got.finalize["o"]) == "2.0 * (G_o / G_l)"
