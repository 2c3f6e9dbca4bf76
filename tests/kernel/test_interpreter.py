"""Hand-written kernels run in the interpreter and give what the plain computation gives, whatever the tiles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aicf.kernel import (
    Axis,
    Fill,
    Kernel,
    Loop,
    Map,
    Parallel,
    Phase,
    Reduce,
    RowBlock,
    ScalarParam,
    StoreTile,
    Stream,
    TensorParam,
    Tile,
    allocate,
    run_kernel,
    verify_kernel,
)
from aicf.scalar import call, const, index, load, round_to, size, var

from . import programs
from .handmade import attention
from .live_tiles import live_tiles


def inputs(seed: int, b: int, h: int, n: int, m: int, d: int, dv: int, hk: int | None = None) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    shapes = ((b, h, n, d), (b, hk or h, m, d), (b, hk or h, m, dv))
    q, k, v = (rng.standard_normal(s).astype(np.float32) for s in shapes)
    return q, k, v


def run(kernel: Kernel, given: dict[str, Any], sizes: dict[str, int], **options: Any) -> tuple[Any, Any]:
    assert verify_kernel(kernel) == []
    tensors = {**given, **allocate(kernel, sizes, ("out",), double=options.get("double", False))}
    trace = run_kernel(kernel, tensors, sizes, **options)
    assert trace.stores == {"O": (1, 1)}
    for space in ("shared", "register"):
        assert trace.peak[space] <= live_tiles(kernel, space)
    return tensors["O"], trace


def standard(
    kernel: Kernel, score: Any, extra: dict[str, Any] | None = None, sizes: dict[str, int] | None = None, **shape: int
) -> Any:
    """Run a kernel of `programs` on 2 x 3 x 50 queries and 70 keys (or `shape`), compare, return the trace."""
    b, h, n, m = (shape.get(x, s) for x, s in (("b", 2), ("h", 3), ("n", 50), ("m", 70)))
    q, k, v = inputs(1, b, h, n, m, 8, 12)
    out, trace = run(kernel, {"Q": q, "K": k, "V": v, **(extra or {})}, {"B": b, "H": h, "N": n, "M": m, **(sizes or {})})
    programs.assert_accurate(out, q, k, v, score)
    return trace


def causal(n: int, m: int) -> Any:
    return np.arange(m) <= np.arange(n)[:, None]


# ------------------------------------------------------------------------------------------------ the handmade kernel


@settings(deadline=None, max_examples=25, derandomize=True)
@given(
    st.integers(1, 70), st.integers(1, 70), st.integers(3, 40), st.integers(3, 40), st.integers(1, 40),
    st.sampled_from([1, 2]), st.booleans(), st.integers(0, 9),
)  # fmt: skip
def test_tile_sizes_never_change_the_result(
    n: int, m: int, tile_m: int, tile_n: int, rows: int, group: int, masked: bool, seed: int
):
    kernel = attention(d=8, dv=16, group=group, causal=masked, tile_m=tile_m, tile_n=tile_n, rows=min(rows, tile_m))
    q, k, v = inputs(seed, 1, 2, n, m, 8, 16, 2 // group)
    out, trace = run(kernel, {"Q": q, "K": k, "V": v}, {"B": 1, "H": 2, "N": n, "M": m})
    keep = causal(n, m) if masked else np.ones((n, m), bool)
    programs.assert_accurate(
        out, q, k.repeat(group, 1), v.repeat(group, 1), lambda s: np.where(keep, s * s.dtype.type(0.125), -np.inf)
    )
    tiles = -(-n // tile_m) * -(-m // tile_n) * 2
    assert sum(trace.phases.values()) == tiles


@settings(deadline=None, max_examples=15, derandomize=True)
@given(st.integers(1, 50), st.integers(1, 50), st.integers(3, 30), st.integers(3, 30), st.integers(0, 9))
def test_float64_runs_agree_with_the_direct_computation(n: int, m: int, tile_m: int, tile_n: int, seed: int):
    kernel = attention(d=8, dv=16, tile_m=tile_m, tile_n=tile_n, rows=min(6, tile_m))
    q, k, v = inputs(seed, 1, 2, n, m, 8, 16)
    out, _ = run(kernel, {"Q": q, "K": k, "V": v}, {"B": 1, "H": 2, "N": n, "M": m}, double=True)
    exact = programs.plain(q, k, v, lambda s: s * 0.125, np.float64)
    # A priori (docs/theory.md, 8): scores are off by d u |q||k| and enter exp; sums of m positive terms by m u; rescaling, exp
    # and division by a few u per tile; all relative to the largest |v|. Both sides err, hence twice.
    u = np.finfo(np.float64).eps / 2
    scores = 8 * np.linalg.norm(q, axis=-1).max() * np.linalg.norm(k, axis=-1).max() * 0.125
    relative = u * (2 * scores + m + 6 * (-(-m // tile_n) + 1))
    assert np.abs(out - exact).max() <= 2 * 2 * relative * np.abs(v).max()


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_half_precision_tensors_are_rounded_when_stored(dtype: Any):
    kernel = attention(d=8, dv=16, dtype=dtype, tile_m=16, tile_n=16)
    q, k, v = (round_to(x, dtype) for x in inputs(3, 1, 2, 40, 40, 8, 16))
    out, trace = run(kernel, {"Q": q, "K": k, "V": v}, {"B": 1, "H": 2, "N": 40, "M": 40})
    exact = programs.plain(q, k, v, lambda s: s * 0.125, np.float64)
    assert (round_to(out, dtype) == out).all()
    single = programs.plain(q, k, v, lambda s: s * np.float32(0.125), np.float32)
    one_rounding = {"f16": 2.0**-11, "bf16": 2.0**-8}[dtype] * np.abs(exact)
    assert (np.abs(out.astype(np.float64) - exact) <= one_rounding + 4 * np.abs(single - exact).max()).all()
    assert trace.written == {"O": 2 * 40 * 16 * 2}


def test_arrays_may_have_any_strides():
    kernel = attention(d=8, dv=16, unit=None)
    q, k, v = inputs(4, 2, 3, 30, 40, 8, 16)
    turned = {
        name: np.asfortranarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for name, x in (("Q", q), ("K", k), ("V", v))
    }
    turned["K"] = np.broadcast_to(turned["K"][:1], k.shape)  # stride 0 over the batch
    out, _ = run(kernel, turned, {"B": 2, "H": 3, "N": 30, "M": 40})
    programs.assert_accurate(out, q, turned["K"], v, lambda s: s * s.dtype.type(0.125))


# ------------------------------------------------------------------------------------------------ the other programs


def test_bias_and_padding_mask():
    rng = np.random.default_rng(5)
    extra = {"bias": rng.standard_normal((3, 50, 70)).astype(np.float32), "keep": rng.random((2, 70)) < 0.7}
    keep = extra["keep"][:, None, None, :]
    extra["keep"][0] = False  # a batch without any key: eager gives NaN, and so must every order
    trace = standard(programs.bias(), lambda s: np.where(keep, s * s.dtype.type(0.5) + extra["bias"], -np.inf), extra)
    assert trace.read["bias"] == 6 * 50 * 70 * 4
    assert trace.read["keep"] == 6 * (4 + 4 + 2) * 70  # once per block of 6 rows


def test_gather_from_a_table():
    learned = np.random.default_rng(6).standard_normal((9, 3)).astype(np.float32)
    bucket = np.clip(np.arange(70) - np.arange(50)[:, None], -4, 4) + 4
    standard(programs.table(), lambda s: s * s.dtype.type(0.5) + learned[bucket].transpose(2, 0, 1), {"table": learned})


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
    out, _ = run(programs.paged(), {"Q": q, "pages": pages, **stores}, sizes)
    programs.assert_accurate(out, q, k, v, lambda s: s * s.dtype.type(0.5))


@pytest.mark.parametrize("tiles", [(20, 16, 6), (50, 70, 50), (7, 5, 2)])
def test_kv_major_order_with_state_in_scratch(tiles: tuple[int, int, int]):
    tile_m, tile_n, rows = tiles
    trace = standard(programs.kv_major(tile_m, tile_n, rows), lambda s: s * s.dtype.type(0.5), b=1, h=1)
    turns = -(-70 // tile_n)
    assert trace.read["K"] == 70 * 8 * 4  # keys once; queries and state once per key tile
    assert trace.read["Q"] == 50 * 8 * 4 * turns
    assert trace.read["sacc"] == 50 * 12 * 4 * (turns + 1)
    assert trace.written["sacc"] == 50 * 12 * 4 * (turns + 1)


@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_split_kv_combines(chunk: int):
    """With chunks of 5 tiles of 16 the last two of three splits are empty and combine as the unit state."""
    splits = {1: 5, 2: 3, 5: 3}[chunk]
    standard(programs.split_kv(splits), lambda s: s * s.dtype.type(0.5), sizes={"chunk": chunk})


def test_retry_under_a_finite_fill():
    keep = np.arange(70) <= np.arange(50)[:, None] - 7
    trace = standard(programs.finite_fill(), lambda s: np.where(keep, s * s.dtype.type(0.5), s.dtype.type(programs.FILL)))
    assert trace.retries == 6  # of three query tiles, the first has rows that see no key
    assert trace.phases["j", "empty"] == 6 * (4 + 2 + 2)


def test_retry_is_needed():
    """Without the second run the rows that see no key would come out wrong: the test above can fail."""
    kernel = programs.finite_fill()
    item = kernel.body[0]
    assert isinstance(item, Parallel)
    never = replace(item.body[1], again=const(False, "bool"))  # type: ignore[type-var]
    broken = replace(kernel, body=(replace(item, body=(item.body[0], never, item.body[2])),))
    q, k, v = inputs(1, 1, 1, 50, 70, 8, 12)
    out, _ = run(broken, {"Q": q, "K": k, "V": v}, {"B": 1, "H": 1, "N": 50, "M": 70})
    keep = np.arange(70) <= np.arange(50)[:, None] - 7
    exact = programs.plain(q, k, v, lambda s: np.where(keep, s * 0.5, programs.FILL), np.float64)
    assert not np.allclose(out[0, 0, :7], exact[0, 0, :7], equal_nan=True)


def test_document_mask_skips_tiles_by_summaries():
    ids = np.repeat([0, 1, 2, 3], [20, 5, 35, 12])
    documents = {"qdoc": np.stack([ids, ids // 3]), "kdoc": np.stack([ids, ids // 3])}
    keep = documents["qdoc"][:, None, :, None] == documents["kdoc"][:, None, None, :]
    trace = standard(programs.documents(), lambda s: np.where(keep, s * s.dtype.type(0.5), -np.inf), documents, n=72, m=72)
    expected = {"empty": 0, "full": 0, "partial": 0}
    for doc in documents["qdoc"]:
        for i0 in range(0, 72, 20):
            for j0 in range(0, 72, 16):
                rows, keys = doc[i0 : i0 + 20], doc[j0 : j0 + 16]
                overlap = rows.min() <= keys.max() and keys.min() <= rows.max()
                one = len({*rows, *keys}) == 1 and len(keys) == 16
                expected["full" if one else "partial" if overlap else "empty"] += 3
    assert {name: trace.phases["j", name] for name in expected} == expected
    assert min(expected.values()) > 0


def test_dense_mask_skips_the_tiles_that_hold_nothing():
    keep = programs.kept_pairs(72, 72)
    score = lambda s: np.where(keep[:, None], s * s.dtype.type(0.5), -np.inf)  # noqa: E731
    trace = standard(programs.dense_mask(), score, {"keep": keep}, n=72, m=72)
    expected = {"empty": 0, "full": 0, "partial": 0}
    for one in keep:
        for i0 in range(0, 72, 20):
            for j0 in range(0, 72, 16):
                tile = one[i0 : i0 + 20, j0 : j0 + 16]
                expected["full" if tile.all() and tile.shape[1] == 16 else "partial" if tile.any() else "empty"] += 3
    assert {name: trace.phases["j", name] for name in expected} == expected
    assert min(expected.values()) > 0


# ------------------------------------------------------------------------------------------------ what the counts show


@pytest.mark.parametrize(("n", "m", "tile_m", "tile_n"), [(64, 96, 16, 32), (70, 45, 16, 32), (5, 200, 96, 64)])
def test_no_score_matrix_reaches_global_memory(n: int, m: int, tile_m: int, tile_n: int):
    """Global traffic is exactly N_q (d + d_v) + ceil(N_q / B_q) N_k (d + d_v) elements: nothing of size rows x keys."""
    d, dv = 8, 16
    kernel = attention(d=d, dv=dv, tile_m=tile_m, tile_n=tile_n)
    q, k, v = inputs(8, 1, 1, n, m, d, dv)
    _, trace = run(kernel, {"Q": q, "K": k, "V": v}, {"B": 1, "H": 1, "N": n, "M": m})
    assert trace.global_bytes == 4 * (n * (d + dv) + -(-n // tile_m) * m * (d + dv))
    assert trace.read.keys() | trace.written.keys() == {"Q", "K", "V", "O"}
    assert trace.tile_read["global"] == trace.tile_written["global"] == 0
    assert trace.peak["shared"] == 4 * (tile_m * d + tile_n * (d + dv))
    longer = attention(d=d, dv=dv, tile_m=tile_m, tile_n=tile_n)
    q, k, v = inputs(8, 1, 1, 2 * n, 2 * m, d, dv)
    _, double = run(longer, {"Q": q, "K": k, "V": v}, {"B": 1, "H": 1, "N": 2 * n, "M": 2 * m})
    assert double.peak == trace.peak  # tiles do not grow with the sequence


def test_row_blocks_read_the_keys_once_per_block():
    """Register traffic follows the block: with twice the rows per block, the keys are read from shared memory half as often."""
    counts: list[int] = []
    for rows in (4, 8):
        kernel = attention(d=8, dv=16, tile_m=16, tile_n=16, rows=rows)
        q, k, v = inputs(9, 1, 1, 16, 16, 8, 16)
        counts.append(run(kernel, {"Q": q, "K": k, "V": v}, {"B": 1, "H": 1, "N": 16, "M": 16})[1].tile_read["shared"])
    queries, keys = 16 * 8 * 4, 16 * (8 + 16) * 4
    assert counts == [queries + 4 * keys, queries + 2 * keys]


# ------------------------------------------------------------------------------------------------ promises


def small(body: Any, tile: int = 8) -> Kernel:
    """A kernel over X[8, 8] -> O[8] with one item."""
    i, j = index("i"), index("j")
    return Kernel(
        "small",
        (TensorParam("X", "f32", (size(8), size(8))), TensorParam("O", "f32", (size(8),), "out")),
        (),
        (),
        (Axis("i", size(8), 8), Axis("j", size(8), tile)),
        (Parallel((Loop(index("z"), size(1)),), body(i, j)),),
    )


X = np.arange(64, dtype=np.float32).reshape(8, 8)
TOTAL = Tile("total", "f32", ("i",), "register")


def summed(whole: bool, lo: int = 0, hi: int = 8, shift: int = 0) -> Any:
    def body(i: Any, j: Any) -> Any:
        add = Reduce(TOTAL, "sum", "j", load("X", (i, call("add", j, size(shift))), "f32"), accumulate=True)
        phases = (Phase("full", const(True, "bool"), whole, (add,)),)
        store = StoreTile("O", (i,), ("i",), var("total", "f32"))
        return Fill(TOTAL, const(0.0, "f32")), Stream("j", size(lo), size(hi), phases), store

    return body


def test_a_stream_stops_at_its_range():
    tensors = {"X": X, "O": np.zeros(8, np.float32)}
    trace = run_kernel(small(summed(False, 3, 7), tile=3), tensors, {})
    np.testing.assert_array_equal(tensors["O"], X[:, 3:7].sum(axis=1))
    assert trace.read["X"] == 8 * 4 * 4


def test_broken_promises_are_found():
    tensors = {"X": X, "O": np.zeros(8, np.float32)}
    run_kernel(small(summed(True), tile=4), tensors, {})
    with pytest.raises(ValueError, match="promises whole tiles, but the one at 6 has a tail"):
        run_kernel(small(summed(True), tile=3), tensors, {})
    with pytest.raises(IndexError, match=r"X\[i, j \+ 1\]: dimension 1 has 8 elements, the index runs from 1 to 8"):
        run_kernel(small(summed(False, shift=1)), tensors, {})
    with pytest.raises(ValueError, match="starts at 2, which is no multiple of the tile length 4"):
        run_kernel(small(summed(False, lo=2), tile=4), tensors, {})


def test_arrays_that_do_not_fit_are_refused():
    kernel = attention(d=8, dv=16)
    sizes = {"B": 1, "H": 1, "N": 4, "M": 4}
    q, k, v = inputs(1, 1, 1, 4, 4, 8, 16)
    out = np.zeros((1, 1, 4, 16), np.float32)
    with pytest.raises(ValueError, match="no array given for the in tensor K"):
        run_kernel(kernel, {"Q": q, "V": v, "O": out}, sizes)
    with pytest.raises(ValueError, match=r"Q has shape \[1, 1, 4, 7\], the kernel declares \[1, 1, 4, 8\]"):
        run_kernel(kernel, {"Q": q[..., :7], "K": k, "V": v, "O": out}, sizes)
    with pytest.raises(ValueError, match="K is declared to have stride 1 in dimension 3"):
        run_kernel(kernel, {"Q": q, "K": np.asfortranarray(k), "V": v, "O": out}, sizes)


def test_missing_lanes_are_poison_and_left_out():
    """A minimum over a map whose value would be smallest where no element exists; the row block ends inside the tile."""
    i, j = index("i"), index("j")
    low, least = Tile("low", "f32", ("i", "j"), "register"), Tile("least", "f32", ("i",), "register")
    kernel = Kernel(
        "tails",
        (TensorParam("O", "f32", (index("N"),), "out"),),
        ("N", "M"),
        (),
        (Axis("i", index("N"), 4), Axis("j", index("M"), 4)),
        (
            Parallel(
                (Loop(index("i0"), index("N"), 4),),
                (
                    Fill(least, const(float("inf"), "f32")),
                    Stream("j", size(0), index("M"), (Phase("partial", const(True, "bool"), False, (
                        RowBlock("i", 3, (
                            Map(low, call("sub", const(0.0, "f32"), call("add", call("mul", const(1.0, "f32"), i), j))),
                            Reduce(least, "min", "j", var("low", "f32"), accumulate=True),
                        )),
                    )),)),
                    StoreTile("O", (i,), ("i",), var("least", "f32")),
                ),
            ),
        ),
    )  # fmt: skip
    tensors = {"O": np.zeros(6, np.float32)}
    run_kernel(kernel, tensors, {"N": 6, "M": 5})
    np.testing.assert_array_equal(tensors["O"], [-(r + 4) for r in range(6)])


def test_scalars_are_given_by_name():
    def body(i: Any, j: Any) -> Any:
        return (StoreTile("O", (i,), ("i",), call("mul", load("X", (i, size(0)), "f32"), var("factor", "f32"))),)

    kernel = replace(small(body), scalars=(ScalarParam("factor", "f32"),))
    assert verify_kernel(kernel) == []
    tensors = {"X": X, "O": np.zeros(8, np.float32)}
    run_kernel(kernel, tensors, {}, {"factor": 3.0})
    np.testing.assert_array_equal(tensors["O"], X[:, 0] * 3)
