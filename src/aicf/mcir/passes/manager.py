"""MCIRPassManager: passes in order, the module verified after each.

    semantic graph -> AttentionPatternPass -> MCModule -> StreamingLoweringPass -> MCModule -> ...

A pass is a function from what the one before gave to what the next takes. The first may take anything (a semantic graph).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aicf.mcir.module import MCModule
from aicf.mcir.printer import dump_module
from aicf.mcir.verifier import is_lowered, validate_module

Pass = Callable[[Any], Any]


@dataclass(frozen=True)
class Snapshot:
    """What a pass gave, as text. `after` is the pass' name, `input` for what `run` was called with."""

    after: str
    text: str


class MCIRPassManager:
    """Runs `passes` in order.

    Each module is verified after the pass that gave it (valid before, valid after; `verify=False` is for looking at broken ones).
    With `record`, `snapshots` holds the verbose text before the first pass and after each of the last run.
    """

    def __init__(self, passes: Sequence[Pass], *, verify: bool = True, record: bool = False) -> None:
        self.passes = list(passes)
        self.verify = verify
        self.record = record
        self.snapshots: list[Snapshot] = []

    def run(self, obj: Any) -> Any:
        """What the last pass gives. Raises ValidationError, which names the pass, as soon as a module is invalid."""
        self.snapshots = []
        self._check(None, obj)
        for step in self.passes:
            obj = step(obj)
            self._check(pass_name(step), obj)
        return obj

    def _check(self, after: str | None, obj: Any) -> None:
        if self.record:
            text = dump_module(obj, verbose=True) if isinstance(obj, MCModule) else str(obj)
            self.snapshots.append(Snapshot(after or "input", text))
        if self.verify and isinstance(obj, MCModule):
            validate_module(obj, lowered=is_lowered(obj), after=after)


def pass_name(step: Pass) -> str:
    """The name of a pass in dumps and errors: run_attention_pattern_pass, AttentionPatternPass -> attention_pattern."""
    name = str(getattr(step, "__name__", type(step).__name__))
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return snake.removeprefix("run_").removesuffix("_pass")
