"""FlexAttention's call written out: its `score_mod` and `mask_mod` are plain graphs, read like everything else.

    flex_attention(%q, %k, %v, score_mod, block_mask, scale)
      ->  %scores = matmul(%q, permute(%k)) * scale            heads of %k and %v repeated for their groups
          %kept = where(mask_mod(b, h, i, j), score_mod(%scores, b, h, i, j), -inf)
          safe_softmax(%kept) %v,  logsumexp(%kept) / log(2),  max(%kept) / log(2)

That is what PyTorch computes without a compiler (`torch._higher_order_ops.flex_attention.math_attention`), where the blocks of a
BlockMask say nothing that its `mask_mod` does not say. Without a `mask_mod`, a BlockMask made by hand means all scores there, and
for Inductor only those of the blocks that it lists. It is refused, so that whoever runs the rest decides as before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.attention import flex_attention as library

from aicf.frontends.torch.capture.flex_mods import BATCHED
from aicf.frontends.torch.fx.symbols import Unreadable
from aicf.scalar import is_half
from aicf.semantic import Node
from aicf.semantic.sdpa import safe_softmax

from .context import Context
from .ops_contract import repeat_heads

Inline = Callable[[torch.fx.GraphModule, Sequence[Any]], Any]
WHOLE: int = library._LARGE_SPARSE_BLOCK_SIZE


def flex_attention(c: Context, node: torch.fx.Node, arguments: Sequence[Any], inline: Inline) -> list[Node | None]:
    """The three results of a FlexAttention: the values, and log-sum-exp and maximum of each row's scores, in base 2.

    `arguments`: q, k, v, the scale, the other tensors of score_mod, those of mask_mod; `inline` reads a graph. Raises Unreadable.
    """
    mods = node.meta.get(BATCHED, "its score_mod and mask_mod are not known")
    if isinstance(mods, str):
        raise Unreadable(f"flex_attention: {mods}")
    q, k, v, scale, score_others, mask_others = arguments
    score_mod, mask_mod = mods
    if q.type.dtype == "f64":
        raise Unreadable("flex_attention in float64")
    b, dtype = c.b, q.type.dtype
    hides = not _keeps_all(mask_mod)
    if not hides and _has_blocks(node):
        raise Unreadable(
            "a BlockMask without a mask_mod: PyTorch's compiler skips the blocks that it leaves out, eager flex_attention "
            "computes them, so that it has no one meaning. Give from_kv_blocks a mask_mod, such as "
            "lambda b, h, i, j: kept[b, h, i // 128, j // 128] of a tensor that says which blocks count, or use "
            "create_block_mask"
        )
    k, v = (repeat_heads(c, x, q) for x in (k, v))
    if is_half(dtype):
        q, k, v = (b.cast(x, "f32") for x in (q, k, v))
    scores = b.op("mul", b.op("matmul", q, b.permute(k, (0, 1, 3, 2))), c.number(scale, "f32"))
    places = [b.iota(d) for d in scores.type.shape]
    kept = inline(score_mod, [scores, *places, *score_others])
    if not isinstance(kept, Node) or kept.type.dtype != "f32":
        raise Unreadable(f"flex_attention whose score_mod gives {kept.type if isinstance(kept, Node) else kept}")
    kept = b.expand(kept, scores.type.shape)
    if hides:
        keep = inline(mask_mod, [*places, *mask_others])
        if not isinstance(keep, Node) or keep.type.dtype != "bool":
            raise Unreadable("flex_attention whose mask_mod gives no truth values")
        kept = b.op("where", keep, kept, c.number(-math.inf, "f32"))
    values = b.cast(b.op("matmul", safe_softmax(c.b, kept, 3), v), dtype)
    in_base_2 = c.number(math.log(2), "f32")
    total = b.op("div", b.op("logsumexp", kept, axis=3, keepdims=False), in_base_2)
    top = b.op("div", b.reduce("max", kept, (3,)), in_base_2)
    return [values, total, top]


def _keeps_all(mask_mod: torch.fx.GraphModule) -> bool:
    """Whether a mask_mod is True everywhere (`noop_mask`): nothing but ones is made in it."""
    aten = torch.ops.aten
    calls = [n for n in mask_mod.graph.nodes if n.op == "call_function" and isinstance(n.meta.get("val"), torch.Tensor)]
    ones = (aten.ones.default, aten.new_ones.default, aten.full.default, aten.new_full.default)
    views = (aten.expand.default, aten.view.default, aten.unsqueeze.default, aten._unsafe_view.default)
    made = [n for n in calls if n.target in ones]
    true = all(n.target in ones[:2] or n.args[-1] in (True, 1) for n in made)
    return bool(made) and true and all(n.target in (*ones, *views) for n in calls)


def _has_blocks(node: torch.fx.Node) -> bool:
    """Whether a BlockMask was given; the one that stands for none has a single block of any length."""
    block_mask: Any = node.args[4]
    return not all(isinstance(size, int) and size >= WHOLE for size in block_mask[-3:-1])
