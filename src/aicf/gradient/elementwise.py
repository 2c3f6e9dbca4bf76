"""The derivatives of scalar functions, one row each: what a cotangent of the result is worth for each operand.

A row takes the builder, the operands, the result and its cotangent, and gives one function per operand, so that only what is
asked for is computed; None where the derivative is zero everywhere. Where a function has a kink, a row takes the side that
PyTorch takes: two tensors share evenly where they are equal; beside a constant a clamp gives all, a relu nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from aicf.semantic import GraphBuilder, Node

Share = Callable[[], Node]
Derivative = Callable[[GraphBuilder, Sequence[Node], Node, Node], Sequence[Share | None]]


class NoDerivative(Exception):
    """A function whose derivative is no row of the table; the message says which, for people."""


def _unary(of: Callable[[GraphBuilder, Node, Node, Node], Node]) -> Derivative:
    """`of(b, x, y, g)` for a function of one operand."""
    return lambda b, x, y, g: [lambda: of(b, x[0], y, g)]


def _div(b: GraphBuilder, x: Sequence[Node], y: Node, g: Node) -> Sequence[Share | None]:
    return [lambda: b.op("div", g, x[1]), lambda: b.op("neg", b.op("div", b.op("mul", g, y), x[1]))]


def _extremum(beyond: str) -> Derivative:
    """Of max (`beyond` is gt) and min (lt)."""

    def row(b: GraphBuilder, x: Sequence[Node], y: Node, g: Node) -> Sequence[Share | None]:
        def share(own: Node, other: Node) -> Node:
            if own.op == "scalar" or other.op == "scalar":
                # relu and clamp, which differ where they meet the constant: relu gives nothing there, clamp all.
                return b.op("where", b.op(_kink(beyond, y), own, other), g, 0.0)
            tied = b.op("where", b.op("eq", own, other), b.op("mul", g, 0.5), 0.0)
            return b.op("where", b.op(beyond, own, other), g, tied)

        return [lambda: share(x[0], x[1]), lambda: share(x[1], x[0])]

    return row


def _kink(beyond: str, y: Node) -> str:
    named = "" if y.location is None else y.location.op
    return {"gt": "ge", "lt": "le"}[beyond] if "clamp" in named or "clip" in named else beyond


def _pow(b: GraphBuilder, x: Sequence[Node], y: Node, g: Node) -> Sequence[Share | None]:
    base, power = x

    def of_base() -> Node:
        if power.op not in ("scalar", "constant", "cast"):
            raise NoDerivative("a power whose exponent is a tensor")
        return b.op("mul", g, b.op("mul", power, b.op("pow", base, b.op("sub", power, 1.0))))

    def of_power() -> Node:
        raise NoDerivative("a power, for its exponent")

    return [of_base, of_power]


def _where(b: GraphBuilder, x: Sequence[Node], y: Node, g: Node) -> Sequence[Share | None]:
    return [None, lambda: b.op("where", x[0], g, 0.0), lambda: b.op("where", x[0], 0.0, g)]


def _flat(b: GraphBuilder, x: Sequence[Node], y: Node, g: Node) -> Sequence[Share | None]:
    return [None] * len(x)


DERIVATIVES: dict[str, Derivative] = {
    "add": lambda b, x, y, g: [lambda: g, lambda: g],
    "sub": lambda b, x, y, g: [lambda: g, lambda: b.op("neg", g)],
    "mul": lambda b, x, y, g: [lambda: b.op("mul", g, x[1]), lambda: b.op("mul", g, x[0])],
    "div": _div,
    "neg": _unary(lambda b, x, y, g: b.op("neg", g)),
    "abs": _unary(lambda b, x, y, g: b.op("mul", g, b.op("sign", x))),
    "max": _extremum("gt"),
    "min": _extremum("lt"),
    "exp": _unary(lambda b, x, y, g: b.op("mul", g, y)),
    "exp2": _unary(lambda b, x, y, g: b.op("mul", g, b.op("mul", y, math.log(2)))),
    "expm1": _unary(lambda b, x, y, g: b.op("mul", g, b.op("add", y, 1.0))),
    "log": _unary(lambda b, x, y, g: b.op("div", g, x)),
    "log2": _unary(lambda b, x, y, g: b.op("div", g, b.op("mul", x, math.log(2)))),
    "log1p": _unary(lambda b, x, y, g: b.op("div", g, b.op("add", x, 1.0))),
    "sqrt": _unary(lambda b, x, y, g: b.op("div", g, b.op("mul", y, 2.0))),
    "rsqrt": _unary(lambda b, x, y, g: b.op("mul", g, b.op("mul", b.op("mul", y, -0.5), b.op("mul", y, y)))),
    "tanh": _unary(lambda b, x, y, g: b.op("mul", g, b.op("sub", 1.0, b.op("mul", y, y)))),
    "sigmoid": _unary(lambda b, x, y, g: b.op("mul", g, b.op("mul", y, b.op("sub", 1.0, y)))),
    "softplus": _unary(lambda b, x, y, g: b.op("mul", g, b.op("sigmoid", x))),
    "erf": _unary(
        lambda b, x, y, g: b.op("mul", g, b.op("mul", b.op("exp", b.op("neg", b.op("mul", x, x))), 2 / math.sqrt(math.pi)))
    ),
    "sin": _unary(lambda b, x, y, g: b.op("mul", g, b.op("cos", x))),
    "cos": _unary(lambda b, x, y, g: b.op("neg", b.op("mul", g, b.op("sin", x)))),
    "pow": _pow,
    "where": _where,
    **dict.fromkeys(("floor", "ceil", "trunc", "round", "sign"), _flat),
}
