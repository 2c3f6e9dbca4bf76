"""The three ways to walk rows and keys.

    q_major             parallel rows: { states = initial; stream keys: block; store outputs }
    q_major, kv_split   parallel rows, parts: { stream a part of the keys; spill states }
                        parallel rows: { stream parts: combine; store outputs }                     (theorem T2)
    kv_major            parallel items: { stream keys: { stream rows: fetch states; block; spill states } ; store outputs }
"""

from __future__ import annotations

from collections.abc import Mapping

from aicf.kernel.ir import Axis, Loop, Map, Parallel, Phase, Retry, Rows, Stmt, Stream, Tile
from aicf.kernel.lowering.block import Block, in_order, rebased
from aicf.kernel.lowering.names import Names, old_reference, reference
from aicf.scalar import Const, Expr, call, const, index, integer_const, substitute, var

TRUE = const(True, "bool")
ABSORBED = 104.0  # exp(-104) is 0 in fp32 (streaming.md 2.1)


def q_major(names: Names) -> tuple[Parallel, ...]:
    """Rows outside, keys streamed."""
    loops = (*names.batch_loops(), names.row_loop())
    parts = names.schedule.kv_split
    if parts == 1:
        return (Parallel(loops, (*_rows_item(names, None), *names.stores())),)
    count = integer_const(parts)
    part = index("part")
    first = Parallel((*loops, Loop(part, count)), (*_rows_item(names, parts), *(_spill(names, part, count))))
    names.axes.append(Axis("c", count, 1))
    body = (*names.initial(), Stream("c", integer_const(0), count, (Phase("full", TRUE, True, tuple(_combine(names, count))),)))
    return first, Parallel(loops, (*body, *names.stores()))


def _spill(names: Names, part: Expr, count: Expr) -> list[Stmt]:
    return [names.spill(s, part, shape=(count,)) for s in names.states()]


def _rows_item(names: Names, parts: int | None) -> list[Stmt]:
    """A tile of rows over all keys, or over one `part` of them."""
    outside: list[Stmt] = []
    inside: list[Stmt] = []
    operands: dict[str, Tile] = {}
    for operand in names.operands():
        operands[operand.name], statement = names.operand(operand)
        (outside if names.i in operand.axes else inside).append(statement)
    low, high, empty = _bounds(names)
    if parts is not None:
        step = integer_const(names.schedule.tile_n)
        tiles = call("floordiv", call("add", index("M"), call("sub", step, integer_const(1))), step)
        each = call("floordiv", call("add", tiles, integer_const(parts - 1)), integer_const(parts))
        chunk = call("mul", each, step)
        low = call("max", low, call("mul", index("part"), chunk))
        high = call("min", high, call("mul", call("add", index("part"), integer_const(1)), chunk))
    stream = Stream(names.j, low, high, _phases(names, operands, inside, empty))
    repeated = (*names.initial(), stream)
    if names.tiling.fill is None:
        return [*outside, *repeated]
    return [*outside, Retry(names.flag, names.i, _again(names, names.tiling.fill), repeated)]


def _bounds(names: Names) -> tuple[Expr, Expr, Expr]:
    """(first key, end, when a tile is empty), under the retry flag where skipping has to be checked."""
    low: Expr = integer_const(0)
    high: Expr = index("M")
    for e in names.tiling.low:
        low = call("max", low, names.put(e))
    for e in names.tiling.high:
        high = call("min", high, names.put(e))
    empty = names.put(names.tiling.empty)
    if names.tiling.fill is not None:
        skipping = call("ne", names.flag, integer_const(0))
        low = call("where", skipping, low, integer_const(0))
        high = call("where", skipping, high, index("M"))
        empty = call("and", skipping, empty)
    return low, high, empty


def _again(names: Names, fill: float) -> Expr:
    """Whether a skipped score could have counted: some row's maximum is not far enough above the fill value."""
    again: Expr = const(False, "bool")
    for b in names.program.bases:
        gap = call("sub", var(b.name, "f32"), const(fill, "f32"))
        again = call("or", again, call("not", call("ge", gap, const(ABSORBED, "f32"))))
    return again


def _phases(names: Names, operands: Mapping[str, Tile], before: list[Stmt], empty: Expr) -> tuple[Phase, ...]:
    """Empty tiles skipped, full tiles without mask code, the others with it."""
    decided = {c: const(v, "bool") for c, v in names.tiling.decided}

    def block(known: Mapping[Expr, Expr], ends: tuple[tuple[str, Expr], ...] = ()) -> tuple[Stmt, ...]:
        return (*before, Rows(names.i, names.schedule.rows, tuple(Block(names, operands, known).statements()), ends))

    phases = [] if isinstance(empty, Const) and not empty.value else [Phase("empty", empty, False, ())]
    phases.append(Phase("full", names.put(names.tiling.full), True, block(decided)))
    phases.append(Phase("partial", TRUE, False, block({}, _row_ends(names))))
    return tuple(phases)


def _row_ends(names: Names) -> tuple[tuple[str, Expr], ...]:
    """Where the streamed axis ends for a block of rows."""
    if names.tiling.end is None:
        return ()
    end = call("min", index("M"), names.put(names.tiling.end))
    if names.tiling.fill is not None:
        end = call("where", call("ne", names.flag, integer_const(0)), end, index("M"))
    return ((names.j, end),)


def _combine(names: Names, count: Expr) -> list[Stmt]:
    """The state of one more part taken in (streaming.md, T2). Tiles here are as long as the row tile: names of their own."""
    out: list[Stmt] = []
    part = index("c0")
    mine: dict[Expr, Expr] = {}
    theirs: dict[Expr, Expr] = {}
    for b in names.program.bases:
        other = names.row_tile(f"other{b.name[1:]}")
        out.append(Map(other, names.spilled(b, part, shape=(count,))))
        both = names.row_tile(f"both{b.name[1:]}")
        out.append(Map(both, call(b.op, var(b.name, "f32"), var(other.name, "f32"))))
        shared = names.row_tile(f"both_{b.ref.name}")
        out.append(Map(shared, reference(b, var(both.name, "f32"))))
        for known, extremum in ((mine, b.name), (theirs, other.name)):
            known[b.ref] = var(shared.name, "f32")
            known[b.old] = substitute(old_reference(b, var(extremum, "f32")), known)
    scales: dict[Expr, tuple[Expr, Expr]] = {}
    for s in names.program.sums:
        if s.scale is not None and s.scale not in scales:
            end = "" if not scales else str(len(scales) + 1)
            pair = (names.row_tile(f"own_scale{end}"), names.row_tile(f"other_scale{end}"))
            out += [Map(t, substitute(s.scale, known)) for t, known in zip(pair, (mine, theirs), strict=True)]
            scales[s.scale] = (var(pair[0].name, "f32"), var(pair[1].name, "f32"))
    by_name = {s.name: s for s in names.program.sums}
    for s in in_order(names.program.sums):
        a, b = (None, None) if s.scale is None else scales[s.scale]
        partner = None if s.shift is None else by_name[s.shift.partner]
        own = rebased(s, var(s.name, "f32"), None if partner is None else var(partner.name, "f32"), a, mine)
        given = names.spilled(s, part, shape=(count,))
        their_partner = None if partner is None else names.spilled(partner, part, shape=(count,))
        out.append(Map(names.state(s), call("add", own, rebased(s, given, their_partner, b, theirs))))
    out += [Map(names.state(b), var(f"both{b.name[1:]}", "f32")) for b in names.program.bases]
    return out


def kv_major(names: Names) -> tuple[Parallel, ...]:
    """Keys outside: every tile of keys is loaded once, the rows' states wait in scratch memory in between."""
    row_inputs: list[Stmt] = []
    key_inputs: list[Stmt] = []
    operands: dict[str, Tile] = {}
    for operand in names.operands():
        operands[operand.name], statement = names.operand(operand)
        (row_inputs if names.i in operand.axes else key_inputs).append(statement)
    fetch: list[Stmt] = [Map(names.state(s), names.spilled(s)) for s in names.states()]
    spill = [names.spill(s) for s in names.states()]
    # A finite fill would need a second run over all rows and keys: nothing is skipped then.
    empty = const(False, "bool") if names.tiling.fill is not None else names.put(names.tiling.empty)
    decided = {c: const(v, "bool") for c, v in names.tiling.decided}

    def rows(known: Mapping[Expr, Expr]) -> tuple[Stmt, ...]:
        block = Rows(names.i, names.schedule.rows, tuple(Block(names, operands, known).statements()))
        return (*row_inputs, *fetch, block, *spill)

    skip = () if isinstance(empty, Const) and not empty.value else (Phase("empty", empty, False, ()),)
    full = Phase("full", names.put(names.tiling.full), False, rows(decided))
    partial = Phase("partial", TRUE, False, rows({}))
    start, n, m = integer_const(0), names.row_extent(), index("M")
    inside = call("le", call("add", index(names.j + "0"), integer_const(names.schedule.tile_n)), m)
    keys = Stream(names.j, start, m, (
        Phase("full", inside, True, (*key_inputs, Stream(names.i, start, n, (*skip, full, partial)))),
        Phase("partial", TRUE, False, (*key_inputs, Stream(names.i, start, n, (*skip, partial)))),
    ))  # fmt: skip
    before = Stream(names.i, start, n, (Phase("partial", TRUE, False, (*names.initial(), *spill)),))
    after = Stream(names.i, start, n, (Phase("partial", TRUE, False, (*fetch, *names.stores())),))
    return (Parallel(names.batch_loops(), (before, keys, after)),)
