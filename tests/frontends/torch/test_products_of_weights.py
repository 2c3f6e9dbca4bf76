"""Weights of several softmaxes over multiples of the same scores, multiplied: what one has that the others have not counts too,
and the size of the scores costs no digits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.contract import assert_contract

Programs = dict[str, Callable[..., Any]]


def of(*weights: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Any]:
    """The product of weights, times the values, and their sum: each is made of the scores and a number per query."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Any:
        s = q @ k.mT
        p = weights[0](s, q[..., :1])
        for w in weights[1:]:
            p = p * w(s, q[..., :1])
        return p @ v, p.sum(-1)

    return attention


def both_and_square(q: Tensor, k: Tensor, v: Tensor) -> Any:
    s = q @ k.mT
    w = (s * 0.5).softmax(-1) * 0.5 + (s * 2.0 - 1.0).softmax(-1)
    return w @ v, w.pow(2).sum(-1)


PROGRAMS: Programs = {
    "a constant": of(lambda s, t: s.softmax(-1), lambda s, t: (s - 1.0).softmax(-1)),
    "a number per query": of(lambda s, t: s.softmax(-1), lambda s, t: (s + t).softmax(-1)),
    "a multiple": of(lambda s, t: s.softmax(-1), lambda s, t: (2 * s).softmax(-1)),
    "a multiple and a constant": of(lambda s, t: s.softmax(-1), lambda s, t: (s * 2 - 1.0).softmax(-1)),
    "three": of(lambda s, t: (s - 2.0).softmax(-1), lambda s, t: (s - t).softmax(-1), lambda s, t: s.softmax(-1)),
    "a sum, squared": both_and_square,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_products(name: str):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 300, 16).unbind(0)
    f = PROGRAMS[name]
    graphs: list[Any] = []
    torch._dynamo.reset()
    options: dict[str, Any] = {"fuse": "always", "rest": "eager", "report": graphs.append}
    found = torch.compile(f, backend="aicf", options=options)(q, k, v)
    assert [r.status for r in graphs[0].regions] == ["streamed"]
    eager, exact = f(q, k, v), f(q.double(), k.double(), v.double())
    for part, unfused, reference in zip(found, eager, exact, strict=True):
        assert_contract(part, unfused, reference, "f32", name)


def test_chained_scales():
    """Two positive scales, one of the other, both with maxima: they are folded one after the other."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 70, 16).unbind(0)

    def f(q: Tensor, k: Tensor, v: Tensor) -> Any:
        s = (q @ k.mT) * 0.5
        return s.softmax(-1) @ v + (s * 0.25).softmax(-1) @ v, (s * 0.25).amax(-1), (s * 0.3).amin(-1)

    torch._dynamo.reset()
    found = torch.compile(f, backend="aicf", options={"fuse": "always", "rest": "eager"})(q, k, v)
    for part, unfused, reference in zip(found, f(q, k, v), f(q.double(), k.double(), v.double()), strict=True):
        assert_contract(part, unfused, reference, "f32")
