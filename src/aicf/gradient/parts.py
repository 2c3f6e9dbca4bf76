"""Parts of tensors along an axis, taken of what the tensors are made of.

    part of where(c, exp(concat(s, t) - m), 0)   ->   where(part of c, exp(s - m), 0)      where it is the part that s has

So the gradient of scores that one more number per row joined (a sink) is that of the scores by themselves.
"""

from __future__ import annotations

from aicf.scalar import FUNCTIONS, Expr, call, const, integer_const
from aicf.semantic import GraphBuilder, Node
from aicf.semantic.types import is_one

_EACH = frozenset((*FUNCTIONS, "cast"))
ZERO = integer_const(0)


class Parts:
    """Parts in the graph of `b`, each made once."""

    def __init__(self, b: GraphBuilder) -> None:
        self.b = b
        self._made: dict[tuple[Node, int, Expr, Expr], Node] = {}

    def of(self, x: Node, axis: int, start: Expr, length: Expr) -> Node:
        """`length` elements of `x` from `start` on along `axis`, counted from the end; all of what is the same along it."""
        if x.type.rank < -axis or is_one(x.type.shape[axis]):
            return x
        key = (x, axis, start, length)
        if key not in self._made:
            self._made[key] = self._of(x, axis, start, length)
        return self._made[key]

    def _of(self, x: Node, axis: int, start: Expr, length: Expr) -> Node:
        b = self.b
        if start is ZERO and length is x.type.shape[axis]:
            return x
        if x.op in _EACH:
            return b.op(x.op, *(self.of(i, axis, start, length) for i in x.inputs), **x.attrs)
        if x.op == "concat" and x.attrs["axis"] % x.type.rank == x.type.rank + axis:
            begin: Expr = ZERO
            for i in x.inputs:
                if begin is start and i.type.shape[axis] is length:
                    return i
                begin = call("add", begin, i.type.shape[axis])
        if x.op == "pad":
            inside = content(x, axis)
            if inside is not None and start is inside[0] and length is inside[1]:
                return x.inputs[0]
            if inside is not None and start is call("add", *inside):
                return b.scalar(const(0.0, x.type.dtype))
        if x.op == "expand" and x.inputs[0].type.rank == x.type.rank:
            (i,) = x.inputs
            return b.expand(self.of(i, axis, start, length), _with(x.type.shape, axis, length))
        rank = x.type.rank
        return b.slice(x, [start if k == rank + axis else ZERO for k in range(rank)], _with(x.type.shape, axis, length))


def content(x: Node, axis: int) -> tuple[Expr, Expr] | None:
    """Where along `axis` a tensor that zeros were added to, along no other axis, has what it was: from where on, how much."""
    if x.op != "pad" or x.attrs["value"] != 0 or any(
        p is not ZERO for name in ("low", "high") for k, p in enumerate(x.attrs[name]) if k != x.type.rank + axis
    ):
        return None
    return x.attrs["low"][axis], x.inputs[0].type.shape[axis]


def _with(shape: tuple[Expr, ...], axis: int, length: Expr) -> tuple[Expr, ...]:
    at = len(shape) + axis
    return (*shape[:at], length, *shape[at + 1 :])
