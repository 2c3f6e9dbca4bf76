"""Software prefetch: each register tile of a product prefetches a few lines that are needed later.

A product over packed panels prefetches its share of the stream's next tile. Products that read tensors in place alternate: each
prefetches the rows that the next product reads, and the last one those of the first product in the stream's next tile. Two
streams then advance side by side, each in memory order. Hardware prefetchers recognise that, and keep more lines in flight than
software prefetches of one core can.

A core keeps about two dozen lines in flight. A block of rows prefetches more than that: its share of the stream's next tile, and
the operands (a bias, a mask) that the next block adds to its scores, whose rows are far apart, so that hardware does not predict
them. Issued all at once, the later prefetches would wait for the earlier ones, and the block with them. After the last tile of a
stream comes the first one of the work item that this thread is likely to take next.

A prefetch past the end of a tensor does nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace

from aicf.backends.llvm.codegen.inplace import coefficient
from aicf.backends.llvm.codegen.lane_access import LINE, LaneAccess, Slot, Span
from aicf.backends.llvm.codegen.layout import roles
from aicf.backends.llvm.codegen.scope import Index, Prefetch, Scope, TensorRef, View
from aicf.backends.llvm.codegen.text import I64, Function
from aicf.backends.llvm.codegen.values import Value, stored
from aicf.kernel import Contract, LoadTile, Map, Reduce, RowBlock, StoreTile, Tile
from aicf.scalar import BYTES, Expr, Load, is_int, variables, walk


def prefetch(fn: Function, prefetches: tuple[Prefetch, ...], part: I64, parts: int) -> None:
    """Emits the prefetches of part number `part` of `parts`."""
    for condition in dict.fromkeys(r.when for r in prefetches):
        with nullcontext() if condition is None else fn.when(condition):
            for r in prefetches:
                if r.when == condition:
                    _prefetch(fn, r, part, parts)


def _prefetch(fn: Function, r: Prefetch, part: I64, parts: int) -> None:
    if 1 < r.rows <= parts:  # a row at a time: each is in a page of its own
        at = fn.pointer(r.pointer, fn.mul(fn.minimum(part, r.rows - 1), r.row_bytes), "i8")
        for line in range(r.lines):
            fn.prefetch(fn.pointer(at, line * LINE, "i8"), nearness=3, write=r.write)
        return
    each = max(1, -(-r.lines // parts))
    first = fn.mul(part, each) if r.lines >= parts else _share(fn, part, r.lines, parts)
    start = fn.pointer(r.pointer, fn.mul(first, LINE), "i8")
    for row in range(r.rows):
        at = fn.pointer(start, fn.mul(r.row_bytes, row), "i8")
        for line in range(each):
            fn.prefetch(fn.pointer(at, line * LINE, "i8"), nearness=3 if r.write else 2, write=r.write)


def _share(fn: Function, part: I64, lines: int, parts: int) -> I64:
    """The line of a part, when there are fewer lines than parts."""
    scaled = fn.mul(part, lines)
    return scaled // parts if isinstance(scaled, int) else fn.op(f"udiv i64 {scaled}, {parts}")


def with_prefetches(s: RowBlock, block: I64, scope: Scope, tiles: dict[str, Tile], loads: tuple[LoadTile, ...]) -> Scope:
    """`scope` with what this block of rows asks for, at the products that do: its share of what `loads` want for the stream's
    next tile, what the next block adds to its scores, and at the end of the stream its share of the next item's rows, and its
    own rows of the result. Without a product over packed panels the first two are asked for here."""
    blocks = -(-scope.views[s.axis].length // s.step)
    products = [p for p in s.body if isinstance(p, Contract) and _in_panels(p, scope)]
    turns = _turns(s, scope, tiles)
    far = [r for load in loads for r in _next_tile(load, scope, tiles, block, blocks)]
    near = list(_next_block(s, block, scope, tiles))
    if not products:
        prefetch(scope.fn, (*far, *near), 0, 1)
        return replace(scope, prefetches=turns)
    for x in scope.item if scope.last is not None else ():
        if isinstance(x, LoadTile) and s.axis in x.tile.axes:
            near += _rows_of(s, x.tensor, x.at, x.tile.axes, block, scope.then(scope.following), tiles, False)
        elif isinstance(x, StoreTile) and s.axis in x.axes:
            far += _rows_of(s, x.tensor, x.at, x.axes, block, scope, tiles, True)
    first = next((p for p in products if scope.streamed in p.tile.axes), products[0])
    wanted: dict[int, tuple[Prefetch, ...]] = {**turns, id(products[-1]): tuple(far)}
    wanted[id(first)] = (*wanted.get(id(first), ()), *near)
    return replace(scope, prefetches=wanted)


def _turns(s: RowBlock, scope: Scope, tiles: dict[str, Tile]) -> dict[int, tuple[Prefetch, ...]]:
    """What each product that reads a tensor where it lies asks for: all rows that the next such product is the first to read."""
    found: dict[str, Contract] = {}
    for p in s.body:
        r = roles(p, scope.plan) if isinstance(p, Contract) and not is_int(p.tile.dtype) else None
        if isinstance(p, Contract) and r is not None and r.b.name in scope.plan.in_place:
            found.setdefault(r.b.name, p)
    order = [name for name in found if name in scope.loads]  # what is loaded inside of a block is not known yet
    made: dict[int, tuple[Prefetch, ...]] = {}
    for k, name in enumerate(order):
        after = order[(k + 1) % len(order)]
        where = scope if k + 1 < len(order) else scope.then(scope.following)
        rows = _rows_of_tile(scope.loads[after], scope, where, tiles)
        if rows is not None:
            made[id(found[name])] = (rows,)
    return made


def following(scope: Scope, low: I64, origin: I64, length: int, last: str) -> dict[str, Value]:
    """The loop variables of a stream's next tile, and its origin: the next item's, whose stream begins at `low`, if `last`."""
    fn = scope.fn

    def chosen(then: I64, now: I64) -> Value:
        return Value(str(then if then == now else fn.op(f"select i1 {last}, i64 {then}, i64 {now}")), "i64")

    made = {name: chosen(v.number, scope.values[name].number) for name, v in scope.upcoming.items()}
    return {**made, f"{scope.streamed}0": chosen(low, fn.add(origin, length))}


def _in_panels(s: Contract, scope: Scope) -> bool:
    """Whether a product runs in register tiles over packed panels."""
    found = roles(s, scope.plan)
    return found is not None and not is_int(s.tile.dtype) and found.b.name not in scope.plan.in_place


def _arithmetic(at: tuple[Expr, ...]) -> bool:
    """Whether an index is found without looking into a tensor."""
    return not any(isinstance(n, Load) for e in at for n in walk(e))


def _next_tile(s: LoadTile, scope: Scope, tiles: dict[str, Tile], part: I64, parts: int) -> Iterator[Prefetch]:
    """One of `parts` shares of the memory that a load reads in the stream's next tile."""
    fn = scope.fn
    whole = _rows_of_tile(s, scope, scope.then(scope.following), tiles)
    if whole is None:
        return
    share = -(-whole.rows // parts)
    for k in range(share):
        row = fn.add(fn.mul(part, share), k)
        yield Prefetch(fn.pointer(whole.pointer, fn.mul(whole.row_bytes, row), "i8"), whole.lines)


def _rows_of_tile(s: LoadTile, scope: Scope, where: Scope, tiles: dict[str, Tile]) -> Prefetch | None:
    """The memory that a load of rows of the streamed axis reads, at the tile that `where` says; None where it is not in rows."""
    fn, stream, tensor = scope.fn, scope.streamed, scope.kernel.tensor(s.tensor)
    if stream is None or stream not in s.tile.axes or len(s.tile.axes) != 2 or tensor.unit is None or not _arithmetic(s.at):
        return None
    (along,) = (a for a in s.tile.axes if a != stream)
    step = _row_step(scope, scope.tensors[s.tensor], s.at, stream, along)
    if step is None:
        return None
    length, size = scope.views[stream].length, BYTES[tensor.dtype]
    there = where.see(stream, View(0, length, length))
    memory = there.tensors[s.tensor]
    offset = _offset(there, memory, s.at, {stream: Index(0, 0), along: Index(0, 0)}, tiles)
    lines = -(-scope.views[along].length * size // LINE)
    return Prefetch(fn.pointer(memory.base, offset, stored(tensor.dtype)), lines, length, fn.mul(step, size))


def _row_step(scope: Scope, tensor: TensorRef, at: tuple[Expr, ...], rows: str, along: str) -> I64 | None:
    """Elements from row to row of a tensor along whose rows memory runs; None if it is no such number."""
    slopes = [tuple(coefficient(e, scope.kernel.axis(x).position) for x in (rows, along)) for e in at]
    if not _arithmetic(at) or any(pair != (pair[0], int(d == tensor.unit)) or pair[0] is None for d, pair in enumerate(slopes)):
        return None
    step: I64 = 0
    for pair, stride in zip(slopes, tensor.strides, strict=True):
        step = scope.fn.add(step, scope.fn.mul(stride, pair[0] or 0))
    return step


def _offset(scope: Scope, tensor: TensorRef, at: tuple[Expr, ...], where: dict[str, Index], tiles: dict[str, Tile]) -> I64:
    """Where an element of a tensor lies, in elements."""
    point = LaneAccess(scope, where, None, Slot(0, 0), tiles)
    span = point.span(tensor, at, point.evaluator())
    assert isinstance(span, Span)
    return span.offset


def _next_block(s: RowBlock, block: I64, scope: Scope, tiles: dict[str, Tile]) -> Iterator[Prefetch]:
    """What the next block of rows reads of tensors with a value for every score. The next of the last block is the first one, at
    the stream's next tile."""
    fn, stream = scope.fn, scope.streamed
    if stream is None or s.axis == stream:
        return
    for e in {n: None for x in s.body if isinstance(x, Map | Reduce) for n in walk(x.expr) if isinstance(n, Load)}:
        tensor, axes = scope.tensors[e.tensor], (s.axis, stream)
        if not {v.name for v in variables(e)} <= {*scope.values, *axes}:
            continue
        step = _row_step(scope, tensor, e.index, *axes)
        if step is None or step == 0:
            continue
        length, size = scope.views[stream].length, BYTES[tensor.dtype]
        row = fn.mul(fn.add(block, 1), s.step)
        more = fn.compare("slt", row, scope.views[s.axis].valid)
        ahead = fn.op(f"select i1 {more}, i64 {fn.mul(row, step)}, i64 {length}")
        first = _offset(scope, tensor, e.index, dict.fromkeys(axes, Index(0, 0)), tiles)
        pointer = fn.pointer(tensor.base, fn.add(first, ahead), stored(tensor.dtype))
        yield Prefetch(pointer, -(-length * size // LINE), s.step, fn.mul(step, size))


def _rows_of(
    s: RowBlock, name: str, at: tuple[Expr, ...], axes: tuple[str, ...], block: I64, scope: Scope, tiles: dict[str, Tile],
    write: bool,
) -> Iterator[Prefetch]:
    """The rows of this block in a tensor that an item reads, or writes, once."""
    fn, tensor = scope.fn, scope.tensors[name]
    if len(axes) != 2 or not {v.name for e in at for v in variables(e)} <= {*scope.values, *axes}:
        return
    (along,) = (a for a in axes if a != s.axis)
    step = _row_step(scope, tensor, at, s.axis, along)
    if step is None or along not in scope.views:
        return
    size = BYTES[tensor.dtype]
    first = _offset(scope, tensor, at, dict.fromkeys(axes, Index(0, 0)), tiles)
    pointer = fn.pointer(tensor.base, fn.add(first, fn.mul(fn.mul(block, s.step), step)), stored(tensor.dtype))
    yield Prefetch(pointer, -(-scope.views[along].length * size // LINE), s.step, fn.mul(step, size), write, scope.last)
