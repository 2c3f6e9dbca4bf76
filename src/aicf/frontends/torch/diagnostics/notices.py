"""What a person sees who asked for nothing: a line where something that matters is not streamed.

    AICF: 12 attentions are not streamed (model.py:31 in forward): a gradient is asked of it, … Scores: 36.0 MiB each. …

The lines go to the logger `aicf` as warnings, each cause once in a process. Nothing is said of what streams (but for tensors as
large as its scores that it reads all the same), of what the cost model declines, nor of graphs without an attention. Where no
graph shows one, or one is refused, the places are told at which PyTorch left the graph, when the whole call is done: only then
is it known what else there was. `AICF_LOGS` in the environment asks for more (`info`, `debug`) or less (`error`, `off`).
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch

from aicf.driver import RegionResult
from aicf.frontends.torch.capture.graph_breaks import in_words, watch_for_given_up
from aicf.frontends.torch.fx.locations import location_of
from aicf.report import GraphReport
from aicf.report.text import stored_text
from aicf.report.words import plural, size_text
from aicf.streaming.recognise import NO_ELEMENTS

log = logging.getLogger("aicf")
MORE = "aicf.explain(f, *inputs) shows all of it, AICF_LOGS=off hides this line"
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "off": 60}
_SAID: set[str] = set()
_HERE = threading.local()
# Calls of what PyTorch does not look into: a break at one hides whatever runs there.
_HIDING = re.compile(r"_call_impl|torch\.compiler\.disable", re.IGNORECASE)


@dataclass
class Call:
    """What one call of a compiled function has shown so far: its graphs, and where PyTorch left them."""

    graphs: list[GraphReport] = field(default_factory=list[GraphReport])
    breaks: list[str] = field(default_factory=list[str])


def set_up() -> None:
    """Reads AICF_LOGS, and listens for functions that PyTorch gives up. Raises ValueError for a level that there is not."""
    wanted = os.environ.get("AICF_LOGS", "").strip().lower()
    if wanted:
        if wanted not in LEVELS:
            raise ValueError(f"AICF_LOGS={wanted}: it is one of {', '.join(LEVELS)}")
        log.setLevel(LEVELS[wanted])
        if LEVELS[wanted] < logging.WARNING and not log.handlers:
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
            log.addHandler(handler)
            log.propagate = False
    watch_for_given_up(_gave_up)


def forget() -> None:
    """Forgets what was said, so that it is said again."""
    _SAID.clear()


def note(gm: torch.fx.GraphModule, report: GraphReport) -> None:
    """Tells what is not streamed of a graph of Dynamo's."""
    for r in report.regions:
        if r.status != "refused":
            log.info("AICF: %s %s (%s): %s", r.name, r.status, r.source, r.reason)
    if report.problem:
        place = next((location_of(n) for n in gm.graph.nodes if n.op == "call_function"), None)
        _once(report.problem, f"a graph is left to PyTorch (from {place}): {report.problem}. {MORE}", hides_attention(gm))
    causes: dict[str, list[RegionResult]] = {}
    for r in report.regions:
        if r.status == "refused" and NO_ELEMENTS not in r.reason and not report.problem:
            causes.setdefault(_cause(r), []).append(r)
    for cause, regions in causes.items():
        _once(cause, _refused(regions))
    for r in report.regions:
        for s in r.stored if r.status == "streamed" else ():
            cause = re.sub(r"\[.*?\]|\d+", "", f"stored: {s.reason}")  # whatever its sizes are
            _once(cause, f"{r.name} is streamed, but {stored_text(s)}. {MORE}")
    call = _call()
    call.graphs.append(report)
    why = getattr(gm, "compile_subgraph_reason", None)
    if why is not None and why.graph_break:
        call.breaks.append(in_words(why.reason, why.user_stack))
    _at_end()


def hides_attention(gm: torch.fx.GraphModule) -> bool:
    """Whether a graph that was not followed has an op that goes with attention."""
    names = (str(getattr(n.target, "__name__", n.target)) for n in gm.graph.nodes if n.op.startswith("call"))
    return any(re.search("softmax|attention", name, re.IGNORECASE) for name in names)


def _refused(regions: Sequence[RegionResult]) -> str:
    first = regions[0]
    sizes = [r.bytes_unfused for r in regions if r.bytes_unfused is not None]
    many = len(regions) > 1
    memory = f" Scores: {size_text(max(sizes))}{' each' if many else ''}." if sizes else ""
    said = f"{plural(len(regions), 'attention')} {'are' if many else 'is'} not streamed ({first.source}): {first.reason}."
    return f"{said}{memory} {MORE}"


def _cause(r: RegionResult) -> str:
    """What refusals have in common whatever their tensors are called."""
    return re.sub(r"_\d+\b", "", r.reason)


def warn(line: str) -> None:
    """Tells `line`, once."""
    _once(line, f"{line}. {MORE}")


def _once(cause: str, line: str, warn: bool = True) -> None:
    if cause not in _SAID:
        _SAID.add(cause)
        log.log(logging.WARNING if warn else logging.INFO, "AICF: %s", line)


# ------------------------------------------------------------------------------------------------ a call as a whole


def _call() -> Call:
    found: Call | None = getattr(_HERE, "call", None)
    if found is None:
        found = _HERE.call = Call()
    return found


def _gave_up(line: str, backend: Any) -> None:
    """PyTorch gives up a function that goes to AICF by way of `backend`."""
    given = dict(getattr(backend, "kwargs", {}).get("options") or {})
    if is_wanted(given.get("require"), given.get("report"), given.get("rest")):
        _call().breaks.append(line)
        _at_end()


def is_wanted(require: Any, report: Any, rest: Any) -> bool:
    """Whether lines are wanted under these options: not where somebody is told already."""
    return require is None and report is None and rest != "explain"


def _at_end() -> None:
    """Has `_end` called when the call of the compiled function is done."""
    if getattr(_HERE, "waiting", False):
        return
    cleanups = _cleanups()
    if cleanups is None:
        _end()
    else:
        _HERE.waiting = True
        cleanups.append(_end)


def _cleanups() -> list[Any] | None:
    """What PyTorch does at the end of the outermost call of a compiled function around here: a list of functions."""
    frame: FrameType | None = sys._getframe()
    found: list[Any] | None = None
    while frame is not None:
        if frame.f_code.co_name == "compile_wrapper" and isinstance(frame.f_locals.get("cleanups"), list):
            found = frame.f_locals["cleanups"]
        frame = frame.f_back
    return found


def _end() -> None:
    """Tells where PyTorch left the graphs of the call that is done, where an attention may have been lost there."""
    call, _HERE.call, _HERE.waiting = _call(), None, False
    regions = [r for g in call.graphs for r in g.regions]
    # A region that came as far as a schedule is whole; what else was refused may have been cut.
    lost = not regions or any(r.status == "refused" and r.decision is None for r in regions)
    found = "no attention was found" if not regions else "attention may hide where PyTorch does not look"
    for b in dict.fromkeys(call.breaks):
        warn = lost or _HIDING.search(b) is not None
        advice = "What runs there is not streamed: take it out of the compiled function, or write it in PyTorch's ops"
        _once(b, f"{found}; graph break: {b}. {advice}. {MORE}", warn)
    for name, place in _hidden(call.graphs):
        _once(name, f"{found}; {name} is not followed ({place}). What it computes is not streamed. {MORE}", not regions)


def _hidden(graphs: Sequence[GraphReport]) -> list[tuple[str, object]]:
    """The ops of others than PyTorch that are not followed, with their places."""
    end, found = " is not followed", dict[str, object]()
    for g in graphs:
        places = {n.name: n.location for n in g.graph.nodes} if g.graph is not None else {}
        for name, why in g.boundaries:
            if why.endswith(end) and not why.startswith(("aten.", "prims.")):
                found.setdefault(why.removesuffix(end), places.get(name))
    return list(found.items())
