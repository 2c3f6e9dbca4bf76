"""Rules of scalar functions, for the rows of `functions.FUNCTIONS`: bounds, derivatives, and where a masked summand is zero.

Each rule is written once, over an `Algebra`. Over numbers, the interval rules are the range analysis of integers (`ranges`);
over expressions, they are the bounds of a tile (`aicf.streaming.tiles`), and the derivative rules make expressions. A pair is an
interval, (lowest, highest), both inclusive.
"""

from __future__ import annotations

import math
from typing import Protocol, TypeVar

E = TypeVar("E")


class Algebra(Protocol[E]):
    """What rules compute with: numbers or expressions."""

    def apply(self, fn: str, *args: E) -> E:
        """The function `fn` of the table."""
        ...

    def constant(self, value: float, like: E) -> E:
        """A constant of the type of `like`."""
        ...

    def number(self, e: E) -> float | None:
        """The value of `e` where it is known."""
        ...

    def whole(self, e: E) -> bool:
        """Whether `e` is an integer by its type."""
        ...


Pair = tuple[E, E]

# ------------------------------------------------------------------------------------------------ bounds


def _point(o: Algebra[E], x: Pair[E]) -> float | None:
    """The number that an interval consists of, if it is one and known."""
    value = o.number(x[0])
    return value if value is not None and value == o.number(x[1]) else None


def increasing(o: Algebra[E], fn: str, *operands: Pair[E]) -> Pair[E]:
    """Bounds of a function that increases in every operand."""
    return o.apply(fn, *(x[0] for x in operands)), o.apply(fn, *(x[1] for x in operands))


def monotone(o: Algebra[E], fn: str, direction: int, domain: float, x: Pair[E]) -> Pair[E]:
    """Bounds of a function of one operand that increases (1) or decreases (-1) from `domain` on. Where an operand may lie below,
    the result may be NaN, and the bounds are NaN: no comparison holds for them."""
    ends = x if direction > 0 else (x[1], x[0])
    low, high = (o.apply(fn, end) for end in ends)
    if domain == -math.inf:
        return low, high
    outside = o.apply("lt", x[0], o.constant(domain, x[0]))
    nan = o.constant(math.nan, low)
    return o.apply("where", outside, nan, low), o.apply("where", outside, nan, high)


def add(o: Algebra[E], x: Pair[E], y: Pair[E]) -> Pair[E]:
    return increasing(o, "add", x, y)


def sub(o: Algebra[E], x: Pair[E], y: Pair[E]) -> Pair[E]:
    return o.apply("sub", x[0], y[1]), o.apply("sub", x[1], y[0])


def neg(o: Algebra[E], x: Pair[E]) -> Pair[E]:
    return o.apply("neg", x[1]), o.apply("neg", x[0])


def mul(o: Algebra[E], x: Pair[E], y: Pair[E]) -> Pair[E]:
    """A known factor decides which end is which; else the least and the greatest of the four products of ends."""
    for factor, other in ((x, y), (y, x)):
        value = _point(o, factor)
        if value is not None:
            ends = o.apply("mul", other[0], factor[0]), o.apply("mul", other[1], factor[0])
            return ends if value >= 0 else (ends[1], ends[0])
    corners = [o.apply("mul", p, q) for p in x for q in y]
    low = high = corners[0]
    for c in corners[1:]:
        low, high = o.apply("min", low, c), o.apply("max", high, c)
    return low, high


def larger(o: Algebra[E], x: Pair[E], y: Pair[E]) -> Pair[E]:
    return increasing(o, "max", x, y)


def smaller(o: Algebra[E], x: Pair[E], y: Pair[E]) -> Pair[E]:
    return increasing(o, "min", x, y)


def magnitude(o: Algebra[E], x: Pair[E]) -> Pair[E]:
    low = o.apply("max", o.constant(0, x[0]), o.apply("max", x[0], o.apply("neg", x[1])))
    return low, o.apply("max", o.apply("abs", x[0]), o.apply("abs", x[1]))


def signs(o: Algebra[E], x: Pair[E]) -> Pair[E]:
    return increasing(o, "sign", x)


def quotient(o: Algebra[E], x: Pair[E], y: Pair[E]) -> Pair[E] | None:
    """Bounds of a quotient rounded down, by a divisor that is known to be positive."""
    least = o.number(y[0])
    if least is None or least <= 0 or not o.whole(y[0]):
        return None
    if _point(o, y) is not None:
        return o.apply("floordiv", x[0], y[0]), o.apply("floordiv", x[1], y[0])
    corners = [o.apply("floordiv", p, q) for p in x for q in y]
    low = high = corners[0]
    for c in corners[1:]:
        low, high = o.apply("min", low, c), o.apply("max", high, c)
    return low, high


def remainder(o: Algebra[E], x: Pair[E], y: Pair[E]) -> Pair[E] | None:
    """Bounds of a remainder by a divisor that is known to be positive: exact where the quotient is the same at both ends."""
    least = o.number(y[0])
    if least is None or least <= 0 or not o.whole(y[0]):
        return None
    zero = o.constant(0, x[0])
    top = o.apply("sub", y[1], o.constant(1, y[1]))
    if _point(o, y) is None:
        lowest, highest = o.number(x[0]), o.number(x[1])
        short = lowest is not None and highest is not None and lowest >= 0
        return zero, o.apply("min", top, x[1]) if short else top
    wraps = o.apply("ne", o.apply("floordiv", x[0], y[0]), o.apply("floordiv", x[1], y[0]))
    rests = [o.apply("mod", end, y[0]) for end in x]
    return o.apply("where", wraps, zero, rests[0]), o.apply("where", wraps, top, rests[1])


def clamped(o: Algebra[E], x: Pair[E], n: Pair[E]) -> Pair[E]:
    """Bounds of an index into n elements."""
    zero = o.constant(0, x[0])
    last = [o.apply("max", zero, o.apply("sub", end, o.constant(1, end))) for end in n]
    low, high = (o.apply("min", o.apply("max", zero, end), top) for end, top in zip(x, last, strict=True))
    return low, high


# ------------------------------------------------------------------------------------------------ derivatives
# (algebra, result, operands) -> one partial derivative for each operand; None where it is 0, or where there is none.

Partials = tuple["E | None", ...]


def _of(o: Algebra[E], fn: str, e: E, value: float, swapped: bool = False) -> E:
    c = o.constant(value, e)
    return o.apply(fn, c, e) if swapped else o.apply(fn, e, c)


def d_add(o: Algebra[E], r: E, a: E, b: E) -> Partials[E]:
    return o.constant(1, r), o.constant(1, r)


def d_sub(o: Algebra[E], r: E, a: E, b: E) -> Partials[E]:
    return o.constant(1, r), o.constant(-1, r)


def d_mul(o: Algebra[E], r: E, a: E, b: E) -> Partials[E]:
    return b, a


def d_div(o: Algebra[E], r: E, a: E, b: E) -> Partials[E]:
    return _of(o, "div", b, 1, swapped=True), o.apply("neg", o.apply("div", r, b))


def d_neg(o: Algebra[E], r: E, a: E) -> Partials[E]:
    return (o.constant(-1, r),)


def d_abs(o: Algebra[E], r: E, a: E) -> Partials[E]:
    return (o.apply("sign", a),)


def _chosen(o: Algebra[E], loses: str, a: E, b: E, r: E) -> E:
    """1 where `a` is the extremum of the two, one half where they are equal, as in PyTorch."""
    less = o.apply("where", o.apply(loses, a, b), o.constant(0, r), o.constant(1, r))
    return o.apply("where", o.apply("eq", a, b), o.constant(0.5, r), less)


def d_max(o: Algebra[E], r: E, a: E, b: E) -> Partials[E]:
    return _chosen(o, "lt", a, b, r), _chosen(o, "lt", b, a, r)


def d_min(o: Algebra[E], r: E, a: E, b: E) -> Partials[E]:
    return _chosen(o, "gt", a, b, r), _chosen(o, "gt", b, a, r)


def d_mod(o: Algebra[E], r: E, a: E, b: E) -> Partials[E]:
    return o.constant(1, r), o.apply("neg", o.apply("floordiv", a, b))


def d_exp(o: Algebra[E], r: E, a: E) -> Partials[E]:
    return (r,)


def d_exp2(o: Algebra[E], r: E, a: E) -> Partials[E]:
    return (_of(o, "mul", r, math.log(2)),)


def d_expm1(o: Algebra[E], r: E, a: E) -> Partials[E]:
    return (_of(o, "add", r, 1),)


def d_log(o: Algebra[E], r: E, a: E) -> Partials[E]:
    return (_of(o, "div", a, 1, swapped=True),)


def d_log2(o: Algebra[E], r: E, a: E) -> Partials[E]:
    return (_of(o, "div", a, 1 / math.log(2), swapped=True),)


def d_log1p(o: Algebra[E], r: E, a: E) -> Partials[E]:
    return (_of(o, "div", _of(o, "add", a, 1), 1, swapped=True),)


def d_sqrt(o: Algebra[E], r: E, a: E) -> Partials[E]:
    return (_of(o, "div", r, 0.5, swapped=True),)


def d_rsqrt(o: Algebra[E], r: E, a: E) -> Partials[E]:
    return (_of(o, "mul", o.apply("mul", r, o.apply("mul", r, r)), -0.5),)


def d_tanh(o: Algebra[E], r: E, a: E) -> Partials[E]:
    return (_of(o, "sub", o.apply("mul", r, r), 1, swapped=True),)


def d_sigmoid(o: Algebra[E], r: E, a: E) -> Partials[E]:
    return (o.apply("mul", r, _of(o, "sub", r, 1, swapped=True)),)


def d_softplus(o: Algebra[E], r: E, a: E) -> Partials[E]:
    return (o.apply("sigmoid", a),)


def d_erf(o: Algebra[E], r: E, a: E) -> Partials[E]:
    return (_of(o, "mul", o.apply("exp", o.apply("neg", o.apply("mul", a, a))), 2 / math.sqrt(math.pi)),)


def d_sin(o: Algebra[E], r: E, a: E) -> Partials[E]:
    return (o.apply("cos", a),)


def d_cos(o: Algebra[E], r: E, a: E) -> Partials[E]:
    return (o.apply("neg", o.apply("sin", a)),)


def d_pow(o: Algebra[E], r: E, a: E, n: E) -> Partials[E]:
    """As in PyTorch: 0 for an exponent of 0 and, by the exponent, for a base of 0 that is not a pole."""
    zero = o.constant(0, r)
    slope = o.apply("mul", n, o.apply("pow", a, _of(o, "sub", n, 1)))
    none = o.apply("and", o.apply("eq", a, zero), o.apply("ge", n, zero))
    by_exponent = o.apply("where", none, zero, o.apply("mul", r, o.apply("log", a)))
    return o.apply("where", o.apply("eq", n, zero), zero, slope), by_exponent


def d_where(o: Algebra[E], r: E, c: E, a: E, b: E) -> Partials[E]:
    one, zero = o.constant(1, r), o.constant(0, r)
    return None, o.apply("where", c, one, zero), o.apply("where", c, zero, one)


# ------------------------------------------------------------------------------------------------ zero where masked


class Masked(Protocol[E]):
    """What is asked of operands in a tile that a mask hides; answers are conditions."""

    def zero(self, e: E) -> E:
        """`e` is 0 everywhere."""
        ...

    def zero_beside(self, e: E, other: E) -> E:
        """`e` is 0 everywhere, and `other` may be taken for finite."""
        ...

    def filled(self, e: E) -> E:
        """`e` is a mask's fill everywhere: -inf, or a large negative number."""
        ...

    def chosen(self, condition: E, yes: E, no: E) -> E:
        """`yes` where the condition selects it, `no` where it selects that."""
        ...

    def number(self, e: E) -> float | None:
        """The value of a constant."""
        ...

    def all(self, a: E, b: E) -> E: ...

    def any(self, a: E, b: E) -> E: ...

    def never(self) -> E: ...


def zero_product(ask: Masked[E], a: E, b: E) -> E:
    return ask.any(ask.zero_beside(a, b), ask.zero_beside(b, a))


def zero_quotient(ask: Masked[E], a: E, b: E) -> E:
    return ask.zero(a)


def zero_sum(ask: Masked[E], a: E, b: E) -> E:
    return ask.all(ask.zero(a), ask.zero(b))


def zero_relu(ask: Masked[E], a: E, b: E) -> E:
    return ask.filled(a) if ask.number(b) == 0 else ask.never()


def zero_choice(ask: Masked[E], condition: E, a: E, b: E) -> E:
    return ask.chosen(condition, ask.zero(a), ask.zero(b))
