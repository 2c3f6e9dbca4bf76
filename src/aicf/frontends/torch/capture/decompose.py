"""Composite ops replaced, while tracing, by the ops that PyTorch computes them with: each step becomes a tensor of the graph.

    %s = aten.einsum(bhid,de,bhje->bhij, [%q, %w, %k])  ->  %qw = aten.einsum(bhid,de->bhie, [%q, %w])
                                                            %s = aten.einsum(bhie,bhje->bhij, [%qw, %k])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from aicf.semantic.einsum import parse_einsum

_MM_FROM = 25  # torch.cdist takes matrix products where either side has more points than this


def _einsum(equation: str, tensors: Sequence[Tensor], *, path: Any = None) -> Any:
    try:
        inputs, output = parse_einsum(equation, [x.dim() for x in tensors])
    except ValueError:
        return NotImplemented
    if len(tensors) <= 2:
        return _merged(inputs, output, tensors)
    left, *rest = tensors
    labels = inputs[0]
    for k, right in enumerate(rest, 1):
        later = set("".join(inputs[k + 1 :])) | set(output)
        kept = output if k == len(rest) else "".join(x for x in dict.fromkeys(labels + inputs[k]) if x in later)
        left, labels = torch.einsum(f"{labels},{inputs[k]}->{kept}", left, right), kept
    return left


def _merged(inputs: Sequence[str], output: str, tensors: Sequence[Tensor]) -> Any:
    """A batched product with several axes side by side that are one by meaning, as the product with that one: those summed over,
    and those that only one operand has and has last, as the result does (values that are points in space).

        bhnxy,bhmxy->bhnm    is  bhnx,bhmx->bhnm
        bhnm,bhmpc->bhnpc    is  bhnm,bhmp->bhnp
    """
    if len(tensors) != 2 or any(len(set(labels)) < len(labels) for labels in (*inputs, output)):
        return NotImplemented
    shared = [x for x in inputs[0] if x in inputs[1]]
    if not set(shared) & set(output):
        return NotImplemented
    runs = ["".join(x for x in shared if x not in output)]
    runs += ["".join(x for x in labels if x not in shared and x in output) for labels in inputs]
    last = [r for r in runs[1:] if len(r) > 1 and output.endswith(r) and any(x.endswith(r) for x in inputs)]
    merged = [r for r in runs[:1] if len(r) > 1 and all(r in x for x in inputs)] + last
    if not merged:
        return NotImplemented
    labels, operands = list(inputs), list(tensors)
    for run in merged:
        for k, x in enumerate(labels):
            if run in x:
                at = x.index(run)
                operands[k] = operands[k].flatten(at, at + len(run) - 1)
                labels[k] = x.replace(run, run[0])
    short = output.replace(last[0], last[0][0]) if last else output
    made = torch.einsum(f"{','.join(labels)}->{short}", *operands)
    if not last:
        return made
    sizes = {x: n for own, tensor in zip(inputs, tensors, strict=True) for x, n in zip(own, tensor.shape, strict=True)}
    return made.unflatten(-1, [sizes[x] for x in last[0]])


def _cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Any:
    if not x1.is_floating_point() or x1.dtype != x2.dtype:
        return NotImplemented
    first, second = (x / torch.linalg.vector_norm(x, 2, dim, keepdim=True).clamp_min(eps) for x in (x1, x2))
    return (first * second).sum(dim)


def _cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: int | None = None) -> Any:
    """Euclidean distances by one matrix product of the points with their squared lengths beside them."""
    sizes: tuple[Any, ...] = (x1.shape[-2], x2.shape[-2])  # symbols, where they are not numbers
    many = all(isinstance(n, int) for n in sizes) and max(sizes) > _MM_FROM
    if p != 2 or not (compute_mode == 1 or (compute_mode in (None, 0) and many)):
        return NotImplemented
    a, b = (x.pow(2).sum(-1, keepdim=True) for x in (x1, x2))
    left = torch.cat([-2 * x1, a, torch.ones_like(a)], -1)
    right = torch.cat([x2, torch.ones_like(b), b], -1)
    return (left @ right.mT).clamp_min(0).sqrt()


def _multi_head_attention(
    query: Tensor, key: Tensor, value: Tensor, embed_dim: int, num_head: int, qkv_weight: Tensor, qkv_bias: Tensor,
    proj_weight: Tensor, proj_bias: Tensor, mask: Tensor | None = None, need_weights: bool = True,
    average_attn_weights: bool = True, mask_type: int | None = None,
) -> Any:  # fmt: skip
    """What nn.MultiheadAttention runs in eval mode. True hides; the mask is [N, M], [B, M] or [B, H, N, M] by `mask_type`."""
    if mask is not None and mask_type not in (0, 1, 2):
        return NotImplemented
    parts = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
    q, k, v = (F.linear(x, w, b).unflatten(-1, (num_head, -1)).transpose(1, 2) for x, w, b in parts)
    scores = (q * (embed_dim // num_head) ** -0.5) @ k.mT
    if mask is not None:
        hidden = mask.bool()
        scores = scores.masked_fill(hidden[:, None, None, :] if mask_type == 1 else hidden, -math.inf)
    weights = scores.softmax(-1)
    result = F.linear((weights @ v).transpose(1, 2).flatten(2), proj_weight, proj_bias)
    if not need_weights:
        return result, None
    return result, weights.sum(1) / num_head if average_attn_weights else weights


def _encoder_layer(
    src: Tensor, embed_dim: int, num_heads: int, qkv_weight: Tensor, qkv_bias: Tensor, proj_weight: Tensor, proj_bias: Tensor,
    use_gelu: bool, norm_first: bool, eps: float, norm_weight_1: Tensor, norm_bias_1: Tensor, norm_weight_2: Tensor,
    norm_bias_2: Tensor, ffn_weight_1: Tensor, ffn_bias_1: Tensor, ffn_weight_2: Tensor, ffn_bias_2: Tensor,
    mask: Tensor | None = None, mask_type: int | None = None,
) -> Any:  # fmt: skip
    """What nn.TransformerEncoderLayer runs in eval mode."""

    def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), weight, bias, eps)

    x = norm(src, norm_weight_1, norm_bias_1) if norm_first else src
    attended = _multi_head_attention(
        x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, False, True, mask_type
    )
    if attended is NotImplemented:
        return NotImplemented
    x = attended[0] + src
    x = x if norm_first else norm(x, norm_weight_1, norm_bias_1)
    rows = (norm(x, norm_weight_2, norm_bias_2) if norm_first else x).flatten(0, -2)
    inner = torch.ops.aten._addmm_activation.default(ffn_bias_1, rows, ffn_weight_1.t(), use_gelu=use_gelu)
    x = F.linear(inner, ffn_weight_2, ffn_bias_2).view(x.shape) + x
    return x if norm_first else norm(x, norm_weight_2, norm_bias_2)


TABLE: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.einsum.default: _einsum,
    torch.ops.aten.cosine_similarity.default: _cosine_similarity,
    torch.ops.aten.cdist.default: _cdist,
    torch.ops.aten._native_multi_head_attention.default: _multi_head_attention,
    torch.ops.aten._transformer_encoder_layer_fwd.default: _encoder_layer,
}
