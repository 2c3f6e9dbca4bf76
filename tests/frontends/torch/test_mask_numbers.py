"""Masks from numbers that wrap around or are NaN: tiles are proved empty or full by bounds, which must hold for these too."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from tests.frontends.torch.streamed import assert_streams

N, D = 300, 16
Mask = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # of two numbers per position


def positions() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(N)[:, None], torch.arange(N)[None, :]


def drawn(dtype: torch.dtype, low: int, high: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(1)
    a, b = (torch.randint(low, high, (N,), generator=g).to(dtype) for _ in range(2))
    return a, b


def check(mask: Mask, a: torch.Tensor, b: torch.Tensor, strict: bool) -> None:
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.softmax((q @ k.mT / 4).masked_fill(~mask(a, b), -math.inf), -1) @ v

    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, N, D, generator=g) for _ in range(3))
    assert_streams(run, q, k, v, a, b, strict=strict)


SORTED = torch.arange(N) // 40
SEGMENTS = SORTED.to(torch.uint8)
OF_TOKENS: dict[str, tuple[Mask, tuple[torch.Tensor, torch.Tensor]]] = {
    "the same segment, by a difference": (lambda a, b: a[:, None] - b[None, :] == 0, (SEGMENTS, SEGMENTS)),
    "near in uint8": (lambda a, b: (a[:, None] - b[None, :]).abs() < 2, drawn(torch.uint8, 0, 4)),
    "negated uint8": (lambda a, b: -a[:, None] >= b[None, :], drawn(torch.uint8, 0, 9)),
    "a sum of int8": (lambda a, b: a[:, None] + b[None, :] > 0, drawn(torch.int8, 40, 123)),
    "products of int16": (lambda a, b: a[:, None] * 20000 + b[None, :] * 9000 > 0, drawn(torch.int16, -9, 9)),
    "a sentinel in int32": (
        lambda a, b: a[:, None] - b[None, :] >= 0,
        (torch.arange(N).int(), torch.where(SORTED % 3 == 0, -(2**31), SORTED).int()),
    ),
    "a sentinel in int64": (
        lambda a, b: a[:, None] - b[None, :] >= 0,
        (torch.arange(N), torch.where(SORTED % 3 == 0, -(2**63), SORTED)),
    ),
    "products of int64": (lambda a, b: a[:, None] * b[None, :] > 0, drawn(torch.int64, -(2**40), 2**40)),
    "cast to int8": (lambda a, b: a[:, None].to(torch.int8) >= b[None, :].to(torch.int8), drawn(torch.int32, 0, 400)),
    "roots of sums": (
        lambda a, b: (a[:, None] + b[None, :]).sqrt() < 1.2,
        (torch.arange(N) % 7 / 7, torch.linspace(-3, 3, N)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("strict", [False, True], ids=["default", "strict"])
@pytest.mark.parametrize("name", OF_TOKENS)
def test_numbers_of_tokens(name: str, strict: bool) -> None:
    mask, (a, b) = OF_TOKENS[name]
    check(mask, a, b, strict)


OF_POSITIONS: dict[str, Mask] = {
    "root": lambda i, j: (i - j).float().sqrt() < 5,
    "power": lambda i, j: (i - j).float() ** 0.5 < 5,
    "logarithm": lambda i, j: (i - j).float().log() < 3,
    "not a root above": lambda i, j: ~((i - j).float().sqrt() >= 5),
    "int8": lambda i, j: (i - j).to(torch.int8) >= 0,
    "uint8": lambda i, j: (i - j).to(torch.uint8) < 20,
    "positions in uint8": lambda i, j: i.to(torch.uint8) - j.to(torch.uint8) < 20,
    "products in int32": lambda i, j: i.int() * 30_000_000 - j.int() > 0,
    "a hash": lambda i, j: i * 6364136223846793005 + j * 1442695040888963407 > 0,
}


@pytest.mark.parametrize("strict", [False, True], ids=["default", "strict"])
@pytest.mark.parametrize("name", OF_POSITIONS)
def test_numbers_of_positions(name: str, strict: bool) -> None:
    nothing = torch.zeros(N)
    check(lambda a, b: OF_POSITIONS[name](*positions()) & (a[:, None] == b[None, :]), nothing, nothing, strict)
