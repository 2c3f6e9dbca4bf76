"""Compiled attention against eager PyTorch: time, error and the memory of the score matrix.

Rounds are interleaved and their order alternates, so that whatever else the machine does meets all sides alike. The best
round of each side is compared. A time means little beside a wrong result, so each comes with its error against float64.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from aicf.frontends.torch import api

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

# The float64 reference holds the whole score matrix; above this many bytes of it errors are left out.
REFERENCE_LIMIT = 1 << 30


@dataclass(frozen=True)
class Case:
    """An attention written out in plain PyTorch; `fused`, where PyTorch's own attention call means the same."""

    name: str
    what: str
    fn: Attention
    fused: Attention | None = None
    kv_share: int = 1


@dataclass(frozen=True)
class Timing:
    """Best seconds of each side; maximum errors against float64, and the largest that the numeric contract allows (None when the
    reference would be too large)."""

    eager: float
    compiled: float
    fused: float | None
    eager_error: float | None
    compiled_error: float | None
    allowed_error: float | None
    score_bytes: int


def _scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5


def _ahead(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Key position minus query position, [N, M]; above 0 lies in the future."""
    return torch.arange(k.shape[-2])[None, :] - torch.arange(q.shape[-2])[:, None]


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return _scores(q, k).softmax(-1) @ v


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return _scores(q, k).masked_fill(_ahead(q, k) > 0, float("-inf")).softmax(-1) @ v


def grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    group = q.shape[1] // k.shape[1]
    return causal(q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1))


def window(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    ahead = _ahead(q, k)
    return _scores(q, k).masked_fill((ahead > 0) | (ahead <= -256), float("-inf")).softmax(-1) @ v


def softcap(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = 30.0 * torch.tanh(_scores(q, k) / 30.0)
    return scores.masked_fill(_ahead(q, k) > 0, float("-inf")).softmax(-1) @ v


def alibi(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    slope = 2.0 ** (-8.0 * torch.arange(1, q.shape[1] + 1) / q.shape[1])
    ahead = _ahead(q, k)
    scores = _scores(q, k) + (slope[:, None, None] * ahead).to(q.dtype)
    return scores.masked_fill(ahead > 0, float("-inf")).softmax(-1) @ v


def _causal_call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


def sigmoid(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(_scores(q, k)) @ v


CASES: tuple[Case, ...] = (
    Case("plain", "softmax(q k^T / sqrt(d)) v", plain, F.scaled_dot_product_attention),
    Case("causal", "queries see themselves and the past", causal, _causal_call),
    Case("grouped", "causal, 4 query heads per key head", grouped, _causal_call, kv_share=4),
    Case("window", "causal, the last 256 keys only", window),
    Case("softcap", "causal, scores bounded by 30 tanh(s / 30)", softcap),
    Case("alibi", "causal, a slope per head by distance", alibi),
    Case("sigmoid", "sigmoid(q k^T / sqrt(d)) v, no softmax", sigmoid),
)


def make_inputs(case: Case, size: Sequence[int], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k, v for `size` = batch, heads, sequence, head size. Raises ValueError when the heads can't be grouped."""
    b, h, n, d = size
    if h % case.kv_share:
        raise ValueError(f"{case.name} shares each key head among {case.kv_share} query heads; {h} heads cannot be grouped so")
    generator = torch.Generator().manual_seed(0)
    shapes = ((b, h, n, d), (b, h // case.kv_share, n, d), (b, h // case.kv_share, n, d))
    q, k, v = (torch.randn(s, generator=generator).to(dtype) for s in shapes)
    return q, k, v


@torch.inference_mode()
def measure(case: Case, size: Sequence[int], dtype: torch.dtype, *, repeat: int, threads: int | None) -> Timing:
    """Times of `case`. Raises what `api.compile` raises when the case does not stream."""
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        inputs = make_inputs(case, size, dtype)
        compiled = api.compile(case.fn, fuse="always", require="streamed", threads=threads or before)
        sides: list[Attention] = [case.fn, compiled, *([case.fused] if case.fused else [])]
        outputs = [side(*inputs) for side in sides]  # compiles, and warms caches
        best = [float("inf")] * len(sides)
        for r in range(repeat):
            order = range(len(sides)) if r % 2 == 0 else reversed(range(len(sides)))
            for s in order:
                began = time.perf_counter()
                sides[s](*inputs)
                best[s] = min(best[s], time.perf_counter() - began)
        b, h, n, _ = size
        errors: tuple[float | None, float | None, float | None] = (None, None, None)
        if b * h * n * n * 8 <= REFERENCE_LIMIT:
            reference = case.fn(*(x.double() for x in inputs))
            eager, mine = ((out.double() - reference).abs().max().item() for out in outputs[:2])
            rounding = torch.finfo(dtype).eps / 2 * reference.abs().max().item()
            errors = (eager, mine, 2 * eager + rounding)
        fused = best[2] if case.fused else None
        return Timing(best[0], best[1], fused, *errors, b * h * n * n * inputs[0].element_size())
    finally:
        torch.set_num_threads(before)
