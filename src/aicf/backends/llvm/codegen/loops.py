"""Control flow of a work item: streams and their phases, register blocks of rows, retries, runs of element-wise statements."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from aicf.backends.llvm.codegen.contract import emit_contract
from aicf.backends.llvm.codegen.copies import emit_load, emit_store
from aicf.backends.llvm.codegen.elementwise import AxisLoops, Pointwise, as_reduce, emit_group, groups
from aicf.backends.llvm.codegen.lane_access import LaneAccess, Slot
from aicf.backends.llvm.codegen.layout import roles
from aicf.backends.llvm.codegen.prefetch import following, with_prefetches
from aicf.backends.llvm.codegen.scope import Scope, View
from aicf.backends.llvm.codegen.text import I64
from aicf.backends.llvm.codegen.values import Value
from aicf.kernel import Contract, Fill, LoadTile, Map, Parallel, Phase, Reduce, Retry, RowBlock, Stmt, StoreTile, Stream, Tile
from aicf.scalar import Const, Expr, is_int


def emit_body(body: tuple[Stmt, ...], scope: Scope, tiles: dict[str, Tile]) -> None:
    """The statements in order; neighbouring element-wise ones are fused."""
    run: list[Pointwise] = []

    def flush() -> None:
        for group in groups(run, scope, tiles):
            emit_group(group, scope, tiles)
        run.clear()

    for s in body:
        if isinstance(s, Map | Reduce | Fill):
            run.append(s)
        elif isinstance(s, Contract) and (roles(s, scope.plan) is None or is_int(s.tile.dtype)):
            run.extend(as_reduce(s))
        else:
            flush()
            if isinstance(s, LoadTile) and s.tile.name in scope.plan.in_place:
                scope = replace(scope, loads={**scope.loads, s.tile.name: s})
            elif isinstance(s, RowBlock):
                copied = (x for x in body if isinstance(x, LoadTile) and x.tile.name not in scope.plan.in_place)
                _rows(s, scope, tiles, tuple(copied))
            else:
                _emit(s, scope, tiles)
    flush()


def _emit(s: Stmt, scope: Scope, tiles: dict[str, Tile]) -> None:
    match s:
        case LoadTile():
            emit_load(s, scope, tiles)
        case StoreTile():
            emit_store(s, scope, tiles)
        case Contract():
            emit_contract(s, scope, tiles)
        case Stream():
            _stream(s, scope, tiles)
        case Retry():
            _retry(s, scope, tiles)
        case Parallel():
            raise ValueError(f"kernel {scope.kernel.name}: parallel inside parallel; nest their loops in one statement instead")
        case _:
            raise AssertionError(s)


def scalar_point(scope: Scope, tiles: dict[str, Tile]) -> LaneAccess:
    """A point with no axes, for conditions and bounds."""
    return LaneAccess(scope, {}, None, Slot(0, 0), tiles)


def number(e: Expr, scope: Scope, tiles: dict[str, Tile]) -> I64:
    """An integer expression at this place."""
    return int(e.value) if isinstance(e, Const) else scalar_point(scope, tiles).evaluator().i64(e)


def _rows(s: RowBlock, scope: Scope, tiles: dict[str, Tile], loads: tuple[LoadTile, ...]) -> None:
    """The blocks of a row axis. Each asks for its share of what `loads` will want for the next tile of the stream."""
    fn, view, chunk = scope.fn, scope.views[s.axis], scope.plan.shapes[s.axis].chunk
    with fn.loop(0, fn.ceil_div(view.valid, s.step)) as block:
        start = fn.mul(block, s.step)
        if isinstance(view.valid, int) and view.valid % s.step == 0:
            valid: I64 = s.step
        else:
            valid = fn.minimum(s.step, fn.sub(view.valid, start))
        base = fn.add(view.base, fn.mul(block, s.step // chunk))
        inside = with_prefetches(s, block, scope, tiles, loads).see(s.axis, View(base, s.step, valid))
        for axis, end in s.ends:
            inside = inside.see(axis, _shortened(s, axis, end, inside, tiles))
        with ExitStack() as some:  # a block to which no key counts stays as it is
            for axis, _ in s.ends:
                some.enter_context(fn.when(fn.compare("sgt", inside.views[axis].valid, 0)))
            emit_body(s.body, inside, tiles)


def _shortened(s: RowBlock, axis: str, end: Expr, scope: Scope, tiles: dict[str, Tile]) -> View:
    """The view of a streamed axis without the lanes that contribute nothing to this block of rows."""
    fn, view = scope.fn, scope.views[axis]
    first = scope.bind(scope.kernel.axis(s.axis).origin.name, Value(str(scope.start(s.axis)), "i64"))
    left = fn.sub(number(end, first, tiles), scope.origin(axis))
    return View(view.base, view.length, fn.maximum(0, fn.minimum(view.valid, left)))


def _stream(s: Stream, scope: Scope, tiles: dict[str, Tile]) -> None:
    """Tiles of the streamed axis; the first phase whose condition holds runs."""
    fn = scope.fn
    axis = scope.kernel.axis(s.axis)
    low, high = number(s.lo, scope, tiles), number(s.hi, scope, tiles)
    end = fn.minimum(high, number(axis.extent, scope, tiles))
    outermost = scope.streamed is None and bool(scope.upcoming)
    after = number(s.lo, scope.then(scope.upcoming), tiles) if outermost else 0
    with fn.loop(low, high, axis.tile) as origin:
        inside = replace(scope.bind(axis.origin.name, Value(str(origin), "i64")), streamed=s.axis)
        if outermost:
            last = fn.compare("sge", fn.add(origin, axis.tile), end)
            inside = replace(inside, following=following(inside, after, origin, axis.tile, last), last=last)
        else:
            inside = replace(inside, following={axis.origin.name: Value(str(fn.add(origin, axis.tile)), "i64")}, last=None)
        left = fn.minimum(axis.tile, fn.sub(end, origin))
        # A tile that starts at or past the extent has no lanes.
        left = fn.maximum(left, 0)
        done = fn.new_label("next")
        for phase in s.phases:
            _phase(phase, s.axis, left, done, inside, tiles)
        fn.jump(done)
        fn.label(done)


def _phase(phase: Phase, axis: str, left: I64, done: str, scope: Scope, tiles: dict[str, Tile]) -> None:
    fn = scope.fn
    length = scope.kernel.axis(axis).tile
    valid: I64 = length if phase.whole else left
    view = scope.see(axis, View(0, length, valid))
    if isinstance(phase.when, Const):
        if phase.when.value:
            emit_body(phase.body, view, tiles)
            fn.jump(done)
            fn.label(fn.new_label("unreached"))
        return
    condition = scalar_point(scope, tiles).evaluator().condition(phase.when)
    then, other = fn.new_label(phase.name), fn.new_label("else")
    fn.do(f"br i1 {condition}, label %{then}, label %{other}")
    fn.label(then)
    emit_body(phase.body, view, tiles)
    fn.jump(done)
    fn.label(other)


def _retry(s: Retry, scope: Scope, tiles: dict[str, Tile]) -> None:
    """flag = 1: body; while flag and any row asks for it: flag = 0, body again."""
    fn = scope.fn
    head, done = fn.new_label("retry"), fn.new_label("settled")
    before = fn.block
    fn.jump(head)
    fn.label(head)
    flag, at = fn.name_of("flag"), len(fn.lines)
    fn.lines.append("")
    kind = "i1" if s.flag.dtype == "bool" else f"i{int(s.flag.dtype[1:])}"
    inside = scope.bind(s.flag.name, Value(flag, s.flag.dtype))
    emit_body(s.body, inside, tiles)
    slot = fn.alloca("i1")
    fn.do(f"store i1 false, ptr {slot}")
    with AxisLoops(inside, s.axis) as index:
        point = LaneAccess(inside, {s.axis: index}, None, Slot(0, 0), tiles)
        wanted = point.evaluator().condition(s.again)
        old = fn.op(f"load i1, ptr {slot}")
        fn.do(f"store i1 {fn.op(f'or i1 {old}, {wanted}')}, ptr {slot}")
    first = fn.op(f"icmp ne {kind} {flag}, 0") if kind != "i1" else flag
    repeat = fn.op(f"and i1 {fn.op(f'load i1, ptr {slot}')}, {first}")
    fn.do(f"br i1 {repeat}, label %{head}, label %{done}")
    one, zero = ("true", "false") if kind == "i1" else ("1", "0")
    fn.lines[at] = f"  {flag} = phi {kind} [ {one}, %{before} ], [ {zero}, %{fn.block} ]"
    fn.label(done)
