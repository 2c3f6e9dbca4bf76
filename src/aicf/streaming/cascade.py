"""From pulled expressions to a cascade: reductions over the streamed axis in order, and what is returned in terms of them.

    cast(sum(k: exp(S(i,k) - max(s: S(i,s))) / sum(s: exp(S(i,s) - max(...))) * V[k,e]))
      ->  m = max_j s ; l = sum_j exp(s - m) ; o = sum_j exp(s - m) / l * V[j, e] ; returned: o

Every reduction over the streamed axis takes the one variable j; score contractions become scores (`s`), single symbols for what
a tile-local contraction gives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from aicf.scalar import (
    MONOIDS,
    Call,
    Const,
    Expr,
    Load,
    Reduce,
    Var,
    call,
    children,
    extents,
    integer_const,
    rebuild,
    reduce,
    show,
    substitute,
    var,
    variables,
    walk,
)
from aicf.semantic.refusal import Refused
from aicf.semantic.types import product
from aicf.streaming.candidates import digits
from aicf.streaming.derive import Reduction
from aicf.streaming.simplify import split


@dataclass(frozen=True)
class ScoreContraction:
    """A score contraction: value[i, j] = sum over `over` < `width` of `row` (free of j) * `key` (free of the row variable)."""

    name: str
    over: Var
    width: Expr
    row: Expr
    key: Expr

    def __str__(self) -> str:
        return f"{self.name} = sum over {self.over.name} < {show(self.width)} of {show(self.row)} * {show(self.key)}"


@dataclass
class Extraction:
    """Collects scores and reductions while expressions are taken apart. `streamed(v)`: is bound variable v a run along the
    streamed axis (and not a score contraction)? `few(v)`: does it run over so few terms that they are written out? `sizes`: the
    names of the graph's sizes, which no score and no reduction may have. `binders`: the variable of the source's reduction that
    each of `reductions` comes from."""

    stream: Var
    length: Expr
    rows: frozenset[Var]
    columns: set[Var]
    known: dict[Var, Expr]
    streamed: Callable[[Var], bool]
    few: Callable[[Var], bool]
    sizes: Collection[str] = ()
    scores: dict[str, ScoreContraction] = field(default_factory=dict[str, ScoreContraction])
    reductions: list[Reduction] = field(default_factory=list[Reduction])
    binders: dict[str, Var] = field(default_factory=dict[str, Var])
    _named: dict[tuple[object, ...], Var] = field(default_factory=dict[tuple[object, ...], Var])
    _memo: dict[Expr, Expr] = field(default_factory=dict[Expr, Expr])

    def take(self, e: Expr) -> Expr:
        """`e` with reductions over the streamed axis and scores replaced by their names. Raises Refused."""
        taken = self._memo.get(e)
        if taken is None:
            taken = self._memo[e] = self._take(e)
        return taken

    def _take(self, e: Expr) -> Expr:
        if isinstance(e, Reduce) and self.few(e.var):
            return self._written_out(e)
        if isinstance(e, Reduce):
            return self._reduction(e) if self.streamed(e.var) else self._score(e)
        if isinstance(e, Load):
            return e
        return rebuild(e, tuple(self.take(c) for c in children(e)))

    def _written_out(self, e: Reduce) -> Expr:
        """A reduction over a few terms, term by term."""
        assert isinstance(e.extent, Const)
        terms = [self.take(substitute(e.body, {e.var: integer_const(k)})) for k in range(int(e.extent.value))]
        total = terms[0]
        for term in terms[1:]:
            total = call(MONOIDS[e.op].combine, total, term)
        return total

    def _folded(self, e: Reduce) -> Reduce:
        """Reductions by one op within each other, over axes that together make the streamed one, as one reduction."""
        axes: dict[Var, Expr] = {}
        inner: Expr = e
        while isinstance(inner, Reduce) and inner.op == e.op and self.streamed(inner.var):
            axes[inner.var] = inner.extent
            inner = inner.body
        if len(axes) < 2 or product(axes.values()) is not self.length:
            return e
        with extents({**self.known, self.stream: self.length}):
            one = reduce(e.op, self.stream, self.length, substitute(inner, digits(self.stream, axes)))
        assert isinstance(one, Reduce)
        return one

    def _reduction(self, e: Reduce) -> Expr:
        bound = e.var
        e = self._folded(e)
        if e.var is not self.stream and self.stream in variables(e):
            raise Refused(
                "the normaliser runs along one axis of the scores and the sum with the values along another (a softmax over the "
                "queries, or heads mixed after the softmax); both would have to be streamed at once",
                e.var,
            )
        if e.extent is not self.length:
            parts = split(e, self.length, self.known)
            if parts is None:
                raise Refused(
                    f"its scores or weights are also reduced along another axis, over {show(e.extent)} positions where there are "
                    f"{show(self.length)} keys (rows, heads or batches summed up); one pass over the keys serves each row alone",
                    e.var,
                )
            return self.take(parts)
        body = self.take(substitute(e.body, {e.var: self.stream}))
        key = (e.op, body)
        name = self._named.get(key)
        if name is None:
            name = self._named[key] = var(self._fresh(e.op, body), e.dtype)
            if e.op == "prod":
                why = "a running product over the streamed axis would be the exponential of a sum, which is less exact"
                raise Refused(why, e.var)
            self.reductions.append(Reduction(name.name, e.op, body))
            self.binders[name.name] = bound
        return name

    def _fresh(self, op: str, body: Expr) -> str:
        base = "m" if op in ("max", "min") else "o" if self._has_column(body) else "l"
        return numbered(base, {r.name for r in self.reductions}, self.sizes)

    def _has_column(self, body: Expr) -> bool:
        return bool(variables(body) & self.columns)

    def _score(self, e: Reduce) -> Expr:
        if e.op != "sum":
            raise Refused(f"a {e.op} over {e.var.name} inside the scores is not a contraction", e.var)
        row: list[Expr] = []
        key: list[Expr] = []
        for factor in _factors(e.body):
            here = variables(factor)
            on_stream = self.stream in here
            if on_stream and here & self.rows:
                raise Refused("a factor of the scores' contraction depends on the row and on the streamed position", e.var)
            if any(isinstance(x, Reduce) for x in walk(factor)):
                raise Refused("the scores are contracted over more than one axis", e.var)
            (key if on_stream else row).append(factor)
        if not key:
            raise Refused("a contraction inside a row value cannot be streamed", e.var)
        score_key = ("score", e)
        name = self._named.get(score_key)
        if name is None:
            name = self._named[score_key] = var(numbered("s", self.scores, self.sizes), e.dtype)
            self.scores[name.name] = ScoreContraction(name.name, e.var, e.extent, _product(row, e), _product(key, e))
        return name


def numbered(base: str, taken: Collection[str], sizes: Collection[str] = ()) -> str:
    """The first of `base`, `base2`, `base3`, ... that is not taken and is the name of no size, nor the end of one: names that the
    derivation makes of this one (`B_m`) are none either."""
    name, n = base, 1
    while name in taken or any(x == name or x.endswith(f"_{name}") for x in sizes):
        n += 1
        name = f"{base}{n}"
    return name


def _product(factors: list[Expr], e: Reduce) -> Expr:
    if not factors:
        raise Refused(
            "the values, or what is added to the scores, are themselves a sum over the scores' softmax or over the keys alone "
            "(as in p @ (p @ v)), which would have to be finished before the keys are read",
            e.var,
        )
    value = factors[0]
    for f in factors[1:]:
        value = call("mul", value, f)
    return value


def _factors(e: Expr) -> list[Expr]:
    if isinstance(e, Call) and e.fn == "mul":
        return [x for a in e.args for x in _factors(a)]
    return [e]
