"""The verifier accepts every well-formed program and names what is wrong in each of these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from aicf.kernel import (
    Axis,
    Contract,
    Fill,
    Kernel,
    KernelError,
    LoadTile,
    Loop,
    Map,
    Parallel,
    Phase,
    Reduce,
    Retry,
    RowBlock,
    StoreTile,
    Stream,
    Summary,
    TensorParam,
    check_kernel,
    verify_kernel,
)
from aicf.scalar import call, cast, const, index, load, size, var

from . import programs
from .handmade import attention
from .live_tiles import live_tiles
from .programs import ZERO, M, N, everything, f, i, j, tile

PROGRAMS: list[Callable[[], Kernel]] = [
    lambda: attention(d=64, dv=32, group=4, causal=True),
    programs.bias,
    programs.table,
    programs.paged,
    programs.kv_major,
    programs.split_kv,
    programs.finite_fill,
    programs.documents,
    programs.dense_mask,
]


@pytest.mark.parametrize("make", PROGRAMS)
def test_well_formed_programs_have_no_problems(make: Callable[[], Kernel]):
    kernel = make()
    assert verify_kernel(kernel) == []
    check_kernel(kernel)


# A frame of one item that walks i: X [N, M] in, Y [N] out, W [N] scratch; the axis w is whole.
X, TOTAL = tile("x", "ij"), tile("total", "i")
GET = LoadTile(X, "X", (i, j))
PUT = StoreTile("Y", (i,), ("i",), f("total"))
ZEROED = Fill(TOTAL, ZERO)
I0 = index("i0")
TRUE = const(True, "bool")


def frame(*body: Any, loops: tuple[Loop, ...] | None = None) -> Kernel:
    return Kernel(
        "frame",
        (
            TensorParam("X", "f32", (N, M)),
            TensorParam("Y", "f32", (N,), "out"),
            TensorParam("W", "f32", (N,), "scratch"),
            TensorParam("T", "i64", (N,)),
        ),
        ("N", "M"),
        (),
        (Axis("i", N, 16), Axis("j", M, 8), Axis("w", size(4), 4), Axis("u", size(4), 4)),
        (Parallel(loops or (Loop(I0, N, 16),), body),),
    )


def stream(*body: Any, **options: Any) -> Stream:
    return Stream("j", options.get("lo", size(0)), options.get("hi", M), options.get("phases", everything(body)))


def summing(*body: Any) -> Kernel:
    """A right program around the statements `body` of its stream."""
    return frame(ZEROED, stream(*body), PUT)


ADD = Reduce(TOTAL, "sum", "j", f("x"), accumulate=True)
CONTRACT_A, CONTRACT_B, PRODUCT = tile("ca", "iw"), tile("cb", "uw"), tile("ab", "iu")
FILL_AB = Fill(CONTRACT_A, ZERO), Fill(CONTRACT_B, ZERO)

WRONG: list[tuple[str, Kernel, str]] = [
    ("use before definition", summing(ADD), "uses x, which is not bound here"),
    ("scope of a phase", frame(ZEROED, stream(GET), Map(TOTAL, f("x")), PUT), "uses x, which is not bound here"),
    (
        "scope of row blocks",
        frame(ZEROED, RowBlock("i", 4, (Fill(tile("z", "i"), ZERO),)), Map(TOTAL, f("z")), PUT),
        "uses z, which is not bound here",
    ),
    (
        "accumulating into nothing",
        frame(stream(GET, ADD), Fill(TOTAL, ZERO), PUT),
        "accumulates into total, which has no value yet",
    ),
    (
        "another definition of a tile",
        frame(ZEROED, Fill(tile("total", "i", "shared"), ZERO), PUT),
        "total is written as f32[i] shared, it was defined as f32[i] register",
    ),
    ("unknown axis", frame(ZEROED, Fill(tile("z", "k"), ZERO), PUT), "there is no axis k"),
    ("axis twice", frame(ZEROED, Fill(tile("z", "ii"), ZERO), PUT), "the axes of z are not unique"),
    (
        "axis that no loop walks",
        frame(ZEROED, GET, PUT),
        "no loop around walks axis j, and its extent M is not known to fit one tile of 8",
    ),
    ("name of a size", frame(ZEROED, Fill(tile("N", "i"), ZERO), PUT), "the name N means a size, scalar or position already"),
    (
        "type of a fill",
        frame(Fill(TOTAL, const(0, "i64")), PUT),
        "the value is i64, total is f32; say how to convert with a cast",
    ),
    ("type of a variable", frame(ZEROED, Map(TOTAL, cast(var("total", "f64"), "f32")), PUT), "takes total for f64, it is f32"),
    ("type of a load", frame(Map(TOTAL, load("T", (i,), "f32")), PUT), "`T[i]` is taken for f32, T is i64"),
    ("position of another axis", frame(ZEROED, Map(TOTAL, cast(j, "f32")), PUT), "uses position j, but there is no axis j here"),
    ("axes of an operand", summing(GET, Map(TOTAL, f("x"))), "uses tile x, whose axis j is not here"),
    ("position in a fill", frame(Fill(TOTAL, cast(i, "f32")), PUT), "uses position i, but there is no axis i here"),
    ("rank of a load", summing(LoadTile(X, "X", (i,)), ADD), "X has rank 2, the index has 1 parts"),
    ("rank of an element load", frame(Map(TOTAL, load("X", (i,), "f32")), PUT), "X has rank 2, the index has 1 parts"),
    ("unknown tensor", summing(LoadTile(X, "Q", (i, j)), ADD), "there is no tensor Q"),
    ("index type", frame(Map(TOTAL, load("X", (i, ZERO), "f32")), PUT), "index `0.0` is f32, it must be an integer"),
    ("reduced axis stays", summing(GET, Reduce(X, "sum", "j", f("x"))), "the result still has the axis j that is reduced"),
    (
        "contraction without its axis",
        frame(*FILL_AB, Contract(PRODUCT, CONTRACT_A, CONTRACT_B, "j"), ZEROED, PUT),
        "operand ca does not have",
    ),
    (
        "contraction with a shared axis",
        frame(*FILL_AB, Contract(PRODUCT, CONTRACT_A, CONTRACT_A, "w"), ZEROED, PUT),
        "both operands have axis i; they may share w only",
    ),
    (
        "axes of a contraction's result",
        frame(*FILL_AB, Contract(tile("ab", "i"), CONTRACT_A, CONTRACT_B, "w"), ZEROED, PUT),
        "the result has axes [i], the operands leave [i, u]",
    ),
    (
        "type of a contraction",
        frame(*FILL_AB, Contract(tile("ab", "iu", dtype="bf16"), CONTRACT_A, CONTRACT_B, "w"), ZEROED, PUT),
        "accumulates in bf16; it must be f32, f64, i32 or i64",
    ),
    (
        "rescale without accumulation",
        frame(*FILL_AB, ZEROED, Contract(PRODUCT, CONTRACT_A, CONTRACT_B, "w", rescale=TOTAL), PUT),
        "rescales an old value without accumulating",
    ),
    (
        "axis of a rescale",
        frame(*FILL_AB, ZEROED, Fill(PRODUCT, ZERO), Contract(PRODUCT, CONTRACT_A, CONTRACT_B, "w", True, CONTRACT_B), PUT),
        "rescale cb has axis u, which ca does not leave",
    ),
    ("output never stored", frame(ZEROED), "out tensor Y: is never stored"),
    ("output stored twice", frame(ZEROED, PUT, PUT), "out tensor Y: may be stored 2 times"),
    (
        "output not on every path",
        frame(
            ZEROED,
            Stream("w", size(0), size(4), (Phase("empty", call("gt", index("w0"), size(0)), False, ()), *everything((PUT,)))),
        ),
        "out tensor Y: is not stored on every path: a phase leaves it out",
    ),
    ("output stored by every turn", frame(ZEROED, stream(PUT)), "every turn of stream j0 writes the same elements"),
    (
        "output stored by every item",
        frame(ZEROED, PUT, loops=(Loop(index("z"), M), Loop(I0, N, 16))),
        "every turn of loop z writes the same elements",
    ),
    ("lanes that write one element", frame(ZEROED, StoreTile("Y", (I0,), ("i",), f("total"))), "axis i is not in the index"),
    (
        "output covered in part",
        frame(ZEROED, StoreTile("Y", (index("w"),), ("w",), ZERO)),
        "axis w covers 4 of dimension 0, whose extent is N",
    ),
    ("storing an input", frame(ZEROED, PUT, StoreTile("X", (i, size(0)), ("i",), f("total"))), "X is an input"),
    ("reading an output", frame(LoadTile(TOTAL, "Y", (i,)), PUT), "reads Y, which is an output"),
    ("scratch read too early", frame(LoadTile(TOTAL, "W", (i,)), PUT), "reads scratch W before anything is stored in it"),
    (
        "scratch of other items",
        frame(ZEROED, StoreTile("W", (i,), ("i",), f("total")), Map(TOTAL, load("W", (size(0),), "f32")), PUT),
        "reads scratch W that other items of loop i0 write meanwhile",
    ),
    (
        "store in a retry",
        frame(ZEROED, Retry(index("again"), "i", call("lt", f("total"), ZERO), (PUT,))),
        "inside a retry, where it may run twice",
    ),
    (
        "flag outside its retry",
        frame(Retry(index("again"), "i", TRUE, (ZEROED,)), Map(TOTAL, cast(index("again"), "f32")), PUT),
        "uses again, which is not bound here",
    ),
    (
        "start of a stream",
        frame(ZEROED, stream(GET, ADD, lo=size(4)), PUT),
        "`4` is not seen to be a multiple of the tile length; write it as x // 8 * 8",
    ),
    (
        "no sure phase",
        frame(ZEROED, stream(phases=(Phase("full", call("lt", index("j0"), M), False, ()),)), PUT),
        "no phase is sure to hold",
    ),
    (
        "empty phase with a body",
        frame(ZEROED, stream(phases=(Phase("empty", TRUE, False, (ZEROED,)),)), PUT),
        "the empty phase has a body",
    ),
    (
        "condition type",
        frame(ZEROED, stream(phases=(Phase("full", M, False, ()), *everything(()))), PUT),
        "phase full: `M` is i64, it must be bool",
    ),
    (
        "tile in a condition",
        frame(ZEROED, stream(phases=(Phase("full", call("lt", f("total"), ZERO), False, ()), *everything(()))), PUT),
        "a tile, which may not",
    ),
    (
        "axis walked twice",
        frame(ZEROED, Stream("i", size(0), N, everything(())), PUT),
        "axis i is walked by an enclosing loop already",
    ),
    (
        "tile over a streamed axis",
        frame(ZEROED, Fill(tile("z", "w"), ZERO), Stream("w", size(0), size(4), everything(())), PUT),
        "tile z has axis w from outside",
    ),
    ("rows step", frame(ZEROED, RowBlock("i", 17, ()), PUT), "step 17 must be from 1 to the tile length 16"),
    ("rows inside rows", frame(ZEROED, RowBlock("i", 4, (RowBlock("i", 2, ()),)), PUT), "axis i is blocked already"),
    (
        "blocks that overwrite",
        frame(ZEROED, Fill(tile("z", "w"), ZERO), RowBlock("i", 4, (Map(tile("z", "w"), ZERO),)), PUT),
        "every block of i overwrites z, which lives outside and has no axis i",
    ),
    ("step of a loop", frame(ZEROED, PUT, loops=(Loop(I0, N, 8),)), "i0 steps by 8, axis i has tiles of 16"),
    ("range of a loop", frame(ZEROED, PUT, loops=(Loop(I0, M, 16),)), "i0 runs to M, axis i to N"),
    ("nested parallel", frame(ZEROED, PUT, Parallel((), ())), "a parallel statement inside another"),
    (
        "statement outside items",
        replace(frame(ZEROED, PUT), body=(*frame(ZEROED, PUT).body, ZEROED)),
        "stands outside a parallel statement",
    ),
    ("unbound size", replace(frame(ZEROED, PUT), sizes=("N",)), "`M` uses M, which is not bound here"),
    ("parameter twice", replace(frame(ZEROED, PUT), sizes=("N", "M", "N")), "parameter N: declared twice"),
    (
        "summary without parameter",
        replace(frame(ZEROED, PUT), summaries=(Summary("X", "max", ("j",), (), load("T", (j,), "i64")),)),
        "summary X: X is not declared as a scratch tensor",
    ),
    (
        "summary of the wrong type",
        replace(frame(ZEROED, PUT), summaries=(Summary("W", "max", ("j",), (), load("T", (j,), "i64")),)),
        "summary W: the value is i64, W is f32",
    ),
]


@pytest.mark.parametrize(("kernel", "message"), [(k, m) for _, k, m in WRONG], ids=[name for name, _, _ in WRONG])
def test_what_is_wrong_is_said(kernel: Kernel, message: str):
    problems = verify_kernel(kernel)
    assert any(message in p for p in problems), problems


def test_the_frame_itself_is_right():
    assert verify_kernel(summing(GET, ADD)) == []
    assert verify_kernel(frame(*FILL_AB, ZEROED, Contract(PRODUCT, CONTRACT_A, CONTRACT_B, "w"), PUT)) == []


def test_problems_name_the_statement_and_are_all_reported():
    kernel = frame(ZEROED, Fill(tile("z", "k"), ZERO), LoadTile(X, "Q", (i,)), PUT)
    with pytest.raises(KernelError) as caught:
        check_kernel(kernel)
    assert caught.value.problems == [
        "`z[k:?] : f32 register = 0.0`: there is no axis k",
        "`x[i:16, j:8] : f32 register = load Q[i]`: there is no tensor Q",
        "`x[i:16, j:8] : f32 register = load Q[i]`: "
        "no loop around walks axis j, and its extent M is not known to fit one tile of 8",
    ]
    assert str(caught.value).startswith("kernel frame is not well formed:\n  `z[k:?]")
    with pytest.raises(KernelError, match=r"kernel frame, derived from attention: O at model\.py:7, is not well formed"):
        check_kernel(replace(kernel, header=("derived from attention: O at model.py:7",)))


def test_a_stream_may_start_at_any_expression_seen_to_be_aligned():
    window = call("sub", I0, size(100))
    aligned = call("mul", call("floordiv", call("max", window, size(0)), size(8)), size(8))
    for lo in (size(0), size(24), aligned, call("max", size(0), aligned), call("add", aligned, call("mul", M, size(16)))):
        assert verify_kernel(frame(ZEROED, stream(GET, ADD, lo=lo), PUT)) == []
    for lo in (M, window, call("add", aligned, size(1)), call("max", aligned, M)):
        assert len(verify_kernel(frame(ZEROED, stream(GET, ADD, lo=lo), PUT))) == 1


def test_what_is_live_at_once():
    kernel = attention(d=64, dv=64, tile_m=96, tile_n=64, rows=6)
    assert live_tiles(kernel, "shared") == 4 * (96 * 64 + 64 * 64 + 64 * 64)
    assert live_tiles(kernel, "register") == 4 * (96 * 64 + 2 * 96 + 2 * 6 * 64 + 4 * 6)


def test_dtype_of_a_contraction_of_integers():
    ints = {name: replace(t, dtype="i8") for name, t in (("a", CONTRACT_A), ("b", CONTRACT_B))}
    fills = [Fill(t, const(0, "i8")) for t in ints.values()]
    result = replace(PRODUCT, dtype="i32")
    assert verify_kernel(frame(*fills, ZEROED, Contract(result, ints["a"], ints["b"], "w"), PUT)) == []
    mixed = verify_kernel(frame(*fills, ZEROED, Contract(PRODUCT, ints["a"], ints["b"], "w"), PUT))
    assert mixed == [
        "`ab[i:16, u:4] : f32 register = contract ca[i, w], cb[u, w] over w`: operands are i8 and i8, the result is f32"
    ]
