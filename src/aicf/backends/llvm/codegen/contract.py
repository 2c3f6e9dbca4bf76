"""Contract: register-tile micro-kernels over packed operands.

    for blocks of y (two vectors), for blocks of x (6 rows):
      c[6][2] = 0 | old | old * rescale          12 accumulators
      for k: b0, b1 = B[k]; for r: c[r][*] += A[r, k] * b*
      C = c

A micro-kernel is an internal function, made once per shape and shared by all places of the program that need it. All strides are
immediates; only the number of steps of `over` may be a run-time value (in tiles that are not whole), so that lanes that do not
exist are left out rather than multiplied with zero.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from aicf.backends.llvm.codegen.elementwise import AxisLoops
from aicf.backends.llvm.codegen.layout import Layout, Roles, roles
from aicf.backends.llvm.codegen.mathlib import Maths
from aicf.backends.llvm.codegen.scope import Index, Scope
from aicf.backends.llvm.codegen.text import I64, Function, Module
from aicf.backends.llvm.codegen.values import in_tile
from aicf.kernel import Contract

Start = Literal["zero", "old", "scaled"]
LONGEST = 128  # steps that one accumulator adds up: longer sums (wide heads) are added block by block, which rounds less


@dataclass(frozen=True)
class Micro:
    """The shape of a micro-kernel: rows, vectors, element types, strides in elements, how the accumulators start, and the number
    of steps when it is known."""

    rows: int
    vectors: int
    element: str
    a_kind: str
    b_kind: str
    c_kind: str
    a_row: int
    a_step: int
    b_step: int
    c_row: int
    scale_row: int
    start: Start
    steps: int | None


def emit_contract(s: Contract, scope: Scope) -> None:
    """All register tiles of a Contract. Raises ValueError when its operands share no axis to sum over."""
    r = roles(s, scope.plan)
    if r is None:
        raise ValueError(f"contract to {s.tile.name} has no axis of one operand alone; it is emitted as a reduction")
    b = scope.plan.copy(r.b, r.y)
    if b is None:
        b = _packed(s, r, scope)
    _outer(s, r, b, scope, r.outer, {})


def _outer(s: Contract, r: Roles, b: Layout, scope: Scope, axes: tuple[str, ...], where: dict[str, Index]) -> None:
    if axes:
        with AxisLoops(scope, axes[0]) as at:
            _outer(s, r, b, scope, axes[1:], {**where, axes[0]: at})
        return
    a = scope.plan.of(r.a)
    over = scope.views[s.over]
    chunk = scope.plan.shapes[s.over].chunk
    if a.linear(s.over) is not None and b.linear(s.over) is not None:
        if not isinstance(over.valid, int):
            _steps(s, r, a, b, scope, where, Index(0, 0), over.valid, False)
            return
        for first in range(0, over.valid, LONGEST):
            _steps(s, r, a, b, scope, where, Index(0, first), min(LONGEST, over.valid - first), first > 0)
        return
    # The streamed axis is cut into blocks in one of the operands: sum block by block.
    _steps(s, r, a, b, scope, where, Index(0, 0), scope.fn.minimum(chunk, over.valid), False)
    with scope.fn.loop(1, scope.fn.ceil_div(over.valid, chunk)) as block:
        left = scope.fn.sub(over.valid, scope.fn.mul(block, chunk))
        _steps(s, r, a, b, scope, where, Index(block, 0), scope.fn.minimum(chunk, left), True)


def _steps(
    s: Contract, r: Roles, a: Layout, b: Layout, scope: Scope, where: dict[str, Index], first: Index, steps: I64, again: bool
) -> None:
    """Register tiles for `steps` elements of the summed axis from `first` on; `again` adds to what the call before left."""
    fn, target = scope.fn, scope.target
    c = scope.plan.of(s.tile)
    element = "double" if "double" in (in_tile(a.dtype), in_tile(b.dtype), in_tile(c.dtype)) else "float"
    start: Start = "old" if again or s.accumulate else "zero"
    if s.accumulate and s.rescale is not None and not again:
        start = "scaled"
    y_view, y_shape = scope.views[r.y], scope.plan.shapes[r.y]
    wide = 2 if element == "float" else 1
    few = r.x is not None and 2 < scope.views[r.x].length <= 4
    if few or y_view.length <= 2 * target.lanes:
        wide = 1  # room for two partial sums per element: they round less, and few rows or columns take little time anyway
    words = y_shape.lanes // target.lanes
    with fn.loop(0, fn.ceil_div(y_view.valid, y_shape.chunk)) as block:
        for word in range(0, words, wide):
            vectors = min(wide, words - word)
            at_y = Index(block, word * target.lanes)
            _rows(s, r, a, b, c, scope, where, first, steps, start, element, vectors, target.rows, at_y)


def _rows(
    s: Contract, r: Roles, a: Layout, b: Layout, c: Layout, scope: Scope, where: dict[str, Index], first: Index, steps: I64,
    start: Start, element: str, vectors: int, most: int, at_y: Index,
) -> None:  # fmt: skip
    fn = scope.fn
    if r.x is None:
        _call(s, r, a, b, c, scope, where, first, steps, start, element, vectors, 1, None, at_y)
        return
    view, shape = scope.views[r.x], scope.plan.shapes[r.x]
    blocked = any(t.linear(r.x) is None for t in (a, c) if r.x in t.stride)
    blocked = blocked or (s.rescale is not None and scope.plan.of(s.rescale).linear(r.x) is None)
    piece = min(shape.chunk, view.length) if blocked or r.x in c.local or view.base != 0 else view.length
    if view.length <= min(piece, most) and isinstance(view.valid, str):
        _call(s, r, a, b, c, scope, where, first, steps, start, element, vectors, view.length, Index(0, 0), at_y, view.valid)
        return
    # Rows that do not exist are computed too: they are there in the buffers, and nothing reads them.
    pieces = fn.ceil_div(view.valid, piece) if piece < view.length else 1
    with fn.loop(0, pieces) as number:
        block: I64 = number if piece < view.length else 0
        full, rest = divmod(piece, most)
        with fn.loop(0, full) as group:
            lane = fn.mul(group, most)
            _call(s, r, a, b, c, scope, where, first, steps, start, element, vectors, most, Index(block, lane), at_y)
        if rest:
            _call(s, r, a, b, c, scope, where, first, steps, start, element, vectors, rest, Index(block, full * most), at_y)


def _call(
    s: Contract, r: Roles, a: Layout, b: Layout, c: Layout, scope: Scope, where: dict[str, Index], first: Index, steps: I64,
    start: Start, element: str, vectors: int, rows: int, at_x: Index | None, at_y: Index,
    valid: str | None = None,
) -> None:  # fmt: skip
    """One register tile. `valid` is the number of its rows that exist, when that is for the run to say."""
    fn = scope.fn
    place = {**where, s.over: first, r.y: at_y}
    if r.x is not None and at_x is not None:
        place[r.x] = at_x

    def pointer(layout: Layout) -> str:
        return scope.address(layout, {axis: place[axis] for axis in layout.stride})

    def row(layout: Layout) -> int:
        if r.x is None or r.x not in layout.stride:
            return 0
        return layout.linear(r.x) or 1

    scale = scope.plan.of(s.rescale) if s.rescale is not None and start == "scaled" else None
    shape = Micro(
        rows, vectors, element, in_tile(a.dtype), in_tile(b.dtype), in_tile(c.dtype), row(a), _step(a, s.over), _step(b, s.over),
        row(c), row(scale) if scale is not None else 0, start, steps if isinstance(steps, int) else None,
    )  # fmt: skip
    scale_pointer = pointer(scale) if scale is not None else "null"
    arguments = f"ptr {pointer(a)}, ptr {pointer(b)}, ptr {pointer(c)}, ptr {scale_pointer}, i64 {steps}"
    if valid is None:
        fn.do(f"call fastcc void @{micro_kernel(fn.module, shape)}({arguments})")
    else:
        fn.do(f"call fastcc void @{short_kernel(fn.module, shape)}({arguments}, i64 {valid})")


def _step(layout: Layout, over: str) -> int:
    return layout.linear(over) or 1


def short_kernel(module: Module, m: Micro) -> str:
    """The function of a shape that computes as many rows as exist, rounded up to 1, 2, 4 … or all: a tile's last block may be
    short."""
    key = ("short", m)
    if key in module.made:
        return module.made[key]
    name = f"rows_{m.rows}x{m.vectors}_{m.start}_{len(module.made)}"
    module.made[key] = name
    arguments = "ptr %a, ptr %b, ptr %c, ptr %s, i64 %n"
    fn = Function(module, name, arguments + ", i64 %rows", internal=True, inline=False, group=1)
    fn.head = fn.head.replace("define internal void", "define internal fastcc void")
    for rows in reversed([m.rows, *(n for n in (8, 4, 2, 1) if n < m.rows)]):
        fits, more = fn.new_label("fits"), fn.new_label("more")
        if rows == m.rows:
            fn.jump(fits)
        else:
            fn.do(f"br i1 {fn.compare('sle', '%rows', rows)}, label %{fits}, label %{more}")
        fn.label(fits)
        fn.do(f"tail call fastcc void @{micro_kernel(module, replace(m, rows=rows))}({arguments})")
        fn.do("ret void")
        if rows != m.rows:
            fn.label(more)
    return name


def micro_kernel(module: Module, m: Micro) -> str:
    """The internal function of a shape: (A, B, C, scale, steps)."""
    key = ("micro", m)
    if key in module.made:
        return module.made[key]
    name = f"micro_{m.rows}x{m.vectors}_{m.start}_{len(module.made)}"
    module.made[key] = name
    fn = Function(
        module, name, "ptr noalias %a, ptr noalias %b, ptr noalias %c, ptr noalias %s, i64 %n",
        internal=True, inline=False, group=1,
    )  # fmt: skip
    fn.head = fn.head.replace("define internal void", "define internal fastcc void")
    lanes = module.width
    maths = Maths(fn, lanes, m.element)
    wide = maths.type
    tiles = [(r, v) for r in range(m.rows) for v in range(m.vectors)]

    def c_pointer(r: int, v: int) -> str:
        return fn.pointer("%c", r * m.c_row + v * lanes, m.c_kind)

    def step(accumulators: list[str], a: str, b: str, k: int) -> list[str]:
        columns = []
        for v in range(m.vectors):
            text = fn.op(f"load <{lanes} x {m.b_kind}>, ptr {fn.pointer(b, k * m.b_step + v * lanes, m.b_kind)}")
            columns.append(_widened(fn, text, f"<{lanes} x {m.b_kind}>", wide))
        out = []
        for r in range(m.rows):
            x = _broadcast(fn, fn.pointer(a, k * m.a_step + r * m.a_row, m.a_kind), m.a_kind, m.element, lanes)
            out += [maths.fma(x, columns[v], accumulators[r * m.vectors + v]) for v in range(m.vectors)]
        return out

    def loop(accumulators: list[str], count: I64, a: str, b: str, unroll: int) -> tuple[list[str], str, str]:
        """`count` rounds of `unroll` steps each."""
        if count == 0:
            return accumulators, a, b
        head, body, done = fn.new_label("loop"), fn.new_label("body"), fn.new_label("done")
        before = fn.block
        fn.jump(head)
        fn.label(head)
        phis = [(fn.name_of("c"), wide, x) for x in accumulators] + [(fn.name_of("p"), "ptr", x) for x in (a, b)]
        iv = fn.name_of("i")
        at = len(fn.lines)
        fn.lines += [""] * (len(phis) + 1)
        inside = fn.compare("slt", iv, count)
        fn.do(f"br i1 {inside}, label %{body}, label %{done}")
        fn.label(body)
        current = [p[0] for p in phis[:-2]]
        for k in range(unroll):
            part = slice(k % chains * len(tiles), (k % chains + 1) * len(tiles))
            current[part] = step(current[part], phis[-2][0], phis[-1][0], k)
        following = [
            *current,
            fn.pointer(phis[-2][0], unroll * m.a_step, m.a_kind),
            fn.pointer(phis[-1][0], unroll * m.b_step, m.b_kind),
        ]
        advanced = fn.op(f"add nsw i64 {iv}, 1")
        fn.jump(head)
        for i, ((phi, kind, initial), next_) in enumerate(zip(phis, following, strict=True)):
            fn.lines[at + i] = f"  {phi} = phi {kind} [ {initial}, %{before} ], [ {next_}, %{fn.block} ]"
        fn.lines[at + len(phis)] = f"  {iv} = phi i64 [ 0, %{before} ], [ {advanced}, %{fn.block} ]"
        fn.label(done)
        return [p[0] for p in phis[:-2]], phis[-2][0], phis[-1][0]

    unroll = 4
    # Few rows leave registers free: several partial sums hide the latency of the multiply-adds, and round less.
    chains = next(n for n in (4, 2, 1) if n * len(tiles) <= max(12, module.registers - 8) or n == 1)
    zeros = ["zeroinitializer"] * (len(tiles) * chains)
    if m.start != "zero":
        # The old values are wanted at the end, when they have had the time of all the products to come from a farther cache.
        for r in range(m.rows):
            fn.prefetch(c_pointer(r, 0), nearness=3, write=True)
    if m.steps is None:
        rounds: I64 = fn.op(f"lshr i64 %n, {unroll.bit_length() - 1}")
        rest: I64 = fn.op(f"and i64 %n, {unroll - 1}")
    else:
        rounds, rest = divmod(m.steps, unroll)
    accumulators, a, b = loop(zeros, rounds, "%a", "%b", unroll)
    while chains > 1:
        chains //= 2
        half = len(accumulators) // 2
        accumulators = [maths.add(x, y) for x, y in zip(accumulators[:half], accumulators[half:], strict=True)]
    accumulators, a, b = loop(accumulators, rest, a, b, 1)
    # The old value joins at the end: a tile's sum rounds relative to itself, not to all that was summed before it.
    scales: dict[int, str] = {}
    for (r, v), text in zip(tiles, accumulators, strict=True):
        if m.start != "zero":
            old = _widened(fn, fn.op(f"load <{lanes} x {m.c_kind}>, ptr {c_pointer(r, v)}"), f"<{lanes} x {m.c_kind}>", wide)
            if m.start == "scaled":
                if r not in scales:
                    scales[r] = _broadcast(fn, fn.pointer("%s", r * m.scale_row, m.c_kind), m.c_kind, m.element, lanes)
                text = maths.fma(old, scales[r], text)
            else:
                text = maths.add(old, text)
        narrow = _narrowed(fn, text, wide, f"<{lanes} x {m.c_kind}>")
        fn.do(f"store <{lanes} x {m.c_kind}> {narrow}, ptr {c_pointer(r, v)}")
    fn.do("ret void")
    return name


def _broadcast(fn: Function, pointer: str, kind: str, element: str, lanes: int) -> str:
    one = _widened(fn, fn.op(f"load {kind}, ptr {pointer}"), kind, element)
    first = fn.op(f"insertelement <{lanes} x {element}> poison, {element} {one}, i64 0")
    return fn.op(f"shufflevector <{lanes} x {element}> {first}, <{lanes} x {element}> poison, <{lanes} x i32> zeroinitializer")


def _widened(fn: Function, text: str, old: str, new: str) -> str:
    """A tile's element (or vector) as the accumulators' type."""
    if old == new:
        return text
    return fn.op(f"{'fpext' if 'float' in old else 'sitofp'} {old} {text} to {new}")


def _narrowed(fn: Function, text: str, old: str, new: str) -> str:
    return text if old == new else fn.op(f"fptrunc {old} {text} to {new}")


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
