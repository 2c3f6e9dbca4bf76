"""Kinds of graphs that other systems of this sort got wrong, in public: each test fails on the named wrong behaviour.

What concerns rows without keys is in test_mask_rows.py, lengths that change in test_compilations.py, index widths in
test_index_width.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import aicf
from aicf.driver import Options, compile_graph
from aicf.report import GraphReport

from .capture import capture_directly
from .streamed import assert_streams, compiled

INF = math.inf


def made(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    g = torch.Generator().manual_seed(1)
    return tuple(torch.randn(*s, generator=g).to(dtype) for s in shapes)


def qkv(n: int = 19, m: int = 37, d: int = 8, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    return made((1, 2, n, d), (1, 2, m, d), (1, 2, m, d), dtype=dtype)


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v


def kernel(fn: Callable[..., Tensor], *args: Tensor) -> str:
    """The kernel's text without the lines that say where it comes from."""
    _, (region,) = compiled(fn, *args)
    assert region.status == "streamed", region.reason
    return "\n".join(line for line in region.dump("kernel").splitlines() if "derived from" not in line)


# ------------------------------------------------------------------------------------------------ not recognised elsewhere


def test_the_side_of_a_mask_makes_no_difference() -> None:
    def right(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return (q @ k.mT / 4 + mask).softmax(-1) @ v

    def left(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return (mask + q @ k.mT / 4).softmax(-1) @ v

    (mask,) = made((1, 1, 19, 37))
    assert_streams(left, *qkv(), mask)
    assert len(kernel(left, *qkv(), mask).splitlines()) == len(kernel(right, *qkv(), mask).splitlines())


def test_a_product_with_one_over_the_scale_is_a_scale() -> None:
    assert_streams(lambda q, k, v: (q @ k.mT * (1 / 3.7)).softmax(-1) @ v, *qkv())
    assert_streams(lambda q, k, v: (q @ k.mT / 3.7).softmax(-1) @ v, *qkv())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_casts_are_seen_through(dtype: torch.dtype) -> None:
    def cast_everywhere(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        wide = torch.promote_types(q.dtype, torch.float32)
        s = (q.to(wide).to(q.dtype) @ k.to(wide).to(k.dtype).mT).to(wide) * 0.25
        p = s.to(wide).softmax(-1).to(q.dtype).to(wide).to(q.dtype)
        return (p @ v.to(wide).to(v.dtype)).to(wide).to(q.dtype)

    assert_streams(cast_everywhere, *qkv(dtype=dtype))


def test_a_batch_of_one_is_recognised_whatever_is_symbolic() -> None:
    for dynamic in (False, True):
        torch._dynamo.reset()
        reports: list[GraphReport] = []
        options: dict[str, Any] = {"fuse": "always", "rest": "eager", "report": reports.append}
        run: Any = torch.compile(plain, backend="aicf", dynamic=dynamic, options=options)
        with torch.no_grad():
            run(*made((1, 1, 19, 8), (1, 1, 37, 8), (1, 1, 37, 8)))
            run(*made((1, 1, 1, 8), (1, 1, 37, 8), (1, 1, 37, 8)))
        assert {r.status for g in reports for r in g.regions} == {"streamed"}


@pytest.mark.parametrize("fn", [lambda x: F.dropout(x, 0.5, training=False), lambda x: F.dropout(x, 0.0, training=True)])
def test_dropout_that_does_nothing_is_nothing(fn: Callable[[Tensor], Tensor]) -> None:
    assert_streams(lambda q, k, v: fn((q @ k.mT / 4).softmax(-1)) @ v, *qkv())


def test_a_bias_of_pairs_is_read_tile_by_tile_and_not_spread_over_the_batch() -> None:
    def biased(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return (q @ k.mT / 4 + bias.expand(q.shape[0], -1, -1, -1)).softmax(-1) @ v

    q, k, v, bias = made((3, 2, 19, 8), (3, 2, 37, 8), (3, 2, 37, 8), (1, 2, 19, 37))
    assert_streams(biased, q, k, v, bias)
    assert "[0, h, i, j]" in kernel(biased, q, k, v, bias)


def test_a_bias_from_a_table_of_relative_positions_has_no_tensor_of_rows_by_keys() -> None:
    def t5(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
        apart = (torch.arange(37)[None, :] - torch.arange(19)[:, None]).clamp(-8, 8) + 8
        return (q @ k.mT + table[apart].permute(2, 0, 1)).softmax(-1) @ v

    (table,) = made((17, 2))
    assert_streams(t5, *qkv(), table)
    _, (region,) = compiled(t5, *qkv(), table)
    assert max(math.prod(int(getattr(d, "value", 0)) for d in n.type.shape) for n in region.inputs) < 19 * 37


# ------------------------------------------------------------------------------------------------ recognised wrongly elsewhere


def test_a_permuted_key_is_not_taken_for_a_transposed_one() -> None:
    """As many keys as features: `q @ k` has the shape of `q @ k^T`, and another meaning."""
    q, k, v = made((1, 2, 19, 16), (1, 2, 16, 16), (1, 2, 16, 16))
    assert_streams(lambda q, k, v: (q @ k / 4).softmax(-1) @ v, q, k, v)
    heads = made((2, 2, 9, 8), (2, 2, 7, 8), (2, 2, 7, 8))
    assert_streams(lambda q, k, v: (q @ k.transpose(0, 1).mT / 4).softmax(-1) @ v, *heads)
    assert_streams(lambda q, k, v: (q @ k.flip(1).mT / 4).softmax(-1) @ v, q, k, v)


def test_a_mask_that_is_multiplied_leaves_a_score_of_zero() -> None:
    def multiplied(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keep = torch.ones(19, 37, dtype=torch.bool).tril()
        return (q @ k.mT * keep).softmax(-1) @ v

    def added(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)

    assert not torch.allclose(assert_streams(multiplied, *qkv()), assert_streams(added, *qkv()))


@pytest.mark.parametrize("bottom", [False, True], ids=["top left", "bottom right"])
@pytest.mark.parametrize("n, m", [(37, 19), (19, 37), (1, 37), (37, 1 + 8)])
def test_causal_masks_of_unequal_lengths(n: int, m: int, bottom: bool) -> None:
    def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keep = torch.ones(n, m, dtype=torch.bool).tril(m - n if bottom else 0)
        return (q @ k.mT / 4).masked_fill(~keep, -INF).softmax(-1) @ v

    got = assert_streams(causal, *qkv(n, m))
    empty = max(n - m, 0) if bottom else 0
    assert got[:, :, :empty].isnan().all() and not got[:, :, empty:].isnan().any()


# ------------------------------------------------------------------------------------------------ shapes and memory


WIDTHS = [(1, 1), (31, 31), (72, 72), (80, 80), (96, 96), (512, 512), (8, 31), (33, 1), (16, 777), (1024, 8)]


@pytest.mark.parametrize("d, width", WIDTHS)
def test_head_dims_of_every_size(d: int, width: int) -> None:
    assert_streams(plain, *made((1, 1, 5, d), (1, 1, 21, d), (1, 1, 21, width)))


@pytest.mark.parametrize("poison", [math.nan, INF], ids=str)
def test_nothing_behind_the_end_of_a_tensor_is_read_into_the_result(poison: float) -> None:
    """Every tail of a tile ends in front of NaN or infinity."""
    inside = qkv()
    whole = [torch.full((1, 2, 64, 24), poison) for _ in range(3)]
    views = [w[:, :, : x.shape[2], : x.shape[3]].copy_(x) for w, x in zip(whole, inside, strict=True)]
    assert torch.equal(assert_streams(plain, *views), assert_streams(plain, *inside))


def test_views_of_one_buffer_are_read_through_their_strides() -> None:
    def packed(x: Tensor) -> Tensor:
        q, k, v = x.view(2, 29, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
        return plain(q, k, v)

    (x,) = made((2, 29, 48))
    assert_streams(packed, x)
    _, (region,) = compiled(packed, x)
    assert [n.name for n in dict.fromkeys(region.inputs)] == ["arg0_1"]


def test_heads_of_stride_zero_are_not_copied() -> None:
    def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return plain(q, k.expand(-1, 6, -1, -1), v.expand(-1, 6, -1, -1))

    args = made((2, 6, 19, 8), (2, 1, 37, 8), (2, 1, 37, 8))
    assert_streams(grouped, *args)
    assert_streams(plain, args[0], args[1].expand(-1, 6, -1, -1), args[2].expand(-1, 6, -1, -1))
    _, (region,) = compiled(grouped, *args)
    assert sorted(math.prod(int(getattr(d, "value", 0)) for d in n.type.shape) for n in region.inputs) == [592, 592, 1824]


# ------------------------------------------------------------------------------------------------ fallbacks


def test_what_the_fused_form_does_slower_is_declined_in_words() -> None:
    """A schedule of single scores is slower than matrix products, and the cost model knows it."""
    q, k, v = made((1, 1, 512, 64), (1, 1, 512, 64), (1, 1, 512, 64))
    one = capture_directly(plain, q, k, v)
    options = Options(fuse="auto", threads=1, schedule="tile_m=1,tile_n=1")
    (r,) = compile_graph(one.reading.graph, options, frozenset(one.reading.anchors)).regions
    assert r.status == "declined" and r.reason.endswith("not streamed")
    always = replace(options, fuse="always")
    (r,) = compile_graph(one.reading.graph, always, frozenset(one.reading.anchors)).regions
    assert r.status == "streamed" and r.reason.endswith('fuse="always" was given')


def test_a_fallback_is_told_with_its_memory_and_is_an_error_on_request() -> None:
    def talking_heads(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
        p = torch.einsum("hg,bgij->bhij", w, (q @ k.mT).softmax(-1))
        return p @ v

    args = (*qkv(), *made((2, 2)))
    (r,) = aicf.explain(talking_heads, *args).regions
    assert r.status == "refused" and "other rows' or heads' scores" in r.reason
    assert r.bytes_unfused is not None and r.bytes_unfused >= 4 * 2 * 19 * 37
    with pytest.raises(aicf.NotStreamed, match="heads"), torch.no_grad():
        aicf.compile(talking_heads, require="streamed")(*args)
