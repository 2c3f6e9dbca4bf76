"""`require="streamed"` for whole calls: an attention in code that PyTorch never passed to the backend must not count as streamed.

After each call it is known which graphs ran. The call fails when

    no graph ran                                           PyTorch compiled nothing of it, or nothing is computed
    no graph streams, and one is next to a graph break     an attention may be in the code between the graphs
    no graph streams, and none did in an earlier call      no attention was found

After a call that streamed, a call without any graph may be one that computes nothing. It fails only if PyTorch stopped compiling.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.eval_frame import OptimizedModule, _debug_get_cache_entry_list

from aicf.errors import NotStreamed
from aicf.frontends.torch.capture.graph_breaks import Breaks
from aicf.report import GraphReport, opaque

# The graphs that ran in the innermost watched call of this thread.
_HERE = threading.local()


def record_run(report: GraphReport, cut: bool) -> None:
    """Records in the call around it that a graph runs. Dynamo caches compiled graphs by code object, so copies of a function
    share them: only now is it known which call a graph belongs to."""
    seen: list[tuple[GraphReport, bool]] | None = getattr(_HERE, "seen", None)
    if seen is not None:
        seen.append((report, cut))


class Watch:
    """The results of the calls of one compiled function so far."""

    def __init__(self) -> None:
        self.streamed = False
        self.breaks: list[str] = []

    def calls(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, which raises NotStreamed after a call that fails as described above."""

        @functools.wraps(call)
        def run(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():  # part of another compiled function, whose options count
                return call(*args, **kwargs)
            outer, seen, breaks = getattr(_HERE, "seen", None), list[tuple[GraphReport, bool]](), Breaks()
            _HERE.seen = seen
            try:
                result = call(*args, **kwargs)
            finally:
                _HERE.seen = outer
            if outer is not None:
                outer.extend(seen)
            self._check(seen, breaks, call)
            return result

        return run

    def _check(self, seen: list[tuple[GraphReport, bool]], breaks: Breaks, call: Callable[..., Any]) -> None:
        if any(x.kind == "attention" for r, _ in seen for x in r.regions):  # and all of them stream, or the backend had raised
            self.streamed = True
            return
        new = breaks.lines()
        self.breaks = list(dict.fromkeys([*self.breaks, *new]))
        lost = bool(new) or _limit_reached(call) if not seen else any(cut for _, cut in seen)
        if lost or not self.streamed:
            raise NotStreamed([], explain_missing([r for r, _ in seen], self.breaks))


def _limit_reached(call: Callable[..., Any]) -> bool:
    """Whether the function of `call` has reached PyTorch's recompile limit, so that further variants run eagerly."""
    own: Any = inspect.unwrap(getattr(call, "_torchdynamo_orig_callable", call))
    module = getattr(own, "__self__", None)
    code = getattr(module.forward if isinstance(module, torch.nn.Module) else own, "__code__", None)
    return code is not None and len(_debug_get_cache_entry_list(code)) >= torch._dynamo.config.recompile_limit


def explain_missing(graphs: list[GraphReport], breaks: list[str]) -> str:
    """Why a call has no attention that streams, as text for the user."""
    lines: list[str] = []
    if not graphs:
        why = "it left the graph" if breaks else "it skipped the function, or torch.compile is disabled in it"
        lines.append(f"PyTorch ran this call without any compiled graph: {why}")
    lines += [f"graph break: {b}" for b in breaks]
    hidden = opaque(graphs)
    lines += [f"not followed: {', '.join(hidden)}"] if hidden else []
    said = 'no attention was found that could stream, and require="streamed" was given'
    return said + "".join(f"\n  {line}" for line in lines)


class RequiredModule(OptimizedModule):
    """A compiled module whose calls are watched; copies of it are too."""

    def _initialize(self) -> None:
        super()._initialize()
        self.forward = Watch().calls(self.forward)


def watch_calls(compiled: Any) -> Any:
    """What torch.compile made, with its calls watched."""
    if not isinstance(compiled, OptimizedModule):
        return Watch().calls(compiled)
    compiled.__class__ = RequiredModule
    compiled._initialize()
    return compiled
