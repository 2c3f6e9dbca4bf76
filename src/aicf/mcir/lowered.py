"""A lowered region as typed data: what Kernel IR and the evaluator are made from, taken out of the tree once and checked.

The tree stays what people build, print and change; this view answers "which axis is the row axis", "which states are carried, in
which order" without looking into dictionaries again. Nodes without a payload get their default meaning first (`defaults`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from aicf.mcir.axes import AxisRole, RegionAxis
from aicf.mcir.defaults import with_default_meaning
from aicf.mcir.module import MCModule
from aicf.mcir.nodes import MCNode
from aicf.mcir.payloads import Accumulation, RunningExtremum, RunningSum, ScoreProduct, StateUpdate, TileLoad, TileStore
from aicf.mcir.phases import Phases
from aicf.mcir.regions import Region, streams_and_tiles
from aicf.mcir.types import scalar_dtype
from aicf.mcir.values import MCValue
from aicf.mcir.verifier import validate_module
from aicf.scalar import Expr, load

Order = Literal["q_major", "kv_major"]
Unit = Literal["thread", "block"]


@dataclass(frozen=True)
class Load:
    """A tile and what fills it."""

    tile: MCValue
    source: str
    payload: TileLoad


@dataclass(frozen=True)
class Score:
    """A tile of scores and the two tiles that it is the product of."""

    tile: MCValue
    row: MCValue
    streamed: MCValue
    over: str


@dataclass(frozen=True)
class Sum:
    """A carried sum, its state's value, and the tile of streamed values that the weights are multiplied with (None: summed
    alone)."""

    sum: RunningSum
    state: MCValue
    values: MCValue | None


@dataclass(frozen=True)
class Extremum:
    """A carried extremum and its state's value."""

    extremum: RunningExtremum
    state: MCValue


@dataclass(frozen=True)
class Store:
    """A region output: the tensor, the tile's axes, where it goes and what it is."""

    target: str
    axes: tuple[str, ...]
    payload: TileStore


@dataclass(frozen=True)
class LoweredRegion:
    """All that a kernel of the region follows from. `sizes`: the kernel's size symbols in the sizes of the source graph;
    `tensors`, `outputs`: by name; `roles`: the names of Q, K and V, empty where there is none."""

    name: str
    pattern: str
    has_mask: bool
    operations: tuple[str, ...]
    notes: Mapping[str, str]
    sizes: Mapping[str, Expr]
    row: RegionAxis
    stream: RegionAxis
    batch: tuple[RegionAxis, ...]
    contracted: tuple[RegionAxis, ...]
    columns: tuple[RegionAxis, ...]
    tensors: Mapping[str, MCValue]
    outputs: Mapping[str, MCValue]
    roles: tuple[str, str, str]
    loads: tuple[Load, ...]
    scores: tuple[Score, ...]
    extrema: tuple[Extremum, ...]
    sums: tuple[Sum, ...]
    stores: tuple[Store, ...]
    phases: Phases | None
    tile_m: int
    tile_n: int
    tile_k: int
    rows: int
    order: Order
    kv_split: int
    stages: int
    unit: Unit
    warps: int
    registers: int

    def element(self, loaded: Load) -> Expr:
        """What a loaded tile holds at its axes' positions, in the type of its source, or in fp32 where it is computed."""
        payload = loaded.payload
        if payload.index is not None:
            return load(loaded.source, payload.index, scalar_dtype(self.tensors[loaded.source].dtype))
        assert payload.element is not None
        return payload.element


def lowered_region(region: Region) -> LoweredRegion:
    """The typed view of a lowered region. Raises ValidationError for a region that breaks a rule of MCIR, and ValueError, with
    what to do, for one that has no kernel (no stream yet; a mask that no program says)."""
    validate_module(MCModule(regions=[region]))
    full = with_default_meaning(region)
    if full is not region:
        validate_module(MCModule(regions=[full]))
    (stream,), (tile,) = streams_and_tiles(full)
    axes = list(cast("dict[str, RegionAxis]", full.attrs["axes"]).values())

    def role(r: AxisRole) -> tuple[RegionAxis, ...]:
        return tuple(a for a in axes if a.role is r)

    extrema: list[Extremum] = []
    sums: list[Sum] = []
    for node in tile.nodes:
        states = {v.name: v for v in node.outputs}
        if isinstance(node.payload, StateUpdate):
            extrema += [Extremum(x, states[x.state]) for x in node.payload.extrema]
            sums += [Sum(s, states[s.state], None) for s in node.payload.sums]
        elif isinstance(node.payload, Accumulation):
            sums.append(Sum(node.payload.sum, states[node.payload.sum.state], node.inputs[-1]))
    attrs: dict[str, Any] = full.attrs
    (row,), (streamed,) = role(AxisRole.ROW), role(AxisRole.STREAM)
    return LoweredRegion(
        name=full.name,
        pattern=str(attrs.get("pattern", "region")),
        has_mask=bool(attrs.get("has_mask", False)),
        operations=tuple(map(str, attrs.get("operations", ()))),
        notes=full.notes,
        sizes=attrs["sizes"],
        row=row,
        stream=streamed,
        batch=role(AxisRole.BATCH),
        contracted=role(AxisRole.CONTRACTED),
        columns=role(AxisRole.COLUMN),
        tensors={v.name: v for v in full.inputs},
        outputs={v.name: v for v in full.outputs},
        roles=(str(attrs.get("q_name", "")), str(attrs.get("k_name", "")), str(attrs.get("v_name", ""))),
        loads=tuple(
            Load(n.outputs[0], str(n.attrs.get("source", "")), n.payload) for n in tile.nodes if isinstance(n.payload, TileLoad)
        ),
        scores=tuple(
            Score(n.outputs[0], n.inputs[0], n.inputs[1], n.payload.over)
            for n in tile.nodes
            if isinstance(n.payload, ScoreProduct)
        ),
        extrema=tuple(extrema),
        sums=tuple(sums),
        stores=tuple(_store(n, n.payload) for n in tile.nodes if isinstance(n.payload, TileStore)),
        phases=tile.phases,
        tile_m=int(tile.attrs["tile_m"]),
        tile_n=int(tile.attrs["tile_n"]),
        tile_k=int(tile.attrs["tile_k"]),
        rows=int(tile.attrs.get("rows", tile.attrs["tile_m"])),
        order="kv_major" if stream.attrs.get("order") == "kv_major" else "q_major",
        kv_split=int(stream.attrs.get("kv_split", 1)),
        stages=int(stream.attrs.get("stages", 1)),
        unit="block" if tile.attrs.get("mapping") == "block" else "thread",
        warps=int(tile.attrs.get("warps", 1)),
        registers=int(tile.attrs.get("registers", 0)),
    )


def _store(node: MCNode, payload: TileStore) -> Store:
    return Store(str(node.attrs["target"]), node.outputs[0].axes, payload)
