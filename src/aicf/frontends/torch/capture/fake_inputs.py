"""Calls on fake tensors: tensors of PyTorch's that have a type, a shape and a device, and no numbers.

    with FakeTensorMode(): x = torch.randn(2, 8, 512, 64)
    compiled(x)                                             ->    a fake result, and nothing computed

People estimate memory with them and draw up large models. Dynamo traces every program on fakes of its own; what counts here is
what the user gave. It guards the type, so that a graph serves fakes only, or none.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor


def on_fakes(gm: torch.fx.GraphModule) -> bool:
    """Whether a graph of Dynamo's is called with fake tensors."""
    given: list[Any] = [n.meta.get("grapharg") for n in gm.graph.nodes if n.op == "placeholder"]
    return any(isinstance(getattr(x, "example", None), FakeTensor) for x in given)
