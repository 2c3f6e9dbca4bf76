"""Indices that come from tensors: clamped, checked, refused by the verifier where they are neither; ranges of integers."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aicf.kernel import (
    Axis,
    Check,
    Kernel,
    LoadTile,
    Loop,
    OutOfRange,
    Parallel,
    StoreTile,
    TensorParam,
    Tile,
    print_kernel,
    run_kernel,
    verify_kernel,
)
from aicf.kernel.indices import clamped
from aicf.kernel.lowering.checks import checked
from aicf.runtime.indices import needed
from aicf.scalar import DType, Expr, call, cast, const, evaluate, extents, index, load, size, var
from aicf.scalar.ranges import span

N, M, T = index("N"), index("M"), index("T")
i, j = index("i"), index("j")


def looked_up(at: Expr, dtype: DType = "i64", tile: bool = False) -> Kernel:
    """O[i, j] = table[at], the table's element by way of a tile if so asked."""
    item: tuple[Any, ...]
    if tile:
        t = Tile("t", "f32", ("i", "j"), "register")
        item = (LoadTile(t, "table", (at,)), StoreTile("O", (i, j), ("i", "j"), index_of(t)))
    else:
        item = (StoreTile("O", (i, j), ("i", "j"), load("table", (at,), "f32")),)
    return Kernel(
        "looked_up",
        (
            TensorParam("table", "f32", (T,), "in", 0),
            TensorParam("X", dtype, (N, M), "in", 1),
            TensorParam("O", "f32", (N, M), "out", 1),
        ),
        ("N", "M", "T"),
        (),
        (Axis("i", N, 4), Axis("j", M, 8)),
        (Parallel((Loop(index("i0"), N, 4), Loop(index("j0"), M, 8)), item),),
    )


def index_of(t: Tile) -> Expr:
    return var(t.name, t.dtype)


X = load("X", (i, j), "i64")
WRAPPED = call("inside", call("where", call("lt", X, size(0)), call("add", X, T), X), T)


@pytest.mark.parametrize("tile", [False, True])
def test_an_index_from_a_tensor_is_clamped_and_checked(tile: bool) -> None:
    kernel = checked(looked_up(WRAPPED, tile=tile))
    (check,) = kernel.checks
    assert check == Check("table", 0, X, T, True, (Loop(i, N), Loop(j, M)))
    assert "check   -T <= X[i, j] < T, dimension 0 of table, for i < N, j < M" in print_kernel(kernel)
    assert "table[max(0, min(where(X[i, j] < 0, T + X[i, j], X[i, j]), T - 1))]" in print_kernel(kernel)
    assert verify_kernel(kernel) == []


def test_what_is_known_needs_nothing() -> None:
    with extents({i: N, j: M}):
        assert call("inside", i, N) is i and call("inside", call("add", i, size(2)), call("add", N, size(2))) is not i
    kernel = looked_up(call("mod", j, size(5)))
    assert checked(kernel) is kernel


def test_an_index_of_positions_is_checked_too() -> None:
    kernel = checked(looked_up(call("inside", call("add", call("sub", i, j), size(3)), T)))
    (check,) = kernel.checks
    assert check == Check("table", 0, call("add", call("sub", i, j), size(3)), T, False, (Loop(i, N), Loop(j, M)))


def test_an_index_of_an_index() -> None:
    inner = call("inside", load("X", (call("inside", call("add", i, size(1)), N), j), "i64"), T)
    first, second = checked(looked_up(inner)).checks
    assert (first.tensor, first.dim, second.tensor, second.dim) == ("X", 0, "table", 0)
    assert second.value is load("X", (clamped(call("add", i, size(1)), N), j), "i64")


def test_the_interpreter_raises() -> None:
    kernel = checked(looked_up(WRAPPED))
    x = np.random.default_rng(0).integers(-7, 7, (6, 11))
    given: dict[str, Any] = {"table": np.arange(7, dtype=np.float32), "X": x, "O": np.zeros((6, 11), np.float32)}
    run_kernel(kernel, given, {"N": 6, "M": 11, "T": 7})
    np.testing.assert_array_equal(given["O"], given["table"][x])
    for wrong in (7, -8, 10**12):
        x[5, 10] = wrong
        with pytest.raises(
            OutOfRange, match=rf"index {wrong} .taken from X. is out of range for dimension 0 of table, which has 7"
        ):
            run_kernel(kernel, given, {"N": 6, "M": 11, "T": 7})


def test_the_verifier_wants_indices_from_tensors_clamped() -> None:
    bare = looked_up(X)
    (problem,) = verify_kernel(bare)
    assert (
        "index `X[i, j]` comes from a tensor and may be outside of dimension 0 of table: write max(0, min(x, T - 1))" in problem
    )
    assert verify_kernel(looked_up(clamped(X, T))) == []
    assert verify_kernel(looked_up(clamped(X, call("add", T, size(1))))) != []  # of another dimension's length
    assert len(verify_kernel(looked_up(X, tile=True))) == 1
    (problem,) = verify_kernel(looked_up(call("inside", call("add", i, size(1)), T)))
    assert "is to be clamped, and checked by the kernel" in problem


def test_the_verifier_reads_checks() -> None:
    kernel = checked(looked_up(WRAPPED))
    (good,) = kernel.checks
    for change, what in (
        ({"tensor": "rug"}, "there is no tensor rug"),
        ({"dim": 1}, "table has no dimension 1, its rank is 1"),
        ({"loops": good.loops[:1]}, "uses j, which is not bound here"),
        ({"extent": const(3.0, "f32")}, "is f32, it must be an integer"),
        ({"value": load("table", (i,), "f32")}, "is f32, it must be an integer"),
        ({"loops": (*good.loops, Loop(N, M))}, "N is bound already"),
        ({"loops": (replace(good.loops[0], step=0), good.loops[1])}, "must be at least 1"),
    ):
        problems = verify_kernel(replace(kernel, checks=(replace(good, **change),)))  # type: ignore[arg-type]
        assert any(what in p for p in problems), (what, problems)


def test_sizes_prove_what_needs_no_check() -> None:
    relative = checked(looked_up(call("inside", call("add", call("sub", i, j), size(3)), T)))
    assert needed(relative, {"N": 4, "M": 4, "T": 7}) == ([], [])
    assert needed(relative, {"N": 5, "M": 4, "T": 7}) == ([0], [])  # 4 - 0 + 3 is outside
    assert needed(relative, {"N": 0, "M": 9, "T": 7}) == ([], [])
    assert needed(checked(looked_up(WRAPPED)), {"N": 4, "M": 4, "T": 7}) == ([], [0])
    small = call("inside", cast(load("X", (i, j), "u8"), "i64"), T)
    assert needed(checked(looked_up(small, "u8")), {"N": 4, "M": 4, "T": 256}) == ([], [])
    assert needed(checked(looked_up(small, "u8")), {"N": 4, "M": 4, "T": 255}) == ([], [0])


def test_ranges_hold(rng: np.random.Generator) -> None:
    """Of random expressions, at all values of their variables."""
    a, b = index("a"), index("b")
    ranges = {"a": (-3, 5), "b": (0, 4)}
    env = {name: np.arange(low, high + 1) for name, (low, high) in ranges.items()}
    env["b"] = env["b"][:, None]
    for _ in range(300):
        made: list[Expr] = [a, b, *(size(int(k)) for k in rng.integers(-4, 9, 2))]
        for _ in range(int(rng.integers(1, 6))):
            x, y = (made[int(k)] for k in rng.integers(0, len(made), 2))
            fn = str(rng.choice(["add", "sub", "mul", "neg", "abs", "max", "min", "floordiv", "mod", "where", "inside", "cast"]))
            if fn in ("neg", "abs"):
                made.append(call(fn, x))
            elif fn in ("floordiv", "mod"):
                made.append(call(fn, x, size(int(rng.integers(1, 6)))))
            elif fn == "where":
                made.append(call("where", call("lt", x, y), x, y))
            elif fn == "cast":
                made.append(cast(cast(x, str(rng.choice(["i8", "i32", "bool"]))), "i64"))  # type: ignore[arg-type]
            else:
                made.append(call(fn, x, size(int(rng.integers(1, 6))) if fn == "inside" else y))
        low, high = span(made[-1], ranges)
        values = evaluate(made[-1], env)
        assert low <= np.min(values) and np.max(values) <= high, made[-1]


def test_clamps_are_what_they_say() -> None:
    for x, n in itertools.product((-3, 0, 1, 5), (1, 4)):
        assert (
            evaluate(clamped(size(x), size(n)), {})
            == min(max(x, 0), n - 1)
            == evaluate(call("inside", index("x"), size(n)), {"x": x})
        )
