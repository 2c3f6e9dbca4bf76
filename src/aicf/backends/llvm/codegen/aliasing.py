"""Buffer aliasing: a tile takes the memory of a dead tile that it is computed from, which keeps the working set in L1.

    s = contract q, k        s, u and p are the same numbers in memory: each is computed from the one before, element by element,
    u = map s * c + b        and nothing reads the one before afterwards
    p = map exp(u - m)
"""

from __future__ import annotations

from aicf.backends.llvm.codegen.values import in_tile
from aicf.kernel import Kernel, Map, Stmt, Tile, bodies, reads, written


def aliases(kernel: Kernel, tiles: dict[str, Tile]) -> dict[str, str]:
    """Name of a tile -> name of the tile in whose place it may be, if their layouts are the same.

    Both live within runs of one list of statements: the older one from where it is written to the Map that reads it last, the
    newer one from there on.
    """
    lists = list(bodies(kernel.body))
    return {
        name: old
        for name in tiles
        for old in sorted(_read_by_maps(name, lists))
        if old in tiles and _alike(tiles[name], tiles[old]) and all(_follows(name, old, body) for body in lists)
    }


def _read_by_maps(name: str, lists: list[tuple[Stmt, ...]]) -> frozenset[str]:
    """The tiles that are read by the Maps which write `name`."""
    names: set[str] = set()
    for body in lists:
        for s in body:
            if isinstance(s, Map) and s.tile.name == name:
                names |= reads(s) - {name}
    return frozenset(names)


def _alike(a: Tile, b: Tile) -> bool:
    return a.axes == b.axes and a.space == b.space == "register" and in_tile(a.dtype) == in_tile(b.dtype)


def _follows(new: str, old: str, body: tuple[Stmt, ...]) -> bool:
    """Whether in this list, the statements inside of its statements left out, `new` is written once, by a Map that reads `old`,
    and `old` is written before and neither read nor written afterwards; or neither is touched at all."""
    state = "nothing"
    for s in body:
        tile = written(s)
        writes = tile.name if tile is not None else None
        touched = reads(s) | {writes}
        if writes == new:
            if state != "old" or not isinstance(s, Map) or old not in reads(s) or new in reads(s):
                return False
            state = "new"
        elif writes == old:
            if state == "new" or (state == "nothing" and old in reads(s)):
                return False
            state = "old"
        elif (old in touched and state != "old") or (new in touched and state != "new"):
            return False
    return state != "old"
