"""Are 32-bit integers wide enough for one call? Decided from the call's sizes and strides, never assumed.

The range of every integer that generated code computes from positions and sizes is known (`aicf.scalar.ranges`); every offset
into a tensor is at most the sum of (extent - 1) * stride. Values loaded from tensors keep their own type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aicf.kernel import Kernel, Parallel, Retry, statements
from aicf.kernel.visit import expressions
from aicf.scalar import Call, Expr, Load, integer, is_int, walk
from aicf.scalar.ranges import Range, Spans

LIMIT = 2**31


def fits32(kernel: Kernel, sizes: Mapping[str, int], strides: Mapping[str, Sequence[int]]) -> bool:
    """Whether all offsets (in elements) and integer expressions of a call stay below 2**31."""
    for t in kernel.tensors:
        if t.name in strides:
            extents = [integer(e, sizes) for e in t.shape]
            reach = sum(max(0, n - 1) * abs(s) for n, s in zip(extents, strides[t.name], strict=True))
            # Lanes past the end may wrap around: nothing is read or written there.
            if reach >= LIMIT:
                return False
    ranges: dict[str, Range] = {name: (n, n) for name, n in sizes.items()}
    for axis in kernel.axes:
        n = integer(axis.extent, sizes) + 2 * max(axis.tile, 16)
        ranges[axis.name] = ranges[axis.origin.name] = (0, n)
    for s in statements(kernel.body):
        if isinstance(s, Parallel):
            for loop in s.loops:
                known = ranges.get(loop.var.name, (0, 0))
                ranges[loop.var.name] = (0, max(known[1], integer(loop.extent, sizes)))
        elif isinstance(s, Retry):
            ranges[s.flag.name] = (0, 1)
    for s in kernel.summaries:
        for loop in s.outer:
            ranges.setdefault(loop.var.name, (0, integer(loop.extent, sizes)))
    spans = Spans(ranges)
    for e in (*expressions(kernel.body), *(s.value for s in kernel.summaries)):
        for node in walk(e):
            if isinstance(node, Call) and node.dtype == "i64" and not _typed(node):
                low, high = spans.of(node)
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
