"""Kernels in Triton's interpreter. Not collected by name: `test_interpreted.py` runs this file in a process with
TRITON_INTERPRET=1, which has to be set before Triton is imported. To run a part by hand:

    TRITON_INTERPRET=1 python -m pytest tests/backends/triton/interpreted.py -k functions

AICF_ALL_KERNELS=1 adds every case of the shared folder in every type (some ten minutes).
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch

from aicf.kernel import Axis, Kernel, Loop, Parallel, StoreTile, TensorParam, run_kernel
from aicf.kernel.placement import map_to_blocks
from aicf.report import GraphReport
from aicf.scalar import FUNCTIONS, DType, Expr, call, cast, evaluate, index, load, size
from tests.backends.llvm.running import execute as on_cpu
from tests.contract import assert_contract
from tests.kernel import programs
from tests.kernel.handmade import attention

from .cases import OWN, SQUARE, shared
from .running import execute

EVERYTHING = os.environ.get("AICF_ALL_KERNELS") == "1"
TYPES: dict[DType, torch.dtype] = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
TILES = "tile_m=16,tile_n=16,order=q_major"

# ------------------------------------------------------------------------------------------------ from PyTorch


def _tuple(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)


def compiled(fn: Any, tensors: dict[str, torch.Tensor], dtype: DType, schedule: str = TILES) -> None:
    """`fn` under torch.compile for a GPU, its region in the interpreter, by the numeric contract."""
    reports: list[GraphReport] = []
    torch._dynamo.reset()
    options: dict[str, Any] = {"fuse": "always", "target": "h100", "schedule": schedule, "rest": "eager"}
    options["report"] = reports.append
    with torch.no_grad():
        got = torch.compile(fn, backend="aicf", options=options)(**tensors)
        unfused = fn(**tensors)
        exact = fn(**{k: t.double() if t.is_floating_point() else t for k, t in tensors.items()})
    regions = [r for g in reports for r in g.regions]
    assert regions and all(r.status == "streamed" for r in regions), [(r.status, r.reason) for r in regions]
    for k, (a, b, c) in enumerate(zip(_tuple(got), _tuple(unfused), _tuple(exact), strict=True)):
        kinds: dict[torch.dtype, DType] = {t: d for d, t in TYPES.items()}
        assert_contract(a, b, c, kinds[a.dtype], f"output {k} in {dtype}")


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", OWN)
def test_own_cases(name: str, dtype: DType) -> None:
    if not EVERYTHING and dtype != "f32" and name not in ("causal", "finite fill", "in fp32"):
        pytest.skip("a sample runs always; AICF_ALL_KERNELS=1 runs all")
    case = OWN[name]
    m = 37 if name in SQUARE else 53
    compiled(case.fn, case.make(37, m, TYPES[dtype]), dtype)


@pytest.mark.parametrize("schedule", [f"{TILES},kv_split=3", "tile_m=16,tile_n=16,order=kv_major"])
@pytest.mark.parametrize("name", ["causal", "finite fill", "log-sum-exp too"])
def test_other_schedules(name: str, schedule: str) -> None:
    compiled(OWN[name].fn, OWN[name].make(20, 100, torch.float32), "f32", schedule)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", ["grouped", "log-sum-exp too", "rows without keys"])
def test_decode(name: str, dtype: DType) -> None:
    """One query against many keys, cut into parts that are combined."""
    compiled(OWN[name].fn, OWN[name].make(1, 100, TYPES[dtype]), dtype, f"{TILES},kv_split=4")


@pytest.mark.parametrize("name", shared())
@pytest.mark.parametrize("dtype", TYPES)
def test_shared_cases(name: str, dtype: DType) -> None:
    quick = ("alibi_causal", "t5_relative_bias", "retention_parallel", "entropy_too", "attention_sink", "sink_and_window")
    if not EVERYTHING and (name not in quick or dtype == "f16"):
        pytest.skip("a sample runs always; AICF_ALL_KERNELS=1 runs all")
    case = shared()[name]
    heads = 4 if case.kv_heads else 2
    m = 40 if name in SQUARE else 56
    tensors = case.make(b=1, h=heads, n=40, m=m, d=64 if name == "einsum_sequence_first" else 24, dtype=TYPES[dtype])
    compiled(case.fn, tensors, dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_numbers_of_an_item(dtype: DType) -> None:
    """Numbers that a whole block of scores shares, compared, raised to powers, joined with what differs from score to score."""

    def decaying(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rate: torch.Tensor) -> torch.Tensor:
        n = q.shape[-2]
        distance = torch.arange(n)[:, None] - torch.arange(n)[None, :]
        kept = (distance >= 0) | (rate > 0.95)[:, None, None]
        return (q @ k.mT * torch.where(kept, rate[:, None, None] ** distance.abs(), 0.0)) @ v

    tensors = OWN["dense"].make(37, 37, TYPES[dtype])
    compiled(decaying, {**tensors, "rate": torch.tensor([0.9, 0.97]).to(TYPES[dtype])}, dtype)


# ------------------------------------------------------------------------------------------------ written by hand


def inputs(b: int, h: int, n: int, m: int, d: int, dv: int, hk: int | None = None) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    shapes = {"Q": (b, h, n, d), "K": (b, hk or h, m, d), "V": (b, hk or h, m, dv)}
    return {name: rng.standard_normal(s).astype(np.float32) for name, s in shapes.items()}


def half(s: Any) -> Any:
    return s * s.dtype.type(0.5)


def agree(kernel: Kernel, given: dict[str, Any], sizes: dict[str, int], *, wide: bool | None = None) -> Any:
    """The Kernel IR interpreter, the CPU backend and Triton on one kernel; the result of the last."""
    expected = {**given, "O": np.zeros((*given["Q"].shape[:-1], given["V"].shape[-1]), np.float32)}
    run_kernel(kernel, expected, sizes)
    native = on_cpu(kernel, given, sizes)["O"]
    got = execute(map_to_blocks(kernel, warps=4, stages=2), given, sizes, wide=wide)["O"]
    np.testing.assert_allclose(got, expected["O"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got, native, rtol=1e-4, atol=1e-5)
    return got


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
def test_attention(is_causal: bool, wide: bool) -> None:
    given = inputs(1, 2, 41, 50, 8, 12)
    kernel = attention(d=8, dv=12, causal=is_causal, tile_m=20, tile_n=12)  # tiles that have to be padded
    got = agree(kernel, given, {"B": 1, "H": 2, "N": 41, "M": 50}, wide=wide)
    mask = np.arange(50)[None, :] <= np.arange(41)[:, None] if is_causal else np.True_
    programs.assert_accurate(got, given["Q"], given["K"], given["V"], lambda s: np.where(mask, s * s.dtype.type(0.125), -np.inf))


def test_strides_and_groups() -> None:
    given = inputs(1, 4, 20, 30, 8, 8, hk=2)
    given["K"] = np.ascontiguousarray(given["K"].transpose(0, 1, 3, 2)).transpose(0, 1, 3, 2)
    given["V"] = np.ascontiguousarray(given["V"].transpose(2, 0, 1, 3)).transpose(1, 2, 0, 3)
    kernel = attention(d=8, dv=8, group=2, tile_m=16, tile_n=16, unit=None)
    got = agree(kernel, given, {"B": 1, "H": 4, "N": 20, "M": 30})
    q, k, v = given.values()
    programs.assert_accurate(got, q, k.repeat(2, 1), v.repeat(2, 1), lambda s: s * s.dtype.type(0.125))


def test_bias_and_padding_mask() -> None:
    rng = np.random.default_rng(5)
    given = inputs(2, 3, 25, 35, 8, 12)
    extra = {"bias": rng.standard_normal((3, 25, 35)).astype(np.float32), "keep": rng.random((2, 35)) < 0.7}
    extra["keep"][0] = False  # a batch without any key gives NaN, and nothing else does
    got = agree(programs.bias(), {**given, **extra}, {"B": 2, "H": 3, "N": 25, "M": 35})
    keep = extra["keep"][:, None, None, :]
    programs.assert_accurate(got, given["Q"], given["K"], given["V"], lambda s: np.where(keep, half(s) + extra["bias"], -np.inf))


@pytest.mark.parametrize("make", [programs.kv_major, programs.split_kv])
def test_other_orders(make: Any) -> None:
    given = inputs(1, 2, 25, 40, 8, 12)
    chunk = {"chunk": 1} if make is programs.split_kv else {}
    got = agree(make(), given, {"B": 1, "H": 2, "N": 25, "M": 40, **chunk})
    programs.assert_accurate(got, given["Q"], given["K"], given["V"], half)


def test_skipped_tiles_are_done_again_where_they_count() -> None:
    given = inputs(1, 2, 41, 41, 8, 12)
    got = agree(programs.finite_fill(), given, {"B": 1, "H": 2, "N": 41, "M": 41})
    keep = np.arange(41)[None, :] <= np.arange(41)[:, None] - 7
    programs.assert_accurate(got, given["Q"], given["K"], given["V"], lambda s: np.where(keep, half(s), s.dtype.type(-1e4)))


def test_summaries() -> None:
    given = inputs(1, 2, 50, 50, 8, 12)
    ids = np.sort(np.random.default_rng(7).integers(0, 4, (1, 50)), axis=1)
    got = agree(programs.documents(), {**given, "qdoc": ids, "kdoc": ids}, {"B": 1, "H": 2, "N": 50, "M": 50})
    same = (ids[:, :, None] == ids[:, None, :])[:, None]
    programs.assert_accurate(got, given["Q"], given["K"], given["V"], lambda s: np.where(same, half(s), -np.inf))


def test_dense_masks() -> None:
    given = inputs(2, 2, 50, 50, 8, 12)
    keep = programs.kept_pairs(50, 50)
    got = agree(programs.dense_mask(), {**given, "keep": keep}, {"B": 2, "H": 2, "N": 50, "M": 50})
    score = lambda s: np.where(keep[:, None], half(s), -np.inf)  # noqa: E731
    programs.assert_accurate(got, given["Q"], given["K"], given["V"], score)


# ------------------------------------------------------------------------------------------------ functions

N, I = index("N"), index("i")
NUMBERS = np.array(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-20, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 88.0, -87.0, 1e10, -1e10, 3e38, -3e38],
    np.float32,
)
LINES = (np.linspace(-80, 80, 601), np.geomspace(1e-30, 1e30, 401), np.linspace(-1, 1, 301))
X = np.concatenate([NUMBERS, *LINES]).astype(np.float32)


def computed(expr: Expr, arrays: dict[str, Any], dtypes: dict[str, DType]) -> Any:
    """O[i] = expr, where each input is a vector loaded at i."""
    tensors = tuple(TensorParam(name, dtype, (N,), "in", 0) for name, dtype in dtypes.items())
    body = (Parallel((Loop(index("i0"), N, 512),), (StoreTile("O", (I,), ("i",), expr),)),)
    out = TensorParam("O", expr.dtype, (N,), "out", 0)
    kernel = Kernel("elementwise", (*tensors, out), ("N",), (), (Axis("i", N, 512),), body)
    return execute(kernel, arrays, {"N": len(next(iter(arrays.values())))})["O"]


def agrees(out: Any, exact: Any, ulps: float) -> None:
    with np.errstate(all="ignore"):
        rounded = exact.astype(out.dtype)
    np.testing.assert_array_equal(np.isnan(out), np.isnan(rounded))
    finite = np.isfinite(rounded) & np.isfinite(out)
    np.testing.assert_array_equal(out[~finite & ~np.isnan(out)], rounded[~finite & ~np.isnan(out)])
    spacing = np.maximum(np.spacing(np.abs(rounded[finite])), np.finfo(out.dtype).tiny)
    error = np.abs(out[finite].astype(np.float64) - exact[finite]) / spacing
    assert error.max(initial=0) <= ulps, (error.max(), np.flatnonzero(finite)[error.argmax()])


@pytest.mark.parametrize("name", [n for n, row in FUNCTIONS.items() if row.arity == 1 and row.kind in ("float", "arithmetic")])
def test_functions_of_one_number(name: str) -> None:
    x = load("x", (I,), "f32")
    exact = evaluate(call(name, x), {"i": np.arange(len(X))}, {"x": X.astype(np.float64)}, double=True)
    # What is composed of several of Triton's functions may be a few units off.
    agrees(computed(call(name, x), {"x": X}, {"x": "f32"}), exact, {"erf": 4.0}.get(name, 6.0))


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "max", "min", "pow", "mod", "floordiv", "lt", "ge", "eq", "ne"])
def test_functions_of_two_numbers(name: str) -> None:
    rng = np.random.default_rng(3)
    a = np.concatenate([NUMBERS, rng.uniform(-20, 20, 300), np.abs(rng.standard_normal(300))]).astype(np.float32)
    b = np.concatenate([np.roll(NUMBERS, 7), rng.integers(1, 9, 300), rng.standard_normal(300)]).astype(np.float32)
    if name in ("mod", "floordiv"):
        a, b = a[len(NUMBERS) :], np.abs(b[len(NUMBERS) :]) + np.float32(0.5)
    expr = call(name, load("a", (I,), "f32"), load("b", (I,), "f32"))
    out = computed(expr, {"a": a, "b": b}, {"a": "f32", "b": "f32"})
    if out.dtype == np.bool_:
        np.testing.assert_array_equal(out, evaluate(expr, {"i": np.arange(len(a))}, {"a": a, "b": b}))
        return
    exact = evaluate(expr, {"i": np.arange(len(a))}, {"a": a.astype(np.float64), "b": b.astype(np.float64)}, double=True)
    if name in ("mod", "floordiv"):  # one rounding of the quotient decides which multiple is taken
        near = np.abs(a / b - np.rint(a / b)) < 1e-5
        np.testing.assert_allclose(out[~near], exact[~near], rtol=1e-5, atol=1e-5)
        return
    agrees(out, exact, 8.0)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "floordiv", "mod", "max", "min", "and", "or", "xor", "pow"])
def test_integers(name: str) -> None:
    rng = np.random.default_rng(4)
    a, b = rng.integers(-50, 50, 500), rng.integers(1, 9, 500)
    if name == "pow":
        b = b % 5
    expr = call(name, load("a", (I,), "i64"), load("b", (I,), "i64"))
    out = computed(expr, {"a": a, "b": b}, {"a": "i64", "b": "i64"})
    np.testing.assert_array_equal(out, evaluate(expr, {"i": np.arange(500)}, {"a": a, "b": b}))


def test_positions_and_casts() -> None:
    d = call("floordiv", call("sub", I, size(100)), size(7))
    near = call("where", call("lt", call("abs", d), size(5)), call("mod", d, size(3)), call("neg", d))
    expr = call("mul", cast(near, "f32"), cast(cast(load("x", (I,), "f32"), "bf16"), "f32"))
    x = np.random.default_rng(8).standard_normal(300).astype(np.float32)
    np.testing.assert_array_equal(computed(expr, {"x": x}, {"x": "f32"}), evaluate(expr, {"i": np.arange(300)}, {"x": x}))


# ------------------------------------------------------------------------------------------------ indices


def _biased(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return (q @ k.mT + table[at]).softmax(-1) @ v


@pytest.mark.parametrize("wrong", [40, 10**12, -41, None])
def test_indices_are_checked(wrong: int | None) -> None:
    """A table read by a tensor of indices: right ones, negative ones, and one that is in no table."""
    q, k, v = (torch.randn(1, 2, 20, 8) for _ in range(3))
    at = torch.randint(-40, 40, (20, 20))
    given = {"q": q, "k": k, "v": v, "table": torch.randn(40), "at": at}
    if wrong is None:
        compiled(_biased, given, "f32")
        return
    at[19, 3] = wrong
    torch._dynamo.reset()
    options: dict[str, Any] = {"fuse": "always", "target": "h100", "schedule": TILES, "rest": "eager"}
    message = f"index {wrong} \\(taken from at\\) is out of range for dimension 0 of table, which has 40 elements"
    with torch.no_grad(), pytest.raises(IndexError, match=message):
        torch.compile(_biased, backend="aicf", options=options)(**given)
