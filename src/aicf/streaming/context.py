"""The state of a separation: which variables are streamed, which stand for earlier reductions, and the running extrema."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from aicf.scalar import (
    FUNCTIONS,
    MONOIDS,
    Call,
    Const,
    DType,
    Expr,
    Var,
    call,
    cast,
    const,
    is_half,
    promote,
    show,
    substitute,
    var,
    variables,
)
from aicf.streaming.terms import Polynomial, Term, expanded, product, sum_poly, term_poly

RANK_LIMIT = 8
Extremum = Literal["max", "min"]


@dataclass
class KnownExtremum:
    """A running extremum that the program carries already."""

    state: Var
    op: Extremum
    body: Expr
    init: Expr | None


@dataclass
class Context:
    """The state of a separation. `streamed`: variables that differ from element to element; `row`: carried states and earlier
    results, one for each row. `strict`: 0 times an element is not taken for 0, for the element may be infinite or NaN."""

    streamed: frozenset[Var]
    dtype: DType
    row: set[Var] = field(default_factory=set[Var])
    values: dict[Var, Expr] = field(default_factory=dict[Var, Expr])
    bases: dict[Var, KnownExtremum] = field(default_factory=dict[Var, KnownExtremum])
    positive: set[Var] = field(default_factory=set[Var])
    # Sums known to hold exp(u - max u), which is 1 at the maximum: name -> the key of that exponential.
    covers: dict[Var, list[Term]] = field(default_factory=dict[Var, list[Term]])
    reduction: str = ""
    canonical: dict[Expr, Expr] = field(default_factory=dict[Expr, Expr])
    strict: bool = False

    def has_streamed(self, e: Expr) -> bool:
        return not variables(e).isdisjoint(self.streamed)

    def has_row(self, e: Expr) -> bool:
        return not variables(e).isdisjoint(self.row)

    def mixed(self, e: Expr) -> bool:
        return self.has_streamed(e) and self.has_row(e)


def positive(c: Context, e: Expr) -> bool:
    """Known to be >= 0 and not 0 by its form (0 only by underflow)."""
    match e:
        case Const():
            return not isinstance(e.value, bool) and e.value > 0
        case Var():
            return e in c.positive
        case Call(fn="cast", args=(a,)):
            return positive(c, a)
        case Call():
            known = (positive(c, a) for a in e.args)
            match FUNCTIONS[e.fn].sign:
                case "positive":
                    return True
                case "of all":
                    return all(known)
                case "of any":
                    return any(known)
                case "":
                    return False
        case _:
            return False


# ------------------------------------------------------------------------------------------------ running extrema


def new_base(
    c: Context, body: Expr, op: Extremum, keep: tuple[Expr, ...], init: Expr | None = None, like: Var | None = None
) -> Expr:
    """The state of `op` over the stream of `body` where `keep` holds; the one that exists if there is one."""
    for condition in keep:
        body = call("where", condition, body, cast(MONOIDS[op].nothing(c.dtype), promote(body.dtype, c.dtype)))
    same = expanded(body, True)
    for base in c.bases.values():
        if base.op == op and base.init is init and (base.body is body or expanded(base.body, True) == same):
            return base.state
    dtype: DType = c.dtype if is_half(body.dtype) or body.dtype == "bool" else body.dtype
    taken = {b.name for b in c.bases}
    stem = f"B_{c.reduction}" if like is None else like.name
    name = next(n for n in (stem, *(f"{stem}_{i}" for i in range(1, 1 + len(taken)))) if n not in taken)
    state = var(name, dtype)
    c.bases[state] = KnownExtremum(state, op, body, init)
    c.row.add(state)
    return state


def some(c: Context, keep: tuple[Expr, ...]) -> Expr:
    """Whether any element satisfies `keep`: a maximum over 0 where it does and -inf elsewhere is above -inf."""
    return MONOIDS["any"].finalise(new_base(c, const(0.0, c.dtype), "max", keep))


# ------------------------------------------------------------------------------------------------ what an extremum bounds


@dataclass(frozen=True)
class Match:
    """A factor exp(-p * base) of a term that belongs to a factor exp(p * u), where base is the extremum of u.

    `body` is u as written (under the term's conditions); `whole`: u is all that the exponential holds of the stream;
    `exact`: and it has the very same roundings. `used`: the monomials of the exponent that u accounts for. `left`: the
    addends of the exponential's streamed terms that are left over (of `exp(s) * exp(s - 1)`, relative to 2 max s, that is -1).
    """

    base: KnownExtremum
    p: Term
    body: Expr
    exact: bool
    whole: bool
    used: frozenset[object]
    left: tuple[Term, ...]


def matching(c: Context, t: Term) -> list[Match]:
    """The extrema whose exponential must stay next to the streamed factor of `t` (the stabiliser rule)."""
    streamed = [e for e in t.exponent if any(c.has_streamed(a) for a, _ in e.powers)]
    inert = [e for e in t.exponent if not any(c.has_streamed(a) or c.has_row(a) for a, _ in e.powers)]
    if not streamed:
        return []
    out: list[Match] = []
    for e in t.exponent:
        hits = [a for a, n in e.powers if isinstance(a, Var) and a in c.bases and n == 1]
        if len(hits) != 1:
            continue
        others = tuple(p for p in e.powers if p[0] is not hits[0])
        if any(c.has_row(a) for a, _ in others):
            continue
        base = c.bases[hits[0]]
        if not others and (e.coef < 0) != (base.op == "max"):
            continue  # exp(m - u), m = max u, is not kept in range by m
        p = Term(coef=-e.coef, powers=others)
        match = _covered(c, base, p, streamed, inert, t.keep)
        if match is not None:
            out.append(match)
    return out


def bounding(c: Context, streamed: list[Term], inert: list[Term], rows: list[Term], keep: tuple[Expr, ...]) -> Match | None:
    """A known running extremum `base` and a factor p with `streamed <= p * base` (`streamed` together with those of `inert` that
    the body of `base` holds), so that `exp(streamed - p * base)` is at most 1: one that `rows` are relative to, or that of all
    elements when all are kept."""
    have = sum_poly(streamed, False)
    near = frozenset[Var]().union(*(variables(a) for e in rows for a, _ in e.powers))
    for base in sorted(c.bases.values(), key=lambda b: (b.state not in near, b.init is not None)):
        if base.state not in near and (keep or base.init is not None):
            continue
        body = expanded(base.body, False)
        m = next((m for m in body if m in have and any(c.has_streamed(a) for a, _ in m)), None)
        p = 0.0 if m is None else have[m] / body[m]
        if p > 0 if base.op == "max" else p < 0:
            match = _covered(c, base, Term(coef=p), streamed, inert, keep)
            if match is not None and match.whole:
                return match
    return None


def _covered(
    c: Context, base: KnownExtremum, p: Term, streamed: list[Term], inert: list[Term], keep: tuple[Expr, ...]
) -> Match | None:
    bodies = _united(base)
    for body in dict.fromkeys([*bodies, *(_where_kept(b, keep) for b in bodies)]):
        for strict in (True, False):
            wanted = term_poly(product(p, Term(powers=((body, 1),))), strict)
            have = sum_poly(streamed + inert, strict)
            # Products of constants multiplied out in another order differ in their last digits.
            if wanted and all(abs(have.get(m, 0.0) - k) <= 1e-12 * abs(k) for m, k in wanted.items()):
                left = [m for m in have if m not in wanted]
                whole = not any(c.has_streamed(a) for m in left for a, _ in m)
                return Match(base, p, body, strict and whole, whole, frozenset(wanted), _left(streamed, wanted, strict))
    return None


def _left(streamed: list[Term], wanted: Polynomial, strict: bool) -> tuple[Term, ...]:
    """The addends of `streamed` whose monomials are not `wanted`."""
    have = sum_poly(streamed, strict)
    return tuple(
        Term(coef=k, powers=tuple(sorted(m, key=lambda x: show(x[0])))) for m, k in have.items() if k and m not in wanted
    )


def _united(base: KnownExtremum) -> list[Expr]:
    """The arguments of a body that is itself a maximum: the extremum bounds each of them."""
    out: list[Expr] = []
    stack = [base.body]
    while stack:
        e = stack.pop()
        out.append(e)
        if isinstance(e, Call) and e.fn == base.op:
            stack.extend(e.args)
    return out


def _where_kept(e: Expr, keep: tuple[Expr, ...]) -> Expr:
    """`e` where the conditions are known to hold: `where(keep, s, -inf)` is `s` there."""
    for condition in keep:
        e = substitute(e, {condition: const(True, "bool")})
        if isinstance(condition, Call) and condition.fn == "not":
            e = substitute(e, {condition.args[0]: const(False, "bool")})
    return e
