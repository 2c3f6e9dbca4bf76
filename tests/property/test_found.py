"""Kinds of programs that random ones have found to be wrong, written out and run at every level."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from tests.property.grammar import DTYPES, Input, Maker, Program
from tests.property.levels import check

SIZES = {"b": 2, "h": 4, "hk": 2, "n": 17, "m": 41, "d": 8, "dv": 8}
SCHEDULES: dict[str, dict[str, Any]] = {
    "keys in tiles": {"tile_m": 4, "tile_n": 8, "rows": 2, "order": "q_major", "kv_split": 1},
    "keys split": {"tile_m": 4, "tile_n": 16, "rows": 2, "order": "q_major", "kv_split": 3},
    "keys outside": {"tile_m": 6, "tile_n": 8, "rows": 3, "order": "kv_major", "kv_split": 1},
}


def normal(dims: str, dtype: str) -> Input:
    """A tensor of random numbers, `name dims`."""
    name, *axes = dims.split()
    shape = [SIZES.get(x) or int(x) for x in axes]
    return Input(name, tuple(axes), lambda g: torch.randn(shape, generator=g).to(DTYPES[dtype]))


def given(name: str, dims: str, make: Maker) -> Input:
    """A tensor that `make` makes."""
    return Input(name, tuple(dims.split()), make)


def written(
    lines: str, *more: Input, dtype: str = "f32", schedule: Mapping[str, Any] | None = None, symbolic: bool = False,
    strict: bool = False, threads: int = 1, heads: str = "h",
) -> Program:  # fmt: skip
    """A program of q, k, v and `more`: `lines` between the scores' operands and what is returned."""
    inputs = [normal("q b h n d", dtype), normal(f"k b {heads} m d", dtype), normal(f"v b {heads} m dv", dtype), *more]
    text = f"def attention({', '.join(x.name for x in inputs)}):\n"
    start = "b, h, n, d = q.shape\nm = k.shape[2]\ni, j = torch.arange(n)[:, None], torch.arange(m)[None, :]\n"
    text += "".join(f"    {line.strip()}\n" for line in (start + lines).splitlines() if line.strip())
    return Program(7, text, dtype, SIZES, inputs, schedule or SCHEDULES["keys in tiles"], threads, symbolic, {}, {}, strict)


def clean(p: Program) -> None:
    """It streams, and is right at every level."""
    out = check(p)
    assert out.failed is None, f"{out.failed}\n{p}"
    assert out.statuses == ["streamed"] and "cpu" in out.ran, f"{out.statuses} {out.reasons}\n{p}"


@pytest.mark.parametrize("strict", [False, True], ids=["", "strict"])
@pytest.mark.parametrize(
    "change",
    [
        "s = s.masked_fill(~(j < 0), -INF) * (j < 3) + torch.tanh(s)",  # -inf times 0 is NaN
        "s = s.masked_fill(j > 5, -INF) * (i != 3)",
        "s = s.masked_fill(~(j < 0), INF) + s",
        "s = s / (j < 3)",  # by 0
        "s = (s.masked_fill(j >= 0, -INF) + s).tanh()",
    ],
)
def test_infinite_scores_that_are_calculated_with(change: str, strict: bool) -> None:
    clean(written(f"s = q @ k.mT\n{change}\nreturn torch.nan_to_num(torch.softmax(s, -1), nan=0.0) @ v", strict=strict))


@pytest.mark.parametrize("bias", ["b h 1 m", "b 1 1 m", "b h n m"])
def test_an_added_tensor_of_symbolic_sizes(bias: str) -> None:
    """What tiles are skipped by is read at sizes that are none of the region's own."""
    repeat = "k, v = (x[:, :, None].expand(b, 2, 2, m, 8).reshape(b, h, m, 8) for x in (k, v))"
    shape = [SIZES.get(x) or int(x) for x in bias.split()]
    more = given(
        "bias", bias, lambda g: torch.where(torch.rand(shape, generator=g) < 0.5, torch.randn(shape, generator=g), -torch.inf)
    )
    lines = f"{repeat}\ns = (q.reshape(b * h, n, d) @ k.reshape(b * h, m, d).mT).view(b, h, n, m) + bias\n"
    clean(written(f"{lines}return torch.softmax(s, -1) @ v", more, symbolic=True, heads="hk"))


WEIGHTS = ["torch.sigmoid(s)", "torch.sigmoid(s) * torch.softmax(s, -1)", "torch.relu(s)", "torch.exp(s)", "F.softplus(s)"]
NORMALISED = {
    "divided": "p = p / p.sum(-1, keepdim=True)",
    "epsilon": "p = p / (p.sum(-1, keepdim=True) + 1e-6)",
    "clamped": "p = p / p.sum(-1, keepdim=True).clamp(min=1e-6)",
    "inverse": "p = p * (1.0 / p.sum(-1, keepdim=True))",
    "two masks": "p = p / p.sum(-1, keepdim=True)\np = p * ((j % 3 != 0) & (j < i + 3))\np = p / p.sum(-1, keepdim=True)",
}


@pytest.mark.parametrize("normalised", NORMALISED)
@pytest.mark.parametrize("weights", WEIGHTS)
def test_weights_masked_and_renormalised_in_rows_without_keys(weights: str, normalised: str) -> None:
    """0 / 0 is NaN where it is in the source, and a number where it is one there, whatever the type, order and mask."""

    def keep(g: torch.Generator) -> torch.Tensor:
        kept = torch.rand(2, 1, 17, 41, generator=g) < 0.6
        kept[:, :, ::4] = False
        kept[:, :, 2, 5:] = False
        kept[:, :, :, 16:24] = False  # a tile
        return kept

    before = ["", "s = s.masked_fill(~keep & (i % 2 == 0), -INF)", "s = s.masked_fill(~keep, -1e4)"]
    masked = ["p = p * keep", "p = p.masked_fill(~keep, 0.0)", "p = p * (j < i - 4)"]
    at = WEIGHTS.index(weights) + 5 * list(NORMALISED).index(normalised)
    dtype, schedule = list(DTYPES)[at % 3], list(SCHEDULES.values())[(at // 3) % 3]
    lines = f"s = q @ k.mT / 3\n{before[at % 3]}\np = {weights}\n{masked[(at // 5) % 3]}\n{NORMALISED[normalised]}\nreturn p @ v"
    p = written(lines, given("keep", "b 1 n m", keep), dtype=dtype, schedule=schedule, strict=at % 4 == 3)
    out = check(p, ("cpu",))
    assert out.failed is None, f"{out.failed}\n{p}"


@pytest.mark.parametrize("strict", [False, True], ids=["", "strict"])
@pytest.mark.parametrize("shift", [-85.0, -88.0, -89.0, -95.0, -104.0])
def test_sums_of_weights_that_vanish(shift: float, strict: bool) -> None:
    """The last number above 0 of a sigmoid or an exponential is eager's: where all weights of a row are 0, so are they here."""
    for weights in ("torch.sigmoid(s)", "torch.exp(s)", "torch.sigmoid(s) * torch.sigmoid(-s)"):
        lines = f"s = q @ k.mT * 0.2 + ({shift})\np = {weights} * (j < i - 4)\np = p / p.sum(-1, keepdim=True)\n"
        out = check(written(f"{lines}return p @ v", strict=strict), ("cpu",))
        assert out.failed is None or "differ in being" not in out.failed[1], f"{weights}: {out.failed}"
