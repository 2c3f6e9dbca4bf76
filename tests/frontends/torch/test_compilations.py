"""How often what is compiled: a new length, batch or number of heads compiles nothing new, and the report says what does."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import aicf
from aicf.report import GraphReport
from aicf.runtime import building
from aicf.runtime.building import Counts
from tests.frontends.torch.test_backend import Compiled, close

INF = float("-inf")


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    keep = torch.arange(k.shape[-2])[None, :] <= torch.arange(q.shape[-2])[:, None]
    return (q @ k.transpose(-2, -1) / 4.0).masked_fill(~keep, INF).softmax(-1) @ v


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel is at hand, in memory or on disk, that would hide a compilation."""
    monkeypatch.setenv("AICF_CACHE_DIR", "")
    monkeypatch.setattr(building, "_BUILT", {})


def made(b: int, h: int, n: int) -> list[Tensor]:
    g = torch.Generator().manual_seed(n)
    return [torch.randn(b, h, n, 16, generator=g) for _ in range(3)]


@pytest.mark.parametrize("dynamic", [None, True], ids=["found out", "said"])
@pytest.mark.parametrize("vary", ["length", "batch", "heads", "all"])
def test_nothing_is_compiled_for_a_new_size(vary: str, dynamic: bool | None, fresh: None) -> None:
    """Dynamo takes sizes for numbers at the first call, and for symbols from the second one on, when it is not told before."""
    torch._dynamo.reset()
    graphs: list[GraphReport] = []
    options = {"rest": "eager", "fuse": "always", "report": graphs.append, "threads": 1}
    run = torch.compile(causal, backend="aicf", dynamic=dynamic, options=options)
    sizes, before = range(21, 41), Counts.compiled
    done: list[tuple[int, int]] = []
    for n in sizes:
        b, h, length = (n if vary in (what, "all") else fixed for what, fixed in (("batch", 2), ("heads", 3), ("length", 24)))
        q, k, v = made(b % 5 + 2 if vary == "all" else b, h % 4 + 7 if vary == "all" else h, length)
        with torch.no_grad():
            torch.testing.assert_close(run(q, k, v), causal(q, k, v), rtol=1e-5, atol=1e-5)
        done.append((len(graphs), Counts.compiled - before))
    assert len(sizes) == 20
    assert {r.status for g in graphs for r in g.regions} == {"streamed"}
    after = 0 if dynamic else 2
    assert set(done[after:]) == {done[after]}, done
    assert done[-1] == (1, 1) if dynamic else done[-1][0] <= 3


def test_the_report_says_on_what_a_kernel_is_specialised() -> None:
    (region,) = aicf.explain(causal, *made(2, 3, 128)).regions
    text = str(aicf.explain(causal, *made(2, 3, 128)))
    assert region.specialised == "head dim 16, value width 16, f32; any length, batch and number of heads"
    assert f"kernel     for {region.specialised}" in text


def test_widths_that_are_no_last_dimension_are_fixed_and_lengths_are_not() -> None:
    """Heads are split off by a division of a size that weights among the arguments have, too."""

    def projected(x: Tensor, w: Tensor, out: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = (y.view(b, n, 3, c // 3).transpose(1, 2) for y in F.linear(x, w).split(c, -1))
        return F.linear((q @ k.mT * k.shape[-1] ** -0.5).softmax(-1).matmul(v).transpose(1, 2).reshape(b, n, c), out)

    compiled = Compiled(projected, dynamic=True)
    g = torch.Generator().manual_seed(0)
    w, out = torch.randn(72, 24, generator=g) / 5, torch.randn(24, 24, generator=g) / 5
    for n in (19, 33, 40, 7):
        x = torch.randn(2, n, 24, generator=g)
        close(compiled(x, w, out), projected(x, w, out))
    assert compiled.statuses == ["streamed"], compiled.reasons
