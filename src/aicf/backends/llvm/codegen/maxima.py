"""What a row's maximum says about the numbers under it.

A positive scale is applied to the maximum, not to every number before it: the maximum of c * s is c times that of s, to the bit,
since rounding keeps the order. So the scaled tile need not exist:

    u = map s * c                        top = reduce max over j of s
    top = reduce max over j of u    ->   top = map top * c
    p = map exp(u - ref)                 p = map exp(s * c - ref)

And what has a maximum subtracted from it is at most zero, for which exp is cheaper.
"""

from __future__ import annotations

import math
from dataclasses import replace

from aicf.kernel import Kernel, Map, Reduce, Stmt, bodies, inner, reads, written
from aicf.kernel.visit import with_bodies
from aicf.scalar import Call, Const, Expr, Var, substitute, var, variables, walk


def fold_scales(kernel: Kernel) -> Kernel:
    """`kernel` without tiles that are a positive constant times another one."""
    return replace(kernel, body=_folded(kernel.body, list(bodies(kernel.body))))


def at_most_zero(body: tuple[Stmt, ...]) -> frozenset[Expr]:
    """The differences in `body` that are at most zero (or NaN) wherever they stand: x - m with m a maximum of x and others."""
    proved: set[Expr] = set()
    others: set[Expr] = set()
    for run in bodies(body):
        above: dict[str, frozenset[Expr]] = {}  # row tile -> what it is at least as large as
        for s in run:
            tile = written(s)
            if isinstance(s, Map | Reduce):
                for e in walk(s.expr):
                    if isinstance(e, Call) and e.fn == "sub":
                        a, b = e.args
                        (proved if isinstance(b, Var) and a in above.get(b.name, ()) else others).add(e)
            elif tile is None:
                above.clear()  # a nested body may change anything
            if tile is not None:
                new = _below(s, above)
                name = tile.name
                above = {k: frozenset(e for e in v if not _mentions(e, name)) for k, v in above.items() if k != name}
                above[name] = frozenset(e for e in new if not _mentions(e, name))
    return frozenset(proved - others)


def _below(s: Stmt, above: dict[str, frozenset[Expr]]) -> frozenset[Expr]:
    """What the tile that `s` writes is at least as large as, unless something is NaN."""
    match s:
        case Reduce(op="max"):
            return frozenset((s.expr,))
        case Map():
            return _under(s.expr, above)
        case _:
            return frozenset()


def _under(e: Expr, above: dict[str, frozenset[Expr]]) -> frozenset[Expr]:
    match e:
        case Var():
            return above.get(e.name, frozenset()) | {e}
        case Call(fn="max"):
            return _under(e.args[0], above) | _under(e.args[1], above)
        case Call(fn="mul"):
            variable = _scaled(e)
            if variable is None:
                return frozenset((e,))
            return frozenset(substitute(e, {variable: x}) for x in _under(variable, above))
        case Call(fn="where", args=(Call(fn="eq", args=(x, Const() as low)), Const() as zero, y)) if x == y:
            # Zero in the place of a maximum of -inf: all that it is above is -inf too.
            return _under(x, above) if low.value == -math.inf and zero.value == 0 else frozenset()
        case _:
            return frozenset((e,))


def _mentions(e: Expr, name: str) -> bool:
    return any(v.name == name for v in variables(e))


def _scaled(e: Expr) -> Var | None:
    """The f32 variable of which `e` is a positive constant multiple, None for any other expression."""
    if isinstance(e, Call) and e.fn == "mul" and e.dtype == "f32":
        for x, c in (e.args, e.args[::-1]):
            if isinstance(c, Const) and isinstance(x, Var) and x.dtype == "f32" and 0.0 < float(c.value) < math.inf:
                return x
    return None


def _folded(body: tuple[Stmt, ...], lists: list[tuple[Stmt, ...]]) -> tuple[Stmt, ...]:
    made = body
    for s in body:
        # One that goes changes those after it, which stay then.
        if isinstance(s, Map) and s in made and (x := _scaled(s.expr)) is not None and _can_go(s, x, made, lists):
            made = _without(s, made)
    return tuple(with_bodies(s, lambda inside: _folded(inside, lists)) for s in made)


def _can_go(scaled: Map, x: Var, body: tuple[Stmt, ...], lists: list[tuple[Stmt, ...]]) -> bool:
    """Whether all that reads the scaled tile after `scaled` can read `x` instead, and nothing else reads it."""
    name = scaled.tile.name
    after = body[body.index(scaled) + 1 :]
    known = any(t is not None and t.name == x.name and t.axes == scaled.tile.axes for t in map(written, body))
    if not known or any(map(inner, after)):
        return False
    for s in after:
        tile = written(s)
        if tile is not None and tile.name in (name, x.name):
            return False
        if name in reads(s) and not isinstance(s, Map | Reduce):
            return False
        if isinstance(s, Reduce) and name in reads(s) and not (s.op == "max" and s.expr == var(name, "f32") and not s.accumulate):
            return False
    for other in lists:
        made = False
        for s in other:
            if not made and name in reads(s):
                return False
            made = made or getattr(written(s), "name", None) == name
    return True


def _without(scaled: Map, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """`body` with `scaled`'s expression in the place of its tile, and its maximum as the scaled maximum of what is under it."""
    place, old, x = body.index(scaled), var(scaled.tile.name, "f32"), _scaled(scaled.expr)
    assert x is not None
    made = list(body[:place])
    for s in body[place + 1 :]:
        match s:
            case Reduce() if s.expr == old:
                made += [replace(s, expr=x), Map(s.tile, substitute(scaled.expr, {x: var(s.tile.name, "f32")}))]
            case Map() | Reduce():
                made.append(replace(s, expr=substitute(s.expr, {old: scaled.expr})))
            case _:
                made.append(s)
    return tuple(made)
