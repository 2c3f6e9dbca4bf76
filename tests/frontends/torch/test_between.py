"""An op between the softmax of a product and a later product is named as what keeps an attention from streaming
(test_refused_lines), but not where what comes out of it is no attention's weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import aicf


def test_a_router_is_no_attention() -> None:
    """Softmax over experts, the best two of them, and the sum of what these make of a token."""

    def f(x: torch.Tensor, gate: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        weights, chosen = (x @ gate).softmax(-1).topk(2, -1)
        made = torch.einsum("td,tkdo->tko", x, experts[chosen])
        return torch.einsum("tk,tko->to", weights, made)

    g = torch.Generator().manual_seed(0)
    x, gate, experts = (torch.randn(s, generator=g) for s in ((40, 16), (16, 8), (8, 16, 24)))
    report = aicf.explain(f, x, gate, experts)
    assert not report.regions


def test_positions_of_a_selection_are_no_weights() -> None:
    """A mask of the experts that were chosen, as large as the scores."""

    def f(x: torch.Tensor, gate: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        chosen = (x @ gate).softmax(-1).topk(8, -1).indices
        return chosen.to(x.dtype) @ experts

    g = torch.Generator().manual_seed(0)
    x, gate, experts = (torch.randn(s, generator=g) for s in ((40, 16), (16, 8), (8, 24)))
    report = aicf.explain(f, x, gate, experts)
    assert not report.regions


class Layers(torch.nn.Module):
    """Attention whose values come out of a linear layer: with a bias, it and the sum of the values look like a region too."""

    def __init__(self, dropout: float = 0.0, returned: bool = False, written_out: bool = False) -> None:
        super().__init__()
        self.value = torch.nn.Linear(48, 48)
        self.dropout, self.returned, self.written_out = dropout, returned, written_out

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        heads = x.view(2, -1, 3, 16).transpose(1, 2)
        v = self.value(x).view(2, -1, 3, 16).transpose(1, 2)
        s = heads @ heads.mT / 4
        e = (s - s.amax(-1, keepdim=True)).exp()
        p = e / e.sum(-1, keepdim=True) if self.written_out else s.softmax(-1)
        out = torch.nn.functional.dropout(p, self.dropout) @ v
        return (out, p) if self.returned else (out,)


@pytest.mark.parametrize("written_out", [False, True])
@pytest.mark.parametrize(("options", "why"), [({"dropout": 0.1}, "dropout is on"), ({"returned": True}, "is itself returned")])
def test_the_layer_that_makes_the_values_is_no_attention(options: dict[str, Any], why: str, written_out: bool) -> None:
    """What is reported is the attention, and why it does not stream."""
    with torch.no_grad():
        report = aicf.explain(Layers(**options, written_out=written_out), torch.randn(2, 80, 48), options={"fuse": "always"})
    (region,) = report.regions
    assert region.status == "refused"
    assert why in region.reason


def test_layers_that_differ_in_names_alone_are_told_once() -> None:
    model = torch.nn.ModuleList([Layers(dropout=0.1), Layers(dropout=0.1)])

    def f(x: torch.Tensor) -> torch.Tensor:
        for layer in model:
            x = torch.nn.functional.layer_norm(x + layer(x)[0].transpose(1, 2).flatten(2), (48,))
        return x

    with torch.no_grad():
        report = aicf.explain(f, torch.randn(2, 80, 48))
    first, second = report.regions
    assert first.reason != second.reason
    assert len(report.brief().splitlines()) == 2 and "(2 alike)" in report.brief()


def test_softmaxed_values_are_no_weights() -> None:
    """A softmax over the features of the values: the linear attention that sums them streams."""

    def f(q: torch.Tensor, k: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (q @ k.mT).relu() @ (x @ w).softmax(-1)

    g = torch.Generator().manual_seed(0)
    inputs = [torch.randn(s, generator=g) for s in ((2, 80, 16), (2, 80, 16), (2, 80, 16), (16, 16))]
    (region,) = aicf.explain(f, *inputs, options={"fuse": "always"}).regions
    assert region.status == "streamed"
