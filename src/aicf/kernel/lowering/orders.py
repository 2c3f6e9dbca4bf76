"""The three ways to walk rows and streamed positions (keys, in an attention).

q_major             parallel rows: { states = initial; stream keys: block; store outputs }
q_major, kv_split   parallel rows, parts: { stream a part of the keys; spill states }
                    parallel rows: { stream parts: combine; store outputs }                     (docs/theory.md, T2)
kv_major            parallel items: { stream keys: { stream rows: fetch states; block; spill states } ; store outputs }
"""

from __future__ import annotations

from collections.abc import Mapping

from aicf.kernel.ir import Axis, Loop, Map, Parallel, Phase, Retry, RowBlock, Stmt, Stream, Tile
from aicf.kernel.lowering.block import Block, in_order, rebased
from aicf.kernel.lowering.builder import KernelBuilder, old_reference
from aicf.mcir.payloads import reference_of
from aicf.scalar import ABSORBED, Const, Expr, call, const, index, integer_const, substitute, var

TRUE = const(True, "bool")


def q_major(b: KernelBuilder) -> tuple[Parallel, ...]:
    """Rows outside, keys streamed."""
    loops = (*b.batch_loops(), b.row_loop())
    parts = b.region.kv_split
    if parts == 1:
        return (Parallel(loops, (*_rows_item(b, None), *b.stores())),)
    count = integer_const(parts)
    part = index("part")
    first = Parallel((*loops, Loop(part, count)), (*_rows_item(b, parts), *(_spill(b, part, count))))
    b.axes.append(Axis("c", count, 1))
    body = (*b.initial(), Stream("c", integer_const(0), count, (Phase("full", TRUE, True, tuple(_combine(b, count))),)))
    return first, Parallel(loops, (*body, *b.stores()))


def _spill(b: KernelBuilder, part: Expr, count: Expr) -> list[Stmt]:
    return [b.spill(s.state, part, shape=(count,)) for s in b.states()]


def _operands(b: KernelBuilder) -> tuple[dict[str, Tile], list[Stmt], list[Stmt]]:
    """The loaded tiles by name, and the statements that fill them: those of rows, and those of streamed positions."""
    operands: dict[str, Tile] = {}
    rows: list[Stmt] = []
    streamed: list[Stmt] = []
    for loaded in b.region.loads:
        operands[loaded.tile.name], statement = b.operand(loaded)
        (rows if b.i in loaded.tile.axes else streamed).append(statement)
    return operands, rows, streamed


def _rows_item(b: KernelBuilder, parts: int | None) -> list[Stmt]:
    """A tile of rows over all keys, or over one `part` of them."""
    operands, outside, inside = _operands(b)
    low, high, empty = _bounds(b)
    if parts is not None:
        step = integer_const(b.region.tile_n)
        tiles = call("floordiv", call("add", b.region.stream.extent, call("sub", step, integer_const(1))), step)
        each = call("floordiv", call("add", tiles, integer_const(parts - 1)), integer_const(parts))
        chunk = call("mul", each, step)
        low = call("max", low, call("mul", index("part"), chunk))
        high = call("min", high, call("mul", call("add", index("part"), integer_const(1)), chunk))
    stream = Stream(b.j, low, high, _phases(b, operands, inside, empty))
    repeated = (*b.initial(), stream)
    if b.phases.fill is None:
        return [*outside, *repeated]
    return [*outside, Retry(b.flag, b.i, _again(b, b.phases.fill), repeated)]


def _bounds(b: KernelBuilder) -> tuple[Expr, Expr, Expr]:
    """(first key, end, when a tile is empty), under the retry flag where skipping has to be checked."""
    low: Expr = integer_const(0)
    high: Expr = b.region.stream.extent
    for e in b.phases.low:
        low = call("max", low, b.put(e))
    for e in b.phases.high:
        high = call("min", high, b.put(e))
    empty = b.put(b.phases.empty)
    if b.phases.fill is not None:
        skipping = call("ne", b.flag, integer_const(0))
        low = call("where", skipping, low, integer_const(0))
        high = call("where", skipping, high, b.region.stream.extent)
        empty = call("and", skipping, empty)
    return low, high, empty


def _again(b: KernelBuilder, fill: float) -> Expr:
    """Whether a skipped score could have counted: some row's maximum is not far enough above the fill value."""
    again: Expr = const(False, "bool")
    for x in b.region.extrema:
        gap = call("sub", var(x.state.name, "f32"), const(fill, "f32"))
        again = call("or", again, call("not", call("ge", gap, const(ABSORBED, "f32"))))
    return again


def _decided(b: KernelBuilder) -> dict[Expr, Expr]:
    return {c: const(v, "bool") for c, v in b.phases.decided}


def _phases(b: KernelBuilder, operands: Mapping[str, Tile], before: list[Stmt], empty: Expr) -> tuple[Phase, ...]:
    """Empty tiles skipped, full tiles without mask code, the others with it."""

    def block(known: Mapping[Expr, Expr], ends: tuple[tuple[str, Expr], ...] = ()) -> tuple[Stmt, ...]:
        return (*before, RowBlock(b.i, b.region.rows, tuple(Block(b, operands, known).statements()), ends))

    phases = [] if isinstance(empty, Const) and not empty.value else [Phase("empty", empty, False, ())]
    phases.append(Phase("full", b.put(b.phases.full), True, block(_decided(b))))
    phases.append(Phase("partial", TRUE, False, block({}, _row_ends(b))))
    return tuple(phases)


def _row_ends(b: KernelBuilder) -> tuple[tuple[str, Expr], ...]:
    """Where the streamed axis ends for a block of rows."""
    if b.phases.end is None:
        return ()
    extent = b.region.stream.extent
    end = call("min", extent, b.put(b.phases.end))
    if b.phases.fill is not None:
        end = call("where", call("ne", b.flag, integer_const(0)), end, extent)
    return ((b.j, end),)


def _combine(b: KernelBuilder, count: Expr) -> list[Stmt]:
    """The state of one more part taken in (docs/theory.md, T2). Tiles here are as long as the row tile: names of their own."""
    out: list[Stmt] = []
    part = index("c0")
    mine: dict[Expr, Expr] = {}
    theirs: dict[Expr, Expr] = {}
    for x in b.region.extrema:
        name, op = x.state.name, x.extremum.op
        other = b.row_tile(f"{name}_other")
        out.append(Map(other, b.spilled(x.state, part, shape=(count,))))
        both = b.row_tile(f"{name}_both")
        out.append(Map(both, call(op, var(name, "f32"), var(other.name, "f32"))))
        shared = b.row_tile(f"{x.extremum.reference.name}_both")
        out.append(Map(shared, reference_of(op, var(both.name, "f32"))))
        for known, extremum in ((mine, name), (theirs, other.name)):
            known[x.extremum.reference] = var(shared.name, "f32")
            known[x.extremum.old] = substitute(old_reference(x, var(extremum, "f32"), b.region.sums), known)
    scales: dict[Expr, tuple[Expr, Expr]] = {}
    for s in b.region.sums:
        rescale = s.sum.rescale
        if rescale is not None and rescale not in scales:
            end = "" if not scales else str(len(scales) + 1)
            pair = (b.row_tile(f"own_rescale{end}"), b.row_tile(f"other_rescale{end}"))
            out += [Map(t, substitute(rescale, known)) for t, known in zip(pair, (mine, theirs), strict=True)]
            scales[rescale] = (var(pair[0].name, "f32"), var(pair[1].name, "f32"))
    by_name = {s.state.name: s for s in b.region.sums}
    for s in in_order(b.region.sums):
        own_scale, other_scale = (None, None) if s.sum.rescale is None else scales[s.sum.rescale]
        partner = None if s.sum.shift is None else by_name[s.sum.shift.partner]
        own_partner = None if partner is None else var(partner.state.name, "f32")
        own = rebased(s.sum, var(s.state.name, "f32"), own_partner, own_scale, mine)
        given = b.spilled(s.state, part, shape=(count,))
        their_partner = None if partner is None else b.spilled(partner.state, part, shape=(count,))
        out.append(Map(b.tile(s.state), call("add", own, rebased(s.sum, given, their_partner, other_scale, theirs))))
    out += [Map(b.tile(x.state), var(f"{x.state.name}_both", "f32")) for x in b.region.extrema]
    return out


def kv_major(b: KernelBuilder) -> tuple[Parallel, ...]:
    """Keys outside: every tile of keys is loaded once, the rows' states wait in scratch memory in between."""
    operands, row_inputs, key_inputs = _operands(b)
    fetch: list[Stmt] = [Map(b.tile(s.state), b.spilled(s.state)) for s in b.states()]
    spill = [b.spill(s.state) for s in b.states()]
    # A finite fill would need a second run over all rows and keys: nothing is skipped then.
    empty = const(False, "bool") if b.phases.fill is not None else b.put(b.phases.empty)

    def rows(known: Mapping[Expr, Expr]) -> tuple[Stmt, ...]:
        block = RowBlock(b.i, b.region.rows, tuple(Block(b, operands, known).statements()))
        return (*row_inputs, *fetch, block, *spill)

    skip = () if isinstance(empty, Const) and not empty.value else (Phase("empty", empty, False, ()),)
    full = Phase("full", b.put(b.phases.full), False, rows(_decided(b)))
    partial = Phase("partial", TRUE, False, rows({}))
    start, n, m = integer_const(0), b.region.row.extent, b.region.stream.extent
    inside = call("le", call("add", index(b.j + "0"), integer_const(b.region.tile_n)), m)
    keys = Stream(b.j, start, m, (
        Phase("full", inside, True, (*key_inputs, Stream(b.i, start, n, (*skip, full, partial)))),
        Phase("partial", TRUE, False, (*key_inputs, Stream(b.i, start, n, (*skip, partial)))),
    ))  # fmt: skip
    before = Stream(b.i, start, n, (Phase("partial", TRUE, False, (*b.initial(), *spill)),))
    after = Stream(b.i, start, n, (Phase("partial", TRUE, False, (*fetch, *b.stores())),))
    return (Parallel(b.batch_loops(), (before, keys, after)),)
