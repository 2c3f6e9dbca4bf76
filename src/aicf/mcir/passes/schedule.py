"""SchedulePass: a schedule's decisions written into the streaming and tile regions, so that kernels follow from MCIR alone.

    StreamingRegion(attention_stream)                StreamingRegion(attention_stream)
      attrs: stream_axis=sequence             ->       attrs: stream_axis=sequence, order=q_major, kv_split=1, stages=1
      TileRegion(q_tile_loop)                          TileRegion(q_tile_loop)
        attrs: tile_m=128, tile_n=64, tile_k=64          attrs: tile_m=96, tile_n=32, tile_k=64, rows=6, mapping=thread
        Q_tile[128,64]:fp16@shared                       phases: empty when …, full when …
                                                         Q_tile[96,64]:fp32@shared

What the proofs say of tiles depends on their lengths, so it is proved here. The reasons of the decisions become notes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from aicf.mcir.axes import AxisRole, RegionAxis
from aicf.mcir.lowered import LoweredRegion, Sum
from aicf.mcir.nodes import MCNode
from aicf.mcir.payloads import Accumulation, ScoreProduct, TileLoad, TileStore
from aicf.mcir.phases import Phases, TileSummary
from aicf.mcir.regions import Region, StreamingRegion, TileRegion, streams_and_tiles
from aicf.mcir.values import MCValue
from aicf.scalar import Const, call, cast
from aicf.streaming.tile_proofs import Extent, ExtremumBody, Stream, SumBody, TileProof, prove_tiles


class TilePolicy(Protocol):
    """What the pass needs of a schedule: tile lengths along rows, streamed positions and the contracted axis.

    A full schedule says more: `rows`, `order`, `kv_split`, `stages`, `residency` ((kind of value, memory space) pairs), `mapping`
    ((loop, unit) pairs) and `warps`.
    """

    @property
    def tile_m(self) -> int: ...
    @property
    def tile_n(self) -> int: ...
    @property
    def tile_k(self) -> int: ...


@dataclass(frozen=True)
class FixedPolicy:
    """The specification's fixed tiles (section 10.2)."""

    tile_m: int = 128
    tile_n: int = 64
    tile_k: int = 64


SPEC_POLICY = FixedPolicy()


def stream_and_tile(region: Region) -> tuple[StreamingRegion, TileRegion]:
    """The one stream of a region and its one tile region. Raises ValueError where there is none or more than one."""
    streams, tiles = streams_and_tiles(region)
    if len(streams) != 1 or len(tiles) != 1:
        what = f"{len(streams)} streaming regions and {len(tiles)} tile regions; a kernel is made of one of each"
        raise ValueError(f"region {region.name} has {what}: run the streaming lowering pass first")
    return streams[0], tiles[0]


def carried(region: LoweredRegion) -> Stream:
    """What a region carries along its stream, as the proofs about tiles see it."""
    return Stream(
        Extent(region.row.variable, region.row.extent),
        Extent(region.stream.variable, region.stream.extent),
        tuple(a.variable for a in region.batch),
        tuple(ExtremumBody(x.extremum.op, x.extremum.body) for x in region.extrema),
        tuple(_sum_body(region, s) for s in region.sums),
        frozenset(x.extremum.reference for x in region.extrema),
    )


def _sum_body(region: LoweredRegion, s: Sum) -> SumBody:
    body = weight = s.sum.weight
    if s.values is not None:
        values = next(x for x in region.loads if x.tile is s.values)
        body = call("mul", weight, cast(region.element(values), "f32"))
    return SumBody(body, weight, s.sum.rescale is not None)


def prove_phases(region: LoweredRegion, policy: TilePolicy, *, strict: bool = False, rows: int = 0) -> tuple[Phases, TileProof]:
    """What is proved of tiles of the policy's lengths, as the region's phases and with all that the proof says. `rows`: rows of a
    block that may end its positions by itself inside of a tile (0: none does)."""
    # On a GPU a block of rows is a warp's share of a tile, which ends as a whole; so do tiles whose keys are walked first.
    alone = _on_threads(policy) and getattr(policy, "order", "q_major") == "q_major"
    block = rows if alone else 0
    proof = prove_tiles(carried(region), policy.tile_m, policy.tile_n, strict=strict, rows=block)
    summaries = tuple(TileSummary(r.param, "min" if r.op == "min" else "max", r.axes, r.outer, r.value) for r in proof.summaries)
    # Where the streamed axis is walked outside, all rows share one stream.
    low, high = (proof.low, proof.high) if getattr(policy, "order", "q_major") == "q_major" else ((), ())
    made = Phases(
        policy.tile_m, policy.tile_n, block if proof.end is not None else 0, proof.empty, proof.full, proof.decided, low, high,
        proof.end, proof.fill, summaries,
    )  # fmt: skip
    return made, proof


def _on_threads(policy: TilePolicy) -> bool:
    return "thread" in dict(getattr(policy, "mapping", ())).values()


def apply_schedule(region: Region, policy: TilePolicy, phases: Phases | None, *, registers: int = 0) -> Region:
    """Writes a schedule into a streamed region and returns it: tile lengths and shapes, what is proved of such tiles, order,
    split, stages, the memory space of each value, what runs an item. `registers`: the most that a thread of a block may have
    (0: as many as the compiler likes)."""
    stream, tile = stream_and_tile(region)
    axes: list[RegionAxis] = list(region.attrs["axes"].values())
    lengths = {a.variable.name: int(a.extent.value) for a in axes if isinstance(a.extent, Const)}
    for a in axes:
        if a.role in (AxisRole.ROW, AxisRole.STREAM):
            lengths[a.variable.name] = policy.tile_m if a.role is AxisRole.ROW else policy.tile_n
    contracted = [lengths[a.variable.name] for a in axes if a.role is AxisRole.CONTRACTED]
    # A score needs its whole contraction: a policy's tile_k may be longer, never shorter.
    tile.attrs.update(tile_m=policy.tile_m, tile_n=policy.tile_n, tile_k=max(contracted, default=policy.tile_k))
    # Phases that say no more than where the stream ends are what a region without phases has.
    tile.phases = None if phases is None or phases.trivial else phases
    roles = {a.variable.name: a.role for a in axes}
    spaces: dict[str, str] = dict(getattr(policy, "residency", ()))
    widened = _on_threads(policy)
    for node in tile.nodes:
        for value in node.outputs:
            value.shape = tuple(lengths[a] for a in value.axes)
            value.residency = spaces.get(_kind(node, value, roles), value.residency)
            if widened and isinstance(node.payload, TileLoad) and value.dtype in ("fp16", "bf16"):
                value.dtype = "fp32"  # a processor's products are of fp32: a tile is converted once, when it is loaded
    stream.attrs["order"] = getattr(policy, "order", "q_major")
    if not isinstance(policy, FixedPolicy):
        stream.attrs.update(kv_split=getattr(policy, "kv_split", 1), stages=getattr(policy, "stages", 1))
        tile.attrs["rows"] = getattr(policy, "rows", policy.tile_m)
        tile.attrs["mapping"] = "thread" if widened else "block"
        if not widened:
            tile.attrs.update(warps=getattr(policy, "warps", 1), registers=registers)
        tile.notes["schedule"] = str(policy)
    return region


def _kind(node: MCNode, value: MCValue, roles: Mapping[str, AxisRole]) -> str:
    """The name under which a schedule knows a value: what it is to its node, and, for operands, which axes it has."""
    match node.payload:
        case TileLoad():
            if AxisRole.ROW in (roles[a] for a in value.axes):
                return "Q_tile"
            return "K_tile" if AxisRole.CONTRACTED in (roles[a] for a in value.axes) else "V_tile"
        case ScoreProduct():
            return "score_frag"
        case Accumulation():
            return "output_acc"
        case TileStore():
            return "O_tile"
        case _:
            return "state"


__all__ = [
    "SPEC_POLICY", "FixedPolicy", "TilePolicy", "apply_schedule", "carried", "prove_phases", "stream_and_tile",
]  # fmt: skip
