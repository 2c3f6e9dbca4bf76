"""`require="streamed"` over whole calls: what PyTorch never gave to the backend has no attention that could be refused, and must
not pass for streamed all the same.

When a call is done, it is asked which of its graphs ran. It fails when

    none did                                    PyTorch compiled nothing of it (or there is nothing in it to compute)
    none streams, and a graph break cut one     attention may be in what lies between
    none streams, and none ever did             no attention was found

After a call that streamed, one in which no graph runs may have nothing to compute; it fails where PyTorch has given up compiling.
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


def ran(report: GraphReport, cut: bool) -> None:
    """Tells the call around it that a graph runs. Dynamo keeps compiled graphs by code, so that copies of a function share them:
    which call a graph belongs to is known only now."""
    seen: list[tuple[GraphReport, bool]] | None = getattr(_HERE, "seen", None)
    if seen is not None:
        seen.append((report, cut))


class Watch:
    """What one compiled function's calls have shown."""

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
        lost = bool(new) or _given_up(call) if not seen else any(cut for _, cut in seen)
        if lost or not self.streamed:
            raise NotStreamed([], missed([r for r, _ in seen], self.breaks))


def _given_up(call: Callable[..., Any]) -> bool:
    """Whether PyTorch keeps as many compilations of what `call` calls as it may, so that others run eagerly."""
    own: Any = inspect.unwrap(getattr(call, "_torchdynamo_orig_callable", call))
    module = getattr(own, "__self__", None)
    code = getattr(module.forward if isinstance(module, torch.nn.Module) else own, "__code__", None)
    return code is not None and len(_debug_get_cache_entry_list(code)) >= torch._dynamo.config.recompile_limit


def missed(graphs: list[GraphReport], breaks: list[str]) -> str:
    """Why a call has no attention that streams, for people."""
    lines: list[str] = []
    if not graphs:
        why = "it left the graph" if breaks else "it gave the function up, or torch.compile is disabled in it"
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


def watched(compiled: Any) -> Any:
    """What torch.compile made, with its calls watched."""
    if not isinstance(compiled, OptimizedModule):
        return Watch().calls(compiled)
    compiled.__class__ = RequiredModule
    compiled._initialize()
    return compiled
