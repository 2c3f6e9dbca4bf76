"""Conditions made of numbers, as conditions: `where(j <= i, 1.0, 0.0) == 0.0` is `j > i`.

A number that depends on conditions is looked at case by case, and what it comes to in each case is joined to a formula again.
Cases that contradict one another don't count: where `j > i`, `j <= i - 32` never holds. For words: numbers that were rounded are
taken for those that are meant, a product with 0 for 0.

Cases multiply, so all of this is done within bounds: what is asked of one expression is found once (`work`), and after WORK nodes
looked at it is given up (TooManyCases).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from aicf.scalar import (
    COMPARISONS,
    FUNCTIONS,
    Call,
    Const,
    Expr,
    Load,
    Reduce,
    call,
    children,
    const,
    integer_const,
    is_float,
    is_int,
    load,
    poly,
    substitute,
    transform,
)

YES, NO = const(True, "bool"), const(False, "bool")
ABSORBS = 1e30  # a number of this size is a mask's, and what is added to it is lost
CASES = 64  # leaves of a case distinction, at most
WORK = 40_000  # nodes looked at for the masks of one region, at most; real ones need some thousand
# What makes of 0 and 1, a mask's numbers, a number that says whether it was one of them, or all.
_LATTICE = frozenset({"cast", *(f.name for f in FUNCTIONS.values() if f.masks == "lattice")})
_LINEAR = frozenset({"cast", *(f.name for f in FUNCTIONS.values() if f.masks)})

Verdict = Callable[[Expr], Expr]


class TooManyCases(Exception):
    """A mask that takes more work to understand than words are worth."""


@dataclass
class Work:
    """What was found, by question and expression, and how many nodes may still be looked at."""

    left: int
    found: dict[tuple[str, Expr], Expr] = field(default_factory=dict[tuple[str, Expr], Expr])

    def spend(self, nodes: int) -> None:
        self.left -= nodes
        if self.left < 0:
            raise TooManyCases

    def once(self, question: str, e: Expr, answer: Callable[[Expr], Expr]) -> Expr:
        known = self.found.get((question, e))
        if known is None:
            self.spend(1)
            known = self.found[question, e] = answer(e)
        return known


_WORK: ContextVar[Work | None] = ContextVar("work", default=None)


@contextmanager
def work(nodes: int = WORK) -> Iterator[Work]:
    """The bounds and the memory of what is asked inside; that of an outer one where there is one. TooManyCases ends it."""
    outer = _WORK.get()
    if outer is not None:
        yield outer
        return
    token = _WORK.set(Work(nodes))
    try:
        made = _WORK.get()
        assert made is not None
        yield made
    finally:
        _WORK.reset(token)


def join(c: Expr, yes: Expr, no: Expr) -> Expr:
    """`yes` where `c` holds and `no` elsewhere, all conditions."""
    if yes is no:
        return yes
    if isinstance(yes, Const) and isinstance(no, Const):
        return c if yes.value else call("not", c)
    if isinstance(yes, Const):
        return call("or", c, no) if yes.value else call("and", call("not", c), no)
    if isinstance(no, Const):
        return call("or", call("not", c), yes) if no.value else call("and", c, yes)
    return call("or", call("and", c, yes), call("and", call("not", c), no))


def plain(c: Expr) -> Expr:
    """A condition with no number in it that depends on another condition."""
    with work() as w:
        return w.once("plain", c, _plain)


def _plain(c: Expr) -> Expr:
    match c:
        case Call(fn=("and" | "or"), args=(a, b), dtype="bool"):
            return call(c.fn, plain(a), plain(b))
        case Call(fn="not", args=(a,), dtype="bool"):
            return call("not", plain(a))
        case Call(fn="where", args=(k, a, b), dtype="bool"):
            return join(plain(k), plain(a), plain(b))
        case Call(fn=("eq" | "ne" | "xor") as fn, args=(a, b), dtype="bool") if a.dtype == "bool":
            other = call("not", plain(b))
            return join(plain(a), plain(b), other) if fn == "eq" else join(plain(a), other, plain(b))
        case Call(fn="cast", args=(a,), dtype="bool"):
            return plain(call("ne", a, const(0, a.dtype)))
        case Call(dtype="bool"):
            simple = by_cases(c, _atom, _chosen(c))
            if isinstance(simple, Const):  # or it is about other numbers than 0 and 1
                simple = by_cases(c, _atom, lambda x: False)
            return c if simple is None else simple
        case _:
            return c


def by_cases(e: Expr, verdict: Verdict, choose: Callable[[Load], bool]) -> Expr | None:
    """What `verdict` says of `e` where all conditions in it are decided, as one formula; None when there are too many cases. The
    loaded numbers that `choose` names are taken for 0 or 1."""
    with work() as w:
        return _by_cases(e, verdict, choose, w)


def _by_cases(e: Expr, verdict: Verdict, choose: Callable[[Load], bool], w: Work) -> Expr | None:
    room = [CASES]

    def decided(e: Expr, facts: Facts) -> Expr:
        parts = outside(e)
        w.spend(len(parts))
        c = _switch(e, parts, choose)
        if c is None or not room[0]:
            room[0] = max(room[0] - 1, 0)
            return verdict(_meant(e))
        yes, no = ({c: YES}, {c: NO}) if c.dtype == "bool" else ({c: const(1, c.dtype)}, {c: const(0, c.dtype)})
        asked = plain(c) if c.dtype == "bool" else call("ne", c, const(0, c.dtype))
        known = facts.known(asked)
        if known is not None:
            return decided(substitute(e, yes if known else no), facts)
        held, failed = (decided(substitute(e, x), facts.plus(asked, x is yes)) for x in (yes, no))
        return join(asked, held, failed)

    outcome = decided(e, Facts())
    return outcome if room[0] else None


def _meant(e: Expr) -> Expr:
    """`e` with products with 0 taken for 0, and a mask's number for itself when something smaller is added to it."""

    def simpler(x: Expr) -> Expr | None:
        if isinstance(x, Call) and x.fn == "mul" and any(isinstance(a, Const) and a.value == 0 for a in x.args):
            return const(0, x.dtype)
        if isinstance(x, Call) and x.fn == "add":
            return next((a for a in x.args if isinstance(a, Const) and abs(a.value) >= ABSORBS), None)
        return None

    return transform(e, simpler)


def linear(e: Expr, x: Load) -> bool:
    """Whether `e` is made of `x` by sums, products and extrema alone."""
    through = [n for n in outside(e) if isinstance(n, Call) and x in outside(n)]
    return all(n.fn in _LINEAR or n.dtype == "bool" for n in through)


def outside(e: Expr, through_conditions: bool = True) -> dict[Expr, None]:
    """The subexpressions of `e` that are not in an index or in a reduction (nor in a condition), operands before users."""
    nodes: dict[Expr, None] = {}
    stack: list[tuple[Expr, bool]] = [(e, False)]
    while stack:
        n, ready = stack.pop()
        if ready:
            nodes[n] = None
        elif n not in nodes and (through_conditions or n.dtype != "bool"):
            stack.append((n, True))
            if not isinstance(n, (Load, Reduce)):
                stack += [(x, False) for x in reversed(children(n))]
    return nodes


def _switch(e: Expr, parts: Iterable[Expr], choose: Callable[[Load], bool]) -> Expr | None:
    """The first condition in `e`, of `parts`, with no other in it, or number that stands for one; `e` itself is none."""
    for x in parts:
        if x is e or isinstance(x, Const):
            continue
        if x.dtype == "bool" or (isinstance(x, Load) and choose(x)):
            return x
    return None


def _chosen(c: Call) -> Callable[[Load], bool]:
    """The numbers of a comparison with a constant that are masks: two or more of them, met in one number."""
    number, other = c.args if len(c.args) == 2 else (c, c)
    loads = [x for x in outside(number) if isinstance(x, Load) and x.dtype != "bool"]
    made = [x for x in outside(number) if isinstance(x, Call)]
    masks = c.fn in COMPARISONS and isinstance(other, Const) and len(loads) > 1 and all(x.fn in _LATTICE for x in made)
    return (lambda x: x in loads) if masks else (lambda x: False)


# ------------------------------------------------------------------------------------------------ whole numbers


def _atom(c: Expr) -> Expr:
    """A comparison of whole numbers that are held as floats or in another type, in i64; other conditions as they are."""
    if not (isinstance(c, Call) and c.fn in COMPARISONS):
        return c
    a, b = (whole(x) for x in c.args)
    return c if a is None or b is None else call(c.fn, a, b)


def whole(e: Expr) -> Expr | None:
    """`e` in i64, when it is made of integers by exact steps; None otherwise."""
    match e:
        case Const() if not isinstance(e.value, bool) and float(e.value).is_integer() and abs(e.value) < 2**62:
            return integer_const(int(e.value))
        case Load() if is_int(e.dtype):
            return load(e.tensor, e.index, "i64")
        case Call(fn="cast", args=(a,)) if a.dtype != "bool" and (is_int(a.dtype) or is_float(e.dtype)):
            return whole(a)
        case Call(fn=("add" | "sub" | "mul" | "neg" | "abs" | "min" | "max" | "mod" | "floordiv")):
            kids = [whole(x) for x in e.args]
            return None if None in kids else call(e.fn, *(k for k in kids if k is not None))
        case _:
            return e if e.dtype == "i64" else None


# ------------------------------------------------------------------------------------------------ what follows from what

Key = frozenset[tuple[tuple[Expr, ...], int]]


@dataclass(frozen=True)
class Facts:
    """Conditions that are decided; of comparisons of whole numbers the range that they leave for the difference."""

    decided: Mapping[Expr, bool] = field(default_factory=dict[Expr, bool])
    ranges: Mapping[Key, tuple[float, float]] = field(default_factory=dict[Key, tuple[float, float]])

    def plus(self, c: Expr, value: bool) -> Facts:
        limits = _range(c if value else call("not", c))
        ranges = dict(self.ranges)
        if limits is not None:
            key, low, high = limits
            known = ranges.get(key, (-float("inf"), float("inf")))
            ranges[key] = (max(low, known[0]), min(high, known[1]))
        if isinstance(c, Call) and c.fn == "not":
            c, value = c.args[0], not value
        return Facts({**self.decided, c: value}, ranges)

    def known(self, c: Expr) -> bool | None:
        """Whether `c` holds, where that follows."""
        if isinstance(c, Const):
            return bool(c.value)
        if c in self.decided:
            return self.decided[c]
        if isinstance(c, Call) and c.fn == "not" and c.args[0] in self.decided:
            return not self.decided[c.args[0]]
        limits = _range(c)
        if limits is None or limits[0] not in self.ranges:
            return None
        (low, high), (least, most) = limits[1:], self.ranges[limits[0]]
        return True if low <= least and most <= high else False if most < low or least > high else None


def _range(c: Expr) -> tuple[Key, float, float] | None:
    """A comparison as bounds of a difference without its constant: (difference, lowest, highest)."""
    if not (isinstance(c, Call) and c.fn in ("lt", "le", "gt", "ge", "eq") and c.args[0].dtype == "i64"):
        return None
    parts = dict(poly(call("sub", *c.args)))
    bound = -float(parts.pop((), 0))
    if not parts:
        return None
    low, high = -float("inf"), float("inf")
    if c.fn in ("lt", "le", "eq"):
        high = bound - (c.fn == "lt")
    if c.fn in ("gt", "ge", "eq"):
        low = bound + (c.fn == "gt")
    first = min(parts, key=lambda m: [str(x) for x in m])
    if parts[first] < 0:
        parts, low, high = {m: -k for m, k in parts.items()}, -high, -low
    return frozenset(parts.items()), low, high


def simplified(e: Expr) -> Expr:
    """A conjunction without what its other parts decide: `(j > i or m) and j <= i` is `m and j <= i`."""
    with work() as w:
        parts = conjuncts(pushed(e))
        alternatives = {p: conjuncts(p, "or") for p in parts}
        facts = Facts()
        for p in parts:
            if len(alternatives[p]) == 1:
                facts = facts.plus(p, True)
        for k, p in enumerate(parts):
            if len(alternatives[p]) > 1:
                w.spend(len(alternatives[p]))
                left = [x for x in alternatives[p] if facts.known(x) is not False]
                parts[k] = YES if any(facts.known(x) for x in left) else _all("or", left)
                if len(left) == 1:
                    facts = facts.plus(parts[k], True)
        return _all("and", parts)


def pushed(e: Expr) -> Expr:
    """A formula with its negations moved inwards, so that parts can be told apart."""
    with work() as w:
        return w.once("pushed", e, _pushed)


def _pushed(e: Expr) -> Expr:
    if isinstance(e, Call) and e.fn == "not" and isinstance(e.args[0], Call) and e.args[0].fn in ("and", "or"):
        inner = e.args[0]
        other = "or" if inner.fn == "and" else "and"
        return call(other, *(pushed(call("not", a)) for a in inner.args))
    if isinstance(e, Call) and e.fn in ("and", "or") and e.dtype == "bool":
        return call(e.fn, *(pushed(a) for a in e.args))
    return e


def _all(fn: str, parts: list[Expr]) -> Expr:
    joined: Expr = const(fn == "and", "bool")
    for p in parts:
        joined = call(fn, joined, p)
    return joined


def conjuncts(e: Expr, fn: str = "and") -> list[Expr]:
    """The parts that `fn` ("and" or "or") joins, each once."""
    parts: dict[Expr, None] = {}
    seen: set[Expr] = set()
    stack = [e]
    while stack:
        x = stack.pop()
        if x in seen:
            continue
        seen.add(x)
        if isinstance(x, Call) and x.fn == fn and x.dtype == "bool":
            stack += reversed(x.args)
        else:
            parts[x] = None
    return [*parts]


def loads_of(e: Expr, through_conditions: bool = True) -> list[Load]:
    """The elements that `e` reads, those that only say where to read not counted (nor those that a condition in it reads)."""
    return [x for x in outside(e, through_conditions) if isinstance(x, Load)]
