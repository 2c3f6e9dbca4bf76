"""Where PyTorch stopped taking a program as a graph, and why, in the user's lines: graph breaks, and functions that it gives up.

A break leaves graphs on both sides, whose reasons PyTorch keeps. Where it cannot go on behind a break (in a generator, a `with`
block), it gives the whole function up and runs it as it is: no graph comes to any backend, and PyTorch keeps no reason. It is
noted here when such a compilation ends.
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

from aicf.frontends.torch.fx.locations import is_users, own_name

from .dynamo_patches import NAME

GIVEN_UP: list[str] = []  # why functions were given up, in order
Frames = Sequence[traceback.FrameSummary]


@dataclass
class Breaks:
    """The breaks since this was made. PyTorch counts those of all threads together."""

    first: int = field(default_factory=lambda: len(graph_break_reasons))
    before: dict[str, int] = field(default_factory=lambda: dict(counters["graph_break"]))
    given_up: int = field(default_factory=lambda: len(GIVEN_UP))

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """One line for each: the reason in PyTorch's words, and the place."""
        found: dict[str, None] = {}
        said: set[str] = set()
        for b in graph_break_reasons[self.first :]:
            said.add(_first_line(b.reason))
            found.setdefault(in_words(b.reason, b.user_stack))
        for why, n in counters["graph_break"].items():
            if n > self.before.get(why, 0) and _first_line(why) not in said:
                found.setdefault(_first_line(why))
        found.update(dict.fromkeys(GIVEN_UP[self.given_up :]))
        return list(found)


def in_words(reason: str, stack: Frames) -> str:
    """The first line of a reason of PyTorch's, with the place."""
    frames = [f for f in stack if is_users(f.filename)] or list(stack)
    place = f" (at {frames[-1].filename}:{frames[-1].lineno} in {own_name(frames[-1].name)})" if frames else ""
    # The user's line and, where it lies in PyTorch's own files, what the program asked there.
    inner = stack[-1] if stack else None
    if inner is not None and inner.line and inner is not frames[-1]:
        place = place.removesuffix(")") + f", from `{inner.line}` in {inner.name} of PyTorch)"
    elif inner is not None and inner.line:
        place = place.removesuffix(")") + f": {inner.line})"
    return _first_line(reason) + place


def is_cut(gm: torch.fx.GraphModule) -> bool:
    """Whether a graph of Dynamo's begins or ends at a graph break."""
    why = getattr(gm, "compile_subgraph_reason", None)
    if why is None:
        return False
    return why.graph_break or any(f.name.startswith("torch_dynamo_resume_in_") for f in why.user_stack)


def _first_line(reason: str) -> str:
    return next((line.strip() for line in reason.splitlines() if line.strip()), reason)


# ------------------------------------------------------------------------------------------------ functions that are given up


def watch_for_given_up(tell: Callable[[str, Any], None]) -> None:
    """From now on, `tell` is called with a line and the backend wherever PyTorch gives up a function that goes to AICF.

    PyTorch's own list of callbacks is emptied by `torch._dynamo.reset`; what runs them is extended instead.
    """
    before = callback_handler.run_end_callbacks

    def run(args: Any) -> None:
        before(args)
        error = sys.exc_info()[1]  # what ends the compilation, where it does not succeed
        if isinstance(error, Unsupported):
            frame = _compiling()
            backend = None if frame is None else innermost_backend(frame.f_locals["compiler_fn"])
            if frame is not None and getattr(backend, "compiler_name", "") == NAME:
                name = own_name(getattr(frame.f_locals.get("code"), "co_name", "the function"))
                line = f"{in_words(str(error), error.real_stack)}; PyTorch gives {name} up there and runs it without a graph"
                GIVEN_UP.append(line)
                tell(line, backend)

    callback_handler.run_end_callbacks = run  # type: ignore[method-assign]


def _compiling() -> FrameType | None:
    """The frame of Dynamo's that compiles a function right now."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and not (frame.f_code.co_name == "_compile" and "compiler_fn" in frame.f_locals):
        frame = frame.f_back
    return frame
