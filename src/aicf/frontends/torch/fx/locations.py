"""Where an FX node comes from: the innermost line of the stack trace that is the user's and not PyTorch's own; where all are
PyTorch's (a module of torch.nn compiled by itself), the line that called it."""

from __future__ import annotations

import operator
import re
import sys
import sysconfig
from pathlib import Path

import torch

from aicf.semantic import Location

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
_TORCH = str(Path(torch.__file__).parent)
_OURS = str(Path(__file__).parents[3])
_LIBRARY = str(Path(sysconfig.get_path("stdlib")))


def op_name(node: torch.fx.Node) -> str:
    """The op's name as people know it: `aten.softmax`, `operator.mul`. One of several results is called by the op that makes
    them."""
    target = node.target
    if target is operator.getitem and isinstance(node.args[0], torch.fx.Node):
        return op_name(node.args[0])
    if isinstance(target, torch._ops.OpOverload):
        return str(target).rpartition(".")[0]
    if isinstance(target, str):
        return target
    return f"{getattr(target, '__module__', '') or ''}.{getattr(target, '__name__', target)}".lstrip("._")


def is_users(file: str) -> bool:
    """Whether `file` is neither PyTorch's nor AICF's, nor of Python's own library, nor code that PyTorch made."""
    if file.startswith((_TORCH, _OURS, "<eval_with_key>", "<frozen ")):
        return False
    return not file.startswith(_LIBRARY) or "site-packages" in file


def calling_line() -> str:
    """The innermost line of the user's that is being run, as one frame of a stack trace; empty when there is none."""
    frame = sys._getframe()
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return ""
    return f'  File "{frame.f_code.co_filename}", line {frame.f_lineno}, in {frame.f_code.co_name}\n'


def called_from(graph: torch.fx.Graph, line: str) -> None:
    """Enters `line` (see `calling_line`) where a stack trace of `graph` knows no line of the user's."""
    for node in graph.nodes:
        trace = node.meta.get("stack_trace") or ""
        if line and not any(is_users(m["file"]) for m in _FRAME.finditer(trace)):
            node.meta["stack_trace"] = line + trace


def own_name(function: str) -> str:
    """The user's name of a function that Dynamo cut at a graph break: `torch_dynamo_resume_in_f_at_11` is the rest of `f`."""
    return re.sub(r"^torch_dynamo_resume_in_(.+)_at_\d+$", r"\1", function)


def location_of(node: torch.fx.Node) -> Location:
    """The place of `node`; file and line are empty where PyTorch kept none."""
    trace = node.meta.get("stack_trace") or ""
    frames = list(_FRAME.finditer(trace))
    own = [m for m in frames if is_users(m["file"])] or frames
    if not own:
        return Location(op=op_name(node))
    last = own[-1]
    return Location(last["file"], int(last["line"]), own_name(last["function"]), op_name(node))
