"""Separation: what depends on the streamed element is taken apart from what depends on earlier reductions.

    sums      exp(s - m) / l * v         ->   [exp(-m) / l] * [exp(s) * v]                 finite rank
              (x - mu) ** 2              ->   x*x  - 2 mu * x  + mu*mu * 1
    extrema   max over j of |x - mu|     ->   max(max x - mu, mu - min x)                  finite tropical rank

Every subexpression is x (it depends on the stream), rho (it depends on earlier reductions), both (then it must separate) or
neither (an input of the row: it goes with either side). Only expressions of both kinds are taken apart; the rest stays as
written. The grammar is closed and everything outside it is refused with the guilty subexpression.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from aicf.scalar import (
    FUNCTIONS,
    Call,
    Const,
    DType,
    Expr,
    Var,
    call,
    cast,
    children,
    const,
    is_float,
    is_half,
    promote,
    rebuild,
    substitute,
    var,
    variables,
)
from aicf.streaming.terms import (
    LN2,
    Term,
    add_up,
    expanded,
    inverse,
    merge,
    product,
    scaled,
    term_poly,
    to_expr,
)

RANK_LIMIT = 8
Extremum = Literal["max", "min"]
IDENTITY = {"max": float("-inf"), "min": float("inf")}


class Refused(Exception):
    """Internal: carries the reason out of the recursion; `derive` turns it into a NotSeparable."""

    def __init__(self, reason: str, where: Expr) -> None:
        super().__init__(reason)
        self.reason = reason
        self.where = where


@dataclass
class Found:
    """A running extremum found so far."""

    state: Var
    op: Extremum
    body: Expr
    init: Expr | None


@dataclass
class Context:
    """What is known while a cascade is taken apart: which variables are x and rho, and the states found so far."""

    x: frozenset[Var]
    dtype: DType
    rho: set[Var] = field(default_factory=set[Var])
    values: dict[Var, Expr] = field(default_factory=dict[Var, Expr])
    bases: dict[Var, Found] = field(default_factory=dict[Var, Found])
    positive: set[Var] = field(default_factory=set[Var])
    # Sums known to hold exp(u - max u), which is 1 at the maximum: name -> the key of that exponential.
    covers: dict[Var, list[Term]] = field(default_factory=dict[Var, list[Term]])
    reduction: str = ""
    canonical: dict[Expr, Expr] = field(default_factory=dict[Expr, Expr])

    def has_x(self, e: Expr) -> bool:
        return not variables(e).isdisjoint(self.x)

    def has_rho(self, e: Expr) -> bool:
        return not variables(e).isdisjoint(self.rho)

    def mixed(self, e: Expr) -> bool:
        return self.has_x(e) and self.has_rho(e)


# ------------------------------------------------------------------------------------------------ sums

Mode = Literal["factors", "terms", "all"]


def separate(c: Context, e: Expr, mode: Mode = "factors") -> list[Term]:
    """`e` as a sum of terms whose atoms are x or not x, never both. Raises Refused.

    `mode` says what happens to a sum that doesn't depend on the stream: it stays one atom (`factors`), its addends become
    terms (`terms`), or products of sums are multiplied out as well (`all`, for exponents, where things must cancel).
    """
    out = merge(_separate(c, e, mode))
    if c.mixed(e) and rank(c, out) > RANK_LIMIT:
        raise Refused(f"its rank is {rank(c, out)}, above the limit of {RANK_LIMIT}", e)
    return out


def rank(c: Context, terms: list[Term]) -> int:
    """The number of distinct streamed factors."""
    return len({_streamed_key(c, t) for t in terms})


def _streamed_key(c: Context, t: Term) -> tuple[object, ...]:
    powers = frozenset(p for p in t.powers if c.has_x(p[0]))
    exponent = frozenset((frozenset(e.powers), e.coef) for e in t.exponent if any(c.has_x(a) for a, _ in e.powers))
    return powers, exponent, frozenset(t.keep)


def _separate(c: Context, e: Expr, mode: Mode) -> list[Term]:
    mixed, x, rho = c.mixed(e), c.has_x(e), c.has_rho(e)
    if isinstance(e, Const):
        return _constant(e)
    if isinstance(e, Var) and e in c.values:
        return _separate(c, c.values[e], mode)
    if x and not rho and mode == "all":
        # An addend of an exponent stays as it is written, so that it is recognised in the extremum that bounds it.
        return [Term(powers=((e, 1),))]
    if isinstance(e, Call) and (mixed or is_float(e.dtype)):
        match e.fn, e.args:
            case "neg", (a,):
                return [scaled(t, -1.0) for t in separate(c, a, mode)]
            case "add" | "sub", (a, b) if mixed or (rho and not x and mode != "factors"):
                sign = 1.0 if e.fn == "add" else -1.0
                return separate(c, a, mode) + [scaled(t, sign) for t in separate(c, b, mode)]
            case "mul", (a, b) if mixed or x or rho:
                inner: Mode = "all" if mode == "all" else "factors"
                return _products(c, e, separate(c, a, inner), separate(c, b, inner))
            case "div", (a, b) if mixed or x or rho:
                inner = "all" if mode == "all" else "factors"
                return _products(c, e, separate(c, a, inner), [_reciprocal(c, b)])
            case "exp", (a,) if mixed or x or rho:
                return _exponential(c, a, 1.0)
            case "exp2", (a,) if mixed or x or rho:
                return _exponential(c, a, LN2)
            case "pow", (a, Const() as n) if n.value == int(n.value) and 2 <= abs(n.value) <= RANK_LIMIT and (mixed or x):
                return _power(c, e, a, int(n.value))
            case "cast", (a,) if is_float(e.dtype) and not x and is_float(a.dtype):
                # Between carried states and results everything is computed in one wide type.
                if rho or promote(a.dtype, e.dtype) == e.dtype:
                    return separate(c, a, mode)
            case _:
                pass
    if mixed:
        return _mixed(c, e, mode)
    if rho:
        simpler = canon(c, e)
        if mode != "factors" and simpler is not e and isinstance(simpler, Call) and simpler.fn in ("add", "sub", "neg"):
            return separate(c, simpler, mode)
        e = simpler
    return [Term(powers=((e, 1),))]


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


def _power_of_two(value: float) -> bool:
    mantissa = abs(value).hex().split("p")[0]
    return mantissa in ("0x1.0000000000000", "0x1.0")


def _power(c: Context, e: Expr, a: Expr, n: int) -> list[Term]:
    base = [_reciprocal(c, a)] if n < 0 else separate(c, a)
    out = base
    for _ in range(abs(n) - 1):
        out = _products(c, e, out, base)
    return out


def _addends(c: Context, e: Expr, sign: float) -> list[tuple[float, Expr]]:
    """The addends of a mixed sum, with their signs."""
    if c.mixed(e) and isinstance(e, Call):
        match e.fn, e.args:
            case "add", (a, b):
                return _addends(c, a, sign) + _addends(c, b, sign)
            case "sub", (a, b):
                return _addends(c, a, sign) + _addends(c, b, -sign)
            case "neg", (a,):
                return _addends(c, a, -sign)
            case "cast", (a,) if is_float(e.dtype):
                return _addends(c, a, sign)
            case _:
                pass
    return [(sign, e)]


def _exponential(c: Context, a: Expr, scale: float) -> list[Term]:
    """exp(scale * a)."""
    out = [Term()]
    for sign, part in _addends(c, a, scale):
        if isinstance(part, Call) and part.fn == "where" and c.mixed(part):
            factor = const(sign, part.dtype)
            chosen = [call("exp", call("mul", factor, b)) for b in part.args[1:]]
            out = _products(c, part, out, separate(c, call("where", part.args[0], *chosen)))
            continue
        for t in separate(c, part, "all"):
            out = _products(c, part, out, [_raise_e(c, scaled(t, sign), part)])
    return out


def _raise_e(c: Context, t: Term, where: Expr) -> Term:
    """e to the power of one addend."""
    if t.keep or t.rows:
        raise Refused("a condition inside an exponential", where)
    if t.exponent:
        if c.mixed(to_expr(t, c.dtype)):
            raise Refused("an exponential of an exponential that mixes the streamed element and earlier reductions", where)
        t = Term(coef=t.coef, powers=((to_expr(replace(t, coef=1.0), c.dtype), 1),))
    x = any(c.has_x(a) for a, _ in t.powers)
    if x and any(c.has_rho(a) for a, _ in t.powers):
        raise Refused("exp of a product that mixes the streamed element and earlier reductions", to_expr(t, c.dtype))
    if len(t.powers) == 1 and not x and t.powers[0][1] == 1:
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
        case _:
            raise Refused(f"{e.fn} of an expression that mixes the streamed element and earlier reductions", e)


def _rank_one(c: Context, a: Expr, where: Expr) -> Term:
    terms = separate(c, a)
    if len(terms) != 1 or terms[0].keep or terms[0].rows:
        raise Refused("the argument mixes the streamed element and earlier reductions in more than one product", where)
    return terms[0]


def _halves(c: Context, t: Term, where: Expr) -> tuple[Term, Term]:
    """(the rest, the streamed part) of a rank-one term whose rest is known to be positive."""
    rest = Term(coef=abs(t.coef), powers=tuple(p for p in t.powers if not c.has_x(p[0])))
    mine = Term(coef=1.0 if t.coef > 0 else -1.0, powers=tuple(p for p in t.powers if c.has_x(p[0])))
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
    if c.has_x(condition):
        return [_kept(c, t, condition) for t in separate(c, a)] + [
            _kept(c, t, call("not", condition)) for t in separate(c, b)
        ]
    row = canon(c, condition)
    return [replace(t, rows=_with(t.rows, row)) for t in separate(c, a)] + [
        replace(t, rows=_with(t.rows, call("not", row))) for t in separate(c, b)
    ]


def _with(conditions: tuple[Expr, ...], more: Expr) -> tuple[Expr, ...]:
    return conditions if more in conditions else (*conditions, more)


def _where_kept(e: Expr, keep: tuple[Expr, ...]) -> Expr:
    """`e` where the conditions are known to hold: `where(keep, s, -inf)` is `s` there."""
    for condition in keep:
        e = substitute(e, {condition: const(True, "bool")})
        if isinstance(condition, Call) and condition.fn == "not":
            e = substitute(e, {condition.args[0]: const(False, "bool")})
    return e


def _kept(c: Context, t: Term, condition: Expr) -> Term:
    """`t` selected by a condition on the element. Streamed factors are selected too: nothing is multiplied by 0."""
    mine = tuple(p for p in t.powers if c.has_x(p[0]))
    rest = tuple(p for p in t.powers if not c.has_x(p[0]))
    if mine and t.exponent:
        value = to_expr(Term(powers=mine), c.dtype)
        mine = ((call("where", condition, value, const(0, value.dtype)), 1),)
    return replace(t, powers=rest + mine, keep=_with(t.keep, condition))


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
    if any(c.has_x(a) for a, _ in t.powers):
        return None
    streamed = [e for e in t.exponent if any(c.has_x(a) for a, _ in e.powers)]
    matched = matching(c, t)
    if len(matched) != 1 or not streamed or not matched[0].whole:
        return None
    base = matched[0].base
    exponential = _exponential_key(t.exponent)
    event: Expr = call("eq", base.state, const(IDENTITY[base.op], base.state.dtype))
    for atom, n in t.powers:
        if n == -1 and _covering(c, atom, exponential):
            event = call("or", event, call("isnan", atom))
        elif c.has_rho(atom):
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


def positive(c: Context, e: Expr) -> bool:
    """Known to be >= 0 and not 0 by its form (0 only by underflow)."""
    match e:
        case Const():
            return not isinstance(e.value, bool) and e.value > 0
        case Var():
            return e in c.positive
        case Call(fn="exp" | "exp2" | "sigmoid" | "softplus"):
            return True
        case Call(fn="add" | "mul" | "div", args=(a, b)):
            return positive(c, a) and positive(c, b)
        case Call(fn="max", args=(a, b)):
            return positive(c, a) or positive(c, b)
        case Call(fn="min", args=(a, b)):
            return positive(c, a) and positive(c, b)
        case Call(fn="sqrt" | "rsqrt" | "cast", args=(a,)):
            return positive(c, a)
        case _:
            return False


# ------------------------------------------------------------------------------------------------ exponents and extrema


@dataclass(frozen=True)
class Match:
    """A factor exp(-p * base) of a term that belongs to a factor exp(p * u), where base is the extremum of u.

    `body` is u as written (under the term's conditions); `whole`: u is all that the exponential holds of the stream;
    `exact`: and it has the very same roundings. `used`: the monomials of the exponent that u accounts for.
    """

    base: Found
    p: Term
    body: Expr
    exact: bool
    whole: bool
    used: frozenset[object]


def matching(c: Context, t: Term) -> list[Match]:
    """The extrema whose exponential must stay next to the streamed factor of `t` (the stabiliser rule)."""
    streamed = [e for e in t.exponent if any(c.has_x(a) for a, _ in e.powers)]
    inert = [e for e in t.exponent if not any(c.has_x(a) or c.has_rho(a) for a, _ in e.powers)]
    if not streamed:
        return []
    out: list[Match] = []
    for e in t.exponent:
        hits = [a for a, n in e.powers if isinstance(a, Var) and a in c.bases and n == 1]
        if len(hits) != 1:
            continue
        others = tuple(p for p in e.powers if p[0] is not hits[0])
        if any(c.has_rho(a) for a, _ in others):
            continue
        base = c.bases[hits[0]]
        p = Term(coef=-e.coef, powers=others)
        found = _covered(c, base, p, streamed, inert, t.keep)
        if found is not None:
            out.append(found)
    return out


def _covered(
    c: Context, base: Found, p: Term, streamed: list[Term], inert: list[Term], keep: tuple[Expr, ...]
) -> Match | None:
    bodies = _united(base)
    for body in dict.fromkeys([*bodies, *(_where_kept(b, keep) for b in bodies)]):
        for strict in (True, False):
            wanted = _poly(product(p, Term(powers=((body, 1),))), strict)
            have: dict[frozenset[tuple[Expr, int]], float] = {}
            for e in streamed + inert:
                for m, k in _poly(e, strict).items():
                    have[m] = have.get(m, 0.0) + k
            if wanted and all(have.get(m) == k for m, k in wanted.items()):
                left = [m for m in have if m not in wanted]
                whole = not any(c.has_x(a) for m in left for a, _ in m)
                return Match(base, p, body, strict and whole, whole, frozenset(wanted))
    return None


def _poly(t: Term, strict: bool) -> dict[frozenset[tuple[Expr, int]], float]:
    return term_poly(t, strict)


def _united(base: Found) -> list[Expr]:
    """The arguments of a body that is itself a maximum: the extremum bounds each of them."""
    out: list[Expr] = []
    stack = [base.body]
    while stack:
        e = stack.pop()
        out.append(e)
        if isinstance(e, Call) and e.fn == base.op:
            stack.extend(e.args)
    return out


def extremum(c: Context, e: Expr, op: Extremum, keep: tuple[Expr, ...] = ()) -> Expr:
    """`op` over the stream of `e`, as an expression of new or known running extrema. Raises Refused."""
    if not c.has_rho(e):
        return new_base(c, e, op, keep)
    if not c.has_x(e):
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
        case "where", (condition, a, b) if not c.has_rho(condition):
            sides = ((a, condition), (b, call("not", condition)))
            parts = [extremum(c, x, op, _with(keep, k)) for x, k in sides if not _is_identity(x, op)]
            return canon(c, call(op, *parts)) if len(parts) == 2 else parts[0]
        case "where", (condition, a, b) if not c.has_x(condition):
            return call("where", canon(c, condition), extremum(c, a, op, keep), extremum(c, b, op, keep))
        case fn, (a,) if fn in FUNCTIONS and FUNCTIONS[fn].monotone:
            return _if_any(c, canon(c, call(fn, extremum(c, a, op, keep))), op, keep)
        case ("mul" | "div"), _:
            scaled_by = _positive_scale(c, e)
            if scaled_by is not None:
                rest, mine = scaled_by
                return canon(c, call("mul", rest, extremum(c, mine, op, keep)))
        case _:
            pass
    return _additive(c, e, op, keep)


def _if_any(c: Context, e: Expr, op: Extremum, keep: tuple[Expr, ...]) -> Expr:
    """`e` if some element satisfies `keep`, else the identity: for values that don't become the identity by themselves."""
    return call("where", some(c, keep), e, const(IDENTITY[op], e.dtype)) if keep else e


def some(c: Context, keep: tuple[Expr, ...]) -> Expr:
    """Whether any element satisfies `keep`: a maximum over 0 where it does and -inf elsewhere is above -inf."""
    found = new_base(c, const(0.0, c.dtype), "max", keep)
    return call("ne", found, const(IDENTITY["max"], found.dtype))


def _is_identity(e: Expr, op: Extremum) -> bool:
    return isinstance(e, Const) and float(e.value) == IDENTITY[op]


def _positive_scale(c: Context, e: Expr) -> tuple[Expr, Expr] | None:
    """(h, g) with e = h * g and h > 0 free of the stream, or None."""
    terms = separate(c, e)
    if len(terms) != 1 or terms[0].keep or terms[0].rows:
        return None
    (t,) = terms
    if any(not c.has_x(a) and not positive(c, a) and n % 2 for a, n in t.powers):
        return None
    rest = Term(powers=tuple(p for p in t.powers if not c.has_x(p[0])),
                exponent=tuple(x for x in t.exponent if not any(c.has_x(a) for a, _ in x.powers)))  # fmt: skip
    if not rest.exponent and not rest.powers:
        return None
    # exp(u - m): the maximum of u goes with the exponential.
    mine = Term(coef=t.coef, powers=tuple(p for p in t.powers if c.has_x(p[0])),
                exponent=tuple(x for x in t.exponent if any(c.has_x(a) for a, _ in x.powers)))  # fmt: skip
    return to_expr(rest, c.dtype), to_expr(mine, c.dtype)


def _additive(c: Context, e: Expr, op: Extremum, keep: tuple[Expr, ...]) -> Expr:
    """u(x) + v(rho)."""
    addends = _addends(c, e, 1.0)
    inner = [(s, a) for s, a in addends if isinstance(a, Call) and a.fn in ("max", "min", "where", "abs") and c.mixed(a)]
    if len(inner) == 1 and len(addends) > 1:
        s, a = inner[0]
        rest = [x for x in addends if x[1] is not a]
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
        (u if c.has_x(whole) else v).append(t)
    element = add_up(u, c.dtype)
    return canon(c, call("add", new_base(c, element, op, keep), add_up(v, c.dtype)))


def new_base(
    c: Context, body: Expr, op: Extremum, keep: tuple[Expr, ...], init: Expr | None = None, like: Var | None = None
) -> Expr:
    """The state of `op` over the stream of `body` where `keep` holds; the one that exists if there is one."""
    for condition in keep:
        body = call("where", condition, body, cast(const(IDENTITY[op], c.dtype), promote(body.dtype, c.dtype)))
    same = expanded(body, True)
    for found in c.bases.values():
        if found.op == op and found.init is init and (found.body is body or expanded(found.body, True) == same):
            return found.state
    dtype: DType = c.dtype if is_half(body.dtype) or body.dtype == "bool" else body.dtype
    taken = {b.name for b in c.bases}
    stem = f"B_{c.reduction}" if like is None else like.name
    name = next(n for n in (stem, *(f"{stem}_{i}" for i in range(1, 1 + len(taken)))) if n not in taken)
    state = var(name, dtype)
    c.bases[state] = Found(state, op, body, init)
    c.rho.add(state)
    return state


# ------------------------------------------------------------------------------------------------ expressions of the row


def canon(c: Context, e: Expr) -> Expr:
    """An expression that doesn't depend on the stream in terms of states, simplified: what cancels is gone."""
    if not c.has_rho(e):
        return e
    found = c.canonical.get(e)
    if found is None:
        found = c.canonical[e] = _canon(c, e)
    return found


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
        if isinstance(e, Call) and e.fn == op and c.has_rho(e):
            stack.extend(reversed(e.args))
        elif e not in flat:
            flat.append(e)
    bases = [c.bases[e] for e in flat if isinstance(e, Var) and e in c.bases and c.bases[e].op == op]
    inert = [e for e in flat if not c.has_rho(e)]
    others = [e for e in flat if c.has_rho(e) and not any(e is b.state for b in bases)]
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
