"""What runs a kernel's items, and how many tiles are in flight: a schedule's mapping written into Kernel IR.

    parallel b, h, i0 per thread:                      parallel b, h, i0 per block of 4 warps of 255 registers:
      stream j0 in 0 .. M step 64:               ->      stream j0 in 0 .. M step 64 stages 2:
        rows i step 16:                                    rows i step 16 per warp:
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from aicf.kernel.ir import Contract, Kernel, Parallel, RowBlock, Stmt, Stream, statements
from aicf.kernel.visit import with_bodies


def map_to_blocks(kernel: Kernel, *, warps: int, stages: int, registers: int = 0) -> Kernel:
    """`kernel` with one block of `warps` warps per item, whose threads have at most `registers` registers (0: as many as the
    compiler likes), and `stages` tiles of every stream in flight (GPUs)."""

    def body(statements: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple(one(s) for s in statements)

    def one(s: Stmt) -> Stmt:
        s = with_bodies(s, body)
        match s:
            case Parallel():
                return replace(s, unit="block", warps=warps, registers=registers)
            case Stream():
                # Loads are overlapped with products; a stream around another one, or one that only combines, has nothing to
                # overlap.
                inside = [x for p in s.phases for x in statements(p.body)]
                busy = any(isinstance(x, Contract) for x in inside) and not any(isinstance(x, Stream) for x in inside)
                return replace(s, stages=stages if busy else 1)
            case RowBlock():
                return replace(s, unit="warp")
            case _:
                return s

    return replace(kernel, body=body(kernel.body))


def with_units(kernel: Kernel, units: Mapping[str, int | None]) -> Kernel:
    """`kernel` for inputs of other layouts: for each tensor the dimension with stride 1 (None: there is no such dimension)."""
    return replace(kernel, tensors=tuple(replace(t, unit=units.get(t.name, t.unit)) for t in kernel.tensors))
