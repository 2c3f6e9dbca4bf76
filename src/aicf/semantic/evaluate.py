"""Running a graph with NumPy: the meaning that every later level is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from aicf.scalar import Var, round_to
from aicf.semantic.graph import Graph, Node
from aicf.semantic.ops import OPS


def bind_sizes(inputs: Sequence[Node], values: Sequence[Any]) -> dict[str, int]:
    """Size symbols from the shapes of actual inputs. Raises ValueError when a shape does not fit its type."""
    sizes: dict[str, int] = {}
    for node, value in zip(inputs, values, strict=True):
        shape = np.shape(value)
        if len(shape) != node.type.rank:
            raise ValueError(f"{node.name} is {node.type}, got an array of shape {shape}")
        for dim, n in zip(node.type.shape, shape, strict=True):
            if isinstance(dim, Var) and sizes.setdefault(dim.name, n) != n:
                raise ValueError(f"{node.name}: size {dim.name} is {sizes[dim.name]} elsewhere, {n} here")
    return sizes


def run_graph(graph: Graph, values: Sequence[Any], sizes: Mapping[str, int] | None = None) -> list[Any]:
    """The outputs of `graph` for input arrays in call order; halves are rounded after every op, as the source does."""
    bound = {**bind_sizes(graph.inputs, values), **(sizes or {})}
    env: dict[Node, Any] = {n: round_to(v, n.type.dtype) for n, v in zip(graph.inputs, values, strict=True)}
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            if node not in env:
                env[node] = OPS[node.op].numpy([env[i] for i in node.inputs], node.attrs, node.type, bound)
    return [env[n] for n in graph.outputs]
