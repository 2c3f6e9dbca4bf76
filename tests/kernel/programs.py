"""More hand-written kernels, one per form that lowering can produce, and the plain computation that each must equal.

All compute softmax(program(q k^T)) v; they differ in loop order, where the state lives, what the score program reads, and which
tiles are skipped. Sizes: B batches, H heads, N queries, M keys.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aicf.kernel import (
    Axis,
    Check,
    Contract,
    Fill,
    Kernel,
    LoadTile,
    Loop,
    Map,
    Parallel,
    Phase,
    Reduce,
    Retry,
    RowBlock,
    Stmt,
    StoreTile,
    Stream,
    Summary,
    TensorParam,
    Tile,
)
from aicf.kernel.indices import clamped
from aicf.scalar import DType, Expr, Var, call, cast, const, index, load, size, var
from tests.contract import assert_contract

b, h, i, j, c, d, e, t = (index(x) for x in "bhijcdet")
B, H, N, M = (index(x) for x in "BHNM")
NEG, ZERO, ONE = (const(x, "f32") for x in (float("-inf"), 0.0, 1.0))
TRUE = const(True, "bool")


def f(name: str) -> Var:
    return var(name, "f32")


def tile(name: str, axes: str, space: Any = "register", dtype: DType = "f32") -> Tile:
    return Tile(name, dtype, tuple(axes), space)


Q, K, V = tile("q", "id", "shared"), tile("k", "jd", "shared"), tile("v", "je", "shared")
S, P, ACC = tile("s", "ij"), tile("p", "ij"), tile("acc", "ie")
RM, RL, RT, RN, RR, RA = (tile(x, "i") for x in ("m", "l", "t", "n", "r", "a"))


def params(width: int, value_width: int, out_role: Any = "out") -> tuple[TensorParam, ...]:
    return (
        TensorParam("Q", "f32", (B, H, N, size(width))),
        TensorParam("K", "f32", (B, H, M, size(width))),
        TensorParam("V", "f32", (B, H, M, size(value_width))),
        TensorParam("O", "f32", (B, H, N, size(value_width)), out_role),
    )


def axes(width: int, value_width: int, tile_m: int, tile_n: int) -> tuple[Axis, ...]:
    return (Axis("i", N, tile_m), Axis("j", M, tile_n), Axis("d", size(width), width), Axis("e", size(value_width), value_width))


def start() -> tuple[Stmt, ...]:
    return Fill(RM, NEG), Fill(RL, ZERO), Fill(ACC, ZERO)


def update(score: Expr, rows: int) -> RowBlock:
    """One tile's step of the online softmax for the score program `score` (of `s`)."""
    return RowBlock("i", rows, (
        Contract(S, Q, K, "d"),
        Map(S, score),
        Reduce(RT, "max", "j", f("s")),
        Map(RN, call("max", f("m"), f("t"))),
        Map(RR, call("where", call("eq", f("n"), NEG), ZERO, f("n"))),
        Map(RA, call("exp", call("sub", f("m"), f("r")))),
        Map(P, call("exp", call("sub", f("s"), f("r")))),
        Map(RL, call("mul", f("l"), f("a"))),
        Reduce(RL, "sum", "j", f("p"), accumulate=True),
        Contract(ACC, P, V, "j", accumulate=True, rescale=RA),
        Map(RM, f("n")),
    ))  # fmt: skip


def load_kv() -> tuple[Stmt, ...]:
    return LoadTile(K, "K", (b, h, j, d)), LoadTile(V, "V", (b, h, j, e))


def scaled(scale: float) -> Expr:
    return call("mul", f("s"), const(scale, "f32"))


def everything(body: tuple[Stmt, ...]) -> tuple[Phase, ...]:
    return (Phase("partial", TRUE, False, body),)


STORE = StoreTile("O", (b, h, i, e), ("i", "e"), call("div", f("acc"), f("l")))
LOAD_Q = LoadTile(Q, "Q", (b, h, i, d))


def items(i0: Var, tile_m: int) -> tuple[Loop, ...]:
    return Loop(b, B), Loop(h, H), Loop(i0, N, tile_m)


def q_major(
    name: str, score: Expr, extra: tuple[TensorParam, ...] = (), *, width: int = 8, value_width: int = 12, tile_m: int = 20,
    tile_n: int = 16, rows: int = 6,
) -> Kernel:  # fmt: skip
    """The plain order, every tile alike, with any score program."""
    ax = axes(width, value_width, tile_m, tile_n)
    stream = Stream("j", size(0), M, everything((*load_kv(), update(score, rows))))
    body = Parallel(items(ax[0].origin, tile_m), (LOAD_Q, *start(), stream, STORE))
    return Kernel(name, (*params(width, value_width), *extra), ("B", "H", "N", "M"), (), ax, (body,))


def bias() -> Kernel:
    """A float bias by (head, query, key), read an element at a time, and a boolean key-padding mask by (batch, key)."""
    score = call("add", scaled(0.5), load("bias", (h, i, j), "f32"))
    score = call("where", load("keep", (b, j), "bool"), score, NEG)
    return q_major("bias", score, (TensorParam("bias", "f32", (H, N, M)), TensorParam("keep", "bool", (B, M))))


def table() -> Kernel:
    """A learned bias gathered from a table by clipped relative distance (T5's form without its logarithm)."""
    distance = call("max", size(-4), call("min", size(4), call("sub", j, i)))
    return q_major(
        "table",
        call("add", scaled(0.5), load("table", (call("add", distance, size(4)), h), "f32")),
        (TensorParam("table", "f32", (size(9), H)),),
    )


def paged(page: int = 4) -> Kernel:
    """K and V lie in pages, found through an integer table by (batch, page of the key)."""
    kernel = q_major("paged", scaled(0.5))
    where = clamped(load("pages", (b, call("floordiv", j, size(page))), "i64"), index("G"))
    inside = call("mod", j, size(page))
    old = kernel.body[0]
    assert isinstance(old, Parallel)
    loads = LoadTile(K, "K", (where, h, inside, d)), LoadTile(V, "V", (where, h, inside, e))
    stream = Stream("j", size(0), M, everything((*loads, update(scaled(0.5), 6))))
    tensors = (
        kernel.tensors[0],
        TensorParam("K", "f32", (index("G"), H, size(page), size(8))),
        TensorParam("V", "f32", (index("G"), H, size(page), size(12))),
        kernel.tensors[3],
        TensorParam("pages", "i64", (B, index("T"))),
    )
    body = Parallel(old.loops, (LOAD_Q, *start(), stream, STORE))
    check = Check("K", 0, load("pages", (b, t), "i64"), index("G"), True, (Loop(b, B), Loop(t, index("T"))))
    return Kernel("paged", tensors, ("B", "H", "N", "M", "G", "T"), (), kernel.axes, (body,), checks=(check,))


def kv_major(tile_m: int = 20, tile_n: int = 16, rows: int = 6) -> Kernel:
    """Keys outside, queries inside: the state of every query waits in scratch between key tiles."""
    ax = axes(8, 12, tile_m, tile_n)
    scratch = (
        TensorParam("sm", "f32", (B, H, N), "scratch"),
        TensorParam("sl", "f32", (B, H, N), "scratch"),
        TensorParam("sacc", "f32", (B, H, N, size(12)), "scratch"),
    )
    get = LoadTile(RM, "sm", (b, h, i)), LoadTile(RL, "sl", (b, h, i)), LoadTile(ACC, "sacc", (b, h, i, e))
    put = (
        StoreTile("sm", (b, h, i), ("i",), f("m")),
        StoreTile("sl", (b, h, i), ("i",), f("l")),
        StoreTile("sacc", (b, h, i, e), ("i", "e"), f("acc")),
    )
    step = (LOAD_Q, *get, update(scaled(0.5), rows), *put)
    body = Parallel(
        (Loop(b, B), Loop(h, H)),
        (
            Stream("i", size(0), N, everything((*start(), *put))),
            Stream("j", size(0), M, everything((*load_kv(), Stream("i", size(0), N, everything(step))))),
            Stream("i", size(0), N, everything((*get[1:], STORE))),
        ),
    )
    return Kernel("kv_major", (*params(8, 12), *scratch), ("B", "H", "N", "M"), (), ax, (body,))


def split_kv(splits: int = 3, tile_m: int = 20, tile_n: int = 16, rows: int = 6) -> Kernel:
    """Each item streams one chunk of the keys and leaves its state; a second statement combines them (docs/theory.md, T2)."""
    ax = (*axes(8, 12, tile_m, tile_n), Axis("c", size(splits), splits))
    scratch = (
        TensorParam("pm", "f32", (B, H, size(splits), N), "scratch"),
        TensorParam("pl", "f32", (B, H, size(splits), N), "scratch"),
        TensorParam("pacc", "f32", (B, H, size(splits), N, size(12)), "scratch"),
    )
    chunk = index("chunk")  # keys per split, in tiles
    lo = call("mul", call("mul", chunk, size(tile_n)), index("part"))
    hi = call("min", M, call("add", lo, call("mul", chunk, size(tile_n))))
    stream = Stream("j", lo, hi, everything((*load_kv(), update(scaled(0.5), rows))))
    part = index("part")
    first = Parallel(
        (Loop(b, B), Loop(h, H), Loop(ax[0].origin, N, tile_m), Loop(part, size(splits))),
        (
            LOAD_Q,
            *start(),
            stream,
            StoreTile("pm", (b, h, part, i), ("i",), f("m")),
            StoreTile("pl", (b, h, part, i), ("i",), f("l")),
            StoreTile("pacc", (b, h, part, i, e), ("i", "e"), f("acc")),
        ),
    )
    cm, cl, cacc, w = tile("cm", "ci"), tile("cl", "ci"), tile("cacc", "cie"), tile("w", "ci")
    second = Parallel(
        items(ax[0].origin, tile_m),
        (
            LoadTile(cm, "pm", (b, h, c, i)),
            LoadTile(cl, "pl", (b, h, c, i)),
            LoadTile(cacc, "pacc", (b, h, c, i, e)),
            Reduce(RM, "max", "c", f("cm")),
            Map(RR, call("where", call("eq", f("m"), NEG), ZERO, f("m"))),
            Map(w, call("exp", call("sub", f("cm"), f("r")))),
            Reduce(RL, "sum", "c", call("mul", f("w"), f("cl"))),
            Reduce(ACC, "sum", "c", call("mul", f("w"), f("cacc"))),
            STORE,
        ),
    )
    return Kernel("split_kv", (*params(8, 12), *scratch), ("B", "H", "N", "M", "chunk"), (), ax, (first, second))


FILL = -1e4


def finite_fill(tile_m: int = 20, tile_n: int = 16, rows: int = 6) -> Kernel:
    """masked_fill(key > query - 7, -1e4): tiles without an allowed key are skipped, and done again for the first seven
    queries, which allow no key and so average all of V. Skipping is exact while a row's maximum beats the fill by 104: exp in f32
    is 0 from there on."""
    ax = axes(8, 12, tile_m, tile_n)
    i0, j0 = ax[0].origin, ax[1].origin
    flag = index("skip")
    last = call("sub", call("min", call("add", i0, size(tile_m)), N), size(1))
    score = call("where", call("le", j, call("sub", i, size(7))), scaled(0.5), const(FILL, "f32"))
    phases = (
        Phase("empty", call("and", call("eq", flag, size(1)), call("gt", j0, call("sub", last, size(7)))), False, ()),
        Phase("partial", TRUE, False, (*load_kv(), update(score, rows))),
    )
    again = call("lt", call("sub", f("m"), const(FILL, "f32")), const(104.0, "f32"))
    body = Parallel(
        items(i0, tile_m),
        (LOAD_Q, Retry(flag, "i", again, (*start(), Stream("j", size(0), M, phases))), STORE),
    )
    return Kernel("finite_fill", params(8, 12), ("B", "H", "N", "M"), (), ax, (body,))


def tiles(extent: Expr, length: int) -> Expr:
    """How many tiles of a length an extent has."""
    return call("floordiv", call("add", extent, size(length - 1)), size(length))


def documents(tile_m: int = 20, tile_n: int = 16, rows: int = 6) -> Kernel:
    """A query sees the keys of its own document. Per-tile extremes of the ids tell which tile pairs are empty or full."""
    ax = axes(8, 12, tile_m, tile_n)
    i0, j0 = ax[0].origin, ax[1].origin

    extra = (
        TensorParam("qdoc", "i64", (B, N)),
        TensorParam("kdoc", "i64", (B, M)),
        *(TensorParam(x, "i64", (B, tiles(N, tile_m)), "scratch") for x in ("qlow", "qhigh")),
        *(TensorParam(x, "i64", (B, tiles(M, tile_n)), "scratch") for x in ("klow", "khigh")),
    )
    own_q, own_k = load("qdoc", (b, i), "i64"), load("kdoc", (b, j), "i64")
    summaries = (
        Summary("qlow", "min", ("i",), (Loop(b, B),), own_q),
        Summary("qhigh", "max", ("i",), (Loop(b, B),), own_q),
        Summary("klow", "min", ("j",), (Loop(b, B),), own_k),
        Summary("khigh", "max", ("j",), (Loop(b, B),), own_k),
    )
    at_q = (b, call("floordiv", i0, size(tile_m)))
    at_k = (b, call("floordiv", j0, size(tile_n)))
    qlow, qhigh, klow, khigh = (
        load(x, at, "i64") for x, at in (("qlow", at_q), ("qhigh", at_q), ("klow", at_k), ("khigh", at_k))
    )
    apart = call("or", call("lt", qhigh, klow), call("lt", khigh, qlow))
    same = call("and", call("and", call("eq", qlow, qhigh), call("eq", klow, khigh)), call("eq", qlow, klow))
    full = call("and", same, call("le", call("add", j0, size(tile_n)), M))
    masked = call("where", call("eq", own_q, own_k), scaled(0.5), NEG)
    phases = (
        Phase("empty", apart, False, ()),
        Phase("full", full, True, (*load_kv(), update(scaled(0.5), rows))),
        Phase("partial", TRUE, False, (*load_kv(), update(masked, rows))),
    )
    body = Parallel(items(i0, tile_m), (LOAD_Q, *start(), Stream("j", size(0), M, phases), STORE))
    return Kernel("documents", (*params(8, 12), *extra), ("B", "H", "N", "M"), (), ax, (body,), summaries)


def dense_mask(tile_m: int = 20, tile_n: int = 16, rows: int = 6) -> Kernel:
    """A tensor says of every pair whether it counts, for each item of the batch. Each of its tiles says whether it is empty or
    full."""
    ax = axes(8, 12, tile_m, tile_n)
    i0, j0 = ax[0].origin, ax[1].origin

    counts = (B, tiles(N, tile_m), tiles(M, tile_n))
    extra = (TensorParam("keep", "bool", (B, N, M)), *(TensorParam(x, "i32", counts, "scratch") for x in ("some", "every")))
    own = load("keep", (b, i, j), "bool")
    one = cast(own, "i32")
    outer = (Loop(b, B),)
    summaries = (Summary("some", "max", ("i", "j"), outer, one), Summary("every", "min", ("i", "j"), outer, one))
    at = (b, call("floordiv", i0, size(tile_m)), call("floordiv", j0, size(tile_n)))
    empty = call("eq", load("some", at, "i32"), const(0, "i32"))
    full = call("and", call("le", call("add", j0, size(tile_n)), M), call("ne", load("every", at, "i32"), const(0, "i32")))
    masked = call("where", own, scaled(0.5), NEG)
    phases = (
        Phase("empty", empty, False, ()),
        Phase("full", full, True, (*load_kv(), update(scaled(0.5), rows))),
        Phase("partial", TRUE, False, (*load_kv(), update(masked, rows))),
    )
    body = Parallel(items(i0, tile_m), (LOAD_Q, *start(), Stream("j", size(0), M, phases), STORE))
    return Kernel("dense_mask", (*params(8, 12), *extra), ("B", "H", "N", "M"), (), ax, (body,), summaries)


def kept_pairs(n: int, m: int) -> Any:
    """bool [2, n, m] with empty, full and partial tiles, and a key for every row."""
    rows, keys = np.arange(n)[:, None], np.arange(m)
    return np.stack([(rows // 40 == keys // 40) | (keys == 0), (rows + keys) % 50 < 45])


# ------------------------------------------------------------------------------------------------ plain computation


def plain(q: Any, k: Any, v: Any, score: Any, dtype: Any) -> Any:
    """The unfused computation in `dtype`: scores as a whole matrix, softmax with its maximum subtracted, then times v."""
    q, k, v = (x.astype(dtype) for x in (q, k, v))
    s = score(q @ np.swapaxes(k, -1, -2)).astype(dtype)
    with np.errstate(all="ignore"):
        p = np.exp(s - s.max(axis=-1, keepdims=True))
        return p / p.sum(axis=-1, keepdims=True) @ v


def assert_accurate(out: Any, q: Any, k: Any, v: Any, score: Any) -> None:
    """The numeric contract, against the plain computation."""
    assert_contract(out, plain(q, k, v, score, out.dtype), plain(q, k, v, score, np.float64), "f32")
