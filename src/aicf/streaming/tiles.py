"""What is known of a whole tile: three-valued evaluation of masks and scores over boxes of positions, as expressions.

Given a box i in [i_lo, i_hi], j in [j_lo, j_hi] whose ends are expressions of loop variables, `must(c)` is an expression that
implies that `c` holds at every position of the box, and `masked(u)` one that implies that `u` is the mask's fill value
everywhere. False is always a sound answer. The expressions are a handful of scalar operations that a kernel evaluates once per
tile; no list of tiles and no rows x keys work exists anywhere (docs/theory.md, 6.2).

Per-token tensors (document ids, lengths, padding masks) enter through their extremes over the tile, which are computed once per
call in O(tokens): a `Box` collects which are needed. A dense mask, a tensor with a value for every (row, key),
is looked at tile by tile, once per call, as far as it takes to see that it holds, or fails, somewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from aicf.scalar import (
    FUNCTIONS,
    Call,
    Const,
    DType,
    Expr,
    Function,
    Load,
    Var,
    affine,
    call,
    cast,
    children,
    const,
    index,
    integer_const,
    is_float,
    is_int,
    load,
    numpy_dtype,
    reads,
    substitute,
    transform,
    unknown,
    variables,
    walk,
)
from aicf.scalar.derivatives import EXPRESSIONS
from aicf.scalar.functions import FILL

YES, NO = const(True, "bool"), const(False, "bool")
NEG_INF = float("-inf")
TRIED = 1500  # nodes that are simplified to see what a condition turned into a number does
ABSORBS = -1e30  # a finite fill from here down absorbs every score that is added to it


@dataclass(frozen=True)
class TileSummary:
    """A summary to compute: the extreme `op` over each tile of `axes` of `value`, stored as `param[outer…, tile of each axis]`.
    One axis, or two for a condition."""

    param: str
    op: str
    axes: tuple[Var, ...]
    outer: tuple[Var, ...]
    value: Expr


@dataclass
class Box:
    """A tile: for each position variable its inclusive bounds and its tile number (an expression); `batch` are the variables
    that have one value in a tile and others in other work items, in contrast to sizes.

    `cut`: the box is what is left of a tile from that streamed position on, for the rows of a block: positions without a tile
    number, of which no summary tells."""

    low: Mapping[Var, Expr]
    high: Mapping[Var, Expr]
    number: Mapping[Var, Expr]
    batch: frozenset[Var] = frozenset()
    cut: Var | None = None
    summaries: dict[tuple[str, Expr], TileSummary] = field(default_factory=dict[tuple[str, Expr], TileSummary])
    # What carried sums are relative to: finite, and the same for all streamed positions.
    references: frozenset[Var] = frozenset()
    # What was found before: subexpressions recur in the bodies of the extremum and of every sum.
    intervals: dict[Expr, tuple[Expr, Expr] | None] = field(default_factory=dict[Expr, "tuple[Expr, Expr] | None"])
    truths: dict[tuple[Expr, bool], Expr] = field(default_factory=dict[tuple[Expr, bool], Expr])
    # By question ("masked", "vanishes", …) and expression; proofs with the largest fill that they met.
    proofs: dict[tuple[str, Expr], tuple[Expr, float | None]] = field(
        default_factory=dict[tuple[str, Expr], "tuple[Expr, float | None]"]
    )
    answers: dict[tuple[str, Expr], bool] = field(default_factory=dict[tuple[str, Expr], bool])

    def axes(self, e: Expr) -> list[Var]:
        """The box's position variables in `e`."""
        here = variables(e)
        return [v for v in self.low if v in here]

    def extreme(self, op: str, e: Expr) -> Expr | None:
        """The per-tile minimum or maximum of a value of one position, through a summary; None when it has two positions."""
        return self._summarised(op, e) if len(self.axes(e)) == 1 else None

    def dense(self, op: str, c: Expr) -> Expr | None:
        """The minimum or maximum, as a number, over a tile of a dense mask, a tensor with a value for every (row, key); None
        for others: what follows from positions and per-token tensors never costs rows x keys."""
        if len(self.axes(c)) != 2 or not self.reads_pairs(c):
            return None
        return self._summarised(op, cast(c, "i32"))

    def reads_pairs(self, c: Expr) -> bool:
        """Whether `c` loads a dense mask: a tensor of [rows, keys]."""
        for x in unknown(c, _Answered(self.answers, "reads pairs")):
            own = isinstance(x, Load) and len(self.axes(x)) == 2
            self.answers["reads pairs", x] = own or any(self.answers["reads pairs", k] for k in children(x))
        return self.answers["reads pairs", c]

    def last(self, c: Expr) -> Expr | None:
        """The last position of the tile at which a condition of a streamed position holds, -1 where it holds at none."""
        (axis,) = self.axes(c)
        return self._summarised("max", call("where", c, axis, integer_const(-1)))

    def of_keys(self, e: Expr) -> bool:
        """Whether the box begins at a cut, and `e` is what tensors say of streamed positions."""
        here = self.axes(e)
        return self.cut is not None and [self.low[v] for v in here] == [self.cut] and reads(e)

    def _summarised(self, op: str, e: Expr) -> Expr | None:
        axes = tuple(self.axes(e))
        if any(is_float(x.dtype) for x in variables(e)) or not all(v in self.number for v in axes):
            return None
        key = (op, e)
        if key not in self.summaries:
            outer = tuple(sorted(variables(e) & self.batch, key=lambda v: v.name))
            self.summaries[key] = TileSummary(f"{op}{len(self.summaries)}", op, axes, outer, e)
        summary = self.summaries[key]
        return load(summary.param, (*summary.outer, *(self.number[v] for v in axes)), e.dtype)


@dataclass(frozen=True)
class _Answered:
    """The expressions of which a question is answered."""

    answers: Mapping[tuple[str, Expr], bool]
    question: str

    def __contains__(self, e: object) -> bool:
        return (self.question, e) in self.answers


Interval = tuple[Expr, Expr]


def interval(box: Box, e: Expr) -> Interval | None:
    """Expressions for inclusive bounds of a number over the box; None when nothing is known."""
    if e not in box.intervals:
        box.intervals[e] = _interval(box, e)
    return box.intervals[e]


def _interval(box: Box, e: Expr) -> Interval | None:
    if not box.axes(e):
        return (e, e) if not _opaque(e) else None
    if e.dtype == "i64":
        linear = _affine(box, e)
        if linear is not None:
            return linear
    match e:
        case Call(fn="cast", args=(a,)):
            return _converted(box, e, a)
        case Call(fn="where", args=(c, a, b)):
            return _selected(box, c, a, b)
        case Call():
            bounds = _by_rule(box, e, FUNCTIONS[e.fn])
            return _summary(box, e) if bounds is None else bounds
        case _:
            return _summary(box, e)


def _by_rule(box: Box, e: Call, row: Function) -> Interval | None:
    """The bounds that follow from those of the operands."""
    known = [interval(box, a) for a in e.args if a.dtype != "bool"]
    operands = [x for x in known if x is not None]
    if len(operands) < len(e.args):
        return None
    if row.wraps:
        return _unwrapped(e, row, *operands)
    return row.bounds(EXPRESSIONS, *operands)


def _converted(box: Box, e: Call, a: Expr) -> Interval | None:
    if a.dtype == "bool":
        return cast(must(box, a), e.dtype), cast(may(box, a), e.dtype)
    if is_float(a.dtype) and is_int(e.dtype):
        return _summary(box, e)
    x = interval(box, a)
    if x is None:
        return None
    if is_int(e.dtype) and is_int(a.dtype) and not _holds(e.dtype, a.dtype):
        if e.dtype in ("i32", "i64") and _of_positions(e):
            return x
        return _fitting(e, (cast(x[0], "i64"), cast(x[1], "i64")), (x,))
    return cast(x[0], e.dtype), cast(x[1], e.dtype)


def _selected(box: Box, c: Expr, a: Expr, b: Expr) -> Interval | None:
    x, y = interval(box, a), interval(box, b)
    if x is None or y is None:
        return None
    all_yes, none_yes = must(box, c), call("not", may(box, c))
    low = call("where", all_yes, x[0], call("where", none_yes, y[0], call("min", x[0], y[0])))
    return low, call("where", all_yes, x[1], call("where", none_yes, y[1], call("max", x[1], y[1])))


def _opaque(e: Expr) -> bool:
    return any(is_float(x.dtype) for x in variables(e))


def _summary(box: Box, e: Expr) -> Interval | None:
    if not reads(e):
        return None
    low, high = box.extreme("min", e), box.extreme("max", e)
    return None if low is None or high is None else (low, high)


def _holds(wide: DType, narrow: DType) -> bool:
    """Whether every integer of `narrow` is one of `wide`."""
    return _limits(wide)[0] <= _limits(narrow)[0] and _limits(narrow)[1] <= _limits(wide)[1]


def _limits(dtype: DType) -> tuple[int, int]:
    info = np.iinfo(numpy_dtype(dtype))
    return int(info.min), int(info.max)


def _of_positions(e: Expr) -> bool:
    """Whether an integer is made of positions, sizes and small numbers in a way that stays in its type at lengths that exist."""
    for x in unknown(e, _POSITIONS):
        _POSITIONS[x] = _stays(x) and all(_POSITIONS[k] for k in children(x))
    return _POSITIONS[e]


_POSITIONS: dict[Expr, bool] = {}


def _stays(x: Expr) -> bool:
    match x:
        case Load():
            return False
        case Const() if is_int(x.dtype) and abs(x.value) >= 2**30:
            return False
        case Call(fn="mul", args=args) if x.dtype != "i64":
            return any(isinstance(a, Const) and abs(a.value) <= 2**10 for a in args)
        case Call() if is_int(x.dtype):
            return x.dtype in ("i32", "i64")
        case _:
            return True


def _unwrapped(e: Call, row: Function, *operands: Interval) -> Interval | None:
    """The bounds of `e`, an operation on numbers in `operands`. Integers wrap around: where the bounds leave the type, or could
    not be computed, nothing is known and they are those of the type. (The difference of segment ids in uint8 wraps at once.)"""
    exact = row.bounds(EXPRESSIONS, *operands)
    if exact is None or not is_int(e.dtype):
        return exact
    if e.dtype in ("i32", "i64") and _of_positions(e):
        return exact
    wide = row.bounds(EXPRESSIONS, *((cast(a, "i64"), cast(b, "i64")) for a, b in operands))
    return None if wide is None else _fitting(e, wide, operands)


def _fitting(e: Call, bounds: Interval, operands: Sequence[Interval]) -> Interval:
    """`bounds`, in i64, where they lie in the type of `e` and `operands` were small enough to compute them; else its limits."""
    low, high = bounds
    least, most = _limits(e.dtype)
    ends = [cast(x, "i64") for o in operands for x in o]
    fits = call("and", call("ge", low, const(least, "i64")), call("le", high, const(most, "i64")))
    if any(x.dtype == "i64" for o in operands for x in o):
        far = const(2**31 if e.fn == "mul" else 2**62, "i64")
        for x in ends:
            if isinstance(x, Const):
                fits = call("and", fits, const(abs(x.value) < far.value, "bool"))
            else:
                fits = call("and", fits, call("and", call("le", call("neg", far), x), call("lt", x, far)))
    return (
        call("where", fits, cast(low, e.dtype), const(least, e.dtype)),
        call("where", fits, cast(high, e.dtype), const(most, e.dtype)),
    )


def _affine(box: Box, e: Expr) -> Interval | None:
    axes = tuple(box.low)
    linear = affine(e, axes)
    if linear is None or reads(e) or any(isinstance(x, Const) and abs(x.value) >= 2**30 for x in walk(e)):
        return None
    low = high = linear[1]
    for axis, coefficient in zip(axes, linear[0], strict=True):
        if not isinstance(coefficient, Const):
            return None
        ends = (box.low[axis], box.high[axis]) if coefficient.value >= 0 else (box.high[axis], box.low[axis])
        low = call("add", low, call("mul", coefficient, ends[0]))
        high = call("add", high, call("mul", coefficient, ends[1]))
    return low, high


# ------------------------------------------------------------------------------------------------ conditions


def must(box: Box, c: Expr) -> Expr:
    """An expression that implies: `c` holds everywhere in the box."""
    return _truth(box, c, True)


def may(box: Box, c: Expr) -> Expr:
    """An expression implied by: `c` holds somewhere in the box."""
    return call("not", _truth(box, c, False))


def _truth(box: Box, c: Expr, value: bool) -> Expr:
    """An expression that implies: `c` is `value` everywhere."""
    proof = box.truths.get((c, value))
    if proof is None:
        proof = box.truths[c, value] = _proof(box, c, value)
    return proof


def _proof(box: Box, c: Expr, value: bool) -> Expr:
    if not box.axes(c) and not _opaque(c):
        return c if value else call("not", c)
    if c.dtype == "bool" and box.of_keys(c):
        return _from_the_cut(box, call("not", c) if value else c)
    match c:
        case Call(fn="not", args=(a,)) if c.dtype == "bool":
            return _truth(box, a, not value)
        case Call(fn=("and" | "or") as fn, args=(a, b)) if c.dtype == "bool":
            joint = "and" if (fn == "and") == value else "or"
            return call(joint, _truth(box, a, value), _truth(box, b, value))
        case Call(fn=("eq" | "ne" | "xor") as fn, args=(a, b)) if a.dtype == "bool" and c.dtype == "bool":
            same = call("or", call("and", must(box, a), must(box, b)), call("and", _truth(box, a, False), _truth(box, b, False)))
            differ = call(
                "or", call("and", must(box, a), _truth(box, b, False)), call("and", _truth(box, a, False), must(box, b))
            )
            return same if (fn == "eq") == value else differ
        case Call(fn=("lt" | "le" | "gt" | "ge" | "eq" | "ne"), args=(a, b)):
            return _compared(box, c, a, b, value)
        case Call(fn="where", args=(k, a, b)) if c.dtype == "bool":
            chosen = call("and", must(box, k), _truth(box, a, value))
            other = call("and", _truth(box, k, False), _truth(box, b, value))
            return call("or", call("or", chosen, other), call("and", _truth(box, a, value), _truth(box, b, value)))
        case Call(fn="cast", args=(a,)) if a.dtype != "bool":
            return _truth(box, call("ne", a, const(0, a.dtype)), value)
        case _:
            number = cast(c, "i32")
            summary = _summary(box, number) if c.dtype == "bool" else None
            if summary is None:
                return _looked_at(box, c, value)
            return call("ne", summary[0], const(0, "i32")) if value else call("eq", summary[1], const(0, "i32"))


def _from_the_cut(box: Box, c: Expr) -> Expr:
    """An expression that implies: a condition of streamed positions fails from the cut on."""
    last = box.last(c)
    return NO if last is None or box.cut is None else call("gt", box.cut, last)


def _looked_at(box: Box, c: Expr, value: bool) -> Expr:
    """What the tile of a dense mask says itself."""
    dense = box.dense("min" if value else "max", c) if c.dtype == "bool" else None
    if dense is None:
        return NO
    return call("ne" if value else "eq", dense, const(0, "i32"))


def _compared(box: Box, c: Call, a: Expr, b: Expr, value: bool) -> Expr:
    fn = c.fn if value else {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}[c.fn]
    zero = integer_const(0)
    x = y = None
    if a.dtype == "i64":
        difference = interval(box, call("sub", a, b)) if _affine(box, call("sub", a, b)) is not None else None
        if difference is not None:
            x, y = difference, (zero, zero)
    if x is None or y is None:
        x, y = interval(box, a), interval(box, b)
    if x is None or y is None:
        return _looked_at(box, c, value)
    # NaN compares false, so a condition is only ever proved from comparisons that hold, never from ones that fail.
    match fn:
        case "lt":
            return call("lt", x[1], y[0])
        case "le":
            return call("le", x[1], y[0])
        case "gt":
            return call("gt", x[0], y[1])
        case "ge":
            return call("ge", x[0], y[1])
        case "eq":
            return call("and", call("eq", x[0], x[1]), call("and", call("eq", y[0], y[1]), call("eq", x[0], y[0])))
        case _:
            return call("or", call("lt", x[1], y[0]), call("lt", y[1], x[0]))


# ------------------------------------------------------------------------------------------------ masked tiles


@dataclass
class Fills:
    """The finite fill values met while a body was found masked: the largest, as an upper bound of what masked scores are."""

    largest: float | None = None

    def add(self, value: float) -> None:
        self.largest = value if self.largest is None else max(self.largest, value)


def masked(box: Box, u: Expr, fills: Fills) -> Expr:
    """An expression that implies: `u` is -inf, or at most a fill value recorded in `fills`, everywhere in the box. Operands that
    are added to a fill, or multiplied with zero, are assumed finite (docs/theory.md, 6.2)."""
    return _proved(box, "masked by a switch", u, fills, _by_switch)


Proof = Callable[[Box, Expr, Fills], Expr]


def _proved(box: Box, question: str, u: Expr, fills: Fills, proof: Proof) -> Expr:
    """What `proof` says of `u`, found once per box: parts of scores are shared by branches, and by the bodies of all sums."""
    known = box.proofs.get((question, u))
    if known is None:
        own = Fills()
        known = box.proofs[question, u] = (proof(box, u, own), own.largest)
    answer, largest = known
    if largest is not None:
        fills.add(largest)
    return answer


def _by_switch(box: Box, u: Expr, fills: Fills) -> Expr:
    masked = _masked(box, u, fills)
    for c in _switches(box, u):
        for value in (False, True):
            filled = _fill_value(box, substitute(u, {c: const(value, "bool")}))
            if filled is not None:
                if filled > NEG_INF:
                    fills.add(filled)
                masked = call("or", masked, _truth(box, c, value))
    return masked


def _switches(box: Box, u: Expr) -> list[Expr]:
    """Conditions that are turned into numbers inside `u`: `s * keep - 1e4 * (1 - keep)`. Each is tried with all of `u`:
    no more of them than a mask of a few lines has, where `u` is large."""
    nodes = [x for x in unknown(u, ()) if isinstance(x, Call)]
    here = [x.args[0] for x in nodes if x.fn == "cast" and x.args[0].dtype == "bool"]
    here += [x.args[0] for x in nodes if x.fn == "where" and all(isinstance(a, Const) for a in x.args[1:])]
    switches = [c for c in dict.fromkeys(here) if box.axes(c)]
    return switches[: max(1, TRIED // max(1, len(nodes)))]


def _fill_value(box: Box, e: Expr) -> float | None:
    """The fill that an expression has turned into, taking 0 * x for 0 where no mask makes x infinite."""

    def zero(x: Expr) -> Expr | None:
        if isinstance(x, Call) and x.fn == "mul":
            for a, b in (x.args, x.args[::-1]):
                if isinstance(a, Const) and a.value == 0 and not _may_be_infinite(box, b):
                    return const(0, x.dtype)
        return None

    done = transform(e, zero)
    while isinstance(done, Call) and done.fn == "sub" and isinstance(done.args[1], Var) and done.args[1] in box.references:
        done = done.args[0]
    return float(done.value) if isinstance(done, Const) and is_float(done.dtype) and done.value <= FILL else None


def _masked(box: Box, u: Expr, fills: Fills) -> Expr:
    return _proved(box, "masked", u, fills, _masking)


def _masking(box: Box, u: Expr, fills: Fills) -> Expr:
    match u:
        case Const() if is_float(u.dtype) and u.value <= FILL:
            if u.value > NEG_INF:
                fills.add(float(u.value))
            return YES
        case Call(fn="where", args=(c, a, b)):
            return _either(box, c, _masked(box, a, fills), _masked(box, b, fills))
        case Call(fn="add", args=(a, b)):
            # -inf and +inf make NaN: masks that are added may be -inf, but not negated.
            spoils = {y: _may_be_nan(box, y) or _may_be_plus_infinity(box, y) for y in (a, b)}
            return call("or", *(NO if spoils[y] else _absorbing(box, x, fills) for x, y in ((a, b), (b, a))))
        case Call(fn="sub", args=(a, Var() as b)) if b in box.references:
            return _masked(box, a, fills)  # relative to the reference: the fill is compared with the maximum at the end
        case Call(fn="sub", args=(a, b)):
            return NO if _may_be_nan(box, b) or _masks(box, b) else _absorbing(box, a, fills)
        case Call(fn="mul", args=(a, Const() as k)) if k.value > 0:
            return _scaled(box, a, float(k.value), fills)
        case Call(fn="max", args=(a, b)):
            return call("and", _masked(box, a, fills), _masked(box, b, fills))
        case Call(fn="min", args=(a, b)):
            return call("or", *(NO if _may_be_nan(box, y) else _masked(box, x, fills) for x, y in ((a, b), (b, a))))
        case Call(fn="cast", args=(a,)) if is_float(a.dtype):
            return _masked(box, a, fills)
        case Load() | Call():
            return _loaded(box, u)
        case _:
            return NO


def _either(box: Box, c: Expr, yes: Expr, no: Expr) -> Expr:
    chosen = call("or", call("and", must(box, c), yes), call("and", _truth(box, c, False), no))
    return call("or", chosen, call("and", yes, no))


def _absorbing(box: Box, u: Expr, fills: Fills) -> Expr:
    """`masked`, for an operand that something finite is added to: only fills that absorb it."""
    own = Fills()
    masked = _masked(box, u, own)
    if own.largest is not None:
        if own.largest > ABSORBS:
            return _infinite(box, u)
        fills.add(own.largest / 2)
    return masked


def _scaled(box: Box, u: Expr, factor: float, fills: Fills) -> Expr:
    """`masked`, for `u` times a positive number: its fills are scaled too (and rounded, to a half at worst)."""
    own = Fills()
    masked = _masked(box, u, own)
    if own.largest is not None:
        if own.largest * factor > FILL:
            return _infinite(box, u)
        fills.add(own.largest * factor * (1 - 2.0**-7))
    return masked


def _infinite(box: Box, u: Expr) -> Expr:
    own = Fills()
    masked = _masked(box, u, own)
    return masked if own.largest is None else NO


def _may_be_infinite(box: Box, u: Expr) -> bool:
    """Whether a factor may hold what a mask made infinite: a fill, the logarithm of a condition, an element of a loaded mask."""
    return _answered(box, "may be infinite", u, _infinite_here)


def _answered(box: Box, question: str, u: Expr, answer: Callable[[Box, Expr], bool]) -> bool:
    """What `answer` says of `u`, found once per box."""
    known = box.answers.get((question, u))
    if known is None:
        known = box.answers[question, u] = answer(box, u)
    return known


def _infinite_here(box: Box, u: Expr) -> bool:
    match u:
        case Const():
            return is_float(u.dtype) and abs(u.value) == -NEG_INF
        case Load():
            return is_float(u.dtype) and bool(box.axes(u))
        case Call(fn="where", args=(_, a, b)):
            return _may_be_infinite(box, a) or _may_be_infinite(box, b)
        case Call(fn="cast", args=(a,)):
            return _may_be_infinite(box, a)
        case Call():
            row = FUNCTIONS[u.fn]
            if row.finite_where_masked or (u.fn == "max" and any(isinstance(a, Const) and a.value > NEG_INF for a in u.args)):
                return False  # scores are masked with -inf, not with inf
            pole = None if row.pole is None or (u.fn == "pow" and _at_least_zero(u.args[1])) else u.args[row.pole]
            return (pole is not None and bool(box.axes(pole))) or any(_may_be_infinite(box, a) for a in u.args)
        case _:
            return False


def _at_least_zero(n: Expr) -> bool:
    return isinstance(n, Const) and n.value >= 0


def _may_be_nan(box: Box, u: Expr) -> bool:
    """Whether masks inside of `u` may make NaN of it: `x * sigmoid(x)` is NaN where x is -inf. No fill beside it hides that."""
    return _answered(box, "may be NaN", u, _nan_here)


def _nan_here(box: Box, u: Expr) -> bool:
    match u:
        case Call(fn="where", args=(_, a, b)):
            return _may_be_nan(box, a) or _may_be_nan(box, b)
        case Call(args=args) if is_float(u.dtype):
            if any(_may_be_nan(box, a) for a in args):
                return True
            if u.fn == "cast" or FUNCTIONS[u.fn].keeps_infinity or not any(_masks(box, a) for a in args):
                return False
            # A number or a tensor that scales scores is taken for neither 0 nor infinite.
            return FUNCTIONS[u.fn].infinite != "combined" or all(_masks(box, a) or _of_scores(box, a) for a in args)
        case _:
            return False


def _may_be_plus_infinity(box: Box, u: Expr) -> bool:
    """Whether masks inside of `u` may make +inf of it: what subtracts or negates a masked score."""
    return _answered(box, "may be plus infinity", u, _plus_infinity_here)


def _plus_infinity_here(box: Box, u: Expr) -> bool:
    match u:
        case Const():
            return is_float(u.dtype) and u.value == -NEG_INF
        case Call(fn="where", args=(_, a, b)):
            return _may_be_plus_infinity(box, a) or _may_be_plus_infinity(box, b)
        case Call(fn="sub", args=(a, b)):
            return _may_be_plus_infinity(box, a) or _masks(box, b)
        case Call(fn=("mul" | "div"), args=(a, Const() as k)) if k.value > 0:
            return _may_be_plus_infinity(box, a)
        case Call(fn=("add" | "max" | "min" | "cast" | "exp" | "exp2"), args=args):
            return any(_may_be_plus_infinity(box, a) for a in args)
        case Call():
            return _masks(box, u)
        case _:
            return False


def _masks(box: Box, u: Expr) -> bool:
    return _may_be_infinite(box, u) and _answered(box, "holds an infinite number", u, _holds_infinite)


def _holds_infinite(box: Box, u: Expr) -> bool:
    if isinstance(u, Const):
        return _may_be_infinite(box, u)
    return any(_answered(box, "holds an infinite number", k, _holds_infinite) for k in children(u))


def _of_scores(box: Box, u: Expr) -> bool:
    """Scores, or a condition as a number."""
    return _answered(box, "of scores", u, _of_scores_here)


def _of_scores_here(box: Box, u: Expr) -> bool:
    if u.dtype == "bool" or (isinstance(u, Var) and is_float(u.dtype) and u not in box.references):
        return True
    return any(_of_scores(box, k) for k in children(u))


def _loaded(box: Box, u: Expr) -> Expr:
    """A mask read from memory, one value per row, per key or per score: all -inf in the tile."""
    if not reads(u) or not is_float(u.dtype):
        return NO
    lowest = const(NEG_INF, u.dtype)
    if box.of_keys(u):
        return _from_the_cut(box, call("ne", u, lowest))
    top = box.extreme("max", u)
    return call("eq", top, lowest) if top is not None else _looked_at(box, call("eq", u, lowest), True)


def vanishes(box: Box, g: Expr, fills: Fills) -> Expr:
    """An expression that implies: the summand `g` is 0 everywhere in the box (values finite where masked)."""
    return _proved(box, "vanishes", g, fills, _vanishing)


def _vanishing(box: Box, g: Expr, fills: Fills) -> Expr:
    match g:
        case Const():
            return const(g.value == 0, "bool")
        case Call(fn="cast", args=(a,)):
            return vanishes(box, a, fills)
        case Call():
            return FUNCTIONS[g.fn].zero_where_masked(_Masked(box, fills), *g.args)
        case _:
            return NO


@dataclass(frozen=True)
class _Masked:
    """What rows of FUNCTIONS ask of their operands (`rules.Masked`), over a box."""

    box: Box
    fills: Fills

    def zero(self, e: Expr) -> Expr:
        return vanishes(self.box, e, self.fills)

    def zero_beside(self, e: Expr, other: Expr) -> Expr:
        return self.zero(e) if _finite(self.box, other) else NO

    def filled(self, e: Expr) -> Expr:
        return masked(self.box, e, self.fills)

    def chosen(self, condition: Expr, yes: Expr, no: Expr) -> Expr:
        return _either(self.box, condition, yes, no)

    def number(self, e: Expr) -> float | None:
        return e.value if isinstance(e, Const) else None

    def all(self, a: Expr, b: Expr) -> Expr:
        return call("and", a, b)

    def any(self, a: Expr, b: Expr) -> Expr:
        return call("or", a, b)

    def never(self) -> Expr:
        return NO


def _finite(box: Box, factor: Expr) -> bool:
    """Whether a factor beside one that vanishes may be taken for finite: not if it holds scores that the mask itself makes -inf
    (`exp(s) * s` of an entropy is NaN there)."""
    scores = any(is_float(x.dtype) and x not in box.references for x in variables(factor))
    return not scores or not _may_be_infinite(box, factor)


def conditions(e: Expr, positions: frozenset[Var]) -> list[Expr]:
    """The conditions of selections in `e` that depend on positions or on loaded masks, outermost first."""
    parts: dict[Expr, None] = {}
    for x in walk(e):
        if isinstance(x, Call) and x.fn == "where" and variables(x.args[0]) & positions:
            parts.setdefault(x.args[0])
    return [*parts][::-1]


# ------------------------------------------------------------------------------------------------ loop bounds


def stream_bounds(empty: Expr, origin: Var, step: int) -> tuple[list[Expr], list[Expr]]:
    """Bounds of the streamed tiles that `empty` implies: lower bounds for the origin (in whole tiles) and exclusive upper
    bounds. `empty` is a disjunction; each disjunct that is one comparison affine in the origin gives one bound."""
    lower: list[Expr] = []
    upper: list[Expr] = []
    for part in _disjuncts(empty):
        bound = _edge(part, origin)
        if bound is None:
            continue
        edge, rising, strict = bound
        if rising:  # empty from some origin on
            upper.append(call("add", edge, integer_const(1)) if strict else edge)
        else:  # empty up to some origin: the first origin that is not
            first = edge if strict else call("add", edge, integer_const(1))
            whole = call("floordiv", call("add", first, integer_const(step - 1)), integer_const(step))
            lower.append(call("mul", whole, integer_const(step)))
    return lower, upper


def end_of_rows(empty: Expr, cut: Var) -> Expr | None:
    """The first position from which on `empty` holds: where the keys of a block of rows end inside of a tile. `empty` is made of
    conjunctions and disjunctions; None where it says nothing of an end."""
    return _end_of_rows(empty, cut, {})


def _end_of_rows(empty: Expr, cut: Var, known: dict[Expr, Expr | None]) -> Expr | None:
    if empty not in known:
        known[empty] = _end_here(empty, cut, known)
    return known[empty]


def _end_here(empty: Expr, cut: Var, seen: dict[Expr, Expr | None]) -> Expr | None:
    if isinstance(empty, Call) and empty.fn in ("and", "or") and empty.dtype == "bool":
        ends = [_end_of_rows(e, cut, seen) for e in empty.args]
        known = [e for e in ends if e is not None]
        if not known or (empty.fn == "and" and len(known) < len(ends)):
            return None
        return known[0] if len(known) == 1 else call("max" if empty.fn == "and" else "min", *known)
    if cut not in variables(empty):
        return None if isinstance(empty, Const) and not empty.value else call("where", empty, integer_const(0), index("M"))
    end = _edge(empty, cut)
    if end is None:
        return None
    edge, rising, strict = end
    if not rising:
        return None
    return call("add", edge, integer_const(1)) if strict else edge


def _edge(c: Expr, v: Var) -> tuple[Expr, bool, bool] | None:
    """(edge, rising, strict) of a comparison that is affine in `v` and says v > edge (rising) or v < edge, or with equality where
    not `strict`; None for any other condition."""
    if not (isinstance(c, Call) and c.fn in ("lt", "le", "gt", "ge") and c.args[0].dtype == "i64"):
        return None
    difference = call("sub", *c.args)
    linear = affine(difference, (v,))
    if linear is None or any(isinstance(x, Load) and v in variables(x) for x in walk(difference)):
        return None
    (k,), rest = linear
    if not isinstance(k, Const) or abs(int(k.value)) != 1:
        return None
    # difference = k*v + rest, and it is < 0, <= 0, > 0 or >= 0.
    rising = (int(k.value) > 0) == (c.fn in ("gt", "ge"))
    return call("neg", rest) if int(k.value) > 0 else rest, rising, c.fn in ("lt", "gt")


def _disjuncts(e: Expr) -> list[Expr]:
    """The parts of a disjunction, each once."""
    parts: dict[Expr, None] = {}
    seen: set[Expr] = set()
    stack = [e]
    while stack:
        x = stack.pop()
        if x not in seen:
            seen.add(x)
            if isinstance(x, Call) and x.fn == "or" and x.dtype == "bool":
                stack += reversed(x.args)
            else:
                parts[x] = None
    return [*parts]


def tile_box(
    positions: Mapping[Var, tuple[Expr, int]], batch: Iterable[Var] = (), references: Iterable[Var] = ()
) -> Box:
    """The box of the current tile: for each position variable its extent and tile length; origins are `<name>0`. `batch`: the
    variables of the work item. `references`: what sums are relative to."""
    low: dict[Var, Expr] = {}
    high: dict[Var, Expr] = {}
    number: dict[Var, Expr] = {}
    for v, (extent, length) in positions.items():
        origin = index(v.name + "0")
        low[v] = origin
        end = call("add", origin, integer_const(length))
        high[v] = call("sub", call("min", end, extent), integer_const(1))
        number[v] = call("floordiv", origin, integer_const(length))
    return Box(low, high, number, frozenset(batch), references=frozenset(references))


def rest_of(box: Box, rows: Var, extent: Expr, block: int, stream: Var, cut: Var) -> Box:
    """What is left of a tile from streamed position `cut` on, for a block of rows that begins at the rows' origin."""
    end = call("min", call("add", index(rows.name + "0"), integer_const(block)), extent)
    high = {**box.high, rows: call("sub", end, integer_const(1))}
    return Box({**box.low, stream: cut}, high, {stream: box.number[stream]}, box.batch, cut, box.summaries, box.references)
