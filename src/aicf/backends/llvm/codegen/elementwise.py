"""Map, Reduce and Fill statements: fused into loop nests whose vectors stay in registers from one statement to the next.

    s = map s * scale          for r in rows:                       one nest for both statements: all vectors
    t = reduce max over j s      s[r, 0..7] -> scale -> store        of a row are live between them
                                 max of the eight -> t[r]
    n = map max(m, t)          m, t as vectors of rows              one vector operation for the whole block

A group is a run of statements over the same axes, in an order that respects their dependences; a reduced value is used by
the next group only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from aicf.backends.llvm.codegen.expressions import Evaluator, combined
from aicf.backends.llvm.codegen.lane_access import LaneAccess, LaneGroup, Slot
from aicf.backends.llvm.codegen.layout import Layout
from aicf.backends.llvm.codegen.scope import Index, Scope
from aicf.backends.llvm.codegen.text import I64
from aicf.backends.llvm.codegen.values import Value, held_dtype, in_tile
from aicf.kernel import Contract, Fill, Map, Reduce, Tile, reads, statements
from aicf.scalar import MONOIDS, DType, Expr, call, is_float, var

Pointwise = Map | Reduce | Fill
# Vectors of a row that are unrolled; longer rows are walked block by block.
_UNROLL = 16
# Vectors that are computed side by side.
_TOGETHER = 4

Partials = dict[int, "Partial"]


@dataclass(frozen=True)
class Group:
    """Statements over the same axes: loops over `outer`, vectors along `vector`. `folded` is an outer axis that is reduced."""

    outer: tuple[str, ...]
    vector: str | None
    body: tuple[Pointwise, ...]
    folded: str | None = None


def expression(s: Pointwise) -> Expr:
    return s.value if isinstance(s, Fill) else s.expr


def nest_of(s: Pointwise, scope: Scope, tiles: dict[str, Tile]) -> Group:
    """The loop nest of one statement."""
    vector = scope.plan.of(s.tile).vector
    if not isinstance(s, Reduce):
        return Group(tuple(a for a in s.tile.axes if a != vector), vector, (s,))
    along = {scope.plan.of(tiles[n]).vector for n in reads(s) if n in tiles and s.axis in tiles[n].axes}
    if not along or s.axis in along or vector is None:
        return Group(s.tile.axes, s.axis, (s,))
    return Group(tuple(a for a in s.tile.axes if a != vector), vector, (s,), s.axis)


def groups(run: list[Pointwise], scope: Scope, tiles: dict[str, Tile]) -> list[Group]:
    """The run in fused groups. A statement may move before others that it does not depend on, to join its like."""
    copies = scope.plan.copies

    def place(name: str) -> str | int:
        """Where a tile is: tiles may share a place."""
        return copies[name][0].offset if name in copies else name

    def depends(later: Pointwise, earlier: Pointwise) -> bool:
        mine, theirs = place(later.tile.name), place(earlier.tile.name)
        return mine == theirs or theirs in map(place, reads(later)) or mine in map(place, reads(earlier))

    nests = {id(s): nest_of(s, scope, tiles) for s in run}
    waiting = list(run)
    made: list[Group] = []
    while waiting:
        first = nests[id(waiting[0])]
        chosen: list[Pointwise] = []
        reduced: set[str] = set()
        blocked: list[Pointwise] = []
        for s in waiting:
            nest = nests[id(s)]
            alike = (nest.outer, nest.vector, nest.folded) == (first.outer, first.vector, first.folded)
            joins = alike and not any(depends(s, b) for b in blocked) and not (reads(s) | {s.tile.name}) & reduced
            if chosen and first.folded is not None:
                joins = False
            if joins:
                chosen.append(s)
                if isinstance(s, Reduce):
                    reduced.add(s.tile.name)
            else:
                blocked.append(s)
        made.append(Group(first.outer, first.vector, tuple(chosen), first.folded))
        waiting = blocked
    return made


def read_elsewhere(tile: Tile, group: Group, scope: Scope) -> bool:
    """Whether anything outside the group reads the tile, so that it must be stored."""
    inside = {id(s) for s in group.body}
    if any(id(s) not in inside and tile.name in reads(s) for s in statements(scope.kernel.body)):
        return True
    # Read before (or while) it is first written here: the value comes from the last iteration of a loop.
    for s in group.body:
        if tile.name in reads(s):
            return True
        if s.tile.name == tile.name:
            return False
    return True


def identity(op: str, dtype: DType) -> float | int:
    """The neutral value of a reduction."""
    return MONOIDS[op].identity(dtype)


def emit_group(group: Group, scope: Scope, tiles: dict[str, Tile], layout_of: Layout | None = None) -> None:
    """The loop nest of a group. `layout_of` replaces the layout of the (only) tile that is written."""
    if group.folded is not None:
        _Walk(group, scope, tiles, layout_of).outer(tuple(a for a in group.outer), {}, vertical=True)
    else:
        _Walk(group, scope, tiles, layout_of).outer(group.outer, {}, vertical=False)


class AxisLoops:
    """Context manager: one loop, or two when the axis is longer than a chunk."""

    def __init__(self, scope: Scope, axis: str) -> None:
        self.scope, self.axis = scope, axis

    def __enter__(self) -> Index:
        fn, view = self.scope.fn, self.scope.views[self.axis]
        chunk = self.scope.plan.shapes[self.axis].chunk
        if view.length <= chunk:
            self.loops = [fn.loop(0, view.valid)]
            return Index(0, self.loops[0].__enter__())
        outer = fn.loop(0, fn.ceil_div(view.valid, chunk))
        block = outer.__enter__()
        if isinstance(view.valid, int) and view.valid % chunk == 0:
            count: I64 = chunk
        else:
            count = fn.minimum(chunk, fn.sub(view.valid, fn.mul(block, chunk)))
        within = fn.loop(0, count)
        lane = within.__enter__()
        self.loops = [within, outer]
        return Index(block, lane)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        for loop in self.loops:
            loop.__exit__(kind, error, trace)  # type: ignore[arg-type]


class _Walk:
    """The emission of one group."""

    def __init__(self, group: Group, scope: Scope, tiles: dict[str, Tile], layout_of: Layout | None) -> None:
        self.group, self.scope, self.tiles, self.layout_of = group, scope, tiles, layout_of
        self.fn = scope.fn
        # Reductions that leave a vector per row, to be folded for all rows at once: statement number -> (stack slots, type).
        self.rows: dict[int, tuple[str, str]] = {}
        self.stored = {s.tile.name for s in group.body if layout_of is not None or read_elsewhere(s.tile, group, scope)}

    def outer(self, axes: tuple[str, ...], where: dict[str, Index], vertical: bool) -> None:
        if len(axes) == 1 and not vertical and self._folds_together(axes[0]):
            self._start_rows(axes[0])
            with AxisLoops(self.scope, axes[0]) as at:
                self.row({**where, axes[0]: at})
            self._finish_rows(axes[0], where)
            self.rows.clear()
        elif axes:
            with AxisLoops(self.scope, axes[0]) as at:
                self.outer(axes[1:], {**where, axes[0]: at}, vertical)
        elif vertical:
            self.vertical(where)
        else:
            self.row(where)

    # ---------------------------------------------------------------- one row of vectors

    def slots(self) -> tuple[int, int]:
        """(blocks, vectors per block) of the vector axis."""
        shape = self.scope.plan.shapes[self.group.vector or ""]
        length = self.scope.views[self.group.vector or ""].length
        return -(-length // shape.chunk), shape.lanes // self.scope.target.lanes

    def row(self, where: dict[str, Index]) -> None:
        partial: Partials = {}
        if self.group.vector is None:
            self.step(where, [Slot(0, 0)], None, partial)
            self.finish(where, partial)
            return
        blocks, words = self.slots()
        if blocks * words <= _UNROLL:
            self.step(where, [Slot(b, w) for b in range(blocks) for w in range(words)], self.group.vector, partial)
            self.finish(where, partial)
            return
        # Long rows: vectors of one block at a time, partial results in stack slots.
        kinds: dict[int, tuple[str, str]] = {}
        at = LaneAccess(self.scope, where, self.group.vector, Slot(0, 0), self.tiles).evaluator()
        for i, s in enumerate(self.group.body):
            if isinstance(s, Reduce):
                kind = at.type(reduced_dtype(s), True)
                kinds[i] = (self.fn.alloca(kind), kind)
                start = at.literal(identity(s.op, reduced_dtype(s)), reduced_dtype(s), True)
                self.fn.do(f"store {kind} {start}, ptr {kinds[i][0]}")
        valid = self.scope.views[self.group.vector].valid
        with self.fn.loop(0, self.fn.ceil_div(valid, self.scope.plan.shapes[self.group.vector].chunk)) as block:
            inside: Partials = {}
            self.step(where, [Slot(block, w) for w in range(words)], self.group.vector, inside)
            for i, parts in inside.items():
                s = self.group.body[i]
                assert isinstance(s, Reduce)
                slot, kind = kinds[i]
                total = self.fn.op(f"load {kind}, ptr {slot}")
                total = combined(at, _combine(s.op), reduced_dtype(s), total, parts.vector(at), True)
                self.fn.do(f"store {kind} {total}, ptr {slot}")
        for i, (slot, kind) in kinds.items():
            s = self.group.body[i]
            assert isinstance(s, Reduce)
            partial[i] = Partial(s.op, reduced_dtype(s))
            partial[i].add(at, [self.fn.op(f"load {kind}, ptr {slot}")])
        self.finish(where, partial)

    def step(self, where: dict[str, Index], slots: list[Slot], axis: str | None, partial: Partials) -> None:
        """All statements of the group for some vectors of a row; the vectors to reduce are left in `partial`."""
        accesses = [LaneAccess(self.scope, where, axis, slot, self.tiles) for slot in slots]
        together = next(k for k in (_TOGETHER, 2, 1) if len(accesses) % k == 0)
        bundles = [LaneGroup(accesses[k : k + together]) for k in range(0, len(accesses), together)]
        uniform: list[dict[Expr, Value]] = [{} for _ in self.group.body]
        for number, bundle in enumerate(bundles):
            if number:
                self.fn.barrier()
            for i, s in enumerate(self.group.body):
                at = bundle.evaluator()
                at.memo.update(uniform[i])
                if isinstance(s, Reduce):
                    dtype = reduced_dtype(s)
                    value = at.convert(at.value(s.expr), dtype)
                    if axis is not None:
                        value = self._existing(at, bundle, at.widen(value), s)
                    texts = [v.text for v in bundle.split(value)]
                    partial.setdefault(i, Partial(s.op, dtype)).add(bundle.parts[0].evaluator(), texts, axis is not None)
                else:
                    value = at.convert(at.value(expression(s)), s.tile.dtype, expression(s))
                    if axis is not None and axis in s.tile.axes:
                        value = at.widen(value)
                    for point, part in zip(bundle.parts, bundle.split(value), strict=True):
                        self._write(s.tile, part, point)
                uniform[i] = {e: v for e, v in at.memo.items() if not v.vector}

    def _existing(self, at: Evaluator, bundle: LaneGroup, v: Value, s: Reduce) -> Value:
        mask = bundle.mask()
        if mask is None:
            return v
        kind = at.type(v.dtype, True)
        neutral = at.literal(identity(s.op, v.dtype), v.dtype, True)
        text = self.fn.op(f"select <{at.lanes} x i1> {mask}, {kind} {v.text}, {kind} {neutral}")
        return Value(text, v.dtype, True)

    def _write(self, tile: Tile, value: Value, point: LaneAccess) -> None:
        if self.layout_of is None:
            point.cache[tile.name] = value
        if tile.name in self.stored:
            write(self.scope, self.layout_of or self.scope.plan.of(tile), point, value)

    # ---------------------------------------------------------------- reductions

    def finish(self, where: dict[str, Index], partial: Partials) -> None:
        """Fold the vectors of each Reduce into a number and store it."""
        for i, parts in partial.items():
            s = self.group.body[i]
            assert isinstance(s, Reduce)
            point = LaneAccess(self.scope, where, None, Slot(0, 0), self.tiles)
            at = point.evaluator()
            dtype = reduced_dtype(s)
            if i in self.rows:
                slots, kind = self.rows[i]
                (axis,) = self.group.outer[-1:]
                self.fn.do(f"store {kind} {parts.vector(at)}, ptr {self.fn.pointer(slots, where[axis].lane, kind)}")
                continue
            total = parts.number(at, self.group.vector is not None)
            if s.accumulate:
                old = at.convert(point.tile(s.tile), dtype)
                total = combined(at, _combine(s.op), dtype, old.text, total, False)
            value = at.convert(Value(total, dtype), s.tile.dtype)
            write(self.scope, self.scope.plan.of(s.tile), point, value)

    def _folds_together(self, axis: str) -> bool:
        """Whether the reductions of all rows of a block are folded at once: each lane of a vector becomes a row's result, without
        numbers that go through memory one by one."""
        length = self.scope.views[axis].length
        reductions = [s for s in self.group.body if isinstance(s, Reduce)]
        return (
            self.group.vector is not None
            and bool(reductions)
            and 1 < length <= self.scope.plan.shapes[axis].chunk
            and all(is_float(s.tile.dtype) and self.scope.plan.of(s.tile).vector == axis for s in reductions)
        )

    def _start_rows(self, axis: str) -> None:
        length = self.scope.views[axis].length
        for i, s in enumerate(self.group.body):
            if isinstance(s, Reduce):
                kind = self.scope.vector_type(reduced_dtype(s))
                self.rows[i] = (self.fn.alloca(f"[{length} x {kind}]"), kind)

    def _finish_rows(self, axis: str, where: dict[str, Index]) -> None:
        """The vectors of all rows folded into vectors of rows."""
        fn, lanes, length = self.fn, self.scope.target.lanes, self.scope.views[axis].length
        for i, (slots, kind) in self.rows.items():
            s = self.group.body[i]
            assert isinstance(s, Reduce)
            dtype = reduced_dtype(s)
            for word in range(-(-length // lanes)):
                point = LaneAccess(self.scope, where, axis, Slot(0, word), self.tiles)
                at = point.evaluator()
                numbers = range(word * lanes, min(length, (word + 1) * lanes))
                text = folded_rows(at, s.op, dtype, [fn.op(f"load {kind}, ptr {fn.pointer(slots, n, kind)}") for n in numbers])
                if s.accumulate:
                    old = at.widen(at.convert(point.tile(s.tile), dtype))
                    text = combined(at, _combine(s.op), dtype, old.text, text, True)
                write(self.scope, self.scope.plan.of(s.tile), point, at.convert(Value(text, dtype, True), s.tile.dtype))

    def vertical(self, where: dict[str, Index]) -> None:
        """A Reduce over an axis that is not the vector axis: vectors of partial results, the reduced axis innermost."""
        (s,) = self.group.body
        assert isinstance(s, Reduce) and self.group.folded is not None and self.group.vector is not None
        fn, vector, dtype = self.fn, self.group.vector, reduced_dtype(s)
        _, words = self.slots()
        view = self.scope.views[vector]
        with fn.loop(0, fn.ceil_div(view.valid, self.scope.plan.shapes[vector].chunk)) as block:
            at = LaneAccess(self.scope, where, vector, Slot(block, 0), self.tiles).evaluator()
            kind = at.type(dtype, True)
            totals = [fn.alloca(kind) for _ in range(words)]
            for total in totals:
                fn.do(f"store {kind} {at.literal(identity(s.op, dtype), dtype, True)}, ptr {total}")
            with AxisLoops(self.scope, self.group.folded) as index_:
                for word, total in enumerate(totals):
                    point = LaneAccess(self.scope, {**where, self.group.folded: index_}, vector, Slot(block, word), self.tiles)
                    at = point.evaluator()
                    value = at.widen(at.convert(at.value(s.expr), dtype))
                    old = fn.op(f"load {kind}, ptr {total}")
                    fn.do(f"store {kind} {combined(at, _combine(s.op), dtype, old, value.text, True)}, ptr {total}")
            for word, total in enumerate(totals):
                point = LaneAccess(self.scope, where, vector, Slot(block, word), self.tiles)
                at = point.evaluator()
                text = fn.op(f"load {kind}, ptr {total}")
                if s.accumulate:
                    old = at.widen(at.convert(point.tile(s.tile), dtype))
                    text = combined(at, _combine(s.op), dtype, old.text, text, True)
                write(self.scope, self.scope.plan.of(s.tile), point, at.convert(Value(text, dtype, True), s.tile.dtype))


def reduced_dtype(s: Reduce) -> DType:
    """The type in which a Reduce works: that of its tile, halves as f32."""
    return held_dtype(s.tile.dtype)


def _combine(op: str) -> str:
    return "add" if op == "sum" else op


@dataclass
class Partial:
    """What is left to fold of a reduction: one vector, and for maxima the lanes in which a NaN was seen, which the hardware's
    maximum may lose."""

    op: str
    dtype: DType
    total: str | None = None
    nan: str | None = None

    def add(self, at: Evaluator, parts: list[str], vector: bool = True) -> None:
        """Join vectors (or numbers), pairwise first."""
        how, m = _combine(self.op), at.maths(self.dtype, vector)
        if how in ("max", "min") and is_float(self.dtype):
            # Two vectors at a time.
            pairs = zip(parts[::2], [*parts[1::2], *parts[-1:]][: len(parts[::2])], strict=True)
            tests = [m.compare("uno", a, b) for a, b in pairs] + ([self.nan] if self.nan else [])
            self.nan = _pairwise(tests, lambda a, b: at.fn.op(f"or {m.bools} {a}, {b}"))
        if self.total is not None:
            parts = [_pairwise(parts, lambda a, b: _fast(at, how, self.dtype, a, b, vector)), self.total]
        self.total = _pairwise(parts, lambda a, b: _fast(at, how, self.dtype, a, b, vector))

    def vector(self, at: Evaluator) -> str:
        """The vector, with NaN where one was seen."""
        assert self.total is not None
        if self.nan is None:
            return self.total
        m = at.maths(self.dtype, True)
        return m.select(self.nan, m.splat(math.nan), self.total)

    def number(self, at: Evaluator, vector: bool) -> str:
        """One number: the lanes folded. NaN wins in max and min."""
        assert self.total is not None
        return fold(at, self.op, self.dtype, self.vector(at)) if vector else self.total


def _pairwise(parts: list[str], join: Callable[[str, str], str]) -> str:
    while len(parts) > 1:
        paired = [join(a, b) for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = paired + parts[len(paired) * 2 :]
    return parts[0]


def folded_rows(at: Evaluator, op: str, dtype: DType, rows: list[str]) -> str:
    """A vector whose lane r is the fold of the r-th vector's lanes, by exchanging halves as a transpose does.

    [a0 a1 a2 a3], [b0 b1 b2 b3]  ->  [a0 b0 a1 b1] + [a2 b2 a3 b3]  ->  …
    """
    fn, lanes, how = at.fn, at.lanes, _combine(op)
    kind = at.type(dtype, True)

    def exchanged(a: str, b: str, low: list[int], high: list[int]) -> str:
        texts = [
            fn.op(f"shufflevector {kind} {a}, {kind} {b}, <{lanes} x i32> <{', '.join(f'i32 {x}' for x in mask)}>")
            for mask in (low, high)
        ]
        return combined(at, how, dtype, texts[0], texts[1], True)

    distance = 1
    while distance < lanes:
        low, high = _exchange(lanes, distance)
        pairs = [(rows[k], rows[k + 1] if k + 1 < len(rows) else rows[k]) for k in range(0, len(rows), 2)]
        rows = [exchanged(a, b, low, high) for a, b in pairs]
        distance *= 2
    return rows[0]


def _exchange(lanes: int, distance: int) -> tuple[list[int], list[int]]:
    """Shuffles of two vectors a, b whose sum has a's folded lanes where bit `distance` of the lane is 0, b's where it is 1.
    Within four lanes they are the processors' unpacking and half-exchanging ones, which need no other lane."""
    if distance == 1:
        low = [base + lane for base in range(0, lanes, 4) for lane in (0, lanes, 1, lanes + 1)]
        return low, [x + 2 for x in low]
    if distance == 2:
        low = [base + lane for base in range(0, lanes, 4) for lane in (0, 1, lanes, lanes + 1)]
        return low, [x + 2 for x in low]
    low = [lanes + (lane ^ distance) if lane & distance else lane for lane in range(lanes)]
    high = [lanes + lane if lane & distance else lane ^ distance for lane in range(lanes)]
    return low, high


def fold(at: Evaluator, op: str, dtype: DType, total: str) -> str:
    """One number from a vector: across its lanes. NaN wins in max and min."""
    how = _combine(op)
    fn, lanes = at.fn, at.lanes
    nan: str | None = None
    if how in ("max", "min") and is_float(dtype):
        # The hardware's maximum may lose a NaN: look for one on the side.
        m = at.maths(dtype, True)
        bits = fn.op(f"bitcast {m.bools} {m.compare('uno', total, total)} to i{lanes}")
        nan = fn.op(f"icmp ne i{lanes} {bits}, 0")
    width = lanes
    kind = at.type(dtype, False)
    while width > 1:
        width //= 2
        low, high = (
            fn.op(
                f"shufflevector <{2 * width} x {kind}> {total}, <{2 * width} x {kind}> poison, "
                f"<{width} x i32> <{', '.join(f'i32 {i + k * width}' for i in range(width))}>"
            )
            for k in (0, 1)
        )
        total = _narrow(at, how, dtype, low, high, width)
    total = fn.op(f"extractelement <1 x {kind}> {total}, i64 0")
    if nan is not None:
        total = fn.op(f"select i1 {nan}, {kind} {at.literal(math.nan, dtype)}, {kind} {total}")
    return total


def _fast(at: Evaluator, how: str, dtype: DType, a: str, b: str, vector: bool) -> str:
    """As `combined`, with the hardware's max and min."""
    if how in ("max", "min") and is_float(dtype):
        m = at.maths(dtype, vector)
        return m.select(m.compare("ogt" if how == "max" else "olt", a, b), a, b)
    return combined(at, how, dtype, a, b, vector)


def _narrow(at: Evaluator, how: str, dtype: DType, a: str, b: str, width: int) -> str:
    """`how` of two vectors of `width` lanes."""
    fn, kind = at.fn, f"<{width} x {at.type(dtype, False)}>"
    if is_float(dtype):
        if how == "add":
            return fn.op(f"fadd {kind} {a}, {b}")
        test = fn.op(f"fcmp {'ogt' if how == 'max' else 'olt'} {kind} {a}, {b}")
        return fn.op(f"select <{width} x i1> {test}, {kind} {a}, {kind} {b}")
    if how in ("max", "min"):
        sign = "u" if dtype in ("bool", "u8") else "s"
        test = fn.op(f"icmp {sign}{'gt' if how == 'max' else 'lt'} {kind} {a}, {b}")
        return fn.op(f"select <{width} x i1> {test}, {kind} {a}, {kind} {b}")
    return fn.op(f"{'or' if dtype == 'bool' else 'add'} {kind} {a}, {b}")


def write(scope: Scope, layout: Layout, point: LaneAccess, value: Value) -> None:
    """Store a value (or vector of values) into a tile; on an axis that is not its vector axis, lane by lane."""
    fn, lanes, kind = scope.fn, scope.target.lanes, in_tile(layout.dtype)
    text = value.text
    if layout.dtype == "bool":
        wide = f"<{lanes} x " if value.vector else ""
        close = ">" if value.vector else ""
        text = fn.op(f"zext {wide}i1{close} {text} to {wide}i8{close}")
    if not value.vector:
        fn.do(f"store {kind} {text}, ptr {scope.address(layout, point.place(layout, 0))}")
    elif layout.vector == point.axis:
        pointer = scope.address(layout, point.place(layout, point.slot.word * lanes))
        fn.do(f"store <{lanes} x {kind}> {text}, ptr {pointer}, align {_bytes(kind) * lanes}")
    else:
        chunk = scope.plan.shapes[point.axis or ""].chunk
        for lane in range(min(lanes, chunk - point.slot.word * lanes)):
            one = fn.op(f"extractelement <{lanes} x {kind}> {text}, i64 {lane}")
            fn.do(f"store {kind} {one}, ptr {scope.address(layout, point.place(layout, point.slot.word * lanes + lane))}")


def _bytes(kind: str) -> int:
    return {"i8": 1, "i16": 2, "i32": 4, "float": 4, "i64": 8, "double": 8}[kind]


def as_reduce(s: Contract) -> list[Pointwise]:
    """A Contract as element-wise statements: a dot product, or one of integers."""
    made: list[Pointwise] = []
    if s.accumulate and s.rescale is not None:
        made.append(Map(s.tile, call("mul", var(s.tile.name, s.tile.dtype), var(s.rescale.name, s.rescale.dtype))))
    product = call("mul", var(s.a.name, s.a.dtype), var(s.b.name, s.b.dtype))
    made.append(Reduce(s.tile, "sum", s.over, product, s.accumulate))
    return made
