"""Python floats that change between calls: a kernel loads them, so that a new value needs no compilation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.contract import assert_contract
from tests.frontends.torch.test_backend import Compiled, qkv

CALLS = ((30.0, 0.35), (20.0, 0.35), (2.0, 0.1), (5.0, -1.0))


def capped(q: Tensor, k: Tensor, v: Tensor, cap: float, scale: float) -> Tensor:
    return (torch.tanh(q @ k.mT * scale / cap) * cap).softmax(-1) @ v


def computed_in_python(q: Tensor, k: Tensor, v: Tensor, cap: float, scale: float) -> Tensor:
    far = (torch.arange(q.shape[-2])[:, None] - torch.arange(k.shape[-2])).abs().to(q.dtype)
    return (q @ k.mT * (scale / 2 + q.shape[-1] ** -0.5) - (1.0 / cap) * far).softmax(-1) @ v


def filled(q: Tensor, k: Tensor, v: Tensor, cap: float, scale: float) -> Tensor:
    keep = torch.arange(k.shape[-2]) <= torch.arange(q.shape[-2])[:, None]
    return (q @ k.mT * scale).masked_fill(~keep, -cap * 1e3).softmax(-1) @ v


@pytest.mark.parametrize(
    ("fn", "rest"), [(capped, "eager"), (computed_in_python, "eager"), (filled, "eager"), (computed_in_python, "inductor")]
)
def test_values_change_without_recompiling(fn: Callable[..., Tensor], rest: str) -> None:
    compiled = Compiled(fn, dynamic=True, rest=rest)
    first = 0
    for cap, scale in CALLS:
        q, k, v = qkv()
        got, exact = compiled(q, k, v, cap, scale), fn(q.double(), k.double(), v.double(), cap, scale)
        assert_contract(got, fn(q, k, v, cap, scale), exact, "f32")
        first = first or len(compiled.reports)  # Inductor may ask for one graph more before the first call runs
    assert len(compiled.reports) == first
    assert set(compiled.statuses) == {"streamed"} and not any(g.problem for g in compiled.reports), compiled.reasons


@pytest.mark.parametrize(("dtype", "name"), [(torch.float16, "f16"), (torch.bfloat16, "bf16")])
@pytest.mark.parametrize("fn", [capped, computed_in_python])
def test_halves(fn: Callable[..., Tensor], dtype: torch.dtype, name: str) -> None:
    compiled = Compiled(fn, dynamic=True)
    q, k, v = qkv(dtype=dtype)
    for cap, scale in CALLS:
        exact = fn(q.double(), k.double(), v.double(), cap, scale)
        assert_contract(compiled(q, k, v, cap, scale), fn(q, k, v, cap, scale), exact, name)  # type: ignore[arg-type]
    assert compiled.statuses == ["streamed"], compiled.reasons


def test_numbers_become_dynamic_by_themselves() -> None:
    compiled = Compiled(capped)
    for cap in (30.0, 20.0, 10.0, 5.0, 3.0):
        q, k, v = qkv()
        torch.testing.assert_close(compiled(q, k, v, cap, 0.25), capped(q, k, v, cap, 0.25), rtol=1e-5, atol=1e-5)
    assert compiled.statuses == ["streamed", "streamed"], compiled.reasons


def test_what_needs_the_number_in_double_precision_is_left_alone() -> None:
    def widened(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        return ((q @ k.mT).double() * scale).float().softmax(-1) @ v

    compiled = Compiled(widened, dynamic=True)
    q, k, v = qkv()
    for scale in (0.25, 0.3):
        torch.testing.assert_close(compiled(q, k, v, scale), widened(q, k, v, scale), rtol=1e-5, atol=1e-5)
    assert compiled.statuses == ["refused"], compiled.reasons
