"""Kernel IR executed with NumPy, one work item after the other, as the docstrings of `ir.py` say, counting bytes moved.

This is the meaning of the language: lowering passes and backends are tested against it. Statements run on whole tiles, so small
sizes are fast. Lanes that do not exist are never computed; in a tile they hold poison (NaN, the largest integer, True), except
that a LoadTile leaves 0 there, so a program in which such a lane leaks into a result is found. Broken promises raise: a `whole`
phase with a missing lane, a load or store outside its tensor, a stream from an origin that is no multiple of the tile length,
and lanes that a block of rows may leave out (`RowBlock.ends`) but that count: such a kernel runs once more without these lanes,
and the results are compared.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aicf.kernel.indices import OutOfRange
from aicf.kernel.ir import (
    Check,
    Contract,
    Fill,
    Kernel,
    LoadTile,
    Map,
    Parallel,
    Reduce,
    Retry,
    RowBlock,
    Stmt,
    StoreTile,
    Stream,
    Summary,
    TensorParam,
    Tile,
    statements,
    written,
)
from aicf.kernel.summaries import summary_values
from aicf.kernel.trace import Trace
from aicf.scalar import (
    BYTES,
    MONOIDS,
    DType,
    Expr,
    Load,
    evaluate,
    integer,
    is_float,
    is_int,
    numpy_dtype,
    round_to,
    show,
    variables,
)

_REDUCE: dict[str, Any] = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def run_kernel(
    kernel: Kernel,
    tensors: dict[str, Any],
    sizes: Mapping[str, int],
    scalars: Mapping[str, float] | None = None,
    *,
    double: bool = False,
) -> Trace:
    """Execute `kernel`: `tensors` holds an array per tensor parameter (of any strides), outputs and scratch written in place.

    Scratch that is not given is allocated, poisoned, and added to `tensors`. bf16 tensors are float32 arrays of bf16 values,
    rounded when stored. `double` computes and keeps every float in float64 (give float64 outputs and scratch), the reference of
    the numeric contract. Raises ValueError for arrays that do not fit the declaration and for broken promises (see the module),
    IndexError for a check that fails, and for a load or store outside its tensor.
    """
    for name, array in allocate(kernel, sizes, ("scratch",), double=double).items():
        tensors.setdefault(name, array)
    for param in kernel.tensors:
        _fits(param, tensors, sizes)
    if not any(isinstance(s, RowBlock) and s.ends for s in statements(kernel.body)):
        return _run(kernel, tensors, sizes, scalars, double, leave_out=False)
    shortened = {p.name: tensors[p.name] if p.role == "in" else tensors[p.name].copy() for p in kernel.tensors}
    trace = _run(kernel, tensors, sizes, scalars, double, leave_out=False)
    _run(kernel, shortened, sizes, scalars, double, leave_out=True)
    _compare_without(kernel, tensors, shortened)
    return trace


def _compare_without(kernel: Kernel, tensors: Mapping[str, Any], shortened: Mapping[str, Any]) -> None:
    """ValueError where leaving out the lanes past `RowBlock.ends` changes a result. A result that is NaN may change: what
    such lanes hold may be assumed to be finite."""
    for name in (p.name for p in kernel.tensors if p.role == "out"):
        whole, without = tensors[name], shortened[name]
        wrong = np.argwhere((whole != without) & (whole == whole))
        if len(wrong):
            at = tuple(int(x) for x in wrong[0])
            ended = [s for s in statements(kernel.body) if isinstance(s, RowBlock)]
            ends = [f"rows {s.axis}: {a} before {show(e)}" for s in ended for a, e in s.ends]
            what = f"{name}{list(at)} is {whole[at]}, without lanes that were said not to count {without[at]}"
            raise ValueError(f"{what} ({'; '.join(dict.fromkeys(ends))})")


def _run(
    kernel: Kernel, tensors: dict[str, Any], sizes: Mapping[str, int], scalars: Mapping[str, float] | None, double: bool, *,
    leave_out: bool,
) -> Trace:  # fmt: skip
    env: dict[str, Any] = {name: int(sizes[name]) for name in kernel.sizes}
    for s in kernel.scalars:
        given = (scalars or {})[s.name]
        env[s.name] = round_to(given, _stored(s.dtype, double))
    machine = _Machine(kernel, tensors, env, double, leave_out)
    for param in kernel.tensors:
        if param.role == "out":
            machine.stored[param.name] = np.zeros(tensors[param.name].shape, np.int64)
    for check in kernel.checks:
        machine.check(check)
    for summary in kernel.summaries:
        machine.summarise(summary)
    machine.body(kernel.body)
    for name, count in machine.stored.items():
        machine.trace.stores[name] = (int(count.min()), int(count.max())) if count.size else (1, 1)
    return machine.trace


def allocate(
    kernel: Kernel, sizes: Mapping[str, int], roles: tuple[str, ...] = ("out", "scratch"), *, double: bool = False
) -> dict[str, Any]:
    """Arrays for the tensor parameters of `roles`, contiguous, filled with poison; float64 for every float when `double`."""
    made: dict[str, Any] = {}
    for param in kernel.tensors:
        if param.role in roles:
            shape = tuple(integer(e, sizes) for e in param.shape)
            made[param.name] = _poisoned(shape, _stored(param.dtype, double))
    return made


def _stored(dtype: DType, double: bool) -> DType:
    """The type in which values of `dtype` are kept."""
    return "f64" if double and is_float(dtype) else dtype


def _poisoned(shape: tuple[int, ...], dtype: DType) -> Any:
    """An array of values that no right program looks at."""
    poison = math.nan if is_float(dtype) else True if dtype == "bool" else np.iinfo(numpy_dtype(dtype)).max
    return np.full(shape, poison, numpy_dtype(dtype))


def _fits(param: TensorParam, tensors: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    if param.name not in tensors:
        raise ValueError(f"no array given for the {param.role} tensor {param.name}")
    array = tensors[param.name]
    shape = tuple(integer(e, sizes) for e in param.shape)
    if array.shape != shape:
        raise ValueError(f"{param.name} has shape {list(array.shape)}, the kernel declares {list(shape)}")
    if param.unit is not None and shape[param.unit] > 1 and array.size and array.strides[param.unit] != array.itemsize:
        raise ValueError(f"{param.name} is declared to have stride 1 in dimension {param.unit}, the array given has not")


@dataclass
class _Value:
    """A tile's elements; `start` is where each axis of the array begins, relative to the axis' origin."""

    tile: Tile
    array: Any
    start: tuple[int, ...]
    bytes: int


@dataclass
class _Machine:
    kernel: Kernel
    tensors: dict[str, Any]
    env: dict[str, Any]  # sizes, scalars, loop variables, origins, flags
    double: bool
    leave_out: bool  # lanes at or past `RowBlock.ends`
    trace: Trace = field(default_factory=Trace)
    stored: dict[str, Any] = field(default_factory=dict[str, Any])  # how often each element of an out tensor was written
    tiles: dict[str, _Value] = field(default_factory=dict[str, _Value])
    end: dict[str, int] = field(default_factory=dict[str, int])  # of streamed axes: where the stream's range ends
    window: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])  # of blocked axes: start and length
    block: dict[str, int] = field(default_factory=dict[str, int])  # of blocked axes: rows of one block, for live bytes
    repeat: dict[str, int] = field(default_factory=dict[str, int])  # of blocked axes: blocks that run together
    # Of streamed axes whose last lanes are left out: the blocked axis, and for each of its existing rows the first lane left out.
    limits: dict[str, tuple[str, Any]] = field(default_factory=dict[str, tuple[str, Any]])
    live: dict[Any, int] = field(default_factory=dict[Any, int])
    axes: dict[str, tuple[str, int, int]] = field(default_factory=dict[str, tuple[str, int, int]])  # origin's name, tile, extent

    def __post_init__(self) -> None:
        for axis in self.kernel.axes:
            self.axes[axis.name] = (axis.origin.name, axis.tile, integer(axis.extent, self.env))

    # ------------------------------------------------------------------------------------------ lanes

    def span(self, axis: str) -> tuple[int, int]:
        """(start, length) of what is seen of `axis`, relative to its origin."""
        return self.window.get(axis) or (0, self.axes[axis][1])

    def existing(self, axis: str) -> tuple[int, int]:
        """(global position of the first lane seen, number of lanes that exist: always the first ones)."""
        origin, _, extent = self.axes[axis]
        start, length = self.span(axis)
        first = self.env.get(origin, 0) + start
        last = min(extent, self.end.get(axis, extent))
        return first, max(0, min(length, last - first))

    def counts(self, axes: tuple[str, ...]) -> tuple[int, ...]:
        return tuple(self.existing(a)[1] for a in axes)

    def left_out(self, axes: tuple[str, ...], over: str) -> Any:
        """Which of the existing lanes of `axes` are left out of a sum over `over`; None when none is."""
        rows, firsts = self.limits.get(over, ("", None))
        if rows not in axes:
            return None
        first, count = self.existing(over)
        out = np.arange(first, first + count) >= np.expand_dims(firsts, 1)
        order = (rows, over) if axes.index(rows) < axes.index(over) else (over, rows)
        return np.expand_dims(out if order[0] == rows else out.T, tuple(d for d, a in enumerate(axes) if a not in order))

    def times(self, axes: frozenset[str] | tuple[str, ...]) -> int:
        """How many blocks that run together each do something that has `axes` only."""
        return math.prod(n for a, n in self.repeat.items() if a not in axes)

    def see(self, value: _Value) -> Any:
        """The existing lanes of a tile, as a view."""
        where: list[slice] = []
        for axis, start in zip(value.tile.axes, value.start, strict=True):
            offset = self.span(axis)[0] - start
            where.append(slice(offset, offset + self.existing(axis)[1]))
        return value.array[tuple(where)]

    def spread(self, value: _Value, axes: tuple[str, ...]) -> Any:
        """The existing lanes of a tile with the dimensions `axes`, those that it lacks of length 1."""
        own = value.tile.axes
        array = self.see(value).transpose([own.index(a) for a in axes if a in own])
        return np.expand_dims(array, tuple(d for d, a in enumerate(axes) if a not in own))

    # ------------------------------------------------------------------------------------------ counting

    def reads(self, tile: Tile) -> None:
        lanes = math.prod(self.counts(tile.axes))
        self.trace.tile_read[tile.space] += lanes * self.times(tile.axes) * BYTES[tile.dtype]

    def axes_of(self, e: Expr) -> frozenset[str]:
        """The tile axes on which the value of `e` depends."""
        names = {v.name for v in variables(e)}
        axes = {a.name for a in self.kernel.axes if a.name in names}
        for name in names & self.tiles.keys():
            axes |= set(self.tiles[name].tile.axes)
        return frozenset(axes)

    # ------------------------------------------------------------------------------------------ expressions

    def value(self, e: Expr, axes: tuple[str, ...] = ()) -> Any:
        """`e` over the existing lanes of `axes` (not broadcast), its loads and tile operands counted."""
        env = dict(self.env)
        for v in variables(e):
            if v.name in env:
                continue
            if v.name in self.tiles:
                known = self.tiles[v.name]
                missing = [a for a in known.tile.axes if a not in axes]
                if missing:
                    raise ValueError(f"tile {v.name} has axis {missing[0]}, which `{show(e)}` over [{', '.join(axes)}] has not")
                env[v.name] = self.spread(known, axes)
                self.reads(known.tile)
            elif v.name in axes:
                first, count = self.existing(v.name)
                others = tuple(d for d, a in enumerate(axes) if a != v.name)
                env[v.name] = np.expand_dims(np.arange(first, first + count), others)
        return evaluate(e, env, self.tensors, double=self.double, read=self.element)

    def element(self, load: Load, where: tuple[Any, ...]) -> Any:
        got, lanes = self.gather(load.tensor, load.index, where)
        self.trace.read[load.tensor] += lanes * self.times(self.axes_of(load)) * BYTES[self.kernel.tensor(load.tensor).dtype]
        return round_to(got, _stored(load.dtype, self.double))

    def gather(self, name: str, at: tuple[Expr, ...], where: tuple[Any, ...]) -> tuple[Any, int]:
        """Elements of a tensor and how many."""
        index: tuple[Any, ...] = tuple(np.broadcast_arrays(*where)) if where else ()
        self.inside(name, at, index)
        return self.tensors[name][index], math.prod(index[0].shape) if index else 1

    def inside(self, name: str, at: tuple[Expr, ...], where: Any) -> None:
        shape = self.tensors[name].shape
        for dim, (n, index) in enumerate(zip(shape, where, strict=True)):
            if index.size and (index.min() < 0 or index.max() >= n):
                text = f"{name}[{', '.join(map(show, at))}]"
                raise IndexError(f"{text}: dimension {dim} has {n} elements, the index runs from {index.min()} to {index.max()}")

    # ------------------------------------------------------------------------------------------ tiles

    def target(self, tile: Tile) -> _Value:
        known = self.tiles.get(tile.name)
        if known is not None:
            if known.tile != tile:
                raise ValueError(f"tile {tile.name} is written as {tile}, but was defined as {known.tile}")
            return known
        spans = [self.span(a) for a in tile.axes]
        array = _poisoned(tuple(n for _, n in spans), _stored(tile.dtype, self.double))
        size = BYTES[tile.dtype] * math.prod(self.block.get(a, self.axes[a][1]) for a in tile.axes)
        made = _Value(tile, array, tuple(s for s, _ in spans), size)
        self.tiles[tile.name] = made
        self.live[tile.space] = self.live.get(tile.space, 0) + size
        self.trace.peak[tile.space] = max(self.trace.peak[tile.space], self.live[tile.space])
        return made

    def write(self, tile: Tile, value: Any) -> None:
        lanes = self.see(self.target(tile))
        lanes[...] = round_to(value, _stored(tile.dtype, self.double))
        self.trace.tile_written[tile.space] += lanes.size * self.times(tile.axes) * BYTES[tile.dtype]

    def scoped(self, body: tuple[Stmt, ...]) -> None:
        """Run `body`; the tiles that it defines end with it."""
        before = dict(self.tiles)
        self.body(body)
        for name, value in self.tiles.items():
            if name not in before:
                self.live[value.tile.space] -= value.bytes
        self.tiles = before

    # ------------------------------------------------------------------------------------------ statements

    def body(self, body: tuple[Stmt, ...]) -> None:
        for statement in body:
            self.step(statement)

    def step(self, s: Stmt) -> None:
        match s:
            case Fill():
                self.write(s.tile, self.value(s.value))
            case Map():
                self.write(s.tile, self.value(s.expr, s.tile.axes))
            case LoadTile():
                self.load(s)
            case Reduce():
                self.reduce(s)
            case Contract():
                self.contract(s)
            case StoreTile():
                self.store(s)
            case RowBlock():
                self.rows(s)
            case Stream():
                self.stream(s)
            case Retry():
                self.retry(s)
            case Parallel():
                self.parallel(s)

    def load(self, s: LoadTile) -> None:
        axes = s.tile.axes
        got, lanes = self.gather(s.tensor, s.at, tuple(np.asarray(self.value(e, axes)) for e in s.at))
        depends = frozenset[str]().union(*(self.axes_of(e) for e in s.at))
        self.trace.read[s.tensor] += lanes * self.times(depends) * BYTES[self.kernel.tensor(s.tensor).dtype]
        whole = self.target(s.tile)
        where = tuple(
            slice(self.span(a)[0] - start, sum(self.span(a)) - start) for a, start in zip(axes, whole.start, strict=True)
        )
        whole.array[where] = 0
        self.write(s.tile, np.broadcast_to(got, self.counts(axes)))

    def reduce(self, s: Reduce) -> None:
        axes = (*s.tile.axes, s.axis)
        shape = self.counts(axes)
        kept = _stored(s.tile.dtype, self.double)
        wide = "f32" if kept in ("f16", "bf16") else kept
        value = round_to(np.broadcast_to(self.value(s.expr, axes), shape), wide)
        out = self.left_out(axes, s.axis)
        if out is not None:
            value = np.where(out, np.asarray(MONOIDS[s.op].identity(wide), value.dtype), value)
        old = self.see(self.target(s.tile)) if s.accumulate else None
        if s.accumulate:
            self.reads(s.tile)
        with np.errstate(all="ignore"):
            if s.op == "sum":
                # Kernel IR fixes no order of additions, so no order's rounding shows.
                exact = np.float64 if np.issubdtype(value.dtype, np.floating) else value.dtype
                total = value.sum(axis=-1, dtype=exact).astype(value.dtype)
            elif shape[-1] == 0:
                total = np.full(shape[:-1], MONOIDS[s.op].identity(wide), value.dtype)
            else:
                total = _REDUCE[s.op].reduce(value, axis=-1)
            self.write(s.tile, total if old is None else _REDUCE[s.op](round_to(old, wide), total))

    def contract(self, s: Contract) -> None:
        kept = _stored(s.tile.dtype, self.double)
        wide = "i64" if is_int(kept) else "f64" if kept == "f64" else "f32"
        sides: list[Any] = []
        for operand in (s.a, s.b):
            known = self.tiles[operand.name]
            self.reads(operand)
            rest = [d for d, a in enumerate(operand.axes) if a != s.over]
            array = round_to(self.see(known).transpose([*rest, operand.axes.index(s.over)]), wide)
            out = self.left_out((*(operand.axes[d] for d in rest), s.over), s.over)
            sides.append(array if out is None else np.where(out, np.zeros_like(array), array))
        a, b = sides
        outer = (*(x for x in s.a.axes if x != s.over), *(x for x in s.b.axes if x != s.over))
        with np.errstate(all="ignore"):
            exact = np.float64 if np.issubdtype(a.dtype, np.floating) else a.dtype
            product = a.reshape(-1, a.shape[-1]).astype(exact) @ b.reshape(-1, b.shape[-1]).T.astype(exact)
            total = product.astype(a.dtype).reshape(self.counts(outer)).transpose([outer.index(x) for x in s.tile.axes])
            if s.accumulate:
                self.reads(s.tile)
                old = round_to(self.see(self.target(s.tile)), wide)
                if s.rescale is not None:
                    self.reads(s.rescale)
                    factor = self.spread(self.tiles[s.rescale.name], s.tile.axes)
                    old = old * round_to(factor, wide)
                total = old + total
        self.write(s.tile, total)

    def store(self, s: StoreTile) -> None:
        param = self.kernel.tensor(s.tensor)
        shape = self.counts(s.axes)
        value = np.broadcast_to(self.value(s.expr, s.axes), shape)
        where = [np.broadcast_to(self.value(e, s.axes), shape) for e in s.at]
        self.inside(s.tensor, s.at, where)
        self.tensors[s.tensor][tuple(where)] = round_to(value, _stored(param.dtype, self.double))
        self.trace.written[s.tensor] += value.size * self.times(s.axes) * BYTES[param.dtype]
        if s.tensor in self.stored:
            np.add.at(self.stored[s.tensor], tuple(where), 1)

    def rows(self, s: RowBlock) -> None:
        start, length = self.span(s.axis)
        count = self.existing(s.axis)[1]  # blocks without an existing row have nothing to do
        blocks = -(-count // s.step)
        together = _rowwise(s)
        outer = dict(self.window), dict(self.block), dict(self.repeat), dict(self.limits)
        self.block[s.axis] = s.step
        if together and blocks:
            self.repeat[s.axis] = blocks
        for first in range(0, count, max(count, 1) if together else s.step):
            size = blocks * s.step if together else s.step
            self.window[s.axis] = (start + first, min(size, length - first))
            if self.leave_out:
                self.limits.update(self.ends(s))
            self.scoped(s.body)
        self.window, self.block, self.repeat, self.limits = outer

    def ends(self, s: RowBlock) -> dict[str, tuple[str, Any]]:
        """For each axis that `s` ends, for each existing row, the end of the row's block."""
        first, count = self.existing(s.axis)
        blocks = first + np.arange(count) // s.step * s.step
        env = {**self.env, self.axes[s.axis][0]: blocks}
        ends = {a: evaluate(e, env, self.tensors, double=self.double, read=self._unseen) for a, e in s.ends}
        return {a: (s.axis, np.broadcast_to(end, blocks.shape)) for a, end in ends.items()}

    def stream(self, s: Stream) -> None:
        axis = self.kernel.axis(s.axis)
        lo, hi = int(self.value(s.lo)), int(self.value(s.hi))
        if lo % axis.tile:
            raise ValueError(f"stream {s.axis}0 starts at {lo}, which is no multiple of the tile length {axis.tile}")
        outer = dict(self.env), dict(self.end)
        for origin in range(lo, hi, axis.tile):
            self.env[axis.origin.name] = origin
            self.end[s.axis] = hi
            phase = next((p for p in s.phases if bool(self.value(p.when))), None)
            if phase is None:
                raise ValueError(f"stream {s.axis}0: no phase holds at {origin}")
            if phase.whole and self.existing(s.axis)[1] < axis.tile:
                raise ValueError(f"stream {s.axis}0: phase {phase.name} promises whole tiles, but the one at {origin} has a tail")
            self.trace.phases[s.axis, phase.name] += 1
            self.scoped(phase.body)
        self.env, self.end = outer

    def retry(self, s: Retry) -> None:
        outer = dict(self.env)
        self.env[s.flag.name] = 1
        self.body(s.body)
        count = self.counts((s.axis,))
        if np.broadcast_to(self.value(s.again, (s.axis,)), count).any():
            self.trace.retries += 1
            self.env[s.flag.name] = 0
            self.body(s.body)
        self.env = outer

    def parallel(self, s: Parallel) -> None:
        outer = dict(self.env)
        ranges = [range(0, int(self.value(v.extent)), v.step) for v in s.loops]
        for item in itertools.product(*ranges):
            self.env.update({v.var.name: at for v, at in zip(s.loops, item, strict=True)})
            self.trace.items += 1
            self.scoped(s.body)
        self.env = outer

    def check(self, c: Check) -> None:
        """OutOfRange where an index is not what it has to be; not counted. A few million of them at a time."""
        extent = integer(c.extent, self.env)
        walked = [(v.var.name, np.arange(0, integer(v.extent, self.env), v.step)) for v in c.loops]
        rest = math.prod(len(at) for _, at in walked[1:])
        each = max(1, (1 << 21) // max(rest, 1))
        firsts = range(0, len(walked[0][1]) if walked else 1, each)
        for first in firsts:
            env = dict(self.env)
            for d, (name, at) in enumerate(walked):
                at = at[first : first + each] if d == 0 else at
                env[name] = np.expand_dims(at, tuple(k for k in range(len(walked)) if k != d))
            if rest == 0:
                continue
            found = np.asarray(evaluate(c.value, env, self.tensors, read=self._unseen))
            if found.size and (found.min() < (-extent if c.wraps else 0) or found.max() >= extent):
                raise OutOfRange(c, int(found.min()), int(found.max()), extent)

    def _unseen(self, e: Load, where: tuple[Any, ...]) -> Any:
        return self.gather(e.tensor, e.index, where)[0]

    def summarise(self, s: Summary) -> None:
        """Fill a summary's parameter."""
        param = self.tensors[s.param]
        dtype = self.kernel.tensor(s.param).dtype
        values = summary_values(self.kernel, s, self.env, self.tensors, double=self.double, read=self.element)
        if values.size:
            param[...] = round_to(values, _stored(dtype, self.double))
        self.trace.written[s.param] += param.size * BYTES[dtype]


def _rowwise(rows: RowBlock) -> bool:
    """Do the blocks of `rows` not meet, so that all of them can run at once with the same result? (For speed alone.)"""
    for s in rows.body:
        tile = written(s)
        axes = s.axes if isinstance(s, StoreTile) else tile.axes if tile is not None else ()
        if rows.axis not in axes:
            return False
    return True
