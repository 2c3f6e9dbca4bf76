"""Where the keys of a block of rows end inside of a partial tile: from positions, and from what tensors say of keys.

What lies past the end is not read. Values that are NaN there would show it: 0 times NaN is NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import aicf
from aicf.kernel import RowBlock, print_kernel, statements

NAN, INF = float("nan"), float("inf")
N, D = 200, 16
SCHEDULE = {"tile_m": 96, "tile_n": 64, "rows": 6}  # what the texts below are of, on any processor
BLOCK = 2 * SCHEDULE["rows"]  # more rows than a block has


def compiled(f: Callable[..., Tensor]) -> tuple[Callable[..., Tensor], list[Any]]:
    graphs: list[Any] = []
    torch._dynamo.reset()
    options: dict[str, Any] = {"fuse": "always", "schedule": SCHEDULE, "report": graphs.append}
    return torch.compile(f, backend="aicf", options=options), graphs


def ends_of(graphs: list[Any]) -> str:
    """How the rows of the partial phase end, as printed."""
    ((region,),) = [g.regions for g in graphs]
    kernel = region.executable.kernel
    assert any(isinstance(s, RowBlock) and s.ends for s in statements(kernel.body)), print_kernel(kernel)
    (line,) = [x for x in print_kernel(kernel).splitlines() if " before " in x]
    return line.split(" before ", 1)[1].rstrip(":")


def inputs(heads: int = 2, batch: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, batch, heads, N, D).unbind(0)
    return q, k, v


def attention(q: Tensor, k: Tensor, v: Tensor, keep: Tensor, fill: float = -INF) -> Tensor:
    return torch.where(keep, q @ k.mT * 0.25, fill).softmax(-1) @ v


def agree(found: Tensor, q: Tensor, k: Tensor, v: Tensor, keep: Tensor, rows: slice = slice(None)) -> None:
    """Equal to float64 with what is hidden made finite."""
    exact = attention(q.double(), k.nan_to_num(0).double(), v.nan_to_num(0).double(), keep)
    torch.testing.assert_close(found[..., rows, :].double(), exact[..., rows, :], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("fill", [-INF, torch.finfo(torch.float32).min])
def test_padding_ends_with_the_last_key_that_is_there(fill: float):
    q, k, v = inputs(batch=3)
    real = torch.arange(N) < torch.tensor([[10], [131], [N]])
    real[1, 40:50] = False

    def padded(q: Tensor, k: Tensor, v: Tensor, real: Tensor) -> Tensor:
        return attention(q, k, v, real[:, None, None, :], fill)

    f, graphs = compiled(padded)
    past = torch.arange(N) >= torch.tensor([[10], [131], [N]])
    v = v.masked_fill(past[:, None, :, None], NAN)
    agree(f(q, k, v, real), q, k, v, real[:, None, None, :])
    assert "[b, j0 // 64] + 1" in ends_of(graphs)


def test_a_key_mask_that_is_added():
    q, k, v = inputs()
    real = torch.arange(N) < 77

    def added(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return (q @ k.mT * 0.25 + mask).softmax(-1) @ v

    f, graphs = compiled(added)
    v[:, :, 192:] = NAN  # whole tiles of numbers that are added are not known to hold a mask; the last one is no whole tile
    agree(f(q, k, v, torch.zeros(N).masked_fill(~real, -INF)), q, k, v, real)
    assert "max" in ends_of(graphs)


@pytest.mark.parametrize("length", [0, 5, 64, 150, N])
def test_a_prefix_and_what_came_before(length: int):
    q, k, v = inputs()
    prefix = torch.arange(N) < length

    def prefixed(q: Tensor, k: Tensor, v: Tensor, prefix: Tensor) -> Tensor:
        i = torch.arange(N)
        return attention(q, k, v, (i[None, :] <= i[:, None]) | prefix)

    f, graphs = compiled(prefixed)
    keep = torch.ones(N, N, dtype=torch.bool).tril() | prefix
    v[:, :, -1] = NAN  # the last row alone sees it, if the prefix is not all
    out = f(q, k, v, prefix)
    if length < N:
        agree(out, q, k, v, keep, slice(0, N - BLOCK))
    assert out[..., -1, :].isnan().all()
    ends = ends_of(graphs)
    assert "min(i0 + 6, N)" in ends and "max" in ends


def test_a_window_begins_in_a_later_tile():
    q, k, v = inputs()

    def windowed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        i = torch.arange(N)
        return attention(q, k, v, (i[None, :] <= i[:, None]) & (i[:, None] - i[None, :] < 20))

    f, graphs = compiled(windowed)
    keep = torch.ones(N, N, dtype=torch.bool).tril().triu(-19)
    v[:, :, 0] = NAN
    out = f(q, k, v)
    agree(out, q, k, v, keep, slice(64 + 20 + BLOCK, N))  # rows of the first tile of keys may multiply what they hide
    assert out[..., 0, :].isnan().all()
    assert "where(" in ends_of(graphs)


def test_what_tensors_say_of_rows_ends_no_block():
    """Documents: their ids are known for tiles of rows, not for a block's."""
    q, k, v = inputs()
    ids = torch.arange(N) // 37

    def documents(q: Tensor, k: Tensor, v: Tensor, ids: Tensor) -> Tensor:
        i = torch.arange(N)
        return attention(q, k, v, (ids[:, None] == ids[None, :]) & (i[None, :] <= i[:, None]))

    f, graphs = compiled(documents)
    out = f(q, k, v, ids)
    agree(out, q, k, v, (ids[:, None] == ids) & torch.ones(N, N, dtype=torch.bool).tril())
    assert ends_of(graphs) == "min(M, min(i0 + 6, N))"


def test_strict_mode_ends_nothing():
    q, k, v = inputs()
    torch._dynamo.reset()
    f = torch.compile(attention, backend="aicf", options={"fuse": "always", "strict": True})
    v[:, :, -1] = NAN
    keep = torch.ones(N, N, dtype=torch.bool).tril()
    assert f(q, k, v, keep).isnan().all()


def test_words_of_the_report():
    q, k, v = inputs()
    text = str(aicf.explain(lambda q, k, v, m: attention(q, k, v, m[:, None, None, :]), q, k, v, torch.arange(N)[None] < 50))
    assert "rows end where their last key does" in text or "skipped" in text
