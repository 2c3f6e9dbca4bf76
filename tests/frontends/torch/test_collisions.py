"""Pairs of programs that print, round or compare alike, compiled in one process and one cache: each gets its own numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import aicf
from tests.contract import assert_contract

Score = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

GROUPS: dict[str, list[Score]] = {
    "negative bases": [lambda s, t: s + (-2.0) ** t, lambda s, t: s + -(2.0**t)],
    "nested powers": [lambda s, t: s + (2.0**t) ** 0.5, lambda s, t: s + 2.0 ** (t**0.5)],
    "nested subtractions": [lambda s, t: s - (t - (s - 2.0)) / 4, lambda s, t: s - ((t - s) - 2.0) / 4],
    "close constants": [
        lambda s, t: torch.relu(s + 1000.0001220703125 - 1000.0001220703125),
        lambda s, t: torch.relu(s + 1000.00006103515625 - 1000.0001220703125),
    ],
    "zeros of both signs": [
        lambda s, t: 1 / torch.where(t > 0, 2.0, 0.0).to(s.dtype) * (t > 0) + s,
        lambda s, t: torch.where(t > 0, 1 / torch.where(t > 0, 2.0, -0.0), -1e4).to(s.dtype) + s,
    ],
    "one and true": [lambda s, t: s * torch.where(t == 1, 3.0, 1), lambda s, t: s * (torch.where(t == 1, 3, 1) != 1)],
}


@pytest.mark.parametrize("name", GROUPS)
def test_programs_that_look_alike_have_their_own_kernels(name: str):
    g = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, 1, 40, 16, generator=g) for _ in range(3))
    t = torch.randint(0, 4, (40, 40), generator=g).float()

    def attention(score: Score) -> Callable[..., torch.Tensor]:
        return lambda q, k, v, t: score(q @ k.mT, t).softmax(-1) @ v

    with torch.no_grad():
        for score in GROUPS[name]:
            torch._dynamo.reset()
            f = attention(score)
            got = aicf.compile(f, fuse="always", rest="eager", require="streamed")(q, k, v, t)
            eager, exact = f(q, k, v, t), f(q.double(), k.double(), v.double(), t.double())
            assert torch.equal(got.isnan(), eager.isnan())
            assert_contract(got.nan_to_num().numpy(), eager.nan_to_num().numpy(), exact.nan_to_num().numpy(), "f32")
