"""Derivatives of scalar functions, from the rows of `FUNCTIONS`.

    tanh(x)     ->  (1 - tanh(x) * tanh(x),)
    x * y       ->  (y, x)
    floor(x)    ->  (None,)
"""

from __future__ import annotations

from aicf.scalar.build import call, cast
from aicf.scalar.dtypes import is_float, is_int
from aicf.scalar.expr import Call, Const, Expr, const
from aicf.scalar.functions import FUNCTIONS


class _Expressions:
    """Rules over expressions (`rules.Algebra`)."""

    def apply(self, fn: str, *args: Expr) -> Expr:
        return call(fn, *args)

    def constant(self, value: float, like: Expr) -> Expr:
        return const(value, like.dtype)

    def number(self, e: Expr) -> float | None:
        return e.value if isinstance(e, Const) else None

    def whole(self, e: Expr) -> bool:
        return is_int(e.dtype)


EXPRESSIONS = _Expressions()


def partial_derivatives(e: Call) -> tuple[Expr | None, ...]:
    """The derivative of `e` by each of its operands, in the type of `e`; None where it is 0 (steps, conditions, integers).

    At ties and kinks they are PyTorch's: `max` gives half to each of two equal operands, `abs` has slope 0 at 0.
    """
    if not is_float(e.dtype):
        return (None,) * len(e.args)
    if e.fn == "cast":
        return (const(1, e.dtype) if is_float(e.args[0].dtype) else None,)
    derive = FUNCTIONS[e.fn].derivative
    if derive is None:
        return (None,) * len(e.args)
    args = tuple(a if a.dtype == "bool" else cast(a, e.dtype) for a in e.args)
    found: tuple[Expr | None, ...] = derive(EXPRESSIONS, e, *args)
    return tuple(d if is_float(a.dtype) else None for d, a in zip(found, e.args, strict=True))
