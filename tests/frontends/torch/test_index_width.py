"""Elements beyond the 2^31st are found: offsets and positions are as wide as their ranges need.

The tensors are views of sparse files, of which a few pages exist.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

from .streamed import assert_streams

FAR = 600_000_000  # elements from one row to the next: the fifth is beyond 2^31


def spread(x: Tensor, path: Path) -> Tensor:
    """`x` [1, 1, n, d] with `FAR` elements from row to row."""
    n = x.shape[2]
    data = torch.from_file(str(path), shared=True, size=(n - 1) * FAR + x.shape[3], dtype=x.dtype)
    return data.as_strided(x.shape, (0, 0, FAR, 1)).copy_(x)


def made(*shapes: tuple[int, ...]) -> list[Tensor]:
    g = torch.Generator().manual_seed(0)
    return [torch.randn(*s, generator=g).half() for s in shapes]


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v


def test_keys_and_values_beyond_2_31_elements(tmp_path: Path) -> None:
    q, k, v = made((1, 1, 5, 8), (1, 1, 6, 8), (1, 1, 6, 8))
    far = assert_streams(attention, q, spread(k, tmp_path / "k"), spread(v, tmp_path / "v"))
    assert torch.equal(far, assert_streams(attention, q, k, v))


def test_queries_and_a_bias_beyond_2_31_elements(tmp_path: Path) -> None:
    def biased(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return (q @ k.mT + bias).softmax(-1) @ v

    q, k, v, bias = made((1, 1, 6, 8), (1, 1, 5, 8), (1, 1, 5, 8), (1, 1, 6, 5))
    far = assert_streams(biased, spread(q, tmp_path / "q"), k, v, spread(bias, tmp_path / "bias"))
    assert torch.equal(far, assert_streams(biased, q, k, v, bias))


def test_positions_in_a_mask_may_be_large_numbers() -> None:
    def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        i, j = torch.arange(40)[:, None] * 10**9, torch.arange(70)[None, :] * 10**9
        return (q @ k.mT).masked_fill(j > i, -math.inf).softmax(-1) @ v

    q, k, v = made((1, 1, 40, 8), (1, 1, 70, 8), (1, 1, 70, 8))
    assert not assert_streams(causal, q, k, v).isnan().any()
