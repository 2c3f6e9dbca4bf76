"""Reading and rewriting statements: their expressions, and the bodies nested in them.

A new kind of statement is a case here; passes that only look at expressions, or only descend, then know it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from aicf.kernel.ir import (
    Contract,
    Fill,
    LoadTile,
    Map,
    Parallel,
    Phase,
    Reduce,
    Retry,
    RowBlock,
    Stmt,
    StoreTile,
    Stream,
    statements,
)
from aicf.scalar import Expr

Body = tuple[Stmt, ...]


def own_expressions(s: Stmt) -> tuple[Expr, ...]:
    """The expressions of a statement itself, those of nested ones left out."""
    match s:
        case Fill():
            return (s.value,)
        case LoadTile():
            return s.at
        case Map() | Reduce():
            return (s.expr,)
        case StoreTile():
            return (*s.at, s.expr)
        case Retry():
            return (s.again,)
        case Stream():
            return (s.lo, s.hi, *(p.when for p in s.phases))
        case RowBlock():
            return tuple(end for _, end in s.ends)
        case Parallel():
            return tuple(v.extent for v in s.loops)
        case Contract():
            return ()


def expressions(body: Iterable[Stmt]) -> list[Expr]:
    """All expressions of a statement list, nested ones included."""
    return [e for s in statements(tuple(body)) for e in own_expressions(s)]


def with_expressions(
    s: Stmt, change: Callable[[Expr], Expr], index: Callable[[str, tuple[Expr, ...]], tuple[Expr, ...]]
) -> Stmt:
    """A statement with its own expressions changed, but for extents of loops; `index` changes the index of a load or store."""
    match s:
        case Fill():
            return replace(s, value=change(s.value))
        case LoadTile():
            return replace(s, at=index(s.tensor, s.at))
        case Map() | Reduce():
            return replace(s, expr=change(s.expr))
        case StoreTile():
            return replace(s, at=index(s.tensor, s.at), expr=change(s.expr))
        case Retry():
            return replace(s, again=change(s.again))
        case Stream():
            phases = tuple(replace(p, when=change(p.when)) for p in s.phases)
            return replace(s, lo=change(s.lo), hi=change(s.hi), phases=phases)
        case RowBlock():
            return replace(s, ends=tuple((axis, change(end)) for axis, end in s.ends))
        case Parallel() | Contract():
            return s


def with_bodies(s: Stmt, change: Callable[[Body], Body], phase: Callable[[Phase], Body] | None = None) -> Stmt:
    """A statement with every body that is nested directly in it changed; `phase`: how those of a stream are, where it depends on
    more than the body."""
    match s:
        case RowBlock() | Retry() | Parallel():
            return replace(s, body=change(s.body))
        case Stream():
            return replace(s, phases=tuple(replace(p, body=phase(p) if phase else change(p.body)) for p in s.phases))
        case Fill() | LoadTile() | Map() | Reduce() | Contract() | StoreTile():
            return s


__all__ = ["expressions", "own_expressions", "with_bodies", "with_expressions"]
