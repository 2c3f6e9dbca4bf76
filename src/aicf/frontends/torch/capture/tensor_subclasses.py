"""Graphs over tensors that are made of others: distributed tensors (DTensor) above all.

    %q : DTensor[B, H, N, D], heads sharded          %q : [B, H / ranks, N, D], this rank's own
    %s = matmul(%q, %k)                       ->     %s = bmm(...)

PyTorch itself works out what every rank computes on its own tensors, and where it communicates; that graph is read, and an
attention streams where nothing is communicated inside of it: batch and heads may be sharded as one likes, rows too. Nothing is
known here of how anything is sharded.
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
    """The kinds of tensors in Dynamo's graph that are made of others, by name."""
    values = [n.meta.get("example_value") for n in gm.graph.nodes]
    return list(dict.fromkeys(type(x).__name__ for x in values if is_traceable_wrapper_subclass(x)))


def on_own_tensors(gm: torch.fx.GraphModule, inputs: Sequence[Any], compile: Compile) -> Callable[..., Any]:
    """`gm`, of which no gradient is asked, as a callable. `compile` gets the graph over this rank's own tensors, once. Raises
    what PyTorch raises where an op has no rule."""

    def forward(own: torch.fx.GraphModule, tensors: Sequence[Any]) -> Any:
        return make_boxed_func(compile(own, tensors))

    return aot_autograd(fw_compiler=forward)(gm, list(inputs))
