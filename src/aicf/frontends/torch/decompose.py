"""Ops that are traced as the ops that PyTorch itself computes them by, so that each step is a tensor of the graph.

    %s = aten.einsum(bhid,de,bhje->bhij, [%q, %w, %k])  ->  %qw = aten.einsum(bhid,de->bhie, [%q, %w])
                                                            %s = aten.einsum(bhie,bhje->bhij, [%qw, %k])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .ops_contract import parse_einsum
from .symbols import Unreadable

_MM_FROM = 25  # torch.cdist takes matrix products where either side has more points than this


def _einsum(equation: str, tensors: Sequence[Tensor], *, path: Any = None) -> Any:
    if len(tensors) <= 2:
        return NotImplemented
    try:
        inputs, output = parse_einsum(equation, [x.dim() for x in tensors])
    except Unreadable:
        return NotImplemented
    left, *rest = tensors
    labels = inputs[0]
    for k, right in enumerate(rest, 1):
        later = set("".join(inputs[k + 1 :])) | set(output)
        kept = output if k == len(rest) else "".join(x for x in dict.fromkeys(labels + inputs[k]) if x in later)
        left, labels = torch.einsum(f"{labels},{inputs[k]}->{kept}", left, right), kept
    return left


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


TABLE: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.einsum.default: _einsum,
    torch.ops.aten.cosine_similarity.default: _cosine_similarity,
    torch.ops.aten.cdist.default: _cdist,
}
