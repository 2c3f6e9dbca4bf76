"""MCModule: the root of the Memory-Centric IR, what passes take and give and what the printer starts from."""

from __future__ import annotations

from dataclasses import dataclass, field

from aicf.mcir.regions import Region
from aicf.scalar import Expr
from aicf.semantic import Location


@dataclass(frozen=True)
class Refusal:
    """An attention that was seen and not taken: the value contraction's name, the reason, the guilty op's place, the
    contraction's own place, and the bytes of the rows x keys tensor that the unfused form needs."""

    name: str
    reason: str
    guilty: Location | None
    source: Location | None
    unfused_bytes: Expr


def _no_regions() -> list[Region]:
    return []


def _no_refusals() -> list[Refusal]:
    return []


@dataclass
class MCModule:
    """Top-level regions, in the order of the source graph, and what was seen but could not become a region."""

    regions: list[Region] = field(default_factory=_no_regions)
    refusals: list[Refusal] = field(default_factory=_no_refusals)
