"""Exponentials in base two: what is rewritten, and that the rewritten kernel computes the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aicf.backends.triton.base_two import in_base_two
from aicf.backends.triton.operands import Operands
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
    StoreTile,
    Stream,
    Tile,
    allocate,
    run_kernel,
    statements,
    verify_kernel,
)  # fmt: skip
from aicf.scalar import DType, Expr, call, const, round_to, show
from tests.contract import assert_contract
from tests.kernel.programs import NEG, ONE, TRUE, ZERO, B, H, M, N, b, c, e, f, h, i, j, params

I, J, C, E = Axis("i", N, 16), Axis("j", M, 16), Axis("c", const(8, "i64"), 8), Axis("e", const(12, "i64"), 12)
LATER = call("gt", j, i)


def kernel(score: Expr, dtype: DType, *, also: bool = False) -> Kernel:
    """Attention whose scores are `score` of the products `s`, as lowering writes it: a tile `x` of scores, its maximum, weights.
    `also`: the scaled scores are read by something else too."""
    q, k, v = (Tile(n, dtype, a, "shared") for n, a in (("q", ("i", "c")), ("k", ("j", "c")), ("v", ("j", "e"))))
    s, x, p = (Tile(n, "f32", ("i", "j"), "register") for n in "sxp")
    m, l, t, n, r, a = (Tile(name, "f32", ("i",), "register") for name in "mltnra")
    acc = Tile("acc", "f32", ("i", "e"), "register")
    weight = call("exp", call("sub", f("x"), f("r")))

    def body(masked: bool) -> tuple[Any, ...]:
        return (
            LoadTile(k, "K", (b, h, j, c)), LoadTile(v, "V", (b, h, j, e)),
            RowBlock("i", 8, (
                Contract(s, q, k, "c"),
                Map(x, call("where", LATER, NEG, score) if masked else score),
                Reduce(t, "max", "j", f("x")),
                Map(n, call("max", f("m"), f("t"))),
                Map(r, call("where", call("eq", f("n"), NEG), ZERO, f("n"))),
                Map(a, call("exp", call("sub", f("m"), f("r")))),
                Map(p, call("mul", weight, call("add", call("mul", f("x"), ZERO), ONE)) if also else weight),
                Map(l, call("mul", f("l"), f("a"))),
                Reduce(l, "sum", "j", f("p"), accumulate=True),
                Contract(acc, p, v, "j", accumulate=True, rescale=a),
                Map(m, f("n")),
            )),
        )  # fmt: skip

    j0, i0 = J.origin, I.origin
    whole = call("le", call("add", j0, const(15, "i64")), call("min", i0, call("sub", M, const(1, "i64"))))
    stream = Stream("j", const(0, "i64"), M, (Phase("full", whole, True, body(False)), Phase("partial", TRUE, False, body(True))))
    work = Parallel(
        (Loop(b, B), Loop(h, H), Loop(i0, N, 16)),
        (
            LoadTile(q, "Q", (b, h, i, c)), Fill(m, NEG), Fill(l, ZERO), Fill(acc, ZERO), stream,
            StoreTile("O", (b, h, i, e), ("i", "e"), call("div", f("acc"), f("l"))),
        ),
        "block",
    )  # fmt: skip
    tensors = tuple(replace(t, dtype=dtype) for t in params(8, 12))
    return Kernel("attention", tensors, ("B", "H", "N", "M"), (), (I, J, C, E), (work,))


def rewritten(k: Kernel) -> Kernel:
    return replace(k, body=in_base_two(k.body, Operands(k)))


def maps(k: Kernel, tile: str) -> list[str]:
    return [show(s.expr) for s in statements(k.body) if isinstance(s, Map) and s.tile.name == tile]


SCALED = call("mul", f("s"), const(0.3, "f32"))
CAPPED = call("mul", call("tanh", call("div", SCALED, const(20.0, "f32"))), const(20.0, "f32"))
SHIFTED = call("add", SCALED, const(0.5, "f32"))


@pytest.mark.parametrize("also", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("score", [SCALED, CAPPED, SHIFTED, f("s")], ids=["scaled", "capped", "shifted", "plain"])
def test_the_rewritten_kernel_computes_the_same(score: Expr, dtype: DType, also: bool):
    before = kernel(score, dtype, also=also)
    after = rewritten(before)
    assert verify_kernel(before) == [] and verify_kernel(after) == []
    rng = np.random.default_rng(0)
    shapes = {"Q": (1, 2, 40, 8), "K": (1, 2, 50, 8), "V": (1, 2, 50, 12)}
    given = {n: round_to((3 * rng.standard_normal(s)).astype(np.float32), dtype) for n, s in shapes.items()}
    sizes = {"B": 1, "H": 2, "N": 40, "M": 50}

    def run(k: Kernel, double: bool = False) -> Any:
        tensors = {**given, **allocate(k, sizes, ("out",), double=double)}
        run_kernel(k, tensors, sizes, double=double)
        return tensors["O"]

    assert_contract(run(after), run(before), run(before, double=True), dtype)


def test_scores_of_halves_take_one_multiply_add():
    k = rewritten(kernel(SCALED, "bf16"))
    assert maps(k, "x") == []  # the full phase uses the scores as they are
    assert maps(k, "x_unscaled") == ["where(j > i, -inf, s)"]
    assert maps(k, "p") == ["exp2(s * 0.43280852 - r_base2)", "exp2(x_unscaled * 0.43280852 - r_base2)"]
    assert maps(k, "t") == ["t * 0.3"] * 2


def test_scores_of_f32_keep_the_difference():
    assert maps(rewritten(kernel(SCALED, "f32")), "p") == ["exp2((x - r) * 1.442695)"] * 2


def test_scores_that_are_read_otherwise_stay():
    k = rewritten(kernel(SCALED, "bf16", also=True))
    assert maps(k, "x") == ["s * 0.3", "where(j > i, -inf, s * 0.3)"]
    assert maps(k, "x_unscaled") == []


def test_a_finite_fill_is_not_scaled_again():
    """The largest number times log2(e) is infinite: a row that hides everything with it would be NaN."""
    low = const(float(np.finfo(np.float32).min), "f32")
    k = rewritten(kernel(call("where", LATER, low, SCALED), "bf16"))
    assert maps(k, "x_unscaled") == [] and "base2" not in "".join(maps(k, "p"))


def test_large_caps_keep_their_tangent():
    far = call("mul", call("tanh", call("div", f("s"), const(1e4, "f32"))), const(1e4, "f32"))
    assert all("tanh" in text for text in maps(rewritten(kernel(far, "bf16")), "x"))
    assert not any("tanh" in text for text in maps(rewritten(kernel(CAPPED, "bf16")), "x"))
    assert all("tanh" in text for text in maps(rewritten(kernel(CAPPED, "f32")), "x"))
