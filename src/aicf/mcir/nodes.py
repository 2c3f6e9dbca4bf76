"""MCNode: one step in the life of a tile."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from aicf.mcir.payloads import Payload
from aicf.mcir.values import MCValue


def _no_values() -> list[MCValue]:
    return []


def _no_attrs() -> dict[str, Any]:
    return {}


@dataclass
class MCNode:
    """`op` (one of `MCNodeOp`) over `inputs`, giving `outputs`. A load's attribute `source` and a store's `target` name tensors;
    the `payload` says what exactly the op computes. Without one, the op has its default meaning (see `defaults`)."""

    name: str
    op: str
    inputs: list[MCValue] = field(default_factory=_no_values)
    outputs: list[MCValue] = field(default_factory=_no_values)
    attrs: dict[str, Any] = field(default_factory=_no_attrs)
    payload: Payload | None = None
