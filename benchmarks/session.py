"""One model and the ways to run it: its attention written out or SDPA, eagerly, through torch.compile's default, through AICF.
Shared by demo and benchmark."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from aicf.frontends.torch.run.rest import has_compiler
from aicf.report import GraphReport, Report
from benchmarks import contenders, zoo


@dataclass
class Result:
    """What one model showed. `errors`: (max, mean) against float64 by contender; `scale`: the largest value; `first_call`:
    seconds to the first result, compilation included; `own`: AICF's part of it."""

    report: Report
    errors: dict[str, tuple[float, float]]
    scale: float
    measured: dict[str, contenders.Measured]
    first_call: dict[str, float] = field(default_factory=dict[str, float])
    own: float = 0.0


def say(text: str) -> None:
    """Progress, on standard error: standard output holds the result alone."""
    print(f"  … {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def ticking(text: str, every: float = 4.0) -> Iterator[None]:
    """Says `text`, and again with the seconds that it takes while it takes longer: a person sees that something moves."""
    done, began = threading.Event(), time.perf_counter()
    say(text)

    def tick() -> None:
        while not done.wait(every):
            say(f"{text} ({time.perf_counter() - began:.0f} s)")

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@torch.inference_mode()
def run(
    name: str, *, budget: float, eager: bool = True, sdpa: bool = False, layers: int | None = None,
    options: dict[str, Any] | None = None, patience: float = math.inf,
) -> Result:  # fmt: skip
    """Builds the model, compiles it, compares the results with float64 and measures all contenders in one go.

    `budget`: seconds of timing; `layers`: so many instead of the model's own; `options`: of the aicf backend. `eager` and `sdpa`
    are contenders that can be left out; torch.compile is where AICF's first call, most of it Inductor's work too, took more than
    `patience` seconds.
    """
    with ticking(f"{zoo.MODELS[name].title}: building the model"):
        model, inputs = zoo.make(name, layers)
    with ticking("computing it in float64, the reference"):
        exact = zoo.exact(model, inputs)

    report = Report()

    def note(graph: GraphReport) -> None:
        report.graphs.append(graph)

    calls: dict[str, Callable[[], torch.Tensor]] = {}

    def add(title: str, call: Any) -> None:
        calls[title] = lambda: zoo.hidden(call, inputs)

    if eager:
        add("eager", model)
    if sdpa:
        add("sdpa", zoo.with_sdpa(model))
    torch._dynamo.reset()
    add("aicf", torch.compile(model, backend="aicf", options={**(options or {}), "report": note}))
    if has_compiler():
        add("torch.compile", torch.compile(model))
    result = Result(report, {}, exact.abs().max().item(), {})
    for title, call in list(calls.items()):
        if title == "torch.compile" and result.first_call["aicf"] > patience:
            say(f"compiling took {result.first_call['aicf']:.0f} s on this busy machine: torch.compile is left out")
            del calls[title]
            continue
        with ticking(f"{title}: first call" + ("" if title in ("eager", "sdpa") else ", which compiles")):
            began = time.perf_counter()
            found = call()
            result.first_call[title] = time.perf_counter() - began
        wrong = (found.double() - exact).abs()
        result.errors[title] = (wrong.max().item(), wrong.mean().item())
    result.own = sum(g.seconds for g in report.graphs)
    with ticking(f"timing {len(calls)} contenders in turn, for about {budget:.0f} s, then their memory"):
        result.measured = contenders.measure(calls, budget=budget, say=say)
    torch._dynamo.reset()
    return result


def table(result: Result, titles: Mapping[str, str]) -> list[str]:
    """Time and memory of every contender, one line each, ratios to AICF. `titles`: what they are called."""
    mine = result.measured["aicf"]
    lines = [f"  {'':16}{'best time':>12}{'':>14}{'extra peak memory':>22}"]
    for title, m in result.measured.items():
        ratio = "" if title == "aicf" else f"({m.seconds / mine.seconds:.2f} x AICF)"
        lines.append(f"  {titles[title]:16}{m.seconds * 1e3:9.1f} ms{ratio:>15}  {memory(m.peak):>20}")
    return lines


def memory(peak: int | None) -> str:
    return "not measured" if peak is None else f"{peak / 2**20:.1f} MiB"
