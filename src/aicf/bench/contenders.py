"""Who is measured: each way to run a case, prepared so that a call is a call and nothing else, or why it is left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from aicf.frontends.torch.run.rest import has_compiler
from aicf.report import GraphReport, Report

from .cases import Case, Tensors

NAMES = ("eager", "compile", "sdpa", "flex", "aicf")
WHAT = {
    "eager": "the code as written",
    "compile": "torch.compile of the code as written (Inductor)",
    "sdpa": "PyTorch's scaled_dot_product_attention; a mask that it has no flag for is a tensor made beforehand",
    "flex": "compiled Flex Attention, its block mask made beforehand",
    "aicf": "the code as written, compiled by AICF",
}
NO_COMPILER = "Inductor needs a C++ compiler, and there is none"


@dataclass
class Contender:
    """`call()` runs the case on its inputs; None, with the reason in `missing`, when it cannot. `report`: AICF's own."""

    call: Callable[[], Any] | None
    missing: str = ""
    report: Report = field(default_factory=Report)


def prepare(
    name: str, case: Case, tensors: Tensors, *, threads: int, fuse: Literal["auto", "always"], target: str | None = None
) -> Contender:  # fmt: skip
    """The contender called `name`. Nothing is compiled before its first call. `target`: what AICF compiles for."""
    values = list(tensors.values())
    if name == "eager":
        return Contender(lambda: case.plain(*values))
    if name == "sdpa":
        if case.sdpa is None:
            return Contender(None, "it cannot be said as a call of SDPA")
        call = case.sdpa(tensors)
        return Contender(lambda: call(*values))
    if name == "aicf":
        report = Report()

        def note(graph: GraphReport) -> None:
            report.graphs.append(graph)

        options: dict[str, Any] = {"fuse": fuse, "threads": threads, "report": note, "target": target}
        mine: Any = torch.compile(case.plain, backend="aicf", options=options)
        return Contender(lambda: mine(*values), report=report)
    if not has_compiler():
        return Contender(None, NO_COMPILER)
    if name == "compile":
        plain: Any = torch.compile(case.plain, dynamic=False)
        return Contender(lambda: plain(*values))
    if case.flex is None:
        return Contender(None, "it cannot be said in Flex Attention")
    return Contender(_flex(case.flex, _flex_attention(case, tensors), values))


def _flex(around: Callable[[Any], Any], attention: Any, values: list[torch.Tensor]) -> Callable[[], Any]:
    """A call of the case, compiled as one; where Inductor does not take it, which it does not of two attentions that are
    subtracted, the attention alone is compiled."""
    ways: list[Callable[[], Any]] = [
        lambda: torch.compile(around(attention), dynamic=False),
        lambda: around(torch.compile(attention, dynamic=False)),
    ]
    made: list[Any] = []

    def call() -> Any:
        if not made:
            made.append(ways.pop(0)())
        try:
            return made[0](*values)
        except Exception:
            if not ways:
                raise
            made.clear()
            return call()

    return call


def _flex_attention(case: Case, tensors: Tensors) -> Callable[..., Any]:
    """The case's attention in Flex Attention."""
    b, h, n, _ = tensors["q"].shape
    keys = tensors["k"].shape[-2] + case.more_keys
    block = None if case.mask is None else create_block_mask(case.mask(tensors), b, None, n, keys, device=tensors["q"].device)
    score = None if case.score is None else case.score(tensors)
    grouped = tensors["k"].shape[1] != h

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return flex_attention(q, k, v, score_mod=score, block_mask=block, enable_gqa=grouped)

    return attention
