"""Sizes and numbers that depend on data: attention streams with what they are when the graph runs, 0 included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import aicf
from tests.contract import assert_contract

OPTIONS: Any = {"require": "streamed", "fuse": "always", "threads": 1}


@pytest.fixture(autouse=True)
def inference() -> Any:
    torch._dynamo.reset()
    torch.manual_seed(0)
    config = torch._dynamo.config
    with torch.no_grad(), config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):  # type: ignore[attr-defined]
        yield


def doubled(x: Any) -> Any:
    return x.double() if isinstance(x, Tensor) and x.is_floating_point() else x


def check(fn: Callable[..., Tensor], calls: list[tuple[Any, ...]], rest: str = "eager", most: int = 1) -> None:
    """Every call of `fn` streams, by one compilation (or `most`), and gives what eager gives."""
    graphs: list[Any] = []
    fast = torch.compile(fn, backend="aicf", options=OPTIONS | {"rest": rest, "report": graphs.append})
    for args in calls:
        got, eager, exact = fast(*args), fn(*args), fn(*map(doubled, args))
        assert got.shape == eager.shape and got.dtype == eager.dtype
        assert got.stride() == eager.stride() or not got.numel()
        assert_contract(got, eager, exact, "f32")
    assert len(graphs) <= most


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT * 0.2).softmax(-1) @ v


def kept(count: int, of: int = 70) -> Tensor:
    keep = torch.zeros(of, dtype=torch.bool)
    keep[torch.randperm(of)[:count]] = True
    return keep


@pytest.mark.parametrize("rest", ["eager", "inductor"])
def test_tokens_that_are_pruned(rest: str) -> None:
    def fn(x: Tensor, keep: Tensor) -> Tensor:
        t = x[keep]
        return attend(t, t, t)

    check(fn, [(torch.randn(70, 16), kept(n)) for n in (30, 70, 1, 0, 2)], rest)


def test_keys_that_are_pruned() -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        where = keep.nonzero()[:, 0]
        return attend(q, k[:, where], v[:, where])

    check(fn, [(torch.randn(2, 20, 16), *torch.randn(2, 2, 70, 16), kept(n)) for n in (30, 1, 0, 70)])


def test_keys_and_values_that_are_pruned_apart() -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor, keep: Tensor, too: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k[:, keep], v[:, too])

    def inputs(n: int, m: int) -> tuple[Tensor, ...]:
        return torch.randn(2, 20, 16), *torch.randn(2, 2, 70, 16), kept(n), kept(m)

    check(fn, [inputs(n, n) for n in (30, 1, 70)])
    with pytest.raises(RuntimeError):
        torch.compile(fn, backend="aicf", options=OPTIONS | {"rest": "eager"})(*inputs(30, 31))


def test_a_length_read_from_a_tensor() -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor, n: Tensor) -> Tensor:
        m = (n + 0).item()
        torch._check(m >= 1)
        torch._check(m <= 70)
        return attend(q, k[:, :m], v[:, :m])

    check(fn, [(torch.randn(2, 20, 16), *torch.randn(2, 2, 70, 16), torch.tensor(n)) for n in (30, 1, 70)])


@pytest.mark.parametrize("rest", ["eager", "inductor"])
def test_a_number_in_a_mask(rest: str) -> None:
    """It is no length: it may be anything."""

    def fn(q: Tensor, k: Tensor, v: Tensor, n: Tensor) -> Tensor:
        scores = q @ k.mT + torch.where(torch.arange(70) < (n + 0).item(), 0.0, -1e4)
        return scores.softmax(-1) @ v

    check(fn, [(torch.randn(2, 20, 16), *torch.randn(2, 2, 70, 16), torch.tensor(n)) for n in (30, 0, -5, 70, 1000)], rest)


@pytest.mark.parametrize("rest", ["eager", "inductor"])
@pytest.mark.parametrize("axis", [0, 2])
def test_sizes_marked_as_unbacked(axis: int, rest: str) -> None:
    def inputs(n: int) -> tuple[Tensor, ...]:
        shape = [2, 3, 70, 16]
        shape[axis] = n
        made = tuple(torch.randn(3, *shape))
        for x in made:
            torch._dynamo.decorators.mark_unbacked(x, axis)
        return made

    check(attend, [inputs(n) for n in (3, 1, 0, 40)], rest, most=2)  # PyTorch guards strides


def test_rows_of_a_documents_length() -> None:
    """Several lengths, each from a tensor, one attention each."""

    def fn(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        sizes = lengths.tolist()
        parts = [x.split(sizes) for x in (q, k, v)]
        return torch.cat([attend(*part) for part in zip(*parts, strict=True)])

    check(fn, [(*torch.randn(3, 70, 16), torch.tensor(n)) for n in ([30, 20, 20], [1, 68, 1], [0, 35, 35])])


def test_what_is_explained() -> None:
    def fn(x: Tensor, keep: Tensor) -> Tensor:
        t = x[keep]
        return attend(t, t, t)

    report = aicf.explain(fn, torch.randn(70, 16), kept(30), options={"fuse": "always"})
    assert [r.status for r in report.regions] == ["streamed"], str(report)
