"""Special rows (docs/theory.md, 5): all -inf, NaN, infinities come out where the cascade as written has them."""

from __future__ import annotations

import numpy as np
import pytest

from .cascades import (
    INF,
    ROWS,
    Data,
    J,
    S,
    T,
    V,
    X,
    check,
    data,
    exp,
    fn,
    log,
    maximum,
    p,
    r,
    reduction,
    row,
    softmax,
    where,
)
from .test_derive import Cascade, sink_cascade

KEEP = fn("ne", r("t"), 0.0)
LOGP = S - r("m") - log(r("l"))
MASKED = where(KEEP, S, -INF)


def _sink() -> tuple[Cascade, dict[str, X]]:
    cascade, o = sink_cascade()
    return cascade, {"o": o}


def _off_by_one() -> tuple[Cascade, dict[str, X]]:
    top = maximum(r("m"), 0.0)
    e = exp(S - top)
    o = reduction("o", "sum", e / (r("l") + exp(-top)) * V)
    return [reduction("m", "max", S), reduction("l", "sum", e), o], {"o": r("o")}


def _nan_to_num(probability: X) -> X:
    return where(fn("isnan", probability), 0.0, probability)


_SINK = sink_cascade()
_TOP = maximum(r("m"), row("sink"))
_TOP2 = maximum(r("m2"), row("sink") - _TOP)
_SINK_P = exp(S - _TOP - _TOP2) / (r("l") + exp(row("sink") - _TOP - _TOP2))

CASCADES: dict[str, tuple[Cascade, dict[str, X]]] = {
    "softmax times V": ([*softmax(), reduction("o", "sum", p() * V)], {"o": r("o")}),
    "normalised last": ([*softmax(), reduction("o", "sum", exp(S - r("m")) * V)], {"o": r("o") / r("l")}),
    "statistics": (softmax(), {"m": r("m"), "l": r("l"), "lse": r("m") + log(r("l"))}),
    "sink": _sink(),
    "off by one": _off_by_one(),
    "differential": (
        [*softmax(), *softmax(T, "m2", "l2"), reduction("o", "sum", (p() - row("lam") * p(T, "m2", "l2")) * V)],
        {"o": r("o")},
    ),
    "entropy": ([*softmax(), reduction("H", "sum", exp(LOGP) * LOGP)], {"H": -r("H")}),
    "zero instead of NaN": ([*softmax(), reduction("o", "sum", _nan_to_num(p()) * V)], {"o": r("o")}),
    "zero instead of NaN, by comparison": (
        [*softmax(), reduction("o", "sum", where(fn("eq", p(), p()), p(), 0.0) * V)], {"o": r("o")}
    ),
    "nan_to_num with infinities": (
        [
            *softmax(),
            reduction("o", "sum", where(fn("isnan", p()), 0.0, where(fn("eq", p(), INF), 3.0, where(
                fn("eq", p(), -INF), -3.0, p()))) * V),
        ], {"o": r("o")},
    ),
    "zero instead of NaN, with a sink": (
        [*_SINK[0][:3], reduction("o", "sum", _nan_to_num(_SINK_P) * V)], {"o": r("o")}
    ),
    "zero instead of NaN, in half precision": (
        [*softmax(), reduction("o", "sum", _nan_to_num(p().to("f16")) * V)], {"o": r("o")}
    ),
    "an epsilon in the denominator": (
        [*softmax(), reduction("o", "sum", exp(S - r("m")) * V)], {"o": r("o") / (r("l") + 1e-6)}
    ),
    "to a power, normalised again": (
        [*softmax(), reduction("l2", "sum", p() ** 1.5), reduction("o", "sum", p() ** 1.5 / r("l2") * V)], {"o": r("o")}
    ),
    "to a negative power, normalised again": (
        [*softmax(), reduction("l2", "sum", p() ** -1), reduction("o", "sum", p() ** -1 / r("l2") * V)], {"o": r("o")}
    ),
    "sigmoid": ([reduction("o", "sum", fn("sigmoid", S) * V)], {"o": r("o")}),
    "sum and mean": ([reduction("mu", "sum", S / 37.0)], {"mu": r("mu")}),
    "smallest and largest": ([reduction("a", "min", S), reduction("b", "max", S)], {"a": r("a"), "b": r("b")}),
    "softmin": (
        [reduction("m", "min", S), reduction("l", "sum", exp(r("m") - S)), reduction("o", "sum", exp(r("m") - S) / r("l") * V)],
        {"o": r("o")},
    ),
}  # fmt: skip


def _rows(kind: str) -> Data:
    d = data(n=13)
    s = d.env["s"]
    match kind:
        case "row of -inf":
            s[:, 1] = -INF
        case "all rows -inf":
            s[:] = -INF
        case "one NaN":
            s[4, 2] = np.nan
        case "one +inf":
            s[4, 2] = INF
        case "row of +inf":
            s[:, 0] = INF
        case "tiles of -inf":
            s[:7] = -INF
            s[9] = -INF
        case "-inf then NaN":
            s[:, 1] = -INF
            s[12, 1] = np.nan
        case "very low":
            s -= 1e3
            s[:, 1] = -1e300
        case "very high":
            s += 1e5
        case _:
            pass
    return d


KINDS = [
    "row of -inf", "all rows -inf", "one NaN", "one +inf", "row of +inf", "tiles of -inf", "-inf then NaN",
    "very low", "very high",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CASCADES)
def test_special_rows(name: str, kind: str) -> None:
    cascade, outputs = CASCADES[name]
    check(cascade, outputs, _rows(kind))


@pytest.mark.parametrize("mask", ["none kept in a row", "nothing kept", "all kept", "one kept"])
@pytest.mark.parametrize("masked_before", [False, True])
@pytest.mark.parametrize(
    "spelling",
    [
        "probability", "numerator", "renormalised", "renormalised with an epsilon", "scaled", "zero instead of NaN, renormalised",
        "zero instead of NaN, scaled and renormalised", "zero in rows without scores", "divided under the condition",
    ],
)
def test_masks_after_the_softmax(mask: str, masked_before: bool, spelling: str) -> None:
    d = data(n=13)
    keep = np.random.default_rng(3).random((13, ROWS, 1)) < 0.5
    match mask:
        case "none kept in a row":
            keep[:, 1] = False
        case "nothing kept":
            keep[:] = False
        case "all kept":
            keep[:] = True
        case _:
            keep[:] = False
            keep[5] = True
    d.env["t"] = keep.astype(float)
    scores = MASKED if masked_before else S
    kept = where(KEEP, p(scores), 0.0)
    by_number = KEEP.to("f32")
    nothing = fn("eq", r("m"), -INF)
    whole = _nan_to_num(p(scores))
    if spelling == "zero instead of NaN, renormalised":
        kept = where(KEEP, whole, 0.0)
    elif spelling == "zero instead of NaN, scaled and renormalised":
        kept = whole * by_number
    weight = {
        "zero instead of NaN, renormalised": kept / r("l2"),
        "zero instead of NaN, scaled and renormalised": kept / r("l2"),
        "zero in rows without scores": where(nothing, 0.0, exp(scores - r("m"))) / r("l") * exp(scores - r("m")),
        "divided under the condition": where(KEEP, where(nothing, 0.0, p(scores)) / r("l2"), 0.0),
        "probability": kept,
        "numerator": where(KEEP, exp(scores - r("m")), 0.0) / r("l"),
        "renormalised": kept / r("l2"),
        "renormalised with an epsilon": kept / (r("l2") + 1e-6),
        "scaled": kept * (row("lam") / r("l")),
    }[spelling]
    cascade = [*softmax(scores), reduction("l2", "sum", kept), reduction("o", "sum", weight * V)]
    check(cascade, {"o": r("o")}, d)
    # The scores of a row may be -inf without the mask having anything to do with it.
    d.env["s"][:, 0] = -INF
    check(cascade, {"o": r("o")}, d)


def test_one_element_and_an_empty_tile() -> None:
    d = data(n=1)
    check([*softmax(), reduction("o", "sum", p() * V)], {"o": r("o")}, d)
    causal = where(X(KEEP_LAST), S, -INF)
    check([*softmax(causal), reduction("o", "sum", p(causal) * V)], {"o": r("o")}, data(n=13))


KEEP_LAST = fn("ge", X(J), X(J) - 2).e
