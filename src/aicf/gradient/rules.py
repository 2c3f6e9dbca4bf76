"""The vjp of each op of the table: a cotangent of the result in, cotangents of the operands out.

Element-wise ops are the rows of `elementwise.py`. An op without a row has no derivative here, which is said by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aicf.gradient.elementwise import DERIVATIVES, NoDerivative
from aicf.gradient.sums import Sums
from aicf.scalar import Expr, call, integer_const
from aicf.semantic import GraphBuilder, Node

ZERO = integer_const(0)


@dataclass
class Applied:
    """An op of the source where its derivative is asked: `x` and `y` are its operands and its result in the backward graph,
    computed when they are asked for, `weights` the softmax of the operand of a softmax or the like; `sums` sums over axes of what
    is made here; `without_mean(p, g, axis)` is `g` without its mean along `axis` by the weights `p`, whose sum is 1, and
    `sum_of(g, axis)` its sum; `still`: no output depends on what maxima and minima are; `first`: no product comes before this
    op."""

    b: GraphBuilder
    node: Node
    x: Callable[[int], Node]
    y: Callable[[], Node]
    weights: Callable[[], Node]
    sums: Sums
    still: bool
    without_mean: Callable[[Node, Node, int], Node]
    sum_of: Callable[[Node, int], Node]
    first: bool = False

    @property
    def attrs(self) -> Mapping[str, Any]:
        return self.node.attrs

    def shape(self, k: int) -> tuple[Expr, ...]:
        return self.node.inputs[k].type.shape


Rule = Callable[[Applied, Node, int], Node | None]


def vjp(a: Applied, g: Node, k: int) -> Node | None:
    """The cotangent of operand `k`, of its shape, for the cotangent `g` of the result. Raises NoDerivative."""
    op = a.node.op
    if op in DERIVATIVES:
        return _elementwise(a, g, k)
    rule = RULES.get(op)
    if rule is None:
        raise NoDerivative(op)
    return rule(a, g, k)


def _elementwise(a: Applied, g: Node, k: int) -> Node | None:
    axis = normalised_along(a.node)
    if axis is not None:
        # y = x / sum(x), both operands at once: dx = (g - mean of g by the weights y) / sum(x)
        return a.b.op("div", a.without_mean(a.y(), g, axis), a.x(1)) if k == 0 else None
    operands = [a.x(n) for n in range(len(a.node.inputs))]
    share = DERIVATIVES[a.node.op](a.b, operands, a.y(), g)[k]
    return None if share is None else a.sums.to_shape(share(), a.shape(k))


def normalised_along(node: Node) -> int | None:
    """The axis along which `node` is a tensor divided by its own sum."""
    if node.op != "div" or node.inputs[0].type.shape != node.type.shape:
        return None
    whole, total = node.inputs
    while total.op == "expand":
        (total,) = total.inputs
    if total.op == "reduce" and total.attrs["op"] == "sum" and total.attrs["keepdims"] and total.inputs == (whole,):
        axes = [x % whole.type.rank for x in total.attrs["axes"]]
        return axes[0] if len(axes) == 1 else None
    return None


def _reshape(a: Applied, g: Node, k: int) -> Node:
    return a.b.reshape(g, a.shape(0))


def _permute(a: Applied, g: Node, k: int) -> Node:
    perm = a.attrs["perm"]
    return a.b.permute(g, [perm.index(n) for n in range(len(perm))])


def _expand(a: Applied, g: Node, k: int) -> Node:
    return a.sums.to_shape(g, a.shape(0))


def _slice(a: Applied, g: Node, k: int) -> Node:
    shape, start, length, step = a.shape(0), a.attrs["start"], a.attrs["length"], a.attrs["step"]
    whole = [n is d for n, d in zip(length, shape, strict=True)]
    if any(t != 1 and not (t == -1 and w) for t, w in zip(step, whole, strict=True)):
        raise NoDerivative("a slice with a step")
    if any(t == -1 for t in step):
        flipped = [call("sub", n, integer_const(1)) if t == -1 else ZERO for n, t in zip(length, step, strict=True)]
        g = a.b.slice(g, flipped, length, step)
    low = tuple(ZERO if t == -1 else s for s, t in zip(start, step, strict=True))
    high = tuple(call("sub", d, call("add", s, n)) for d, s, n in zip(shape, low, length, strict=True))
    if all(x is ZERO for x in (*low, *high)):
        return g
    return a.b.op("pad", g, low=low, high=high, value=0.0)


def _pad(a: Applied, g: Node, k: int) -> Node:
    if any(isinstance(x, Expr) and getattr(x, "value", 0) < 0 for x in (*a.attrs["low"], *a.attrs["high"])):
        raise NoDerivative("a pad that takes away")
    return a.b.slice(g, a.attrs["low"], a.shape(0))


def _concat(a: Applied, g: Node, k: int) -> Node:
    axis = a.attrs["axis"] % g.type.rank
    begin: Expr = ZERO
    for n in range(k):
        begin = call("add", begin, a.shape(n)[axis])
    return a.sums.to_shape(a.sums.parts.of(g, axis - g.type.rank, begin, a.shape(k)[axis]), a.shape(k))


def _cast(a: Applied, g: Node, k: int) -> Node:
    return g


def _reduce(a: Applied, g: Node, k: int) -> Node | None:
    op = a.attrs["op"]
    if op in ("any", "all"):
        return None
    if op in ("max", "min") and a.still:
        return None  # what is computed does not depend on this reference (`streaming.shift_invariance` has proved it)
    if op != "sum":
        raise NoDerivative(f"a {op} over an axis")
    return a.b.expand(_with_axes(a, g), a.shape(0))


def _with_axes(a: Applied, g: Node) -> Node:
    """`g` with the axes that were reduced away, as 1."""
    rank = len(a.shape(0))
    axes = {x % rank for x in (a.attrs["axes"] if "axes" in a.attrs else (a.attrs["axis"],))}
    return a.b.reshape(g, [1 if n in axes else d for n, d in enumerate(a.shape(0))])


def _softmax(a: Applied, g: Node, k: int) -> Node:
    p = a.y()
    return a.b.op("mul", p, a.without_mean(p, g, a.attrs["axis"] % g.type.rank))


def _log_softmax(a: Applied, g: Node, k: int) -> Node:
    b = a.b
    total = a.sum_of(g, a.attrs["axis"] % g.type.rank)
    return b.op("sub", g, b.op("mul", a.weights(), total))


def _logsumexp(a: Applied, g: Node, k: int) -> Node:
    return a.b.op("mul", a.weights(), _with_axes(a, g))


def _matmul(a: Applied, g: Node, k: int) -> Node:
    b, other = a.b, a.x(1 - k)
    if k == 0:
        made = b.op("matmul", g, swapped(b, other))
    elif a.first or a.x(1).op == "permute":  # k^T: its rows are those of k, and so are its gradient's
        made = swapped(b, b.op("matmul", swapped(b, g), other))
    else:
        made = b.op("matmul", swapped(b, other), g)
    return a.sums.to_shape(made, a.shape(k))


def swapped(b: GraphBuilder, x: Node) -> Node:
    """`x` with its last two axes exchanged."""
    return b.permute(x, (*range(x.type.rank - 2), x.type.rank - 1, x.type.rank - 2))


def _einsum(a: Applied, g: Node, k: int) -> Node:
    terms, output = list(a.attrs["inputs"]), a.attrs["output"]
    extent: dict[str, Expr] = {}
    for term, node in zip(terms, a.node.inputs, strict=True):
        for label, d in zip(term, node.type.shape, strict=True):
            if extent.setdefault(label, d) is not d:
                raise NoDerivative("an einsum that repeats an axis of length 1")
    if any(len(set(t)) < len(t) for t in (*terms, output)):
        raise NoDerivative("an einsum with a diagonal")
    others = [n for n in range(len(terms)) if n != k]
    known = set(output).union(*(terms[n] for n in others))
    kept = "".join(x for x in terms[k] if x in known)
    made = a.b.einsum([output, *(terms[n] for n in others)], kept, g, *(a.x(n) for n in others))
    if kept == terms[k]:
        return made
    ones = a.b.reshape(made, [extent[x] if x in known else 1 for x in terms[k]])
    return a.b.expand(ones, a.shape(k))


RULES: Mapping[str, Rule] = {
    "reshape": _reshape, "permute": _permute, "expand": _expand, "slice": _slice, "pad": _pad, "concat": _concat, "cast": _cast,
    "reduce": _reduce, "softmax": _softmax, "log_softmax": _log_softmax, "logsumexp": _logsumexp, "matmul": _matmul,
    "einsum": _einsum,
}  # fmt: skip
