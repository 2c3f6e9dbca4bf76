"""How much memory a work item's tiles take at the most, by space: what the interpreter's count is held against.

A tile takes its full length along every axis (the step inside a `RowBlock` of that axis), from its first write to the end of
the body that it was first written in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from aicf.kernel.ir import Kernel, Retry, RowBlock, Space, Stmt, Tile, inner, written
from aicf.scalar import BYTES


def tile_bytes(kernel: Kernel, tile: Tile, blocked: Mapping[str, int] | None = None) -> int:
    """Bytes of one tile, where the axes in `blocked` have that many elements."""
    lengths = {axis.name: axis.tile for axis in kernel.axes} | dict(blocked or {})
    return BYTES[tile.dtype] * math.prod(lengths[a] for a in tile.axes)


def live_tiles(kernel: Kernel, space: Space) -> int:
    """The most bytes of tiles in `space` that are live at once in one work item."""
    most = 0

    def visit(body: tuple[Stmt, ...], live: dict[str, int], blocked: dict[str, int]) -> None:
        nonlocal most
        for s in body:
            tile = written(s)
            if tile is not None and tile.space == space and tile.name not in live:
                live[tile.name] = tile_bytes(kernel, tile, blocked)
                most = max(most, sum(live.values()))
            for nested in inner(s):
                # What is written first in the body of a Retry is the work item's own.
                own = live if isinstance(s, Retry) else dict(live)
                visit(nested, own, {**blocked, s.axis: s.step} if isinstance(s, RowBlock) else blocked)

    visit(kernel.body, {}, {})
    return most
