"""Rows that are NaN, or are made zeros again after they were NaN, are so exactly where eager has them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import aicf
from tests.contract import assert_contract

KEEP = torch.rand(9, 65, generator=torch.Generator().manual_seed(0)) < 0.6
KEEP[3] = False
KEEP[7] = False


def filled_after(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-1).masked_fill(~KEEP, 0.0) @ v


def chosen_after(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.where(KEEP, (q @ k.mT).softmax(-1), 0.0) @ v


def through_a_logsumexp(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = q @ k.mT
    return (s - s.logsumexp(-1, keepdim=True)).exp().nan_to_num(0.0) @ v


def chosen_where_nan(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = (q @ k.mT).masked_fill(~KEEP, float("-inf"))
    p = (s - s.logsumexp(-1, keepdim=True)).exp()
    return torch.where(p.isnan(), 0.0, p) @ v


def without_nan(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-1).nan_to_num(0.0) @ v


FORMS: list[Callable[[Tensor, Tensor, Tensor], Tensor]] = [
    filled_after, chosen_after, through_a_logsumexp, chosen_where_nan, without_nan,
]  # fmt: skip


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("fn", FORMS)
def test_rows_of_queries_that_are_not_finite(fn: Callable[[Tensor, Tensor, Tensor], Tensor], strict: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, 2, n, 16, generator=generator) for n in (9, 65, 65))
    q[0, 0, 3, 2] = q[0, 1, 5, 4] = float("nan")
    q[0, 0, 6] = float("inf")
    compiled = torch.compile(fn, backend="aicf", options={"fuse": "always", "rest": "eager", "strict": strict})
    with torch.no_grad():
        assert_contract(compiled(q, k, v).numpy(), fn(q, k, v).numpy(), fn(q.double(), k.double(), v.double()).numpy(), "f32")


@pytest.mark.parametrize("strict", [False, True])
def test_values_that_are_not_finite_in_rows_without_weights(strict: bool) -> None:
    """0 times what is not finite is NaN in strict mode, also where the row of weights was NaN before it was filled."""
    generator = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(1, 2, n, 16, generator=generator) for n in (9, 65, 65))
    q[0, 0, 3, 2] = float("nan")
    v[0, 0, 11, 5] = float("inf")
    compiled = torch.compile(filled_after, backend="aicf", options={"fuse": "always", "rest": "eager", "strict": strict})
    with torch.no_grad():
        got, eager = compiled(q, k, v), filled_after(q, k, v)
    assert torch.equal(got.isnan(), eager.isnan()) or not strict
    assert got[0, 1].isfinite().all()


@pytest.mark.parametrize("form", ["halved", "shifted", "with a bias", "negated", "times a negative number"])
def test_a_mask_that_is_subtracted_from_itself_is_nan(form: str):
    """-inf minus -inf: a tile where a mask makes such a score is not empty, whatever else is added."""
    generator = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(1, 1, n, 8, generator=generator) for n in (12, 40, 40))
    bias = torch.randn(12, 40, generator=generator)
    ends = torch.full((12,), 8)

    def attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, ends: Tensor) -> Tensor:
        s = torch.where(torch.arange(40) < ends[:, None], q @ k.mT, float("-inf"))
        forms = {
            "halved": lambda: s - s * 0.5,
            "shifted": lambda: ((s - 2.0) - s * 0.5) - 1.0,
            "with a bias": lambda: s - s * 0.5 + bias,
            "negated": lambda: bias + s + -(s * 0.5),
            "times a negative number": lambda: s + s * -0.5,
        }
        return forms[form]().softmax(-1) @ v

    with torch.no_grad():
        eager = attention(q, k, v, bias, ends)
        options: dict[str, Any] = {"fuse": "always", "rest": "eager", "require": "streamed"}
        got = aicf.compile(attention, schedule="tile_m=6,tile_n=8", **options)(q, k, v, bias, ends)
    assert eager.isnan().all() and torch.equal(got.isnan(), eager.isnan())


@pytest.mark.parametrize("order", ["q_major", "kv_major", "q_major,kv_split=2"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_an_infinite_score_that_a_mask_keeps_out_of_the_sum(sign: float, order: str) -> None:
    """The row's maximum is infinite and stays so for later tiles; what the mask keeps is exp(-inf) = 0, and no NaN."""

    def fn(q: Tensor, k: Tensor, v: Tensor, far: Tensor) -> tuple[Tensor, Tensor]:
        s = torch.where(far, sign * math.inf, q @ k.mT)
        p = (s - s.amax(-1, keepdim=True) if sign > 0 else s.amin(-1, keepdim=True) - s).exp()
        p = p.masked_fill(torch.arange(40) > torch.arange(40)[:, None], 0.0)
        return p.sum(-1), p @ v

    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 40, 16).unbind(0)
    far = torch.zeros(40, 40, dtype=torch.bool)
    far[0, 1] = far[5, 20] = True  # hidden
    far[6, 3] = far[39, 39] = far[8, 30] = True  # seen, seen in the last tile, hidden
    torch._dynamo.reset()
    options: Any = {"fuse": "always", "rest": "eager", "threads": 1, "schedule": f"tile_m=8,tile_n=16,rows=2,order={order}"}
    with torch.no_grad():
        got = torch.compile(fn, backend="aicf", options=options)(q, k, v, far)
        eager, exact = fn(q, k, v, far), fn(q.double(), k.double(), v.double(), far)
    assert eager[0][0, 0, :9].isnan().tolist() == [False] * 6 + [True, False, False]
    for mine, theirs, true in zip(got, eager, exact, strict=True):
        assert_contract(mine, theirs, true, "f32")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_sdpa_rows_without_a_finite_score(dtype: torch.dtype, causal: bool) -> None:
    """An infinite operand makes every score of a row -inf: zeros, as PyTorch's own kernels give them, with a mask or without."""
    q, k, v = (torch.ones(1, 2, n, 8, dtype=dtype) for n in (7, 40, 40))
    q[0, 0, -1, 0] = math.inf
    k = -k

    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    got = torch.compile(f, backend="aicf", options={"fuse": "always", "require": "streamed"})(q, k, v)
    assert torch.equal(got, f(q, k, v)) and not got[0, 0, -1].any()
