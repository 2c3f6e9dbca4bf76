"""Tensors that are made of others: sharded ones stream on each rank, whatever is sharded; others are as PyTorch has them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

import aicf
from aicf.report import GraphReport

distributed = pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="this PyTorch has no gloo")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT * 0.2).softmax(-1) @ v


def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    keep = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    return (q.sin() @ k.mT * 0.2).masked_fill(~keep, float("-inf")).softmax(-1) @ v


class TensorParallel(nn.Module):
    """Heads on several ranks: projections by columns, the last one by rows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v, self.o = (nn.Linear(32, 32) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (linear(x).unflatten(-1, (-1, 8)).transpose(1, 2) for linear in (self.q, self.k, self.v))
        return self.o(attention(q, k, v).transpose(1, 2).flatten(2))


def compiled(fn: Any, reports: list[GraphReport]) -> Any:
    return torch.compile(fn, backend="aicf", options={"fuse": "always", "rest": "eager", "report": reports.append})


def inputs() -> list[Tensor]:
    g = torch.Generator().manual_seed(1)
    return [torch.randn(2, 4, 24, 16, generator=g) for _ in range(3)]


def checked(rank: int, ranks: int, path: str) -> None:
    """What every rank does: several placements, then a tensor-parallel module with local or with distributed activations."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=ranks)
    try:
        mesh = init_device_mesh("cpu", (ranks,))
        for placement in (Shard(1), Shard(2)) if ranks > 1 else (Shard(0), Shard(1), Replicate()):
            torch._dynamo.reset()
            reports: list[GraphReport] = []
            whole = inputs()
            with torch.no_grad():
                parts = [distribute_tensor(x, mesh, [placement]) for x in whole]
                got: Any = compiled(attention, reports)(*parts)
                torch.testing.assert_close(got.full_tensor(), attention(*whole), rtol=1e-5, atol=1e-5)
            assert [r.status for g in reports for r in g.regions] == ["streamed"], placement
        for local in (ranks > 1,):
            torch._dynamo.reset()
            reports = []
            plain, model = TensorParallel(), TensorParallel()
            columns = {name: ColwiseParallel(use_local_output=local) for name in "qkv"}
            parallelize_module(model, mesh, {**columns, "o": RowwiseParallel()})
            x = torch.randn(2, 24, 32, generator=torch.Generator().manual_seed(2))
            fast = compiled(model, reports)
            with torch.no_grad():
                torch.testing.assert_close(fast(x), plain(x), rtol=1e-5, atol=1e-5)
            assert [r.status for g in reports for r in g.regions] == ["streamed"]
            reports.clear()
            fast(x).square().sum().backward()
            plain(x).square().sum().backward()
            torch.testing.assert_close(model.q.weight.grad.full_tensor(), plain.q.weight.grad, rtol=1e-4, atol=1e-4)  # type: ignore[union-attr]
            (problem,) = [g.problem for g in reports]
            assert "a gradient is asked of it" in problem and "DTensor" in problem
    finally:
        dist.destroy_process_group()


@distributed
def test_sharded_tensors_of_one_rank(tmp_path: Path) -> None:
    checked(0, 1, str(tmp_path / "store"))


@distributed
def test_sharded_tensors_of_two_ranks() -> None:
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(checked, (2, f"{folder}/store"), nprocs=2)  # type: ignore[attr-defined]


@distributed
def test_sharded_tensors_are_explained_and_required(tmp_path: Path) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        parts = [distribute_tensor(x, mesh, [Shard(1)]) for x in inputs()]
        with torch.no_grad():
            (r,) = aicf.explain(attention, *parts, options={"fuse": "always"}).regions
            assert r.status == "streamed" and r.source is not None and r.source.file == __file__
            got: Any = aicf.compile(attention, fuse="always", rest="eager", require="streamed")(*parts)
        torch.testing.assert_close(got.to_local(), attention(*inputs()), rtol=1e-5, atol=1e-5)
        with pytest.raises(aicf.NotStreamed, match="DTensor"):
            aicf.compile(attention, require="streamed")(*[x.requires_grad_() for x in parts])
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("fn", [attention, masked])
def test_tensors_made_of_two(fn: Any) -> None:
    reports: list[GraphReport] = []
    pairs = [TwoTensor(x, x + 1) for x in inputs()]
    with torch.no_grad():
        got, expected = compiled(fn, reports)(*pairs), fn(*pairs)
    assert type(got) is TwoTensor
    torch.testing.assert_close(got.a, expected.a, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got.b, expected.b, rtol=1e-5, atol=1e-5)
    assert [r.status for g in reports for r in g.regions] == ["streamed", "streamed"]
