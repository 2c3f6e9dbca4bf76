"""Indices from tensors: right ones give what eager gives; wrong ones raise IndexError with tensor, index and size, where eager
raises too, and before anything is computed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from .streamed import assert_streams, compiled

Tensor = torch.Tensor
N, SIZE = 21, 13


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT * 0.25


def by_index(q: Tensor, k: Tensor, v: Tensor, table: Tensor, at: Tensor) -> Tensor:
    return (scores(q, k) + table[at]).softmax(-1) @ v


def by_two(q: Tensor, k: Tensor, v: Tensor, table: Tensor, at: Tensor) -> Tensor:
    return (scores(q, k) + table.view(1, -1).expand(2, -1)[at % 2, at]).softmax(-1) @ v


def by_embedding(q: Tensor, k: Tensor, v: Tensor, table: Tensor, at: Tensor) -> Tensor:
    return (scores(q, k) + F.embedding(at, table[:, None])[..., 0]).softmax(-1) @ v


def by_select(q: Tensor, k: Tensor, v: Tensor, table: Tensor, at: Tensor) -> Tensor:
    return (scores(q, k) + table.index_select(0, at[0])).softmax(-1) @ v


def by_gather(q: Tensor, k: Tensor, v: Tensor, table: Tensor, at: Tensor) -> Tensor:
    return (scores(q, k) + table.expand(N, SIZE).gather(1, at)).softmax(-1) @ v


def along(q: Tensor, k: Tensor, v: Tensor, table: Tensor, at: Tensor) -> Tensor:
    return (scores(q, k) + torch.take_along_dim(table.expand(N, SIZE), at, 1)).softmax(-1) @ v


def of_keys(q: Tensor, k: Tensor, v: Tensor, table: Tensor, at: Tensor) -> Tensor:
    """A mask by what a table says of each key: its tiles are summed up before the kernel runs."""
    return torch.where(table[at[0]] > -3, scores(q, k), float("-inf")).softmax(-1) @ v


def documents(q: Tensor, k: Tensor, v: Tensor, table: Tensor, at: Tensor) -> Tensor:
    ids = (table * 2).long()[at[0]]
    return torch.where(ids[:, None] == ids, scores(q, k), float("-inf")).softmax(-1) @ v


def masked(q: Tensor, k: Tensor, v: Tensor, table: Tensor, at: Tensor) -> Tensor:
    """The wrong one lies in a tile that the mask hides."""
    later = torch.arange(N) > torch.arange(N)[:, None]
    return (scores(q, k) + table[at]).masked_fill(later, float("-inf")).softmax(-1) @ v


def chosen(q: Tensor, k: Tensor, v: Tensor, table: Tensor, at: Tensor) -> Tensor:
    """Eager looks up what is not selected as well."""
    return (scores(q, k) + torch.where(at >= 0, table[at], 0.0)).softmax(-1) @ v


def behind_a_prefix(q: Tensor, k: Tensor, v: Tensor, table: Tensor, at: Tensor) -> Tensor:
    """Two numbers before those that are looked up: there is no index for them."""
    bias = torch.cat([table[:2], table[at[0, 2:]]])
    return (scores(q, k) + bias).softmax(-1) @ v


def rows_of_a_pool(q: Tensor, k: Tensor, v: Tensor, table: Tensor, at: Tensor) -> Tensor:
    pool = k[..., :SIZE, :] + table[:, None] * 0
    return scores(q, pool[..., at[0], :]).softmax(-1) @ v


def tensors(at: Tensor) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, N, 16).unbind(0)
    return q, k, v, torch.randn(SIZE), at


WRAPS: dict[str, Callable[..., Tensor]] = {
    f.__name__: f for f in (by_index, by_two, of_keys, masked, chosen, behind_a_prefix, rows_of_a_pool, documents)
}
PLAIN: dict[str, Callable[..., Tensor]] = {f.__name__: f for f in (by_embedding, by_select, by_gather)}
ANY: dict[str, Callable[..., Tensor]] = {f.__name__: f for f in (along,)}


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("name", [*WRAPS, *PLAIN, *ANY])
def test_right_indices_mean_what_they_mean_in_eager(name: str, dtype: torch.dtype) -> None:
    if dtype == torch.int32 and name in ("by_gather", "along"):
        pytest.skip("PyTorch takes int64 alone")
    low, high = (-SIZE, SIZE) if name in WRAPS else (0, SIZE) if name in PLAIN else (-50, 50)
    torch.manual_seed(1)
    at = torch.randint(low, high, (N, N)).to(dtype)
    at[0, :2] = torch.tensor([low, high - 1])
    assert_streams((WRAPS | PLAIN | ANY)[name], *tensors(at))


@pytest.mark.parametrize("wrong", [SIZE, -SIZE - 1, 10**9])
@pytest.mark.parametrize("name", [*WRAPS, *PLAIN])
def test_wrong_indices_raise(name: str, wrong: int) -> None:
    fn = (WRAPS | PLAIN)[name]
    at = torch.zeros(N, N, dtype=torch.int64)
    at[0, N - 1] = wrong
    given = tensors(at)
    with torch.no_grad():
        with pytest.raises((IndexError, RuntimeError)) as eager:
            fn(*given)
        run, regions = compiled(fn, *tensors(torch.zeros_like(at)))
        assert [r.status for r in regions] == ["streamed"], [r.reason for r in regions]
        run(*tensors(torch.zeros_like(at)))
        with pytest.raises(IndexError) as error:
            run(*given)
        said = re.fullmatch(
            rf"index {wrong} \(taken from (\w+)\) is out of range for dimension \d of (\w+), which has {SIZE} elements",
            str(error.value),
        )
        # A table that is looked up once for each key is read by PyTorch, in whose words the error is.
        assert said or str(error.value) == str(eager.value), error.value
        run(*tensors(torch.zeros_like(at)))  # and the next call is right again


@pytest.mark.parametrize("name", PLAIN)
def test_negative_indices_raise_where_they_do_not_wrap(name: str) -> None:
    at = torch.zeros(N, N, dtype=torch.int64)
    at[0, 3] = -1
    with torch.no_grad():
        run, _ = compiled(PLAIN[name], *tensors(torch.zeros_like(at)))
        with pytest.raises(IndexError, match=r"index -1 .taken from |index out of range in self"):
            run(*tensors(at))


def relative(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
    p = torch.arange(q.shape[-2])
    return (scores(q, k) + table[p[:, None] - p + 9]).softmax(-1) @ v


def test_a_table_of_relative_positions_that_is_too_short() -> None:
    def given(n: int) -> tuple[Any, ...]:
        torch.manual_seed(0)
        q, k, v = torch.randn(3, 1, 2, n, 16).unbind(0)
        return q, k, v, torch.randn(19)

    assert_streams(relative, *given(10))
    run, _ = compiled(relative, *given(11))
    with (
        torch.no_grad(),
        pytest.raises(IndexError, match=r"index 19 is out of range for dimension 0 of \w+, which has 19 elements"),
    ):
        run(*given(11))


def test_under_torch_compile() -> None:
    torch._dynamo.reset()
    fast = torch.compile(by_index, backend="aicf", options={"fuse": "always"}, dynamic=True)
    with torch.no_grad():
        for n in (8, 21, 33):
            torch.manual_seed(0)
            q, k, v = torch.randn(3, 1, 2, n, 16).unbind(0)
            table, at = torch.randn(n), torch.randint(-n, n, (n, n))
            torch.testing.assert_close(fast(q, k, v, table, at), by_index(q, k, v, table, at), rtol=1e-5, atol=1e-5)
            at[n - 1, 0] = n
            with pytest.raises(
                IndexError, match=rf"index {n} \(taken from \w+\) is out of range for dimension 0 of table, which has {n}"
            ):
                fast(q, k, v, table, at)


@pytest.mark.parametrize("name", ["by_index", "by_two", "masked", "chosen", "by_embedding", "by_gather"])
def test_the_error_has_the_names_of_the_source(name: str) -> None:
    torch._dynamo.reset()
    at = torch.zeros(N, N, dtype=torch.int64)
    at[0, N - 1] = SIZE + 4
    fast = torch.compile((WRAPS | PLAIN)[name], backend="aicf", options={"fuse": "always", "rest": "eager"})
    read = rf"index {SIZE + 4} \(taken from at\) is out of range for dimension \d of table, which has {SIZE} elements"
    with torch.no_grad(), pytest.raises(IndexError, match=read):
        fast(*tensors(at))


def test_no_index_at_all() -> None:
    q, k, v = torch.randn(3, 1, 2, 0, 16).unbind(0)
    run, _ = compiled(by_index, *tensors(torch.zeros(N, N, dtype=torch.int64)))
    del run
    torch._dynamo.reset()
    fast = torch.compile(by_index, backend="aicf", options={"fuse": "always"})
    with torch.no_grad():
        assert fast(q, k, v, torch.zeros(0), torch.zeros(0, 0, dtype=torch.int64)).shape == (1, 2, 0, 16)
