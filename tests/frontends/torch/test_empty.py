"""Tensors without elements: nothing streams, the reason says so, and results are eager's, however the sizes come to be 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import aicf


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / 4.0).softmax(-1) @ v


def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = torch.einsum("bhid,bhjd->bhij", q, k)
    keep = torch.ones(s.shape[-2:], dtype=torch.bool).tril()
    return s.masked_fill(~keep, -torch.inf).softmax(-1) @ v


def stable(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    e = torch.exp((q @ k.mT).clamp(-4, 4))
    return (e @ v) / (e.sum(-1, keepdim=True) + 1.0)


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


SIZES = {"batch": (0, 3, 8, 8, 4, 4), "heads": (2, 0, 8, 8, 4, 4), "queries": (2, 3, 0, 8, 4, 4), "keys": (2, 3, 8, 0, 4, 4),
         "head size": (2, 3, 8, 8, 0, 4), "value size": (2, 3, 8, 8, 4, 0)}  # fmt: skip

OPTIONS: Any = {"fuse": "always", "rest": "eager"}


def inputs(b: int, h: int, n: int, m: int, d: int, e: int) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(b, h, n, d), torch.randn(b, h, m, d), torch.randn(b, h, m, e)


@pytest.fixture(autouse=True)
def inference() -> Any:
    torch._dynamo.reset()
    with torch.no_grad():
        yield


@pytest.mark.parametrize("fn", [plain, masked, stable, fused])
@pytest.mark.parametrize("zero", SIZES)
def test_what_has_no_elements_is_refused_in_words(
    fn: Callable[..., Tensor], zero: str, caplog: pytest.LogCaptureFixture
) -> None:
    args = inputs(*SIZES[zero])
    report = aicf.explain(fn, *args, options={"fuse": "always"})
    assert all(r.status == "refused" and "] has no elements, so there is nothing to stream" in r.reason for r in report.regions)
    assert report.regions or fn is stable, str(report)
    got, expected = torch.compile(fn, backend="aicf", options=OPTIONS)(*args), fn(*args)
    assert got.dtype == expected.dtype
    torch.testing.assert_close(got, expected, equal_nan=True)
    assert [r.message for r in caplog.records if r.name == "aicf"] == []


@pytest.mark.parametrize("fn", [plain, masked, stable, fused])
def test_sizes_that_become_zero_later(fn: Callable[..., Tensor]) -> None:
    fast = torch.compile(fn, backend="aicf", dynamic=True, options=OPTIONS)
    for sizes in [(2, 3, 8, 9, 4, 4), *SIZES.values(), (3, 2, 9, 7, 4, 4)]:
        args = inputs(*sizes)
        torch.testing.assert_close(fast(*args), fn(*args), rtol=1e-5, atol=1e-5, equal_nan=True)
