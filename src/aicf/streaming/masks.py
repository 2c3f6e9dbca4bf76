"""What decides, beside the scores themselves, how much a key counts: masks and biases, each a part of its own.

    where(j > i, -inf, s + (1 - f32(mask[b, j])) * -1e9)   ->   keep j <= i;   keep mask[b, j] != 0, by adding -1e9

Found in the cascade of a region, from what is added to, selected instead of, or multiplied with what the scores make. For words:
what is skipped is proved in `tiles`, from the bodies themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from aicf.scalar import Call, Const, Expr, Load, call, is_float, is_int, variables, walk
from aicf.streaming.conditions import NO, YES, TooManyCases, by_cases, join, linear, loads_of, plain, simplified, work
from aicf.streaming.recognise import Recognised

FILL = -1e3  # a number at or below this, in the place of a score or added to it, is a mask's


@dataclass(frozen=True)
class Mask:
    """The condition under which a score counts. `fill`: the finite number that is added to the others, None when they are
    replaced or -inf; `late`: it meets the weights after they were divided by their sum."""

    keep: Expr
    fill: float | None = None
    late: bool = False


@dataclass(frozen=True)
class Bias:
    """Numbers that are added to the scores (or multiply the weights, `factor`), and hide none that could be told."""

    value: Expr
    factor: bool = False


@dataclass(frozen=True)
class Unsaid:
    """A mask (`hides`) or bias of `operations` that is too large to look into for words. Tiles are skipped as under any other."""

    operations: int
    hides: bool


Part = Mask | Bias | Unsaid


def parts_of(region: Recognised, traced: Callable[[Expr], Expr]) -> list[Part]:
    """The masks of a region, then its biases. `traced`: an expression in terms of the tensors that the program was given."""
    try:
        with work():
            return _parts_of(region, traced)
    except TooManyCases:
        nodes = {x for r in region.cascade for x in walk(r.body)}
        hides = any(isinstance(x, Const) and is_float(x.dtype) and x.value <= FILL for x in nodes)
        return [Unsaid(sum(isinstance(x, Call) for x in nodes), hides)]


def _parts_of(region: Recognised, traced: Callable[[Expr], Expr]) -> list[Part]:
    values = {x.tensor for r in region.cascade for x in loads_of(r.body) if variables(x) & set(region.columns)}
    walker = _Walker(region, traced, frozenset(values))
    sums: list[dict[Expr, None]] = []
    for r in region.cascade:
        walker.factors = {}
        walker.weighed = set()
        if r.op == "sum":
            walker.weight(r.body)
            sums.append(walker.factors)
        elif r.op in ("max", "min"):
            walker.score(r.body)
    masks = [Mask(keep, fill) for keep, fill in walker.masks.items()]
    for keep in {k: None for s in sums for k in s if k not in walker.masks}:
        masks.append(Mask(keep, late=region.softmax_like and not all(keep in s for s in sums)))
    return [*dict.fromkeys(masks), *dict.fromkeys(walker.biases)]


def has_mask(parts: Iterable[Part]) -> bool:
    return any(isinstance(p, Mask) or (isinstance(p, Unsaid) and p.hides) for p in parts)


def keep_of(parts: Iterable[Part]) -> Expr | None:
    """The condition under which all masks let a score count; None where there is no mask."""
    keep: Expr | None = None
    for p in parts:
        if isinstance(p, Mask):
            keep = p.keep if keep is None else call("and", keep, p.keep)
    return keep


@dataclass
class _Walker:
    """Goes through the bodies of a cascade and collects what it meets. `factors`: the masks that multiply the weights of the body
    at hand."""

    region: Recognised
    traced: Callable[[Expr], Expr]
    values: frozenset[str]
    masks: dict[Expr, float | None] = field(default_factory=dict[Expr, "float | None"])
    biases: list[Bias] = field(default_factory=list[Bias])
    factors: dict[Expr, None] = field(default_factory=dict[Expr, None])
    seen: set[Expr] = field(default_factory=set[Expr])
    added: set[Expr] = field(default_factory=set[Expr])
    weighed: set[Expr] = field(default_factory=set[Expr])  # of the body at hand

    def __post_init__(self) -> None:
        self.scores = {a.name for a in self.region.scores}
        self.states = {r.name for r in self.region.cascade}

    def _made(self, e: Expr) -> bool:
        """Whether scores are in `e`."""
        return any(v.name in self.scores for v in variables(e))

    def _given(self, e: Expr) -> bool:
        """Whether `e` is the same whatever the scores are."""
        return not any(v.name in self.scores or v.name in self.states for v in variables(e))

    # ---------------------------------------------------------------- scores

    def score(self, u: Expr) -> None:
        """What is done to the scores in `u`."""
        if u in self.seen:
            return
        self.seen.add(u)
        match u:
            case Call(fn="where", args=(c, a, b)):
                self._selected(c, a, b)
            case Call(fn=("add" | "sub"), args=(a, b)):
                for x, sign in ((a, 1), (b, -1 if u.fn == "sub" else 1)):
                    if self._made(x):
                        self.score(x)
                    elif self._given(x):
                        self._added(self.traced(x if sign > 0 else call("neg", x)))
            case Call(fn="min", args=(a, b)):
                for x in (a, b):
                    if self._made(x):
                        self.score(x)
                    elif self._given(x):
                        self._note(keeps(self.traced(x), _hides), None)
            case Call():
                for x in u.args:
                    if self._made(x):
                        self.score(x)
                    elif u.fn == "mul" and self._given(x) and not self.region.softmax_like:
                        self._factor(x)
            case _:
                pass

    def _selected(self, c: Expr, a: Expr, b: Expr) -> None:
        for x in (a, b):
            if self._made(x):
                self.score(x)
        if self._given(c):
            yes, no = (keeps(self.traced(x), _hides) if self._given(x) else YES for x in (a, b))
            self._note(join(plain(self.traced(c)), yes, no), None)

    def _added(self, e: Expr) -> None:
        """A number that is added to the scores."""
        if e in self.added:
            return
        self.added.add(e)
        if isinstance(e, Call) and e.fn in ("add", "sub"):
            self._added(e.args[0])
            self._added(e.args[1] if e.fn == "add" else call("neg", e.args[1]))
            return
        self._note(keeps(e, _hides), _fill_of(e))
        self._biases(e, _hides, False, set())

    def _biases(self, e: Expr, hides: Callable[[Const], bool], factor: bool, seen: set[Expr]) -> None:
        """What `e` adds (or multiplies) where it hides nothing."""
        if e in seen:
            return
        seen.add(e)
        match e:
            case _ if _constant(e, hides):
                pass
            case Call(fn="where", args=(_, a, b)):
                self._biases(a, hides, factor, seen)
                self._biases(b, hides, factor, seen)
            case Call(fn="cast", args=(a,)) if is_float(a.dtype):
                self._biases(a, hides, factor, seen)
            case _ if self.region.stream in variables(e):
                self.biases.append(Bias(e, factor))
            case _:
                pass

    # ---------------------------------------------------------------- weights

    def weight(self, g: Expr) -> None:
        """What is done to the weights in a summand."""
        if g in self.weighed:
            return
        self.weighed.add(g)
        match g:
            case Call(fn="where", args=(c, a, b)):
                for x in (a, b):
                    if self._made(x):
                        self.weight(x)
                if self._given(c):
                    yes, no = (keeps(self.traced(x), _is_zero) if self._given(x) else YES for x in (a, b))
                    self._multiplied(join(plain(self.traced(c)), yes, no))
            case Call(fn="mul", args=(a, b)):
                for x in (a, b):
                    if self._made(x):
                        self.weight(x)
                    elif self._given(x):
                        self._factor(x)
            case Call(fn=("div" | "cast" | "neg" | "add" | "sub")):
                for x in g.args:
                    if self._made(x):
                        self.weight(x)
            case Call():
                for x in g.args:
                    if self._made(x):
                        self.score(x)
            case _:
                pass

    def _factor(self, e: Expr) -> None:
        if any(x.tensor in self.values for x in loads_of(e)) or variables(e) & set(self.region.columns):
            return
        e = self.traced(e)
        self._multiplied(keeps(e, _is_zero))
        # Without columns it may be the values themselves that are read along the stream.
        if self.region.columns or self.region.row in variables(e):
            self._biases(e, _is_zero, True, set())

    # ---------------------------------------------------------------- both

    def _note(self, keep: Expr, fill: float | None) -> None:
        if not isinstance(keep, Const):
            self.masks.setdefault(simplified(keep), fill)

    def _multiplied(self, keep: Expr) -> None:
        if not isinstance(keep, Const):
            self.factors[simplified(keep)] = None


# ------------------------------------------------------------------------------------------------ what hides


def _hides(e: Const) -> bool:
    return e.value <= FILL


def _is_zero(e: Const) -> bool:
    return e.value == 0


def keeps(e: Expr, hides: Callable[[Const], bool]) -> Expr:
    """The condition under which the number `e`, which holds no scores, is not one that `hides`."""
    with work() as w:
        return w.once(f"keeps{hides.__name__}", e, lambda e: _keeps(e, hides))


def _keeps(e: Expr, hides: Callable[[Const], bool]) -> Expr:
    match e:
        case Const():
            return NO if is_float(e.dtype) and hides(e) else YES
        case Call(fn="where", args=(c, a, b)):
            return join(plain(c), keeps(a, hides), keeps(b, hides))
        case Call(fn="cast", args=(a,)) if is_float(a.dtype):
            return keeps(a, hides)
        case Call(fn=("min" | "max"), args=(a, b)):
            return call("and" if (e.fn == "min") == (hides is _hides) else "or", keeps(a, hides), keeps(b, hides))
        case Call(fn="mul", args=(a, b)) if hides is _is_zero:
            return call("and", keeps(a, hides), keeps(b, hides))
        case Call() | Load():
            kept = by_cases(e, lambda x: keeps(x, hides) if isinstance(x, Const) else YES, _masks_in(e, hides))
            return YES if kept is None else kept
        case _:
            return YES


def _masks_in(e: Expr, hides: Callable[[Const], bool]) -> Callable[[Load], bool]:
    """The loaded numbers that are taken for 0 or 1: of floats only those that a large number multiplies."""
    numbers = [x for x in loads_of(e, through_conditions=False) if x is not e]
    chosen = {x for x in numbers if is_int(x.dtype) or (is_float(x.dtype) and hides is _hides and linear(e, x))}
    return lambda x: x in chosen


def _constant(e: Expr, hides: Callable[[Const], bool]) -> bool:
    """Whether `e` is one number wherever it hides nothing."""
    met: set[Expr] = set()

    def note(x: Expr) -> Expr:
        if not (isinstance(x, Const) and hides(x)):
            met.add(x)
        return YES

    value = by_cases(e, note, _masks_in(e, hides))
    return value is not None and len(met) <= 1 and all(isinstance(x, Const) for x in met)


def _fill_of(e: Expr) -> float | None:
    """The finite number that `e` adds where it hides, when there is one."""
    fills: set[float] = set()

    def note(x: Expr) -> Expr:
        if isinstance(x, Const) and _hides(x):
            fills.add(float(x.value))
        return YES

    by_cases(e, note, _masks_in(e, _hides))
    return fills.pop() if len(fills) == 1 and -float("inf") not in fills else None


__all__ = ["Bias", "Mask", "Part", "Unsaid", "has_mask", "keep_of", "parts_of"]
