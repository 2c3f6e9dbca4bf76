"""Which references are free (docs/theory.md, T4): the outputs stay the same when a reference is shifted and its sums rebased.

    m -> m + t,  l -> l * exp(-t),  o -> o * exp(-t):     m + log(l) and o / l stay as they are

A free reference may lag behind the running extremum (lazy rescale), be a constant, or differ between splits. The proof follows
the expressions: every one of them turns, under a shift by t, into

    exp(a * t) * (e + t * f)        `Motion(a, f)`; the expression is invariant when a = f = 0

and each function says what it makes of the motions of its operands, or that nothing is known (None), which frees nothing.
Identities are those of real numbers: `l / l` is 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from aicf.scalar import (
    MONOIDS,
    Call,
    Const,
    Expr,
    Load,
    Reduce,
    Var,
    call,
    cast,
    children,
    const,
    is_float,
    substitute,
    variables,
    walk,
)
from aicf.streaming.stream_program import StreamProgram
from aicf.streaming.terms import LN2, Polynomial, expanded

ZERO, ONE = const(0.0, "f64"), const(1.0, "f64")


@dataclass(frozen=True)
class Motion:
    """`exp(power * t) * (e + t * drift)`. `anything`: e is 0, an infinity or NaN, of which every power is as true as the other
    (and, but for 0, every drift)."""

    power: Expr = ZERO
    drift: Expr = ZERO
    anything: bool = False
    special: bool = False

    @property
    def still(self) -> bool:
        """Invariant."""
        return self.anything or (not _poly(self.power) and not _poly(self.drift))

    @property
    def scales(self) -> bool:
        """Multiplied by a positive number: zero, sign and finiteness stay."""
        return self.anything or not _poly(self.drift)

    @property
    def finite(self) -> bool:
        """Whether it is NaN or infinite stays: the drift is a number."""
        return self.anything or _poly(self.drift).keys() <= {frozenset()}


STILL = Motion()
Motions = Callable[[Var], Motion]


def shift_invariant_references(p: StreamProgram) -> frozenset[str]:
    """Names of the bases that are references of sums and of whose shift every output is proved to be free."""
    used = {name for s in p.sums for name, _ in s.stabilisers} | {s.shift.base for s in p.sums if s.shift is not None}
    outputs = results(p, p.outputs)
    return frozenset(b.name for b in p.bases if b.name in used and _is_free(p, b.name, outputs))


def _is_free(p: StreamProgram, name: str, outputs: Collection[Expr]) -> bool:
    moving: dict[str, Motion] = {name: Motion(drift=ONE)}
    for s in p.sums:
        power = next((call("neg", power) for base, power in s.stabilisers if base == name), ZERO)
        # A sum of g * (u - ref) is, seen from ref + t, what it was minus t times the sum of g.
        centred = s.shift is not None and s.shift.base == name
        drift = call("neg", _of_sum(p, s.shift.partner)) if s.shift is not None and centred else ZERO
        moving[s.name] = Motion(power, drift)
    low = {b.name: MONOIDS[b.op].unit for b in p.bases}
    motions = [_Motions(lambda v: moving.get(v.name, STILL), {name: low[name]}).of(e) for e in outputs]
    return bool(motions) and all(m is not None and m.still for m in motions)


def _of_sum(p: StreamProgram, name: str) -> Expr:
    return next(s.state for s in p.sums if s.name == name)


def scaling(p: StreamProgram, sums: Collection[str], names: Collection[str]) -> int | None:
    """The power of z by which the results `names` are proved to grow when `sums` are multiplied by z > 0: 0, 1, or None for
    neither."""
    moving = Motion(power=ONE)
    motions = _Motions(lambda v: moving if v.name in sums else STILL, {})
    moved = [motions.of(e) for e in results(p, names)]
    for k, wanted in ((0, {}), (1, _poly(ONE))):
        known = [m for m in moved if m is not None and m.scales and (m.anything or _close(_poly(m.power), wanted))]
        if len(known) == len(moved) and not all(m.anything for m in known):
            return k
    return None


def results(p: StreamProgram, names: Collection[str]) -> list[Expr]:
    """The finalizers of `names` in terms of states and inputs of the row alone."""
    states = {x.name for x in (*p.bases, *p.sums)}
    values: dict[str, Expr] = {}
    for name, e in p.finalize.items():
        put: dict[Expr, Expr] = {v: values[v.name] for v in variables(e) if v.name in values and v.name not in states}
        values[name] = substitute(e, put)
    return [values[name] for name in names]


def rebases(body: Expr, references: Mapping[str, Expr]) -> bool:
    """Whether `body` is proved to be multiplied by `exp(-p * t)` when the reference `ref` moves by t, for each (ref, p), and to
    read no other reference."""
    for name, p in references.items():
        m = _Motions(lambda v, name=name: Motion(drift=ONE) if v.name == name else STILL, {}).of(body)
        if m is None or not m.scales or not (m.anything or _close(_poly(m.power), _poly(call("neg", p)))):
            return False
    return True


def rescales(scale: Expr, moves: Collection[tuple[Var, Var, Expr]]) -> bool:
    """Whether `scale` is proved to be exp(sum of p * (old - ref)) for the (old, ref, p): it moves like that with each of them,
    and is 1 where nothing moved."""
    alike = substitute(scale, {old: ref for old, ref, _ in moves})
    powers = {ref.name: p for _, ref, p in moves} | {old.name: call("neg", p) for old, _, p in moves}
    return rebases(scale, powers) and isinstance(alike, Call) and alike.fn in ("exp", "exp2") and not _poly(alike.args[0])


# ------------------------------------------------------------------------------------------------ motions of expressions


def _poly(e: Expr) -> Polynomial:
    return expanded(e, False)


def _close(a: Polynomial, b: Polynomial) -> bool:
    """Equal but for roundings of their numbers."""
    return all(math.isclose(a.get(m, 0.0), b.get(m, 0.0), rel_tol=1e-12) for m in {**a, **b})


class _Motions:
    """The motions of expressions, from those of variables. `identities`: shifted extrema and what they are while nothing was
    seen; then there is no reference, so that what a comparison with it selects is not looked at."""

    def __init__(self, variable: Motions, identities: Mapping[str, float]) -> None:
        self.variable, self.identities = variable, identities
        self.known: dict[Expr, Motion | None] = {}

    def of(self, e: Expr) -> Motion | None:
        for node in walk(e):
            if node not in self.known:
                self.known[node] = self._of(node)
        return self.known[e]

    def _of(self, e: Expr) -> Motion | None:
        match e:
            case Var():
                return self.variable(e)
            case Const():
                value = float(e.value)
                special = not math.isfinite(value)
                return Motion(anything=True, special=special) if (special or not value) and is_float(e.dtype) else STILL
            case Load() | Reduce():
                return STILL if all(self._still(c) for c in children(e)) else None
            case Call(fn="where", args=(c, a, b)):
                return self._where(c, a, b)
            case Call():
                own = [self.known[a] for a in e.args]
                if all(m is not None and m.still and not m.anything for m in own):
                    return STILL
                moving = [m for m in own if m is not None]
                return self._call(e, moving) if len(moving) == len(own) else None

    def _still(self, e: Expr) -> bool:
        m = self.known[e]
        return m is not None and m.still

    def _where(self, condition: Expr, a: Expr, b: Expr) -> Motion | None:
        empty = self._says_empty(condition)
        if empty is not None:
            return self.known[b if empty else a]
        x, y = self.known[a], self.known[b]
        return _united(x, y) if self._still(condition) and x is not None and y is not None else None

    def _says_empty(self, e: Expr) -> bool | None:
        """True when `e` says that nothing was seen yet, False when it says that something was, None for other conditions."""
        if isinstance(e, Call) and e.fn in ("eq", "ne"):
            for x, y in (e.args, e.args[::-1]):
                if isinstance(x, Var) and isinstance(y, Const) and self.identities.get(x.name) == y.value:
                    return e.fn == "eq"
        return None

    def _call(self, e: Call, m: list[Motion]) -> Motion | None:
        """The motion of a call, some of whose operands move."""
        a = e.args
        match e.fn:
            case "cast" if is_float(e.dtype) and is_float(a[0].dtype):
                return m[0]
            case "neg":
                return Motion(m[0].power, call("neg", m[0].drift), m[0].anything, m[0].special)
            case "add" | "sub":
                return _sum(e.fn, *m)
            case "mul":
                return _product(a[0], m[0], a[1], m[1])
            case "div" if m[1].scales and not m[1].anything:
                return _product(a[0], m[0], call("div", ONE, a[1]), Motion(call("neg", m[1].power)))
            case "div" if m[1].anything and m[0].scales:
                return Motion(anything=True)  # by 0, an infinity or NaN: it is one of these itself
            case "exp" | "exp2" if m[0].special:
                return Motion(anything=True)  # 0, infinity or NaN, wherever it is seen from
            case "exp" | "exp2" if _poly(m[0].power) == {} and not m[0].anything:
                unit = 1.0 if e.fn == "exp" else LN2
                return Motion(call("mul", const(unit, "f64"), m[0].drift))
            case "log" | "log2" if m[0].scales and not m[0].anything:
                unit = 1.0 if e.fn == "log" else 1.0 / LN2
                return Motion(ZERO, call("mul", const(unit, "f64"), m[0].power))
            case "abs" if m[0].scales:
                return m[0]
            case "sqrt" | "rsqrt" if m[0].scales and not m[0].anything:
                return Motion(call("mul", const(0.5 if e.fn == "sqrt" else -0.5, "f64"), m[0].power))
            case "pow" if isinstance(a[1], Const) and m[0].scales and not m[0].anything:
                return Motion(call("mul", const(float(a[1].value), "f64"), m[0].power))
            case "max" | "min":
                return _united(*m)
            case "lt" | "le" | "gt" | "ge" | "eq" | "ne":
                return STILL if _compared(a[0], m[0], a[1], m[1]) else None
            case "isnan" | "isinf":
                return STILL if m[0].finite else None
            case _:
                return STILL if all(x.still for x in m) else None


def _sum(fn: str, x: Motion, y: Motion) -> Motion | None:
    if x.special or y.special:
        return Motion(anything=True, special=True)
    if x.anything:
        return y if fn == "add" else Motion(y.power, call("neg", y.drift))
    if y.anything:
        return x
    if not _close(_poly(x.power), _poly(y.power)):
        return None
    return Motion(x.power, _added(x.drift, y.drift if fn == "add" else call("neg", y.drift)))


def _added(a: Expr, b: Expr) -> Expr:
    """`a + b`, and 0 where the two are opposite but for roundings."""
    return ZERO if _close(_poly(a), _poly(call("neg", b))) else call("add", a, b)


def _product(a: Expr, x: Motion, b: Expr, y: Motion) -> Motion | None:
    if x.anything or y.anything:
        other = y if x.anything else x
        return Motion(anything=True, special=x.special or y.special) if other.scales else None
    if not (x.scales or y.scales):
        return None
    drift = _added(call("mul", _wide(a), y.drift), call("mul", x.drift, _wide(b)))
    return Motion(_added(x.power, y.power), drift)


def _wide(e: Expr) -> Expr:
    return cast(e, "f64")


def _united(x: Motion, y: Motion) -> Motion | None:
    """The motion of either of two, when they move alike."""
    if x.anything and y.anything:
        return x if x.special == y.special else STILL
    if x.special or (x.anything and y.scales):
        return y
    if y.special or (y.anything and x.scales):
        return x
    alike = _close(_poly(x.power), _poly(y.power)) and _close(_poly(x.drift), _poly(y.drift))
    return x if alike and (x.scales or not _poly(x.power)) else None


def _compared(a: Expr, x: Motion, b: Expr, y: Motion) -> bool:
    """Whether a comparison comes out the same."""
    if x.still and y.still and not (x.anything and y.anything):
        return True
    for e, mine, theirs in ((a, x, y), (b, y, x)):
        if mine.anything and isinstance(e, Const):
            return theirs.finite if mine.special else theirs.scales
    return _united(x, y) is not None
