"""The numbers that an integer expression can have when the ranges of its variables are known as numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from aicf.scalar.dtypes import DType, is_int, numpy_dtype
from aicf.scalar.expr import Call, Const, Expr, Var, walk

Range = tuple[float, float]  # inclusive; integers, or infinite


def span(e: Expr, known: Mapping[str, tuple[int, int]]) -> Range:
    """Bounds of `e`, both inclusive, where each variable of `known` runs between its two. What tensors hold is anything of their
    type. Linear in the number of distinct subexpressions."""
    found: dict[Expr, Range] = {}
    for x in walk(e):
        found[x] = _span(x, known, found)
    return found[e]


def _limits(dtype: DType) -> Range:
    if dtype == "bool":
        return 0, 1
    if not is_int(dtype):
        return -math.inf, math.inf
    info = np.iinfo(numpy_dtype(dtype))
    return int(info.min), int(info.max)


def _span(e: Expr, known: Mapping[str, tuple[int, int]], found: Mapping[Expr, Range]) -> Range:
    match e:
        case Const() if e.dtype == "bool" or is_int(e.dtype):
            return int(e.value), int(e.value)
        case Var() if e.name in known:
            return known[e.name]
        case Call() if is_int(e.dtype):
            exact = _of_call(e, [found[a] for a in e.args])
            limits = _limits(e.dtype)
            # Integers wrap around: past the ends of the type it is anything.
            return exact if exact is not None and limits[0] <= exact[0] and exact[1] <= limits[1] else limits
        case _:
            return _limits(e.dtype)


def _of_call(e: Call, args: list[Range]) -> Range | None:
    a = args[0]
    b = args[1] if len(args) > 1 else a
    match e.fn:
        case "add":
            return a[0] + b[0], a[1] + b[1]
        case "sub":
            return a[0] - b[1], a[1] - b[0]
        case "mul":
            if any(map(math.isinf, (*a, *b))):
                return None
            corners = [x * y for x in a for y in b]
            return min(corners), max(corners)
        case "neg":
            return -a[1], -a[0]
        case "abs":
            return max(0, a[0], -a[1]), max(abs(a[0]), abs(a[1]))
        case "max":
            return max(a[0], b[0]), max(a[1], b[1])
        case "min":
            return min(a[0], b[0]), min(a[1], b[1])
        case "floordiv" if b[0] > 0 and not any(map(math.isinf, (*a, *b))):
            corners = [x // y for x in a for y in b]
            return min(corners), max(corners)
        case "mod" if b[0] > 0:
            return 0, min(b[1] - 1, a[1]) if a[0] >= 0 else b[1] - 1
        case "where":
            return min(args[1][0], args[2][0]), max(args[1][1], args[2][1])
        case "inside":
            top = max(0, b[1] - 1)
            return min(max(0, a[0]), top), min(max(0, a[1]), top)
        case "cast" if e.args[0].dtype == "bool" or is_int(e.args[0].dtype):
            return a
        case _:
            return None
