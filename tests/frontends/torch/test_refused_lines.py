"""A refusal names the user's line that is in the way, which is seldom the one of the attention itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch

import aicf

T = torch.Tensor


def sine(q: T, k: T, v: T) -> T:
    s = q @ k.mT
    p = s.softmax(-1)
    w = torch.sin(s - s.amax(-1, keepdim=True))  # guilty
    return (p * w) @ v


def centred_tanh(q: T, k: T, v: T) -> T:
    s = q @ k.mT
    centre = s.mean(-1, keepdim=True)
    d = torch.tanh(s - centre)  # guilty
    return d / d.sum(-1, keepdim=True) @ v


def least_weight(q: T, k: T, v: T) -> T:
    p = (q @ k.mT).softmax(-1)
    p = p.clamp(0.01)  # guilty
    return p @ v


def above_the_mean(q: T, k: T, v: T) -> T:
    p = (q @ k.mT).softmax(-1)
    high = p > p.mean(-1, keepdim=True)  # guilty
    return torch.where(high, p, 0.0) @ v


def doubles(q: T, k: T, v: T) -> T:
    q, k = q + 1, k + 1
    s = q @ k.mT
    p = s.double().softmax(-1)  # guilty
    return p @ v.double()


def a_sort(q: T, k: T, v: T) -> T:
    p = (q @ k.mT).softmax(-1)
    p = torch.sort(p, -1).values  # guilty
    return p @ v


def weights_returned(q: T, k: T, v: T) -> tuple[T, T]:
    p = (q @ k.mT).softmax(-1)  # guilty
    return p @ v, p


def among_layers(q: T, k: T, v: T) -> T:
    """The same function twice, of which one is in the way."""
    s = torch.sin(q @ k.mT)
    p = s.softmax(-1)
    w = torch.sin(p)  # guilty
    return w @ v


@pytest.mark.parametrize(
    "f", [sine, centred_tanh, least_weight, above_the_mean, doubles, a_sort, weights_returned, among_layers],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_the_guilty_line(f: Callable[..., object]) -> None:
    q, k, v = (torch.randn(1, 2, 64, 16) for _ in range(3))
    (region,) = aicf.explain(f, q, k, v, options={"fuse": "always"}).regions
    lines, first = inspect.getsourcelines(f)
    line = first + next(n for n, text in enumerate(lines) if "# guilty" in text)
    assert region.status == "refused"
    assert f"test_refused_lines.py:{line} in {f.__name__}" in region.reason, region.reason
