"""Statements one by one, in forms that attention forward does not have: transposed operands, sums over the row axis, tiles
of integers, booleans and float64. The interpreter says what is right."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aicf.kernel import (
    Axis,
    Contract,
    Fill,
    Kernel,
    LoadTile,
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
    run_kernel,
    verify_kernel,
)
from aicf.scalar import DType, Expr, call, cast, const, index, integer, load, numpy_dtype, reduce, size, var

from .running import execute

pytestmark = pytest.mark.usefixtures("code_path")

N, M = index("N"), index("M")
i, j, d, e = (index(x) for x in "ijde")
TRUE = const(True, "bool")


def tile(name: str, axes: str, dtype: DType = "f32") -> Tile:
    return Tile(name, dtype, tuple(axes), "register")


def f(name: str) -> Expr:
    return var(name, "f32")


def agree(
    kernel: Kernel, sizes: dict[str, int], scalars: dict[str, float] | None = None, rtol: float = 1e-5, **given: Any
) -> None:
    """Random inputs (or `given`), both ways."""
    assert verify_kernel(kernel) == []
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for p in kernel.tensors:
        shape = tuple(integer(x, sizes) for x in p.shape)
        if p.role == "in":
            arrays[p.name] = given.get(p.name, rng.standard_normal(shape).astype(numpy_dtype(p.dtype)))
    expected = {
        **arrays,
        **{
            p.name: np.zeros(tuple(integer(x, sizes) for x in p.shape), numpy_dtype(p.dtype))
            for p in kernel.tensors
            if p.role == "out"
        },
    }
    run_kernel(kernel, expected, sizes, scalars)
    for threads in (1, 2):
        out = execute(kernel, arrays, sizes, scalars, threads=threads)
        for name, array in out.items():
            if array.dtype.kind == "f":
                scale = np.abs(np.nan_to_num(expected[name], posinf=0, neginf=0)).max(initial=0)
                np.testing.assert_allclose(array, expected[name], rtol=rtol, atol=rtol * scale)
            else:
                np.testing.assert_array_equal(array, expected[name])


def partial(*body: Any) -> tuple[Phase, ...]:
    return (Phase("partial", TRUE, False, body),)


# ------------------------------------------------------------------------------------------------ backward of attention


def backward(width: int, value_width: int, tile_m: int, tile_n: int, rows: int) -> Kernel:
    """dK and dV of softmax(q k^T) v, keys outside: sums over the row axis, inside and across blocks."""
    axes = (Axis("i", N, tile_m), Axis("j", M, tile_n), Axis("d", size(width), width), Axis("e", size(value_width), value_width))
    q, k, v, do = tile("q", "id"), tile("k", "jd"), tile("v", "je"), tile("do", "ie")
    s, p, dp, ds = (tile(x, "ij") for x in ("s", "p", "dp", "ds"))
    lse, delta, dk, dv = tile("lse", "i"), tile("delta", "i"), tile("dk", "jd"), tile("dv", "je")
    zero = const(0.0, "f32")
    inner = RowBlock(
        "i",
        rows,
        (
            Contract(s, q, k, "d"),
            Map(p, call("exp", call("sub", f("s"), f("lse")))),
            Contract(dp, do, v, "e"),
            Map(ds, call("mul", f("p"), call("sub", f("dp"), f("delta")))),
            Contract(dv, p, do, "i", accumulate=True),
            Contract(dk, ds, q, "i", accumulate=True),
        ),
    )
    loads = (LoadTile(q, "Q", (i, d)), LoadTile(do, "dO", (i, e)), LoadTile(lse, "lse", (i,)), LoadTile(delta, "delta", (i,)))
    return Kernel(
        "backward",
        (
            TensorParam("Q", "f32", (N, size(width)), "in", 1),
            TensorParam("K", "f32", (M, size(width)), "in", 1),
            TensorParam("V", "f32", (M, size(value_width)), "in", 1),
            TensorParam("dO", "f32", (N, size(value_width)), "in", 1),
            TensorParam("lse", "f32", (N,)),
            TensorParam("delta", "f32", (N,)),
            TensorParam("dK", "f32", (M, size(width)), "out", 1),
            TensorParam("dV", "f32", (M, size(value_width)), "out", 1),
        ),
        ("N", "M"),
        (),
        axes,
        (
            Parallel(
                (Loop(index("j0"), M, tile_n),),
                (
                    LoadTile(k, "K", (j, d)),
                    LoadTile(v, "V", (j, e)),
                    Fill(dk, zero),
                    Fill(dv, zero),
                    Stream("i", size(0), N, partial(*loads, inner)),
                    StoreTile("dK", (j, d), ("j", "d"), f("dk")),
                    StoreTile("dV", (j, e), ("j", "e"), f("dv")),
                ),
            ),
        ),
    )


@pytest.mark.parametrize("shape", [(8, 12, 20, 16, 6), (16, 16, 12, 32, 6), (5, 3, 9, 7, 4), (33, 20, 24, 24, 24)])
@pytest.mark.parametrize(("n", "m"), [(50, 70), (1, 1), (24, 96)])
def test_sums_over_the_row_axis(shape: tuple[int, int, int, int, int], n: int, m: int):
    agree(backward(*shape), {"N": n, "M": m}, rtol=2e-4, lse=np.full(n, 6.0, np.float32))


@pytest.mark.parametrize("tiles", [(20, 16, 6), (12, 24, 4)])
def test_gradient_of_the_queries_uses_keys_both_ways(tiles: tuple[int, int, int]):
    """s = q k^T needs k along its keys, dq = s k along its width: two copies of one loaded tile."""
    tile_m, tile_n, rows = tiles
    axes = (Axis("i", N, tile_m), Axis("j", M, tile_n), Axis("d", size(10), 10))
    q, k, s, dq = tile("q", "id"), tile("k", "jd"), tile("s", "ij"), tile("dq", "id")
    body = RowBlock("i", rows, (Contract(s, q, k, "d"), Map(s, call("tanh", f("s"))), Contract(dq, s, k, "j", accumulate=True)))
    kernel = Kernel(
        "dq",
        (
            TensorParam("Q", "f32", (N, size(10)), "in", 1),
            TensorParam("K", "f32", (M, size(10)), "in", 1),
            TensorParam("O", "f32", (N, size(10)), "out"),
        ),
        ("N", "M"),
        (),
        axes,
        (
            Parallel(
                (Loop(index("i0"), N, tile_m),),
                (
                    LoadTile(q, "Q", (i, d)),
                    Fill(dq, const(0.0, "f32")),
                    Stream("j", size(0), M, partial(LoadTile(k, "K", (j, d)), body)),
                    StoreTile("O", (i, d), ("i", "d"), f("dq")),
                ),
            ),
        ),
    )
    agree(kernel, {"N": 45, "M": 50}, rtol=1e-4)


# ------------------------------------------------------------------------------------------------ contracts


def product(
    a_axes: str, b_axes: str, c_axes: str, over: str, lengths: dict[str, int], dtype: DType = "f32", computed: str = ""
) -> Kernel:
    """O = contract(A, B); the operands named in `computed` pass through a Map, so that they are not loaded tiles."""
    ax = tuple(Axis(x, size(n), n) for x, n in lengths.items())
    a, b, c = tile("a", a_axes, dtype), tile("b", b_axes, dtype), tile("c", c_axes, dtype)
    ma, mb = tile("ma", a_axes, dtype), tile("mb", b_axes, dtype)

    def param(name: str, axes: str, role: Any = "in") -> TensorParam:
        return TensorParam(name, dtype, tuple(size(lengths[x]) for x in axes), role)

    def at(axes: str) -> tuple[Expr, ...]:
        return tuple(index(x) for x in axes)

    body: list[Any] = [LoadTile(a, "A", at(a_axes)), LoadTile(b, "B", at(b_axes))]
    if "a" in computed:
        body.append(Map(ma, call("add", var("a", dtype), const(1, dtype))))
        a = ma
    if "b" in computed:
        body.append(Map(mb, call("mul", var("b", dtype), const(2, dtype))))
        b = mb
    body += [Contract(c, a, b, over), StoreTile("O", at(c_axes), tuple(c_axes), var("c", dtype))]
    tensors = (param("A", a_axes), param("B", b_axes), param("O", c_axes, "out"))
    return Kernel("product", tensors, (), (), ax, (Parallel((Loop(index("z"), size(1)),), tuple(body)),))


@pytest.mark.parametrize("computed", ["", "a", "b", "ab"])
@pytest.mark.parametrize(
    ("a", "b", "c"),
    [
        ("xk", "yk", "xy"),
        ("kx", "yk", "yx"),
        ("xk", "ky", "xy"),
        ("kx", "ky", "yx"),
        ("xk", "gyk", "xgy"),
        ("gxk", "yk", "gyx"),
        ("xk", "k", "x"),
        ("k", "yk", "y"),
    ],
)
@pytest.mark.parametrize("lengths", [{"x": 7, "y": 20, "k": 33, "g": 3}, {"x": 40, "y": 1, "k": 1, "g": 2}])
def test_contracts_of_any_axes(a: str, b: str, c: str, computed: str, lengths: dict[str, int]):
    used = {x: n for x, n in lengths.items() if x in a + b + c}
    agree(product(a, b, c, "k", used, computed=computed), {})


@pytest.mark.parametrize("dtype", ["f64", "i64"])
def test_contracts_of_other_types(dtype: DType):
    given: dict[str, Any] = {}
    if dtype == "i64":
        rng = np.random.default_rng(1)
        given = {"A": rng.integers(-9, 9, (7, 33)), "B": rng.integers(-9, 9, (20, 33))}
    agree(
        product("xk", "yk", "xy", "k", {"x": 7, "y": 20, "k": 33}, dtype),
        {},
        rtol=1e-13,
        **given,
    )


# ------------------------------------------------------------------------------------------------ reductions and maps


@pytest.mark.parametrize("op", ["sum", "max", "min"])
@pytest.mark.parametrize("dtype", ["f32", "f64", "i64", "i32", "f16"])
@pytest.mark.parametrize("axis", ["i", "j"])
@pytest.mark.parametrize("tile_n", [24, 300])
def test_reductions(op: Any, dtype: DType, axis: str, tile_n: int):
    other = "j" if axis == "i" else "i"
    x, r = tile("x", "ij", dtype), tile("r", other, dtype)
    kernel = Kernel(
        "reduce",
        (TensorParam("X", dtype, (N, M)), TensorParam("O", dtype, (N if other == "i" else M,), "out")),
        ("N", "M"),
        (),
        (Axis("i", N, 20), Axis("j", M, tile_n)),
        (
            Parallel(
                (Loop(index(other + "0"), N if other == "i" else M, 20 if other == "i" else tile_n),),
                (
                    Fill(r, const(1, dtype)),
                    Stream(
                        axis,
                        size(0),
                        M if axis == "j" else N,
                        partial(
                            LoadTile(x, "X", (i, j)),
                            Reduce(r, op, axis, var("x", dtype), accumulate=True),
                        ),
                    ),
                    StoreTile("O", (index(other),), (other,), var("r", dtype)),
                ),
            ),
        ),
    )
    rng = np.random.default_rng(2)
    values = rng.integers(-50, 50, (43, 70)).astype(numpy_dtype(dtype))
    agree(kernel, {"N": 43, "M": 70}, rtol=1e-3 if dtype == "f16" else 1e-6, X=values)


@pytest.mark.parametrize("where", [0, 7, 8, 39])
@pytest.mark.parametrize("op", ["max", "min"])
def test_nan_wins_in_reductions(op: Any, where: int):
    x, r = tile("x", "ij"), tile("r", "i")
    kernel = Kernel(
        "nan",
        (TensorParam("X", "f32", (N, M), "in", 1), TensorParam("O", "f32", (N,), "out")),
        ("N", "M"),
        (),
        (Axis("i", N, 8), Axis("j", M, 64)),
        (
            Parallel(
                (Loop(index("i0"), N, 8),),
                (
                    LoadTile(x, "X", (i, j)),
                    Reduce(r, op, "j", f("x")),
                    StoreTile("O", (i,), ("i",), f("r")),
                ),
            ),
        ),
    )
    values = np.random.default_rng(3).standard_normal((5, 40)).astype(np.float32)
    values[3, where] = np.nan
    values[1, where] = np.inf
    out = execute(kernel, {"X": values}, {"N": 5, "M": 40})["O"]
    assert np.isnan(out[3]) and not np.isnan(out[[0, 1, 2, 4]]).any()
    np.testing.assert_array_equal(out, (np.max if op == "max" else np.min)(values, axis=1))


@pytest.mark.parametrize("op", ["sum", "max", "min"])
@pytest.mark.parametrize("rows", [2, 3, 6, 8, 9, 14])
def test_rows_of_a_block_are_folded_together(op: Any, rows: int):
    """Every row has its own result, in blocks of any number of rows; a NaN stays in its row."""
    x, r = tile("x", "ij"), tile("r", "i")
    kernel = Kernel(
        "fold",
        (TensorParam("X", "f32", (N, M), "in", 1), TensorParam("O", "f32", (N,), "out")),
        ("N", "M"),
        (),
        (Axis("i", N, 3 * rows), Axis("j", M, 32)),
        (
            Parallel(
                (Loop(index("i0"), N, 3 * rows),),
                (
                    Fill(r, const(2.0, "f32")),
                    Stream(
                        "j",
                        size(0),
                        M,
                        partial(LoadTile(x, "X", (i, j)), RowBlock("i", rows, (Reduce(r, op, "j", f("x"), accumulate=True),))),
                    ),
                    StoreTile("O", (i,), ("i",), f("r")),
                ),
            ),
        ),
    )
    values = np.random.default_rng(4).integers(-50, 50, (5 * rows - 1, 43)).astype(np.float32)
    values[rows, 41] = values[2 * rows - 1, 0] = np.nan
    out = execute(kernel, {"X": values}, {"N": len(values), "M": 43})["O"]
    initial = np.full((len(values), 1), 2, np.float32)
    expected = {"sum": np.sum, "max": np.max, "min": np.min}[op](np.concatenate([values, initial], 1), axis=1)
    np.testing.assert_array_equal(out, expected)


def test_masks_and_ids_of_every_type():
    """Boolean and integer tiles, a scalar parameter, transposed, strided and reversed reads and gathers in one expression."""
    keep, ids, out = tile("keep", "ij", "bool"), tile("ids", "j", "i32"), tile("o", "ij")
    reversed_j = call("sub", call("sub", M, size(1)), j)
    expr = call("where", var("keep", "bool"), call("mul", f("temperature"), load("X", (j, i), "f32")), const(-3.0, "f32"))
    expr = call("add", expr, load("Y", (call("mul", j, size(2)), i), "f32"))
    expr = call("add", expr, load("Y", (reversed_j, size(0)), "f32"))
    expr = call("add", expr, load("T", (cast(var("ids", "i32"), "i64"), i), "f32"))
    expr = call("add", expr, load("U", (cast(var("ids", "i32"), "i64"), j), "f32"))
    expr = call("add", expr, cast(call("floordiv", call("sub", i, j), size(3)), "f32"))
    kernel = Kernel(
        "masks",
        (
            TensorParam("keep", "bool", (N, M)),
            TensorParam("ids", "u8", (M,)),
            TensorParam("X", "f32", (M, N)),
            TensorParam("Y", "f32", (call("mul", size(2), M), N)),
            TensorParam("T", "f32", (size(5), N)),
            TensorParam("U", "f32", (size(5), M), "in", 1),
            TensorParam("O", "f32", (N, M), "out"),
        ),
        ("N", "M"),
        (ScalarParam("temperature", "f32"),),
        (Axis("i", N, 12), Axis("j", M, 24)),
        (
            Parallel(
                (Loop(index("i0"), N, 12), Loop(index("j0"), M, 24)),
                (
                    LoadTile(keep, "keep", (i, j)),
                    LoadTile(ids, "ids", (j,)),
                    Map(out, expr),
                    StoreTile("O", (i, j), ("i", "j"), f("o")),
                ),
            ),
        ),
    )
    rng = np.random.default_rng(4)
    given = {"keep": rng.random((31, 50)) < 0.5, "ids": rng.integers(0, 5, 50).astype(np.uint8)}
    agree(kernel, {"N": 31, "M": 50}, {"temperature": 1.5}, rtol=1e-6, **given)


def test_loads_with_negative_and_missing_strides():
    """X[M - 1 - j], X[0] for all lanes, and a bias band X[i - j + M - 1], in tiles with tails."""
    band = call("add", call("sub", i, j), call("sub", M, size(1)))
    t, u = tile("t", "ij"), tile("u", "ji")
    kernel = Kernel(
        "bands",
        (TensorParam("X", "f32", (call("sub", call("add", N, M), size(1)),), "in", 0), TensorParam("O", "f32", (N, M), "out", 1)),
        ("N", "M"),
        (),
        (Axis("i", N, 6), Axis("j", M, 16)),
        (
            Parallel(
                (Loop(index("i0"), N, 6), Loop(index("j0"), M, 16)),
                (
                    LoadTile(t, "X", (band,)),
                    LoadTile(u, "X", (call("sub", call("sub", M, size(1)), j),)),
                    StoreTile("O", (i, j), ("i", "j"), call("add", call("add", f("t"), f("u")), load("X", (size(0),), "f32"))),
                ),
            ),
        ),
    )
    agree(kernel, {"N": 13, "M": 21}, rtol=1e-6)


def test_stores_through_permuted_indices():
    t = tile("t", "ij")
    kernel = Kernel(
        "permuted",
        (
            TensorParam("X", "f32", (N, M), "in", 1),
            TensorParam("P", "f32", (M, N), "out", 1),
            TensorParam("H", "f16", (M, N), "out"),
        ),
        ("N", "M"),
        (),
        (Axis("i", N, 10), Axis("j", M, 16)),
        (
            Parallel(
                (Loop(index("i0"), N, 10), Loop(index("j0"), M, 16)),
                (
                    LoadTile(t, "X", (i, j)),
                    StoreTile("P", (j, i), ("i", "j"), call("mul", f("t"), const(2.0, "f32"))),
                    StoreTile("H", (call("sub", call("sub", M, size(1)), j), i), ("j", "i"), f("t")),
                ),
            ),
        ),
    )
    agree(kernel, {"N": 23, "M": 37}, rtol=1e-6)


def test_streams_of_nothing_and_bounds_from_memory():
    """A stream whose end is read from memory: no turn for some items, a tail inside a tile for others."""
    r = tile("r", "i")
    kernel = Kernel(
        "ragged",
        (TensorParam("X", "f32", (N, M), "in", 1), TensorParam("len", "i32", (N,)), TensorParam("O", "f32", (N,), "out")),
        ("N", "M"),
        (),
        (Axis("i", N, 1), Axis("j", M, 16)),
        (
            Parallel(
                (Loop(index("i0"), N, 1),),
                (
                    Fill(r, const(0.0, "f32")),
                    Stream(
                        "j",
                        size(0),
                        cast(load("len", (index("i0"),), "i32"), "i64"),
                        partial(Reduce(r, "sum", "j", load("X", (i, j), "f32"), accumulate=True)),
                    ),
                    StoreTile("O", (i,), ("i",), f("r")),
                ),
            ),
        ),
    )
    agree(kernel, {"N": 6, "M": 50}, rtol=1e-5, len=np.array([0, 1, 16, 17, 49, 50], np.int32))


def test_a_reduction_inside_an_expression():
    total = tile("t", "i")
    k = index("k")
    e_ = reduce("sum", k, M, call("mul", load("X", (i, k), "f32"), load("X", (i, k), "f32")))
    kernel = Kernel(
        "norms",
        (TensorParam("X", "f32", (N, M), "in", 1), TensorParam("O", "f32", (N,), "out", 0)),
        ("N", "M"),
        (),
        (Axis("i", N, 16),),
        (Parallel((Loop(index("i0"), N, 16),), (Map(total, e_), StoreTile("O", (i,), ("i",), call("sqrt", f("t"))))),),
    )
    agree(kernel, {"N": 19, "M": 11}, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_tiles_of_halves_are_rounded_as_they_are_loaded(dtype: DType):
    """Operands loaded from f32 tensors into tiles of halves: also those that are transposed into panels."""
    lengths = {"x": 7, "y": 20, "k": 33}
    kernel = product("xk", "yk", "xy", "k", lengths)
    a, b, c = tile("a", "xk", dtype), tile("b", "yk", dtype), tile("c", "xy")
    item = kernel.body[0]
    assert isinstance(item, Parallel)
    x, y, k = (index(n) for n in "xyk")
    body = (LoadTile(a, "A", (x, k)), LoadTile(b, "B", (y, k)), Contract(c, a, b, "k"), item.body[-1])
    tensors = tuple(replace(t, unit=1) for t in kernel.tensors)
    agree(replace(kernel, tensors=tensors, body=(replace(item, body=body),)), {}, rtol=1e-6)
