"""The numbers that an integer expression can have when the ranges of its variables are known as numbers.

The rules are those of the rows of `FUNCTIONS`, over Python's integers, which have no limits; where a result does not fit into its
type, it is anything of the type.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from aicf.scalar.dtypes import DType, is_int, numpy_dtype
from aicf.scalar.expr import Call, Const, Expr, Var, unknown
from aicf.scalar.functions import FUNCTIONS

Range = tuple[float, float]  # inclusive; integers, or infinite


def span(e: Expr, known: Mapping[str, Range]) -> Range:
    """Bounds of `e`, both inclusive, where each variable of `known` runs between its two. What tensors hold is anything of their
    type. Linear in the number of distinct subexpressions."""
    return Spans(known).of(e)


class Spans:
    """The bounds of many expressions, each subexpression looked at once."""

    def __init__(self, known: Mapping[str, Range]) -> None:
        self.variables = known
        self.known: dict[Expr, Range] = {}

    def of(self, e: Expr) -> Range:
        """As `span`."""
        for x in unknown(e, self.known):
            self.known[x] = self._of(x)
        return self.known[e]

    def _of(self, e: Expr) -> Range:
        match e:
            case Const() if e.dtype == "bool" or is_int(e.dtype):
                return int(e.value), int(e.value)
            case Var() if e.name in self.variables:
                return self.variables[e.name]
            case Call() if is_int(e.dtype):
                return _within(self._of_call(e), _limits(e.dtype))
            case _:
                return _limits(e.dtype)

    def _of_call(self, e: Call) -> Range | None:
        args = [self.known[a] for a in e.args]
        if e.fn == "cast":
            return args[0] if e.args[0].dtype == "bool" or is_int(e.args[0].dtype) else None
        if e.fn == "where":
            return min(args[1][0], args[2][0]), max(args[1][1], args[2][1])
        return FUNCTIONS[e.fn].bounds(NUMBERS, *args)


def _within(exact: Range | None, limits: Range) -> Range:
    """Integers wrap around: past the ends of the type it is anything."""
    return exact if exact is not None and limits[0] <= exact[0] and exact[1] <= limits[1] else limits


def _limits(dtype: DType) -> Range:
    if dtype == "bool":
        return 0, 1
    if not is_int(dtype):
        return -math.inf, math.inf
    info = np.iinfo(numpy_dtype(dtype))
    return int(info.min), int(info.max)


def _choice(condition: float, a: float, b: float) -> float:
    return a if condition else b


# Exact, unlike NumPy's, which have the width of a type.
_EXACT: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "neg": operator.neg, "abs": abs, "max": max, "min": min,
    "floordiv": operator.floordiv, "mod": operator.mod, "where": _choice, "lt": operator.lt, "ne": operator.ne,
    "floor": math.floor, "ceil": math.ceil, "trunc": math.trunc, "round": round,
}  # fmt: skip


class _Numbers:
    """Rules over numbers (`rules.Algebra`)."""

    def apply(self, fn: str, *args: float) -> float:
        return _EXACT[fn](*args) if fn in _EXACT else np.asarray(FUNCTIONS[fn].numpy(*args)).item()

    def constant(self, value: float, like: float) -> float:
        return value

    def number(self, e: float) -> float:
        return e

    def whole(self, e: float) -> bool:
        return isinstance(e, int)


NUMBERS = _Numbers()
