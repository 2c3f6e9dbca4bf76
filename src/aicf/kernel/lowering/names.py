"""What a region's kernel is made of by name: parameters, sizes, axes, state tiles, summaries.

Names are canonical (Q, K, V, X1, …; sizes as symbols), so that one kernel serves every region of the same form: the layers of a
model, and every length. What they stand for in the source graph is the `Binding`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from aicf.kernel.ir import Axis, Fill, LoadTile, Loop, Map, Parallel, Space, Stmt, StoreTile, Summary, TensorParam, Tile
from aicf.kernel.lowering.expressions import expressions
from aicf.mcir.passes.streaming_lowering import Operand, TilePolicy, Tiling, finalizer, semantics
from aicf.mcir.regions import Region, StreamingRegion, TileRegion
from aicf.scalar import (
    MONOIDS,
    Call,
    Const,
    Expr,
    Load,
    Var,
    call,
    const,
    index,
    integer_const,
    is_float,
    load,
    substitute,
    transform,
    var,
    variables,
    walk,
)
from aicf.semantic import Node
from aicf.streaming.recognise import Recognised
from aicf.streaming.stream_program import Base, StreamProgram, Sum


class Tiles(TilePolicy, Protocol):
    """What lowering needs of a schedule, beside the tile lengths."""

    @property
    def rows(self) -> int: ...
    @property
    def order(self) -> str: ...
    @property
    def kv_split(self) -> int: ...
    @property
    def residency(self) -> tuple[tuple[str, Space], ...]: ...


@dataclass(frozen=True)
class Binding:
    """What a kernel's names stand for: tensors -> source nodes (inputs, outputs), sizes -> expressions of source sizes."""

    inputs: Mapping[str, Node]
    outputs: Mapping[str, Node]
    sizes: Mapping[str, Expr]


class KernelLoweringError(ValueError):
    """A region tree that is not what the streaming lowering pass makes, or a schedule that it cannot follow."""


class Names:
    """The names of one region's kernel. Parameters are added as they are declared; sizes as they are first used."""

    def __init__(self, region: Region, schedule: Tiles, units: Mapping[str, int | None]) -> None:
        stream = next((s for s in region.subregions if isinstance(s, StreamingRegion)), None)
        tile = next((t for t in (stream.subregions if stream else []) if isinstance(t, TileRegion)), None)
        if stream is None or tile is None:
            raise KernelLoweringError(f"region {region.name} has no tile region: run the streaming lowering pass first")
        self.schedule, self.units = schedule, units
        self.found: Recognised = semantics(region)
        self.program: StreamProgram = stream.attrs["program"]
        self.tiling: Tiling = tile.attrs["phases"]
        self.nodes = list(tile.nodes)
        self.i, self.j = self.found.row.name, self.found.stream.name
        self.flag = index("skipping")
        self.sizes: dict[str, Expr] = {}
        self.params: list[TensorParam] = []
        self.tensors = self._tensors((region.attrs["q_name"], region.attrs["k_name"], region.attrs["v_name"]))
        self._declare()
        self.axes = self._axes()

    # ------------------------------------------------------------------------------------ tensors and sizes

    def _tensors(self, roles: tuple[str, str, str]) -> dict[str, str]:
        names: dict[str, str] = {}
        for source, short in zip(roles, "QKV", strict=True):
            if source:
                names.setdefault(source, short)
        for source in self.found.loads:
            if source not in names:
                names[source] = f"X{sum(1 for n in names.values() if n.startswith('X')) + 1}"
        return names

    def size(self, name: str, e: Expr) -> Expr:
        """The size symbol `name`, which stands for `e`."""
        self.sizes[name] = e
        return index(name)

    def put(self, e: Expr) -> Expr:
        """`e` with tensors under their kernel names."""

        def rename(x: Expr) -> Expr | None:
            if isinstance(x, Load) and x.tensor in self.tensors:
                return load(self.tensors[x.tensor], x.index, x.dtype)
            return None

        return transform(self._inside(e), rename)

    def _clamped(self, x: Load) -> Load:
        """`x` read at the nearest place inside of its tensor."""
        source = self.found.loads.get(x.tensor)
        if source is None:
            return x
        at: list[Expr] = []
        for i, dim in zip(x.index, source.type.shape, strict=True):
            within = isinstance(i, Const) or (isinstance(i, Var) and self.found.extents.get(i) is dim)
            last = call("sub", dim, integer_const(1))
            at.append(i if within else call("max", integer_const(0), call("min", i, last)))
        return load(x.tensor, tuple(at), x.dtype)

    def _inside(self, e: Expr) -> Expr:
        """`e` with the elements that a selection guards read inside their tensor also where they are not selected: the parts of a
        concatenation, `where(j < 2, A[j], B[j - 2])`, are both read at every j."""

        def guard(x: Expr) -> Expr | None:
            if not (isinstance(x, Call) and x.fn == "where" and variables(x.args[0])):
                return None
            put: dict[Expr, Expr] = {
                y: self._clamped(y) for side in x.args[1:] for y in walk(side)
                if isinstance(y, Load) and variables(x.args[0]) & {v for i in y.index for v in variables(i)}
            }  # fmt: skip
            if all(a is b for a, b in put.items()):
                return None
            return call("where", x.args[0], *(transform(side, put.get) for side in x.args[1:]))

        return transform(e, guard)

    def _declare(self) -> None:
        for source, name in self.tensors.items():
            node = self.found.loads[source]
            shape = tuple(self.size(f"{name}_{k}", d) for k, d in enumerate(node.type.shape))
            unit = self.units.get(name, len(shape) - 1 if shape else None)
            self.params.append(TensorParam(name, node.type.dtype, shape, "in", unit))
        self.size("N", self.found.extents[self.found.row])
        self.size("M", self.found.extents[self.found.stream])
        for v in self.found.batch:
            self.size(f"n_{v.name}", self.found.extents[v])
        for k, e in enumerate(self.found.exits):
            dims = zip(e.at, e.node.type.shape, strict=True)
            shape = tuple(self._extent(x, d, f"{self.output(k)}_{n}") for n, (x, d) in enumerate(dims))
            self.params.append(TensorParam(self.output(k), e.node.type.dtype, shape, "out", len(shape) - 1 if shape else None))

    @staticmethod
    def output(k: int) -> str:
        """The name of the k-th output."""
        return "O" if k == 0 else f"O{k + 1}"

    def _extent(self, position: Expr, dim: Expr, name: str) -> Expr:
        """The size of an output's dimension, `dim` in the source graph, that is indexed by `position`."""
        if isinstance(position, Const):
            return integer_const(1)
        if isinstance(position, Var) and position.name == self.i:
            return self.row_extent()
        if isinstance(position, Var) and position in self.found.batch:
            return index(f"n_{position.name}")
        if isinstance(position, Var):
            return self.found.extents[position]
        return self.size(name, dim)  # a stacked head: group * head + row

    def _axes(self) -> list[Axis]:
        axes = [Axis(self.i, self.row_extent(), self.schedule.tile_m), Axis(self.j, index("M"), self.schedule.tile_n)]
        for v in dict.fromkeys((*(a.over for a in self.found.atoms), *self.found.columns)):
            width = self.found.extents[v]
            assert isinstance(width, Const)
            axes.append(Axis(v.name, width, int(width.value)))
        return axes

    def batch_loops(self) -> tuple[Loop, ...]:
        """One loop per batch variable."""
        return tuple(Loop(v, index(f"n_{v.name}")) for v in self.found.batch)

    def row_loop(self) -> Loop:
        """The loop over row tiles."""
        return Loop(self.axes[0].origin, self.row_extent(), self.schedule.tile_m)

    def row_extent(self) -> Expr:
        """The extent of the row axis: a size, or 1 where the graph has no row axis."""
        rows = self.found.extents[self.found.row]
        return rows if isinstance(rows, Const) and rows.value == 1 else index("N")

    # ------------------------------------------------------------------------------------ tiles and states

    def space(self, value: str, default: Space) -> Space:
        """Where the schedule puts a value (`Schedule.residency`)."""
        return dict(self.schedule.residency).get(value, default)

    def row_tile(self, name: str) -> Tile:
        """A tile with one value per row that lives within a block of rows."""
        return Tile(name, "f32", (self.i,), "register")

    def state(self, s: Base | Sum) -> Tile:
        """The tile of a carried state."""
        columns = () if isinstance(s, Base) else tuple(v.name for v in s.payload)
        return Tile(s.name, "f32", (self.i, *columns), self.space("output_acc" if columns else "state", "register"))

    def states(self) -> tuple[Base | Sum, ...]:
        """All carried states, extrema first."""
        return (*self.program.bases, *self.program.sums)

    def operand(self, operand: Operand) -> tuple[Tile, Stmt]:
        """The tile of a contraction's operand, and the statement that fills it."""
        tile = Tile(operand.name, "f32", operand.axes, self.space(f"{operand.name[0].upper()}_tile", "shared"))
        element = operand.element
        while isinstance(element, Call) and element.fn == "cast" and is_float(element.args[0].dtype):
            element = element.args[0]
        if isinstance(element, Load) and is_float(element.dtype):
            plain = self.put(element)
            assert isinstance(plain, Load)
            return tile, LoadTile(tile, plain.tensor, plain.index)
        return tile, Map(tile, self.put(operand.element))

    def operands(self) -> list[Operand]:
        """The operands of all load nodes, in order."""
        return [n.attrs["operand"] for n in self.nodes if isinstance(n.attrs.get("operand"), Operand)]

    def initial(self) -> list[Stmt]:
        """The states before anything was streamed."""
        out: list[Stmt] = []
        for b in self.program.bases:
            start = identity(b) if b.init is None else self.put(b.init)
            out.append(Fill(self.state(b), start) if isinstance(start, Const) else Map(self.state(b), start))
        out += [Fill(self.state(s), const(0.0, "f32")) for s in self.program.sums]
        return out

    def stores(self) -> list[Stmt]:
        """What is written when the stream is over."""
        return [self._store(k) for k in range(len(self.found.exits))]

    def _store(self, k: int) -> Stmt:
        e = self.found.exits[k]
        value = self.put(finalizer(self.program, f"out{k}"))
        for b in self.program.bases:  # a reference that a finalizer uses is the final one
            value = substitute(value, {b.ref: reference(b, var(b.name, "f32"))})
        axes = tuple(v.name for v in (self.found.row, *e.columns))
        return StoreTile(self.output(k), e.at, axes, value)

    # ------------------------------------------------------------------------------------ scratch

    def scratch(self, s: Base | Sum, *parts: Expr) -> TensorParam:
        """A scratch tensor [batch…, parts…, N, columns…] for a state, declared once."""
        name = f"part_{s.name}"
        found = next((p for p in self.params if p.name == name), None)
        if found is None:
            columns = () if isinstance(s, Base) else tuple(self.found.extents[v] for v in s.payload)
            shape = (*(index(f"n_{v.name}") for v in self.found.batch), *parts, self.row_extent(), *columns)
            found = TensorParam(name, "f32", shape, "scratch", len(shape) - 1)
            self.params.append(found)
        return found

    def scratch_at(self, s: Base | Sum, *parts: Expr) -> tuple[Expr, ...]:
        """The index of a state's element in its scratch tensor."""
        return (*self.found.batch, *parts, self.found.row, *(() if isinstance(s, Base) else s.payload))

    def spill(self, s: Base | Sum, *parts: Expr, shape: tuple[Expr, ...] = ()) -> Stmt:
        """Writes a state to its scratch tensor."""
        param = self.scratch(s, *shape)
        return StoreTile(param.name, self.scratch_at(s, *parts), self.state(s).axes, var(s.name, "f32"))

    def spilled(self, s: Base | Sum, *parts: Expr, shape: tuple[Expr, ...] = ()) -> Expr:
        """A state's element as it stands in its scratch tensor."""
        return load(self.scratch(s, *shape).name, self.scratch_at(s, *parts), "f32")

    # ------------------------------------------------------------------------------------ the rest

    def summaries(self) -> tuple[Summary, ...]:
        """The per-tile summaries that the phases read, their parameters declared."""
        out: list[Summary] = []
        lengths = {self.i: (index("N"), self.schedule.tile_m), self.j: (index("M"), self.schedule.tile_n)}
        for r in self.tiling.summaries:
            counts = [
                call("floordiv", call("add", extent, integer_const(length - 1)), integer_const(length))
                for extent, length in (lengths[v.name] for v in r.axes)
            ]
            outer = tuple(Loop(v, index(f"n_{v.name}")) for v in r.outer)
            shape = (*(v.extent for v in outer), *counts)
            self.params.append(TensorParam(r.param, r.value.dtype, shape, "scratch", len(shape) - 1))
            axes = tuple(v.name for v in r.axes)
            # A value is looked at without the condition that selects it; elements that are never selected only widen the bounds.
            value = transform(r.value, lambda x: self._clamped(x) if isinstance(x, Load) else None)
            out.append(Summary(r.param, "min" if r.op == "min" else "max", axes, outer, self.put(value)))
        return tuple(out)

    def free_sizes(self, body: tuple[Parallel, ...], summaries: Iterable[Summary]) -> list[str]:
        """Size symbols of the source graph that expressions use (an offset such as m - n)."""
        bound = {v.name for v in (*self.found.extents, self.flag)} | {f"{v.name}0" for v in self.found.extents} 
        bound |= {"c", "c0", "part"}
        names: set[str] = set()
        for e in (*expressions(body), *(s.value for s in summaries)):
            names |= {v.name for v in variables(e) if v.dtype == "i64" and v.name not in bound and v.name not in self.sizes}
        return sorted(names)


def identity(b: Base) -> Const:
    """The extremum of nothing."""
    return MONOIDS[b.op].nothing("f32")


def reference(b: Base, extremum: Expr) -> Expr:
    """The reference that goes with an extremum: 0 while nothing was seen (streaming.md 1.6)."""
    return call("where", call("eq", extremum, identity(b)), const(0.0, "f32"), extremum)


def old_reference(b: Base, extremum: Expr) -> Expr:
    """What stands for the old reference when sums are rebased: while the extremum is the identity nothing has been summed, so
    that any factor is right but NaN."""
    return extremum if b.op == "max" else call("where", call("eq", extremum, identity(b)), b.ref, extremum)
