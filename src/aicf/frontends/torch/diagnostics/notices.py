"""Warnings about what is not streamed, without being asked for.

    AICF: 12 attentions are not streamed (model.py:31 in forward): a gradient is asked of it, … Scores: 36.0 MiB each. …

The lines go to the logger `aicf` as warnings, each cause once in a process. There is no line for what streams (except for
tensors as large as its scores that it still reads), for what the cost model declines, and for graphs without an attention.
Refusals and graph breaks are told when the whole call is done, since only then all of its graphs are known: one line where a
break may have divided the attention that is refused. `AICF_LOGS` in the environment asks for more (`info`, `debug`) or less
(`error`, `off`).
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
from aicf.frontends.torch.capture.graph_breaks import describe_break, on_skipped_function
from aicf.frontends.torch.fx.locations import location_of
from aicf.report import GraphReport
from aicf.report.text import stored_text
from aicf.report.words import plural, size_text, unnumbered
from aicf.streaming.recognise import NO_ELEMENTS

log = logging.getLogger("aicf")
MORE = "aicf.explain(f, *inputs) shows all of it, AICF_LOGS=off hides this line"
ADVICE = "What runs there is not streamed: take it out of the compiled function, or write it in PyTorch's ops"
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "off": 60}
_LOGGED: set[str] = set()
_HERE = threading.local()
# A graph break at a call that PyTorch does not trace: whatever runs there is not seen.
_HIDING = re.compile(r"_call_impl|torch\.compiler\.disable", re.IGNORECASE)


@dataclass
class Call:
    """What one call of a compiled function has shown so far: its graphs, what is refused in them by cause, and where PyTorch left
    them."""

    graphs: list[GraphReport] = field(default_factory=list[GraphReport])
    refused: dict[str, list[RegionResult]] = field(default_factory=dict[str, list[RegionResult]])
    breaks: list[str] = field(default_factory=list[str])


def configure() -> None:
    """Reads AICF_LOGS and registers for functions that PyTorch skips. Raises ValueError for an unknown level."""
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
    on_skipped_function(_note_skipped)


def reset() -> None:
    """Forgets which lines were logged, so that they are logged again."""
    _LOGGED.clear()


def warn_about(gm: torch.fx.GraphModule, report: GraphReport) -> None:
    """Logs what is not streamed in a graph of Dynamo's."""
    for r in report.regions:
        if r.status != "refused":
            log.info("AICF: %s %s (%s): %s", r.name, r.status, r.source, r.reason)
    if report.problem:
        place = next((location_of(n) for n in gm.graph.nodes if n.op == "call_function"), None)
        line = f"a graph is left to PyTorch (from {place}): {report.problem}. {MORE}"
        _log_once(report.problem, line, looks_like_attention(gm))
    call = _call()
    for r in report.regions:
        if r.status == "refused" and NO_ELEMENTS not in r.reason and not report.problem:
            call.refused.setdefault(unnumbered(r.reason), []).append(r)
        for s in r.stored if r.status == "streamed" else ():
            cause = re.sub(r"\[.*?\]|\d+", "", f"stored: {s.reason}")  # the same for all sizes
            _log_once(cause, f"{r.name} is streamed, but {stored_text(s)}. {MORE}")
    call.graphs.append(report)
    why = getattr(gm, "compile_subgraph_reason", None)
    if why is not None and why.graph_break:
        call.breaks.append(describe_break(why.reason, why.user_stack))
    _at_end_of_call()


def looks_like_attention(gm: torch.fx.GraphModule) -> bool:
    """Whether a graph that could not be read has an op that attention uses."""
    names = (str(getattr(n.target, "__name__", n.target)) for n in gm.graph.nodes if n.op.startswith("call"))
    return any(re.search("softmax|attention", name, re.IGNORECASE) for name in names)


def _refused(regions: Sequence[RegionResult], breaks: Sequence[str]) -> str:
    """`breaks`: those that may have divided the attentions."""
    first = regions[0]
    sizes = [r.bytes_unfused for r in regions if r.bytes_unfused is not None]
    many = len(regions) > 1
    memory = f" Scores: {size_text(max(sizes))}{' each' if many else ''}." if sizes else ""
    said = f"{plural(len(regions), 'attention')} {'are' if many else 'is'} not streamed ({first.source}): {first.reason}."
    cut = f" A graph break may have divided {'them' if many else 'it'}: {'; '.join(breaks)}. {ADVICE}." if breaks else ""
    return f"{said}{memory}{cut} {MORE}"


def warn(line: str) -> None:
    """Logs `line`, once."""
    _log_once(line, f"{line}. {MORE}")


def _log_once(cause: str, line: str, warn: bool = True) -> None:
    if cause not in _LOGGED:
        _LOGGED.add(cause)
        log.log(logging.WARNING if warn else logging.INFO, "AICF: %s", line)


# ------------------------------------------------------------------------------------------------ a call as a whole


def _call() -> Call:
    call: Call | None = getattr(_HERE, "call", None)
    if call is None:
        call = _HERE.call = Call()
    return call


def _note_skipped(line: str, backend: Any) -> None:
    """PyTorch skips a function that is compiled for AICF by `backend`."""
    given = dict(getattr(backend, "kwargs", {}).get("options") or {})
    if are_wanted(given.get("require"), given.get("report"), given.get("rest")):
        _call().breaks.append(line)
        _at_end_of_call()


def are_wanted(require: Any, report: Any, rest: Any) -> bool:
    """Whether warnings are wanted under these options: not where the caller gets the reasons in another way."""
    return require is None and report is None and rest != "explain"


def _at_end_of_call() -> None:
    """Schedules `_end_of_call` for the end of the call of the compiled function."""
    if getattr(_HERE, "waiting", False):
        return
    cleanups = _cleanups()
    if cleanups is None:
        _end_of_call()
    else:
        _HERE.waiting = True
        cleanups.append(_end_of_call)


def _cleanups() -> list[Any] | None:
    """The list of functions that PyTorch runs at the end of the outermost call of a compiled function on the stack."""
    frame: FrameType | None = sys._getframe()
    found: list[Any] | None = None
    while frame is not None:
        if frame.f_code.co_name == "compile_wrapper" and isinstance(frame.f_locals.get("cleanups"), list):
            found = frame.f_locals["cleanups"]
        frame = frame.f_back
    return found


def _end_of_call() -> None:
    """Logs the refusals of the call that is done, and its graph breaks where they may hide an attention."""
    call, _HERE.call, _HERE.waiting = _call(), None, False
    regions = [r for g in call.graphs for r in g.regions]
    new = [b for b in dict.fromkeys(call.breaks) if b not in _LOGGED]
    for cause, refused in call.refused.items():
        if cause not in _LOGGED:
            divided = new if any(r.decision is None for r in refused) else []
            _log_once(cause, _refused(refused, divided))
            _LOGGED.update(divided)
    # A region with a schedule is complete; any other refused region may have been split by a graph break.
    lost = not regions or any(r.status == "refused" and r.decision is None for r in regions)
    found = "no attention was found" if not regions else "attention may hide where PyTorch does not look"
    for b in dict.fromkeys(call.breaks):
        warn = lost or _HIDING.search(b) is not None
        _log_once(b, f"{found}; graph break: {b}. {ADVICE}. {MORE}", warn)
    for name, place in _opaque_ops(call.graphs):
        _log_once(name, f"{found}; {name} is not followed ({place}). What it computes is not streamed. {MORE}", not regions)


def _opaque_ops(graphs: Sequence[GraphReport]) -> list[tuple[str, object]]:
    """The custom ops that are not followed, with their source lines."""
    end, ops = " is not followed", dict[str, object]()
    for g in graphs:
        places = {n.name: n.location for n in g.graph.nodes} if g.graph is not None else {}
        for name, why in g.boundaries:
            if why.endswith(end) and not why.startswith(("aten.", "prims.")):
                ops.setdefault(why.removesuffix(end), places.get(name))
    return list(ops.items())
