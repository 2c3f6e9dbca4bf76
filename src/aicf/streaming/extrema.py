"""Separation of extrema: the maximum or minimum of a mixed expression, as an expression of running extrema.

    max over j of (s - mu)             ->   B - mu              with B = max over j of s
    max over j of |s - mu|             ->   max(B - mu, mu - b)  with b = min over j of s
    max over j of exp(s - m) / l       ->   exp(B - m) / l      an increasing function, a positive factor
"""

from __future__ import annotations

import math

from aicf.scalar import FUNCTIONS, MONOIDS, Call, Const, Expr, Function, call, const, is_float
from aicf.semantic.refusal import Refused
from aicf.streaming.context import Context, Extremum, new_base, positive, some
from aicf.streaming.separate import addends, canon, separate, with_condition
from aicf.streaming.terms import Term, add_up, to_expr


def extremum(c: Context, e: Expr, op: Extremum, keep: tuple[Expr, ...] = ()) -> Expr:
    """`op` over the stream of `e`, as an expression of new or known running extrema. Raises Refused."""
    if not c.has_row(e):
        return new_base(c, e, op, keep)
    if not c.has_streamed(e):
        return _if_any(c, canon(c, e), op, keep)
    if not isinstance(e, Call):
        raise Refused("its place in a tensor mixes the streamed element and earlier reductions", e)
    opposite: Extremum = "min" if op == "max" else "max"
    match e.fn, e.args:
        case "cast", (a,) if is_float(e.dtype) and is_float(a.dtype):
            return extremum(c, a, op, keep)
        case "neg", (a,):
            return canon(c, call("neg", extremum(c, a, opposite, keep)))
        case ("max" | "min"), (a, b) if e.fn == op:
            return canon(c, call(op, extremum(c, a, op, keep), extremum(c, b, op, keep)))
        case "abs", (a,) if op == "max":
            return canon(c, call("max", extremum(c, a, op, keep), extremum(c, call("neg", a), op, keep)))
        case "where", (condition, a, b) if not c.has_row(condition):
            sides = ((a, condition), (b, call("not", condition)))
            parts = [extremum(c, x, op, with_condition(keep, k)) for x, k in sides if not _is_identity(x, op)]
            return canon(c, call(op, *parts)) if len(parts) == 2 else parts[0]
        case "where", (condition, a, b) if not c.has_streamed(condition):
            return call("where", canon(c, condition), extremum(c, a, op, keep), extremum(c, b, op, keep))
        case fn, (a,) if fn in FUNCTIONS and FUNCTIONS[fn].monotone:
            return _if_any(c, _monotone(c, FUNCTIONS[fn], a, op, keep), op, keep)
        case ("mul" | "div"), _:
            scaled_by = _positive_scale(c, e)
            if scaled_by is not None:
                rest, mine = scaled_by
                return canon(c, call("mul", rest, extremum(c, mine, op, keep)))
        case _:
            pass
    return _additive(c, e, op, keep)


def _monotone(c: Context, f: Function, a: Expr, op: Extremum, keep: tuple[Expr, ...]) -> Expr:
    """The extremum of `f(a)`, from that of `a`. NaN where any element lies below the domain of `f`."""
    opposite: Extremum = "min" if op == "max" else "max"
    at = op if f.monotone > 0 else opposite
    value = canon(c, call(f.name, extremum(c, a, at, keep)))
    if f.domain == -math.inf or at == "min" or positive(c, a):
        return value
    lowest = extremum(c, a, "min", keep)
    below = call("lt", lowest, const(f.domain, lowest.dtype))
    return call("where", below, const(math.nan, value.dtype), value)


def _if_any(c: Context, e: Expr, op: Extremum, keep: tuple[Expr, ...]) -> Expr:
    """`e` if some element satisfies `keep`, else the identity: for values that don't become the identity by themselves."""
    return call("where", some(c, keep), e, MONOIDS[op].nothing(e.dtype)) if keep else e


def _is_identity(e: Expr, op: Extremum) -> bool:
    return isinstance(e, Const) and float(e.value) == MONOIDS[op].unit


def _positive_scale(c: Context, e: Expr) -> tuple[Expr, Expr] | None:
    """(h, g) with e = h * g and h > 0 free of the stream, or None."""
    terms = separate(c, e)
    if len(terms) != 1 or terms[0].keep or terms[0].rows:
        return None
    (t,) = terms
    if any(not c.has_streamed(a) and not positive(c, a) and n % 2 for a, n in t.powers):
        return None
    rest = Term(powers=tuple(p for p in t.powers if not c.has_streamed(p[0])),
                exponent=tuple(x for x in t.exponent if not any(c.has_streamed(a) for a, _ in x.powers)))  # fmt: skip
    if not rest.exponent and not rest.powers:
        return None
    # exp(u - m): the maximum of u goes with the exponential.
    mine = Term(coef=t.coef, powers=tuple(p for p in t.powers if c.has_streamed(p[0])),
                exponent=tuple(x for x in t.exponent if any(c.has_streamed(a) for a, _ in x.powers)))  # fmt: skip
    return to_expr(rest, c.dtype), to_expr(mine, c.dtype)


def _additive(c: Context, e: Expr, op: Extremum, keep: tuple[Expr, ...]) -> Expr:
    """A sum of streamed addends and addends of the row."""
    parts = addends(c, e, 1.0)
    inner = [(s, a) for s, a in parts if isinstance(a, Call) and a.fn in ("max", "min", "where", "abs") and c.mixed(a)]
    if len(inner) == 1 and len(parts) > 1:
        s, a = inner[0]
        rest = [x for x in parts if x[1] is not a]
        total = a if s > 0 else call("neg", a)

        def plus(arg: Expr) -> Expr:
            out = arg if s > 0 else call("neg", arg)
            for sign, r in rest:
                out = call("add" if sign > 0 else "sub", out, r)
            return out

        if isinstance(total, Call) and a.fn == ("max" if (op == "max") == (s > 0) else "min"):
            return extremum(c, call(op, plus(a.args[0]), plus(a.args[1])), op, keep)
        if a.fn == "where":
            return extremum(c, call("where", a.args[0], plus(a.args[1]), plus(a.args[2])), op, keep)
    u: list[Term] = []
    v: list[Term] = []
    for t in separate(c, e, "all"):
        whole = to_expr(t, c.dtype)
        if c.mixed(whole):
            raise Refused(f"{op} of a product that mixes the streamed element and earlier reductions", whole)
        (u if c.has_streamed(whole) else v).append(t)
    element = add_up(u, c.dtype)
    return canon(c, call("add", new_base(c, element, op, keep), add_up(v, c.dtype)))
