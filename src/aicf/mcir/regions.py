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
from aicf.mcir.values import MCValue


def _no_values() -> list[MCValue]:
    return []


def _no_nodes() -> list[MCNode]:
    return []


def _no_regions() -> list[Region]:
    return []


def _no_attrs() -> dict[str, Any]:
    return {}


@dataclass
class Region:
    """What all kinds of regions share. `nodes` run in order, before `subregions`."""

    name: str
    kind: str
    inputs: list[MCValue] = field(default_factory=_no_values)
    outputs: list[MCValue] = field(default_factory=_no_values)
    nodes: list[MCNode] = field(default_factory=_no_nodes)
    subregions: list[Region] = field(default_factory=_no_regions)
    attrs: dict[str, Any] = field(default_factory=_no_attrs)


@dataclass
class ExecutionRegion(Region):
    """One logical unit of computation with its meaning kept; nothing is said yet about how data moves."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, kind="execution")


@dataclass
class StreamingRegion(Region):
    """One pass over `stream_axis`."""

    def __init__(self, name: str, stream_axis: str = "sequence") -> None:
        super().__init__(name=name, kind="streaming")
        self.attrs["stream_axis"] = stream_axis


@dataclass
class TileRegion(Region):
    """Steps on tiles of tile_m rows by tile_n streamed elements, contracted over tile_k at a time."""

    def __init__(self, name: str, tile_m: int, tile_n: int, tile_k: int) -> None:
        super().__init__(name=name, kind="tile")
        self.attrs["tile_m"] = tile_m
        self.attrs["tile_n"] = tile_n
        self.attrs["tile_k"] = tile_k


def walk(region: Region) -> Iterator[Region]:
    """`region` and all regions below it, outermost first."""
    yield region
    for sub in region.subregions:
        yield from walk(sub)
