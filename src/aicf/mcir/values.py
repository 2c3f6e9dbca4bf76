"""MCValue: a tensor or a tile, with its shape, element type and the memory that it lives in."""

from __future__ import annotations

from dataclasses import dataclass, field

from aicf.mcir.types import Shape


def _no_names() -> list[str]:
    return []


@dataclass
class MCValue:
    """Data in a module. Tiles have integer shapes; a tensor's dims may be expressions of size symbols.

    `producer` and `consumers` are names of nodes (of source operations for a region's inputs). They may be left out;
    where they are there, the verifier holds them against the nodes. `axes` names the region axis of each dimension of a tile, by
    its variable (empty: the op's default, see `defaults`).
    """

    name: str
    shape: Shape
    dtype: str
    residency: str = "global"
    producer: str | None = None
    consumers: list[str] = field(default_factory=_no_names)
    axes: tuple[str, ...] = ()
