"""Several products of the size of the scores in plain PyTorch: second products, a backward written out, reductions of scores.

What is left of the graph beside the regions must hold no tensor of rows x keys.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import aicf
from aicf.driver import Options, RegionResult, compile_graph
from aicf.frontends.torch.read.reader import read
from aicf.frontends.torch.rewrite.replace import rewrite
from tests.contract import assert_contract
from tests.frontends.torch.capture import capture_directly
from tests.frontends.torch.streamed import SMALL

B, H, G, N, M, D, E = 1, 2, 3, 33, 47, 16, 8


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


ALWAYS = Options(fuse="always", threads=1, schedule=SMALL)


def check(fn: Callable[..., Any], *args: Tensor, pairs: int = N * M, options: Options = ALWAYS) -> list[RegionResult]:
    """Runs `fn` with its regions streamed, holds every result against the contract, and looks for tensors of pairs in what is
    left of the graph."""
    with torch.no_grad():
        one = capture_directly(fn, *args)
        reading = read(one.traced)
        made = compile_graph(reading.graph, options, frozenset(reading.anchors)).regions
        rewrite(one.traced, reading, made)
        got, eager = one.traced.forward(*args), fn(*args)
        exact = fn(*(x.double() if x.is_floating_point() else x for x in args))
    for a, b, c in zip(*(x if isinstance(x, tuple) else (x,) for x in (got, eager, exact)), strict=True):
        assert a.dtype == b.dtype
        if a.is_floating_point():
            assert_contract(a, b, c, "f32")
        else:
            assert torch.equal(a, b)
    stored = {s.name for r in made for s in r.stored}
    large = [n for n in one.traced.graph.nodes if n.op == "call_function" and _elements(n) >= pairs]
    assert bool(large) == bool(stored), (large, stored)
    return made


def _elements(n: torch.fx.Node) -> int:
    value = n.meta.get("val")
    return value.numel() if isinstance(value, Tensor) else 0


def weights(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.mT * 0.25).softmax(-1)


def second_product(order: Sequence[int]) -> Callable[..., Any]:
    def fn(q: Tensor, k: Tensor, v: Tensor, q2: Tensor, k2: Tensor) -> tuple[Tensor, ...]:
        w = weights(q, k)
        outputs = (lambda: w @ v, lambda: (w * (q2 @ k2.mT)) @ v, lambda: (w * (q2 @ k2.mT).sigmoid()).sum(-1))
        return tuple(outputs[n]() for n in order)

    return fn


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_second_products_in_any_order(order: Sequence[int]) -> None:
    q, q2 = randn(B, H, N, D), randn(B, H, N, D, seed=1)
    k, k2, v = randn(B, H, M, D), randn(B, H, M, D, seed=1), randn(B, H, M, E)
    (region,) = check(second_product(order), q, k, v, q2, k2)
    assert region.status == "streamed" and len(region.outputs) == 3


def backward(order: Sequence[int], spelt: str) -> Callable[..., Any]:
    """dQ, dK, dV of attention with `G` query heads to each head of keys."""

    def fn(q: Tensor, k: Tensor, v: Tensor, do: Tensor, lse: Tensor, delta: Tensor) -> tuple[Tensor, ...]:
        if spelt == "einsum":
            p = (torch.einsum("bhgid,bhjd->bhgij", q, k) * 0.25 - lse).exp()
            ds = p * (torch.einsum("bhgie,bhje->bhgij", do, v) - delta) * 0.25
            outputs = (
                lambda: torch.einsum("bhgij,bhjd->bhgid", ds, k),
                lambda: torch.einsum("bhgij,bhgid->bhjd", ds, q),
                lambda: torch.einsum("bhgij,bhgie->bhje", p, do),
            )
        else:
            every_k, every_v = k[:, :, None], v[:, :, None]
            p = (q @ every_k.mT * 0.25 - lse).exp()
            ds = p * (do @ every_v.mT - delta) * 0.25
            outputs = (
                lambda: ds @ every_k,
                lambda: (ds.mT @ q).sum(2),
                lambda: (p.mT @ do).sum(2),
            )
        return tuple(outputs[n]() for n in order)

    return fn


@pytest.mark.parametrize("spelt", ["einsum", "broadcast"])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)], ids=str)
def test_a_backward_of_grouped_heads(order: Sequence[int], spelt: str) -> None:
    q, do = randn(B, H, G, N, D), randn(B, H, G, N, E)
    k, v = randn(B, H, M, D), randn(B, H, M, E)
    s = torch.einsum("bhgid,bhjd->bhgij", q, k) * 0.25
    lse = s.logsumexp(-1, keepdim=True)
    delta = (do * torch.einsum("bhgij,bhje->bhgie", (s - lse).exp(), v)).sum(-1, keepdim=True)
    made = check(backward(order, spelt), q, k, v, do, lse, delta, pairs=H * G * N * M)
    assert [r.status for r in made] == ["streamed"] * len(made)
    # PyTorch's einsum merges the group's queries by a view of each operand, behind which dK and dV are found apart.
    assert len(made) == (3 if spelt == "einsum" else 2)


def test_the_backward_written_out_is_autograds() -> None:
    q, do = randn(B, H, G, N, D), randn(B, H, G, N, E)
    k, v = randn(B, H, M, D), randn(B, H, M, E)
    given = [x.double().requires_grad_() for x in (q, k, v)]
    s = torch.einsum("bhgid,bhjd->bhgij", given[0], given[1]) * 0.25
    o = torch.einsum("bhgij,bhje->bhgie", s.softmax(-1), given[2])
    wanted = torch.autograd.grad(o, given, do.double())
    lse, delta = s.logsumexp(-1, keepdim=True).detach(), (do * o.detach()).sum(-1, keepdim=True)
    got = backward((0, 1, 2), "einsum")(*(x.detach() for x in given), do.double(), lse, delta)
    assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-12) for a, b in zip(got, wanted, strict=True))


REDUCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "nearest": lambda s: s.amax(-1),
    "log-sum-exp": lambda s: s.logsumexp(-1),
    "exponentials": lambda s: (s * 0.1).exp().sum(-1),
    "any": lambda s: (s > 9).any(-1),
    "all": lambda s: (s > -9).all(-1),
    "several": lambda s: (s.amax(-1), s.amin(-1), (s > 2).sum(-1)),
    "both axes": lambda s: (s.logsumexp(-1), s.logsumexp(-2)),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_of_scores(name: str) -> None:
    made = check(lambda q, k: REDUCTIONS[name](q @ k.mT), randn(200, D), randn(300, D), pairs=200 * 300)
    assert made and all((r.status, r.kind) == ("streamed", "reduction") for r in made)


def test_a_reduction_does_not_stand_for_an_attention() -> None:
    """`require="streamed"` is about attention: a graph without one does not keep it, whatever else streams."""

    def nearest(q: Tensor, k: Tensor) -> Tensor:
        return (q @ k.mT).amax(-1)

    q, k = randn(1024, 64), randn(2048, 64)
    report = aicf.explain(nearest, q, k)
    assert report.summary.startswith("1 score reduction in 1 graph: 1 streamed") and report.attentions == []
    with torch.no_grad(), pytest.raises(aicf.NotStreamed):
        torch.compile(nearest, backend="aicf", options={"require": "streamed"})(q, k)
        aicf.compile(nearest, require="streamed")(q, k)


def test_a_tensor_of_pairs_that_is_stored_is_in_the_report() -> None:
    def relative(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
        b, h, n, _ = q.shape
        r = torch.nn.functional.pad(q @ table.mT, (1, 0)).view(b, h, n + 1, n)[:, :, 1:].view(b, h, n, n)
        return ((q @ k.mT + r) * 0.25).softmax(-1) @ v

    with torch.no_grad():
        report = aicf.explain(relative, *(randn(1, 2, 64, 16, seed=n) for n in range(4)), options={"fuse": "always"})
    (region,) = report.regions
    ((name, size),) = [(s.name, s.bytes) for s in region.stored]
    assert size == 4 * 2 * 64 * 64
    assert f"stored     {name}, 32.0 KiB" in str(report) and "shift" in str(report)


@pytest.mark.parametrize("spelt", ["table", "gather"])
def test_keys_that_shift_from_row_to_row(spelt: str) -> None:
    """Relative positions as a second product. In the tile it has keys of its own for each row, and a tile has one row; the cost
    model takes the form that stores it, where that is faster than the source and the other is not."""
    n = 256
    distance = torch.arange(n) - torch.arange(n)[:, None] + n - 1

    def fn(q: Tensor, k: Tensor, v: Tensor, r: Tensor) -> Tensor:
        if spelt == "gather":
            shifted = (q @ r.mT).gather(-1, distance.expand(*q.shape[:2], n, n))
        else:
            shifted = torch.einsum("bhid,ijd->bhij", q, r[distance])
        return ((q @ k.mT + shifted) * 0.25).softmax(-1) @ v

    q, k, v = (randn(B, H, n, 24, seed=s) for s in range(3))
    args = q, k, v, randn(2 * n - 1, 24)
    with torch.no_grad():
        reading = read(capture_directly(fn, *args).traced)
    for options, stored in ((Options(fuse="always", threads=1, target="avx2"), 0), (Options(threads=1, target="avx2"), 1)):
        (region,) = compile_graph(reading.graph, options, frozenset(reading.anchors)).regions
        assert region.status == "streamed" and len(region.stored) == stored, (options, region.reason, region.stored)
    (region,) = check(fn, *args, pairs=H * n * n, options=Options(threads=1))
    assert region.status == "streamed", region.reason
