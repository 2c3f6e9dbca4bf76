# pyright: basic
"""The first block of README.md: a plain attention, compiled, compared and explained."""

import torch

import aicf


def attention(q, k, v):  # q [B, H, N, D], k and v [B, H, M, D]
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    keep = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return scores.masked_fill(~keep, float("-inf")).softmax(-1) @ v


def make_inputs():
    return tuple(torch.randn(2, 8, 512, 64) for _ in range(3))


q, k, v = make_inputs()
fast = torch.compile(attention, backend="aicf")
print(f"largest difference from eager: {(fast(q, k, v) - attention(q, k, v)).abs().max():.1e}")
print(aicf.explain(attention, q, k, v).brief())
