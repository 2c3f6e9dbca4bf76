"""Graphs over tensor subclasses that wrap other tensors, above all distributed tensors (DTensor).

    %q : DTensor[B, H, N, D], heads sharded          %q : [B, H / ranks, N, D], the tensor of this rank
    %s = matmul(%q, %k)                       ->     %s = bmm(...)

PyTorch traces what each rank computes on its inner tensors and where it communicates. AICF reads that graph. An attention streams
when there is no communication inside it: batch, heads and rows may be sharded. This module knows nothing about the sharding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

Compile = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]


def subclasses(gm: torch.fx.GraphModule) -> list[str]:
    """The names of the tensor subclasses with inner tensors in Dynamo's graph."""
    values = [n.meta.get("example_value") for n in gm.graph.nodes]
    return list(dict.fromkeys(type(x).__name__ for x in values if is_traceable_wrapper_subclass(x)))


def compile_inner_graph(gm: torch.fx.GraphModule, inputs: Sequence[Any], compile: Compile) -> Callable[..., Any]:
    """`gm`, which needs no gradient, as a callable. `compile` is called once, with the graph over the inner tensors. Raises what
    PyTorch raises for an op that the subclass does not support."""

    def forward(own: torch.fx.GraphModule, tensors: Sequence[Any]) -> Any:
        return make_boxed_func(compile(own, tensors))

    return aot_autograd(fw_compiler=forward)(gm, list(inputs))
