"""LoadTile and StoreTile: between tensors and tiles.

A tile that is wanted in the order of memory is copied vector by vector; one that is wanted across (the panels of a Contract's
operand: keys side by side) is transposed in registers, a square of vectors at a time. Any other index is read element by element.
"""

from __future__ import annotations

from aicf.backends.llvm.codegen.elementwise import AxisLoops, Group, emit_group
from aicf.backends.llvm.codegen.inplace import coefficient
from aicf.backends.llvm.codegen.lane_access import LaneAccess, Slot, Span, Spread, from_memory, to_stored, vector_at
from aicf.backends.llvm.codegen.layout import Layout
from aicf.backends.llvm.codegen.scope import Index, Scope, TensorRef
from aicf.backends.llvm.codegen.shuffles import transposed
from aicf.backends.llvm.codegen.text import I64, Function, Module
from aicf.backends.llvm.codegen.values import held, in_tile, stored
from aicf.kernel import LoadTile, Map, StoreTile, Tile
from aicf.scalar import DType, affine, cast, load, variables


def emit_load(s: LoadTile, scope: Scope, tiles: dict[str, Tile]) -> None:
    """Fill every copy of the tile."""
    tensor = scope.kernel.tensor(s.tensor)
    source = cast(load(s.tensor, s.at, tensor.dtype), s.tile.dtype)
    for layout in scope.plan.copies[s.tile.name]:
        across = _across(s, scope, layout)
        if across is not None:
            _transpose(s, scope, layout, across, {}, tuple(a for a in s.tile.axes if a not in (layout.vector, across)), tiles)
        else:
            outer = tuple(a for a in s.tile.axes if a != layout.vector)
            emit_group(Group(outer, layout.vector, (Map(s.tile, source),)), scope, tiles, layout)


def _across(s: LoadTile, scope: Scope, layout: Layout) -> str | None:
    """The axis along which memory is contiguous, when that is not the layout's vector axis and the index is affine in both."""
    tensor = scope.kernel.tensor(s.tensor)
    if tensor.unit is None or layout.vector is None or held(tensor.dtype) != "float" or s.tile.dtype not in ("f32", tensor.dtype):
        return None
    vector = scope.kernel.axis(layout.vector).position
    for axis in s.tile.axes:
        if axis == layout.vector or scope.plan.shapes[axis].length < scope.target.lanes:
            continue
        position = scope.kernel.axis(axis).position
        if all(coefficient(e, position) == (1 if d == tensor.unit else 0) for d, e in enumerate(s.at)) and all(
            affine(e, (vector,)) is not None and (d != tensor.unit or coefficient(e, vector) == 0) for d, e in enumerate(s.at)
        ):
            return axis
    return None


def _transpose(
    s: LoadTile,
    scope: Scope,
    layout: Layout,
    across: str,
    where: dict[str, Index],
    outer: tuple[str, ...],
    tiles: dict[str, Tile],
) -> None:
    """Squares of `lanes` vectors along `across`, transposed into vectors along the layout's vector axis."""
    if outer:
        with AxisLoops(scope, outer[0]) as at:
            _transpose(s, scope, layout, across, {**where, outer[0]: at}, outer[1:], tiles)
        return
    fn, lanes = scope.fn, scope.target.lanes
    vector = layout.vector or ""
    shape = scope.plan.shapes[vector]
    view = scope.views[vector]
    tensor = scope.tensors[s.tensor]
    along = scope.views[across]
    with fn.loop(0, fn.ceil_div(view.valid, shape.chunk)) as block:
        for word in range(shape.lanes // lanes):
            point = LaneAccess(scope, {**where, across: Index(0, 0)}, vector, Slot(block, word), tiles)
            span = point.span(tensor, s.at, point.evaluator())
            assert isinstance(span, Span)
            # The second half of a panel may lie wholly past the end: then there is nothing to read.
            exist = lanes if point.full() else point.existing()
            source = fn.pointer(tensor.base, span.offset, stored(tensor.dtype))
            target = scope.address(layout, {**point.place(layout, word * lanes), across: Index(0, 0)})
            name = _strip(fn.module, lanes, tensor.dtype, in_tile(layout.dtype), layout.stride[across])
            fn.do(f"call fastcc void @{name}(ptr {source}, i64 {span.step}, i64 {exist}, i64 {along.valid}, ptr {target})")


def _strip(module: Module, lanes: int, dtype: DType, tile: str, step: int) -> str:
    """The internal function that transposes `lanes` rows of a tensor, of which some exist, over a number of columns: into one
    vector for each column, `step` elements apart. Rows that do not exist repeat the last one."""
    key = ("strip", dtype, tile, step)
    if key in module.made:
        return module.made[key]
    name = module.made[key] = f"strip{lanes}_{dtype}_{step}"
    arguments = "ptr noalias %source, i64 %row, i64 %exist, i64 %columns, ptr noalias %target"
    fn = Function(module, name, arguments, fast=True, inline=False, group=1)
    kind = stored(dtype)
    with fn.when(fn.compare("sgt", "%exist", 0)):
        last = fn.sub("%exist", 1)
        rows = [fn.pointer("%source", fn.mul("%row", fn.minimum(r, last)), kind) for r in range(lanes)]

        def put(column: I64, text: str) -> None:
            fn.do(f"store <{lanes} x {tile}> {text}, ptr {fn.pointer('%target', fn.mul(column, step), tile)}, align {4 * lanes}")

        whole = fn.op(f"and i64 %columns, {-lanes}")
        with fn.loop(0, whole, lanes) as column:
            square = [vector_at(fn, fn.pointer(row, column, kind), dtype, lanes) for row in rows]
            for k, text in enumerate(transposed(fn, square)):
                put(fn.add(column, k), text)
        with fn.loop(whole, "%columns") as column:
            text = "poison"
            for lane, row in enumerate(rows):
                one = fn.op(f"load {kind}, ptr {fn.pointer(row, column, kind)}")
                text = fn.op(f"insertelement <{lanes} x {kind}> {text}, {kind} {one}, i64 {lane}")
            put(column, from_memory(fn, text, dtype, lanes).text)
    fn.do("ret void")
    return name


# ------------------------------------------------------------------------------------------------ stores


def emit_store(s: StoreTile, scope: Scope, tiles: dict[str, Tile]) -> None:
    """The store's loop nest: vectors along the axis in which memory is contiguous, or along the tiles' own vector axis."""
    vector = _store_axis(s, scope, tiles)
    outer = tuple(a for a in s.axes if a != vector)
    _store(s, scope, tiles, vector, outer, {})


def _store_axis(s: StoreTile, scope: Scope, tiles: dict[str, Tile]) -> str | None:
    unit = scope.kernel.tensor(s.tensor).unit
    if unit is not None:
        for axis in s.axes:
            if coefficient(s.at[unit], scope.kernel.axis(axis).position) == 1:
                return axis
    for v in sorted(variables(s.expr), key=lambda v: v.name):
        if v.name in tiles and scope.plan.of(tiles[v.name]).vector in s.axes:
            return scope.plan.of(tiles[v.name]).vector
    return s.axes[-1] if s.axes else None


def _store(
    s: StoreTile, scope: Scope, tiles: dict[str, Tile], vector: str | None, outer: tuple[str, ...], where: dict[str, Index]
) -> None:
    if outer:
        with AxisLoops(scope, outer[0]) as at:
            _store(s, scope, tiles, vector, outer[1:], {**where, outer[0]: at})
        return
    fn = scope.fn
    if vector is None:
        _put(s, scope, LaneAccess(scope, where, None, Slot(0, 0), tiles))
        return
    shape, view = scope.plan.shapes[vector], scope.views[vector]
    words = shape.lanes // scope.target.lanes
    if isinstance(view.valid, int) and -(-view.length // shape.chunk) * words <= 16:
        for block in range(-(-view.valid // shape.chunk)):
            for word in range(words):
                _put(s, scope, LaneAccess(scope, where, vector, Slot(block, word), tiles))
        return
    with fn.loop(0, fn.ceil_div(view.valid, shape.chunk)) as block:
        for word in range(words):
            _put(s, scope, LaneAccess(scope, where, vector, Slot(block, word), tiles))


def _put(s: StoreTile, scope: Scope, point: LaneAccess) -> None:
    fn, lanes = scope.fn, scope.target.lanes
    tensor = scope.tensors[s.tensor]
    at = point.evaluator()
    value = at.value(s.expr)
    span = point.span(tensor, s.at, at)
    kind = stored(tensor.dtype)
    if point.axis is None:
        assert isinstance(span, Span)
        text, _ = to_stored(scope, value, tensor.dtype, at)
        fn.do(f"store {kind} {text}, ptr {fn.pointer(tensor.base, span.offset, kind)}")
        return
    value = at.widen(value)
    text, wide = to_stored(scope, value, tensor.dtype, at)
    if isinstance(span, Span) and span.step == 1:
        pointer = fn.pointer(tensor.base, span.offset, kind)
        mask = point.mask()
        size = {"i8": 1, "i16": 2, "half": 2, "i32": 4, "float": 4, "i64": 8, "double": 8}[kind]
        if mask is None:
            fn.do(f"store {wide} {text}, ptr {pointer}, align {size}")
            return
        if size >= 4:
            suffix = f"v{lanes}" + {"float": "f32", "double": "f64"}.get(kind, kind)
            fn.module.declare(f"llvm.masked.store.{suffix}.p0", f"void ({wide}, ptr, i32 immarg, <{lanes} x i1>)")
            fn.do(f"call void @llvm.masked.store.{suffix}.p0({wide} {text}, ptr {pointer}, i32 {size}, <{lanes} x i1> {mask})")
            return
    _scatter(scope, point, tensor, span, text, kind)


def _scatter(scope: Scope, point: LaneAccess, tensor: TensorRef, span: Span | Spread, text: str, kind: str) -> None:
    """Lane by lane, those that exist."""
    fn, lanes = scope.fn, scope.target.lanes
    kept = fn.alloca(f"<{lanes} x {kind}>")
    fn.do(f"store <{lanes} x {kind}> {text}, ptr {kept}")
    offsets = fn.alloca(f"[{lanes} x i64]")
    if isinstance(span, Spread):
        for lane, offset in enumerate(span.offsets(point)):
            fn.do(f"store i64 {offset}, ptr {fn.pointer(offsets, lane, 'i64')}")
    count = lanes if point.full() else fn.minimum(lanes, point.existing())
    with fn.loop(0, count) as lane:
        one = fn.op(f"load {kind}, ptr {fn.pointer(kept, lane, kind)}")
        if isinstance(span, Spread):
            offset: I64 = fn.op(f"load i64, ptr {fn.pointer(offsets, lane, 'i64')}")
        else:
            offset = fn.add(span.offset, fn.mul(span.step, lane))
        fn.do(f"store {kind} {one}, ptr {fn.pointer(tensor.base, offset, kind)}")
