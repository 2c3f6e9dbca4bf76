"""Are 32-bit integers wide enough for one call? Decided from the call's sizes and strides, never assumed.

Every integer that generated code computes from positions and sizes is followed with intervals; every offset into a tensor is at
most the sum of (extent - 1) * stride. Values loaded from tensors keep their own type.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from aicf.kernel import Kernel, Parallel, statements
from aicf.kernel.lowering.expressions import expressions
from aicf.scalar import Call, Const, Expr, Load, Var, integer, is_int, walk

Interval = tuple[float, float]
LIMIT = 2**31
_ALL: Interval = (-math.inf, math.inf)


def fits32(kernel: Kernel, sizes: Mapping[str, int], strides: Mapping[str, Sequence[int]]) -> bool:
    """Whether all offsets (in elements) and integer expressions of a call stay below 2**31."""
    for t in kernel.tensors:
        if t.name in strides:
            extents = [integer(e, sizes) for e in t.shape]
            reach = sum(max(0, n - 1) * abs(s) for n, s in zip(extents, strides[t.name], strict=True))
            # Lanes past the end may wrap around: nothing is read or written there.
            if reach >= LIMIT:
                return False
    ranges: dict[str, Interval] = {name: (n, n) for name, n in sizes.items()}
    for axis in kernel.axes:
        n = integer(axis.extent, sizes) + 2 * max(axis.tile, 16)
        ranges[axis.name] = ranges[axis.origin.name] = (0, n)
    for s in statements(kernel.body):
        if isinstance(s, Parallel):
            for loop in s.loops:
                known = ranges.get(loop.var.name, (0, 0))
                ranges[loop.var.name] = (0, max(known[1], integer(loop.extent, sizes)))
    for s in kernel.summaries:
        for loop in s.outer:
            ranges.setdefault(loop.var.name, (0, integer(loop.extent, sizes)))
    memo: dict[Expr, Interval] = {}
    for e in (*expressions(kernel.body), *(s.value for s in kernel.summaries)):
        for node in walk(e):
            if isinstance(node, Call) and node.dtype == "i64" and not _typed(node):
                low, high = interval(node, ranges, memo)
                if low < -LIMIT or high >= LIMIT:
                    return False
    return True


_TYPED: dict[Expr, bool] = {}


def _typed(e: Expr) -> bool:
    """Whether a value that carries its own width takes part: an element of a tensor, or what was converted from another type."""
    if e not in _TYPED:
        _TYPED[e] = any(
            isinstance(x, Load) or (isinstance(x, Call) and x.fn == "cast" and not is_int(x.args[0].dtype)) for x in walk(e)
        )
    return _TYPED[e]


def interval(e: Expr, ranges: Mapping[str, Interval], memo: dict[Expr, Interval]) -> Interval:
    """Bounds of an integer expression, inclusive; infinite where nothing is known."""
    if e not in memo:
        memo[e] = _interval(e, ranges, memo)
    return memo[e]


def _interval(e: Expr, ranges: Mapping[str, Interval], memo: dict[Expr, Interval]) -> Interval:
    if e.dtype == "bool":
        return (0, 1)
    match e:
        case Const():
            return (float(e.value), float(e.value))
        case Var():
            return ranges.get(e.name, (0, 1))  # a flag
        case Call():
            args = [interval(a, ranges, memo) for a in e.args if a.dtype != "bool"]
            if not args or any(a.dtype not in ("i64", "i32", "bool") for a in e.args):
                return _ALL
            a = args[0]
            b = args[-1]
            match e.fn:
                case "add":
                    return (a[0] + b[0], a[1] + b[1])
                case "sub":
                    return (a[0] - b[1], a[1] - b[0])
                case "neg":
                    return (-a[1], -a[0])
                case "mul":
                    corners = [x * y if x and y else 0.0 for x in a for y in b]
                    return (min(corners), max(corners))
                case "floordiv" if b[0] >= 1:
                    corners = [x // y for x in a for y in b]
                    return (min(corners), max(corners))
                case "mod" if b[0] >= 1:
                    return (0, b[1] - 1)
                case "min":
                    return (min(a[0], b[0]), min(a[1], b[1]))
                case "max":
                    return (max(a[0], b[0]), max(a[1], b[1]))
                case "where":
                    return (min(a[0], b[0]), max(a[1], b[1]))
                case "abs":
                    return (0, max(abs(a[0]), abs(a[1])))
                case "sign":
                    return (-1, 1)
                case "cast":
                    return a
                case _:
                    return _ALL
        case _:
            return _ALL
