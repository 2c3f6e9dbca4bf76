"""Micro-kernels: internal functions that compute one register tile of a product.

    c[6][2] = 0 | old | old * rescale          12 accumulators
    for k: b0, b1 = B[k]; for r: c[r][*] += A[r, k] * b*
    C = c

One per shape, shared by all places of the program that need it. A and C are in the thread's buffer, so that their strides are
immediates. B is there too, as a panel, or in a tensor with the row stride that a run has: row after row when memory runs along
the vectors, else (`across`) rows are transposed in registers, a square of them at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from aicf.backends.llvm.codegen.inplace import Run
from aicf.backends.llvm.codegen.lane_access import LINE, vector_at
from aicf.backends.llvm.codegen.mathlib import Maths
from aicf.backends.llvm.codegen.shuffles import order_of_sums, summed, transposed
from aicf.backends.llvm.codegen.text import I64, Function, Module
from aicf.backends.llvm.codegen.values import stored
from aicf.scalar import DType

Start = Literal["zero", "old", "scaled"]
ARGUMENTS = "ptr %a, ptr %b, ptr %c, ptr %s, i64 %n"
# Elements from row to row; rows that exist; the first row to be asked for, and bytes from one of those to the next.
IN_TENSOR = ", i64 %t, i64 %e, ptr %p, i64 %u"


@dataclass(frozen=True)
class Panel:
    """Operand B in the thread's buffer: element type, and elements from step to step."""

    kind: str
    step: int


@dataclass(frozen=True)
class InTensor:
    """Operand B in a tensor: element type, how memory runs, how many rows of how many lines are to be asked for meanwhile (in the
    order of memory, which caches recognise), and whether all rows that are transposed exist."""

    dtype: DType
    run: Run
    ask_rows: int
    ask_lines: int
    whole: bool


@dataclass(frozen=True)
class Micro:
    """The shape of a micro-kernel: rows, vectors, element types, strides in elements, how the accumulators start, and the number
    of steps where the code depends on it: from panels it is for the run to say, so that all products share a function."""

    rows: int
    vectors: int
    element: str
    a_kind: str
    b: Panel | InTensor
    c_kind: str
    a_row: int
    a_step: int
    c_row: int
    scale_row: int
    start: Start
    steps: int | None


def arguments_of(m: Micro) -> str:
    """The parameters of a shape's function."""
    return ARGUMENTS + (IN_TENSOR if isinstance(m.b, InTensor) else "")


def short_kernel(module: Module, m: Micro) -> str:
    """The function of a shape that computes half of the rows, or all: as many as exist, and a tile's last block may be short."""
    key = ("short", m)
    if key in module.made:
        return module.made[key]
    name = f"rows_{m.rows}x{m.vectors}_{m.start}_{len(module.made)}"
    module.made[key] = name
    arguments = arguments_of(m)
    fn = Function(module, name, arguments + ", i64 %rows", fast=True, inline=False, group=1)
    for rows in sorted({(m.rows + 1) // 2, m.rows}):
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


class _FromPanel:
    """Vectors of a packed panel."""

    unroll = 4
    registers = 0

    def __init__(self, fn: Function, m: Micro, b: Panel, wide: str) -> None:
        self.fn, self.m, self.b, self.wide = fn, m, b, wide

    def columns(self, b: str, k: int) -> list[str]:
        """The vectors of step `k` after pointer `b`."""
        fn, lanes, kind = self.fn, self.fn.module.width, self.b.kind
        made: list[str] = []
        for v in range(self.m.vectors):
            text = fn.op(f"load <{lanes} x {kind}>, ptr {fn.pointer(b, k * self.b.step + v * lanes, kind)}")
            made.append(_widened(fn, text, f"<{lanes} x {kind}>", self.wide))
        return made

    def after(self, b: str, steps: int) -> str:
        """The pointer `steps` steps on."""
        return self.fn.pointer(b, steps * self.b.step, self.b.kind)


class _Along:
    """Rows of a tensor, along which memory runs."""

    unroll = 4
    registers = 0

    def __init__(self, fn: Function, m: Micro, b: InTensor) -> None:
        self.fn, self.m, self.b, self.kind = fn, m, b, stored(b.dtype)
        self.rows = [fn.mul("%t", k) for k in range(self.unroll + 1)]
        _ask(fn, b, 0, b.ask_rows)

    def columns(self, b: str, k: int) -> list[str]:
        """The vectors of step `k` after pointer `b`."""
        fn, lanes = self.fn, self.fn.module.width
        row = fn.pointer(b, self.rows[k], self.kind)
        return [vector_at(fn, fn.pointer(row, v * lanes, self.kind), self.b.dtype, lanes) for v in range(self.m.vectors)]

    def after(self, b: str, steps: int) -> str:
        """The pointer `steps` steps on."""
        return self.fn.pointer(b, self.rows[steps], self.kind)


class _Across:
    """Rows of a tensor that are the lanes: a vector of each makes a square, whose transpose are the vectors of as many steps."""

    def __init__(self, fn: Function, m: Micro, b: InTensor) -> None:
        assert m.steps is not None and m.vectors == 1
        lanes = fn.module.width
        self.fn, self.b, self.kind = fn, b, stored(b.dtype)
        self.unroll = 2 * lanes if m.steps % (2 * lanes) == 0 else lanes
        self.registers = lanes // 2
        self.rows = _row_offsets(fn, b)
        _ask(fn, b, 0, b.ask_rows)
        self.square: list[str] = []

    def columns(self, b: str, k: int) -> list[str]:
        """The vector of step `k` after pointer `b`."""
        fn, lanes = self.fn, self.fn.module.width
        if k % lanes == 0:
            rows = [fn.pointer(fn.pointer(b, r, self.kind), k, self.kind) for r in self.rows]
            self.square = transposed(fn, [vector_at(fn, row, self.b.dtype, lanes) for row in rows])
        return [self.square[k % lanes]]

    def after(self, b: str, steps: int) -> str:
        """The pointer `steps` steps on."""
        return self.fn.pointer(b, steps, self.kind)


def _ask(fn: Function, b: InTensor, first: int, end: int) -> None:
    """Ask for some of the rows that are to be asked for."""
    for row in range(first, min(end, b.ask_rows)):
        start = fn.pointer("%p", fn.mul("%u", row), "i8")
        for line in range(b.ask_lines):
            fn.prefetch(fn.pointer(start, line * LINE, "i8"), nearness=3)


_FROM = {"along": _Along, "across": _Across}


def _row_offsets(fn: Function, b: InTensor) -> list[I64]:
    """Where the rows begin that are the lanes, in elements. Rows that do not exist repeat the last one, which may lie before the
    first."""
    last = fn.sub("%e", 1)
    return [fn.mul("%t", r if b.whole else fn.minimum(r, last)) for r in range(fn.module.width)]


def _dots(fn: Function, m: Micro, b: InTensor, maths: Maths) -> list[str]:
    """The sums of a register tile whose lanes are rows of a tensor, as dot products: vectors along both rows are multiplied, and
    what their lanes add up to becomes a lane of the result. As many rows of B at a time as there are accumulators, in the order
    of memory."""
    assert m.steps is not None and m.vectors == 1 and m.a_step == 1
    lanes, kind = fn.module.width, stored(b.dtype)
    order = order_of_sums(lanes)
    rows = [fn.pointer("%b", offset, kind) for offset in _row_offsets(fn, b)]
    together = 1 << max(1, min(lanes, 8) // m.rows).bit_length() - 1
    sums: list[list[str]] = [[""] * lanes for _ in range(m.rows)]
    each = -(-b.ask_rows * together // lanes)
    for turn, first in enumerate(range(0, lanes, together)):
        _ask(fn, b, turn * each, (turn + 1) * each)
        totals = _dot_loop(fn, m, b, maths, rows[first : first + together])
        for k, i in enumerate(order[first : first + together]):  # lane k of `summed` is vector number order[k]
            for r in range(m.rows):
                sums[r][i] = totals[r * together + k]
    return [summed(fn, row) for row in sums]


def _dot_loop(fn: Function, m: Micro, b: InTensor, maths: Maths, rows: list[str]) -> list[str]:
    """For each row of A and each of `rows` a vector whose lanes add up to their dot product."""
    assert m.steps is not None
    lanes, kind, wide = fn.module.width, stored(b.dtype), maths.type
    vectors = m.steps // lanes
    unroll = next(n for n in (4, 3, 2, 1) if vectors % n == 0)
    head, done = fn.new_label("dot"), fn.new_label("done")
    before = fn.block
    fn.jump(head)
    fn.label(head)
    phis = [fn.name_of("c") for _ in range(m.rows * len(rows))]
    iv, at = fn.name_of("i"), len(fn.lines)
    fn.lines += [""] * (len(phis) + 1)
    current = list(phis)
    for k in range(unroll):
        step = fn.add(iv, k * lanes)
        others = [vector_at(fn, fn.pointer(row, step, kind), b.dtype, lanes) for row in rows]
        for r in range(m.rows):
            a = fn.op(f"load {wide}, ptr {fn.pointer(fn.pointer('%a', r * m.a_row, m.a_kind), step, m.a_kind)}, align 4")
            for j, other in enumerate(others):
                current[r * len(rows) + j] = maths.fma(a, other, current[r * len(rows) + j])
    advanced = fn.op(f"add nsw i64 {iv}, {unroll * lanes}")
    fn.do(f"br i1 {fn.compare('slt', advanced, m.steps)}, label %{head}, label %{done}")
    for i, (phi, following) in enumerate(zip(phis, current, strict=True)):
        fn.lines[at + i] = f"  {phi} = phi {wide} [ zeroinitializer, %{before} ], [ {following}, %{head} ]"
    fn.lines[at + len(phis)] = f"  {iv} = phi i64 [ 0, %{before} ], [ {advanced}, %{head} ]"
    fn.label(done)
    return current


def _outer_products(fn: Function, m: Micro, maths: Maths) -> list[str]:
    """The sums of a register tile, step by step: a vector of B times every element of A's column."""
    lanes, wide = fn.module.width, maths.type
    tiles = m.rows * m.vectors
    source = _FromPanel(fn, m, m.b, wide) if isinstance(m.b, Panel) else _FROM[m.b.run](fn, m, m.b)

    def step(accumulators: list[str], a: str, b: str, k: int) -> list[str]:
        columns = source.columns(b, k)
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
            part = slice(k % chains * tiles, (k % chains + 1) * tiles)
            current[part] = step(current[part], phis[-2][0], phis[-1][0], k)
        following = [*current, fn.pointer(phis[-2][0], unroll * m.a_step, m.a_kind), source.after(phis[-1][0], unroll)]
        advanced = fn.op(f"add nsw i64 {iv}, 1")
        fn.jump(head)
        for i, ((phi, kind, initial), next_) in enumerate(zip(phis, following, strict=True)):
            fn.lines[at + i] = f"  {phi} = phi {kind} [ {initial}, %{before} ], [ {next_}, %{fn.block} ]"
        fn.lines[at + len(phis)] = f"  {iv} = phi i64 [ 0, %{before} ], [ {advanced}, %{fn.block} ]"
        fn.label(done)
        return [p[0] for p in phis[:-2]], phis[-2][0], phis[-1][0]

    # Few rows leave registers free: several partial sums hide the latency of the multiply-adds, and round less.
    free = max(12, fn.module.registers - 8) - source.registers
    chains = next(n for n in (4, 2, 1) if n * tiles <= free or n == 1)
    zeros = ["zeroinitializer"] * (tiles * chains)
    unroll = source.unroll
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
    return accumulators


def micro_kernel(module: Module, m: Micro) -> str:
    """The internal function of a shape: (A, B, C, scale, steps), for B in a tensor with what `IN_TENSOR` says."""
    key = ("micro", m)
    if key in module.made:
        return module.made[key]
    name = f"micro_{m.rows}x{m.vectors}_{m.start}_{len(module.made)}"
    module.made[key] = name
    arguments = arguments_of(m).replace("ptr ", "ptr noalias ")
    fn = Function(module, name, arguments, fast=True, inline=False, group=1)
    lanes = module.width
    maths = Maths(fn, lanes, m.element)
    wide = maths.type
    tiles = [(r, v) for r in range(m.rows) for v in range(m.vectors)]

    def c_pointer(r: int, v: int) -> str:
        return fn.pointer("%c", r * m.c_row + v * lanes, m.c_kind)

    if m.start != "zero":
        # The old values are wanted at the end, when they have had the time of all the products to come from a farther cache.
        for r in range(m.rows):
            fn.prefetch(c_pointer(r, 0), nearness=3, write=True)
    if isinstance(m.b, InTensor) and m.b.run == "across" and m.a_step == 1 and m.element == m.a_kind == "float":
        accumulators = _dots(fn, m, m.b, maths)
    else:
        accumulators = _outer_products(fn, m, maths)
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
