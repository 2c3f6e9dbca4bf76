"""Networks of shuffles over as many vectors as they have lanes: the transpose of a square, and the sums of all vectors. Elements
of a vector by index."""

from __future__ import annotations

from aicf.backends.llvm.codegen.text import Function


def transposed(fn: Function, rows: list[str]) -> list[str]:
    """The transpose of a square of vectors: blocks of four lanes are exchanged, then each block is transposed by interleaving. On
    x86 that is one instruction for each of the log2(n) n shuffles."""
    n, block = len(rows), 4
    rows = list(rows)
    half = n // 2
    while half >= block:
        low = [lane if not lane & half else n + lane - half for lane in range(n)]
        high = [lane + half if not lane & half else n + lane for lane in range(n)]
        for i in range(n):
            if not i & half:
                rows[i], rows[i + half] = (_shuffled(fn, rows[i], rows[i + half], mask) for mask in (low, high))
        half //= 2
    low = [b + k // 2 + (n if k & 1 else 0) for b in range(0, n, block) for k in range(block)]
    high = [x + 2 for x in low]
    for _ in range(2):
        for b in range(0, n, block):
            halves = zip(rows[b : b + 2], rows[b + 2 : b + 4], strict=True)
            rows[b : b + block] = [_shuffled(fn, x, y, mask) for x, y in halves for mask in (low, high)]
    return rows


def summed(fn: Function, rows: list[str]) -> str:
    """As many vectors as lanes: the vector of their sums, in the order of `order_of_sums`."""
    n = len(rows)
    unit = n // 2
    while unit:
        even = _even_units(n, unit)
        odd = [x + unit for x in even]
        kind = f"<{n} x float>"
        rows = [
            fn.op(f"fadd {kind} {_shuffled(fn, x, y, even)}, {_shuffled(fn, x, y, odd)}")
            for x, y in zip(rows[::2], rows[1::2], strict=True)
        ]
        unit //= 2
    return rows[0]


def order_of_sums(n: int) -> list[int]:
    """Which vector is whose sum: lane k of `summed` is the sum of vector number `order_of_sums(n)[k]`."""
    rows = [[i] * n for i in range(n)]
    unit = n // 2
    while unit:
        even = _even_units(n, unit)
        rows = [[(*x, *y)[lane] for lane in even] for x, y in zip(rows[::2], rows[1::2], strict=True)]
        unit //= 2
    return rows[0]


def _even_units(n: int, unit: int) -> list[int]:
    """The lanes of every second `unit` of two vectors: of one's, then of the other's, within blocks of four lanes if they fit."""
    region = 4 if 2 * unit <= 4 else n
    return [
        x + side
        for b in range(0, n, region)
        for side in (0, n)
        for u in range(b, b + region, 2 * unit)
        for x in range(u, u + unit)
    ]


def looked_up(fn: Function, table: str, index: str, lanes: int) -> str:
    """The f32 of `table`, a vector of the target's width, that the low bits of each i32 of `index` say. `lanes` may be more than
    that width. The module has a `lookup`."""
    width, name = fn.module.width, fn.module.lookup
    assert name is not None
    fn.module.declare(name, f"<{width} x float> (<{width} x float>, <{width} x i32>)")
    parts: list[str] = []
    for first in range(0, lanes, width):
        part = index
        if lanes > width:
            mask = ", ".join(f"i32 {first + k}" for k in range(width))
            part = fn.op(f"shufflevector <{lanes} x i32> {index}, <{lanes} x i32> poison, <{width} x i32> <{mask}>")
        parts.append(fn.op(f"call <{width} x float> @{name}(<{width} x float> {table}, <{width} x i32> {part})"))
    while len(parts) > 1:
        kind, mask = f"<{width} x float>", ", ".join(f"i32 {k}" for k in range(2 * width))
        parts = [
            fn.op(f"shufflevector {kind} {a}, {kind} {b}, <{2 * width} x i32> <{mask}>")
            for a, b in zip(parts[::2], parts[1::2], strict=True)
        ]
        width *= 2
    return parts[0]


def _shuffled(fn: Function, a: str, b: str, mask: list[int]) -> str:
    kind = f"<{len(mask)} x float>"
    return fn.op(f"shufflevector {kind} {a}, {kind} {b}, <{len(mask)} x i32> <{', '.join(f'i32 {m}' for m in mask)}>")
