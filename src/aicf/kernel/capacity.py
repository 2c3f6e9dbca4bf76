"""How much memory a work item's tiles take, by space, and whether that fits.

A tile takes its full length along every axis (the step inside a `RowBlock` of that axis), from its first write to the end of
the body that it was first written in. The interpreter counts the same (`Trace.peak`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from aicf.kernel.ir import Kernel, Retry, RowBlock, Space, Stmt, Stream, Tile, inner, written
from aicf.scalar import BYTES


def tile_bytes(kernel: Kernel, tile: Tile, blocked: Mapping[str, int] | None = None) -> int:
    """Bytes of one tile, where the axes in `blocked` have that many elements."""
    lengths = {axis.name: axis.tile for axis in kernel.axes} | dict(blocked or {})
    return BYTES[tile.dtype] * math.prod(lengths[a] for a in tile.axes)


def live_tiles(kernel: Kernel, space: Space) -> tuple[int, dict[str, int]]:
    """The most bytes of tiles in `space` that are live at once in one work item, and the tiles that are, with their bytes."""
    worst: dict[str, int] = {}

    def visit(body: tuple[Stmt, ...], live: dict[str, int], blocked: dict[str, int]) -> None:
        nonlocal worst
        for s in body:
            tile = written(s)
            if tile is not None and tile.space == space and tile.name not in live:
                live[tile.name] = tile_bytes(kernel, tile, blocked)
                if sum(live.values()) > sum(worst.values()):
                    worst = dict(live)
            match s:
                case RowBlock():
                    visit(s.body, dict(live), {**blocked, s.axis: s.step})
                case Retry():
                    visit(s.body, live, blocked)
                case Stream():
                    for phase in s.phases:
                        visit(phase.body, dict(live), blocked)
                case _:
                    for nested in inner(s):
                        visit(nested, dict(live), blocked)

    visit(kernel.body, {}, {})
    return sum(worst.values()), worst


def check_capacity(kernel: Kernel, limits: Mapping[Space, int]) -> list[str]:
    """What does not fit: for each space of `limits` (bytes for one work item) a sentence that names the tiles and bytes."""
    problems: list[str] = []
    for space, limit in limits.items():
        total, tiles = live_tiles(kernel, space)
        if total > limit:
            parts = ", ".join(f"{name} {size}" for name, size in sorted(tiles.items(), key=lambda t: (-t[1], t[0])))
            problems.append(
                f"kernel {kernel.name} needs {total} bytes of {space} memory, there are {limit}: {parts}. Take smaller tiles."
            )
    return problems
