"""Schedules that were measured to be the best (`aicf tune`), kept in the disk cache for later compilations.

One is found again for the same meaning (`aicf.decide.meaning_of`) at sizes of the same class (`Problem.shape_class`: extents
to the nearest power of two, everything else as it is, the number of threads included) on the same target. It replaces the cost
model's choice and never a user's own decisions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from aicf.runtime.cache import key_of, read, write
from aicf.scalar import fingerprint
from aicf.schedule import CpuTarget, Problem, Schedule, Target

KIND = "schedule"
DECISIONS = ("tile_m", "tile_n", "rows", "order", "kv_split")


@dataclass(frozen=True)
class Tuned:
    """Decisions that won, how many schedules were measured, and seconds: of the best and of the cost model's choice then."""

    decisions: Mapping[str, Any]
    tried: int
    seconds: float
    model_seconds: float

    def __str__(self) -> str:
        ahead = self.model_seconds / self.seconds
        return f"the fastest of {self.tried} measured, {ahead:.2f} times as fast as the cost model's choice"


def kept(best: Schedule, tried: int, seconds: float, model_seconds: float) -> Tuned:
    """A search's result, of the decisions that it made."""
    return Tuned({name: getattr(best, name) for name in DECISIONS}, tried, seconds, model_seconds)


def store(problem: Problem, target: Target, meaning: str, best: Tuned) -> Path | None:
    """Keeps a search's result, and returns the file that it is in. None when there is no disk cache, or it cannot be written."""
    return write(_key(problem, target, meaning), json.dumps(asdict(best)).encode(), KIND)


def find(problem: Problem, target: Target, meaning: str) -> Tuned | None:
    """What a search found; None when there was none."""
    stored = read(_key(problem, target, meaning), KIND)
    return None if stored is None else Tuned(**json.loads(stored))


def _key(problem: Problem, target: Target, meaning: str) -> str:
    # The clock is what it happens to be where the system tells no other: it does not make another machine.
    machine = replace(target, ghz=None) if isinstance(target, CpuTarget) else target
    return key_of("tuned", fingerprint(machine), problem.shape_class, meaning)
