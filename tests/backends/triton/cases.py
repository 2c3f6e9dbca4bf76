"""What is compiled and run: attention as people write it. A few cases of this repository's own, and those of the shared folder
where it lies beside the repository."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

PATH = Path(__file__).resolve().parents[4] / "shared" / "cases" / "variants.py"


@dataclass(frozen=True)
class Own:
    """A case: the function, the numbers of query and key heads, widths of keys and values, and more tensors that it takes."""

    fn: Callable[..., Any]
    heads: int = 2
    kv_heads: int = 2
    d: int = 24
    dv: int = 24
    extra: Callable[[torch.Generator, int, int], dict[str, torch.Tensor]] = lambda g, n, m: {}

    def make(self, n: int, m: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        g = torch.Generator().manual_seed(0)
        made = {
            "q": torch.randn(1, self.heads, n, self.d, generator=g),
            "k": torch.randn(1, self.kv_heads, m, self.d, generator=g),
            "v": torch.randn(1, self.kv_heads, m, self.dv, generator=g),
            **self.extra(g, n, m),
        }
        return {name: t.to(dtype) if t.is_floating_point() else t for name, t in made.items()}


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    n, m = q.shape[-2], k.shape[-2]
    later = torch.arange(m)[None, :] > torch.arange(n)[:, None]
    return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(later, float("-inf")).softmax(-1) @ v


def finite_fill(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The first rows see no key at all: eager gives them the mean of all values."""
    n, m = q.shape[-2], k.shape[-2]
    later = torch.arange(m)[None, :] > torch.arange(n)[:, None] - 3
    s = q @ k.mT * q.shape[-1] ** -0.5
    return s.masked_fill(later, torch.finfo(s.dtype).min).softmax(-1) @ v


def grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


def kept(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """Some rows keep no key: NaN there and nowhere else."""
    return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~keep, float("-inf")).softmax(-1) @ v


def with_lse(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    s = q @ k.mT * q.shape[-1] ** -0.5
    return s.softmax(-1) @ v, s.logsumexp(-1)


def in_fp32(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Halves in, fp32 out: nothing in between may be rounded to a half."""
    wide = torch.promote_types(q.dtype, torch.float32)
    return (q.to(wide) @ k.to(wide).mT * q.shape[-1] ** -0.5).softmax(-1) @ v.to(wide)


def biased(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return (q @ k.mT * q.shape[-1] ** -0.5 + bias).softmax(-1) @ v


def windowed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The last quarter of the keys up to a row's own."""
    n = q.shape[-2]
    distance = torch.arange(n)[:, None] - torch.arange(k.shape[-2])[None, :]
    return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill((distance < 0) | (distance >= n // 4), float("-inf")).softmax(-1) @ v


def softcapped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (20.0 * torch.tanh(q @ k.mT * q.shape[-1] ** -0.5 / 20.0)).softmax(-1) @ v


def documents(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    same = ids[:, None, :, None] == ids[:, None, None, :]
    return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~same, float("-inf")).softmax(-1) @ v


def _keep(g: torch.Generator, n: int, m: int) -> dict[str, torch.Tensor]:
    keep = torch.rand(1, 1, n, m, generator=g) < 0.5
    keep[:, :, ::7] = False
    return {"keep": keep}


OWN: dict[str, Own] = {
    "dense": Own(dense),
    "odd widths": Own(dense, d=19, dv=33),
    "causal": Own(causal),
    "finite fill": Own(finite_fill),
    "grouped": Own(grouped, heads=4, kv_heads=2),
    "rows without keys": Own(kept, extra=_keep),
    "log-sum-exp too": Own(with_lse),
    "in fp32": Own(in_fp32),
    "biased": Own(biased, extra=lambda g, n, m: {"bias": torch.randn(2, n, m, generator=g)}),
    "windowed": Own(windowed),
    "softcapped": Own(softcapped),
    "documents": Own(documents, extra=lambda g, n, m: {"ids": torch.sort(torch.randint(0, 4, (1, n), generator=g))[0]}),
}
SQUARE = ("documents", "windowed", "documents_causal", "packed_qkv_views", "rope_prologue")  # as many keys as queries


def shared() -> dict[str, Any]:
    """The streaming cases of the shared folder, none where it is absent."""
    if not PATH.exists():
        return {}
    spec = importlib.util.spec_from_file_location("variants", PATH)
    assert spec is not None and spec.loader is not None
    module = sys.modules.setdefault("variants", importlib.util.module_from_spec(spec))
    spec.loader.exec_module(module)
    return {c.name: c for c in module.CASES if c.streams}
