"""Contract: register tiles over packed operands, or over tensors as they lie.

    for blocks of y (two vectors), for blocks of x (6 rows): a micro-kernel

Only the number of steps of `over` may be a run-time value (in tiles that are not whole), so that lanes that do not exist are left
out rather than multiplied with zero.
"""

from __future__ import annotations

from dataclasses import dataclass

from aicf.backends.llvm.codegen.elementwise import AxisLoops
from aicf.backends.llvm.codegen.inplace import Run, run
from aicf.backends.llvm.codegen.lane_access import LaneAccess, Slot, Span
from aicf.backends.llvm.codegen.layout import Layout, roles
from aicf.backends.llvm.codegen.micro import InTensor, Micro, Panel, Start, micro_kernel, short_kernel
from aicf.backends.llvm.codegen.prefetch import prefetch
from aicf.backends.llvm.codegen.roles import Roles
from aicf.backends.llvm.codegen.scope import Index, Prefetch, Scope
from aicf.backends.llvm.codegen.text import I64, Function
from aicf.backends.llvm.codegen.values import in_tile, stored
from aicf.kernel import Contract, LoadTile, Tile

# Steps that one accumulator adds up: longer sums (wide heads) are added block by block, which rounds less. Of few columns, as are
# left over at the end, other libraries add up short parts too, and it takes little time.
LONGEST, LONGEST_OF_FEW = 128, 32
FEW = 2  # vectors of columns


@dataclass(frozen=True)
class Unpacked:
    """Operand b read in place from its tensor, not packed: the load that would pack it, and how memory runs."""

    load: LoadTile
    run: Run


def emit_contract(s: Contract, scope: Scope, tiles: dict[str, Tile]) -> None:
    """All register tiles of a Contract. Raises ValueError when its operands share no axis to sum over."""
    plan = scope.plan
    r = roles(s, plan)
    if r is None:
        raise ValueError(f"contract to {s.tile.name} has no axis of one operand alone; it is emitted as a reduction")
    b: Layout | Unpacked | None
    if r.b.name in plan.in_place:
        load = scope.loads[r.b.name]
        how = run(scope.kernel, load, r, s.over, {x: shape.chunk for x, shape in plan.shapes.items()}, scope.target.lanes)
        assert how is not None
        b = Unpacked(load, how)
    else:
        b = plan.copy(r.b, r.y) or _packed(s, r, scope)
    a, c = plan.of(r.a), plan.of(s.tile)
    kinds = (in_tile(a.dtype), in_tile(c.dtype), in_tile(b.dtype) if isinstance(b, Layout) else "float")
    _Product(s, r, a, b, c, "double" if "double" in kinds else "float", scope, tiles).emit(r.outer, {})


@dataclass(frozen=True)
class _Turn:
    """One of the `turns` of a product that reads a tensor, which share what is to be asked for."""

    number: I64
    turns: int
    prefetches: tuple[Prefetch, ...]

    def split(self, fn: Function, part: I64, parts: int) -> _Turn:
        """A part of this turn."""
        return _Turn(fn.add(fn.mul(self.number, parts), part), self.turns * parts, self.prefetches)

    def asked(self, fn: Function) -> tuple[int, int, str, I64]:
        """Its rows and lines, a pointer to them, and bytes from row to row."""
        if not self.prefetches:
            return 0, 0, "null", 0
        (whole,) = self.prefetches
        rows = -(-whole.rows // self.turns)
        first = fn.mul(fn.mul(self.number, rows), whole.row_bytes)
        return rows, whole.lines, fn.pointer(whole.pointer, first, "i8"), whole.row_bytes


@dataclass(frozen=True)
class _Product:
    """A Contract on its way to register tiles: operands where they are, the accumulators' type, and the place in the program."""

    s: Contract
    r: Roles
    a: Layout
    b: Layout | Unpacked
    c: Layout
    element: str
    scope: Scope
    tiles: dict[str, Tile]

    def emit(self, axes: tuple[str, ...], where: dict[str, Index]) -> None:
        """All of it; `axes` are the outer ones that are still to be walked."""
        s, scope = self.s, self.scope
        if axes:
            with AxisLoops(scope, axes[0]) as at:
                self.emit(axes[1:], {**where, axes[0]: at})
            return
        over = scope.views[s.over]
        chunk = scope.plan.shapes[s.over].chunk
        if self.a.linear(s.over) is not None and (isinstance(self.b, Unpacked) or self.b.linear(s.over) is not None):
            if not isinstance(over.valid, int):
                self._steps(where, Index(0, 0), over.valid, False)
                return
            self._in_parts(where, over.valid)
            return
        # The streamed axis is cut into blocks in one of the operands: sum block by block.
        self._steps(where, Index(0, 0), scope.fn.minimum(chunk, over.valid), False)
        with scope.fn.loop(1, scope.fn.ceil_div(over.valid, chunk)) as block:
            left = scope.fn.sub(over.valid, scope.fn.mul(block, chunk))
            self._steps(where, Index(block, 0), scope.fn.minimum(chunk, left), True)

    def _in_parts(self, where: dict[str, Index], length: int) -> None:
        """A sum of known length, added up in parts: shorter ones where few columns exist."""
        fn, view, few = self.scope.fn, self.scope.views[self.r.y], FEW * self.scope.target.lanes
        if isinstance(self.b, Unpacked) or (isinstance(view.valid, int) and view.length > few) or length <= LONGEST_OF_FEW:
            longest = LONGEST
        elif view.length <= few:
            longest = LONGEST_OF_FEW
        else:
            part = fn.op(f"select i1 {fn.compare('sle', view.valid, few)}, i64 {LONGEST_OF_FEW}, i64 {min(LONGEST, length)}")
            self._steps(where, Index(0, 0), part, False)
            with fn.loop(part, length, part) as first:
                self._steps(where, Index(0, first), fn.minimum(part, fn.sub(length, first)), True)
            return
        for first in range(0, length, longest):
            self._steps(where, Index(0, first), min(longest, length - first), first > 0)

    def _steps(self, where: dict[str, Index], first: Index, steps: I64, again: bool) -> None:
        """Register tiles for `steps` elements of the summed axis from `first` on; `again` adds to what the call before left."""
        s, r, scope, target = self.s, self.r, self.scope, self.scope.target
        start: Start = "old" if again or s.accumulate else "zero"
        if s.accumulate and s.rescale is not None and not again:
            start = "scaled"
        at = {**where, s.over: first}
        view, shape = scope.views[r.y], scope.plan.shapes[r.y]
        rows = 1 if r.x is None else min(target.rows, scope.views[r.x].length)
        prefetches = () if again or first != Index(0, 0) else scope.prefetches.get(id(s), ())
        if isinstance(self.b, Unpacked) and self.b.run == "along" and self.c.linear(r.y) == 1:
            # Row by row, each over as much of memory's rows as there are accumulators: so it is read in its own order.
            vectors = view.length // target.lanes
            wide = 1 << (target.registers - 4).bit_length() - 1
            places = range(0, vectors, wide)
            for k, word in enumerate(places):
                turn = _Turn(k, len(places), prefetches)
                self._rows(at, Index(0, word * target.lanes), start, steps, min(wide, vectors - word), turn, 1)
            return
        wide = 2 if self.element == "float" else 1
        few = r.x is not None and 2 < rows <= 4
        if few or view.length <= 2 * target.lanes or isinstance(self.b, Unpacked):
            wide = 1  # room for two partial sums per element: they round less, and few rows or columns take little time anyway
        words = shape.lanes // target.lanes
        blocks, places = -(-view.length // shape.chunk), range(0, words, wide)
        with scope.fn.loop(0, scope.fn.ceil_div(view.valid, shape.chunk)) as block:
            if isinstance(self.b, Layout):
                prefetch(scope.fn, prefetches, block, blocks)
            for k, word in enumerate(places):
                turn = _Turn(scope.fn.add(scope.fn.mul(block, len(places)), k), blocks * len(places), prefetches)
                self._rows(at, Index(block, word * target.lanes), start, steps, min(wide, words - word), turn)

    def _rows(
        self, at: dict[str, Index], at_y: Index, start: Start, steps: I64, vectors: int, turn: _Turn, most: int | None = None
    ) -> None:  # fmt: skip
        """The register tiles of all rows, at most `most` at a time, at one place of y, which is `turn` of several."""
        s, r, scope, fn, most = self.s, self.r, self.scope, self.scope.fn, most or self.scope.target.rows
        at = {**at, r.y: at_y}
        if r.x is None:
            self._call(at, start, steps, vectors, 1, turn)
            return
        view, shape = scope.views[r.x], scope.plan.shapes[r.x]
        blocked = any(t.linear(r.x) is None for t in (self.a, self.c) if r.x in t.stride)
        blocked = blocked or (s.rescale is not None and scope.plan.of(s.rescale).linear(r.x) is None)
        piece = min(shape.chunk, view.length) if blocked or r.x in self.c.local or view.base != 0 else view.length
        if view.length <= min(piece, most) and isinstance(view.valid, str):
            self._call({**at, r.x: Index(0, 0)}, start, steps, vectors, view.length, turn, view.valid)
            return
        # Rows that do not exist are computed too: they are there in the buffers, and nothing reads them.
        pieces = fn.ceil_div(view.valid, piece) if piece < view.length else 1
        with fn.loop(0, pieces) as number:
            block: I64 = number if piece < view.length else 0
            full, rest = divmod(piece, most)
            groups = (full + bool(rest)) * (view.length // piece)
            before = fn.mul(block, full + bool(rest))
            if full:
                with fn.loop(0, full) as group:
                    mine = turn.split(fn, fn.add(before, group), groups)
                    self._call({**at, r.x: Index(block, fn.mul(group, most))}, start, steps, vectors, most, mine)
            if rest:
                mine = turn.split(fn, fn.add(before, full), groups)
                self._call({**at, r.x: Index(block, full * most)}, start, steps, vectors, rest, mine)

    def _call(
        self, at: dict[str, Index], start: Start, steps: I64, vectors: int, rows: int, turn: _Turn, valid: str | None = None
    ) -> None:  # fmt: skip
        """One register tile. `valid` is the number of its rows that exist, when that is for the run to say."""
        s, r, fn = self.s, self.r, self.scope.fn

        def pointer(layout: Layout) -> str:
            return self.scope.address(layout, {axis: at[axis] for axis in layout.stride})

        def row(layout: Layout) -> int:
            return 0 if r.x is None or r.x not in layout.stride else layout.linear(r.x) or 1

        scale = self.scope.plan.of(s.rescale) if s.rescale is not None and start == "scaled" else None
        if isinstance(self.b, Layout):
            b, base, more = Panel(in_tile(self.b.dtype), self.b.linear(s.over) or 1), pointer(self.b), ""
        else:
            b, base, more = self._unpacked(self.b, at, turn)
        shape = Micro(
            rows, vectors, self.element, in_tile(self.a.dtype), b, in_tile(self.c.dtype), row(self.a), self.a.linear(s.over) or 1,
            row(self.c), row(scale) if scale is not None else 0, start,
            steps if isinstance(steps, int) and isinstance(self.b, Unpacked) else None,
        )  # fmt: skip
        made = micro_kernel if valid is None else short_kernel
        arguments = f"ptr {pointer(self.a)}, ptr {base}, ptr {pointer(self.c)}, ptr {'null' if scale is None else pointer(scale)}"
        last = "" if valid is None else f", i64 {valid}"
        fn.do(f"call fastcc void @{made(fn.module, shape)}({arguments}, i64 {steps}{more}{last})")

    def _unpacked(self, b: Unpacked, at: dict[str, Index], turn: _Turn) -> tuple[InTensor, str, str]:
        """Operand b in its tensor: how it is read, the address of its first element, and the arguments `IN_TENSOR`."""
        scope, fn = self.scope, self.scope.fn
        stepped, still = (self.s.over, self.r.y) if b.run == "along" else (self.r.y, self.s.over)
        block, lane = at[stepped]
        word = lane // scope.target.lanes if isinstance(lane, int) and b.run == "across" else 0
        point = LaneAccess(scope, {still: at[still]}, stepped, Slot(block, word), self.tiles)
        tensor = scope.tensors[b.load.tensor]
        span = point.span(tensor, b.load.at, point.evaluator())
        assert isinstance(span, Span)
        first = fn.add(span.offset, fn.mul(span.step, lane)) if b.run == "along" else span.offset
        whole = b.run == "along" or point.full()
        exist: I64 = scope.target.lanes if whole else point.existing()
        rows, lines, wanted, step = turn.asked(fn)
        how = InTensor(tensor.dtype, b.run, rows, lines, whole)
        more = f", i64 {span.step}, i64 {exist}, ptr {wanted}, i64 {step}"
        return how, fn.pointer(tensor.base, first, stored(tensor.dtype)), more


def _packed(s: Contract, r: Roles, scope: Scope) -> Layout:
    """Operand b repacked so that the result's vector axis is its own: into a buffer of the plan kept for that."""
    layout = scope.plan.repacked[(r.b.name, r.y)]
    source = scope.plan.of(r.b)
    kind = in_tile(source.dtype)

    def copy(axes: tuple[str, ...], where: dict[str, Index]) -> None:
        if axes:
            with AxisLoops(scope, axes[0]) as at:
                copy(axes[1:], {**where, axes[0]: at})
            return
        one = scope.fn.op(f"load {kind}, ptr {scope.address(source, where)}")
        scope.fn.do(f"store {kind} {one}, ptr {scope.address(layout, where)}")

    copy(r.b.axes, {})
    return layout
