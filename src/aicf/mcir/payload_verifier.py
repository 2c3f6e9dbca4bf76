"""The rules for regions whose nodes say what they compute: payloads, axes, the schedule and the proofs about tiles agree.

Every fact that a kernel follows from is held against the others here, so that a change of one alone is either another kernel or
a fault. A flat list of small checks; each yields what is wrong and what would be right, with the lines of IR.

    _check_axes        one row axis, one streamed axis, extents that are sizes or numbers
    _check_schedule    tile lengths, order, split, stages, mapping
    _check_tile        a value has the lengths of its axes, and the type that its node gives
    _check_load, _check_score, _check_update, _check_accumulation, _check_store
    _check_states      what is carried, and that a sum's references are those of extrema
    _check_phases      proofs are for these tiles, and read what exists
    _check_attributes  every attribute is one that kernels follow from
    _check_operations  the words of the region fit its mask and pattern
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from aicf.mcir.axes import AxisRole, RegionAxis
from aicf.mcir.nodes import MCNode
from aicf.mcir.passes.vocabulary import ATTENTION, vocabulary
from aicf.mcir.payloads import Accumulation, RunningSum, ScoreProduct, StateUpdate, TileLoad, TileStore
from aicf.mcir.phases import Phases
from aicf.mcir.printer import show_node
from aicf.mcir.regions import Region, StreamingRegion, TileRegion, streams_and_tiles
from aicf.mcir.types import MC_DTYPES, scalar_dtype
from aicf.mcir.values import MCValue
from aicf.scalar import Const, Expr, Load, Var, is_float, show, variables, walk

Fault = tuple[str, str, tuple[str, ...]]  # where, what, lines of IR

_PAYLOADS: Mapping[str, type] = {
    "load_tile": TileLoad, "compute_score": ScoreProduct, "update_softmax": StateUpdate, "update_state": StateUpdate,
    "accumulate_output": Accumulation, "store_tile": TileStore, "contract_tile": ScoreProduct, "accumulate_state": Accumulation,
}  # fmt: skip

_ATTENTION_WORDS = ("compute_score", "update_softmax", "accumulate_output")
_GENERAL_WORDS = ("contract_tile", "accumulate_state")
_LEAST_INPUTS: Mapping[str, int] = {
    "compute_score": 2, "contract_tile": 2, "update_softmax": 1, "update_state": 1, "accumulate_output": 2, "accumulate_state": 2,
    "store_tile": 1,
}  # fmt: skip


def payload_faults(region: Region) -> Iterator[Fault]:
    """Faults of an execution region of which at least one node has a payload; nothing for others."""
    streams, tiles = streams_and_tiles(region)
    if not any(n.payload is not None for t in tiles for n in t.nodes):
        return
    if len(streams) != 1 or len(tiles) != 1:
        yield (
            region.name,
            f"it has {len(streams)} streams and {len(tiles)} tile regions; one of each is what a kernel is made of",
            (),
        )
        return
    facts = _Facts(region, streams[0], tiles[0])
    axes = list(_check_axes(facts))
    yield from axes
    if axes:
        return  # nothing else can be told
    for check in (_check_attributes, _check_schedule, _check_nodes, _check_states, _check_phases, _check_operations):
        yield from check(facts)


@dataclass
class _Facts:
    region: Region
    stream: StreamingRegion
    tile: TileRegion
    axes: list[RegionAxis] = field(default_factory=list[RegionAxis])
    sizes: dict[str, Expr] = field(default_factory=dict[str, Expr])
    states: dict[str, MCValue] = field(default_factory=dict[str, MCValue])  # of nodes seen so far
    references: set[str] = field(default_factory=set[str])
    scores: dict[str, MCValue] = field(default_factory=dict[str, MCValue])

    @property
    def path(self) -> str:
        return f"{self.region.name}/{self.stream.name}/{self.tile.name}"

    def role(self, role: AxisRole) -> list[RegionAxis]:
        return [a for a in self.axes if a.role is role]

    @property
    def attention(self) -> bool:
        """Whether the region's parts have the specification's words."""
        return vocabulary(str(self.region.attrs.get("pattern"))) is ATTENTION

    @property
    def row(self) -> str:
        return self.role(AxisRole.ROW)[0].variable.name

    @property
    def streamed(self) -> str:
        return self.role(AxisRole.STREAM)[0].variable.name

    def names(self, *roles: AxisRole) -> set[str]:
        return {a.variable.name for r in roles for a in self.role(r)}

    @property
    def batch(self) -> set[str]:
        return self.names(AxisRole.BATCH)

    def tensor(self, name: str) -> MCValue | None:
        return next((v for v in self.region.inputs if v.name == name), None)


# What kernels follow from, per kind of region and op; anything else would be said in vain.
_ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "execution": ("pattern", "has_mask", "q_name", "k_name", "v_name", "operations", "sizes", "axes", "captures"),
    "streaming": ("stream_axis", "order", "kv_split", "stages", "carried"),
    "tile": ("tile_m", "tile_n", "tile_k", "rows", "mapping", "warps", "registers"),
    "load_tile": ("source",),
    "store_tile": ("target",),
}


def _check_attributes(f: _Facts) -> Iterator[Fault]:
    for region, at in (
        (f.region, f.region.name), (f.stream, f"{f.region.name}/{f.stream.name}"), (f.tile, f.path),
    ):  # fmt: skip
        known = _ATTRIBUTES.get(region.kind, tuple(region.attrs))
        yield from (
            (at, f"the attribute {k} means nothing here; known are {_list(known)}", ()) for k in region.attrs if k not in known
        )
    for node in f.tile.nodes:
        known = _ATTRIBUTES.get(str(node.op), ())
        for k in node.attrs:
            if k not in known:
                yield f"{f.path}/{node.name}", f"the attribute {k} means nothing to {node.op}; known are {_list(known)}", ()
    mask, pattern = f.region.attrs.get("has_mask"), f.region.attrs.get("pattern")
    if not isinstance(mask, bool):
        yield f.region.name, f"has_mask is {mask!r}; it is True or False", ()
    if not isinstance(pattern, str) or not pattern:
        yield f.region.name, f"pattern is {pattern!r}; it is the name of what the region computes", ()


# ------------------------------------------------------------------------------------------------ axes and schedule


def _check_axes(f: _Facts) -> Iterator[Fault]:
    axes: Any = f.region.attrs.get("axes")
    sizes: Any = f.region.attrs.get("sizes")
    at = f.region.name
    if not isinstance(axes, dict) or not axes or not all(isinstance(a, RegionAxis) for a in axes.values()):
        yield (
            at,
            "the attribute axes is missing: nodes with payloads need it, a dict of RegionAxis by the names of extents",
            (),
        )
        return
    if not isinstance(sizes, dict):
        yield at, "the attribute sizes is missing: it says what each size symbol is in the sizes of the source graph", ()
        return
    f.axes, f.sizes = list(axes.values()), sizes
    for role in (AxisRole.ROW, AxisRole.STREAM):
        if len(f.role(role)) != 1:
            yield at, f"it has {len(f.role(role))} {role} axes; kernels are lowered for one", ()
    for what, names in (("called", [a.name for a in f.axes]), ("indexed by", [a.variable.name for a in f.axes])):
        for name in sorted({n for n in names if names.count(n) > 1}):
            yield at, f"more than one axis is {what} {name}", ()
    for a in f.axes:
        fixed = int(a.extent.value) if isinstance(a.extent, Const) else None
        if fixed is None and not (isinstance(a.extent, Var) and a.extent.name in f.sizes):
            yield (
                at,
                f"the axis {a.name} has the extent {show(a.extent)}; it is a number or one of the sizes {_list(f.sizes)}",
                (),
            )
        if a.role in (AxisRole.CONTRACTED, AxisRole.COLUMN) and fixed is None:
            yield (
                at,
                f"the {a.role} axis {a.name} has the extent {show(a.extent)}; it must be a number, as tiles hold all of it",
                (),
            )
        if fixed is not None and fixed < 1:
            yield at, f"the axis {a.name} has the extent {show(a.extent)}; it must be at least 1", ()
    known = {a.extent.name for a in f.axes if isinstance(a.extent, Var)}
    axis = f.stream.attrs.get("stream_axis")
    if axis != next((a.name for a in f.role(AxisRole.STREAM)), None):
        names = _list(a.name for a in f.role(AxisRole.STREAM))
        yield f"{at}/{f.stream.name}", f"stream_axis is {axis!r}; the region's streamed axis is {names}", ()
    for name, e in f.sizes.items():
        if name not in known and not (isinstance(e, Var) and e.dtype == "i64"):
            yield at, f"the size {name} = {show(e)} is the extent of no axis; other sizes are symbols of the source graph", ()


def _check_schedule(f: _Facts) -> Iterator[Fault]:
    at, s, t = f.path, f.stream.attrs, f.tile.attrs
    up = f"{f.region.name}/{f.stream.name}"
    order = s.get("order", "q_major")
    if order not in ("q_major", "kv_major"):
        yield up, f"order is {order!r}; it is q_major (rows outside) or kv_major (the streamed axis outside)", ()
    for owner, key, where in ((s, "kv_split", up), (s, "stages", up), (t, "rows", at), (t, "warps", at)):
        value = owner.get(key, 1)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            yield where, f"{key} is {value!r}; it is a positive integer", ()
            return
    mapping = t.get("mapping", "thread")
    if mapping not in ("thread", "block"):
        yield at, f"mapping is {mapping!r}; an item is run by a thread or by a block of warps", ()
    if order == "kv_major" and s.get("kv_split", 1) != 1:
        yield up, f"kv_split is {s['kv_split']} with order kv_major; only a stream inside of rows is split", ()
    if mapping != "block":
        if s.get("stages", 1) != 1:
            yield up, f"stages is {s['stages']}, but a thread copies nothing ahead of time: stages need mapping=block", ()
        for key in ("warps", "registers"):
            if key in t:
                yield at, f"{key} is {t[key]}, but items are run by threads: {key} needs mapping=block", ()
    registers = t.get("registers", 0)
    if not isinstance(registers, int) or registers < 0:
        yield at, f"registers is {registers!r}; it is the most that a thread may have, 0 for no limit", ()
    if not all(isinstance(t.get(k), int) for k in ("tile_m", "tile_n", "tile_k")):
        return  # said elsewhere
    if t.get("rows", 1) > t["tile_m"]:
        yield at, f"rows is {t['rows']}, more than the {t['tile_m']} rows of a tile", ()
    widths = [int(a.extent.value) for a in f.role(AxisRole.CONTRACTED) if isinstance(a.extent, Const)]
    if widths and t["tile_k"] != max(widths):
        yield at, f"tile_k is {t['tile_k']}; a score needs its whole contraction, {max(widths)}", ()


# ------------------------------------------------------------------------------------------------ nodes


def _check_nodes(f: _Facts) -> Iterator[Fault]:
    lengths: dict[str, Any] = {a.variable.name: int(a.extent.value) for a in f.axes if isinstance(a.extent, Const)}
    lengths |= {f.row: f.tile.attrs.get("tile_m"), f.streamed: f.tile.attrs.get("tile_n")}
    for node in f.tile.nodes:
        for what in _check_node(f, node, lengths):
            yield f"{f.path}/{node.name}", what, tuple(show_node(node, verbose=True))


def _check_node(f: _Facts, node: MCNode, lengths: Mapping[str, Any]) -> Iterator[str]:
    kind = _PAYLOADS.get(str(node.op))
    if str(node.op) in (_GENERAL_WORDS if f.attention else _ATTENTION_WORDS):
        words = _ATTENTION_WORDS if f.attention else _GENERAL_WORDS
        yield f"{node.op} has another name in a region of pattern {f.region.attrs.get('pattern')}: {_list(words)}"
    if kind is None or not isinstance(node.payload, kind):
        need = "none that a kernel is lowered from" if kind is None else kind.__name__
        have = "none" if node.payload is None else type(node.payload).__name__
        yield f"the payload of {node.op} is {have}; it must be {need}"
        return
    if not node.outputs or len(node.inputs) < _LEAST_INPUTS.get(str(node.op), 0):
        return  # said by the rules of its op
    for value in node.outputs:
        yield from _check_tile(value, lengths)
    yield from _CHECKS[kind](f, node)


def _check_tile(value: MCValue, lengths: Mapping[str, Any]) -> Iterator[str]:
    unknown = [a for a in value.axes if a not in lengths]
    if not value.axes or unknown or len(set(value.axes)) != len(value.axes):
        yield f"{value.name} has the axes [{', '.join(value.axes)}]; each is one of {_list(lengths)}, and there is at least one"
    elif isinstance(value.shape, tuple) and value.shape != tuple(lengths[a] for a in value.axes):  # pyright: ignore[reportUnnecessaryIsInstance]
        want = ",".join(str(lengths[a]) for a in value.axes)
        have = ",".join(map(str, value.shape))
        yield f"{value.name} has shape [{have}]; tiles of the axes {', '.join(value.axes)} are [{want}] here"


def _check_load(f: _Facts, node: MCNode) -> Iterator[str]:
    payload, tile = node.payload, node.outputs[0]
    assert isinstance(payload, TileLoad)
    source = node.attrs.get("source")
    tensor = f.tensor(str(source)) if source is not None else None
    if (payload.index is None) == (payload.element is None):
        yield "a load_tile has an index into its source, or an element that is computed, and not both"
        return
    allowed = {*tile.axes, *f.batch, *f.sizes}
    if payload.index is not None:
        if tensor is None:
            yield f"the source {source!r} is none of the region's inputs ({_list(v.name for v in f.region.inputs)})"
            return
        yield from _check_index(f, payload.index, tensor, allowed)
        if tile.dtype not in (tensor.dtype, "fp32") or not is_float(scalar_dtype(tensor.dtype)):
            yield f"{tile.name} is {tile.dtype}; a tile of {tensor.name} has its type, {tensor.dtype}, or is fp32"
    if payload.element is not None:
        yield from _check_expression(f, payload.element, allowed, "the element")
        read = [x.tensor for x in walk(payload.element) if isinstance(x, Load)]
        if source != next(iter(read), None):
            yield f"source is {source!r}; the element reads {_list(dict.fromkeys(read))} (the first is the source)"
        if tile.dtype != "fp32" or payload.element.dtype != "f32":
            yield f"{tile.name} is {tile.dtype} and its element {payload.element.dtype}; what is computed is fp32"


def _check_score(f: _Facts, node: MCNode) -> Iterator[str]:
    payload, (out, *more) = node.payload, node.outputs
    assert isinstance(payload, ScoreProduct)
    if payload.over not in f.names(AxisRole.CONTRACTED):
        yield f"it contracts {payload.over}; the contracted axes are {_list(f.names(AxisRole.CONTRACTED))}"
    want = [(f.row, payload.over), (f.streamed, payload.over)]
    if len(node.inputs) != 2 or [v.axes for v in node.inputs] != want or more:
        have = " and ".join(_typed(v) for v in node.inputs)
        yield f"its operands are {have}; they are tiles of [{', '.join(want[0])}] and [{', '.join(want[1])}], in this order"
    if out.axes != (f.row, f.streamed):
        yield f"{out.name} has the axes [{', '.join(out.axes)}]; scores have [{f.row}, {f.streamed}]"
    yield from _check_fp32(out)
    f.scores[out.name] = out


def _check_update(f: _Facts, node: MCNode) -> Iterator[str]:
    payload = node.payload
    assert isinstance(payload, StateUpdate)
    states = [*(x.state for x in payload.extrema), *(s.state for s in payload.sums)]
    if [v.name for v in node.outputs] != states:
        yield f"it gives {_list(v.name for v in node.outputs)}; its payload updates {_list(states)}, in this order"
        return
    if not states:
        yield "it updates no state"
    softmax = bool(payload.extrema) and f.attention
    if (str(node.op) == "update_softmax") != softmax:
        yield f"the op that carries these states is called {'update_softmax' if softmax else 'update_state'} here"
    read: list[Expr] = []
    for x, value in zip(payload.extrema, node.outputs, strict=False):
        yield from _check_row_state(f, value)
        if x.op not in ("max", "min"):
            yield f"{x.state} is a running {x.op}; an extremum is max or min"
        read.append(x.body)
        yield from _check_expression(f, x.body, _score_names(f), f"the body of {x.state}", "f32")
        if x.init is not None:
            yield from _check_expression(f, x.init, {f.row, *f.batch, *f.sizes}, f"the start of {x.state}", "f32")
        f.references |= {x.reference.name, x.old.name}
        f.states[x.state] = value
    for s, value in zip(payload.sums, node.outputs[len(payload.extrema) :], strict=True):
        yield from _check_row_state(f, value)
        read.append(s.weight)
        yield from _check_sum(f, s)
        f.states[s.state] = value
    yield from _check_scores_read(f, node.inputs, read)


def _check_accumulation(f: _Facts, node: MCNode) -> Iterator[str]:
    payload, (out, *more) = node.payload, node.outputs
    assert isinstance(payload, Accumulation)
    values = node.inputs[-1]
    if more or out.name != payload.sum.state:
        yield f"it gives {_list(v.name for v in node.outputs)}; its payload updates {payload.sum.state}"
    columns = f.names(AxisRole.COLUMN)
    if len(values.axes) != 2 or values.axes[0] != f.streamed or values.axes[1] not in columns:
        want = f"[{f.streamed}, a column axis ({_list(columns)})]"
        yield f"its last input is {_typed(values)}; the streamed values are a tile of {want}"
    elif out.axes != (f.row, values.axes[1]):
        yield f"{out.name} has the axes [{', '.join(out.axes)}]; these values give [{f.row}, {values.axes[1]}]"
    yield from _check_fp32(out)
    yield from _check_sum(f, payload.sum)
    yield from _check_scores_read(f, node.inputs[:-1], [payload.sum.weight])
    f.states[out.name] = out


def _check_store(f: _Facts, node: MCNode) -> Iterator[str]:
    payload = node.payload
    assert isinstance(payload, TileStore)
    target = node.attrs.get("target")
    tensor = next((v for v in f.region.outputs if v.name == target), None)
    if tensor is None:
        yield f"the target {target!r} is none of the region's outputs ({_list(v.name for v in f.region.outputs)})"
        return
    if len(node.outputs) != 1:
        yield f"it gives {len(node.outputs)} tiles; a store gives the one that it writes"
        return
    (tile,) = node.outputs
    if tile.dtype != tensor.dtype:
        yield f"{tile.name} is {tile.dtype}; the output {tensor.name} is {tensor.dtype}"
    columns = f.names(AxisRole.COLUMN)
    if not tile.axes or tile.axes[0] != f.row or not set(tile.axes[1:]) <= columns:
        yield f"its tile is {_typed(tile)}; an output has the row axis {f.row}, then columns ({_list(columns)})"
        return
    yield from _check_index(f, payload.index, tensor, {*tile.axes, *f.batch, *f.sizes})
    written = {v.name for i in payload.index for v in variables(i)}
    for axis in (*tile.axes, *sorted(f.batch)):
        if axis not in written and not _single(f, axis):
            yield f"its index does not depend on {axis}, so that different elements are written to one place"
    yield from _check_expression(f, payload.program, {*f.states, *tile.axes, *f.batch, *f.sizes}, "the program")
    read = {v.name for v in variables(payload.program)} & set(f.states)
    for v in node.inputs:
        if f.states.get(v.name) is not v or (read and v.name not in read):
            yield f"it reads {v.name}; the states of its program are {_list(sorted(read))}"
    for name in sorted(read):
        if not set(f.states[name].axes) <= set(tile.axes):
            yield f"its program reads {_typed(f.states[name])}, but {tile.name} has the axes [{', '.join(tile.axes)}]"


_CHECKS: Mapping[type, Callable[[_Facts, MCNode], Iterator[str]]] = {
    TileLoad: _check_load, ScoreProduct: _check_score, StateUpdate: _check_update, Accumulation: _check_accumulation,
    TileStore: _check_store,
}  # fmt: skip


# ------------------------------------------------------------------------------------------------ parts of nodes


def _check_sum(f: _Facts, s: RunningSum) -> Iterator[str]:
    yield from _check_expression(f, s.weight, {*_score_names(f), *f.references}, f"the weight of {s.state}", "f32")
    row = {f.row, *f.batch, *f.sizes, *f.references}
    if s.rescale is not None:
        yield from _check_expression(f, s.rescale, row, f"the rescale of {s.state}", "f32")
    if s.shift is not None:
        yield from _check_expression(f, s.shift.distance, row, f"the shift of {s.state}", "f32")
        if s.shift.partner not in f.states:
            yield f"{s.state} moves by {s.shift.partner}, which is no state before it"


def _check_scores_read(f: _Facts, inputs: Iterable[MCValue], bodies: Iterable[Expr]) -> Iterator[str]:
    """A node's score inputs are those that its expressions read; one that reads none still waits for a score."""
    used = {v.name for e in bodies for v in variables(e)} & set(f.scores)
    have = [v.name for v in inputs]
    if (
        any(f.scores.get(v.name) is not v for v in inputs)
        or (set(have) != used if used else len(have) != 1)
        or len(set(have)) != len(have)
    ):
        yield f"it reads {_list(have)}; its expressions read the scores {_list(sorted(used))}"


def _check_row_state(f: _Facts, value: MCValue) -> Iterator[str]:
    if value.axes != (f.row,):
        yield f"{value.name} has the axes [{', '.join(value.axes)}]; a state of a row has [{f.row}]"
    yield from _check_fp32(value)


def _check_fp32(value: MCValue) -> Iterator[str]:
    if value.dtype != "fp32":
        yield f"{value.name} is {value.dtype}; scores and carried states are fp32"


def _score_names(f: _Facts) -> set[str]:
    return {*f.scores, f.row, f.streamed, *f.batch, *f.sizes, *f.references}


def _check_index(f: _Facts, index: tuple[Expr, ...], tensor: MCValue, allowed: set[str]) -> Iterator[str]:
    if len(index) != len(tensor.shape):
        yield f"it indexes {tensor.name} with {len(index)} expressions; the tensor has {len(tensor.shape)} dimensions"
    for e in index:
        yield from _check_expression(f, e, allowed, f"the index of {tensor.name}")


def _check_expression(f: _Facts, e: Expr, allowed: set[str], what: str, dtype: str | None = None) -> Iterator[str]:
    unknown = sorted(v.name for v in variables(e) if v.name not in allowed)
    if unknown:
        yield f"{what} reads {_list(unknown)}; it may read {_list(sorted(allowed))}"
    if dtype is not None and e.dtype != dtype:
        yield f"{what} is {e.dtype}; it must be {dtype}"
    for x in walk(e):
        if isinstance(x, Load):
            tensor = f.tensor(x.tensor)
            if tensor is None:
                yield f"{what} reads the tensor {x.tensor}, which is none of the region's inputs"
            elif len(x.index) != len(tensor.shape) or tensor.dtype not in MC_DTYPES or scalar_dtype(tensor.dtype) != x.dtype:
                yield f"{what} reads {show(x)} as {x.dtype}; {tensor.name} is {tensor.dtype} with {len(tensor.shape)} dimensions"


def _single(f: _Facts, variable: str) -> bool:
    """Whether an axis has one position, as far as that is known."""
    axis = next(a for a in f.axes if a.variable.name == variable)
    length = f.sizes.get(axis.extent.name) if isinstance(axis.extent, Var) else axis.extent
    return isinstance(length, Const) and length.value == 1


# ------------------------------------------------------------------------------------------------ the whole tile


def _check_states(f: _Facts) -> Iterator[Fault]:
    carried: Any = f.stream.attrs.get("carried")
    if carried is None:
        return
    have, want = [v.name for v in carried if isinstance(v, MCValue)], list(f.states)
    if sorted(have) != sorted(want):
        yield f"{f.region.name}/{f.stream.name}", f"carried lists {_list(have)}; the nodes carry {_list(want)}", ()


def _check_phases(f: _Facts) -> Iterator[Fault]:
    p = f.tile.phases
    if p is None:
        return
    at, t = f.path, f.tile.attrs
    if (p.tile_m, p.tile_n) != (t.get("tile_m"), t.get("tile_n")):
        have = f"{t.get('tile_m')} x {t.get('tile_n')}"
        why = f"the phases were proved for tiles of {p.tile_m} x {p.tile_n}, but tiles are {have}"
        yield at, f"{why}: schedule the region again, or leave the phases out", ()
    if f.stream.attrs.get("order") == "kv_major" and (p.low or p.high or p.end is not None):
        yield at, "the phases bound the stream of a tile of rows, but the order is kv_major: all rows share one stream", ()
    if p.end is not None and p.rows != t.get("rows"):
        yield at, f"where a block of rows ends was proved for {p.rows} rows, but a block has {t.get('rows')}", ()
    origins = {f"{f.row}0", f"{f.streamed}0"}
    common = {*f.batch, *f.sizes}
    summaries = {s.name: s for s in p.summaries}
    for s in p.summaries:
        tiled, outer = {v.name for v in s.axes}, {v.name for v in s.outer}
        if not tiled or not tiled <= {f.row, f.streamed} or not outer <= f.batch or s.op not in ("min", "max"):
            want = f"{f.row} and {f.streamed}, one tile each, for values of {_list(sorted(f.batch))}"
            yield at, f"the summary {s.name} is over {_list([*s.outer, *s.axes])}; summaries are of {want}", ()
    for what, e, names in _phase_expressions(p, common, origins, f):
        unknown = sorted(v.name for v in variables(e) if v.name not in names)
        if unknown:
            yield at, f"{what} reads {_list(unknown)}; it may read {_list(sorted(names))}", ()
        for x in walk(e):
            if isinstance(x, Load) and x.tensor not in summaries and f.tensor(x.tensor) is None:
                yield at, f"{what} reads {x.tensor}, which is neither a summary of tiles nor an input", ()


def _phase_expressions(p: Phases, common: set[str], origins: set[str], f: _Facts) -> Iterator[tuple[str, Expr, set[str]]]:
    yield "empty", p.empty, common | origins
    yield "full", p.full, common | origins
    for e in (*p.low, *p.high):
        yield "a bound of the stream", e, common | {f"{f.row}0"}
    if p.end is not None:
        yield "the end of a block of rows", p.end, common | origins
    for condition, _ in p.decided:
        yield "a decided condition", condition, _score_names(f)
    for s in p.summaries:
        yield f"the summary {s.name}", s.value, common | {v.name for v in (*s.axes, *s.outer)}


def _check_operations(f: _Facts) -> Iterator[Fault]:
    """The words of an attention say what its nodes do."""
    attrs = f.region.attrs
    if not str(attrs.get("pattern")).endswith("attention"):
        return
    softmax = attrs.get("pattern") == "scaled_dot_product_attention"
    want = ["score_matmul", *(["mask"] if attrs.get("has_mask") else []), "softmax" if softmax else "score_map", "value_matmul"]
    have = attrs.get("operations", ())
    if list(have) != want:
        yield f.region.name, f"operations are {_list(have)}; its pattern and mask make them {_list(want)}", ()


def _list(names: Iterable[object]) -> str:
    return ", ".join(map(str, names)) or "none"


def _typed(value: MCValue) -> str:
    return f"{value.name}[{', '.join(value.axes)}]"
