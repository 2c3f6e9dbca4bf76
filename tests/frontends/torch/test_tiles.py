"""Tiles that a mask hides are skipped: counted by the kernel's own conditions, against the weights that eager gives."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import aicf
from aicf.driver import RegionResult
from aicf.runtime.executable import ArrayRef, Executable
from aicf.scalar import numpy_dtype
from tests.contract import assert_contract

from .test_variants import load

N = 1024
SPARSE = [pytest.param(c, id=c.name) for c in load() if c.sparse]


def array(ref: ArrayRef, dtype: Any) -> np.ndarray:
    """A copy of the array at `ref`."""
    size = np.dtype(dtype).itemsize
    reach = 1 + sum((n - 1) * s for n, s in zip(ref.shape, ref.strides, strict=True))
    flat = np.frombuffer(ctypes.string_at(ref.address, reach * size), dtype)
    return np.lib.stride_tricks.as_strided(flat, ref.shape, [s * size for s in ref.strides]).copy()


class Listening:
    """A compiled function of one attention whose calls give (tiles as the kernel counts them, their lengths, the result)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fn: Callable[..., Any], **options: Any) -> None:
        self.calls: list[tuple[Executable, dict[str, int], dict[str, np.ndarray]]] = []
        call = Executable.call

        def listening(executable: Executable, addresses: Any, strides: Any, sizes: Any, arrays: Any) -> None:
            given = dict(zip(executable.input_names, arrays()[0], strict=True))
            dtypes: dict[str, Any] = {name: executable.kernel.tensor(name).dtype for name in given}
            tensors = {name: array(ref, numpy_dtype(dtypes[name])) for name, ref in given.items() if dtypes[name] != "bf16"}
            self.calls.append((executable, dict(zip(executable.symbols, sizes, strict=True)), tensors))
            call(executable, addresses, strides, sizes, arrays)

        monkeypatch.setattr(Executable, "call", listening)
        self.fn = aicf.compile(fn, fuse="always", **options)

    def __call__(self, inputs: Mapping[str, Tensor]) -> tuple[dict[str, int], tuple[int, int], Any]:
        self.calls.clear()
        out = self.fn(**inputs)
        ((executable, sizes, tensors),) = self.calls
        kernel = executable.kernel
        counts = RegionResult("streamed", "", None, "", executable=executable).count_tiles(sizes, tensors)
        return counts, (kernel.axis("i").tile, kernel.axis("j").tile), out


def counted(monkeypatch: pytest.MonkeyPatch, fn: Callable[..., Any], inputs: Mapping[str, Tensor], **options: Any) -> Any:
    """One call of a function compiled for it."""
    return Listening(monkeypatch, fn, **options)(inputs)


def empty_tiles(weights: Tensor, lengths: tuple[int, int]) -> tuple[int, int]:
    """(tiles without a weight other than 0, all tiles) of weights [B, H, N, M]."""
    tile_m, tile_n = lengths
    kept = (weights != 0).numpy()
    for axis, length in ((2, tile_m), (3, tile_n)):
        kept = np.logical_or.reduceat(kept, np.arange(0, kept.shape[axis], length), axis=axis)
    return int((~kept).sum()), kept.size


def weights_of(case: Any, inputs: Mapping[str, Tensor]) -> Tensor:
    """What a row takes of each key: the result for values that are 1 at one key and 0 elsewhere, as many keys at a time as
    values are wide."""
    batch, heads, keys, width = inputs["v"].shape
    parts: list[Tensor] = []
    for ones in torch.eye(keys).split(width, -1):
        out: Any = case.fn(**{**inputs, "v": ones.expand(batch, heads, keys, width)})
        if out.ndim == 3:  # heads are merged
            out = out.unflatten(-1, (-1, width)).transpose(1, 2)
        parts.append(out)
    return torch.cat(parts, -1)


@pytest.mark.parametrize("case", SPARSE)
def test_what_a_variant_hides(monkeypatch: pytest.MonkeyPatch, case: Any) -> None:
    """At least 90 % of the tiles that an exact look at the mask finds empty."""
    inputs = case.make(b=1, h=2, n=N, d=64)
    counts, lengths, _ = counted(monkeypatch, case.fn, inputs)
    empty, total = empty_tiles(weights_of(case, inputs), lengths)
    assert sum(counts.values()) == total
    assert empty >= counts["empty"] >= 0.9 * empty > 0


def test_every_part_of_cut_keys_counts_its_own_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (torch.randn(1, 2, N, 16) for _ in range(3))
    inputs = {"q": q, "k": k, "v": v}

    def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    whole = counted(monkeypatch, causal, inputs, schedule="tile_m=48,tile_n=32")[0]
    monkeypatch.undo()
    assert counted(monkeypatch, causal, inputs, schedule="tile_m=48,tile_n=32,kv_split=3")[0] == whole


# ------------------------------------------------------------------------------------------------ dense masks

n = torch.arange(300)
MASKS = {
    "causal": n[:, None] >= n,
    "blocks": n[:, None] // 70 == n // 70,
    "one": (n[:, None] == 3) & (n == 290),
    "random": torch.rand(300, 300, generator=torch.Generator().manual_seed(0)) < 0.001,
}


def filled(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return (q @ k.mT).masked_fill(~mask, float("-inf")).softmax(-1).nan_to_num(0) @ v


def added(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return (q @ k.mT + mask).softmax(-1).nan_to_num(0) @ v


def multiplied(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    p = (q @ k.mT).softmax(-1) * mask
    return p / (p.sum(-1, keepdim=True) + 1e-9) @ v


def attended(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0)


@pytest.mark.parametrize("order", ["q_major", "kv_major"])
@pytest.mark.parametrize(("fn", "heads"), [(filled, False), (filled, True), (added, True), (attended, False)])
def test_dense_masks(monkeypatch: pytest.MonkeyPatch, fn: Callable[..., Tensor], heads: bool, order: str) -> None:
    """A mask that is a tensor with a value for every score: exactly the tiles that hold nothing are skipped."""
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, 3, 300, 16, generator=generator) for _ in range(3))
    compiled = Listening(monkeypatch, fn, schedule=f"tile_m=48,tile_n=32,order={order}")
    for mask in MASKS.values():
        if heads:
            mask = torch.stack([mask, mask.T, ~mask]).expand(2, 3, 300, 300)
        kept = mask.expand(2, 3, 300, 300)
        if fn is added:
            mask = torch.zeros(mask.shape).masked_fill(~mask, float("-inf"))
        inputs = {"q": q, "k": k, "v": v, "mask": mask}
        counts, lengths, out = compiled(inputs)
        empty, total = empty_tiles(kept, lengths)
        assert (counts["empty"], sum(counts.values())) == (empty, total)
        exact = {name: x.double() if x.is_floating_point() else x for name, x in inputs.items()}
        assert_contract(out.numpy(), fn(**inputs).numpy(), fn(**exact).numpy(), "f32")


def test_a_dense_mask_after_the_softmax_skips_nothing_that_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, 2, 300, 16, generator=generator) for _ in range(3))
    inputs = {"q": q, "k": k, "v": v, "mask": MASKS["causal"]}
    _, _, out = counted(monkeypatch, multiplied, inputs, schedule="tile_m=48,tile_n=32")
    exact = {name: x.double() if x.is_floating_point() else x for name, x in inputs.items()}
    assert_contract(out.numpy(), multiplied(**inputs).numpy(), multiplied(**exact).numpy(), "f32")


@pytest.mark.parametrize("fill", [float("nan"), float("inf"), -1e9, torch.finfo(torch.float32).min])
def test_other_values_of_a_dense_mask_are_not_skipped(monkeypatch: pytest.MonkeyPatch, fill: float) -> None:
    """Only -inf hides a tile; NaN spreads to its row, and a row of nothing but finite fills is an average."""
    generator = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(1, 2, 300, 16, generator=generator) for _ in range(3))
    mask = torch.zeros(300, 300).masked_fill(~MASKS["blocks"], fill)
    mask[100:250] = fill
    inputs = {"q": q, "k": k, "v": v, "mask": mask}

    def plain(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return (q @ k.mT + mask).softmax(-1) @ v

    _, _, out = counted(monkeypatch, plain, inputs, schedule="tile_m=48,tile_n=32")
    exact = {name: x.double() for name, x in inputs.items()}
    assert_contract(out.numpy(), plain(**inputs).numpy(), plain(**exact).numpy(), "f32")


def test_a_mask_of_positions_is_never_looked_at_densely() -> None:
    """No rows x keys work for what follows from positions and per-token tensors, however it is written."""

    def odd(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor) -> Tensor:
        i = torch.arange(q.shape[2])
        keep = ((i[:, None] * i) % 7 == 0) | (a[:, None] * b == 4)
        return (q @ k.mT).masked_fill(~keep, float("-inf")).softmax(-1) @ v

    q, k, v = (torch.randn(1, 2, 64, 16) for _ in range(3))
    ids = torch.arange(64) // 9
    text = aicf.explain(odd, q, k, v, ids, ids, options={"fuse": "always"}).dump("kernel")
    assert all(" over i, j " not in line for line in text.splitlines())


@pytest.mark.parametrize("fill", [float("-inf"), torch.finfo(torch.float32).min])
def test_key_major_order_skips_under_infinite_fills_alone(monkeypatch: pytest.MonkeyPatch, fill: float) -> None:
    """Under a finite fill what is skipped would have to be looked at again; the cost model knows."""

    def windowed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        i = torch.arange(N)
        return (q @ k.mT).masked_fill((i[:, None] - i).abs() > 40, fill).softmax(-1) @ v

    q, k, v = (torch.randn(1, 2, N, 16) for _ in range(3))
    inputs = {"q": q, "k": k, "v": v}
    counts, _, _ = counted(monkeypatch, windowed, inputs, schedule="order=kv_major")
    assert (counts["empty"] > 0) == (fill == float("-inf"))
    chosen = aicf.explain(windowed, q, k, v).regions[0].schedule
    assert chosen is not None and (fill == float("-inf") or chosen.order == "q_major")


# ------------------------------------------------------------------------------------------------ in explanations


def tiles_of(fn: Callable[..., Any], *args: Tensor, **options: Any) -> Any:
    report = aicf.explain(fn, *args, options={"fuse": "always", "schedule": "tile_m=48,tile_n=32", **options})
    (region,) = report.regions
    return region.tiles, str(report)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_an_explanation_counts_with_the_tensors_of_its_call(dtype: torch.dtype) -> None:
    q, k, v = (torch.randn(2, 3, 300, 16).to(dtype) for _ in range(3))
    mask = torch.zeros(300, 300).masked_fill(~MASKS["causal"], float("-inf")).to(dtype)
    tiles, said = tiles_of(added, q, k, v, mask)
    empty, total = empty_tiles(MASKS["causal"].expand(2, 3, 300, 300), (48, 32))
    assert (tiles["empty"], sum(tiles.values())) == (empty, total)
    assert "with the tensors of this call" in said


def test_an_explanation_computes_what_a_mask_is_made_of() -> None:
    def lengths(q: Tensor, k: Tensor, v: Tensor, n: Tensor) -> Tensor:
        keep = torch.arange(k.shape[2]) < (n * 2 + 1)[:, None, None, None]
        return (q @ k.mT).masked_fill(~keep, float("-inf")).softmax(-1) @ v

    q, k, v = (torch.randn(2, 3, 300, 16) for _ in range(3))
    tiles, _ = tiles_of(lengths, q, k, v, torch.tensor([20, 100]))
    rows, keys = 7, 10  # tiles along each axis
    assert tiles["empty"] == 3 * rows * ((keys - 2) + (keys - 7))  # 41 and 201 keys of 32 a tile


def test_an_explanation_changes_nothing() -> None:
    """A mask of random numbers, and one that is changed in place: nothing is counted twice, drawn twice or changed twice."""

    def changed(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        mask.logical_not_()
        return (q @ k.mT).masked_fill(mask & (torch.rand(300, 300) < 0.5), float("-inf")).softmax(-1) @ v

    q, k, v = (torch.randn(1, 3, 300, 16) for _ in range(3))
    mask = MASKS["blocks"].clone()
    torch.manual_seed(3)
    tiles_of(changed, q, k, v, mask)
    after = torch.rand(1)
    torch.manual_seed(3)
    changed(q, k, v, MASKS["blocks"].clone())
    assert torch.equal(mask, ~MASKS["blocks"]) and torch.equal(after, torch.rand(1))


# ------------------------------------------------------------------------------------------------ where rows end


@pytest.mark.parametrize(
    "schedule", [None, "tile_m=48,tile_n=32,rows=6", "tile_m=50,tile_n=32,rows=3", "tile_m=48,tile_n=16,kv_split=3"]
)
@pytest.mark.parametrize("places", ["lengths", "positions", "of one's own"])
def test_rows_whose_keys_end_where_a_tensor_says(monkeypatch: pytest.MonkeyPatch, places: str, schedule: str | None) -> None:
    """The extremes of such a tensor are those of whole tiles: a block of rows inside of a tile ends where the tile does."""

    def ending(q: Tensor, k: Tensor, v: Tensor, ends: Tensor) -> Tensor:
        return (q @ k.mT).masked_fill(torch.arange(k.shape[2]) > ends[..., None], float("-inf")).softmax(-1) @ v

    generator = torch.Generator().manual_seed(4)
    q, k, v = (torch.randn(2, 3, 300, 16, generator=generator) for _ in range(3))
    drawn = torch.randint(0, 300, (2, 1, 300), generator=generator)
    ends = {"lengths": drawn.sort().values, "positions": torch.arange(300) + 3, "of one's own": drawn}[places]
    inputs = {"q": q, "k": k, "v": v, "ends": ends}
    counts, lengths, out = counted(monkeypatch, ending, inputs, schedule=schedule)
    empty, total = empty_tiles((torch.arange(300) <= ends[..., None]).expand(2, 3, 300, 300), lengths)
    assert (counts["empty"], sum(counts.values())) == (empty, total)
    exact = {name: x.double() if x.is_floating_point() else x for name, x in inputs.items()}
    assert_contract(out.numpy(), ending(**inputs).numpy(), ending(**exact).numpy(), "f32")
