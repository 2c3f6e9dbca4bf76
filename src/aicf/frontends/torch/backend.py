"""The backend of `torch.compile(model, backend="aicf")`.

    Dynamo's graph --retrace--> ATen graph --read--> Semantic graph --driver--> regions
    regions that stream become one call each (rewrite); the rest goes to Inductor, or runs eagerly

What streams nowhere is left exactly as it came. Whatever goes wrong on the way, the graph runs as PyTorch alone would run it,
and the reason is kept.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch

from aicf.errors import NotStreamed
from aicf.frontends.torch.capture.dynamo_errors import as_it_is
from aicf.frontends.torch.capture.fake_inputs import on_fakes
from aicf.frontends.torch.capture.graph_breaks import is_cut
from aicf.frontends.torch.capture.tensor_subclasses import on_own_tensors, subclasses
from aicf.frontends.torch.diagnostics.failures import error_line, refuse_all
from aicf.frontends.torch.diagnostics.required import ran
from aicf.frontends.torch.options import BackendOptions, backend_options
from aicf.frontends.torch.pipeline import streamed_module
from aicf.frontends.torch.rewrite.gradients import Gradients
from aicf.frontends.torch.run.rest import compile_rest
from aicf.frontends.torch.run.tile_counts import explained_call
from aicf.report import GraphReport

from .capture import dynamo_patches as hints
from .diagnostics import notices

hints.install()
notices.set_up()

Rest = Literal["auto", "inductor", "eager", "explain"]
EAGER_BYTES = 1 << 30  # scores that an explanation's call may write
Module = torch.fx.GraphModule
OPTIONS = frozenset({"fuse", "require", "target", "schedule", "threads", "strict", "rest"})
MAX_WIDTHS = 3  # how often sizes are fixed: a refusal names one at a time
MAX_CUTS = 4  # how often regions are cut anew when one cannot be called where it was cut
log = logging.getLogger("aicf")

GRADIENT = "a gradient is asked of it, and gradients are not derived yet: call it under torch.no_grad() or torch.inference_mode()"
DIFFERENTIATED = "a gradient is taken inside of it (torch.func), and gradients are not derived yet"


def aicf_backend(
    gm: Module, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, mode: str | None = None
) -> Callable[..., Any]:
    """Compiles one graph of Dynamo's. Raises ValueError for bad options, NotStreamed when `require="streamed"` is not met."""
    try:
        if mode not in (None, "default"):
            raise ValueError(f"mode={mode!r}: the aicf backend has no modes; use options={{...}}")
        chosen = backend_options(options)
    except ValueError as e:
        raise as_it_is(e, inspect.currentframe()) from None
    began = time.perf_counter()
    apart: Callable[..., Any] | None = None
    if subclasses(gm):
        report, apart = _taken_apart(gm, example_inputs, chosen)
        rewritten = None
    else:
        report, rewritten = streamed_module(gm, example_inputs, chosen)
    report.seconds = time.perf_counter() - began
    if chosen.report is not None:
        chosen.report(report)
    _require(chosen, report)
    if apart is not None:
        made = apart
    elif on_fakes(gm):  # memory or shapes are asked for; compiled code would read memory that is not there
        report.rest = "eager"
        made = gm.forward
    elif chosen.rest == "explain":
        made = explained_call(gm, rewritten, report)
    else:
        made = compile_rest(gm, rewritten, example_inputs, chosen, report)
    _require(chosen, report)
    if notices.is_wanted(chosen.require, chosen.report, chosen.rest):
        notices.note(gm, report)
    return made if chosen.require is None else _telling(made, report, is_cut(gm))


def _taken_apart(gm: Module, inputs: Sequence[Any], options: BackendOptions) -> tuple[GraphReport, Callable[..., Any] | None]:
    """What streams in the graph over the tensors that those of `gm` are made of, and that graph compiled (None when nothing
    streams). Never raises."""
    found = [GraphReport()]

    def compile(own: Module, tensors: Sequence[Any]) -> Callable[..., Any]:
        report, rewritten = streamed_module(own, tensors, options)
        found.append(report)
        plain = rewritten is None or options.rest == "explain"
        return own.forward if plain else compile_rest(own, rewritten, tensors, options, report)

    kinds = ", ".join(subclasses(gm))
    if Gradients(gm, inputs).asked:
        found[-1].problem = f"a gradient is asked of it over tensors of another kind ({kinds}), and gradients are not derived yet"
        return found[-1], None
    try:
        made = on_own_tensors(gm, inputs, compile)
    except Exception as e:
        found[-1].problem = f"PyTorch does not say what it computes on the tensors that a {kinds} is made of ({error_line(e)})"
        refuse_all(found[-1])
        log.info("a graph is left to PyTorch: %s", found[-1].problem, exc_info=log.isEnabledFor(logging.DEBUG))
        return found[-1], None
    report = found[-1]
    return report, made if any(r.status == "streamed" for r in report.regions) and not report.problem else None


def _telling(made: Callable[..., Any], report: GraphReport, cut: bool) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        ran(report, cut)
        return made(*args)

    return run


def _require(options: BackendOptions, report: GraphReport) -> None:
    missing = [r for r in report.regions if r.status != "streamed" and r.kind == "attention"]
    if options.require == "streamed" and (missing or report.problem):
        said = f"the graph could not be taken as a whole: {report.problem}" if report.problem else ""
        error = NotStreamed([(r.source, r.name, r.status, r.reason) for r in missing], said)
        raise as_it_is(error, inspect.currentframe())
