"""An op between the softmax of a product and a later product is named as what keeps an attention from streaming
(test_refused_lines), but not where what comes out of it is no attention's weights."""

from __future__ import annotations

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
