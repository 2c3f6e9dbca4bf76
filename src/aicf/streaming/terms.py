"""Products in normal form: what an expression becomes while it is separated.

    -0.5 * exp(s - m) / l * V[j, e]   ->   Term(coef=-0.5, powers={l: -1, V[j, e]: 1}, exponent=[s, -m])

A Term is a number times integer powers of atoms times one exponential, selected by conditions: it is 0 where a condition in
`keep` (conditions on the streamed element) or in `rows` (conditions on the row) is false. A separated expression is a list
of Terms. Atoms are opaque expressions; what they depend on is for the caller to know.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from aicf.scalar import Call, Const, DType, Expr, call, cast, const, is_float, is_half, promote

LN2 = math.log(2.0)
NOTHING = const(0.0, "f32")  # as a factor: 0 that is multiplied with the element all the same
Powers = tuple[tuple[Expr, int], ...]


@dataclass(frozen=True)
class Term:
    """`where(keep and rows, coef * prod(atom ** n) * exp(sum(exponent)), 0)`. The exponent's terms have no exponent.

    `inner` are the factors of the row that stand under `keep` in the source (the others multiply the selected value).
    """

    coef: float = 1.0
    powers: Powers = ()
    exponent: tuple[Term, ...] = ()
    keep: tuple[Expr, ...] = ()
    rows: tuple[Expr, ...] = ()
    inner: tuple[Powers, tuple[Term, ...]] = ((), ())

    @property
    def plain(self) -> bool:
        """Only a number times powers."""
        return not (self.exponent or self.keep or self.rows)


def key(t: Term) -> tuple[object, ...]:
    """What identifies a term up to its number and the order of its parts."""
    exponent = frozenset((key(e), e.coef) for e in t.exponent)
    inner = (frozenset(t.inner[0]), frozenset((key(e), e.coef) for e in t.inner[1]))
    return (frozenset(t.powers), exponent, frozenset(t.keep), frozenset(t.rows), inner)


def merge(terms: Iterable[Term]) -> list[Term]:
    """Terms of equal key added up; those that cancel are dropped. Keeps the order of first appearance."""
    merged: dict[tuple[object, ...], Term] = {}
    for t in terms:
        k = key(t)
        merged[k] = replace(merged[k], coef=merged[k].coef + t.coef) if k in merged else t
    return [t for t in merged.values() if t.coef != 0]


def _union(a: tuple[Expr, ...], b: tuple[Expr, ...]) -> tuple[Expr, ...]:
    return a + tuple(x for x in b if x not in a)


def multiply_powers(a: Powers, b: Powers) -> Powers:
    total = dict(a)
    for atom, n in b:
        total[atom] = total.get(atom, 0) + n
    return tuple((atom, n) for atom, n in total.items() if n)


def product(a: Term, b: Term) -> Term:
    exponent = tuple(merge(a.exponent + b.exponent)) if a.exponent and b.exponent else a.exponent or b.exponent
    inner = (multiply_powers(a.inner[0], b.inner[0]), (*a.inner[1], *b.inner[1]))
    powers = multiply_powers(a.powers, b.powers)
    return Term(a.coef * b.coef, powers, exponent, _union(a.keep, b.keep), _union(a.rows, b.rows), inner)


def scaled(t: Term, by: float) -> Term:
    return replace(t, coef=t.coef * by)


def inverse(t: Term) -> Term:
    """1 / t for a term without conditions and with coef != 0."""
    return Term(1.0 / t.coef, tuple((a, -n) for a, n in t.powers), tuple(scaled(e, -1.0) for e in t.exponent))


def split(t: Term, left: Callable[[Expr], bool]) -> tuple[Powers, Powers]:
    """The powers whose atom satisfies `left`, and the others."""
    return tuple(p for p in t.powers if left(p[0])), tuple(p for p in t.powers if not left(p[0]))


# ------------------------------------------------------------------------------------------------ back to expressions


def _raised(atom: Expr, n: int) -> Expr:
    out = atom
    for _ in range(n - 1):
        out = call("mul", out, atom)
    return out


def _times(a: Expr | None, b: Expr) -> Expr:
    if a is None:
        return b
    return call("mul", a, b)


def wide(e: Expr, dtype: DType) -> Expr:
    """`e` in a type that carries sums: halves become `dtype`."""
    return cast(e, dtype) if is_half(e.dtype) else e


def number_of(value: float, like: DType, dtype: DType) -> Const:
    """A coefficient in the type of what it multiplies (`dtype` when that is not a float)."""
    if not is_float(like) and value == int(value):
        return const(int(value), like if like != "bool" else "i64")
    return const(value, promote(like, dtype) if is_float(like) else dtype)


def to_expr(t: Term, dtype: DType) -> Expr:
    """The expression of a term, its number's sign included. Computes in `dtype` at least."""
    if t.coef < 0:
        return call("neg", to_expr(replace(t, coef=-t.coef), dtype))
    top: Expr | None = None
    if t.exponent:
        top = _times(top, exponential(t.exponent, dtype))
    bottom: Expr | None = None
    for atom, n in t.powers:
        factor = _raised(wide(atom, dtype), abs(n))
        if n > 0:
            top = _times(top, factor)
        else:
            bottom = _times(bottom, factor)
    if t.coef != 1 or top is None:
        like = top.dtype if top is not None else bottom.dtype if bottom is not None else dtype
        factor = number_of(t.coef, like, dtype)
        top = factor if top is None else call("mul", factor, top)
    out = top if bottom is None else call("div", top, bottom)
    zero = const(0, out.dtype)
    for condition in t.keep + t.rows:
        out = call("where", condition, out, zero)
    return out


def add_up(terms: Iterable[Term], dtype: DType) -> Expr:
    """The sum of terms, positive ones first; the empty sum is 0."""
    rest = sorted(terms, key=lambda t: t.coef < 0)
    total: Expr | None = None
    for t in rest:
        positive = to_expr(replace(t, coef=abs(t.coef)), dtype)
        if total is None:
            total = call("neg", positive) if t.coef < 0 else positive
        else:
            total = call("sub" if t.coef < 0 else "add", total, positive)
    return const(0.0, dtype) if total is None else total


def in_base_two(terms: Iterable[Term]) -> tuple[Term, ...] | None:
    """Exponent terms divided by ln 2 if that leaves simple numbers: what was written with exp2 goes back to exp2."""
    out = tuple(replace(t, coef=t.coef / LN2) for t in terms)
    return out if all(8 * t.coef == int(8 * t.coef) for t in out) else None


def exponential(terms: Iterable[Term], dtype: DType) -> Expr:
    """e to the power of a sum of plain terms."""
    terms = tuple(terms)
    two = in_base_two(terms)
    return call("exp", add_up(terms, dtype)) if two is None else call("exp2", add_up(two, dtype))


def expanded(e: Expr, strict: bool) -> dict[frozenset[tuple[Expr, int]], float]:
    """`e` as a polynomial over atoms, sums and products multiplied out: for comparing, not for computing.

    Widening casts don't change a value and are dropped; `strict` keeps the narrowing ones.
    """
    match e:
        case Const() if not isinstance(e.value, bool) and e.value == e.value and abs(e.value) != float("inf"):
            return {frozenset(): float(e.value)} if e.value else {}
        case Call(fn="add" | "sub", args=(a, b)):
            out = dict(expanded(a, strict))
            for m, c in expanded(b, strict).items():
                out[m] = out.get(m, 0.0) + (c if e.fn == "add" else -c)
            return {m: c for m, c in out.items() if c}
        case Call(fn="neg", args=(a,)):
            return {m: -c for m, c in expanded(a, strict).items()}
        case Call(fn="mul", args=(a, b)):
            return poly_product(expanded(a, strict), expanded(b, strict))
        case Call(fn="div", args=(a, b)) if len(expanded(b, strict)) == 1:
            ((mono, c),) = expanded(b, strict).items()
            return poly_product(expanded(a, strict), {frozenset((x, -n) for x, n in mono): 1.0 / c})
        case Call(fn="pow", args=(a, Const() as n)) if n.value in (2, 3):
            inner = expanded(a, strict)
            return poly_product(inner, inner if n.value == 2 else poly_product(inner, inner))
        case Call(fn="cast", args=(a,)) if is_float(e.dtype) and is_float(a.dtype):
            if not strict or promote(a.dtype, e.dtype) == e.dtype:
                return expanded(a, strict)
            return {frozenset({(e, 1)}): 1.0}
        case _:
            return {frozenset({(e, 1)}): 1.0}


Polynomial = dict[frozenset[tuple[Expr, int]], float]


def poly_product(a: Polynomial, b: Polynomial) -> Polynomial:
    out: Polynomial = {}
    for m, c in a.items():
        for n, d in b.items():
            both = frozenset(multiply_powers(tuple(m), tuple(n)))
            out[both] = out.get(both, 0.0) + c * d
    return {m: c for m, c in out.items() if c}


def term_poly(t: Term, strict: bool) -> Polynomial:
    """The polynomial of a plain term."""
    out: Polynomial = {frozenset(): t.coef}
    for atom, n in t.powers:
        if n > 0:
            for _ in range(n):
                out = poly_product(out, expanded(atom, strict))
        else:
            inner = expanded(atom, strict)
            if len(inner) == 1:
                ((mono, c),) = inner.items()
                out = poly_product(out, {frozenset((x, -k * -n) for x, k in mono): c**n})
            else:
                out = poly_product(out, {frozenset({(atom, n)}): 1.0})
    return out


def sum_poly(terms: Iterable[Term], strict: bool) -> Polynomial:
    """The polynomial of a sum of plain terms."""
    out: Polynomial = {}
    for t in terms:
        for m, k in term_poly(t, strict).items():
            out[m] = out.get(m, 0.0) + k
    return out
