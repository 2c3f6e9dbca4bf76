"""Checks of indices: the lowest and the highest of a tile of them; where one of the two is wrong, a bit and both for the caller.

check 0 <= I[i, j] < T_0, for i < N, j < M      ->      for the items (i0, j0): lowest, highest over i, j of I[i, j]
                                                        if lowest < 0 or highest >= T_0: words[FAULTS] |= bit, …
"""

from __future__ import annotations

from aicf.backends.llvm.codegen.elementwise import AxisLoops, fold
from aicf.backends.llvm.codegen.expressions import combined, largest, smallest
from aicf.backends.llvm.codegen.lane_access import LaneAccess, Slot
from aicf.backends.llvm.codegen.loops import number, scalar_point
from aicf.backends.llvm.codegen.scope import Index, Scope, View
from aicf.kernel import Check, Tile
from aicf.kernel.indices import checked_axes

FAULTS = 2  # the word of the call that tells which checks failed


def emit_check(c: Check, scope: Scope, tiles: dict[str, Tile], words: int, bit: int) -> None:
    """One item of a check. `words`: where its lowest and highest wrong index go."""
    fn = scope.fn
    axes = checked_axes(scope.kernel, c)
    for name in axes:
        axis = scope.kernel.axis(name)
        left = fn.minimum(axis.tile, fn.sub(number(axis.extent, scope, tiles), scope.origin(name)))
        scope = scope.see(name, View(0, axis.tile, left))
    at = scalar_point(scope, tiles).evaluator()
    vector = bool(axes)
    kind = at.type("i64", vector)
    ends = {"min": fn.alloca(kind), "max": fn.alloca(kind)}
    for op, slot in ends.items():
        start = largest("i64") if op == "min" else smallest("i64")
        fn.do(f"store {kind} {at.literal(start, 'i64', vector)}, ptr {slot}")

    def take(point: LaneAccess) -> None:
        inside = point.evaluator()
        value = inside.convert(inside.value(c.value), "i64")
        text = inside.widen(value).text if vector else value.text
        mask = point.mask()
        for op, slot in ends.items():
            old = fn.op(f"load {kind}, ptr {slot}")
            new = text if mask is None else fn.op(f"select <{at.lanes} x i1> {mask}, {kind} {text}, {kind} {old}")
            fn.do(f"store {kind} {combined(inside, op, 'i64', old, new, vector)}, ptr {slot}")

    def walk(rows: list[str], where: dict[str, Index]) -> None:
        if rows:
            with AxisLoops(scope, rows[0]) as place:
                walk(rows[1:], {**where, rows[0]: place})
            return
        along = axes[-1]
        shape = scope.plan.shapes[along]
        with fn.loop(0, fn.ceil_div(scope.views[along].valid, shape.chunk)) as block:
            for word in range(shape.lanes // scope.target.lanes):
                take(LaneAccess(scope, where, along, Slot(block, word), {}))

    if axes:
        walk(axes[:-1], {})
    else:
        take(scalar_point(scope, {}))
    found = {op: fn.op(f"load {kind}, ptr {slot}") for op, slot in ends.items()}
    if vector:
        found = {op: fold(at, "min" if op == "min" else "max", "i64", v) for op, v in found.items()}
    extent = at.i64(c.extent)
    low = fn.compare("slt", found["min"], fn.sub(0, extent) if c.wraps else 0)
    high = fn.compare("sge", found["max"], extent)
    with fn.when(fn.op(f"or i1 {low}, {high}")):
        for place, (op, v) in enumerate(found.items()):
            fn.op(f"atomicrmw {op} ptr {fn.pointer('%words', words + place, 'i64')}, i64 {v} monotonic")
        fn.op(f"atomicrmw or ptr {fn.pointer('%words', FAULTS, 'i64')}, i64 {bit} monotonic")
