"""Checks of indices in compiled code: what they find, in every shape of loops, and that nothing runs after one that failed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aicf.kernel import Axis, Check, Kernel, Loop, OutOfRange, Parallel, StoreTile, TensorParam, verify_kernel
from aicf.kernel.indices import clamped
from aicf.kernel.lowering.checks import checked
from aicf.scalar import DType, call, cast, index, integer, load, size
from tests.kernel import programs

from .running import compiled, execute

pytestmark = pytest.mark.usefixtures("code_path")

B, N, M, T = (index(x) for x in "BNMT")
b, i, j, t = (index(x) for x in "bijt")
SIZES = {"B": 2, "N": 37, "M": 29, "T": 11}


def kernel(at: tuple[Any, ...], dtype: DType = "i64", wraps: bool = True) -> Kernel:
    """O[b, i, j] = table[X[at]]."""
    x = cast(load("X", at, dtype), "i64")
    if wraps:
        x = call("where", call("lt", x, size(0)), call("add", x, T), x)
    shape = {"b": B, "i": N, "j": M}
    made = Kernel(
        "looked_up",
        (
            TensorParam("table", "f32", (T,), "in", 0),
            TensorParam("X", dtype, tuple(shape[v.name] for v in at), "in", len(at) - 1 if at else None),
            TensorParam("O", "f32", (B, N, M), "out", 2),
        ),
        ("B", "N", "M", "T"),
        (),
        (Axis("i", N, 8), Axis("j", M, 20)),
        (
            Parallel(
                (Loop(b, B), Loop(index("i0"), N, 8), Loop(index("j0"), M, 20)),
                (StoreTile("O", (b, i, j), ("i", "j"), load("table", (call("inside", x, T),), "f32")),),
            ),
        ),
    )
    made = checked(made)
    assert len(made.checks) == 1 and verify_kernel(made) == []
    return made


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", ["i64", "i32", "u8"])
@pytest.mark.parametrize(
    "at", [(b, i, j), (i, j), (j, i), (b, j), (i,), (j,), (b,), ()], ids=lambda at: "".join(v.name for v in at)
)
def test_the_first_and_the_last_wrong_index_are_found(at: tuple[Any, ...], dtype: DType, threads: int) -> None:
    rng = np.random.default_rng(0)
    made = kernel(at, dtype)
    shape = tuple(integer(d, SIZES) for d in made.tensor("X").shape)
    low = 0 if dtype == "u8" else -11
    kind = {"i64": np.int64, "i32": np.int32, "u8": np.uint8}[dtype]
    x = np.asarray(rng.integers(low, 11, shape)).astype(kind)
    table = rng.standard_normal(11).astype(np.float32)
    out = execute(made, {"table": table, "X": x}, SIZES, threads=threads)["O"]
    letters = "".join(v.name for v in at)
    whole = np.broadcast_to(np.einsum(f"{letters}->{''.join(sorted(letters))}", x).reshape(
        [SIZES[s] if v in letters else 1 for v, s in zip("bij", "BNM", strict=True)]), (2, 37, 29))  # fmt: skip
    np.testing.assert_array_equal(out, table[whole.astype(np.int64)])
    for place in (0, -1, x.size // 2):
        for wrong in (11, 200) if dtype == "u8" else (11, -12, 2**31 - 1):
            bad = x.copy()
            bad.reshape(-1)[place] = wrong
            untouched = np.full((2, 37, 29), 3.0, np.float32)
            with pytest.raises(
                OutOfRange, match=rf"^index {wrong} .taken from X. is out of range for dimension 0 of table, which has 11"
            ):
                execute(made, {"table": table, "X": bad, "O": untouched}, SIZES, threads=threads)
            assert (untouched == 3).all()


def test_negative_indices_are_wrong_where_they_do_not_wrap() -> None:
    x = np.zeros((37, 29), np.int64)
    table = np.ones(11, np.float32)
    assert (execute(kernel((i, j), wraps=False), {"table": table, "X": x}, SIZES)["O"] == 1).all()
    x[36, 28] = -1
    with pytest.raises(OutOfRange, match=r"^index -1 "):
        execute(kernel((i, j), wraps=False), {"table": table, "X": x}, SIZES)


def test_a_table_of_nothing() -> None:
    sizes = {**SIZES, "T": 0}
    table = np.zeros(0, np.float32)
    with pytest.raises(OutOfRange, match="which has 0 elements"):
        execute(kernel((i, j)), {"table": table, "X": np.zeros((37, 29), np.int64)}, sizes)


def test_loops_that_are_no_axes() -> None:
    """A page table is looked at page by page."""
    made = programs.paged()
    assert [v.var.name for v in made.checks[0].loops] == ["b", "t"]
    rng = np.random.default_rng(0)
    given = {
        "Q": rng.standard_normal((2, 3, 50, 8)).astype(np.float32),
        "K": rng.standard_normal((40, 3, 4, 8)).astype(np.float32),
        "V": rng.standard_normal((40, 3, 4, 12)).astype(np.float32),
        "pages": rng.integers(0, 40, (2, 18)),
    }
    sizes = {"B": 2, "H": 3, "N": 50, "M": 70, "G": 40, "T": 18}
    assert np.isfinite(execute(made, given, sizes)["O"]).all()
    given["pages"][1, 17] = 40
    with pytest.raises(
        OutOfRange, match=r"index 40 .taken from pages. is out of range for dimension 0 of K, which has 40 elements"
    ):
        execute(made, given, sizes)
    # Without the check the index is clamped all the same.
    assert np.isfinite(execute(replace(made, checks=()), given, sizes)["O"]).all()


def test_checks_can_be_left_out_and_run_alone() -> None:
    made = replace(kernel((i, j)), checks=())
    made = replace(made, checks=(
        Check("table", 0, call("sub", i, size(30)), T, True, (Loop(i, N),)),
        Check("table", 0, load("X", (i, j), "i64"), T, True, (Loop(i, N), Loop(j, M))),
    ))  # fmt: skip
    code = compiled(made).launcher
    x, table, out = np.zeros((37, 29), np.int64), np.ones(11, np.float32), np.zeros((2, 37, 29), np.float32)
    tensors = {n: (a.ctypes.data, tuple(s // a.itemsize for s in a.strides)) for n, a in (("table", table), ("X", x), ("O", out))}
    words = code.words(tensors, SIZES, {})
    with pytest.raises(OutOfRange, match="index -30 is out of range"):
        code.call(words, 1)
    with pytest.raises(OutOfRange, match="index -30 is out of range"):
        code.try_checks(words, 1)
    code.ask(words, [1])
    code.try_checks(words, 2)
    assert (out == 0).all()
    code.call(words, 1)
    assert (out == 1).all()
    x[3, 3] = 11
    with pytest.raises(OutOfRange, match="index 11 "):
        code.call(words, 1)


def test_several_that_fail_are_told_in_order() -> None:
    clamp = clamped(load("X", (i, j), "i64"), T)
    made = replace(kernel((i, j)), checks=(
        Check("table", 0, clamp, T, False, (Loop(i, N), Loop(j, M))),
        Check("table", 0, call("add", clamp, size(1)), T, False, (Loop(i, N), Loop(j, M))),
        Check("table", 0, call("add", clamp, size(2)), T, False, (Loop(i, N), Loop(j, M))),
    ))  # fmt: skip
    x = np.full((37, 29), 10)
    with pytest.raises(OutOfRange, match=r"^index 11 "):
        execute(made, {"table": np.ones(11, np.float32), "X": x}, SIZES, threads=2)
