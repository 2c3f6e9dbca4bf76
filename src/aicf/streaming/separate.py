"""Separation: what depends on the streamed element is taken apart from what depends on earlier reductions.

    sums      exp(s - m) / l * v         ->   [exp(-m) / l] * [exp(s) * v]                 finite rank
              (x - mu) ** 2              ->   x*x  - 2 mu * x  + mu*mu * 1

Every subexpression is streamed (it depends on the element), of the row (it depends on earlier reductions), both (then it must
separate) or neither (an input of the row: it goes with either side). Only expressions of both kinds are taken apart; the rest
stays as written. The grammar is closed and everything outside it is refused with the guilty subexpression.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

from aicf.scalar import MONOIDS, Call, Const, Expr, Var, call, children, const, is_float, promote, rebuild
from aicf.semantic.refusal import Refused
from aicf.streaming.context import RANK_LIMIT, Context, Extremum, matching, new_base, positive
from aicf.streaming.terms import LN2, NOTHING, Term, add_up, inverse, key, merge, product, scaled, to_expr

# ------------------------------------------------------------------------------------------------ sums

Mode = Literal["factors", "terms", "all"]


def separate(c: Context, e: Expr, mode: Mode = "factors") -> list[Term]:
    """`e` as a sum of terms whose factors are streamed or not, never streamed and of the row at once. Raises Refused.

    `mode` says what happens to a sum that doesn't depend on the stream: it stays one atom (`factors`), its addends become
    terms (`terms`), or products of sums are multiplied out as well (`all`, for exponents, where things must cancel).
    """
    out = merge(_separate(c, e, mode))
    if c.mixed(e) and rank(c, out) > RANK_LIMIT:
        raise Refused(f"its rank is {rank(c, out)}, above the limit of {RANK_LIMIT}", e)
    return out


def rank(c: Context, terms: list[Term]) -> int:
    """The number of distinct streamed factors."""
    return len({_streamed_key(c, t) for t in terms if c.strict or not any(a is NOTHING for a, _ in t.powers)})


def _streamed_key(c: Context, t: Term) -> tuple[object, ...]:
    powers = frozenset(p for p in t.powers if c.has_streamed(p[0]))
    exponent = frozenset((frozenset(e.powers), e.coef) for e in t.exponent if any(c.has_streamed(a) for a, _ in e.powers))
    return powers, exponent, frozenset(t.keep)


def _separate(c: Context, e: Expr, mode: Mode) -> list[Term]:
    mixed, streamed, row = c.mixed(e), c.has_streamed(e), c.has_row(e)
    if isinstance(e, Const):
        return _constant(e)
    if isinstance(e, Var) and e in c.values:
        return _separate(c, c.values[e], mode)
    if streamed and not row and mode == "all":
        # An addend of an exponent stays as it is written, so that it is recognised in the extremum that bounds it.
        return [Term(powers=((e, 1),))]
    if isinstance(e, Call) and (mixed or is_float(e.dtype)):
        match e.fn, e.args:
            case "neg", (a,):
                return [scaled(t, -1.0) for t in separate(c, a, mode)]
            case "add" | "sub", (a, b) if mixed or (row and not streamed and mode != "factors"):
                sign = 1.0 if e.fn == "add" else -1.0
                return separate(c, a, mode) + [scaled(t, sign) for t in separate(c, b, mode)]
            case "mul", (a, b) if mixed or streamed or row:
                inner: Mode = "all" if mode == "all" else "factors"
                return _products(c, e, separate(c, a, inner), separate(c, b, inner))
            case "div", (a, b) if mixed or streamed or row:
                inner = "all" if mode == "all" else "factors"
                return _products(c, e, separate(c, a, inner), [_reciprocal(c, b)])
            case "exp", (a,) if mixed or streamed or row:
                return _exponential(c, a, 1.0)
            case "exp2", (a,) if mixed or streamed or row:
                return _exponential(c, a, LN2)
            case "pow", (a, Const() as n) if (mixed or streamed) and _power_taken_apart(float(n.value)):
                return _power(c, e, a, int(n.value))
            case "pow", (Const() as base, a) if base.value > 0 and (mixed or streamed or row):
                return _exponential(c, a, math.log(base.value))
            case "where", _ if row and not streamed and mode != "factors":
                shared = _shared_addends(c, e, mode)
                if shared:
                    return shared
            case "cast", (a,) if is_float(e.dtype) and not streamed and is_float(a.dtype):
                # Between carried states and results everything is computed in one wide type.
                if row or promote(a.dtype, e.dtype) == e.dtype:
                    return separate(c, a, mode)
            case _:
                pass
    if mixed:
        return _mixed(c, e, mode)
    if row:
        simpler = canon(c, e)
        if mode != "factors" and simpler is not e and isinstance(simpler, Call) and simpler.fn in ("add", "sub", "neg"):
            return separate(c, simpler, mode)
        e = simpler
    return [Term(powers=((e, 1),))]


def _shared_addends(c: Context, e: Call, mode: Mode) -> list[Term]:
    """`where(k, m, m + log(l))` as `m + where(k, 0, log(l))`: what both sides add stands outside, where an exponential finds it
    (a log-sum-exp is spelled so). Nothing when they share no addend."""
    condition, a, b = e.args
    sides = [separate(c, x, mode) for x in (a, b)]
    both = [t for t in sides[0] if any(t.coef == u.coef and key(t) == key(u) for u in sides[1])]
    if not both:
        return []
    rest = [add_up([t for t in side if all(key(t) != key(u) for u in both)], e.dtype) for side in sides]
    chosen = canon(c, call("where", condition, *rest))
    return both if isinstance(chosen, Const) and chosen.value == 0 else [*both, Term(powers=((chosen, 1),))]


def _constant(e: Const) -> list[Term]:
    value = float(e.value)
    if isinstance(e.value, bool) or value != value or abs(value) == float("inf"):
        return [Term(powers=((e, 1),))]
    return [Term(coef=value)] if value else []


def _products(c: Context, e: Expr, a: list[Term], b: list[Term]) -> list[Term]:
    out = merge(product(s, t) for s in a for t in b)
    if rank(c, out) > RANK_LIMIT:
        raise Refused(f"its rank is above the limit of {RANK_LIMIT}", e)
    return out


def _reciprocal(c: Context, b: Expr) -> Term:
    if isinstance(b, Const):
        value = float(b.value)
        # A power of two has an exact reciprocal; any other divisor stays a divisor.
        if value and value == value and abs(value) != float("inf") and (1.0 / value) * value == 1.0 and _power_of_two(value):
            return Term(coef=1.0 / value)
        return Term(powers=((b, -1),))
    terms = separate(c, b)
    if len(terms) == 1 and not terms[0].keep and not terms[0].rows:
        return inverse(terms[0])
    if c.mixed(b):
        raise Refused("it divides by a sum that mixes the streamed element and earlier reductions", b)
    return Term(powers=((canon(c, b), -1),))


def _power_taken_apart(n: float) -> bool:
    return n == int(n) and n not in (0, 1) and abs(n) <= RANK_LIMIT


def _power_of_two(value: float) -> bool:
    mantissa = abs(value).hex().split("p")[0]
    return mantissa in ("0x1.0000000000000", "0x1.0")


def _power(c: Context, e: Expr, a: Expr, n: int) -> list[Term]:
    base = [_reciprocal(c, a)] if n < 0 else separate(c, a)
    out = base
    for _ in range(abs(n) - 1):
        out = _products(c, e, out, base)
    return out


def addends(c: Context, e: Expr, sign: float) -> list[tuple[float, Expr]]:
    """The addends of a mixed sum, with their signs."""
    if c.mixed(e) and isinstance(e, Call):
        match e.fn, e.args:
            case "add", (a, b):
                return addends(c, a, sign) + addends(c, b, sign)
            case "sub", (a, b):
                return addends(c, a, sign) + addends(c, b, -sign)
            case "neg", (a,):
                return addends(c, a, -sign)
            case "cast", (a,) if is_float(e.dtype):
                return addends(c, a, sign)
            case _:
                pass
    return [(sign, e)]


def _exponential(c: Context, a: Expr, scale: float) -> list[Term]:
    """exp(scale * a)."""
    out = [Term()]
    for sign, part in addends(c, a, scale):
        if isinstance(part, Call) and part.fn == "where" and c.mixed(part):
            factor = const(sign, part.dtype)
            chosen = [call("exp", call("mul", factor, b)) for b in part.args[1:]]
            out = _products(c, part, out, separate(c, call("where", part.args[0], *chosen)))
            continue
        for t in _around_extremum(c, part, separate(c, part, "all")):
            out = _products(c, part, out, [_raise_e(c, scaled(t, sign), part)])
    return out


def _around_extremum(c: Context, part: Expr, terms: list[Term]) -> list[Term]:
    """An addend of the row that is a running extremum B and more, as B and what its value is away from B.

    `exp(s - lse)` with `lse = m + log(l)` is not `exp(s - m) / l` where m is so large that log(l) is rounded away (a row that is
    masked everywhere with the smallest number): the sum is rounded here as the source rounds it.
    """
    extrema = [t.powers[0][0] for t in terms if t.plain and t.coef == 1 and len(t.powers) == 1 and t.powers[0][1] == 1]
    bases = [b for b in extrema if b in c.bases and is_float(b.dtype)]
    if c.has_streamed(part) or len(terms) < 2 or len(bases) != 1:
        return terms
    return [Term(powers=((bases[0], 1),)), Term(powers=((_away(canon(c, part), bases[0]), 1),))]


def _away(e: Expr, base: Expr) -> Expr:
    """`e - base`, 0 where e is chosen to be the base itself (which may be infinite)."""
    if isinstance(e, Call) and e.fn == "where":
        return call("where", e.args[0], *(_away(side, base) for side in e.args[1:]))
    return const(0, e.dtype) if e is base else call("sub", e, base)




def _raise_e(c: Context, t: Term, where: Expr) -> Term:
    """e to the power of one addend."""
    if t.keep or t.rows:
        raise Refused("a condition inside an exponential", where)
    if t.exponent:
        if c.mixed(to_expr(t, c.dtype)):
            raise Refused("an exponential of an exponential that mixes the streamed element and earlier reductions", where)
        t = Term(coef=t.coef, powers=((to_expr(replace(t, coef=1.0), c.dtype), 1),))
    streamed = any(c.has_streamed(a) for a, _ in t.powers)
    if streamed and any(c.has_row(a) for a, _ in t.powers):
        raise Refused("exp of a product that mixes the streamed element and earlier reductions", to_expr(t, c.dtype))
    if len(t.powers) == 1 and not streamed and t.powers[0][1] == 1:
        atom = t.powers[0][0]
        unit = {"log": 1.0, "log2": LN2}.get(atom.fn if isinstance(atom, Call) else "")
        times = t.coef / unit if unit else 0.5
        if isinstance(atom, Call) and times == int(times) and abs(times) <= RANK_LIMIT:
            return Term(powers=((atom.args[0], int(times)),))
    return Term(exponent=(t,))


def _mixed(c: Context, e: Expr, mode: Mode) -> list[Term]:
    """The rules for functions of expressions of both kinds that are not products or sums."""
    if not isinstance(e, Call):
        raise Refused("its place in a tensor mixes the streamed element and earlier reductions", e)
    match e.fn, e.args:
        case "cast", (a,):
            if is_float(e.dtype):
                # The cast of a carried value is not linear; it is dropped, so that the value keeps the wider type.
                return separate(c, a, mode)
            raise Refused("a conversion to an integer that mixes the streamed element and earlier reductions", e)
        case "expm1", (a,):
            return separate(c, call("sub", call("exp", a), const(1, e.dtype)), mode)
        case "where", (condition, a, b):
            return _where(c, condition, a, b)
        case "sqrt" | "rsqrt", (a,):
            t = _rank_one(c, a, e)
            return _roots(c, t, e)
        case "log" | "log2", (a,):
            return _logarithm(c, e, a)
        case "abs", (a,):
            t = _rank_one(c, a, e)
            powers = tuple((call("abs", atom) if n % 2 else atom, n) for atom, n in t.powers)
            return [replace(t, coef=abs(t.coef), powers=powers)]
        case "pow", (a, Const() as n) if n.value == 0.5:
            return separate(c, call("sqrt", a), mode)
        case "pow", (a, Const() as n) if n.value == -0.5:
            return separate(c, call("rsqrt", a), mode)
        case "isnan" | "isinf" | "lt" | "le" | "gt" | "ge" | "eq" | "ne" | "and" | "or" | "not", _ if e.dtype == "bool":
            return separate(c, call("where", e, const(1, c.dtype), const(0, c.dtype)), mode)
        case "pow", (a, Const() as n) if n.value > 0 and n.value != int(n.value):
            return _real_power(c, _rank_one(c, a, e), float(n.value), e)
        case _:
            raise Refused(f"{e.fn} of an expression that mixes the streamed element and earlier reductions", e)


def _rank_one(c: Context, a: Expr, where: Expr) -> Term:
    terms = separate(c, a)
    if len(terms) != 1 or terms[0].keep or terms[0].rows:
        raise Refused("the argument mixes the streamed element and earlier reductions in more than one product", where)
    return terms[0]


def _halves(c: Context, t: Term, where: Expr) -> tuple[Term, Term]:
    """(the rest, the streamed part) of a rank-one term whose rest is known to be positive."""
    rest = Term(coef=abs(t.coef), powers=tuple(p for p in t.powers if not c.has_streamed(p[0])))
    mine = Term(coef=1.0 if t.coef > 0 else -1.0, powers=tuple(p for p in t.powers if c.has_streamed(p[0])))
    if not all(positive(c, a) or n % 2 == 0 for a, n in rest.powers):
        raise Refused("the sign of the factor that comes from earlier reductions is not known", where)
    return rest, mine


def _roots(c: Context, t: Term, e: Call) -> list[Term]:
    rest, mine = _halves(c, t, e)
    halved = tuple(scaled(x, 0.5 if e.fn == "sqrt" else -0.5) for x in t.exponent)
    parts = [Term(powers=((call(e.fn, to_expr(p, c.dtype)), 1),)) for p in (rest, mine) if p != Term()]
    out = Term(exponent=halved)
    for p in parts:
        out = product(out, p)
    return [out]


def _real_power(c: Context, t: Term, n: float, e: Call) -> list[Term]:
    """(exp(u - m) / l) ** n as exp(n * (u - m)) * (1 / l) ** n, for n > 0 that is no integer: l is positive."""
    rest, mine = _halves(c, t, e)
    out = Term(exponent=tuple(scaled(x, n) for x in t.exponent))
    for p in (rest, mine):
        if p != Term():
            value = to_expr(p, c.dtype)
            out = product(out, Term(powers=((call("pow", value, const(n, value.dtype)), 1),)))
    return [out]


def _logarithm(c: Context, e: Call, a: Expr) -> list[Term]:
    t = _rank_one(c, a, e)
    rest, mine = _halves(c, t, e)
    unit = 1.0 if e.fn == "log" else 1.0 / LN2
    out = [scaled(x, unit) for x in t.exponent]
    return out + [Term(powers=((call(e.fn, to_expr(p, c.dtype)), 1),)) for p in (rest, mine) if p != Term()]


# ------------------------------------------------------------------------------------------------ conditions


def _where(c: Context, condition: Expr, a: Expr, b: Expr) -> list[Term]:
    """where(condition, a, b): a condition on the element selects inside the sum, one on the row outside of it."""
    if c.mixed(condition):
        known = _row_event(c, condition)
        if known is not None:
            return _where(c, known, a, b)
        if isinstance(condition, Call):
            match condition.fn, condition.args:
                case "and", (p, q) if p.dtype == "bool":
                    return _where(c, p, call("where", q, a, b), b)
                case "or", (p, q) if p.dtype == "bool":
                    return _where(c, p, a, call("where", q, a, b))
                case "not", (p,):
                    return _where(c, p, b, a)
                case _:
                    pass
        raise Refused("a condition that mixes the streamed element and earlier reductions", condition)
    if isinstance(condition, Const):
        return separate(c, a if condition.value else b)
    if c.has_streamed(condition):
        return [_kept(c, t, condition) for t in separate(c, a)] + [
            _kept(c, t, call("not", condition)) for t in separate(c, b)
        ]
    row = canon(c, condition)
    return [replace(t, rows=with_condition(t.rows, row)) for t in _side(c, a)] + [
        replace(t, rows=with_condition(t.rows, call("not", row))) for t in _side(c, b)
    ]


def _side(c: Context, e: Expr) -> list[Term]:
    """One side of a selection by a condition on the row. A row of zeros still meets everything that it is multiplied with."""
    nothing = isinstance(e, Const) and not isinstance(e.value, bool) and e.value == 0
    return [Term(powers=((NOTHING, 1),))] if nothing else separate(c, e)


def with_condition(conditions: tuple[Expr, ...], more: Expr) -> tuple[Expr, ...]:
    return conditions if more in conditions else (*conditions, more)


def _kept(c: Context, t: Term, condition: Expr) -> Term:
    """`t` selected by a condition on the element. Streamed factors are selected too: nothing is multiplied by 0."""
    mine = tuple(p for p in t.powers if c.has_streamed(p[0]))
    rest = tuple(p for p in t.powers if not c.has_streamed(p[0]))
    if mine and t.exponent:
        value = to_expr(Term(powers=mine), c.dtype)
        mine = ((call("where", condition, value, const(0, value.dtype)), 1),)
    inner = (
        tuple(p for p in rest if c.has_row(p[0])),
        tuple(e for e in t.exponent if any(c.has_row(a) for a, _ in e.powers)),
    )
    return replace(t, powers=rest + mine, keep=with_condition(t.keep, condition), inner=inner)


def _row_event(c: Context, condition: Expr) -> Expr | None:
    """A mixed condition that has the same value for every element of the row, as a condition on the row.

    `isnan(p)` of a probability `p = exp(u - max u) / l`, scores not being NaN: if max u is finite, every exponential lies
    in [0, 1], `l` holds the one at the maximum and is at least 1, so nothing is NaN unless `l` is; if it is -inf,
    `u - max u` is NaN everywhere; if it is +inf, `l` is NaN.
    """
    if not isinstance(condition, Call):
        return None
    match condition.fn, condition.args:
        case "isnan", (p,):
            return _is_nan(c, p)
        case "ne", (p, q) if p is q:
            return _is_nan(c, p)
        case "eq", (p, q) if p is q:
            event = _is_nan(c, p)
            return None if event is None else call("not", event)
        case "isinf", (p,) if _is_nan(c, p) is not None:
            return const(False, "bool")
        case "eq", (p, Const() as k) if abs(float(k.value)) == float("inf") and _is_nan(c, p) is not None:
            return const(False, "bool")
        case "eq", (Const() as k, p) if abs(float(k.value)) == float("inf") and _is_nan(c, p) is not None:
            return const(False, "bool")
        case _:
            return None


def _is_nan(c: Context, p: Expr) -> Expr | None:
    terms = separate(c, p)
    if len(terms) != 1 or terms[0].rows or terms[0].keep:
        return None
    (t,) = terms
    if any(c.has_streamed(a) for a, _ in t.powers):
        return None
    streamed = [e for e in t.exponent if any(c.has_streamed(a) for a, _ in e.powers)]
    matched = matching(c, t)
    if len(matched) != 1 or not streamed or not matched[0].whole:
        return None
    base = matched[0].base
    exponential = _exponential_key(t.exponent)
    event: Expr = call("eq", base.state, MONOIDS[base.op].nothing(base.state.dtype))
    # What else the source subtracts, a log-sum-exp, is NaN where a score is; where one is inf, the others give 0.
    rows = [e for e in t.exponent if e not in streamed and any(c.has_row(a) and a is not base.state for a, _ in e.powers)]
    if rows:
        event = call("or", call("eq", call("abs", base.state), const(float("inf"), base.state.dtype)),
                     call("isnan", add_up(rows, c.dtype)))  # fmt: skip
    for atom, n in t.powers:
        if n == -1 and _covering(c, atom, exponential):
            event = call("or", event, call("isnan", atom))
        elif c.has_row(atom):
            return None
    return event


def _exponential_key(exponent: tuple[Term, ...] | list[Term]) -> frozenset[object]:
    return frozenset((frozenset(e.powers), e.coef) for e in exponent)


def _covering(c: Context, atom: Expr, exponential: frozenset[object]) -> bool:
    """`atom` is a sum of positive things, one of which is the sum of that exponential: at least 1."""
    if isinstance(atom, Var):
        return any(_exponential_key(s.exponent) == exponential for s in c.covers.get(atom, []))
    if isinstance(atom, Call) and atom.fn == "add":
        a, b = atom.args
        return (_covering(c, a, exponential) and positive(c, b)) or (_covering(c, b, exponential) and positive(c, a))
    return False


# ------------------------------------------------------------------------------------------------ expressions of the row


def canon(c: Context, e: Expr) -> Expr:
    """An expression that doesn't depend on the stream in terms of states, simplified: what cancels is gone."""
    if not c.has_row(e):
        return e
    form = c.canonical.get(e)
    if form is None:
        form = c.canonical[e] = _canon(c, e)
    return form


def _canon(c: Context, e: Expr) -> Expr:
    if isinstance(e, Var):
        return c.values.get(e, e)
    if isinstance(e, Call) and is_float(e.dtype):
        match e.fn, e.args:
            case "add" | "sub", _:
                return add_up(separate(c, e, "terms"), c.dtype)
            case "mul" | "div" | "neg" | "exp" | "exp2", _:
                return add_up(separate(c, e), c.dtype)
            case "cast", (a,) if is_float(a.dtype):
                return canon(c, a)
            case ("max" | "min"), (a, b):
                return _united_extremum(c, e.fn, a, b)
            case _:
                pass
    return rebuild(e, tuple(canon(c, x) for x in children(e)))


def _united_extremum(c: Context, op: str, a: Expr, b: Expr) -> Expr:
    """max(B + v, t + v) as v + max(B, t), and max(B, t) with t an input of the row as one running maximum that starts at t."""
    kind: Extremum = "max" if op == "max" else "min"
    sides = [separate(c, x, "all") for x in (a, b)]
    if any(t.rows or t.keep for side in sides for t in side):
        return call(op, canon(c, a), canon(c, b))
    common = [t for t in sides[0] if t in sides[1]]
    rest = [add_up((t for t in side if t not in common), c.dtype) for side in sides]
    merged = _merged_base(c, kind, rest)
    return add_up([Term(powers=((merged, 1),)), *common], c.dtype) if common else merged


def _merged_base(c: Context, op: Extremum, args: list[Expr]) -> Expr:
    flat: list[Expr] = []
    stack = list(reversed(args))
    while stack:
        e = stack.pop()
        if isinstance(e, Call) and e.fn == op and c.has_row(e):
            stack.extend(reversed(e.args))
        elif e not in flat:
            flat.append(e)
    bases = [c.bases[e] for e in flat if isinstance(e, Var) and e in c.bases and c.bases[e].op == op]
    inert = [e for e in flat if not c.has_row(e)]
    others = [e for e in flat if c.has_row(e) and not any(e is b.state for b in bases)]
    inits = [b.init for b in bases if b.init is not None] + inert
    if not bases:
        return _join(op, flat)
    state: Expr = bases[0].state
    if len(bases) > 1 or inert:
        body = _join(op, [b.body for b in bases])
        state = new_base(c, body, op, (), _join(op, inits) if inits else None, bases[0].state)
    return _join(op, [state, *others])


def _join(op: Extremum, args: list[Expr]) -> Expr:
    unique = list(dict.fromkeys(args))
    out = unique[0]
    for e in unique[1:]:
        out = call(op, out, e)
    return out
