"""Python floats that are known only when the graph runs, as tensors that a kernel can load.

    %item = aten.item(%scale)                        %item = aten.item(%scale)
    %s = aten.mul.Tensor(%scores, %item)      ->     %one = aten.scalar_tensor(1.0)
                                                     %float32 = aten.mul.Tensor(%one, %item)
                                                     %s = aten.mul.Tensor(%scores, %item)

Dynamo passes a float that changes between calls (with `dynamic=True`: any float) as a tensor of rank 0 and reads it with
`item`. `meta["float32"]` of the float's node is the node of a rank-0 tensor with its float32 value, as PyTorch converts it for
an op with a float32 tensor. It is made by a product because Inductor traces floats symbolically through arithmetic; after other
ops it would recompile for every value.
"""

from __future__ import annotations

import torch
from torch._subclasses import FakeTensorMode

from aicf.frontends.torch.fx.symbols import Unreadable, from_symbolic

aten = torch.ops.aten


def floats_as_tensors(gm: torch.fx.GraphModule, mode: FakeTensorMode) -> None:
    """Adds, in place, a tensor for each float of `gm` that is not computed from sizes. `gm` is ATen, with `meta["val"]` of
    `mode`. Tensors that stay unused are dead code."""
    for node in list(gm.graph.nodes):
        value = node.meta.get("val")
        met = [u.meta["val"] for u in node.users if isinstance(u.meta.get("val"), torch.Tensor)]
        if node.op == "call_function" and isinstance(value, torch.SymFloat) and met and not _follows_from_sizes(value):
            device = next((x.device for x in met if x.device.type != "cpu"), met[0].device)
            with gm.graph.inserting_after(node):
                one = gm.graph.call_function(aten.scalar_tensor.default, (1.0,), {"dtype": torch.float32, "device": device})
            with gm.graph.inserting_after(one):
                made = gm.graph.call_function(aten.mul.Tensor, (one, node))
            with mode:
                one.meta["val"] = made.meta["val"] = aten.scalar_tensor.default(1.0, dtype=torch.float32, device=device)
            for x in (one, made):
                x.meta.update({k: v for k, v in node.meta.items() if k in ("stack_trace", "seq_nr", "from_node")})
            node.meta["float32"] = made


def _follows_from_sizes(value: torch.SymFloat) -> bool:
    try:
        from_symbolic(value)
    except Unreadable:
        return False
    return True
