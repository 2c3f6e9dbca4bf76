"""The backend of `torch.compile(model, backend="aicf")`.

    Dynamo's graph --capture--> ATen graph --read--> Semantic graph --driver--> regions
    each streamed region becomes one call (rewrite); Inductor compiles the rest, or it runs eagerly

A graph in which nothing streams is left unchanged. After any internal error the graph runs as PyTorch alone would run it, and the
report has the reason.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from aicf.errors import NotStreamed
from aicf.frontends.torch.capture.dynamo_errors import passing_through_dynamo
from aicf.frontends.torch.capture.fake_inputs import has_fake_inputs
from aicf.frontends.torch.capture.graph_breaks import is_next_to_break
from aicf.frontends.torch.capture.tensor_subclasses import compile_inner_graph, subclasses
from aicf.frontends.torch.diagnostics.failures import error_line, refuse_all
from aicf.frontends.torch.diagnostics.required import record_run
from aicf.frontends.torch.options import BackendOptions, backend_options
from aicf.frontends.torch.pipeline import streamed_module
from aicf.frontends.torch.rewrite.gradients import Gradients
from aicf.frontends.torch.run.rest import compile_rest
from aicf.frontends.torch.run.tile_counts import explained_call
from aicf.report import GraphReport

from .capture import dynamo_patches
from .diagnostics import notices

dynamo_patches.install()
notices.configure()

Module = torch.fx.GraphModule
log = logging.getLogger("aicf")


def aicf_backend(
    gm: Module, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, mode: str | None = None
) -> Callable[..., Any]:
    """Compiles one graph of Dynamo's. Raises ValueError for bad options, NotStreamed when `require="streamed"` is not met."""
    try:
        if mode not in (None, "default"):
            raise ValueError(f"mode={mode!r}: the aicf backend has no modes; use options={{...}}")
        chosen = backend_options(options)
    except ValueError as e:
        raise passing_through_dynamo(e, inspect.currentframe()) from None
    began = time.perf_counter()
    inner: Callable[..., Any] | None = None
    if subclasses(gm):
        report, inner = _compile_subclasses(gm, example_inputs, chosen)
        rewritten = None
    else:
        report, rewritten = streamed_module(gm, example_inputs, chosen)
    report.seconds = time.perf_counter() - began
    if chosen.report is not None:
        chosen.report(report)
    _require(chosen, report)
    if inner is not None:
        made = inner
    elif has_fake_inputs(gm):  # fake tensors have no memory that a kernel could read
        report.rest = "eager"
        made = gm.forward
    elif chosen.rest == "explain":
        made = explained_call(gm, rewritten, report)
    else:
        made = compile_rest(gm, rewritten, example_inputs, chosen, report)
    _require(chosen, report)
    if notices.are_wanted(chosen.require, chosen.report, chosen.rest):
        notices.warn_about(gm, report)
    return made if chosen.require is None else _recording_runs(made, report, is_next_to_break(gm))


def _compile_subclasses(
    gm: Module, inputs: Sequence[Any], options: BackendOptions
) -> tuple[GraphReport, Callable[..., Any] | None]:
    """For a graph over tensor subclasses: the report on the graph over their inner tensors, and that graph compiled. None when
    nothing streams. Never raises."""
    reports = [GraphReport()]

    def compile(own: Module, tensors: Sequence[Any]) -> Callable[..., Any]:
        report, rewritten = streamed_module(own, tensors, options)
        reports.append(report)
        plain = rewritten is None or options.rest == "explain"
        return own.forward if plain else compile_rest(own, rewritten, tensors, options, report)

    kinds = ", ".join(subclasses(gm))
    if Gradients(gm, inputs).required:
        reports[-1].problem = f"a gradient is asked of it over tensor subclasses ({kinds}), and gradients are not derived yet"
        return reports[-1], None
    try:
        made = compile_inner_graph(gm, inputs, compile)
    except Exception as e:
        reports[-1].problem = f"PyTorch cannot trace it on the inner tensors of {kinds} ({error_line(e)})"
        refuse_all(reports[-1])
        log.info("a graph is left to PyTorch: %s", reports[-1].problem, exc_info=log.isEnabledFor(logging.DEBUG))
        return reports[-1], None
    report = reports[-1]
    return report, made if any(r.status == "streamed" for r in report.regions) and not report.problem else None


def _recording_runs(made: Callable[..., Any], report: GraphReport, cut: bool) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        record_run(report, cut)
        return made(*args)

    return run


def _require(options: BackendOptions, report: GraphReport) -> None:
    missing = [r for r in report.regions if r.status != "streamed" and r.kind == "attention"]
    if options.require == "streamed" and (missing or report.problem):
        said = f"the graph could not be taken as a whole: {report.problem}" if report.problem else ""
        error = NotStreamed([(r.source, r.name, r.status, r.reason) for r in missing], said)
        raise passing_through_dynamo(error, inspect.currentframe())
