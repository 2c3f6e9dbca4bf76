"""Graph breaks: where PyTorch stopped taking a program as a graph, and why, in the user's lines."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch._dynamo.utils import counters, graph_break_reasons

from .locations import is_users, own_name


@dataclass
class Breaks:
    """The breaks since this was made. PyTorch counts those of all threads together."""

    first: int = field(default_factory=lambda: len(graph_break_reasons))
    before: dict[str, int] = field(default_factory=lambda: dict(counters["graph_break"]))

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """One line for each: the reason in PyTorch's words, and the place."""
        found: dict[str, None] = {}
        said: set[str] = set()
        for b in graph_break_reasons[self.first :]:
            reason = _first_line(b.reason)
            said.add(reason)
            frames = [f for f in b.user_stack if is_users(f.filename)] or list(b.user_stack)
            place = f" (at {frames[-1].filename}:{frames[-1].lineno} in {own_name(frames[-1].name)})" if frames else ""
            # The user's line and, where it lies in PyTorch's own files, what the program asked there.
            inner = b.user_stack[-1] if b.user_stack else None
            if inner is not None and inner.line and inner is not frames[-1]:
                place = place.removesuffix(")") + f", from `{inner.line}` in {inner.name} of PyTorch)"
            elif inner is not None and inner.line:
                place = place.removesuffix(")") + f": {inner.line})"
            found.setdefault(reason + place)
        for why, n in counters["graph_break"].items():
            if n > self.before.get(why, 0) and _first_line(why) not in said:
                found.setdefault(_first_line(why))
        return list(found)


def is_cut(gm: torch.fx.GraphModule) -> bool:
    """Whether a graph of Dynamo's begins or ends at a graph break."""
    why = getattr(gm, "compile_subgraph_reason", None)
    if why is None:
        return False
    return why.graph_break or any(f.name.startswith("torch_dynamo_resume_in_") for f in why.user_stack)


def _first_line(reason: str) -> str:
    return next((line.strip() for line in reason.splitlines() if line.strip()), reason)
