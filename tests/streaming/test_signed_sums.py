"""Sums over what masks keep, of weights of any sign: what they are divided by may be negative, and 0 / 0 is NaN all the same."""

from __future__ import annotations

import pytest
import torch

import aicf
from tests.contract import assert_contract


def signed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, z: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
    p = (q @ k.mT / 4).softmax(-1) * z
    p = p * keep
    p = p / p.sum(-1, keepdim=True)
    p = p * (j <= i)
    return (p / p.sum(-1, keepdim=True)) @ v


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_sums_of_either_sign(sign: float):
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 2, 40, 16, generator=g) for _ in range(3))
    z = sign * (torch.rand(2, 2, 40, 40, generator=g) + 0.5)
    keep = torch.rand(40, 40, generator=g) < 0.7
    keep |= torch.eye(40, dtype=torch.bool)
    keep[7] = False  # 0 / 0
    with torch.no_grad():
        eager = signed(q, k, v, z, keep)
        exact = signed(q.double(), k.double(), v.double(), z.double(), keep)
        got = aicf.compile(signed, fuse="always", rest="eager", require="streamed")(q, k, v, z, keep)
    assert torch.equal(got.isnan(), eager.isnan()) and bool(eager.isnan().any()) and not bool(eager.isnan().all())
    assert_contract(got.nan_to_num().numpy(), eager.nan_to_num().numpy(), exact.nan_to_num().numpy(), "f32")
