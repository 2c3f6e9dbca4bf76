"""Hand-written Kernel IR programs for tests of the interpreter and the backends: the form that lowering produces."""

from __future__ import annotations

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
    TensorParam,
    Tile,
)
from aicf.scalar import DType, call, const, index, size, var

NEG = const(float("-inf"), "f32")
TRUE = const(True, "bool")


def f(name: str):
    return var(name, "f32")


def attention(
    *, d: int, dv: int, group: int = 1, causal: bool = False, tile_m: int = 96, tile_n: int = 64, rows: int = 6,
    scale: float = 0.125, dtype: DType = "f32", unit: int | None = 3,
) -> Kernel:  # fmt: skip
    """softmax(q k^T * scale) v, with an optional causal mask (key <= query).

    q [B, H, N, d], k [B, H/group, M, d], v [B, H/group, M, dv].
    """
    b, h, i, j = index("b"), index("h"), index("i"), index("j")
    axes = (Axis("i", index("N"), tile_m), Axis("j", index("M"), tile_n), Axis("d", size(d), d), Axis("e", size(dv), dv))
    i0, j0 = axes[0].origin, axes[1].origin
    hk = call("floordiv", h, size(group))
    kv = size(1) if group == 0 else call("floordiv", index("H"), size(group))
    params = (
        TensorParam("Q", dtype, (index("B"), index("H"), index("N"), size(d)), "in", unit),
        TensorParam("K", dtype, (index("B"), kv, index("M"), size(d)), "in", unit),
        TensorParam("V", dtype, (index("B"), kv, index("M"), size(dv)), "in", unit),
        TensorParam("O", dtype, (index("B"), index("H"), index("N"), size(dv)), "out", 3),
    )
    q = Tile("q", "f32", ("i", "d"), "shared")
    k = Tile("k", "f32", ("j", "d"), "shared")
    v = Tile("v", "f32", ("j", "e"), "shared")
    s = Tile("s", "f32", ("i", "j"), "register")
    p = Tile("p", "f32", ("i", "j"), "register")
    m, l, t, n, r, a = (Tile(x, "f32", ("i",), "register") for x in "mltnra")
    acc = Tile("acc", "f32", ("i", "e"), "register")

    def block(masked: bool):
        score = call("mul", f("s"), const(scale, "f32"))
        if masked and causal:
            score = call("where", call("le", j, i), score, NEG)
        return (
            LoadTile(k, "K", (b, hk, j, index("d"))),
            LoadTile(v, "V", (b, hk, j, index("e"))),
            RowBlock("i", rows, (
                Contract(s, q, k, "d"),
                Map(s, score),
                Reduce(t, "max", "j", f("s")),
                Map(n, call("max", f("m"), f("t"))),
                Map(r, call("where", call("eq", f("n"), NEG), const(0.0, "f32"), f("n"))),
                Map(a, call("exp", call("sub", f("m"), f("r")))),
                Map(p, call("exp", call("sub", f("s"), f("r")))),
                Map(l, call("mul", f("l"), f("a"))),
                Reduce(l, "sum", "j", f("p"), accumulate=True),
                Contract(acc, p, v, "j", accumulate=True, rescale=a),
                Map(m, f("n")),
            )),
        )  # fmt: skip

    last_i = call("sub", call("min", call("add", i0, size(tile_m)), index("N")), size(1))
    inside = call("le", call("add", j0, size(tile_n)), index("M"))
    last_j = call("add", j0, size(tile_n - 1))
    if causal:
        phases = (
            Phase("empty", call("gt", j0, last_i), False, ()),
            Phase("full", call("and", inside, call("le", last_j, i0)), True, block(False)),
            Phase("partial", TRUE, False, block(True)),
        )
    else:
        phases = (Phase("full", inside, True, block(False)), Phase("partial", TRUE, False, block(False)))
    body = Parallel(
        (Loop(b, index("B")), Loop(h, index("H")), Loop(i0, index("N"), tile_m)),
        (
            LoadTile(q, "Q", (b, h, i, index("d"))),
            Fill(m, NEG),
            Fill(l, const(0.0, "f32")),
            Fill(acc, const(0.0, "f32")),
            Stream("j", size(0), index("M"), phases),
            StoreTile("O", (b, h, i, index("e")), ("i", "e"), call("div", f("acc"), f("l"))),
        ),
    )
    return Kernel("attention", params, ("B", "H", "N", "M"), (), axes, (body,), (), ("hand-written for tests",))
