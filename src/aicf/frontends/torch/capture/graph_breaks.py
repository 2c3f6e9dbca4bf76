"""Graph breaks and functions that PyTorch does not compile, with the reason and the user's line.

PyTorch keeps the reasons of graph breaks, which have a compiled graph on both sides. Where Dynamo cannot resume after a break
(in a generator or a `with` block), it skips the whole function: no backend gets a graph, and no reason is kept. Such functions
are recorded here when their compilation ends.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch._dynamo.callback import callback_handler
from torch._dynamo.eval_frame import innermost_backend
from torch._dynamo.exc import Unsupported
from torch._dynamo.utils import counters, graph_break_reasons

from aicf.frontends.torch.fx.locations import function_name, is_user_file

from .dynamo_patches import NAME

SKIPPED: list[str] = []  # why functions were skipped, in order
Frames = Sequence[traceback.FrameSummary]


@dataclass
class Breaks:
    """The breaks since this object was made, of all threads (PyTorch counts them together)."""

    first: int = field(default_factory=lambda: len(graph_break_reasons))
    before: dict[str, int] = field(default_factory=lambda: dict(counters["graph_break"]))
    skipped: int = field(default_factory=lambda: len(SKIPPED))

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """One line for each: the reason in PyTorch's words, and the place."""
        lines: dict[str, None] = {}
        said: set[str] = set()
        for b in graph_break_reasons[self.first :]:
            said.add(_first_line(b.reason))
            lines.setdefault(describe_break(b.reason, b.user_stack))
        for why, n in counters["graph_break"].items():
            if n > self.before.get(why, 0) and _first_line(why) not in said:
                lines.setdefault(_first_line(why))
        lines.update(dict.fromkeys(SKIPPED[self.skipped :]))
        return list(lines)


def describe_break(reason: str, stack: Frames) -> str:
    """The first line of PyTorch's reason, with the user's line."""
    frames = [f for f in stack if is_user_file(f.filename)] or list(stack)
    place = f" (at {frames[-1].filename}:{frames[-1].lineno} in {function_name(frames[-1].name)})" if frames else ""
    # The user's line; where the break is in PyTorch's own code, also the line there.
    inner = stack[-1] if stack else None
    if inner is not None and inner.line and inner is not frames[-1]:
        place = place.removesuffix(")") + f", from `{inner.line}` in {inner.name} of PyTorch)"
    elif inner is not None and inner.line:
        place = place.removesuffix(")") + f": {inner.line})"
    return _first_line(reason) + place


def is_next_to_break(gm: torch.fx.GraphModule) -> bool:
    """Whether a graph of Dynamo's begins or ends at a graph break."""
    why = getattr(gm, "compile_subgraph_reason", None)
    if why is None:
        return False
    return why.graph_break or any(f.name.startswith("torch_dynamo_resume_in_") for f in why.user_stack)


def _first_line(reason: str) -> str:
    return next((line.strip() for line in reason.splitlines() if line.strip()), reason)


# ------------------------------------------------------------------------------------------------ skipped functions


def on_skipped_function(tell: Callable[[str, Any], None]) -> None:
    """From now on, `tell` is called with a line and the backend whenever PyTorch skips a function that is compiled for AICF.

    `torch._dynamo.reset` empties PyTorch's list of callbacks, so the function that runs them is wrapped instead.
    """
    before = callback_handler.run_end_callbacks

    def run(args: Any) -> None:
        before(args)
        error = sys.exc_info()[1]  # what ends the compilation, where it does not succeed
        if isinstance(error, Unsupported):
            frame = _compiling()
            backend = None if frame is None else innermost_backend(frame.f_locals["compiler_fn"])
            if frame is not None and getattr(backend, "compiler_name", "") == NAME:
                name = function_name(getattr(frame.f_locals.get("code"), "co_name", "the function"))
                line = f"{describe_break(str(error), error.real_stack)}; PyTorch skips {name} there and runs it uncompiled"
                SKIPPED.append(line)
                tell(line, backend)

    callback_handler.run_end_callbacks = run  # type: ignore[method-assign]


def _compiling() -> FrameType | None:
    """The frame of Dynamo's that compiles a function right now."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and not (frame.f_code.co_name == "_compile" and "compiler_fn" in frame.f_locals):
        frame = frame.f_back
    return frame
