"""The numeric contract, the only tolerance in this project.

    error(got) <= 2 * error(unfused computation in the same precision) + one rounding of the output

for the maximum and for the mean of the absolute error against float64. NaN and infinities must be where the unfused
computation has them; where it has them only because its type overflows or underflows, a result of float64's kind (finite, NaN,
one of the infinities) is more exact, and allowed. Arrays are NumPy's; `double` makes them of PyTorch's tensors too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from aicf.scalar import DType

# Half the distance from 1 to the next number, and half the smallest subnormal: what one rounding can cost.
_ROUNDOFF: dict[DType, float] = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-24, "f64": 2.0**-53}
_UNDERFLOW: dict[DType, float] = {"f16": 2.0**-25, "bf16": 2.0**-134, "f32": 2.0**-150, "f64": 0.0}


@dataclass(frozen=True)
class Errors:
    """Absolute errors against float64 over the finite elements."""

    max: float
    mean: float


@dataclass(frozen=True)
class Judgement:
    """`share`: the larger of the two errors as a share of what is allowed (up to 1 keeps the contract); `problem`: what is
    broken, in words with the numbers of both sides, empty when nothing is; `another`: that cannot be rounding, since half of the
    digits of the largest value are lost, or a special value is elsewhere: another function was computed."""

    share: float
    problem: str
    another: bool = False


def double(x: Any) -> np.ndarray:
    """`x` as a float64 array; exact for every type used here."""
    if hasattr(x, "detach"):
        x = x.detach().cpu().double().numpy()
    return np.asarray(x, dtype=np.float64)


def errors(x: Any, reference: Any) -> Errors:
    """Maximum and mean absolute difference over elements finite in both."""
    a, b = double(x), double(reference)
    both = np.isfinite(a) & np.isfinite(b)
    if not both.any():
        return Errors(0.0, 0.0)
    gap = np.abs(a[both] - b[both])
    return Errors(float(gap.max()), float(gap.mean()))


def _kind(x: np.ndarray) -> np.ndarray:
    """0 where a number is finite, else one number per kind."""
    return np.select([np.isnan(x), np.isposinf(x), np.isneginf(x)], [1, 2, 3], 0)


def judge(got: Any, unfused: Any, reference: Any, dtype: DType) -> Judgement:
    """Whether `got` keeps the contract.

    `unfused` is the source graph computed in the same precision, `reference` in float64 (from the same inputs), `dtype` the
    element type of the output.
    """
    g, u, r = double(got), double(unfused), double(reference)
    if not g.shape == u.shape == r.shape:
        return Judgement(np.inf, f"shapes differ: got {g.shape}, unfused {u.shape}, float64 {r.shape}", True)
    for name, test in (("NaN", np.isnan), ("inf", np.isposinf), ("-inf", np.isneginf)):
        as_exact = ~np.isfinite(u) & (_kind(g) == _kind(r))
        wrong = (test(g) != test(u)) & ~as_exact
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            return Judgement(
                np.inf,
                f"{int(wrong.sum())} of {g.size} elements differ in being {name}; the first is {at}: "
                f"got {g[at]}, unfused {u[at]}, float64 {r[at]}",
                True,
            )
    finite = np.isfinite(g) & np.isfinite(r)
    size = np.abs(r[finite])
    mine, theirs = errors(g, r), errors(u, r)
    share, problem = 0.0, ""
    for name, error, base, scale in (
        ("max", mine.max, theirs.max, float(size.max(initial=0.0))),
        ("mean", mine.mean, theirs.mean, float(size.mean()) if size.size else 0.0),
    ):
        rounding = _ROUNDOFF[dtype] * scale + _UNDERFLOW[dtype]
        allowed = 2 * base + rounding
        share = max(share, error / allowed if allowed else (np.inf if error else 0.0))
        if error > allowed and not problem:
            problem = (
                f"{name} error {error:.3g} is over {allowed:.3g} = "
                f"2 x {base:.3g} (unfused {dtype}) + {rounding:.3g} (one rounding)"
            )
    gross = mine.max > 2 * theirs.max + _ROUNDOFF[dtype] ** 0.5 * float(size.max(initial=0.0))
    return Judgement(share, problem, gross)
