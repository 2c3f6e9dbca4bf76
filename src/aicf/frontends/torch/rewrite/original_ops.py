"""A region's own ops as PyTorch runs them, for calls with a size below 1.

Kernels and the proofs behind them take every size to be at least 1. Sizes that depend on data (`x[keep]`, `n.item()`) are known
only when the graph runs, and may be 0 then, or less where a number is no length: such a call takes these ops instead, so that its
result, or its error, is PyTorch's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from aicf.frontends.torch.read.reader import written_by


class NotCopied(Exception):
    """Ops that cannot be run apart from their graph; the message says why, for people."""


@dataclass(frozen=True)
class AsWritten:
    """`module`, called on a region's inputs and then on `numbers`, gives the region's outputs."""

    module: torch.fx.GraphModule
    numbers: list[torch.fx.Node]


def as_written(
    gm: torch.fx.GraphModule, inputs: Sequence[torch.fx.Node], outputs: Sequence[torch.fx.Node], same: Mapping[Any, Any]
) -> AsWritten:
    """The ops of `gm` between `inputs` and `outputs`. `same`: nodes by what has taken their place. Raises NotCopied."""
    graph, numbers = torch.fx.Graph(), list[torch.fx.Node]()
    found: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in inputs:
        found[same.get(node, node)] = found[node] = graph.placeholder(node.name)
    between = _between(outputs, found, numbers)
    for node in numbers:
        found[node] = graph.placeholder(node.name)
    for node in gm.graph.nodes:
        if node in between:
            found[node] = graph.node_copy(node, found.__getitem__)
    graph.output([found[x] for x in outputs])
    return AsWritten(torch.fx.GraphModule(gm, graph), numbers)


def _between(
    outputs: Sequence[torch.fx.Node], given: Collection[torch.fx.Node], numbers: list[torch.fx.Node]
) -> set[torch.fx.Node]:
    """What `outputs` are computed by from `given` and from numbers, which are noted in `numbers`."""
    found: set[torch.fx.Node] = set()
    stack = list(outputs)
    while stack:
        node = stack.pop()
        if node in found or node in given or node in numbers:
            continue
        if isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool | int | float):
            numbers.append(node)
            continue
        if node.op == "placeholder" or written_by(node):
            raise NotCopied("a size of it depends on data and may be 0, and its ops change tensors in place")
        found.add(node)
        stack += node.all_input_nodes
    return found
