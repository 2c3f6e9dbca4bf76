"""Sums over axes of products, in the factored form: a sum over keys that another sum makes small is done the other way round.

    sum_j p[i, j] * (sum_c dO[i, c] * v[j, c])     is     sum_c dO[i, c] * O[i, c]     with O = sum_j p[i, j] * v[j, c]

where `O` is known already. This is how `D = rowsum(dO * O)` comes out of the derivative of a softmax.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aicf.gradient.elementwise import NoDerivative
from aicf.gradient.parts import Parts, content
from aicf.scalar import Const, Expr, integer_const
from aicf.semantic import GraphBuilder, Node
from aicf.semantic.types import is_one


class Sums:
    """Sums in the graph of `b`. `products`: matrix products of the source, as (left, right, the value) in that graph. `exchanged`
    counts the sums that were done the other way round, `written_out` those that were not."""

    def __init__(self, b: GraphBuilder) -> None:
        self.b = b
        self.products: list[tuple[Node, Node, Callable[[], Node]]] = []
        self.parts = Parts(b)
        self.exchanged = self.written_out = 0

    def to_shape(self, g: Node, shape: tuple[Expr, ...]) -> Node:
        """`g` summed over what broadcasting `shape` to it has repeated."""
        lead = g.type.rank - len(shape)
        axes = [k for k in range(g.type.rank) if k < lead or (is_one(shape[k - lead]) and not is_one(g.type.shape[k]))]
        if axes:
            g = self.of([g], axes)
        if g.type.shape != shape:
            g = self.b.reshape(g, shape) if all(is_one(d) for d in g.type.shape[:lead]) else g
        return g if g.type.shape == shape else self.b.expand(g, shape)

    def of(self, factors: Sequence[Node], axes: Sequence[int]) -> Node:
        """The sum over `axes` of the product of `factors`, the axes kept as 1. The last axis is summed first, by itself."""
        last = max(axes)
        rank = max(f.type.rank for f in factors)
        if last == rank - 1 and rank - 2 in axes and not any(is_one(_extent(factors, k)) for k in (-1, -2)):
            # Kept to what is known to round as the source does: such a sum takes away almost all of its terms.
            raise NoDerivative("a number that all pairs share")
        made = self._along(list(factors), last - rank)
        rest = [k for k in axes if k != last]
        return self.b.reduce("sum", made, rest, keepdims=True) if rest else made

    def _along(self, factors: list[Node], axis: int) -> Node:
        """The sum along `axis`, counted from the end, of the product of `factors`."""
        b, parts = self.b, _taken_apart(factors, axis)
        made = self._sum(parts, axis, factors)
        for f in parts.still:
            made = b.op("mul", made, f)
        for f in parts.below:
            made = b.op("div", made, f)
        for condition, first in parts.kept:
            made = b.op("where", condition, 0.0, made) if first else b.op("where", condition, made, 0.0)
        return b.op("neg", made) if parts.negative else made

    def _sum(self, parts: _Parts, axis: int, whole: Sequence[Node]) -> Node:
        """The sum of the factors that vary along the axis; others that it makes use of are taken out of `parts`."""
        b, over = self.b, parts.over
        for n, f in enumerate(over):
            others = over[:n] + over[n + 1 :]
            inside = content(f, axis)
            if inside is not None:  # nothing else counts
                return self._along([f.inputs[0], *(self.parts.of(x, axis, *inside) for x in others)], axis)
            if f.op in ("add", "sub") and others:
                left, right = (self._along([*others, x], axis) for x in f.inputs)
                return b.op(f.op, left, right)
            if f.op == "matmul" and axis == -1 and others:
                exchanged = self._exchanged(f, others, parts)
                if exchanged is not None:
                    return exchanged
        product: Node | None = None
        for f in over:
            product = f if product is None else b.op("mul", product, f)
        if product is None:
            return self._repeated(whole, axis)
        self.written_out += 1
        return b.reduce("sum", product, [product.type.rank + axis], keepdims=True)

    def _exchanged(self, product: Node, others: Sequence[Node], parts: _Parts) -> Node | None:
        """sum_j others[i, j] * product[i, j] for product = rows @ columns, by a known product of `others` with the columns."""
        b = self.b
        rows, columns = product.inputs
        if any(f.type.shape[-1:] != product.type.shape[-1:] for f in others):
            return None
        wanted = b.permute(columns, (*range(columns.type.rank - 2), columns.type.rank - 1, columns.type.rank - 2))
        for left, right, value in self.products:
            own = _taken_apart([left], -1)
            fits = right is wanted and left.type.shape == product.type.shape and not own.negative
            if not fits or Counter(own.over) != Counter(others) or Counter(own.still) - Counter(parts.still):
                continue
            if not set(own.kept) <= set(parts.kept):
                continue
            for f in own.still:
                parts.still.remove(f)
            before = self.written_out
            made = self._along([rows, value()], -1)
            self.written_out = before
            for f in own.below:
                if f in parts.below:
                    parts.below.remove(f)
                else:
                    made = b.op("mul", made, f)
            self.exchanged += 1
            return made
        return None

    def _repeated(self, whole: Sequence[Node], axis: int) -> Node:
        """A sum of what is the same along the axis: as often as it is long."""
        length = next((f.type.shape[axis] for f in whole if f.type.rank >= -axis and not is_one(f.type.shape[axis])), None)
        count = integer_const(1) if length is None else length
        return self.b.cast(self.b.scalar(count), whole[0].type.dtype)


@dataclass
class _Parts:
    """The factors of a product: those that vary along an axis, those that do not, and those that divide and do not; `kept`: what
    does not vary chooses between the product and 0 (the condition, and whether 0 is the first choice)."""

    over: list[Node]
    still: list[Node]
    below: list[Node]
    negative: bool
    kept: list[tuple[Node, bool]]


def _taken_apart(factors: Sequence[Node], axis: int) -> _Parts:
    parts = _Parts([], [], [], False, [])
    todo = list(factors)
    while todo:
        f = todo.pop()
        if f.op == "neg":
            parts.negative = not parts.negative
            todo.append(f.inputs[0])
        elif _constant_along(f, axis):
            parts.still.append(f)
        elif f.op == "mul":
            todo += f.inputs
        elif f.op == "where" and _constant_along(f.inputs[0], axis) and any(map(_zero, f.inputs[1:])):
            first = _zero(f.inputs[1])
            parts.kept.append((f.inputs[0], first))
            todo.append(f.inputs[2 if first else 1])
        elif f.op == "div" and _constant_along(f.inputs[1], axis):
            todo.append(f.inputs[0])
            parts.below.append(f.inputs[1])
        else:
            parts.over.append(f)
    return parts


def _zero(f: Node) -> bool:
    value = f.attrs.get("value")
    return f.op in ("scalar", "constant") and isinstance(value, Const) and value.value == 0


def _extent(factors: Sequence[Node], axis: int) -> Expr:
    """How long the product of `factors` is along `axis`, counted from the end."""
    found = (f.type.shape[axis] for f in factors if not _constant_along(f, axis))
    return next(found, integer_const(1))


def _constant_along(f: Node, axis: int) -> bool:
    return f.type.rank < -axis or is_one(f.type.shape[axis])
