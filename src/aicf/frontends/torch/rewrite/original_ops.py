"""A region's original ops, for calls with a size below 1.

Kernels assume, and their proofs use, that every size is at least 1. Sizes that depend on data (`x[keep]`, `n.item()`) are known
only when the graph runs and may be 0 (or negative, for a number that is not a length). Such a call runs the original ops, so
that its result, or its error, is PyTorch's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from aicf.frontends.torch.read.reader import written_by


class CannotCopy(Exception):
    """The ops cannot be copied into a graph of their own; the message says why."""


@dataclass(frozen=True)
class OriginalOps:
    """`module`, called on a region's inputs and then on `numbers`, gives the region's outputs."""

    module: torch.fx.GraphModule
    numbers: list[torch.fx.Node]


def original_ops(
    gm: torch.fx.GraphModule, inputs: Sequence[torch.fx.Node], outputs: Sequence[torch.fx.Node], same: Mapping[Any, Any]
) -> OriginalOps:
    """The ops of `gm` between `inputs` and `outputs`. `same`: replaced nodes and their replacements. Raises CannotCopy."""
    graph, numbers = torch.fx.Graph(), list[torch.fx.Node]()
    ops: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in inputs:
        ops[same.get(node, node)] = ops[node] = graph.placeholder(node.name)
    between = _between(outputs, ops, numbers)
    for node in numbers:
        ops[node] = graph.placeholder(node.name)
    for node in gm.graph.nodes:
        if node in between:
            ops[node] = graph.node_copy(node, ops.__getitem__)
    graph.output([ops[x] for x in outputs])
    return OriginalOps(torch.fx.GraphModule(gm, graph), numbers)


def _between(
    outputs: Sequence[torch.fx.Node], given: Collection[torch.fx.Node], numbers: list[torch.fx.Node]
) -> set[torch.fx.Node]:
    """The nodes that compute `outputs` from `given` and from numbers; the numbers are added to `numbers`."""
    nodes: set[torch.fx.Node] = set()
    stack = list(outputs)
    while stack:
        node = stack.pop()
        if node in nodes or node in given or node in numbers:
            continue
        if isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool | int | float):
            numbers.append(node)
            continue
        if node.op == "placeholder" or written_by(node):
            raise CannotCopy("a size of it depends on data and may be 0, and its ops change tensors in place")
        nodes.add(node)
        stack += node.all_input_nodes
    return nodes
