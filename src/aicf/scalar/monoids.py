"""Reductions: one row for each op, with all that is known of it.

    op     identity   one element            combine     result
    sum    0          x                      a + b       a
    max    -inf       x                      max(a, b)   a
    any    -inf       0 where x, else -inf   max(a, b)   a != -inf

`identity` is what a reduction of nothing is, and `combine` joins those of two parts. A stream program carries sums and extrema
only: `carried` is the row whose state stands for this one, `lift` makes that state of one element, `finalise` the result of it.
How sums move with a reference is said by each sum itself (`StreamProgram`). A log-sum-exp is two rows, as the separation finds: a
maximum and a sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from aicf.scalar.build import call, cast
from aicf.scalar.dtypes import DType, is_int, numpy_dtype
from aicf.scalar.expr import Const, Expr, ReduceOp, const

Carried = Literal["sum", "max", "min"]


def _same(e: Expr, working: DType) -> Expr:
    return e


def _number(e: Expr, working: DType) -> Expr:
    return cast(e, working) if e.dtype == "bool" else e


def _counted(e: Expr, working: DType) -> Expr:
    return cast(e, "i64") if e.dtype == "bool" else e


def _marked(e: Expr, working: DType) -> Expr:
    return call("where", e, const(0.0, working), const(-math.inf, working))


def _unmarked(e: Expr, working: DType) -> Expr:
    return _marked(call("not", e), working)


def _seen(state: Expr) -> Expr:
    return call("ne", state, const(-math.inf, state.dtype))


def _unseen(state: Expr) -> Expr:
    return call("not", _seen(state))


def _state(state: Expr) -> Expr:
    return state


@dataclass(frozen=True)
class Monoid:
    """A row. `unit`: the identity in a type that holds it; `combine`: the scalar function that joins two results; `carried`: how
    a stream program keeps it, None where it keeps nothing of the kind (a product is the exponential of a sum of logarithms)."""

    op: ReduceOp
    unit: float | bool
    combine: str
    carried: Carried | None
    lift: Callable[[Expr, DType], Expr] = _same
    finalise: Callable[[Expr], Expr] = _state

    def identity(self, dtype: DType) -> float | int | bool:
        """What a reduction of nothing is, in `dtype`."""
        if dtype == "bool":
            return bool(self.unit > 0)
        if not is_int(dtype):
            return float(self.unit)
        info = np.iinfo(numpy_dtype(dtype))
        return int(min(max(self.unit, info.min), info.max))

    def nothing(self, dtype: DType) -> Const:
        """The same as an expression."""
        return const(self.identity(dtype), dtype)


_ROWS = [
    Monoid("sum", 0.0, "add", "sum", _counted),
    Monoid("prod", 1.0, "mul", None, _counted),
    Monoid("max", -math.inf, "max", "max", _number),
    Monoid("min", math.inf, "min", "min", _number),
    Monoid("any", False, "or", "max", _marked, _seen),
    Monoid("all", True, "and", "max", _unmarked, _unseen),
]
MONOIDS: dict[str, Monoid] = {row.op: row for row in _ROWS}
EXTREMA: tuple[Literal["max"], Literal["min"]] = ("max", "min")
