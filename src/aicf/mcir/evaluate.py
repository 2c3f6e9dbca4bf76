"""MCIR executed with NumPy, tile by tile as it is scheduled: the meaning of the language.

    evaluate_module(module, {"Q": q, "K": k, "V": v})  ->  {"O": o}

Loads, products, states and stores run node by node; tiles are walked in the region's order and split, skipped where its phases
say so, and done again where a skipped score could have counted. bf16 tensors are float32 arrays of bf16 values. Lanes that do
not exist are never computed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from aicf.mcir.lowered import Load as LoadedTile
from aicf.mcir.lowered import LoweredRegion, Sum, lowered_region
from aicf.mcir.module import MCModule
from aicf.mcir.payloads import RunningSum, identity_of
from aicf.mcir.phases import Phases
from aicf.mcir.types import scalar_dtype
from aicf.mcir.values import MCValue
from aicf.scalar import (
    ABSORBED,
    Const,
    Expr,
    Load,
    Var,
    const,
    evaluate,
    in_a_branch,
    integer,
    is_float,
    numpy_dtype,
    round_to,
    substitute,
    tile_extremes,
    variables,
)


def evaluate_module(module: MCModule, tensors: Mapping[str, Any], sizes: Mapping[str, int] | None = None) -> dict[str, Any]:
    """The outputs of all regions of a lowered module, by name. `tensors`: arrays by the names of the regions' inputs; what a
    region gives, later ones may read. `sizes`: values of size symbols that the shapes do not tell.

    Raises ValidationError for an invalid module, ValueError for tensors that do not fit their declaration.
    """
    given = {name: np.asarray(x) for name, x in tensors.items()}
    made: dict[str, Any] = {}
    for region in module.regions:
        out = _Run(lowered_region(region), {**given, **made}, dict(sizes or {})).run()
        made |= out
    return made


def _bound_sizes(r: LoweredRegion, tensors: Mapping[str, Any], given: Mapping[str, int]) -> dict[str, int]:
    """The values of the region's size symbols, from the shapes of its tensors."""
    symbols: dict[str, int] = dict(given)
    for pass_over in (True, False):  # symbols that stand alone first, then the others are checked
        for value in r.tensors.values():
            if value.name not in tensors:
                raise ValueError(f"no array is given for {value.name}; {r.name} reads {', '.join(r.tensors)}")
            shape = tensors[value.name].shape
            if len(shape) != len(value.shape):
                raise ValueError(f"{value.name} has {len(shape)} dimensions, it is declared with {len(value.shape)}")
            for dim, n in zip(value.shape, shape, strict=True):
                if pass_over and isinstance(dim, Var):
                    symbols.setdefault(dim.name, n)
                elif not pass_over and n != (dim if isinstance(dim, int) else _known(dim, symbols, r)):
                    raise ValueError(f"{value.name} has shape {list(shape)}; it does not fit {value.name}{list(value.shape)}")
    return {name: _known(e, symbols, r) for name, e in r.sizes.items()} | symbols


def _known(e: Expr, symbols: Mapping[str, int], r: LoweredRegion) -> int:
    missing = sorted(v.name for v in variables(e) if v.name not in symbols)
    if missing:
        raise ValueError(f"{r.name}: no shape tells the size {', '.join(missing)}; give it in sizes")
    return integer(e, symbols)


States = dict[str, Any]  # by name: one value per row, or per row and column


@dataclass
class _Run:
    """One region on given tensors."""

    r: LoweredRegion
    tensors: dict[str, Any]
    given: dict[str, int]
    sizes: dict[str, int] = field(default_factory=dict[str, int])
    outputs: dict[str, Any] = field(default_factory=dict[str, Any])
    env: dict[str, Any] = field(default_factory=dict[str, Any])  # sizes and batch variables
    skipping: bool = True

    def __post_init__(self) -> None:
        r = self.r
        self.sizes = _bound_sizes(r, self.tensors, self.given)
        self.rows, self.positions = (self._extent(a.extent) for a in (r.row, r.stream))
        self.i, self.j = r.row.variable.name, r.stream.variable.name
        self.widths = {a.variable.name: self._extent(a.extent) for a in (*r.contracted, *r.columns)}
        for value in r.outputs.values():
            shape = tuple(d if isinstance(d, int) else integer(d, self.sizes) for d in value.shape)
            dtype = scalar_dtype(value.dtype)
            self.outputs[value.name] = np.full(shape, np.nan if is_float(dtype) else 0, numpy_dtype(dtype))

    def _extent(self, e: Expr) -> int:
        return integer(e, self.sizes)

    def run(self) -> dict[str, Any]:
        r = self.r
        self.env = {name: np.int64(n) for name, n in self.sizes.items()}
        for s in r.phases.summaries if r.phases is not None else ():
            self.tensors[s.name] = self._summary(s.op, s.axes, s.outer, s.value)
        batch = [range(self._extent(a.extent)) for a in r.batch]
        for at in itertools.product(*batch):
            self.env |= {a.variable.name: np.int64(n) for a, n in zip(r.batch, at, strict=True)}
            if r.order == "kv_major":
                self._streamed_outside()
            else:
                for i0 in range(0, self.rows, r.tile_m):
                    self._rows_outside(i0)
        return self.outputs

    def _summary(self, op: Literal["min", "max"], axes: tuple[Var, ...], outer: tuple[Var, ...], value: Expr) -> Any:
        lengths = {self.i: (self.rows, self.r.tile_m), self.j: (self.positions, self.r.tile_n)}
        extents = {a.variable.name: self._extent(a.extent) for a in self.r.batch}
        return tile_extremes(
            op, {v.name: np.arange(extents[v.name]) for v in outer}, {v.name: lengths[v.name] for v in axes},
            lambda grid: self._value(value, {**self.env, **grid}),
        )  # fmt: skip

    # ------------------------------------------------------------------------------------ orders

    def _rows_outside(self, i0: int) -> None:
        self.skipping = True
        states = self._streamed_by_rows(i0)
        fill = self.r.phases.fill if self.r.phases is not None else None
        if fill is not None and any(not np.all(states[x.state.name] - np.float32(fill) >= ABSORBED) for x in self.r.extrema):
            self.skipping = False
            states = self._streamed_by_rows(i0)
        self._store(i0, states)

    def _streamed_by_rows(self, i0: int) -> States:
        low, high = self._bounds(i0)
        parts = self.r.kv_split
        if parts == 1:
            return self._stream(i0, low, high)
        tiles = -(-self.positions // self.r.tile_n)
        chunk = -(-tiles // parts) * self.r.tile_n
        states = self._initial(i0)
        for part in range(parts):
            one = self._stream(i0, max(low, part * chunk), min(high, (part + 1) * chunk))
            states = self._combined(states, one)
        return states

    def _stream(self, i0: int, low: int, high: int) -> States:
        states = self._initial(i0)
        for j0 in range(low, high, self.r.tile_n):
            self._tile(i0, j0, states, high)
        return states

    def _streamed_outside(self) -> None:
        """Every tile of streamed positions once, the rows' states kept in between."""
        # A finite fill would need a second run over everything: nothing is skipped then.
        self.skipping = self.r.phases is None or self.r.phases.fill is None
        starts = range(0, self.rows, self.r.tile_m)
        kept = {i0: self._initial(i0) for i0 in starts}
        for j0 in range(0, self.positions, self.r.tile_n):
            for i0 in starts:
                self._tile(i0, j0, kept[i0], self.positions)
        for i0 in starts:
            self._store(i0, kept[i0])

    def _bounds(self, i0: int) -> tuple[int, int]:
        low, high = 0, self.positions
        if self.skipping and self.r.phases is not None:
            env = {**self.env, f"{self.i}0": np.int64(i0)}
            low = max([low, *(int(self._value(e, env)) for e in self.r.phases.low)])
            high = min([high, *(int(self._value(e, env)) for e in self.r.phases.high)])
        return low, high

    # ------------------------------------------------------------------------------------ a tile

    def _tile(self, i0: int, j0: int, states: States, high: int) -> None:
        """One tile's step, if its phase computes anything."""
        p = self.r.phases
        env = {**self.env, f"{self.i}0": np.int64(i0), f"{self.j}0": np.int64(j0)}
        known: dict[Expr, Expr] = {}
        if p is not None:
            if self.skipping and bool(self._value(p.empty, env)):
                return
            if bool(self._value(p.full, env)):
                known = {c: const(v, "bool") for c, v in p.decided}
        last = min(j0 + self.r.tile_n, high)
        rows = np.arange(i0, min(i0 + self.r.tile_m, self.rows))
        loads = {x.tile.name: x for x in self.r.loads}
        for at in self._blocks(p, bool(known)):
            block = rows[at]
            if not len(block):
                continue
            end = last
            if p is not None and p.end is not None and not known and self.skipping and self.r.order == "q_major":
                end = min(last, int(self._value(p.end, {**env, f"{self.i}0": block[0]})))
            mine = {name: x[at] for name, x in states.items()}
            if end > j0:
                self._step(block, np.arange(j0, end), loads, mine, known)
            for name, x in mine.items():
                states[name][at] = x

    def _blocks(self, p: Phases | None, full: bool) -> Iterator[slice]:
        """The rows of a tile that are worked on together: all of them where nothing is said of blocks."""
        step = self.r.rows if p is not None and p.end is not None and not full else self.r.tile_m
        for start in range(0, self.r.tile_m, step):
            yield slice(start, start + step)

    def _step(self, rows: Any, positions: Any, loads: Mapping[str, LoadedTile], states: States, known: dict[Expr, Expr]) -> None:
        i, j = rows[:, None], positions[None, :]
        env: dict[str, Any] = {**self.env, self.i: i, self.j: j}
        for s in self.r.scores:
            a, b = (self._loaded(loads[v.name], rows, positions) for v in (s.row, s.streamed))
            env[s.tile.name] = _product(a, b.T)
        fresh: States = {}
        for x in self.r.extrema:
            name, op = x.state.name, x.extremum.op
            body = np.broadcast_to(self._value(substitute(x.extremum.body, known), env), (len(rows), len(positions)))
            reduce, both = (np.max, np.maximum) if op == "max" else (np.min, np.minimum)
            fresh[name] = both(states[name], reduce(body, axis=1))
            nothing = np.float32(identity_of(op).value)
            env[x.extremum.reference.name] = np.where(fresh[name] == nothing, np.float32(0), fresh[name])[:, None]
            old = states[name]
            if op == "min":
                old = np.where(old == nothing, env[x.extremum.reference.name][:, 0], old)
            if any(in_a_branch(s.sum.weight, x.extremum.reference) for s in self.r.sums):
                old = np.where(old == -nothing, np.float32(0), old)
            env[x.extremum.old.name] = old[:, None]
        new: States = {}
        for s in self.r.sums:
            weight = np.broadcast_to(self._value(substitute(s.sum.weight, known), env), (len(rows), len(positions)))
            own = self._rebased(s.sum, s, states, env)
            if s.values is None:
                new[s.state.name] = _added(own, weight.sum(axis=1, dtype=np.float32))
            else:
                values = self._loaded(loads[s.values.name], rows, positions)
                new[s.state.name] = _added(own, _product(weight, values))
        states |= fresh | new

    def _rebased(self, s: RunningSum, at: Sum, states: States, env: Mapping[str, Any]) -> Any:
        """A sum's old value at the new references."""
        wide = len(at.state.axes) > 1
        old = states[s.state]
        scale = None if s.rescale is None else self._rowwise(s.rescale, env, wide, len(old))
        moved = old if scale is None else old * scale
        if s.shift is None:
            return moved
        distance = self._rowwise(s.shift.distance, env, wide, len(old))
        partner = states[s.shift.partner]
        if wide and np.ndim(partner) == 1:
            partner = partner[:, None]
        return moved + (distance if scale is None else distance * scale) * partner

    def _rowwise(self, e: Expr, env: Mapping[str, Any], wide: bool, rows: int) -> Any:
        value = np.broadcast_to(self._value(e, env), (rows, 1))
        return value if wide else value[:, 0]

    def _loaded(self, x: LoadedTile, rows: Any, positions: Any) -> Any:
        """A tile of an operand, in fp32, rounded to its own type."""
        where = {self.i: rows, self.j: positions, **{a: np.arange(n) for a, n in self.widths.items()}}
        axes = [where[a] for a in x.tile.axes]
        env = {
            **self.env,
            **{
                a: v.reshape([-1 if k == d else 1 for k in range(len(axes))])
                for d, (a, v) in enumerate(zip(x.tile.axes, axes, strict=True))
            },
        }
        value = np.broadcast_to(self._value(self.r.element(x), env), [len(a) for a in axes])
        return round_to(value, scalar_dtype(x.tile.dtype)).astype(np.float32)

    # ------------------------------------------------------------------------------------ states

    def _initial(self, i0: int) -> States:
        rows = np.arange(i0, min(i0 + self.r.tile_m, self.rows))
        made: States = {}
        for x in self.r.extrema:
            start = identity_of(x.extremum.op) if x.extremum.init is None else x.extremum.init
            value = self._value(start, {**self.env, self.i: rows})
            made[x.state.name] = np.broadcast_to(np.asarray(value, np.float32), rows.shape).copy()
        for s in self.r.sums:
            made[s.state.name] = np.zeros((len(rows), *self._columns(s.state)), np.float32)
        return made

    def _columns(self, value: MCValue) -> tuple[int, ...]:
        return tuple(self.widths[a] for a in value.axes[1:])

    def _combined(self, mine: States, theirs: States) -> States:
        """Two partial states of the same rows as one (docs/theory.md, T2)."""
        env: dict[str, Any] = dict(self.env)
        other = dict(env)
        both: States = {}
        for x in self.r.extrema:
            name, op = x.state.name, x.extremum.op
            both[name] = (np.maximum if op == "max" else np.minimum)(mine[name], theirs[name])
            nothing = np.float32(identity_of(op).value)
            reference = np.where(both[name] == nothing, np.float32(0), both[name])
            for at, old in ((env, mine[name]), (other, theirs[name])):
                at[x.extremum.reference.name] = reference[:, None]
                at[x.extremum.old.name] = (old if op == "max" else np.where(old == nothing, reference, old))[:, None]
        for s in self.r.sums:
            both[s.state.name] = _added(self._rebased(s.sum, s, mine, env), self._rebased(s.sum, s, theirs, other))
        return both

    def _store(self, i0: int, states: States) -> None:
        rows = np.arange(i0, min(i0 + self.r.tile_m, self.rows))
        for s in self.r.stores:
            widths = [len(rows), *(self.widths[a] for a in s.axes[1:])]
            rank = len(widths)
            env: dict[str, Any] = dict(self.env)
            for d, a in enumerate(s.axes):
                at = rows if d == 0 else np.arange(widths[d])
                env[a] = at.reshape([-1 if k == d else 1 for k in range(rank)])
            for value in (*(x.state for x in self.r.extrema), *(x.state for x in self.r.sums)):
                own = (
                    [widths[s.axes.index(a)] if a in value.axes else 1 for a in s.axes]
                    if set(value.axes) <= set(s.axes)
                    else None
                )
                if own is not None:
                    env[value.name] = states[value.name].reshape(own)
            out = self.outputs[s.target]
            where = tuple(np.broadcast_to(self._value(e, env), widths) for e in s.payload.index)
            result = np.broadcast_to(self._value(s.payload.program, env), widths)
            out[where] = round_to(result, scalar_dtype(self.r.outputs[s.target].dtype))

    # ------------------------------------------------------------------------------------ expressions

    def _value(self, e: Expr, env: Mapping[str, Any]) -> Any:
        if isinstance(e, Const):
            return round_to(e.value, e.dtype)
        return evaluate(e, env, self.tensors, read=self._read)

    def _read(self, x: Load, where: tuple[Any, ...]) -> Any:
        """An element; a selection may guard what lies outside of the tensor, which is read at the nearest place then."""
        array = self.tensors[x.tensor]
        inside = tuple(np.clip(w, 0, n - 1) for w, n in zip(where, array.shape, strict=True))
        return array[inside]


def _product(a: Any, b: Any) -> Any:
    with np.errstate(all="ignore"):
        return a.astype(np.float32) @ b.astype(np.float32)


def _added(a: Any, b: Any) -> Any:
    with np.errstate(all="ignore"):
        return np.asarray(a + b, np.float32)
