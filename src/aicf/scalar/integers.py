"""Integer expressions in one normal form, and what is known of their range.

A polynomial over atoms (variables, loads, quotients, …) is a map from monomials to integer coefficients; the normal
form rebuilds it in a fixed order, so that `(b*H + h) + 1 - 1` and `h + H*b` are one object. Quotients and remainders by a
positive divisor are split: `(a*c + r) // c` is `a + r//c`, and `r//c` is 0 when `0 <= r < c` follows from the declared ranges
of the index variables. That is what makes views, merged heads and repeated KV heads disappear from index maps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

from aicf.scalar.expr import TREE, Call, Const, Expr, Var, integer_const, raw, show, variables, weight
from aicf.scalar.identity import digest

Monomial = tuple[Expr, ...]
Poly = dict[Monomial, int]

# Extents of index variables in scope: 0 <= var < extent. Size symbols have no entry and are >= 1.
_EXTENTS: ContextVar[Mapping[Var, Expr]] = ContextVar("extents", default=MappingProxyType({}))


@contextmanager
def extents(known: Mapping[Var, Expr]) -> Iterator[None]:
    """Declare `0 <= var < extent` for the index variables in `known`, beside those already declared."""
    token = _EXTENTS.set({**_EXTENTS.get(), **known})
    try:
        yield
    finally:
        _EXTENTS.reset(token)


_TEXTS: dict[Expr, str] = {}


def _order(e: Expr) -> str:
    """What atoms are ordered by: their text, made once; of large ones their hash, behind all others."""
    found = _TEXTS.get(e)
    if found is None:
        found = _TEXTS[e] = show(e) if weight(e) <= TREE else f"~{digest(e).hex()}"
    return found


def poly(e: Expr) -> Poly:
    """`e` as a polynomial over its atoms."""
    match e:
        case Const():
            return {(): int(e.value)} if e.value else {}
        case Call(fn="add", args=(a, b), dtype="i64"):
            return _add(poly(a), poly(b), 1)
        case Call(fn="sub", args=(a, b), dtype="i64"):
            return _add(poly(a), poly(b), -1)
        case Call(fn="neg", args=(a,), dtype="i64"):
            return _add({}, poly(a), -1)
        case Call(fn="mul", args=(a, b), dtype="i64"):
            return _mul(poly(a), poly(b))
        case _:
            return {(e,): 1}


def _add(a: Poly, b: Poly, sign: int) -> Poly:
    out = dict(a)
    for m, c in b.items():
        total = out.get(m, 0) + sign * c
        if total:
            out[m] = total
        else:
            out.pop(m, None)
    return out


def _mul(a: Poly, b: Poly) -> Poly:
    out: Poly = {}
    for m, c in a.items():
        for n, d in b.items():
            key = tuple(sorted(m + n, key=_order))
            total = out.get(key, 0) + c * d
            if total:
                out[key] = total
            else:
                out.pop(key, None)
    return out


def from_poly(p: Poly) -> Expr:
    """The polynomial as an expression: terms in a fixed order, the constant last, negative terms subtracted."""
    total: Expr | None = None
    terms = sorted(p.items(), key=lambda t: (not t[0], t[1] < 0, [_order(x) for x in t[0]]))
    for monomial, coefficient in terms:
        factor: Expr | None = None
        for atom in monomial:
            factor = atom if factor is None else raw("mul", (factor, atom), "i64")
        magnitude = abs(coefficient) if total is not None else coefficient
        if factor is None:
            factor = integer_const(magnitude)
        elif magnitude != 1:
            factor = raw("mul", (factor, integer_const(magnitude)), "i64")
        if total is None:
            total = factor
        else:
            total = raw("add" if coefficient > 0 else "sub", (total, factor), "i64")
    return integer_const(0) if total is None else total


def normal(fn: str, args: tuple[Expr, ...]) -> Expr:
    """The normal form of an integer `fn` of `args`."""
    match fn:
        case "add":
            return from_poly(_rejoined(_add(poly(args[0]), poly(args[1]), 1)))
        case "sub":
            return from_poly(_rejoined(_add(poly(args[0]), poly(args[1]), -1)))
        case "neg":
            return from_poly(_add({}, poly(args[0]), -1))
        case "mul":
            return from_poly(_mul(poly(args[0]), poly(args[1])))
        case "floordiv":
            return _divided(args[0], args[1])[0]
        case "mod":
            return _divided(args[0], args[1])[1]
        case _:
            raise ValueError(f"no integer normal form for {fn}")


def _rejoined(p: Poly) -> Poly:
    """`p` with `(x // c) * c + x % c` as x: heads split into groups and merged again."""
    for monomial, coefficient in p.items():
        for atom in monomial:
            if isinstance(atom, Call) and atom.fn == "mod":
                x, c = atom.args
                others = _without(monomial, (atom,)) or ()
                quotient = _mul({(*others, raw("floordiv", (x, c), "i64")): coefficient}, poly(c))
                if all(p.get(m) == k for m, k in quotient.items()):
                    rest = _add(p, {**quotient, monomial: coefficient}, -1)
                    return _rejoined(_add(rest, _mul({others: coefficient}, poly(x)), 1))
    return p


def _divided(a: Expr, c: Expr) -> tuple[Expr, Expr]:
    """(a // c, a % c), with the terms of `a` that `c` divides taken out."""
    divisor = poly(c)
    if divisor == {(): 1}:
        return a, integer_const(0)
    if not _positive(divisor):
        return raw("floordiv", (a, c), "i64"), raw("mod", (a, c), "i64")
    whole: Poly = {}
    rest: Poly = {}
    for monomial, coefficient in poly(a).items():
        quotient = _exact({monomial: coefficient}, divisor)
        if quotient is None:
            rest[monomial] = coefficient
        else:
            whole = _add(whole, quotient, 1)
    if rest and len(divisor) > 1:  # a sum such as (n+1)*b + (n+1)*h: try to divide all of it
        quotient = _exact(poly(a), divisor)
        if quotient is not None:
            return from_poly(quotient), integer_const(0)
    remainder = from_poly(rest)
    low, high = bounds(remainder)
    below = low is not None and high is not None and _nonnegative(_add(_add(divisor, {(): 1}, -1), poly(high), -1))
    if below and low is not None and _nonnegative(poly(low)):
        return from_poly(whole), remainder
    if isinstance(c, Const):
        inner = _nested(remainder, int(c.value))
        if inner is not None:
            return from_poly(_add(whole, poly(inner), 1)), raw("mod", (remainder, c), "i64")
    if not rest:
        return from_poly(whole), integer_const(0)
    return from_poly(_add(whole, {(raw("floordiv", (remainder, c), "i64"),): 1}, 1)), raw("mod", (remainder, c), "i64")


def _nested(e: Expr, c: int) -> Expr | None:
    """(x // a) // c as x // (a*c)."""
    if isinstance(e, Call) and e.fn == "floordiv" and isinstance(e.args[1], Const):
        return normal("floordiv", (e.args[0], integer_const(int(e.args[1].value) * c)))
    return None


def _exact(a: Poly, c: Poly) -> Poly | None:
    """a / c when it divides exactly, else None. Divisors of one monomial, or (by long division) of several."""
    if len(c) == 1:
        ((monomial, coefficient),) = c.items()
        out: Poly = {}
        for m, k in a.items():
            left = _without(m, monomial)
            if left is None or k % coefficient:
                return None
            out[left] = k // coefficient
        return out
    lead = max(c, key=lambda m: (len(m), [_order(x) for x in m]))
    rest, quotient = dict(a), dict[Monomial, int]()
    for _ in range(16):
        if not rest:
            return quotient
        top = max(rest, key=lambda m: (len(m), [_order(x) for x in m]))
        left = _without(top, lead)
        if left is None or rest[top] % c[lead]:
            return None
        step: Poly = {left: rest[top] // c[lead]}
        quotient = _add(quotient, step, 1)
        rest = _add(rest, _mul(step, c), -1)
    return None


def _without(m: Monomial, factor: Monomial) -> Monomial | None:
    left = list(m)
    for atom in factor:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def _is_size(e: Expr) -> bool:
    return isinstance(e, Var) and e not in _EXTENTS.get()


def _positive(p: Poly) -> bool:
    """Known >= 1: sizes are >= 1 and no coefficient is negative."""
    return bool(p) and all(c > 0 for c in p.values()) and all(_is_size(x) for m in p for x in m)


def _nonnegative(p: Poly) -> bool:
    """Known >= 0, with sizes >= 1 (each negative term is covered by a positive one that it divides)."""
    left = dict(p)
    for m, c in sorted(p.items(), key=lambda t: len(t[0])):
        if c >= 0:
            continue
        if not all(_is_size(x) for x in m):
            return False
        for n in list(left):
            if left[n] > 0 and n != m and all(_is_size(x) for x in n) and _without(n, m) is not None:
                used = min(left[n], -c)
                left[n] -= used
                c += used
                if c == 0:
                    break
        if c < 0:
            return False
    return all(_is_size(x) for m, c in p.items() if c > 0 for x in m)


INTEGERS = 1 << 63  # i64 goes from -INTEGERS to INTEGERS - 1


def bounds(e: Expr) -> tuple[Expr | None, Expr | None]:
    """Inclusive bounds of `e` over the declared index ranges, each None when unknown; free of index variables."""
    known = _EXTENTS.get()
    low: Poly = {}
    high: Poly = {}
    for monomial, coefficient in poly(e).items():
        lo: Poly = {(): 1}
        hi: Poly = {(): 1}
        for atom in monomial:
            if isinstance(atom, Var) and atom in known:
                lo, hi = {}, _mul(hi, _add(poly(known[atom]), {(): 1}, -1))
            elif _is_size(atom):
                lo, hi = _mul(lo, {(atom,): 1}), _mul(hi, {(atom,): 1})
            elif isinstance(atom, Call) and atom.fn in ("floordiv", "mod") and _quotient_bounds(atom) is not None:
                found = _quotient_bounds(atom)
                assert found is not None
                lo, hi = {}, _mul(hi, found)
            else:
                return None, None
        lo, hi = ({m: c * coefficient for m, c in p.items()} for p in (lo, hi))
        if coefficient < 0:
            lo, hi = hi, lo
        low, high = _add(low, lo, 1), _add(high, hi, 1)
    # A number past the ends of the type wraps around, and bounds nothing.
    if any(not -INTEGERS <= c < INTEGERS for p in (low, high) for c in p.values()):
        return None, None
    return from_poly(low), from_poly(high)


def is_inside(e: Expr, extent: Expr) -> bool:
    """Whether 0 <= e < extent is known of every index in range."""
    if isinstance(e, Call) and e.fn == "inside" and e.args[1] is extent:
        return True
    low, high = bounds(e)
    if low is None or high is None or not _nonnegative(poly(low)):
        return False
    return _nonnegative(_add(_add(poly(extent), {(): 1}, -1), poly(high), -1))


def _quotient_bounds(e: Call) -> Poly | None:
    """The upper bound of a quotient or remainder whose lower bound is 0, or None."""
    a, c = e.args
    if not isinstance(c, Const) or int(c.value) <= 0:
        return None
    if e.fn == "mod":
        return {(): int(c.value) - 1}
    low, high = bounds(a)
    if not isinstance(low, Const) or not isinstance(high, Const) or int(low.value) < 0:
        return None
    top = int(high.value) // int(c.value)
    return {(): top} if top else {}


def affine(e: Expr, over: tuple[Var, ...]) -> tuple[tuple[Expr, ...], Expr] | None:
    """`e` as `sum(coefficient * var) + rest` with coefficients and rest free of `over`, or None when it is not affine."""
    parts: dict[Var, Poly] = {v: {} for v in over}
    rest: Poly = {}
    chosen = frozenset(over)
    for monomial, coefficient in poly(e).items():
        hits = [x for x in monomial if variables(x) & chosen]
        if not hits:
            rest[monomial] = coefficient
            continue
        if len(hits) != 1 or not isinstance(hits[0], Var):
            return None
        left = _without(monomial, (hits[0],))
        assert left is not None
        parts[hits[0]] = _add(parts[hits[0]], {left: coefficient}, 1)
    return tuple(from_poly(parts[v]) for v in over), from_poly(rest)
