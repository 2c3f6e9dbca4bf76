"""The hand-written kernels of tests/kernel, compiled: each must equal the plain computation, whatever the loop order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aicf.backends.llvm.build import build, emit, load
from aicf.kernel import Kernel, Parallel, RowBlock, Stmt, Stream, run_kernel
from aicf.scalar import call, index, round_to, size
from tests.kernel import programs
from tests.kernel.handmade import attention

from .running import execute

pytestmark = pytest.mark.usefixtures("code_path")


def inputs(seed: int, b: int, h: int, n: int, m: int, d: int, dv: int, hk: int | None = None) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    shapes = ((b, h, n, d), (b, hk or h, m, d), (b, hk or h, m, dv))
    q, k, v = (rng.standard_normal(s).astype(np.float32) for s in shapes)
    return q, k, v


def standard(
    kernel: Kernel, score: Any, extra: dict[str, Any] | None = None, sizes: dict[str, int] | None = None, **shape: int
) -> None:
    b, h, n, m = (shape.get(x, s) for x, s in (("b", 2), ("h", 3), ("n", 50), ("m", 70)))
    q, k, v = inputs(1, b, h, n, m, 8, 12)
    given = {"Q": q, "K": k, "V": v, **(extra or {})}
    all_sizes = {"B": b, "H": h, "N": n, "M": m, **(sizes or {})}
    results = [execute(kernel, given, all_sizes, threads=threads)["O"] for threads in (1, 3)]
    np.testing.assert_array_equal(results[0], results[1])
    programs.assert_accurate(results[0], q, k, v, score)
    reference = {**given, "O": np.zeros_like(results[0])}
    run_kernel(kernel, reference, all_sizes)
    np.testing.assert_allclose(results[0], reference["O"], rtol=1e-4, atol=1e-5)


def half(s: Any) -> Any:
    return s * s.dtype.type(0.5)


def test_bias_and_padding_mask():
    rng = np.random.default_rng(5)
    extra = {"bias": rng.standard_normal((3, 50, 70)).astype(np.float32), "keep": rng.random((2, 70)) < 0.7}
    extra["keep"][0] = False  # a batch without any key: eager gives NaN, and so must this
    keep = extra["keep"][:, None, None, :]
    standard(programs.bias(), lambda s: np.where(keep, half(s) + extra["bias"], -np.inf), extra)


def test_gather_from_a_table():
    learned = np.random.default_rng(6).standard_normal((9, 3)).astype(np.float32)
    bucket = np.clip(np.arange(70) - np.arange(50)[:, None], -4, 4) + 4
    standard(programs.table(), lambda s: half(s) + learned[bucket].transpose(2, 0, 1), {"table": learned})


def test_paged_keys_and_values():
    rng = np.random.default_rng(7)
    q, k, v = inputs(7, 2, 3, 50, 70, 8, 12)
    pages = rng.permutation(40)[:36].reshape(2, 18)
    stores = {"K": np.full((40, 3, 4, 8), np.nan, np.float32), "V": np.full((40, 3, 4, 12), np.nan, np.float32)}
    for batch in range(2):
        for at in range(70):
            stores["K"][pages[batch, at // 4], :, at % 4] = k[batch, :, at]
            stores["V"][pages[batch, at // 4], :, at % 4] = v[batch, :, at]
    sizes = {"B": 2, "H": 3, "N": 50, "M": 70, "G": 40, "T": 18}
    out = execute(programs.paged(), {"Q": q, "pages": pages, **stores}, sizes)["O"]
    programs.assert_accurate(out, q, k, v, half)


@pytest.mark.parametrize("tiles", [(20, 16, 6), (50, 70, 50), (7, 5, 2)])
def test_kv_major_order_with_state_in_scratch(tiles: tuple[int, int, int]):
    standard(programs.kv_major(*tiles), half)


@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_split_kv_combines(chunk: int):
    standard(programs.split_kv({1: 5, 2: 3, 5: 3}[chunk]), half, sizes={"chunk": chunk})


def test_retry_under_a_finite_fill():
    keep = np.arange(70) <= np.arange(50)[:, None] - 7
    standard(programs.finite_fill(), lambda s: np.where(keep, half(s), s.dtype.type(programs.FILL)))


def test_document_mask_skips_tiles_by_summaries():
    ids = np.repeat([0, 1, 2, 3], [20, 5, 35, 12])
    documents = {"qdoc": np.stack([ids, ids // 3]), "kdoc": np.stack([ids, ids // 3])}
    keep = documents["qdoc"][:, None, :, None] == documents["kdoc"][:, None, None, :]
    standard(programs.documents(), lambda s: np.where(keep, half(s), -np.inf), documents, n=72, m=72)


def test_dense_mask_skips_tiles_by_what_they_hold():
    keep = programs.kept_pairs(72, 72)
    score = lambda s: np.where(keep[:, None], half(s), -np.inf)  # noqa: E731
    standard(programs.dense_mask(), score, {"keep": keep}, n=72, m=72)
    standard(programs.dense_mask(7, 5, 2), score, {"keep": keep}, n=72, m=72)


# ------------------------------------------------------------------------------------------------ shapes, strides, halves


@pytest.mark.parametrize(
    ("n", "m", "d", "dv", "tiles"),
    [
        (1, 1, 1, 1, (96, 64, 6)),
        (1, 300, 64, 64, (1, 64, 1)),
        (97, 65, 64, 64, (96, 64, 6)),
        (50, 70, 5, 33, (24, 16, 6)),
        (130, 129, 128, 7, (48, 128, 6)),
        (13, 200, 3, 512, (12, 40, 4)),
        (33, 20, 17, 1, (20, 7, 5)),
        (200, 90, 40, 40, (66, 64, 6)),
    ],
)
@pytest.mark.parametrize("causal", [False, True])
def test_shapes(n: int, m: int, d: int, dv: int, tiles: tuple[int, int, int], causal: bool):
    q, k, v = inputs(n + m, 1, 2, n, m, d, dv)
    kernel = attention(d=d, dv=dv, causal=causal, tile_m=tiles[0], tile_n=tiles[1], rows=tiles[2])
    out = execute(kernel, {"Q": q, "K": k, "V": v}, {"B": 1, "H": 2, "N": n, "M": m}, threads=2)["O"]
    keep = np.arange(m) <= np.arange(n)[:, None] if causal else np.ones((n, m), bool)
    programs.assert_accurate(out, q, k, v, lambda s: np.where(keep, s * s.dtype.type(0.125), -np.inf))


@pytest.mark.parametrize("unit", [3, None])
def test_views_of_a_packed_tensor_and_grouped_heads(unit: int | None):
    """q, k, v as views of one [B, N, 3, H, D] buffer; then 4 query heads on 2 key heads, and keys expanded over the batch."""
    rng = np.random.default_rng(1)
    packed = rng.standard_normal((2, 45, 3, 4, 24)).astype(np.float32)
    q, k, v = (packed[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
    kernel = attention(d=24, dv=24, causal=True, unit=unit, tile_m=24, tile_n=16)
    sizes = {"B": 2, "H": 4, "N": 45, "M": 45}
    keep = np.tril(np.ones((45, 45), bool))

    def score(s: Any) -> Any:
        return np.where(keep, s * s.dtype.type(0.125), -np.inf)

    programs.assert_accurate(execute(kernel, {"Q": q, "K": k, "V": v}, sizes)["O"], q, k, v, score)
    few = {"Q": q, "K": np.broadcast_to(k[:1, :2], (2, 2, 45, 24)), "V": np.broadcast_to(v[:1, :2], (2, 2, 45, 24))}
    grouped = attention(d=24, dv=24, causal=True, unit=unit, group=2, tile_m=24, tile_n=16)
    out = execute(grouped, few, sizes)["O"]
    programs.assert_accurate(out, q, few["K"].repeat(2, 1), few["V"].repeat(2, 1), score)


@pytest.mark.parametrize("unit", [3, None])
def test_tensors_in_any_order_of_memory(unit: int | None):
    q, k, v = inputs(4, 2, 3, 30, 40, 8, 16)
    turned = {name: np.asfortranarray(x) for name, x in (("Q", q), ("K", k), ("V", v))}
    if unit is not None:
        turned = {name: np.ascontiguousarray(x.transpose(2, 0, 1, 3)).transpose(1, 2, 0, 3) for name, x in turned.items()}
    out = execute(attention(d=8, dv=16, unit=unit), turned, {"B": 2, "H": 3, "N": 30, "M": 40})["O"]
    programs.assert_accurate(out, q, k, v, lambda s: s * s.dtype.type(0.125))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize(("n", "m", "d", "dv"), [(40, 40, 8, 16), (35, 61, 13, 9)])
def test_halves(dtype: Any, n: int, m: int, d: int, dv: int):
    kernel = attention(d=d, dv=dv, dtype=dtype, tile_m=18, tile_n=16)
    q, k, v = (round_to(x, dtype) for x in inputs(3, 1, 2, n, m, d, dv))
    out = execute(kernel, {"Q": q, "K": k, "V": v}, {"B": 1, "H": 2, "N": n, "M": m})["O"].astype(np.float64)
    exact = programs.plain(q, k, v, lambda s: s * 0.125, np.float64)
    single = programs.plain(q, k, v, lambda s: s * np.float32(0.125), np.float32)
    one_rounding = {"f16": 2.0**-11, "bf16": 2.0**-8}[dtype] * np.abs(exact)
    assert (np.abs(out - exact) <= one_rounding + 4 * np.abs(single - exact).max()).all()


@pytest.mark.parametrize(("n", "m"), [(50, 70), (97, 97), (1, 5)])
def test_rows_may_leave_out_what_contributes_nothing(n: int, m: int):
    """A causal kernel that promises that keys past a block's last row count for nothing. Sums may be in another order: one row's
    numbers are added vector by vector, and there are fewer of them."""
    kernel = attention(d=16, dv=24, causal=True, tile_m=24, tile_n=32, rows=6)

    def change(s: Stmt) -> Stmt:
        match s:
            case RowBlock():
                return replace(s, ends=(("j", call("add", index("i0"), size(6))),))
            case Stream():
                return replace(s, phases=tuple(p if p.whole else replace(p, body=tuple(map(change, p.body))) for p in s.phases))
            case Parallel():
                return replace(s, body=tuple(map(change, s.body)))
            case _:
                return s

    shorter = replace(kernel, body=tuple(map(change, kernel.body)))
    assert shorter != kernel
    q, k, v = inputs(2, 1, 2, n, m, 16, 24)
    given, sizes = {"Q": q, "K": k, "V": v}, {"B": 1, "H": 2, "N": n, "M": m}
    keep = np.arange(m) <= np.arange(n)[:, None]
    for form in (kernel, shorter):
        programs.assert_accurate(
            execute(form, given, sizes)["O"], q, k, v, lambda s: np.where(keep, s * s.dtype.type(0.125), -np.inf)
        )
    # What is left out is not read either: there 0 times NaN would show it.
    last = (n - 1) // 6 * 6  # the first row of the last block
    if last < m - 1:
        v[:, :, last + 6 :] = np.nan
        k[:, :, last + 6 :] = np.nan
        assert np.isfinite(execute(shorter, given, sizes)["O"][:, :, : last + 6]).all()


def test_objects_are_loaded_without_compiling_and_code_is_shown():
    kernel = attention(d=8, dv=8, tile_m=12, tile_n=16)
    compiled = build(kernel)
    again = load(kernel, compiled.object)
    q, k, v = inputs(2, 1, 2, 20, 30, 8, 8)
    given, sizes = {"Q": q, "K": k, "V": v}, {"B": 1, "H": 2, "N": 20, "M": 30}
    outs = [execute(kernel, given, sizes, code=c)["O"] for c in (compiled, again)]
    np.testing.assert_array_equal(outs[0], outs[1])
    assert emit(kernel) == compiled.llvm and "aicf_run:" in compiled.asm
    assert build(kernel).object == compiled.object


def test_strides_that_contradict_the_kernel_are_refused():
    kernel = attention(d=8, dv=8, tile_m=12, tile_n=16)
    q, k, v = inputs(2, 1, 2, 20, 30, 8, 8)
    with pytest.raises(ValueError, match=r"dimension 3 of K has stride .*was built for stride 1"):
        execute(kernel, {"Q": q, "K": np.asfortranarray(k), "V": v}, {"B": 1, "H": 2, "N": 20, "M": 30})
