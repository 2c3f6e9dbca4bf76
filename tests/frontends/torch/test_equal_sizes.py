"""Lengths that are two symbols for PyTorch and one by meaning: caches that grow, key heads shared by groups, and other ops that
force sizes to be equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.contract import assert_contract

OPTIONS: Any = {"require": "streamed", "fuse": "always", "rest": "eager", "threads": 1}


class Cache:
    def __init__(self, heads: int, length: int) -> None:
        self.k, self.v = torch.randn(1, heads, length, 16), torch.randn(1, heads, length, 16)

    def copy(self, dtype: torch.dtype) -> Cache:
        made = Cache(1, 1)
        made.k, made.v = self.k.to(dtype), self.v.to(dtype)
        return made


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def _repeated(x: Tensor, n: int) -> Tensor:
    b, h, m, d = x.shape
    return x[:, :, None].expand(b, h, n, m, d).reshape(b, h * n, m, d)


def repeated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, _repeated(k, 4), _repeated(v, 4))


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT * 0.25).softmax(-1) @ v


def by_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("bhij,bhjd->bhid", torch.einsum("bhid,bhjd->bhij", q, k).softmax(-1), v)


def step(attention: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(q: Tensor, k: Tensor, v: Tensor, cache: Cache) -> Tensor:
        cache.k, cache.v = torch.cat([cache.k, k], 2), torch.cat([cache.v, v], 2)
        return attention(q, cache.k, cache.v)

    return run


@pytest.fixture(autouse=True)
def inference() -> Any:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        yield


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    ("attention", "heads"), [(fused, 8), (grouped, 2), (grouped, 1), (repeated, 2), (plain, 8), (by_einsum, 8)]
)
def test_a_cache_that_grows_streams_at_every_step(attention: Any, heads: int, dynamic: bool | None) -> None:
    fast, cache = torch.compile(step(attention), backend="aicf", dynamic=dynamic, options=OPTIONS), Cache(heads, 20)
    for _ in range(4):
        new = torch.randn(1, 8, 1, 16), *torch.randn(2, 1, heads, 1, 16)
        eager, exact = (step(attention)(*(x.to(t) for x in new), cache.copy(t)) for t in (torch.float32, torch.float64))
        assert_contract(fast(*new, cache), eager, exact, "f32")


def test_steps_after_the_second_compile_nothing() -> None:
    fast, cache = torch.compile(step(fused), backend="aicf", options=OPTIONS), Cache(8, 20)
    counted: list[int] = []
    for _ in range(8):
        fast(torch.randn(1, 8, 1, 16), *torch.randn(2, 1, 8, 1, 16), cache)
        counted.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert len(set(counted[1:])) == 1, counted


def test_lengths_that_differ_later_are_an_error_as_in_eager() -> None:
    fast = torch.compile(plain, backend="aicf", options=OPTIONS | {"require": None})
    for n in (20, 21, 22):
        fast(torch.randn(1, 2, 3, 16), *torch.randn(2, 1, 2, n, 16))
    wrong = torch.randn(1, 2, 3, 16), torch.randn(1, 2, 24, 16), torch.randn(1, 2, 23, 16)
    with pytest.raises(RuntimeError):
        plain(*wrong)
    with pytest.raises(RuntimeError):
        fast(*wrong)


def with_bias(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return (q @ k.mT + bias).softmax(-1) @ v


def with_mask(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    return torch.where(keep > 0, q @ k.mT, -torch.inf).softmax(-1) @ v


def fused_mask(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def joined(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, torch.cat([k, v], -1)[..., :16], v, attn_mask=bias)


@pytest.mark.parametrize("attention", [with_bias, with_mask, fused_mask, joined])
def test_ops_that_force_sizes_to_be_equal(attention: Callable[..., Tensor]) -> None:
    fast = torch.compile(attention, backend="aicf", options=OPTIONS)
    for n, m in ((20, 30), (21, 31), (25, 28)):
        args = torch.randn(2, 2, n, 16), *torch.randn(2, 2, 2, m, 16), torch.randn(n, m)
        assert_contract(fast(*args), attention(*args), attention(*(x.double() for x in args)), "f32")


def test_a_size_of_one_keeps_being_broadcast() -> None:
    fast = torch.compile(fused_mask, backend="aicf", options=OPTIONS)
    for n, m, rows in ((20, 30, 1), (21, 31, 21), (25, 28, 1)):
        args: Any = torch.randn(2, 2, n, 16), *torch.randn(2, 2, 2, m, 16), torch.randn(rows, m)
        assert_contract(fast(*args), fused_mask(*args), fused_mask(*(x.double() for x in args)), "f32")


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generate_gives_the_tokens_of_eager(cache: str) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = transformers.LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=64, max_position_embeddings=64)
    model = transformers.LlamaForCausalLM(config).eval()
    ids, how = torch.randint(0, 64, (1, 9)), {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    how |= {"cache_implementation": "static"} if cache == "static" else {}
    expected = model.generate(ids, **how)
    torch._dynamo.reset()
    model.generation_config.disable_compile = True
    model.forward = torch.compile(model.forward, backend="aicf", options=OPTIONS)
    assert torch.equal(model.generate(ids, **how), expected)
