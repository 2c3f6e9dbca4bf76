"""FlexAttention's `score_mod` and `mask_mod` as ATen graphs over all scores at once.

    score_mod(score, b, h, i, j)  ->  a graph of (scores [B, H, N, M], b, h, i, j, further tensors of the program)
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import flex_attention as library

FLEX: Any = torch.ops.higher_order.flex_attention
BATCHED = "flex"  # the key of a node's `meta` that holds its batched score_mod and mask_mod, or why there are none
_vmap: Any = library._vmap_for_bhqkv


def batch_mods(traced: torch.fx.GraphModule, mode: FakeTensorMode) -> None:
    """Enters, with each FlexAttention of `traced`, its score_mod and mask_mod as ATen graphs over all scores at once: (scores, b,
    h, i, j, tensors of the program) and the same without scores."""
    for node in traced.graph.nodes:
        if node.op == "call_function" and node.target is FLEX:
            try:
                node.meta[BATCHED] = _batched(traced, mode, node)
            except Exception as e:  # the call runs as PyTorch runs it
                first = str(e).strip().splitlines()[:1]
                node.meta[BATCHED] = f"its score_mod or mask_mod is not understood ({': '.join([type(e).__name__, *first])})"


def _batched(traced: torch.fx.GraphModule, mode: FakeTensorMode, node: torch.fx.Node) -> tuple[Any, Any]:
    q, k, _, score_mod, block_mask, _, _, score_others, mask_others = node.args
    b, h, n = (q.meta["val"].shape[x] for x in (0, 1, 2))  # type: ignore[union-attr]
    m = k.meta["val"].shape[2]  # type: ignore[union-attr]
    with mode:
        scores = torch.empty(b, h, n, m)
        places = [torch.arange(x) for x in (b, h, n, m)]
    made: list[torch.fx.GraphModule] = []
    for mod, prefix, first, others in (
        (score_mod, (0,), [scores], score_others),
        (cast(Any, block_mask)[-1], (), [], mask_others),
    ):
        held = [x.meta["val"] if isinstance(x, torch.fx.Node) else x for x in cast(Any, others)]
        whole = _vmap(_attribute(traced, mod), prefix=prefix, suffix=(None,) * len(held))
        with mode, TransformGetItemToIndex():
            made.append(make_fx(lambda *args, whole=whole: whole(*args))(*first, *places, *held))
        made[-1].graph.eliminate_dead_code()
    return made[0], made[1]


def _attribute(traced: torch.fx.GraphModule, node: Any) -> torch.fx.GraphModule:
    return getattr(traced, str(node.target))
