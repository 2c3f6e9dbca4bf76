"""MCModule: the root of the Memory-Centric IR, what passes take and give and what the printer starts from."""

from __future__ import annotations

from dataclasses import dataclass, field

from aicf.mcir.regions import Region
from aicf.semantic.refusal import Refusal


def _no_regions() -> list[Region]:
    return []


def _no_refusals() -> list[Refusal]:
    return []


@dataclass
class MCModule:
    """Top-level regions, in the order of the source graph, and what was seen but could not become a region."""

    regions: list[Region] = field(default_factory=_no_regions)
    refusals: list[Refusal] = field(default_factory=_no_refusals)


__all__ = ["MCModule", "Refusal"]
