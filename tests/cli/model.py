"""A user's file, untyped as such files are, for the tests of the command line."""

# pyright: basic
from __future__ import annotations

import torch
from torch import nn

TEMPERATURE = 1.0


def attention(q, k, v, scale: float = 0.125, *, causal: bool = False):
    scores = q @ k.transpose(-2, -1) * scale
    if causal:
        ahead = torch.arange(k.shape[-2])[None, :] - torch.arange(q.shape[-2])[:, None]
        scores = scores.masked_fill(ahead > 0, float("-inf"))
    return scores.softmax(-1) @ v


def over_queries(q, k, v):
    return (q @ k.transpose(-2, -1)).softmax(-2) @ v


def no_attention(x):
    return torch.relu(x) + 1


def make_inputs():
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(1, 2, 64, 16, generator=generator) for _ in range(3))


def make_named():
    q, k, v = make_inputs()
    return {"q": q, "k": k, "v": v, "causal": True}


def make_nothing():
    pass


def make_trouble():
    raise RuntimeError("no data")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(16, 16)

    def forward(self, q, k, v):
        return attention(self.project(q), k, v)


class Sized(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
