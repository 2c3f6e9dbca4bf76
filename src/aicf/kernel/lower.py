"""Lowering a TileRegion to Kernel IR: its nodes become tile statements, its tiling the phases of the stream.

    load_tile(Q)          ->  q[i, d] : shared = load Q[b, h, i, d]
    compute_score         ->  rows i step 6:  s[i, j] = contract q, k over d
    update_softmax        ->    u = map <scores>; t = reduce max; new; ref; scale; p = map exp(u - ref); G_l = G_l * scale + sum p
    accumulate_output     ->    G_o[i, e] = G_o * scale + contract p, v over j
    store_tile(O)         ->  store O[b, h, i, e] = G_o / G_l

Names are made canonical (Q, K, V, X1, … and sizes as symbols), so that one kernel serves every region of the same form: the
layers of a model, and every length. What symbols and names stand for in the source graph is the `Binding`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from aicf.kernel.ir import (
    Axis,
    Contract,
    Fill,
    Kernel,
    LoadTile,
    Loop,
    Map,
    Parallel,
    Phase,
    Reduce,
    Retry,
    Rows,
    Stmt,
    StoreTile,
    Stream,
    Summary,
    TensorParam,
    Tile,
)
from aicf.mcir.nodes import MCNode
from aicf.mcir.passes.streaming_lowering import Operand, Tiling, finalizer, semantics
from aicf.mcir.regions import Region, StreamingRegion, TileRegion
from aicf.scalar import (
    Call,
    Const,
    DType,
    Expr,
    Load,
    Var,
    call,
    const,
    index,
    integer_const,
    is_float,
    load,
    show,
    substitute,
    transform,
    var,
    variables,
)
from aicf.semantic import Node
from aicf.streaming.recognise import Recognised
from aicf.streaming.stream_program import Base, StreamProgram, Sum

TRUE = const(True, "bool")
ABSORBED = 104.0  # exp(-104) is 0 in fp32 (streaming.md 2.1)


class Tiles(Protocol):
    """What lowering needs of a schedule."""

    @property
    def tile_m(self) -> int: ...
    @property
    def tile_n(self) -> int: ...
    @property
    def rows(self) -> int: ...


@dataclass(frozen=True)
class Binding:
    """What a kernel's names stand for: tensors -> source nodes (inputs, outputs), sizes -> expressions of source sizes."""

    inputs: Mapping[str, Node]
    outputs: Mapping[str, Node]
    sizes: Mapping[str, Expr]


class KernelLoweringError(ValueError):
    """A region tree that is not what the streaming lowering pass makes."""


def lower_to_kernel(
    region: Region, schedule: Tiles, *, units: Mapping[str, int | None] | None = None, header: tuple[str, ...] = ()
) -> tuple[Kernel, Binding]:
    """The kernel of a lowered region under a schedule, and what its names stand for.

    `units`: for each kernel tensor the dimension with stride 1 (None: no such dimension); last dimensions when left out.
    `header`: comment lines. Raises KernelLoweringError when the region has no stream.
    """
    stream = next((s for s in region.subregions if isinstance(s, StreamingRegion)), None)
    tile = next((t for t in (stream.subregions if stream else []) if isinstance(t, TileRegion)), None)
    if stream is None or tile is None:
        raise KernelLoweringError(f"region {region.name} has no tile region: run the streaming lowering pass first")
    return _Lowering(region, stream, tile, schedule, units or {}).kernel(header)


class _Lowering:
    def __init__(
        self, region: Region, stream: StreamingRegion, tile: TileRegion, schedule: Tiles, units: Mapping[str, int | None]
    ) -> None:
        self.region, self.tile, self.schedule, self.units = region, tile, schedule, units
        self.found: Recognised = semantics(region)
        self.program: StreamProgram = stream.attrs["program"]
        self.tiling: Tiling = tile.attrs["phases"]
        self.i, self.j = self.found.row.name, self.found.stream.name
        self.names = self._tensor_names()
        self.sizes: dict[str, Expr] = {}
        self.params: list[TensorParam] = []
        self.flag = index("skipping")

    # -------------------------------------------------------------------------------------------- names

    def _tensor_names(self) -> dict[str, str]:
        roles = (self.region.attrs["q_name"], self.region.attrs["k_name"], self.region.attrs["v_name"])
        names: dict[str, str] = {}
        for source, short in zip(roles, "QKV", strict=True):
            if source:
                names.setdefault(source, short)
        for source in self.found.loads:
            if source not in names:
                names[source] = f"X{sum(1 for n in names.values() if n.startswith('X')) + 1}"
        return names

    def _size(self, name: str, e: Expr) -> Expr:
        self.sizes[name] = e
        return index(name)

    def put(self, e: Expr) -> Expr:
        """`e` with tensors under their kernel names."""

        def rename(x: Expr) -> Expr | None:
            if isinstance(x, Load) and x.tensor in self.names:
                return load(self.names[x.tensor], x.index, x.dtype)
            return None

        return transform(e, rename)

    def _declare(self) -> None:
        for source, name in self.names.items():
            node = self.found.loads[source]
            shape = tuple(self._size(f"{name}_{k}", d) for k, d in enumerate(node.type.shape))
            unit = self.units.get(name, len(shape) - 1 if shape else None)
            self.params.append(TensorParam(name, node.type.dtype, shape, "in", unit))
        for k, e in enumerate(self.found.exits):
            shape = tuple(self._extent(x) for x in e.at)
            unit = len(shape) - 1 if shape else None
            self.params.append(TensorParam("O" if k == 0 else f"O{k + 1}", e.node.type.dtype, shape, "out", unit))

    def _extent(self, position: Expr) -> Expr:
        """The size of an output's dimension that is indexed by `position`."""
        if not isinstance(position, Var):
            return integer_const(1)
        if position.name == self.i:
            return index("N")
        if position in self.found.batch:
            return index(f"n_{position.name}")
        return self.found.extents[position]

    # -------------------------------------------------------------------------------------------- the kernel

    def kernel(self, header: tuple[str, ...]) -> tuple[Kernel, Binding]:
        self._declare()
        found, schedule = self.found, self.schedule
        rows_extent = self._size("N", found.extents[found.row])
        keys_extent = self._size("M", found.extents[found.stream])
        axes = [Axis(self.i, rows_extent, schedule.tile_m), Axis(self.j, keys_extent, schedule.tile_n)]
        for v in (*(a.over for a in found.atoms), *found.columns):
            width = found.extents[v]
            assert isinstance(width, Const)
            if v.name not in [a.name for a in axes]:
                axes.append(Axis(v.name, width, int(width.value)))
        loops = [Loop(v, self._size(f"n_{v.name}", found.extents[v])) for v in found.batch]
        loops.append(Loop(axes[0].origin, rows_extent, schedule.tile_m))
        body = Parallel(tuple(loops), tuple(self._item()))
        summaries = self._summaries()
        used = self._free_sizes([body], summaries)
        kernel = Kernel(
            "aicf_" + str(self.region.attrs.get("pattern", "region")),
            tuple(self.params),
            tuple(dict.fromkeys([*self.sizes, *used])),
            (),
            tuple(axes),
            (body,),
            summaries,
            header,
        )
        sizes = {**{n: index(n) for n in used}, **self.sizes}
        inputs = {name: found.loads[source] for source, name in self.names.items()}
        outputs = {"O" if k == 0 else f"O{k + 1}": e.node for k, e in enumerate(found.exits)}
        return kernel, Binding(inputs, outputs, sizes)

    def _free_sizes(self, body: list[Stmt], summaries: tuple[Summary, ...]) -> list[str]:
        """Size symbols of the source graph that expressions use (an offset such as m - n)."""
        bound = {v.name for v in (*self.found.extents, self.flag)} | {f"{v.name}0" for v in self.found.extents}
        names: set[str] = set()
        for e in (*_expressions(tuple(body)), *(s.value for s in summaries)):
            names |= {v.name for v in variables(e) if v.dtype == "i64" and v.name not in bound and v.name not in self.sizes}
        return sorted(names)

    def _item(self) -> list[Stmt]:
        """One work item: the tile of rows, its states, the stream, and what is written at the end."""
        out: list[Stmt] = []
        self.inside: list[Stmt] = []  # loads of streamed operands
        self.operands: dict[str, Tile] = {}
        for node in self.tile.nodes:
            operand = node.attrs.get("operand")
            if isinstance(operand, Operand):
                (out if self.i in operand.axes else self.inside).append(self._operand(operand))
        retried: list[Stmt] = [*self._initial(), self._stream()]
        if self.tiling.fill is not None:
            out.append(Retry(self.flag, self.i, self._again(self.tiling.fill), tuple(retried)))
        else:
            out += retried
        out += [self._store(k, n) for k, n in enumerate(n for n in self.tile.nodes if str(n.op) == "store_tile")]
        return out

    def _operand(self, operand: Operand) -> Stmt:
        tile = Tile(operand.name, "f32", operand.axes, "shared")
        self.operands[operand.name] = tile
        element = operand.element
        while isinstance(element, Call) and element.fn == "cast" and is_float(element.args[0].dtype):
            element = element.args[0]
        if isinstance(element, Load) and is_float(element.dtype):
            plain = self.put(element)
            assert isinstance(plain, Load)
            return LoadTile(tile, plain.tensor, plain.index)
        return Map(tile, self.put(operand.element))

    def _initial(self) -> list[Stmt]:
        out: list[Stmt] = []
        for b in self.program.bases:
            start = const(float("-inf") if b.op == "max" else float("inf"), "f32") if b.init is None else self.put(b.init)
            tile = self._row_tile(b.name)
            out.append(Fill(tile, start) if isinstance(start, Const) else Map(tile, start))
        out += [Fill(self._state(s), const(0.0, "f32")) for s in self.program.sums]
        return out

    def _row_tile(self, name: str) -> Tile:
        return Tile(name, "f32", (self.i,), "register")

    def _state(self, s: Sum) -> Tile:
        return Tile(s.name, "f32", (self.i, *(v.name for v in s.payload)), "register")

    def _again(self, fill: float) -> Expr:
        """Whether a skipped score could have counted: some row's maximum is not far enough above the fill value."""
        again: Expr = const(False, "bool")
        for b in self.program.bases:
            gap = call("sub", var(b.name, "f32"), const(fill, "f32"))
            again = call("or", again, call("not", call("ge", gap, const(ABSORBED, "f32"))))
        return again

    def _store(self, k: int, node: MCNode) -> Stmt:
        e = self.found.exits[k]
        value = self.put(finalizer(self.program, f"out{k}"))
        for b in self.program.bases:  # a reference that a finalizer uses is the final one
            value = substitute(value, {b.ref: _reference(b, var(b.name, "f32"))})
        axes = tuple(v.name for v in (self.found.row, *e.columns) if any(v in variables(x) for x in e.at) or v is self.found.row)
        return StoreTile("O" if k == 0 else f"O{k + 1}", e.at, axes, value)

    # -------------------------------------------------------------------------------------------- the stream

    def _stream(self) -> Stmt:
        low: Expr = integer_const(0)
        high: Expr = index("M")
        for e in self.tiling.low:
            low = call("max", low, e)
        for e in self.tiling.high:
            high = call("min", high, e)
        empty = self.put(self.tiling.empty)
        if self.tiling.fill is not None:
            skipping = call("ne", self.flag, integer_const(0))
            low = call("where", skipping, low, integer_const(0))
            high = call("where", skipping, high, index("M"))
            empty = call("and", skipping, empty)
        phases: list[Phase] = []
        if not (isinstance(empty, Const) and not empty.value):
            phases.append(Phase("empty", empty, False, ()))
        decided = {c: const(v, "bool") for c, v in self.tiling.decided}
        phases.append(Phase("full", self.put(self.tiling.full), True, self._block(decided)))
        phases.append(Phase("partial", TRUE, False, self._block({})))
        return Stream(self.j, low, high, tuple(phases))

    def _block(self, decided: Mapping[Expr, Expr]) -> tuple[Stmt, ...]:
        rows = _Block(self, decided).statements()
        return (*self.inside, Rows(self.i, self.schedule.rows, tuple(rows)))

    def _summaries(self) -> tuple[Summary, ...]:
        out: list[Summary] = []
        lengths = {self.i: (index("N"), self.schedule.tile_m), self.j: (index("M"), self.schedule.tile_n)}
        extents = {v: index(f"n_{v.name}") for v in self.found.batch}
        for r in self.tiling.summaries:
            extent, length = lengths[r.axis.name]
            count = call("floordiv", call("add", extent, integer_const(length - 1)), integer_const(length))
            outer = tuple(Loop(v, extents[v]) for v in r.outer)
            shape = (*(v.extent for v in outer), count)
            self.params.append(TensorParam(r.param, r.value.dtype, shape, "scratch", len(shape) - 1))
            out.append(Summary(r.param, "min" if r.op == "min" else "max", r.axis.name, outer, self.put(r.value)))
        return tuple(out)


class _Block:
    """The statements of one register block of rows, for one phase."""

    def __init__(self, low: _Lowering, decided: Mapping[Expr, Expr]) -> None:
        self.low, self.decided = low, decided
        self.out: list[Stmt] = []
        self.known: dict[Expr, Expr] = {}

    def tile(self, name: str, *axes: str, dtype: DType = "f32") -> Tile:
        return Tile(name, dtype, axes or (self.low.i,), "register")

    def body(self, e: Expr) -> Expr:
        return substitute(self.low.put(substitute(e, self.decided)), self.known)

    def statements(self) -> list[Stmt]:
        low, program = self.low, self.low.program
        i, j = low.i, low.j
        for k, a in enumerate(low.found.atoms):
            end = "" if k == 0 else str(k + 1)
            q, key = low.operands[f"q{end}"], low.operands[f"k{end}"]
            self.out.append(Contract(self.tile(a.name, i, j), q, key, a.over.name))
        for b in program.bases:
            self._base(b)
        scales = self._scales()
        weights: dict[Expr, Tile] = {}
        # A sum that moves with a partner reads the partner's value from before this tile.
        for s in sorted(program.sums, key=lambda s: s.shift is None):
            weight = self.body(s.weight)
            if weight not in weights:
                p = weights[weight] = self.tile("p" if not weights else f"p{len(weights) + 1}", i, j)
                self.out.append(Map(p, weight))
            self._sum(s, weights[weight], scales)
        for b in program.bases:
            self.out.append(Map(self.tile(b.name), var(f"new{b.name[1:]}", "f32")))
        return self.out

    def _base(self, b: Base) -> None:
        i, j, end = self.low.i, self.low.j, b.name[1:]
        body = self.body(b.body)
        if not isinstance(body, Var):
            u = self.tile(f"u{end}", i, j)
            self.out.append(Map(u, body))
            self.known[body] = body = var(u.name, "f32")
        self.out.append(Reduce(self.tile(f"top{end}"), b.op, j, body))
        new = self.tile(f"new{end}")
        self.out.append(Map(new, call(b.op, var(b.name, "f32"), var(f"top{end}", "f32"))))
        self.out.append(Map(self.tile(b.ref.name), _reference(b, var(new.name, "f32"))))
        # The old reference: while the extremum is still the identity nothing has been summed, and any factor is right.
        if b.op == "max":
            self.known[b.old] = var(b.name, "f32")
        else:
            self.known[b.old] = call(
                "where", call("eq", var(b.name, "f32"), const(float("inf"), "f32")), b.ref, var(b.name, "f32")
            )

    def _scales(self) -> dict[Expr, Tile]:
        scales: dict[Expr, Tile] = {}
        for s in self.low.program.sums:
            if s.scale is not None and s.scale not in scales:
                tile = scales[s.scale] = self.tile("scale" if not scales else f"scale{len(scales) + 1}")
                self.out.append(Map(tile, self.body(s.scale)))
        return scales

    def _sum(self, s: Sum, p: Tile, scales: Mapping[Expr, Tile]) -> None:
        scale = None if s.scale is None else scales[s.scale]
        state = self.low._state(s)
        if not s.payload:
            carried: Expr = var(s.name, "f32")
            if s.shift is not None:
                carried = call("add", carried, call("mul", self.body(s.shift.distance), var(s.shift.partner, "f32")))
            if scale is not None:
                carried = call("mul", carried, var(scale.name, "f32"))
            if carried is not var(s.name, "f32"):
                self.out.append(Map(state, carried))
            self.out.append(Reduce(state, "sum", self.low.j, var(p.name, "f32"), accumulate=True))
            return
        v = self._value(s)
        self.out.append(Contract(state, p, v, self.low.j, accumulate=True, rescale=scale))

    def _value(self, s: Sum) -> Tile:
        for node in self.low.tile.nodes:
            operand = node.attrs.get("operand")
            if isinstance(operand, Operand) and operand.element is s.value and self.low.j in operand.axes:
                return self.low.operands[operand.name]
        raise KernelLoweringError(f"no load_tile gives {show(s.value) if s.value is not None else s.name}")


def _reference(b: Base, extremum: Expr) -> Expr:
    identity = const(float("-inf") if b.op == "max" else float("inf"), "f32")
    return call("where", call("eq", extremum, identity), const(0.0, "f32"), extremum)


def _expressions(body: tuple[Stmt, ...]) -> list[Expr]:
    """All expressions of a statement list, nested ones included."""
    out: list[Expr] = []
    for s in body:
        match s:
            case Fill():
                out.append(s.value)
            case LoadTile():
                out += s.at
            case Map() | Reduce():
                out.append(s.expr)
            case StoreTile():
                out += [*s.at, s.expr]
            case Retry():
                out += [s.again, *_expressions(s.body)]
            case Stream():
                out += [s.lo, s.hi]
                for p in s.phases:
                    out += [p.when, *_expressions(p.body)]
            case Rows():
                out += _expressions(s.body)
            case Parallel():
                out += [*(v.extent for v in s.loops), *_expressions(s.body)]
            case Contract():
                pass
    return out


__all__ = ["Binding", "KernelLoweringError", "lower_to_kernel"]
