"""Tiles that take the place of the one they are computed from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aicf.backends.llvm.codegen.aliasing import aliases
from aicf.backends.llvm.codegen.layout import tiles_of
from aicf.kernel import Contract, Fill, Kernel, Map, Reduce, RowBlock, Stmt, Tile
from aicf.scalar import Expr, call, const, var

S, U, P, W = (Tile(n, "f32", ("i", "j"), "register") for n in "supw")
TOP, SUM = (Tile(n, "f32", ("i",), "register") for n in ("top", "sum"))
Q, K, V, O = (
    Tile(n, "f32", axes, "shared") for n, axes in zip("qkvo", (("i", "d"), ("j", "d"), ("j", "e"), ("i", "e")), strict=True)
)


def f(tile: Tile) -> Expr:
    return var(tile.name, "f32")


def minus(a: Tile, b: Tile) -> Expr:
    return call("sub", f(a), f(b))


SOFTMAX: tuple[Stmt, ...] = (
    Contract(S, Q, K, "d"),
    Map(U, call("mul", f(S), const(0.3, "f32"))),
    Reduce(TOP, "max", "j", f(U)),
    Map(P, call("exp", minus(U, TOP))),
    Reduce(SUM, "sum", "j", f(P)),
    Contract(O, P, V, "j"),
)


def found(*body: Stmt) -> dict[str, str]:
    kernel = Kernel("k", (), (), (), (), (RowBlock("i", 6, body),))
    return aliases(kernel, tiles_of(kernel))


def test_scores_weights_and_what_is_between_are_in_one_place():
    assert found(*SOFTMAX) == {"u": "s", "p": "u"}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ((*SOFTMAX, Reduce(SUM, "sum", "j", f(U))), {"u": "s"}),  # u is read after p is there
        ((*SOFTMAX, Contract(O, U, V, "j")), {"u": "s"}),
        ((*SOFTMAX, Fill(U, const(0.0, "f32"))), {}),  # or written, and u twice
        ((Reduce(SUM, "sum", "j", f(P)), *SOFTMAX), {"u": "s"}),  # p keeps its numbers from one block to the next
        ((Reduce(SUM, "sum", "j", f(S)), *SOFTMAX), {"p": "u"}),  # s does
        ((*SOFTMAX[:4], Map(P, minus(P, TOP)), *SOFTMAX[4:]), {"u": "s"}),  # written twice
        ((*SOFTMAX[:4], Map(W, f(U)), *SOFTMAX[4:]), {"u": "s", "w": "u"}),  # the last that reads u has its place
        ((RowBlock("j", 2, SOFTMAX[:1]), *SOFTMAX[1:]), {"p": "u"}),  # written in another list
    ],
)
def test_a_tile_that_is_still_wanted_keeps_its_place(body: tuple[Stmt, ...], expected: dict[str, str]):
    assert found(*body) == expected


def test_tiles_of_other_shapes_types_or_spaces_have_their_own():
    for other in (replace(P, axes=("j", "i")), replace(P, dtype="f64"), replace(P, space="shared")):
        body = [replace(s, tile=other) if isinstance(s, Map) and s.tile == P else s for s in SOFTMAX[:4]]
        assert found(*body) == {"u": "s"}, other
