"""Operands that a product reads in the tensor, without a packed copy: as memory runs along the vectors, or across them."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aicf.backends.llvm.build import emit
from aicf.backends.llvm.codegen.module import plans
from aicf.backends.llvm.codegen.shuffles import order_of_sums, summed, transposed
from aicf.backends.llvm.codegen.text import Function, Module
from aicf.kernel import (
    Axis,
    Contract,
    Fill,
    Kernel,
    LoadTile,
    Loop,
    Parallel,
    Phase,
    RowBlock,
    StoreTile,
    Stream,
    TensorParam,
    Tile,
    run_kernel,
)
from aicf.scalar import DType, call, cast, const, index, integer, load, size, var

from .paths import AVX2
from .running import execute

pytestmark = pytest.mark.usefixtures("code_path")

N, M = index("N"), index("M")
i, j, d, e = (index(x) for x in "ijde")


def streamed(
    rows: int, tile_n: int, width: int, value_width: int, dtype: DType, *, across: bool = True, order: bool = False,
    sums: DType = "f32", inside: bool = False,
) -> Kernel:  # fmt: skip
    """O = (q k^T) v, streamed over keys. `across`: q lies in rows; `order`: the keys are looked up; `sums`: the type of o;
    `inside`: every block of rows loads keys and values itself."""
    axes = (Axis("i", N, rows), Axis("j", M, tile_n), Axis("d", size(width), width), Axis("e", size(value_width), value_width))
    q, k, v, s = (Tile(x, "f32", tuple(a), "register") for x, a in (("q", "id"), ("k", "jd"), ("v", "je"), ("s", "ij")))
    out = Tile("o", sums, ("i", "e"), "register")
    key = load("order", (j,), "i64") if order else j
    loads = (LoadTile(k, "K", (key, d)), LoadTile(v, "V", (key, e)))
    products = (Contract(s, q, k, "d"), Contract(out, s, v, "j", accumulate=True))
    body = (RowBlock("i", rows, (*loads, *products)),) if inside else (*loads, RowBlock("i", rows, products))
    end = call("le", call("add", index("j0"), const(tile_n, "i64")), M)
    phases = (Phase("full", end, True, body), Phase("partial", const(True, "bool"), False, body))
    return Kernel(
        "streamed",
        (
            TensorParam("Q", "f32", (N, size(width)) if across else (size(width), N), "in", 1),
            TensorParam("K", dtype, (M, size(width)), "in", 1),
            TensorParam("V", dtype, (M, size(value_width)), "in", 1),
            *((TensorParam("order", "i64", (M,), "in", 0),) if order else ()),
            TensorParam("O", "f32", (N, size(value_width)), "out", 1),
        ),
        ("N", "M"),
        (),
        axes,
        (
            Parallel(
                (Loop(index("i0"), N, rows),),
                (
                    LoadTile(q, "Q", (i, d) if across else (d, i)),
                    Fill(out, const(0.0, sums)),
                    Stream("j", size(0), M, phases),
                    StoreTile("O", (i, e), ("i", "e"), cast(var("o", sums), "f32")),
                ),
            ),
        ),
    )


def in_place(kernel: Kernel) -> set[str]:
    """What is read in place in code for AVX2, whatever runs here: other vectors take other widths."""
    ((_, plan),) = plans(kernel, AVX2.target)
    return set(plan.in_place)


def check(kernel: Kernel, n: int, m: int, stride: int = 0) -> None:
    """Rows of K and V `stride` elements longer than they are wide, the last of them at the end of the memory."""
    rng = np.random.default_rng(n + m)
    arrays = {}
    for p in kernel.tensors:
        shape = [integer(x, {"N": n, "M": m}) for x in p.shape]
        if p.name == "order":
            arrays[p.name] = rng.permutation(m)
        elif p.role == "in":
            wide = rng.standard_normal((shape[0], shape[1] + (stride if p.name in "KV" else 0))).astype(np.float32)
            if p.dtype == "bf16":
                wide = (wide.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
            wide = wide.astype({"f16": np.float16, "f64": np.float64}.get(p.dtype, np.float32))
            arrays[p.name] = wide[:, wide.shape[1] - shape[1] :]
    (out,) = (p for p in kernel.tensors if p.role == "out")
    expected = {**arrays, out.name: np.zeros((n, integer(out.shape[1], {})), np.float32)}
    run_kernel(kernel, expected, {"N": n, "M": m})
    found = execute(kernel, arrays, {"N": n, "M": m})[out.name]
    scale = np.abs(expected[out.name]).max(initial=1)
    np.testing.assert_allclose(found, expected[out.name], rtol=1e-5, atol=1e-5 * scale)


@settings(max_examples=25, deadline=None)
@given(
    rows=st.sampled_from([1, 2, 3, 4, 5, 6, 8]),
    tile_n=st.sampled_from([8, 16, 48, 64, 144]),
    width=st.sampled_from([8, 24, 64, 160]),
    value_width=st.sampled_from([16, 48, 64, 208]),
    dtype=st.sampled_from(["f32", "f16", "bf16"]),
    stride=st.sampled_from([0, 1, 37]),
    short=st.integers(0, 3),
    m=st.integers(1, 200),
    across=st.booleans(),
)
def test_a_product_of_few_rows_reads_the_tensor(
    rows: int, tile_n: int, width: int, value_width: int, dtype: DType, stride: int, short: int, m: int, across: bool
) -> None:  # fmt: skip
    kernel = streamed(rows, tile_n, width, value_width, dtype, across=across)
    assert in_place(kernel) == {"k", "v"}
    # bf16 arrays are copied into memory of their own by the harness, without the gaps.
    check(kernel, max(1, 2 * rows - short), m, 0 if dtype == "bf16" else stride)


@pytest.mark.parametrize(
    ("tile_n", "width", "value_width", "of_scores", "of_values"),
    [
        (8, 64, 64, 8 * 4, 2 * 4),  # one product of a vector of keys; four rows of queries, one after the other
        (8, 128, 128, 8 * 8, 1 * 8),  # the same, in two halves of the values each
        (16, 64, 128, 8 * 8, 2 * 4),  # two products of a vector of keys
        (8, 64, 192, 8 * 12, 1 * 4),  # three parts: twelve turns, of which eight would do
    ],
)
def test_products_ask_for_what_the_next_one_reads(
    tile_n: int, width: int, value_width: int, of_scores: int, of_values: int
) -> None:  # fmt: skip
    """Each register tile asks for its share of the lines: the scores' of the values, and the values' of the next keys (AVX2)."""
    text = emit(streamed(4, tile_n, width, value_width, "f32"), AVX2.triple, AVX2.cpu, AVX2.features)
    counts: dict[str, set[int]] = {}
    for function in text.split("define ")[1:]:
        name = function.partition("@")[2]
        if name.startswith(("micro_4x1_zero", "micro_1x8")):
            counts.setdefault(name[6:9], set()).add(function.count("i32 0, i32 3, i32 1"))
    assert counts == {"4x1": {of_scores}, "1x8": {of_values}}


@pytest.mark.parametrize(
    ("kernel", "places"),
    [
        (streamed(4, 16, 20, 64, "f32"), {"v"}),  # no whole vectors along d
        (streamed(4, 16, 64, 24, "f32"), {"k"}),  # nor whole blocks along e
        (streamed(4, 16, 64, 64, "f64"), set()),  # another type than the accumulators'
        (streamed(4, 16, 64, 64, "f32", sums="f64"), {"k"}),
        (streamed(4, 16, 64, 64, "f32", order=True), set()),  # rows that are looked up
    ],
    ids=["width", "value width", "f64", "sums", "gather"],
)
def test_what_cannot_be_read_in_place_is_copied(kernel: Kernel, places: set[str]) -> None:
    assert in_place(kernel) == places
    check(kernel, 5, 37)


def test_a_block_of_rows_may_load_what_it_reads() -> None:
    kernel = streamed(4, 16, 64, 64, "f32", inside=True)
    assert in_place(kernel) == {"k", "v"}
    check(kernel, 6, 37)


@pytest.mark.parametrize("n", [4, 8, 16])
def test_networks_of_shuffles(n: int) -> None:
    """What the shuffles do, followed on numbers: all columns, and all sums in the order that is said."""

    def values(make: object) -> list[list[object]]:
        fn = Function(Module(n, 16), "f", "")
        names = [f"%r{r}" for r in range(n)]
        made = make(fn, names)  # type: ignore[operator]
        known: dict[str, list[object]] = {name: [(r, c) for c in range(n)] for r, name in enumerate(names)}
        for line in fn.lines:
            name, _, text = line.strip().partition(" = ")
            words = text.replace(",", " ").replace(">", " ").replace("<", " ").split()
            if words[0] == "shufflevector":
                a, b = (w for w in words if w.startswith("%"))
                mask = [int(w) for w in text.rpartition("<")[2].rstrip(">").replace("i32", "").split(",")]
                known[name] = [[*known[a], *known[b]][m] for m in mask]
            else:
                a, b = (w for w in words if w.startswith("%"))
                known[name] = [(x, y) for x, y in zip(known[a], known[b], strict=True)]
        return [known[x] for x in (made if isinstance(made, list) else [made])]

    assert values(transposed) == [[(r, c) for r in range(n)] for c in range(n)]

    def leaves(x: object) -> set[object]:
        assert isinstance(x, tuple)
        return {x} if isinstance(x[0], int) else leaves(x[0]) | leaves(x[1])

    (sums,) = values(summed)
    assert [leaves(x) for x in sums] == [{(r, c) for c in range(n)} for r in order_of_sums(n)]


@pytest.mark.parametrize("across", [True, False])
@pytest.mark.parametrize("m", [1, 5, 8, 17])
def test_nothing_past_the_end_is_read(m: int, across: bool) -> None:
    """K and V end with a page after which no memory is mapped: a load behind their last row would end the process."""
    kernel = streamed(4, 16, 64, 64, "f32", across=across)
    assert in_place(kernel) == {"k", "v"}
    page, size = mmap.PAGESIZE, 4 * 64 * m
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    held, arrays = [], {}
    rng = np.random.default_rng(m)
    for name in "KV":
        pages = -(-size // page)
        memory = mmap.mmap(-1, (pages + 8) * page)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        assert libc.mprotect(start + pages * page, 8 * page, 0) == 0
        array = np.frombuffer(memory, np.float32, 64 * m, pages * page - size).reshape(m, 64)
        array[:] = rng.standard_normal((m, 64))
        arrays[name] = array
        held.append((memory, start, pages))
    arrays["Q"] = rng.standard_normal((5, 64) if across else (64, 5)).astype(np.float32)
    q = arrays["Q"] if across else arrays["Q"].T
    found = execute(kernel, arrays, {"N": 5, "M": m})["O"]
    np.testing.assert_allclose(found, (q @ arrays["K"].T) @ arrays["V"], rtol=1e-4, atol=1e-3)
    for _, start, pages in held:
        libc.mprotect(start + pages * page, 8 * page, 3)
