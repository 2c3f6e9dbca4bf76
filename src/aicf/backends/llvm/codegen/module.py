"""A Kernel as an LLVM module: one worker function per `parallel` statement, and one entry that runs them all.

Everything a call needs is one array of 64-bit words (`Slots` says what is where), so that a call passes one pointer:

    word 0   address of the threads' buffers        word 8   next work item (atomic)      word 16 …  tensor addresses, strides,
    word 1   bytes per thread                       word 9   next thread number                      sizes, scalars, and what
    word 2   which checks failed, a bit for each    word 10  number of threads                       checks found
    word 3   which checks are to run

A worker takes a thread number, then work items until there are none. The entry runs the workers of each statement through
`fork(worker, words, threads, 0)`, which has the signature of GOMP_parallel, and comes back when all are done.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from aicf.backends.llvm.codegen.checks import FAULTS, emit_check
from aicf.backends.llvm.codegen.elementwise import AxisLoops, fold, identity
from aicf.backends.llvm.codegen.expressions import combined
from aicf.backends.llvm.codegen.halves import CONVERSIONS
from aicf.backends.llvm.codegen.lane_access import LaneAccess, Slot, to_stored
from aicf.backends.llvm.codegen.layout import Plan, plan, tiles_of
from aicf.backends.llvm.codegen.loops import emit_body, number, scalar_point
from aicf.backends.llvm.codegen.maxima import at_most_zero, fold_scales
from aicf.backends.llvm.codegen.scope import Index, Scope, TensorRef, View
from aicf.backends.llvm.codegen.target import Target
from aicf.backends.llvm.codegen.text import I64, Function, Module
from aicf.backends.llvm.codegen.values import Value, held
from aicf.kernel import Check, Kernel, Loop, Parallel, Stmt, Stream, Summary, Tile, statements, written
from aicf.kernel.indices import checked_items
from aicf.scalar import is_float

HEADER = 16
BUFFERS, STRIDE, CHECKS, ITEM, THREAD, THREADS = 0, 1, 3, 8, 9, 10
ENTRY = "aicf_run"


@dataclass(frozen=True)
class Slots:
    """Word numbers of the call's arguments."""

    tensors: dict[str, int]
    strides: dict[tuple[str, int], int]
    sizes: dict[str, int]
    scalars: dict[str, int]
    checks: tuple[int, ...]  # of each check two words: the lowest and the highest wrong index
    words: int


def slots(kernel: Kernel) -> Slots:
    """Where each argument lives in the array of words."""
    at = HEADER
    tensors: dict[str, int] = {}
    strides: dict[tuple[str, int], int] = {}
    for t in kernel.tensors:
        tensors[t.name] = at
        at += 1
        for d in range(len(t.shape)):
            strides[t.name, d] = at
            at += 1
    sizes = {name: at + i for i, name in enumerate(kernel.sizes)}
    at += len(sizes)
    scalars = {s.name: at + i for i, s in enumerate(kernel.scalars)}
    at += len(scalars)
    checks = tuple(range(at, at + 2 * len(kernel.checks), 2))
    return Slots(tensors, strides, sizes, scalars, checks, at + 2 * len(checks))


def worker_names(kernel: Kernel) -> tuple[str, ...]:
    """The exported workers in the order in which they must run."""
    return tuple(f"aicf_worker_{i}" for i in range(len(_parts(kernel))))


def _parts(kernel: Kernel) -> tuple[Check | Summary | Stmt, ...]:
    """What has a worker of its own, in the order in which they run."""
    return (*kernel.checks, *kernel.summaries, *kernel.body)


def plans(kernel: Kernel, target: Target) -> list[tuple[Kernel, Plan]]:
    """For each check, each summary and each `parallel` statement, in this order: the kernel of that statement alone, and its
    layouts.

    Raises ValueError for a statement outside of `parallel`.
    """
    for s in kernel.body:
        if not isinstance(s, Parallel):
            raise ValueError(
                f"kernel {kernel.name}: {type(s).__name__} outside of parallel; only parallel statements stand at the top"
            )
    kernel = fold_scales(kernel)
    before = [replace(kernel, body=())] * (len(kernel.checks) + len(kernel.summaries))
    return [(k, plan(k, target)) for k in (*before, *(replace(kernel, body=(s,)) for s in kernel.body))]


def buffer_bytes(kernel: Kernel, target: Target) -> int:
    """Bytes of working buffer that a thread needs."""
    return max((p.bytes for _, p in plans(kernel, target)), default=0)


def emit_module(kernel: Kernel, target: Target) -> str:
    """LLVM IR of `kernel` for `target`.

    Raises ValueError for a kernel that breaks the rules of the IR (a statement outside `parallel`, an unknown name).
    """
    module = Module(target.lanes, target.registers, target.lookup)
    names = worker_names(kernel)
    for name, (alone, layout), part in zip(names, plans(kernel, target), _parts(kernel), strict=True):
        what = alone.body[0] if isinstance(part, Parallel) else part
        assert isinstance(what, Check | Summary | Parallel)
        _worker(module, name, alone, target, layout, tiles_of(alone), _loops(kernel, what), what)
    _entry(module, names)
    header = (f"kernel {kernel.name}", *kernel.header)
    text = module.text(target.triple, header)
    if target.converts and " half" in text:
        text += CONVERSIONS
    return text + "\n" + attributes(target) + "\n"


def attributes(target: Target) -> str:
    """The attributes of functions: #0 as the compiler has it; #1 for the inside of the program, which leaves the upper halves of
    vector registers as they are: clearing them around every register tile takes a few percent of the time."""
    inside = target.features + (",-vzeroupper" if target.clears else "")
    return "\n".join(
        f'attributes #{k} = {{ nounwind "target-cpu"="{target.cpu}" "target-features"="{features}" }}'
        for k, features in enumerate((target.features, inside))
    )


def _loops(kernel: Kernel, what: Check | Summary | Parallel) -> tuple[Loop, ...]:
    """The loops whose turns are a worker's items."""
    match what:
        case Parallel():
            return what.loops
        case Summary():
            return (*what.outer, *(Loop(a.origin, a.extent, a.tile) for a in map(kernel.axis, what.axes)))
        case Check():
            return checked_items(kernel, what)


def _worker(
    module: Module, name: str, kernel: Kernel, target: Target, layout: Plan, tiles: dict[str, Tile], loops: tuple[Loop, ...],
    what: Parallel | Summary | Check,
) -> None:  # fmt: skip
    """void worker(ptr words): thread number, then items until none is left."""
    fn = Function(module, name, "ptr %words", group=1)
    head, body, done = fn.new_label("take"), fn.new_label("item"), fn.new_label("done")
    if kernel.checks:
        start = fn.new_label("start")
        fn.do(f"br i1 {_idle(fn, kernel, what)}, label %{done}, label %{start}")
        fn.label(start)
    thread = fn.op(f"atomicrmw add ptr {fn.pointer('%words', THREAD, 'i64')}, i64 1 monotonic")
    base = fn.op(f"load i64, ptr {fn.pointer('%words', BUFFERS, 'i64')}")
    size = fn.op(f"load i64, ptr {fn.pointer('%words', STRIDE, 'i64')}")
    buffer = fn.op(f"inttoptr i64 {fn.add(base, fn.mul(thread, size))} to ptr")
    scope = _arguments(fn, kernel, target, layout, buffer)
    counts = [_trips(loop, scope, tiles) for loop in loops]
    total: I64 = 1
    for count in counts:
        total = fn.mul(total, count)
    fn.jump(head)
    fn.label(head)
    item = fn.op(f"atomicrmw add ptr {fn.pointer('%words', ITEM, 'i64')}, i64 1 monotonic")
    fn.do(f"br i1 {fn.compare('slt', item, total)}, label %{body}, label %{done}")
    fn.label(body)
    # Last items first: under a causal order they are the longest.
    left = fn.sub(fn.sub(total, 1), item)
    numbers = _numbers(fn, left, counts)
    scope = scope.then(_variables(fn, loops, numbers))
    if isinstance(what, Parallel):
        # While this item is worked on, each of the other threads takes one.
        threads = fn.op(f"load i64, ptr {fn.pointer('%words', THREADS, 'i64')}")
        after = _numbers(fn, fn.maximum(fn.sub(left, threads), 0), counts)
        scope = replace(scope, item=what.body, upcoming=_variables(fn, loops, after))
        emit_body(what.body, _views(kernel, scope, tiles, what), tiles)
    elif isinstance(what, Check):
        emit_check(what, scope, tiles, slots(kernel).checks[kernel.checks.index(what)], 1 << kernel.checks.index(what))
    else:
        _summary(what, scope, tiles, numbers[-len(what.axes) :])
    fn.jump(head)
    fn.label(done)
    if target.clears:
        module.declare("llvm.x86.avx.vzeroupper", "void ()")
        fn.do("call void @llvm.x86.avx.vzeroupper()")
    fn.do("ret void")


def _idle(fn: Function, kernel: Kernel, what: Parallel | Summary | Check) -> str:
    """Whether a worker has nothing to do: a check that is not asked for, anything else after one that failed."""
    if isinstance(what, Check):
        asked = fn.op(f"load i64, ptr {fn.pointer('%words', CHECKS, 'i64')}")
        return fn.compare("eq", fn.op(f"and i64 {asked}, {1 << kernel.checks.index(what)}"), 0)
    return fn.compare("ne", fn.op(f"load i64, ptr {fn.pointer('%words', FAULTS, 'i64')}"), 0)


def _numbers(fn: Function, item: I64, counts: list[I64]) -> list[I64]:
    """Which turn of each loop an item is; the last loop is the fastest."""
    if not counts:
        return []
    numbers = [item]
    for count in reversed(counts[1:]):
        rest = numbers[0]
        numbers[:1] = [fn.op(f"udiv i64 {rest}, {count}"), fn.op(f"urem i64 {rest}, {count}")]
    return numbers


def _variables(fn: Function, loops: tuple[Loop, ...], numbers: list[I64]) -> dict[str, Value]:
    return {loop.var.name: Value(str(fn.mul(n, loop.step)), "i64") for loop, n in zip(loops, numbers, strict=True)}


def _trips(loop: Loop, scope: Scope, tiles: dict[str, Tile]) -> I64:
    return scope.fn.ceil_div(scope.fn.maximum(number(loop.extent, scope, tiles), 0), loop.step)


def _arguments(fn: Function, kernel: Kernel, target: Target, layout: Plan, buffer: str) -> Scope:
    """The call's words as values."""
    where = slots(kernel)

    def word(i: int) -> str:
        return fn.op(f"load i64, ptr {fn.pointer('%words', i, 'i64')}")

    values: dict[str, Value] = {name: Value(word(i), "i64") for name, i in where.sizes.items()}
    for s in kernel.scalars:
        kind = held(s.dtype)
        if s.dtype == "bool":
            text = fn.op(f"icmp ne i64 {word(where.scalars[s.name])}, 0")
        else:
            text = fn.op(f"load {kind}, ptr {fn.pointer('%words', where.scalars[s.name], 'i64')}")
        values[s.name] = Value(text, s.dtype)
    tensors: dict[str, TensorRef] = {}
    for t in kernel.tensors:
        base = fn.op(f"inttoptr i64 {word(where.tensors[t.name])} to ptr")
        strides: list[I64] = [1 if d == t.unit else word(where.strides[t.name, d]) for d in range(len(t.shape))]
        tensors[t.name] = TensorRef(base, tuple(strides), t.dtype, t.unit, t.shape)
    wild = {s.name for s in kernel.scalars} | {t.name for s in statements(kernel.body) for t in (written(s),) if t is not None}
    return Scope(fn, kernel, layout, target, buffer, values, {}, tensors, frozenset(wild), at_most_zero(kernel.body))


def _views(kernel: Kernel, scope: Scope, tiles: dict[str, Tile], s: Parallel) -> Scope:
    """The extent of every axis at the start of a work item. Streams set those of the axes that they walk."""
    streamed = {t.axis for t in statements(s.body) if isinstance(t, Stream)}
    for axis in kernel.axes:
        if axis.name in streamed and axis.origin.name not in scope.values:
            continue
        extent = number(axis.extent, scope, tiles)
        if axis.origin.name in scope.values:
            fn = scope.fn
            extent = fn.maximum(fn.sub(extent, scope.origin(axis.name)), 0)
        scope = scope.see(axis.name, View(0, axis.tile, scope.fn.minimum(axis.tile, extent)))
    return scope


def _summary(s: Summary, scope: Scope, tiles: dict[str, Tile], tile: list[I64]) -> None:
    """One element of a summary: the extreme over the positions of one tile. The last axis lies along vectors; a row that is
    outside of it is not looked at any more once a condition is known to hold, or to fail, somewhere."""
    fn = scope.fn
    for name in s.axes:
        axis = scope.kernel.axis(name)
        left = fn.minimum(axis.tile, fn.sub(number(axis.extent, scope, tiles), scope.origin(name)))
        scope = scope.see(name, View(0, axis.tile, left))
    tensor = scope.tensors[s.param]
    dtype = tensor.dtype if not is_float(tensor.dtype) or tensor.dtype == "f64" else "f32"
    at = scalar_point(scope, tiles).evaluator()
    kind = at.type(dtype, True)
    total = fn.alloca(kind)
    fn.do(f"store {kind} {at.literal(identity(s.op, dtype), dtype, True)}, ptr {total}")
    *rows, along = s.axes
    shape = scope.plan.shapes[along]

    def row(where: dict[str, Index]) -> None:
        with fn.loop(0, fn.ceil_div(scope.views[along].valid, shape.chunk)) as block:
            for word in range(shape.lanes // scope.target.lanes):
                point = LaneAccess(scope, where, along, Slot(block, word), {})
                inside = point.evaluator()
                value = inside.widen(inside.convert(inside.value(s.value), dtype))
                text, mask = value.text, point.mask()
                if mask is not None:
                    neutral = at.literal(identity(s.op, dtype), dtype, True)
                    text = fn.op(f"select <{at.lanes} x i1> {mask}, {kind} {text}, {kind} {neutral}")
                old = fn.op(f"load {kind}, ptr {total}")
                fn.do(f"store {kind} {combined(inside, s.op, dtype, old, text, True)}, ptr {total}")

    def extreme() -> str:
        return fold(at, s.op, dtype, fn.op(f"load {kind}, ptr {total}"))

    if rows:
        known = 1 if s.op == "max" else 0  # of a condition, nothing can change this any more
        with AxisLoops(scope, rows[0]) as place, fn.when(fn.op(f"icmp ne {held(dtype)} {extreme()}, {known}")):
            row({rows[0]: place})
    else:
        row({})
    offset: I64 = 0
    for n, stride in zip((*(at.i64(loop.var) for loop in s.outer), *tile), tensor.strides, strict=True):
        offset = fn.add(offset, fn.mul(n, stride))
    text, stored = to_stored(scope, Value(extreme(), dtype), tensor.dtype, at)
    fn.do(f"store {stored} {text}, ptr {fn.pointer(tensor.base, offset, stored)}")


def _entry(module: Module, workers: tuple[str, ...]) -> None:
    """void aicf_run(words, fork, threads)."""
    fn = Function(module, ENTRY, "ptr %words, ptr %fork, i32 %threads")
    count = fn.op("sext i32 %threads to i64")
    fn.do(f"store i64 {count}, ptr {fn.pointer('%words', THREADS, 'i64')}")
    for worker in workers:
        for word in (ITEM, THREAD):
            fn.do(f"store i64 0, ptr {fn.pointer('%words', word, 'i64')}")
        alone, together, after = fn.new_label("alone"), fn.new_label("together"), fn.new_label("after")
        fn.do(f"br i1 {fn.op('icmp sle i32 %threads, 1')}, label %{alone}, label %{together}")
        fn.label(alone)
        fn.do(f"call void @{worker}(ptr %words)")
        fn.jump(after)
        fn.label(together)
        fn.do(f"call void %fork(ptr @{worker}, ptr %words, i32 %threads, i32 0)")
        fn.jump(after)
        fn.label(after)
    fn.do("ret void")
