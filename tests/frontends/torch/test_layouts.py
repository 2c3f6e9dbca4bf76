"""The layout of a region's output: what its reader wants, or what views rely on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from aicf.frontends.torch.capture.retrace import trace
from aicf.frontends.torch.rewrite.layouts import Order, memory_order

ROWS = (0, 1, 2, 3)
HEADS_LAST = (0, 2, 1, 3)


def order(after: Callable[[Tensor], object]) -> Order:
    """The memory order of a matrix product's result [2, 3, 5, 4] in a graph that goes on with `after`."""
    mode = FakeTensorMode()
    p, v = mode.from_tensor(torch.empty(2, 3, 5, 6)), mode.from_tensor(torch.empty(2, 3, 6, 4))
    graph = trace(lambda p, v: after(p @ v), mode, [p, v])
    return memory_order(next(n for n in graph.graph.nodes if "matmul" in str(n.target)))


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (lambda o: o, ROWS),
        (lambda o: o.reshape(2, -1), ROWS),
        (lambda o: o.transpose(1, 2), ROWS),
        (lambda o: o.transpose(1, 2).reshape(2, 5, 12), HEADS_LAST),
        (lambda o: o.transpose(1, 2).contiguous().view(2, 5, 12), HEADS_LAST),
        (lambda o: o.permute(0, 2, 1, 3).flatten(2), HEADS_LAST),
        (lambda o: o.permute(2, 0, 1, 3).reshape(5, -1), (2, 0, 1, 3)),
        (lambda o: o.transpose(-3, -2).transpose(0, 1).reshape(5, -1), (2, 0, 1, 3)),
        (lambda o: (o.transpose(1, 2).reshape(2, 5, 12), o.sum()), ROWS),
        (lambda o: o.transpose(1, 2).relu(), ROWS),
    ],
)
def test_the_only_reader_decides(after: Callable[[Tensor], object], expected: Order) -> None:
    assert order(after) == expected


def test_a_view_where_the_last_dimension_has_one_element() -> None:
    """There a reshape copies nothing: its strides are those of the product, row by row."""
    mode = FakeTensorMode()
    p, v = mode.from_tensor(torch.empty(1, 3, 5, 6)), mode.from_tensor(torch.empty(1, 3, 6, 1))
    graph = trace(lambda p, v: (p @ v).transpose(1, 2).reshape(1, 5, -1), mode, [p, v])
    assert memory_order(next(n for n in graph.graph.nodes if "matmul" in str(n.target))) == ROWS
