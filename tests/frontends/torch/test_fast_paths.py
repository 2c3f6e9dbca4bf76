"""PyTorch's own layers, which call fused ops of their own in eval mode: what they mean is attention as well."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aicf.frontends.torch.capture.decompose import TABLE
from tests.contract import assert_contract
from tests.frontends.torch.test_backend import Compiled

B, N, D, H = 2, 19, 32, 4
CAUSAL = torch.ones(N, N, dtype=torch.bool).triu(1)
PADDING = torch.arange(N) >= torch.tensor([[N], [7]])
EMPTY = torch.arange(N) >= torch.tensor([[N], [0]])
MASKS = {"none": (None, None), "causal": (CAUSAL, None), "additive": (torch.zeros(N, N).masked_fill(CAUSAL, -torch.inf), None),
         "padding": (None, PADDING), "both": (CAUSAL, PADDING), "no keys": (None, EMPTY)}  # fmt: skip


@pytest.mark.parametrize("mask", MASKS)
def test_encoder(mask: str) -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"norm_first": mask == "both", "activation": "gelu" if mask == "causal" else "relu"}
    layer = nn.TransformerEncoderLayer(D, H, 2 * D, batch_first=True, **options)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(B, N, D)
    src_mask, padding = MASKS[mask]

    def run(x: Tensor) -> Tensor:
        given = None if src_mask is None or src_mask.dtype == torch.bool else src_mask.to(x.dtype)
        # Left to find out whether the mask is causal, the encoder reads it in Python, and Dynamo breaks the graph.
        return model(x, mask=src_mask if given is None else given, src_key_padding_mask=padding, is_causal=False)

    compiled = Compiled(run)
    got = compiled(x)
    assert compiled.statuses == ["streamed"] * 2, compiled.reasons
    with torch.no_grad():
        unfused, exact = run(x), (model.double(), run(x.double()))[1]
    assert_contract(got, unfused, exact, "f32")


@pytest.mark.parametrize("weights", ["none", "mean", "all"])
@pytest.mark.parametrize("kind", [None, 0, 1, 2])
def test_written_out_op_is_the_op(kind: int | None, weights: str) -> None:
    g = torch.Generator().manual_seed(0)
    x, w, p = (torch.randn(s, generator=g) / 4 for s in ((B, N, D), (3 * D, D), (D, D)))
    mask = None if kind is None else (CAUSAL, EMPTY, torch.rand(B, H, N, N, generator=g) > 0.5)[kind]
    args = (x, x, x, D, H, w, torch.ones(3 * D), p, torch.ones(D), mask, weights != "none", weights == "mean", kind)
    op = torch.ops.aten._native_multi_head_attention.default
    written: tuple[Tensor | None, ...] = TABLE[op](*args)
    fused: tuple[Tensor | None, ...] = op(*args)
    for ours, theirs in zip(written, fused, strict=True):
        assert (ours is None) == (theirs is None)
        if theirs is not None:
            torch.testing.assert_close(ours, theirs, equal_nan=True)
