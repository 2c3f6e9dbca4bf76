"""What is found in graphs as models have them, and what is said of the rest. Kinds of attention, each in its smallest form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from aicf.driver import Options, RegionResult, compile_graph
from aicf.frontends.torch.reader import read

from .capture import capture_directly


def regions(fn: Callable[..., Any], *args: Tensor, weights: tuple[int, ...] = ()) -> list[RegionResult]:
    """What becomes of `fn(*args)`; `weights`: the positions of those arguments that are parameters."""
    gm = capture_directly(fn, *args).traced
    reading = read(gm, [k in weights for k in range(len(args))])
    return compile_graph(reading.graph, Options(fuse="always"), frozenset(reading.anchors), reading.parameters).regions


def statuses(fn: Callable[..., Any], *args: Tensor, weights: tuple[int, ...] = ()) -> list[str]:
    return [r.status for r in regions(fn, *args, weights=weights)]


X, W = torch.zeros(2, 6, 8), torch.zeros(8, 8)
Q, K, V = (torch.zeros(2, 3, 6, 4) for _ in range(3))


# ------------------------------------------------------------------------------------------------ what is no attention


def test_a_norm_between_linear_layers_is_no_attention():
    def layers(x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        x = F.linear(x, first)
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return F.linear(y, second), y

    assert regions(layers, X, W, W, weights=(1, 2)) == []


def test_an_activation_between_linear_layers_is_no_attention():
    def layers(x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        y = F.gelu(F.linear(x, first))
        return F.linear(y, second), y

    assert regions(layers, X, W, W, weights=(1, 2)) == []


def test_similarities_of_normalised_projections_are_no_attention():
    def clip(text: Tensor, image: Tensor, projection: Tensor) -> tuple[Tensor, Tensor]:
        text = F.linear(text, projection)
        text = text / text.norm(dim=-1, keepdim=True)
        return text @ image.t(), text

    assert regions(clip, X[0], X[1], W, weights=(2,)) == []
