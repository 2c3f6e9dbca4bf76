"""The functional API: `aicf.compile` and `aicf.explain`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch

from aicf.errors import NotStreamed
from aicf.frontends.torch.capture.graph_breaks import Breaks
from aicf.frontends.torch.diagnostics.call_errors import call_error, errors_unlogged, parameters, with_users_line
from aicf.frontends.torch.diagnostics.required import explain_missing, watch_calls
from aicf.report import GraphReport, Report
from aicf.schedule.target import Target

from .options import OPTIONS, backend_options, unknown_options

__all__ = ["NotStreamed", "Report", "compile", "explain"]


def compile(
    fn_or_module: Any = None,
    *,
    dynamic: bool | None = None,
    fullgraph: bool = False,
    fuse: Literal["auto", "always"] = "auto",
    require: Literal["streamed"] | None = None,
    target: Target | str | None = None,
    schedule: Mapping[str, Any] | str | None = None,
    threads: int | None = None,
    strict: bool = False,
    rest: Literal["auto", "inductor", "eager"] = "auto",
    **unknown: Any,
) -> Any:
    """`fn_or_module` compiled: what streams runs as derived kernels, the rest as `torch.compile` runs it. Without one: a
    decorator with these options.

    `dynamic`, `fullgraph`: as in `torch.compile` (sizes as symbols: True, False, or None to let PyTorch see which ones change;
    an error in the place of a graph break).
    `fuse`: "auto" lets the cost model decline, "always" streams whatever can be. `require="streamed"`: a call raises
    `NotStreamed`, with every reason, when an attention is not streamed (nothing of that graph has run then), and when it is done
    and none was seen (see `required`). `target`, `schedule`, `threads`: see `aicf.driver.Options`.
    `strict`: NaN and infinities that a mask hides come out as PyTorch has them; without it they are assumed not to be there, so
    that masked tiles can be skipped. `rest`: what runs the rest of the graph, Inductor or PyTorch op by op. A function gives a
    function, a module a module (with the same parameters).

    Raises TypeError for what is not callable and for an option that does not exist, ValueError for a bad value of one.
    """
    if unknown:
        hint = "; options of the backend are given by name here, without options={...}" if "options" in unknown else ""
        raise TypeError("aicf.compile: " + unknown_options(unknown, OPTIONS | {"dynamic", "fullgraph"}) + hint)
    options: dict[str, Any] = {
        "fuse": fuse,
        "require": require,
        "target": target,
        "schedule": schedule,
        "threads": threads,
        "strict": strict,
        "rest": rest,
    }
    backend_options(options)
    _flag("dynamic", dynamic, (None, False, True))
    _flag("fullgraph", fullgraph, (False, True))

    def made(it: Any) -> Any:
        _callable(it, "aicf.compile")
        compiled = torch.compile(it, backend="aicf", options=options, dynamic=dynamic, fullgraph=fullgraph)
        return compiled if require is None else watch_calls(compiled)

    return made if fn_or_module is None else made(fn_or_module)


def explain(fn_or_module: Any, *args: Any, options: Mapping[str, Any] | None = None, **kwargs: Any) -> Report:
    """What becomes of every attention in one call `fn_or_module(*args, **kwargs)`. The call itself runs once: eagerly, or with
    what streams streamed where the scores would take more than 1 GiB.

    `options`: those of `aicf.compile`, by name, e.g. {"target": "h100", "strict": True}; a GPU need not be here.
    Raises TypeError for what is not callable and for an option among the call's own arguments, ValueError for a bad option, and
    whatever the call raises.
    """
    _callable(fn_or_module, "aicf.explain")
    meant = (kwargs.keys() & OPTIONS) - parameters(fn_or_module)
    if meant:
        said = ", ".join(f"{name!r}: {kwargs[name]!r}" for name in sorted(meant))
        raise TypeError(f"aicf.explain gives its keyword arguments to the call; options are given as options={{{said}}}")
    backend_options(options)
    chosen = dict(options or {})
    for name in ("rest", "report"):
        if name in chosen:
            raise ValueError(f"option {name} makes no sense for an explanation, which runs nothing but the call itself")
    try:
        return explained(fn_or_module, chosen, *args, **kwargs)
    except NotStreamed:
        raise
    except Exception:
        # Dynamo wraps the call's own mistakes in pages of advice; a dry run tells them plainly.
        error = call_error(fn_or_module, args, kwargs)
        if error is None:
            raise
        raise with_users_line(error, fn_or_module) from None


def explained(fn_or_module: Any, options: Mapping[str, Any], /, *args: Any, **kwargs: Any) -> Report:
    """`explain` under options of the backend (see `backend_options`)."""
    report = Report()

    def note(graph: GraphReport) -> None:
        report.graphs.append(graph)

    # A fresh function object: Dynamo keeps what it compiled by code, and an explanation wants the compilation to happen.
    torch._dynamo.reset()
    try:
        compiled = torch.compile(fn_or_module, backend="aicf", options={**options, "rest": "explain", "report": note})
        breaks = Breaks()
        with errors_unlogged():
            compiled(*args, **kwargs)
        report.breaks = breaks.lines()
    finally:
        torch._dynamo.reset()
    if options.get("require") == "streamed" and not report.attentions:
        raise NotStreamed([], explain_missing(report.graphs, report.breaks))
    return report


def _flag(name: str, given: Any, known: tuple[bool | None, ...]) -> None:
    if not any(given is x for x in known):
        raise ValueError(f"{name}={given!r}: it is {' or '.join(map(str, known))}")


def _callable(x: Any, where: str) -> None:
    if not callable(x):
        raise TypeError(f"{where} takes a function or a torch.nn.Module, got {type(x).__name__}: {x!r}")
