"""Masks and biases in words: `~(j > i | i - j >= 256)` is "causal, window 256", `mask[b, j] == 0` is "keys that mask hides".

Only what is recognised is renamed; everything else is shown as the expression it is, over the names of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from aicf.scalar import (
    FINFO_MIN,
    Call,
    Const,
    Expr,
    Var,
    affine,
    call,
    cast,
    const,
    index,
    integer_const,
    is_float,
    show,
    substitute,
    transform,
    var,
    variables,
    weight,
)
from aicf.streaming.conditions import conjuncts, loads_of, pushed
from aicf.streaming.masks import Bias, Mask, Part, Unsaid

_SWAPPED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}
Said = tuple[str, str]  # a condition in words, and what is said behind them
OWN, OTHER = "each query's own key", "all but each query's own key"
WRITTEN = 400  # parts of a condition, written out, up to which all are said
MOST = 12  # conditions that are said of one mask
LONGEST = 60  # an expression longer than this is named by what it is made of


@dataclass(frozen=True)
class Words:
    """Says conditions over a key at `stream` and a query at `row`; `name` gives what people call a tensor."""

    row: Var
    stream: Var
    name: Callable[[str], str] = str

    def parts(self, parts: Iterable[Part]) -> str:
        """All masks and biases of a region, in one line."""
        return ", ".join(dict.fromkeys(map(self.part, parts)))

    def part(self, p: Part) -> str:
        """A mask or a bias."""
        match p:
            case Bias():
                return self.bias(p)
            case Mask():
                return self.mask(p)
            case Unsaid():
                return f"a {'mask' if p.hides else 'bias'} of {p.operations} operations (too many to put into words)"

    def mask(self, m: Mask) -> str:
        """What a mask lets count, and how it hides the rest where that is no fill."""
        said = self.kept(m.keep)
        if m.late:
            return f"{said} (after the softmax)"
        return said if m.fill is None else f"{said} (by adding {_fill(m.fill)})"

    def bias(self, b: Bias) -> str:
        loads = loads_of(b.value)
        factors = [x for x in _factors(b.value) if not isinstance(x, Const)]
        text = self.name(loads[0].tensor) if [*map(_uncast, factors)] == loads else self._text(b.value)
        return f"{text} multiplies the weights" if b.factor else f"{text} is added to the scores"

    def kept(self, keep: Expr) -> str:
        """The condition `keep`, for people."""
        formula = pushed(keep)
        return self._joined(conjuncts(formula), ", ") if weight(formula) <= WRITTEN else self._made_of(keep)

    def _joined(self, parts: list[Expr], by: str) -> str:
        """The parts of a conjunction in words; what several say of positions alike is said once, behind the last."""
        said = [*dict.fromkeys(self._banded(parts))]
        if len(said) > MOST:
            said = [*said[: MOST - 1], (f"{len(said) - MOST + 1} more conditions", "")]
        after = [*(behind for _, behind in said[1:]), ""]
        return by.join(text if behind == then else text + behind for (text, behind), then in zip(said, after, strict=True))

    def _banded(self, parts: list[Expr]) -> list[Said]:
        """A bound on each side of the diagonal is a band."""
        sides = [(p, *_side(p, self.row, self.stream)) for p in parts]
        ahead = next((n for _, kind, n in sides if kind == "ahead" and n > 0), None)
        behind = next((n for _, kind, n in sides if kind == "behind"), None)
        if ahead is None or behind is None or behind < 0:
            return [self._part(p) for p in parts]
        band = f"band {ahead} to each side" if ahead == behind else f"band {behind} back and {ahead} ahead"
        left = [self._part(p) for p, kind, n in sides if (kind, n) not in (("ahead", ahead), ("behind", behind))]
        return [(band, ""), *left]

    def _part(self, e: Expr) -> Said:
        alternatives = conjuncts(e, "or")
        if len(alternatives) > 1:
            said = dict.fromkeys(self._joined(conjuncts(a), " and ") for a in alternatives)
            return f"({' or '.join(said)})" if len(said) > 1 else next(iter(said)), ""
        if isinstance(e, Call) and e.fn in _SWAPPED and len(e.args) == 2:
            words = self._compared(e)
            by_tensor = (words, "") if words is not None else self._by_tensor(e)
            if by_tensor is not None:
                return by_tensor
        return self._given(e) or self._text(e), ""

    # ---------------------------------------------------------------- conditions on tensors

    def _given(self, e: Expr) -> str | None:
        """A mask that comes as a tensor: which one, along what, and whether it says what to keep or what to hide."""
        loads = loads_of(e)
        if len(loads) != 1 or variables(substitute(e, {loads[0]: const(0, loads[0].dtype)})) & {self.row, self.stream}:
            return None
        (held,) = loads
        along = [v for v in (self.row, self.stream) if any(v in variables(x) for x in held.index)]
        what = ("pairs", "keys", "queries", "batches")[0 if len(along) == 2 else 1 if self.stream in along else 2 if along else 3]
        yes, no = (substitute(e, {held: const(n, held.dtype)}) for n in (1, 0))
        names_a_number = isinstance(e, Call) and e.fn in ("eq", "ne") and isinstance(e.args[1], Const) and e.args[1].value
        if isinstance(yes, Const) and isinstance(no, Const) and yes.value != no.value and not names_a_number:
            return f"{what} that {self.name(held.tensor)} {'keeps' if yes.value else 'hides'}"
        return f"{what} where {self._text(substitute(e, {held: var(self.name(held.tensor), held.dtype)}))}"

    def _by_tensor(self, e: Call) -> Said | None:
        """A comparison of positions that a tensor holds: `pos[b, i] >= pos[b, j]` is "causal by pos"."""
        loads = loads_of(e)
        rows, streams = ([x for x in loads if v in variables(x)] for v in (self.row, self.stream))
        if len(rows) > 1 or len(streams) > 1 or rows == streams:
            return None
        bare = substitute(e, {x: index("held") for x in (*rows, *streams)})
        if (rows and self.row in variables(bare)) or (streams and self.stream in variables(bare)):
            return None
        same = bool(rows and streams) and substitute(rows[0], {self.row: self.stream}) is streams[0]
        if rows and streams and not same:
            return None
        name = self.name((rows or streams)[0].tensor)
        held: dict[Expr, Expr] = {x: cast(v, x.dtype) for v, own in ((self.row, rows), (self.stream, streams)) for x in own}
        plain = substitute(e, held)
        if not isinstance(plain, Call) or not {self.row, self.stream} <= variables(plain):
            return None
        if e.fn in ("eq", "ne"):
            equal = same and self._compared(plain) in (OWN, OTHER)
            return (f"{'same' if e.fn == 'eq' else 'different'} {name}", "") if equal else None
        words = self._compared(plain)
        return None if words is None else (words, f" by {name}" if same else f" ({'queries' if rows else 'keys'} at {name})")

    def _text(self, e: Expr) -> str:
        """An expression as it is, or what it is made of where that is too long."""
        loads = loads_of(e)
        if weight(e) > WRITTEN:
            return self._made_of(e)
        at = {x: [v.name for v in (self.row, self.stream) if v in variables(x)] for x in loads}
        text = show(_uncasted(substitute(e, {x: var(_indexed(self.name(x.tensor), at[x]), x.dtype) for x in loads})))
        text = text.replace("~", "not ", 1) if text.startswith("~") else text
        return text if len(text) <= LONGEST else self._made_of(e)

    def _made_of(self, e: Expr) -> str:
        """What a long expression is made of."""
        loads = loads_of(e)
        bare = substitute(e, {x: const(0, x.dtype) for x in loads})
        own = variables(bare) - {self.row, self.stream}  # tensors that are said by their names alone, and sizes
        names = [*dict.fromkeys([*(self.name(x.tensor) for x in loads), *sorted(v.name for v in own)])]
        names += ["positions"] if variables(bare) & {self.row, self.stream} else []
        listed = " and ".join(x for x in (", ".join(names[:-1]), *names[-1:]) if x)
        return f"{'a condition on' if e.dtype == 'bool' else 'a function of'} {listed}"

    # ---------------------------------------------------------------- conditions on positions

    def _compared(self, e: Call) -> str | None:
        a, b = e.args
        row, stream = self.row, self.stream
        if a.dtype == "i64":
            straight = affine(call("sub", a, b), (row, stream))
            if straight is not None:
                return self._straight(e.fn, straight)
        for left, right, fn in ((a, b, e.fn), (b, a, _SWAPPED[e.fn])):
            if isinstance(left, Call) and left.fn == "abs" and isinstance(right, Const):
                inside = affine(left.args[0], (row, stream))
                if inside is not None and _difference(inside) in (1, -1) and _is_zero(inside[1]) and fn in ("lt", "le"):
                    return f"band {_less(int(right.value), fn)} to each side"
            if isinstance(left, Call) and left.fn == "mod" and isinstance(left.args[1], Const) and isinstance(right, Const):
                inside = affine(left.args[0], (row, stream))
                if inside is not None and _difference(inside) and fn == "eq" and right.value == 0:
                    return f"stride {left.args[1].value}"
        if all(isinstance(x, Call) and x.fn == "floordiv" for x in (a, b)):
            return _blocks(e, row, stream)
        return None

    def _straight(self, fn: str, linear: tuple[tuple[Expr, ...], Expr]) -> str | None:
        """k * (row - stream) + rest compared with 0, or a bound on one position."""
        k = _difference(linear)
        (r, s), rest = linear
        if abs(k) == 1:
            if k < 0:  # turn it round: row - stream - rest with the comparison swapped
                fn, rest = _SWAPPED[fn], call("neg", rest)
            if fn in ("ge", "gt"):  # row - stream >= -rest
                at_least = call("neg", rest) if fn == "ge" else call("sub", call("neg", rest), integer_const(-1))
                offset = call("neg", at_least)
                return "causal" if _is_zero(offset) else f"causal with offset {self._text(offset)}"
            if fn in ("lt", "le"):  # row - stream < width
                width = call("neg", rest) if fn == "lt" else call("add", call("neg", rest), integer_const(1))
                if isinstance(width, Const) and int(width.value) <= 1:
                    ahead = 1 - int(width.value)
                    return "keys after the query" if ahead == 1 else f"keys from {f'{ahead} after ' if ahead else ''}the query on"
                return f"window {self._text(width)}"
            return (OWN if fn == "eq" else OTHER) if _is_zero(rest) else None
        for mine, other, one, what in ((s, r, "key", "keys"), (r, s, "query", "queries")):
            if not (_is_zero(other) and isinstance(mine, Const) and abs(int(mine.value)) == 1):
                continue
            if int(mine.value) < 0:
                fn, rest = _SWAPPED[fn], call("neg", rest)
            bound = call("neg", rest)
            if fn in ("lt", "le"):
                return f"{what} before {self._text(bound if fn == 'lt' else call('add', bound, integer_const(1)))}"
            if fn in ("ge", "gt"):
                return f"{what} from {self._text(bound if fn == 'ge' else call('add', bound, integer_const(1)))}"
            return f"{one} {self._text(bound)}" if fn == "eq" else f"all {what} but {self._text(bound)}"
        return None


def describe_mask(keep: Expr, row: Var, stream: Var, name: Callable[[str], str] = str) -> str:
    """The condition under which a key at `stream` counts for a query at `row`, for people."""
    return Words(row, stream, name).kept(keep)


def _factors(e: Expr) -> list[Expr]:
    """The factors of a product."""
    return [x for a in e.args for x in _factors(a)] if isinstance(e, Call) and e.fn == "mul" else [e]


def _uncast(e: Expr) -> Expr:
    return _uncast(e.args[0]) if isinstance(e, Call) and e.fn == "cast" else e


def _uncasted(e: Expr) -> Expr:
    """`e` without conversions that change no number, for showing."""

    def drop(x: Expr) -> Expr | None:
        if not (isinstance(x, Call) and x.fn == "cast") or x.dtype == "bool":
            return None
        (a,) = x.args
        return var(show(a, 9), x.dtype) if is_float(x.dtype) or not is_float(a.dtype) else None

    return transform(e, drop)


def _indexed(name: str, along: list[str]) -> str:
    return f"{name}[{', '.join(along)}]" if along else name


def _fill(value: float) -> str:
    """In five digits, the shorter of -65504 and -6.5504e4."""
    if value in FINFO_MIN.values():
        return "finfo.min"
    mantissa, exponent = f"{value:.4e}".split("e")
    return min(f"{value:g}", f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}", key=len)


def _side(e: Expr, row: Var, stream: Var) -> tuple[str, int]:
    """("ahead", n) for `stream <= row + n`, ("behind", n) for `stream >= row - n`, ("", 0) for anything else."""
    if isinstance(e, Call) and e.fn in ("lt", "le", "gt", "ge") and e.args[0].dtype == "i64":
        linear = affine(call("sub", *e.args), (row, stream))
        if linear is not None and abs(k := _difference(linear)) == 1 and isinstance(linear[1], Const):
            fn, rest = (e.fn, int(linear[1].value)) if k > 0 else (_SWAPPED[e.fn], -int(linear[1].value))
            if fn in ("ge", "gt"):  # row - stream >= -rest
                return "ahead", rest - (fn == "gt")
            return "behind", -rest - (fn == "lt")
    return "", 0


def _difference(linear: tuple[tuple[Expr, ...], Expr]) -> int:
    """k when the expression is k * (row - stream) + rest, else 0."""
    (r, s), _ = linear
    if isinstance(r, Const) and isinstance(s, Const) and int(r.value) == -int(s.value):
        return int(r.value)
    return 0


def _is_zero(e: Expr) -> bool:
    return isinstance(e, Const) and e.value == 0


def _less(n: int, fn: str) -> int:
    return n if fn == "le" else n - 1


def _blocks(e: Call, row: Var, stream: Var) -> str | None:
    a, b = e.args
    assert isinstance(a, Call) and isinstance(b, Call)
    if a.args[1] is not b.args[1] or not isinstance(a.args[1], Const):
        return None
    length, tops = a.args[1].value, (a.args[0], b.args[0])
    if tops == (stream, row):
        fn = _SWAPPED[e.fn]
    elif tops == (row, stream):
        fn = e.fn
    else:
        return None
    return {"ge": f"causal by blocks of {length}", "eq": f"within blocks of {length}"}.get(fn)
