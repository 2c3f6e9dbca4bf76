"""MCNode: one step in the life of a tile."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from aicf.mcir.values import MCValue


def _no_values() -> list[MCValue]:
    return []


def _no_attrs() -> dict[str, Any]:
    return {}


@dataclass
class MCNode:
    """`op` (one of `MCNodeOp`) over `inputs`, giving `outputs`. Attributes say the rest: a load's `source` and a store's `target`
    name tensors; scalar programs are `aicf.scalar` expressions."""

    name: str
    op: str
    inputs: list[MCValue] = field(default_factory=_no_values)
    outputs: list[MCValue] = field(default_factory=_no_values)
    attrs: dict[str, Any] = field(default_factory=_no_attrs)
