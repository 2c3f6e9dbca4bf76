"""A plain PyTorch attention, compiled, compared, and explained.

Run it: ./dev python examples/03_torch_compile.py

The function below builds a score matrix of heads x N x N and masks the future. The compiled one has the same meaning without it.
"""

from __future__ import annotations

import torch

import aicf


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    ahead = torch.arange(k.shape[-2])[None, :] - torch.arange(q.shape[-2])[:, None]
    return scores.masked_fill(ahead > 0, float("-inf")).softmax(-1) @ v


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 8, 1024, 64, generator=generator) for _ in range(3))

    compiled = torch.compile(attention, backend="aicf")
    with torch.inference_mode():
        mine = compiled(q, k, v)
        eager = attention(q, k, v)
        exact = attention(q.double(), k.double(), v.double())

    print("largest error against float64")
    print(f"  eager     {(eager.double() - exact).abs().max().item():.2e}")
    print(f"  compiled  {(mine.double() - exact).abs().max().item():.2e}")

    report = aicf.explain(attention, q, k, v)
    print()
    print(report)
    print()
    print(report.dump("kernel"))


if __name__ == "__main__":
    main()
