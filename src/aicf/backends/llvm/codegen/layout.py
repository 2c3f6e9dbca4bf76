"""Where tiles live: one buffer per thread, a fixed offset and fixed strides for every tile.

    acc[i:96, e:128]    vector axis e: rows of 128 + 16 padding
    k[j:64, d:128]      operand b of a Contract over d: panels [j/16][d][16]
    m[i:96]             rows of blocks of 6: blocks of 8 lanes, so that a block is one aligned vector

Every axis has a `chunk`: the rows step of an axis with register blocks, else two vectors. An element's position on an axis is
`block * chunk + r`. On a tile's vector axis a block takes whole vectors (`lanes`), on other axes strides are plain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from aicf.backends.llvm.codegen.aliasing import aliases
from aicf.backends.llvm.codegen.inplace import in_place
from aicf.backends.llvm.codegen.roles import Roles, free_axes, roles_along
from aicf.backends.llvm.codegen.target import Target
from aicf.backends.llvm.codegen.values import tile_bytes
from aicf.kernel import Contract, Fill, Kernel, LoadTile, Map, Reduce, RowBlock, Stmt, StoreTile, Tile, inner, statements, written
from aicf.scalar import DType, variables


@dataclass(frozen=True)
class AxisShape:
    """How an axis is cut: tile length, rows step or two vectors (`chunk`), and a chunk rounded up to whole vectors (`lanes`)."""

    length: int
    chunk: int
    lanes: int

    @property
    def blocks(self) -> int:
        return -(-self.length // self.chunk)


@dataclass(frozen=True)
class Layout:
    """One physical copy of a tile: byte offset in the thread's buffer, strides in elements. `vector` is the axis with unit
    stride; `stride[vector]` is the distance of its blocks. `local` axes hold one register block only."""

    dtype: DType
    offset: int
    vector: str | None
    stride: dict[str, int]
    shape: dict[str, AxisShape]
    local: frozenset[str]

    def linear(self, axis: str) -> int | None:
        """The stride of `axis` when it is one number."""
        if axis != self.vector:
            return self.stride[axis]
        s = self.shape[axis]
        return 1 if s.blocks == 1 or s.chunk == self.stride[axis] else None


@dataclass(frozen=True)
class Plan:
    """All layouts: the first copy of a tile is the one that element-wise statements see. `repacked` are panels of computed tiles
    for a Contract that needs another vector axis than the tile has. Tiles `in_place` have no copy: Contracts read the tensor."""

    shapes: dict[str, AxisShape]
    copies: dict[str, tuple[Layout, ...]]
    bytes: int
    repacked: dict[tuple[str, str], Layout]
    in_place: frozenset[str] = frozenset()

    def of(self, tile: Tile) -> Layout:
        return self.copies[tile.name][0]

    def copy(self, tile: Tile, vector: str) -> Layout | None:
        """The copy of `tile` with that vector axis, if there is one."""
        for layout in self.copies[tile.name]:
            if layout.vector == vector:
                return layout
        return None


def roles(s: Contract, plan: Plan) -> Roles | None:
    """Who is broadcast and who is loaded as vectors; None for a dot product, which has neither."""
    return roles_along(s, plan.of(s.tile).vector)


def axis_shapes(kernel: Kernel, target: Target) -> dict[str, AxisShape]:
    """The cut of every axis."""
    steps: dict[str, list[int]] = {}
    for s in statements(kernel.body):
        if isinstance(s, RowBlock):
            steps.setdefault(s.axis, []).append(s.step)
    shapes = {}
    for axis in kernel.axes:
        if axis.name in steps:
            chunk = math.gcd(*steps[axis.name])
        else:
            chunk = target.columns if axis.tile > target.lanes else target.lanes
        shapes[axis.name] = AxisShape(axis.tile, chunk, -(-chunk // target.lanes) * target.lanes)
    return shapes


def local_axes(kernel: Kernel) -> dict[str, frozenset[str]]:
    """For every tile the axes of whose register blocks it holds one only: never written outside `rows` of that axis."""
    local: dict[str, frozenset[str]] = {}

    def visit(body: tuple[Stmt, ...], rows: frozenset[str]) -> None:
        for s in body:
            tile = written(s)
            if tile is not None:
                local[tile.name] = local.get(tile.name, frozenset(tile.axes)) & rows
            inside = rows | {s.axis} if isinstance(s, RowBlock) else rows
            for nested in inner(s):
                visit(nested, inside)

    visit(kernel.body, frozenset())
    return local


def tiles_of(kernel: Kernel) -> dict[str, Tile]:
    """The tiles of a kernel with one `parallel` statement, by name. Raises ValueError when a name stands for two."""
    tiles: dict[str, Tile] = {}
    for s in statements(kernel.body):
        tile = written(s)
        if tile is not None and tiles.setdefault(tile.name, tile) != tile:
            raise ValueError(f"kernel {kernel.name}: tile {tile.name} is written as {tile} and as {tiles[tile.name]}")
    return tiles


def plan(kernel: Kernel, target: Target) -> Plan:
    """Vector axes and places of all tiles of a kernel with one `parallel` statement."""
    shapes = axis_shapes(kernel, target)
    local = local_axes(kernel)
    tiles = tiles_of(kernel)
    first, panels = vector_axes(kernel, tiles)
    plain = used_plainly(kernel, panels)
    over = aliases(kernel, tiles)
    direct = in_place(kernel, {a: s.chunk for a, s in shapes.items()}, first, target.lanes)
    steps = {s.axis: s.step for s in statements(kernel.body) if isinstance(s, RowBlock)}
    offset = 0

    def place(tile: Tile, vector: str | None, panel: bool) -> Layout:
        nonlocal offset
        own = {
            a: AxisShape(steps[a] if a in local[tile.name] else shapes[a].length, shapes[a].chunk, shapes[a].lanes)
            for a in tile.axes
        }
        stride, count = _strides(tile, vector, panel, own, target)
        made = Layout(tile.dtype, offset, vector, stride, own, local[tile.name])
        # Some slack lets a partial block store whole vectors; another cache line keeps tiles apart.
        size = (count + target.columns) * tile_bytes(tile.dtype)
        offset += -(-size // 64) * 64 + 64
        return made

    copies: dict[str, tuple[Layout, ...]] = {}
    for name, tile in tiles.items():
        if name in direct:
            continue
        wanted = [(first[name], first[name] in panels.get(name, ()) and name not in plain)]
        wanted += [(axis, True) for axis in panels.get(name, ()) if axis != first[name]]
        older = copies.get(over.get(name, ""), ())
        if len(older) == 1 and wanted == [(older[0].vector, False)] and local[name] == older[0].local:
            copies[name] = (replace(older[0], dtype=tile.dtype),)
            continue
        copies[name] = tuple(place(tile, vector, panel) for vector, panel in wanted)
    made = Plan(shapes, copies, offset, {}, direct)
    for s in statements(kernel.body):
        r = roles(s, made) if isinstance(s, Contract) else None
        if r is not None and r.b.name not in direct and made.copy(r.b, r.y) is None and (r.b.name, r.y) not in made.repacked:
            made.repacked[r.b.name, r.y] = place(r.b, r.y, True)
    return Plan(shapes, copies, offset, made.repacked, direct)


def _strides(
    tile: Tile, vector: str | None, panel: bool, shape: dict[str, AxisShape], target: Target
) -> tuple[dict[str, int], int]:
    """Strides and element count. Panels: [block][other axes][lanes]; rows: [other axes][block][lanes] with padding."""
    others = [a for a in tile.axes if a != vector]
    stride: dict[str, int] = {}
    if vector is None:
        return stride, 1
    width = shape[vector].lanes
    size = width if panel else width * shape[vector].blocks
    # Rows a power of two apart fall into the same cache sets.
    if not panel and others and size % (4 * target.lanes) == 0:
        size += target.columns
    for axis in reversed(others):
        stride[axis] = size
        size *= shape[axis].blocks * shape[axis].chunk
    stride[vector] = size if panel else width
    return stride, size * (shape[vector].blocks if panel else 1)


def vector_axes(kernel: Kernel, tiles: dict[str, Tile]) -> tuple[dict[str, str | None], dict[str, tuple[str, ...]]]:
    """(vector axis of each tile's first copy, the axes for which it needs panels).

    The result of a Contract is vectorised along the free axis of operand b; operands that are computed are asked for it too.
    """
    body = list(statements(kernel.body))
    contracts = [s for s in body if isinstance(s, Contract)]
    loaded = {s.tile.name for s in body if isinstance(s, LoadTile)}
    computed = {s.tile.name for s in body if isinstance(s, Contract | Map | Reduce)}
    first: dict[str, str | None] = {}
    asked: dict[str, str] = {}
    for s in contracts:
        a, b = free_axes(s)
        if b and s.b.name not in loaded:
            asked.setdefault(s.b.name, b[-1])
        elif not b and a and s.a.name not in loaded:
            asked.setdefault(s.a.name, a[-1])
    for s in contracts:
        a, b = free_axes(s)
        if s.tile.axes and s.tile.name not in first:
            first[s.tile.name] = asked.get(s.tile.name, b[-1] if b else a[-1])
    for s in body:
        match s:
            case Map() | Reduce() if s.tile.name not in first:
                first[s.tile.name] = asked.get(s.tile.name) or _inherited(s, tiles, first)
            case _:
                pass
    panels: dict[str, tuple[str, ...]] = {}
    for s in contracts:
        a, b = free_axes(s)
        vector = first.get(s.tile.name)
        operand = s.b if vector in b else s.a if vector in a else None
        if operand is None or vector is None or operand.name not in loaded or operand.name in computed:
            continue
        if vector not in panels.get(operand.name, ()):
            panels[operand.name] = (*panels.get(operand.name, ()), vector)
    for s in body:
        if isinstance(s, LoadTile):
            first.setdefault(s.tile.name, _loaded_axis(s, kernel, panels.get(s.tile.name, ())))
        elif isinstance(s, Fill):
            first.setdefault(s.tile.name, s.tile.axes[-1] if s.tile.axes else None)
    return first, panels


def used_plainly(kernel: Kernel, panels: dict[str, tuple[str, ...]]) -> frozenset[str]:
    """Tiles with panels that a Contract also broadcasts or an element-wise statement reads: their first copy is in rows."""
    names: set[str] = set()
    for s in statements(kernel.body):
        match s:
            case Contract():
                for operand, free in zip((s.a, s.b), free_axes(s), strict=True):
                    if not any(x in panels.get(operand.name, ()) for x in free):
                        names.add(operand.name)
            case Map() | Reduce() | StoreTile():
                names |= {v.name for v in variables(s.expr)}
            case _:
                pass
    return frozenset(names)


def _inherited(s: Map | Reduce, tiles: dict[str, Tile], first: dict[str, str | None]) -> str | None:
    """The vector axis of the largest tile that the expression reads, if the result has it; else the last axis."""
    names = sorted(v.name for v in variables(s.expr) if v.name in tiles and v.name != s.tile.name)
    for name in sorted(names, key=lambda n: -len(tiles[n].axes)):
        axis = first.get(name)
        if axis in s.tile.axes:
            return axis
    return s.tile.axes[-1] if s.tile.axes else None


def _loaded_axis(s: LoadTile, kernel: Kernel, panels: tuple[str, ...]) -> str | None:
    """The vector axis of a loaded tile: a panel's if that is all it is for, else the axis along which memory is contiguous."""
    if panels:
        return panels[0]
    unit = kernel.tensor(s.tensor).unit
    if unit is not None:
        for axis in s.tile.axes:
            if kernel.axis(axis).position in variables(s.at[unit]):
                return axis
    return s.tile.axes[-1] if s.tile.axes else None
