"""Stacking the heads of a group into rows: with one query per head, heads that share keys are the rows of one tile.

    Q[b, h, i, d], K[b, h // 4, j, d], i < 1   ->   Q[b, 4*h + i, 0, d], K[b, h, j, d], i < 4

Keys and values are then read once per group instead of once per head (decoding with grouped queries). It is a change of
variables, so everything downstream stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from aicf.scalar import Call, Const, Expr, Load, Var, call, extents, index, integer_const, substitute, variables, walk
from aicf.streaming.cascade import ScoreContraction
from aicf.streaming.recognise import Recognised


def stacked(region: Recognised) -> Recognised:
    """The region with a group's heads as rows, when its row axis has one element and a batch axis reaches the streamed side only
    as a quotient; the region itself otherwise."""
    if not _is_one(region.extents[region.row]):
        return region
    for head in region.batch:
        group = _group(region, head)
        count = region.extents[head]
        if group is None or not isinstance(count, Const) or int(count.value) % group:
            continue
        return _with_rows(region, head, group)
    return region


def _is_one(e: Expr) -> bool:
    return isinstance(e, Const) and e.value == 1


def _streamed_loads(region: Recognised) -> Iterable[Load]:
    """Elements that are read once per streamed position: what stacking is meant to share."""
    for e in (*(a.key for a in region.scores), *(r.body for r in region.cascade)):
        for x in walk(e):
            if isinstance(x, Load) and any(region.stream in variables(i) for i in x.index):
                yield x


def _group(region: Recognised, head: Var) -> int | None:
    """The divisor g such that `head` occurs on the streamed side as `head // g` only; None when there is none."""
    sizes: set[int] = set()
    for x in _streamed_loads(region):
        for i in x.index:
            rest = i
            for q in walk(i):
                if isinstance(q, Call) and q.fn == "floordiv" and q.args[0] is head and isinstance(q.args[1], Const):
                    sizes.add(int(q.args[1].value))
                    rest = substitute(rest, {q: integer_const(0)})
            if head in variables(rest):
                return None
    return sizes.pop() if len(sizes) == 1 else None


def _with_rows(region: Recognised, head: Var, group: int) -> Recognised:
    row = region.row
    count = region.extents[head]
    assert isinstance(count, Const)
    new = {**region.extents, head: integer_const(int(count.value) // group), row: integer_const(group)}
    # The old row variable is 0 everywhere; its name goes to the position within the group.
    old_head = index(f"{head.name}.all")
    first: dict[Expr, Expr] = {row: integer_const(0), head: old_head}
    second: dict[Expr, Expr] = {old_head: call("add", call("mul", head, integer_const(group)), row)}

    def put(e: Expr) -> Expr:
        with extents(new):
            return substitute(substitute(e, first), second)

    return replace(
        region,
        scores=tuple(ScoreContraction(a.name, a.over, a.width, put(a.row), put(a.key)) for a in region.scores),
        cascade=tuple(replace(r, body=put(r.body)) for r in region.cascade),
        outputs=tuple(replace(e, at=tuple(put(i) for i in e.at), expr=put(e.expr)) for e in region.outputs),
        extents=new,
    )
