"""Where an FX node comes from: the innermost line of the stack trace that is the user's and not PyTorch's own."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from aicf.semantic import Location

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
_TORCH = str(Path(torch.__file__).parent)


def op_name(node: torch.fx.Node) -> str:
    """The op's name as people know it: `aten.softmax`, `operator.mul`."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return str(target).rpartition(".")[0]
    if isinstance(target, str):
        return target
    return f"{getattr(target, '__module__', '') or ''}.{getattr(target, '__name__', target)}".lstrip("._")


def _own_name(function: str) -> str:
    """The user's name of a function that Dynamo cut at a graph break: `torch_dynamo_resume_in_f_at_11` is the rest of `f`."""
    return re.sub(r"^torch_dynamo_resume_in_(.+)_at_\d+$", r"\1", function)


def location_of(node: torch.fx.Node) -> Location:
    """The place of `node`; file and line are empty where PyTorch kept none."""
    trace = node.meta.get("stack_trace") or ""
    frames = list(_FRAME.finditer(trace))
    own = [m for m in frames if not m["file"].startswith(_TORCH)] or frames
    if not own:
        return Location(op=op_name(node))
    last = own[-1]
    return Location(last["file"], int(last["line"]), _own_name(last["function"]), op_name(node))
