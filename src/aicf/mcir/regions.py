"""The region tree: a meaning (execution), how it streams (streaming), and the tiles that do it (tile).

    ExecutionRegion(attention_region)          what is computed: Q, K, V, the score program, axes
      StreamingRegion(attention_stream)        one pass over an axis, with the states that it carries
        TileRegion(q_tile_loop)                the tile steps: load, compute, update, accumulate, store

Detection makes the first, streaming lowering adds the others below it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from aicf.mcir.nodes import MCNode
from aicf.mcir.phases import Phases
from aicf.mcir.values import MCValue
from aicf.streaming.recognise import Recognised


def _no_values() -> list[MCValue]:
    return []


def _no_nodes() -> list[MCNode]:
    return []


def _no_regions() -> list[Region]:
    return []


def _no_attrs() -> dict[str, Any]:
    return {}


def _no_notes() -> dict[str, str]:
    return {}


@dataclass
class Region:
    """What all kinds of regions share. `nodes` run in order, before `subregions`.

    `attrs` are facts: kernels follow from them. `notes` are for people (source lines, reasons, masks in words): a dump prints
    them as comments, and nothing depends on them.
    """

    name: str
    kind: str
    inputs: list[MCValue] = field(default_factory=_no_values)
    outputs: list[MCValue] = field(default_factory=_no_values)
    nodes: list[MCNode] = field(default_factory=_no_nodes)
    subregions: list[Region] = field(default_factory=_no_regions)
    attrs: dict[str, Any] = field(default_factory=_no_attrs)
    notes: dict[str, str] = field(default_factory=_no_notes)


@dataclass
class ExecutionRegion(Region):
    """One logical unit of computation; by itself it says nothing about how data moves. `meaning`: what detection recognised, from
    which the streaming lowering makes the regions below (None for a region written by hand or read from text)."""

    meaning: Recognised | None = field(default=None, repr=False, compare=False)

    def __init__(self, name: str) -> None:
        super().__init__(name=name, kind="execution")
        self.meaning = None


@dataclass
class StreamingRegion(Region):
    """One pass over `stream_axis`. Further attributes: `order` (q_major or kv_major: what the outer loop walks), `kv_split`
    (parts that the axis is cut into, combined at the end), `stages` (tiles in flight)."""

    def __init__(self, name: str, stream_axis: str = "sequence") -> None:
        super().__init__(name=name, kind="streaming")
        self.attrs["stream_axis"] = stream_axis


@dataclass
class TileRegion(Region):
    """Steps on tiles of tile_m rows by tile_n streamed elements, contracted over tile_k at a time.

    Further attributes: `rows` (rows of a register block; tile_m by default), `mapping` (thread or block: what runs an item),
    `warps` and `registers` (per block, and per thread of it). `phases`: what is proved of the tiles; None: every tile is
    computed, with its mask.
    """

    phases: Phases | None = None

    def __init__(self, name: str, tile_m: int, tile_n: int, tile_k: int) -> None:
        super().__init__(name=name, kind="tile")
        self.phases = None
        self.attrs["tile_m"] = tile_m
        self.attrs["tile_n"] = tile_n
        self.attrs["tile_k"] = tile_k


def streams_and_tiles(region: Region) -> tuple[list[StreamingRegion], list[TileRegion]]:
    """The streams directly below a region, and the tile regions directly below those."""
    streams = [s for s in region.subregions if isinstance(s, StreamingRegion)]
    return streams, [t for s in streams for t in s.subregions if isinstance(t, TileRegion)]


def walk(region: Region) -> Iterator[Region]:
    """`region` and all regions below it, outermost first."""
    yield region
    for sub in region.subregions:
        yield from walk(sub)
