"""All expressions of a statement list."""

from __future__ import annotations

from aicf.kernel.ir import Contract, Fill, LoadTile, Map, Parallel, Reduce, Retry, RowBlock, Stmt, StoreTile, Stream
from aicf.scalar import Expr


def expressions(body: tuple[Stmt, ...]) -> list[Expr]:
    """All expressions of a statement list, nested ones included."""
    out: list[Expr] = []
    for s in body:
        match s:
            case Fill():
                out.append(s.value)
            case LoadTile():
                out += s.at
            case Map() | Reduce():
                out.append(s.expr)
            case StoreTile():
                out += [*s.at, s.expr]
            case Retry():
                out += [s.again, *expressions(s.body)]
            case Stream():
                out += [s.lo, s.hi]
                for p in s.phases:
                    out += [p.when, *expressions(p.body)]
            case RowBlock():
                out += [*(end for _, end in s.ends), *expressions(s.body)]
            case Parallel():
                out += [*(v.extent for v in s.loops), *expressions(s.body)]
            case Contract():
                pass
    return out
