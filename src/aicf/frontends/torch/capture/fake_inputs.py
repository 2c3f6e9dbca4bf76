"""Calls with fake tensors, which have a type, a shape and a device but no data.

    with FakeTensorMode(): x = torch.randn(2, 8, 512, 64)
    compiled(x)                                             ->    a fake result; nothing is computed

Fake tensors are used to estimate memory and to build large models. Dynamo traces every program with fake tensors of its own; this
is about the user's inputs. Dynamo guards their type, so one compiled graph never serves both kinds.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor


def has_fake_inputs(gm: torch.fx.GraphModule) -> bool:
    """Whether a graph of Dynamo's is called with fake tensors."""
    given: list[Any] = [n.meta.get("grapharg") for n in gm.graph.nodes if n.op == "placeholder"]
    return any(isinstance(getattr(x, "example", None), FakeTensor) for x in given)
