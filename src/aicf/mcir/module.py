"""MCModule: the root of the Memory-Centric IR, what passes take and give and what the printer starts from."""

from __future__ import annotations

from dataclasses import dataclass, field

from aicf.mcir.regions import Region


def _no_regions() -> list[Region]:
    return []


@dataclass
class MCModule:
    """Top-level regions, in the order of the source graph."""

    regions: list[Region] = field(default_factory=_no_regions)
