"""What a region's kernel is made of by name: parameters, sizes, axes, state tiles, summaries.

Names of tensors and sizes are canonical (Q, K, V, X1, …; sizes as symbols), so that one kernel serves every region of the same
form: the layers of a model, and every length. What they stand for in the module is the `Binding`. Tiles have the names of MCIR's
values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

from aicf.kernel.ir import Axis, Fill, LoadTile, Loop, Map, Parallel, Space, Stmt, StoreTile, Summary, TensorParam, Tile
from aicf.kernel.visit import expressions
from aicf.mcir.axes import RegionAxis
from aicf.mcir.lowered import Extremum, LoweredRegion, Store, Sum
from aicf.mcir.lowered import Load as LoadedTile
from aicf.mcir.payloads import identity_of
from aicf.mcir.phases import Phases
from aicf.mcir.types import Dim, scalar_dtype
from aicf.mcir.values import MCValue
from aicf.scalar import (
    Call,
    Const,
    Expr,
    Load,
    Var,
    call,
    const,
    in_a_branch,
    index,
    integer_const,
    load,
    transform,
    var,
    variables,
    walk,
)


@dataclass(frozen=True)
class Binding:
    """What a kernel's names stand for: its tensors -> tensors of the module (inputs, outputs), its sizes -> expressions of
    sizes of the source graph."""

    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    sizes: Mapping[str, Expr]


class KernelLoweringError(ValueError):
    """A region that no kernel can be made of: what is missing, and what to do."""


class KernelBuilder:
    """The names of one region's kernel. Parameters are added as they are declared; sizes as they are first used."""

    def __init__(self, region: LoweredRegion) -> None:
        self.region = region
        self.i, self.j = region.row.variable.name, region.stream.variable.name
        self.flag = index("skipping")
        self.sizes: dict[str, Expr] = {}
        self.params: list[TensorParam] = []
        self.lengths: dict[Expr, Expr] = {a.variable: self.length(a) for a in self._all_axes()}
        self.phases = region.phases or self._everything()
        self.tensors = self._tensor_names()
        self.scores = region.scores[0].tile if region.scores else None
        self._declare()
        self.axes = self._axes()

    def _everything(self) -> Phases:
        """Nothing is proved: every tile is computed, and no condition is known to hold in any."""
        r = self.region
        end = call("add", index(self.j + "0"), integer_const(r.tile_n))
        return Phases(r.tile_m, r.tile_n, 0, const(False, "bool"), call("le", end, r.stream.extent))

    # ------------------------------------------------------------------------------------ tensors and sizes

    def _tensor_names(self) -> dict[str, str]:
        names: dict[str, str] = {}
        for source, short in zip(self.region.roles, "QKV", strict=True):
            if source in self.region.tensors:
                names.setdefault(source, short)
        others = (source for source in self.region.tensors if source not in names)
        return names | {source: f"X{k}" for k, source in enumerate(others, 1)}

    def _dimension(self, tensor: str, k: int) -> str:
        """The size symbol of dimension `k` of a tensor: `Q_0`, or `Q_0_`, ... where the region's own sizes have that name."""
        name = f"{tensor}_{k}"
        while name in self.region.sizes:
            name += "_"
        return name

    def _size(self, name: str, e: Expr) -> Expr:
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
        source = self.region.tensors.get(x.tensor)
        if source is None:
            return x
        at: list[Expr] = []
        for k, (i, dim) in enumerate(zip(x.index, map(_expression, source.shape), strict=True)):
            within = isinstance(i, Const) or (isinstance(i, Var) and self.lengths.get(i) is dim)
            # A symbol of the source graph may be none of the region's: the tensor's own size is always known.
            size = dim if isinstance(dim, Const) else index(self._dimension(self.tensors[x.tensor], k))
            last = call("sub", size, integer_const(1))
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

    def _all_axes(self) -> tuple[RegionAxis, ...]:
        r = self.region
        return (r.row, r.stream, *r.batch, *r.contracted, *r.columns)

    def length(self, axis: RegionAxis) -> Expr:
        """The extent of an axis in the sizes of the source graph."""
        return self.region.sizes[axis.extent.name] if isinstance(axis.extent, Var) else axis.extent

    def _declare(self) -> None:
        r = self.region
        for source, name in self.tensors.items():
            value = r.tensors[source]
            shape = tuple(self._size(self._dimension(name, k), d) for k, d in enumerate(map(_expression, value.shape)))
            self.params.append(TensorParam(name, scalar_dtype(value.dtype), shape, "in", len(shape) - 1 if shape else None))
        for name, e in r.sizes.items():
            if any(isinstance(a.extent, Var) and a.extent.name == name for a in (r.row, r.stream, *r.batch)):
                self._size(name, e)
        for k, s in enumerate(r.stores):
            value = r.outputs[s.target]
            dims = zip(s.payload.index, map(_expression, value.shape), strict=True)
            shape = tuple(self._extent(x, d, self._dimension(self.output(k), n)) for n, (x, d) in enumerate(dims))
            self.params.append(
                TensorParam(self.output(k), scalar_dtype(value.dtype), shape, "out", len(shape) - 1 if shape else None)
            )

    @staticmethod
    def output(k: int) -> str:
        """The name of the k-th output."""
        return "O" if k == 0 else f"O{k + 1}"

    def _extent(self, position: Expr, dim: Expr, name: str) -> Expr:
        """The size of an output's dimension, `dim` in the source graph, that is indexed by `position`."""
        if isinstance(position, Const):
            return integer_const(1)
        for axis in self._all_axes():
            if axis.variable is position:
                return axis.extent
        return self._size(name, dim)  # a stacked head: group * head + row

    def _axes(self) -> list[Axis]:
        r = self.region
        whole = [Axis(a.variable.name, a.extent, _number(a.extent)) for a in (*r.contracted, *r.columns)]
        return [Axis(self.i, r.row.extent, r.tile_m), Axis(self.j, r.stream.extent, r.tile_n), *whole]

    def batch_loops(self) -> tuple[Loop, ...]:
        """One loop per batch variable."""
        return tuple(Loop(a.variable, a.extent) for a in self.region.batch)

    def row_loop(self) -> Loop:
        """The loop over row tiles."""
        return Loop(self.axes[0].origin, self.axes[0].extent, self.axes[0].tile)

    # ------------------------------------------------------------------------------------ tiles and states

    def tile(self, value: MCValue) -> Tile:
        """The tile of a value of the module: its name, type, axes and memory."""
        return Tile(value.name, scalar_dtype(value.dtype), value.axes, cast("Space", str(value.residency)))

    def score_tile(self, name: str) -> Tile:
        """A tile of what is made of scores: it lives where they do."""
        space: Space = "register" if self.scores is None else cast("Space", str(self.scores.residency))
        return Tile(name, "f32", (self.i, self.j), space)

    def row_tile(self, name: str) -> Tile:
        """A tile with one value per row that lives within a block of rows."""
        return Tile(name, "f32", (self.i,), "register")

    def states(self) -> tuple[Extremum | Sum, ...]:
        """All carried states, extrema first."""
        return (*self.region.extrema, *self.region.sums)

    def operand(self, loaded: LoadedTile) -> tuple[Tile, Stmt]:
        """The tile of a contraction's operand, and the statement that fills it."""
        tile = self.tile(loaded.tile)
        if loaded.payload.index is not None:
            return tile, LoadTile(tile, self.tensors[loaded.source], tuple(map(self.put, loaded.payload.index)))
        assert loaded.payload.element is not None
        return tile, Map(tile, self.put(loaded.payload.element))

    def initial(self) -> list[Stmt]:
        """The states before anything was streamed."""
        out: list[Stmt] = []
        for x in self.region.extrema:
            start = identity_of(x.extremum.op) if x.extremum.init is None else self.put(x.extremum.init)
            out.append(Fill(self.tile(x.state), start) if isinstance(start, Const) else Map(self.tile(x.state), start))
        return out + [Fill(self.tile(s.state), const(0.0, "f32")) for s in self.region.sums]

    def stores(self) -> list[Stmt]:
        """What is written when the stream is over."""
        return [self._store(k, s) for k, s in enumerate(self.region.stores)]

    def _store(self, k: int, s: Store) -> Stmt:
        return StoreTile(self.output(k), tuple(map(self.put, s.payload.index)), s.axes, self.put(s.payload.program))

    # ------------------------------------------------------------------------------------ scratch

    def scratch(self, state: MCValue, *parts: Expr) -> TensorParam:
        """A scratch tensor [batch…, parts…, rows, columns…] for a state, declared once."""
        name = f"part_{state.name}"
        made = next((p for p in self.params if p.name == name), None)
        if made is None:
            extents = {a.variable.name: a.extent for a in self._all_axes()}
            shape = (*(a.extent for a in self.region.batch), *parts, *(extents[a] for a in state.axes))
            made = TensorParam(name, "f32", shape, "scratch", len(shape) - 1)
            self.params.append(made)
        return made

    def scratch_at(self, state: MCValue, *parts: Expr) -> tuple[Expr, ...]:
        """The index of a state's element in its scratch tensor."""
        return (*(a.variable for a in self.region.batch), *parts, *(index(a) for a in state.axes))

    def spill(self, state: MCValue, *parts: Expr, shape: tuple[Expr, ...] = ()) -> Stmt:
        """Writes a state to its scratch tensor."""
        param = self.scratch(state, *shape)
        return StoreTile(param.name, self.scratch_at(state, *parts), state.axes, var(state.name, "f32"))

    def spilled(self, state: MCValue, *parts: Expr, shape: tuple[Expr, ...] = ()) -> Expr:
        """A state's element as it stands in its scratch tensor."""
        return load(self.scratch(state, *shape).name, self.scratch_at(state, *parts), "f32")

    # ------------------------------------------------------------------------------------ the rest

    def summaries(self) -> tuple[Summary, ...]:
        """The per-tile summaries that the phases read, their parameters declared."""
        out: list[Summary] = []
        r = self.region
        lengths = {self.i: (r.row.extent, r.tile_m), self.j: (r.stream.extent, r.tile_n)}
        extents = {a.variable: a.extent for a in r.batch}
        for s in self.phases.summaries:
            counts = [
                call("floordiv", call("add", extent, integer_const(length - 1)), integer_const(length))
                for extent, length in (lengths[v.name] for v in s.axes)
            ]
            outer = tuple(Loop(v, extents[v]) for v in s.outer)
            shape = (*(v.extent for v in outer), *counts)
            self.params.append(TensorParam(s.name, s.value.dtype, shape, "scratch", len(shape) - 1))
            # A value is looked at without the condition that selects it; elements that are never selected only widen the bounds.
            value = transform(s.value, lambda x: self._clamped(x) if isinstance(x, Load) else None)
            out.append(Summary(s.name, s.op, tuple(v.name for v in s.axes), outer, self.put(value)))
        return tuple(out)

    def free_sizes(self, body: tuple[Parallel, ...], summaries: Iterable[Summary]) -> list[str]:
        """Size symbols of the region that expressions use beside the extents of axes (an offset such as m - n)."""
        names: set[str] = set()
        for e in (*expressions(body), *(s.value for s in summaries)):
            names |= {v.name for v in variables(e) if v.dtype == "i64" and v.name not in self.sizes}
        return sorted(names & set(self.region.sizes))


def old_reference(x: Extremum, extremum: Expr, sums: Iterable[Sum]) -> Expr:
    """What stands for the old reference when sums are rebased: while the extremum is the identity nothing has been summed, so
    that any factor is right but NaN. So it is at the other infinity, where a mask keeps the score that is infinite out of a sum:
    the terms that are in it are 0."""
    identity = identity_of(x.extremum.op)
    old, new = extremum, cast(Expr, x.extremum.reference)
    if any(in_a_branch(s.sum.weight, x.extremum.reference) for s in sums):
        other, zero = const(-float(identity.value), identity.dtype), const(0.0, identity.dtype)
        old, new = (call("where", call("eq", e, other), zero, e) for e in (old, new))
    return old if x.extremum.op == "max" else call("where", call("eq", extremum, identity), new, old)


def _expression(dim: Dim) -> Expr:
    return integer_const(dim) if isinstance(dim, int) else dim


def _number(e: Expr) -> int:
    assert isinstance(e, Const)
    return int(e.value)
