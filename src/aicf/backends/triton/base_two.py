"""Exponentials of tiles in base two, which is the one that GPUs have an instruction for.

    x = map where(j > i, -inf, s * 0.125)               x_unscaled = map where(j > i, -inf, s)
    t = reduce max over j of x                    ->    t = reduce max over j of x_unscaled
    w = map exp(x - m)                                  t = map t * 0.125
                                                        m_base2 = map m * 1.442695
                                                        w = map exp2(x_unscaled * 0.1803369 - m_base2)

`exp2` in Triton is one instruction, which flushes results below the smallest normal number to zero; `exp` multiplies first and
takes three more to keep them. A product with a constant and the difference become one fused multiply-add, whose product is not
rounded. The maximum of scaled scores is the scaled maximum: scaling by a positive number keeps the order, rounding too.

The fused form is for scores of halves: the reference, times log2(e), is rounded once for a whole row. That moves all weights of
the row by one factor between two references; the factor is below the rounding of a score of halves, but not below that of a
score of integers in f32, which may be exact. It is for scores that nothing but -inf takes the place of: the largest finite
numbers, with which other programs hide scores, are infinite times log2(e).

A soft cap, c * tanh(s / c), is made of one of these exponentials too where every output is a half: the error of the tangent is
some 1e-7 at any argument, that of the score c times as much, which for caps in use is far below what moves a half.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from aicf.backends.triton.operands import Operands
from aicf.kernel import Contract, Map, Phase, Reduce, Stmt, Tile, reads, statements, written
from aicf.kernel.visit import with_bodies
from aicf.scalar import Call, Const, Expr, Var, call, const, is_half, transform, var, variables

LOG2_E = math.log2(math.e)
LARGEST_CAP = 128.0  # 1e-7 of it is some 1e-5 of a score, so of a weight: a fiftieth of the rounding of an f16 value


def in_base_two(body: Sequence[Stmt], operands: Operands, *, whole: bool = False) -> tuple[Stmt, ...]:
    """`body` with the exponentials of its maps as powers of two, in all bodies inside it. `whole`: all lanes of its streamed axis
    exist."""
    return _Body(operands, body, whole).made()


@dataclass(frozen=True)
class _Fused:
    """What becomes the argument of a power of two by one multiply-add: a tile times a number. `defined`: the statement that makes
    the tile, where there has to be one."""

    tile: Var
    factor: float
    defined: Map | None = None


class _Body:
    """One list of statements."""

    def __init__(self, operands: Operands, body: Sequence[Stmt], whole: bool) -> None:
        self.operands, self.body, self.whole = operands, tuple(body), whole
        self.halves = all(is_half(t.dtype) for t in operands.kernel.tensors if t.role == "out")
        count = Counter(t.name for t in map(written, statements(self.body)) if t is not None)
        self.once = {name for name, n in count.items() if n == 1}
        maps = [s for s in self.body if isinstance(s, Map) and s.tile.dtype == "f32" and s.tile.name in self.once]
        self.rows = {s.tile.name: s.tile for s in maps if len(s.tile.axes) == 1}
        products = [s for s in self.body if isinstance(s, Contract) and not s.accumulate]
        scores = {s.tile.name for s in products if is_half(operands.dot(s).dtype)}
        self.unscaled = {s.tile.name: u for s in maps if (u := self._unscaled(s, scores & self.once)) is not None}
        capped = {s.tile.name: _Fused(var(s.tile.name, "f32"), 1.0) for s in maps if self.halves and _cap(s.expr)}
        self.fused = {**capped, **self.unscaled}
        self.out: list[Stmt] = []
        self.references: dict[str, Tile] = {}  # a row tile -> the tile that holds it in base two

    def made(self) -> tuple[Stmt, ...]:
        for s in self.body:
            match s:
                case Map(tile) if tile.name in self.unscaled:
                    defined = self.unscaled[tile.name].defined
                    self.out += [defined] if defined is not None else []
                case Map(tile, expr):
                    self.out.append(Map(tile, transform(expr, self._exponential)))
                case Reduce(tile, "max", axis, Var(name=x)) if x in self.unscaled:
                    score = self.unscaled[x]
                    self.out.append(Reduce(tile, "max", axis, score.tile))
                    self.out.append(Map(tile, call("mul", var(tile.name, "f32"), const(score.factor, "f32"))))
                case _:
                    self.out.append(with_bodies(s, self._body, self._phase))
        return tuple(self.out)

    def _body(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return in_base_two(body, self.operands, whole=self.whole)

    def _phase(self, p: Phase) -> tuple[Stmt, ...]:
        return in_base_two(p.body, self.operands, whole=p.whole)

    def _unscaled(self, s: Map, scores: set[str]) -> _Fused | None:
        """The scores of a tile of scaled scores, hidden where those are; None where it is something else, or read in another way
        than by maxima and exponentials."""
        match s.expr:
            case Call(fn="where", args=(condition, Const(value=low), scaled)) if low == -math.inf:
                pass
            case scaled:
                condition = low = None
        raw, factor = _factor(scaled)
        if not (isinstance(raw, Var) and raw.name in scores and 0 < factor < math.inf and raw is not scaled):
            return None
        if not all(self._only_compared(s.tile.name, x) for x in self.body):
            return None
        if condition is None and self.whole:
            return _Fused(raw, factor)
        tile = replace(s.tile, name=f"{s.tile.name}_unscaled")
        hidden = raw if condition is None else call("where", condition, const(-math.inf, "f32"), raw)
        return _Fused(var(tile.name, "f32"), factor, Map(tile, hidden))

    def _only_compared(self, name: str, s: Stmt) -> bool:
        """Whether a statement reads a tile in maxima and exponentials relative to a row's reference, if it does."""
        match s:
            case Reduce(op="max", expr=Var(name=x), accumulate=False) if x == name:
                return True
            case Map(expr=expr):
                rest = transform(expr, lambda e: const(0.0, "f32") if self._relative(e, {name}) else None)
                return name not in {v.name for v in variables(rest)}
            case _:
                return not any(name in reads(x) for x in statements((s,)))

    def _relative(self, e: Expr, scores: set[str]) -> tuple[Var, Var] | None:
        """The score and the row's reference in exp(score - reference)."""
        match e:
            case Call(fn="exp", dtype="f32", args=(Call(fn="sub", args=(Var() as x, Var() as m)),)):
                return (x, m) if x.name in scores and m.name in self.rows else None
            case _:
                return None

    def _exponential(self, e: Expr) -> Expr | None:
        relative = self._relative(e, set(self.fused))
        if relative is not None:
            score = self.fused[relative[0].name]
            scaled = call("mul", score.tile, const(score.factor * LOG2_E, "f32"))
            return call("exp2", call("sub", scaled, self._reference(self.rows[relative[1].name])))
        match e:
            case Call(fn="exp", dtype="f32", args=(x,)):
                return call("exp2", call("mul", x, const(LOG2_E, "f32")))
            case Call(fn="mul", args=(Call(args=(x,)), Const()) | (Const(), Call(args=(x,)))) if self.halves and _cap(e):
                return _capped(x, _cap(e))
            case _:
                return None

    def _reference(self, row: Tile) -> Expr:
        if row.name not in self.references:
            tile = self.references[row.name] = replace(row, name=f"{row.name}_base2")
            self.out.append(Map(tile, call("mul", var(row.name, "f32"), const(LOG2_E, "f32"))))
        return var(self.references[row.name].name, "f32")


def _cap(e: Expr) -> float:
    """The cap of a soft cap, 0 for other expressions."""
    match e:
        case Call(fn="mul", dtype="f32", args=(Call(fn="tanh"), Const(value=c)) | (Const(value=c), Call(fn="tanh"))):
            return float(c) if 0 < c <= LARGEST_CAP else 0.0
        case _:
            return 0.0


def _capped(x: Expr, cap: float) -> Expr:
    """cap * tanh x = cap - 2 cap / (1 + exp(2 x)). The quotient is the square of a reciprocal root: no division."""
    argument, factor = _factor(x)
    power = call("exp2", call("mul", argument, const(2 * LOG2_E * factor, "f32")))
    root = call("rsqrt", call("add", power, const(1.0, "f32")))
    return call("sub", const(cap, "f32"), call("mul", call("mul", root, root), const(2 * cap, "f32")))


def _factor(x: Expr) -> tuple[Expr, float]:
    """`x` as an f32 expression times a number."""
    match x:
        case Call(fn="mul", dtype="f32", args=(inner, Const(value=c)) | (Const(value=c), inner)):
            rest, factor = _factor(inner)
            return rest, factor * float(c)
        case Call(fn="div", dtype="f32", args=(inner, Const(value=c))) if c:
            rest, factor = _factor(inner)
            return rest, factor / float(c)
        case _:
            return x, 1.0


__all__ = ["in_base_two"]
