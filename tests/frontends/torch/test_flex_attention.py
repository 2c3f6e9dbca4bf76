"""Calls of FlexAttention stream, whatever their score_mod and mask_mod, with the numbers of eager flex_attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import (
    AuxRequest,
    BlockMask,
    and_masks,
    create_block_mask,
    flex_attention,
    noop_mask,
    or_masks,
)

import aicf
from tests.contract import assert_contract

OPTIONS: Any = {"require": "streamed", "fuse": "always", "rest": "eager", "threads": 1}
B, H, N, M, D = 2, 4, 70, 75, 16
DTYPES: Any = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}

torch.manual_seed(0)
SLOPES = 0.5 ** torch.arange(1, H + 1)
TABLE = torch.randn(H, N + M)
PAIRS = torch.randn(B, H)
PER_BATCH = torch.randn(B, M)
DOCUMENTS = torch.sort(torch.randint(0, 4, (B, M)), dim=-1).values
LENGTHS = torch.tensor([40, 75])
NONE_LEFT = torch.tensor([0, 75])


@pytest.fixture(autouse=True)
def inference() -> Any:
    torch._dynamo.reset()
    torch.manual_seed(1)
    with torch.no_grad():
        yield


SCORES: dict[str, Callable[..., Tensor]] = {
    "relative bias": lambda s, b, h, i, j: s + TABLE[h, i - j + M],
    "ALiBi": lambda s, b, h, i, j: s + SLOPES[h] * (j - i),
    "softcap": lambda s, b, h, i, j: 5.0 * torch.tanh(s / 5.0),
    "captured by batch and head": lambda s, b, h, i, j: s * PAIRS[b, h],
    "captured row of a batch": lambda s, b, h, i, j: s + PER_BATCH[b][j],
    "causal as a score_mod": lambda s, b, h, i, j: torch.where(i >= j, s, -math.inf),
    "head told by number": lambda s, b, h, i, j: torch.where(h % 2 == 0, s, s * 0.5),
    "distance squared": lambda s, b, h, i, j: s - 0.01 * ((i - j) ** 2).to(s.dtype),
    "a new number everywhere": lambda s, b, h, i, j: s * 0.0 + (i + 2 * j + b) * 0.01,
}
MASKS: dict[str, Callable[..., Tensor]] = {
    "causal": lambda b, h, i, j: i >= j,
    "documents": lambda b, h, i, j: DOCUMENTS[b, i] == DOCUMENTS[b, j],
    "documents, causal": and_masks(lambda b, h, i, j: DOCUMENTS[b, i] == DOCUMENTS[b, j], lambda b, h, i, j: i >= j),
    "sliding window": lambda b, h, i, j: (i - j).abs() <= 9,
    "prefix": or_masks(lambda b, h, i, j: j < 20, lambda b, h, i, j: i >= j),
    "padding": lambda b, h, i, j: j < LENGTHS[b],
    "rows without keys": lambda b, h, i, j: j < NONE_LEFT[b],
    "window that ends": lambda b, h, i, j: (i - j <= 4) & (i < 30),
    "dilated": lambda b, h, i, j: (i - j) % 3 == 0,
    "by head": lambda b, h, i, j: (h < 2) | (i >= j),
    "all": noop_mask,
}


def doubled(x: Any) -> Any:
    return x.double() if isinstance(x, Tensor) and x.is_floating_point() else x


def qkv(heads: int = H, batch: int = B, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = torch.randn(B, H, N, D), torch.randn(batch, heads, M, D), torch.randn(batch, heads, M, D)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def streams(fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """The results of `fn`, compiled, which must stream and keep the contract; `fn` is eager's."""
    got = torch.compile(fn, backend="aicf", options=OPTIONS, **options)(*args)
    eager, exact = fn(*args), fn(*map(doubled, args))
    for mine, theirs, true in zip(*((x if isinstance(x, tuple) else (x,)) for x in (got, eager, exact)), strict=True):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape and mine.stride() == theirs.stride()
        assert_contract(mine, theirs, true, DTYPES[mine.dtype])
    return got


@pytest.mark.parametrize("name", SCORES)
def test_score_mods(name: str) -> None:
    streams(lambda q, k, v: flex_attention(q, k, v, score_mod=SCORES[name]), *qkv())


@pytest.mark.parametrize("name", MASKS)
def test_mask_mods(name: str) -> None:
    if name == "all":
        streams(lambda q, k, v: flex_attention(q, k, v), *qkv())
        return
    mask = create_block_mask(MASKS[name], B, H, N, M, device="cpu", BLOCK_SIZE=32)
    got = streams(lambda q, k, v: flex_attention(q, k, v, block_mask=mask), *qkv())
    if name == "rows without keys":
        assert (got[0] == 0).all() and (got[1] != 0).all()


def test_a_mask_that_is_made_inside() -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        mask = create_block_mask(lambda b, h, i, j: j < lengths[b], B, None, N, M, device="cpu")
        return flex_attention(q, k, v, score_mod=SCORES["ALiBi"], block_mask=mask)

    streams(fn, *qkv(), LENGTHS)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves(dtype: torch.dtype) -> None:
    mask = create_block_mask(MASKS["causal"], None, None, N, M, device="cpu")
    streams(lambda q, k, v: flex_attention(q, k, v, score_mod=SCORES["softcap"], block_mask=mask), *qkv(dtype=dtype))


@pytest.mark.parametrize("heads", [1, 2])
def test_key_heads_that_are_shared(heads: int) -> None:
    mask = create_block_mask(MASKS["by head"], B, H, N, M, device="cpu")
    streams(lambda q, k, v: flex_attention(q, k, v, block_mask=mask, enable_gqa=True, scale=0.3), *qkv(heads))


def test_keys_that_all_batches_share() -> None:
    mask = create_block_mask(MASKS["documents"], B, None, N, M, device="cpu")
    streams(lambda q, k, v: flex_attention(q, k, v, score_mod=SCORES["ALiBi"], block_mask=mask), *qkv(batch=1))


@pytest.mark.parametrize("mask", ["causal", "rows without keys"])
def test_log_sum_exp(mask: str) -> None:
    block_mask = create_block_mask(MASKS[mask], B, None, N, M, device="cpu")

    def fn(q: Tensor, k: Tensor, v: Tensor) -> Any:
        asked = AuxRequest(lse=True)
        out, aux = flex_attention(q, k, v, score_mod=SCORES["ALiBi"], block_mask=block_mask, return_aux=asked)
        return out, aux.lse

    streams(fn, *qkv())


def test_log_sum_exp_alone() -> None:
    streams(lambda q, k, v: flex_attention(q, k, v, return_lse=True), *qkv())


@pytest.mark.parametrize("dynamic", [None, True])
def test_lengths_that_change(dynamic: bool | None) -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(q, k, v, score_mod=SCORES["softcap"], enable_gqa=True)

    fast = torch.compile(fn, backend="aicf", options=OPTIONS, dynamic=dynamic)
    for n, m in ((40, 50), (41, 53), (60, 47)):
        args = torch.randn(B, H, n, D), torch.randn(B, 2, m, D), torch.randn(B, 2, m, D)
        assert_contract(fast(*args), fn(*args), fn(*map(doubled, args)), "f32")


def test_captured_tensors_are_inputs_of_each_call() -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[h, i, j])

    fast, args = torch.compile(fn, backend="aicf", options=OPTIONS), qkv()
    for _ in range(2):
        bias = torch.randn(H, N, M)
        given = (*args, bias)
        assert_contract(fast(*given), fn(*given), fn(*map(doubled, given)), "f32")


def by_hand() -> BlockMask:
    """Blocks of 16 keys, of which each block of rows sees its own and the first."""
    blocks = -(-M // 16)
    indices = torch.stack([torch.tensor([0, i, *range(1, i), *range(i + 1, blocks)][:blocks]) for i in range(5)])
    return BlockMask.from_kv_blocks(
        torch.tensor([[[1, 2, 2, 2, 2]]], dtype=torch.int32), indices[None, None].int(), BLOCK_SIZE=16, seq_lengths=(N, M)
    )


def test_blocks_without_a_mask_mod_are_refused_in_words() -> None:
    mask = by_hand()
    report = aicf.explain(lambda q, k, v: flex_attention(q, k, v, block_mask=mask), *qkv())
    (region,) = report.regions
    assert region.status == "refused" and "BlockMask without a mask_mod" in region.reason, str(report)


def test_the_cure_that_the_refusal_names() -> None:
    mask = by_hand()
    kept = torch.eye(5, dtype=torch.bool)
    kept[:, 0] = True
    cured = BlockMask.from_kv_blocks(
        mask.kv_num_blocks, mask.kv_indices, BLOCK_SIZE=16, mask_mod=lambda b, h, i, j: kept[i // 16, j // 16], seq_lengths=(N, M)
    )
    streams(lambda q, k, v: flex_attention(q, k, v, block_mask=cured), *qkv())


def test_blocks_by_hand_with_a_mask_mod() -> None:
    mask = create_block_mask(MASKS["sliding window"], None, None, N, M, device="cpu", BLOCK_SIZE=16)
    made = BlockMask.from_kv_blocks(
        mask.kv_num_blocks, mask.kv_indices, mask.full_kv_num_blocks, mask.full_kv_indices, BLOCK_SIZE=16,
        mask_mod=MASKS["sliding window"], seq_lengths=(N, M),
    )  # fmt: skip
    streams(lambda q, k, v: flex_attention(q, k, v, block_mask=made), *qkv())


def test_what_is_refused_runs_where_inductor_fails_on_it() -> None:
    """Inductor has no kernel for queries that are a view of a product (PyTorch 2.13, on a CPU)."""
    mask, weight = by_hand(), torch.randn(H * D, H * D) / 8

    def heads(x: Tensor) -> Tensor:
        return (x @ weight.to(x.dtype)).unflatten(-1, (H, D)).transpose(1, 2)

    def fn(x: Tensor, y: Tensor) -> Tensor:
        return flex_attention(heads(x), heads(y), heads(y), block_mask=mask)

    x, y = torch.randn(B, N, H * D), torch.randn(B, M, H * D)
    got = torch.compile(fn, backend="aicf")(x, y)
    assert_contract(got, fn(x, y), fn(x.double(), y.double()), "f32")
