"""Errors that users meet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class NotStreamed(RuntimeError):
    """`require="streamed"` was not met. `.regions`: (place, name, status, reason) of each attention that does not stream;
    `.problem`: what is wrong beside them, or what kept any attention from being seen."""

    def __init__(self, regions: Sequence[tuple[Any, str, str, str]], problem: str = "") -> None:
        self.regions = list(regions)
        self.problem = problem
        count = "1 attention does" if len(self.regions) == 1 else f"{len(self.regions)} attentions do"
        lines = [f'{count} not stream, and require="streamed" was given:'] if self.regions else []
        for place, name, status, reason in self.regions:
            lines.append(f"  {name} ({place or 'unknown place'}) {status}: {reason}")
        if problem:
            lines.append(problem)
        super().__init__("\n".join(lines))
