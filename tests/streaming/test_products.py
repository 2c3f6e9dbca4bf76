"""Products of the size of the scores: whatever the order of the outputs, the tile computes them, or the report names them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from aicf import driver
from aicf.mcir.lowered import LoweredRegion
from aicf.scalar import DType, integer, integer_const
from aicf.semantic import GraphBuilder, Node
from aicf.semantic.types import product as elements

from .regions import Build, check, streamed

H, N, M, D, E = 2, 70, 50, 16, 24


def transposed(b: GraphBuilder, x: Node) -> Node:
    return b.permute(x, (*range(x.type.rank - 2), x.type.rank - 1, x.type.rank - 2))


def product(b: GraphBuilder, q: Node, k: Node, scale: float = 0.25) -> Node:
    return b.op("mul", b.op("matmul", q, transposed(b, k)), scale)


def inputs(b: GraphBuilder, dtype: DType, names: str, *shape: int) -> list[Node]:
    return [b.input(name, dtype, shape) for name in names.split()]


def in_order(order: Sequence[int], *outputs: Callable[[], Node]) -> list[Node]:
    """Outputs made, and returned, in this order."""
    return [outputs[k]() for k in order]


def no_pairs(existed: list[list[Node]], pairs: int = H * N * M) -> bool:
    return not any(integer(elements(n.type.shape), {}) >= pairs for nodes in existed for n in nodes)




ORDERS = list(itertools.permutations(range(3)))


def several(order: Sequence[int]) -> Build:
    """P V; (P * second product) V; exp(third product) * P summed over the keys: columns of two widths, and none."""

    def make(b: GraphBuilder, dtype: DType) -> list[Node]:
        q, q2, q3 = inputs(b, dtype, "q q2 q3", H, N, D)
        k, k2, k3 = inputs(b, dtype, "k k2 k3", H, M, D)
        v, w = b.input("v", dtype, (H, M, E)), b.input("w", dtype, (H, M, 8))
        p = b.op("softmax", product(b, q, k), axis=-1)
        return in_order(
            order,
            lambda: b.op("matmul", p, v, name="o"),
            lambda: b.op("matmul", b.op("mul", p, product(b, q2, k2)), w, name="o2"),
            lambda: b.reduce("sum", b.op("mul", b.op("tanh", product(b, q3, k3)), p), [-1], name="o3"),
        )

    return make


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_products_of_any_output_are_computed_in_the_tile(order: Sequence[int]) -> None:
    made, existed = check(several(order))
    assert [sorted(names) for names in streamed(made)] == [["o", "o2", "o3"]]
    assert all(r.stored == () for r in made.regions)
    assert no_pairs(existed)


def test_a_product_that_only_an_output_of_an_output_reads() -> None:
    def make(b: GraphBuilder, dtype: DType) -> list[Node]:
        q, q2, q3 = inputs(b, dtype, "q q2 q3", H, N, D)
        k, k2, k3 = inputs(b, dtype, "k k2 k3", H, M, D)
        v = b.input("v", dtype, (H, M, E))
        p = b.op("softmax", product(b, q, k), axis=-1)
        second = b.op("mul", p, product(b, q2, k2))
        third = b.op("mul", second, b.op("sigmoid", product(b, q3, k3)))
        return [b.op("matmul", x, v) for x in (p, second, third)]

    made, existed = check(make)
    assert len(made.regions) == 1 and made.regions[0].stored == () and no_pairs(existed)


def test_a_second_softmax_that_meets_the_first_one() -> None:
    def make(b: GraphBuilder, dtype: DType) -> list[Node]:
        q, q2 = inputs(b, dtype, "q q2", H, N, D)
        k, k2 = inputs(b, dtype, "k k2", H, M, D)
        v = b.input("v", dtype, (H, M, E))
        p, p2 = (b.op("softmax", product(b, x, y), axis=-1) for x, y in ((q, k), (q2, k2)))
        return [b.op("matmul", p, v), b.op("matmul", b.op("sub", p, b.op("mul", p2, 0.3)), v)]

    made, existed = check(make)
    assert len(made.regions) == 1 and made.regions[0].stored == () and no_pairs(existed)


# ------------------------------------------------------------------------------------------------ what a backward looks like


def backward(order: Sequence[int]) -> Build:
    """dQ, dK and dV of attention from the log-sum-exp L and D = rowsum(dO * O)."""

    def make(b: GraphBuilder, dtype: DType) -> list[Node]:
        q, k, v = b.input("q", dtype, (H, N, D)), b.input("k", dtype, (H, M, D)), b.input("v", dtype, (H, M, E))
        do, lse, delta = b.input("do", dtype, (H, N, E)), b.input("lse", dtype, (H, N, 1)), b.input("delta", dtype, (H, N, 1))
        p = b.op("exp", b.op("sub", product(b, q, k), lse))
        dp = b.op("matmul", do, transposed(b, v))
        ds = b.op("mul", b.op("mul", p, b.op("sub", dp, delta)), 0.25)
        return in_order(
            order,
            lambda: b.op("matmul", ds, k, name="dq"),
            lambda: b.op("matmul", transposed(b, ds), q, name="dk"),
            lambda: b.op("matmul", transposed(b, p), do, name="dv"),
        )

    return make


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_a_backward_is_two_regions(order: Sequence[int]) -> None:
    made, existed = check(backward(order))
    assert sorted(sorted(names) for names in streamed(made)) == [["dk", "dv"], ["dq"]]
    assert no_pairs(existed)


G = 3  # query heads that share keys


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)], ids=str)
@pytest.mark.parametrize("einsum", [False, True], ids=["repeated", "einsum"])
def test_a_backward_of_grouped_heads(einsum: bool, order: Sequence[int]) -> None:
    def make(b: GraphBuilder, dtype: DType) -> list[Node]:
        q, do = b.input("q", dtype, (H, G, N, D)), b.input("do", dtype, (H, G, N, E))
        k, v = b.input("k", dtype, (H, M, D)), b.input("v", dtype, (H, M, E))
        lse, delta = b.input("lse", dtype, (H, G, N, 1)), b.input("delta", dtype, (H, G, N, 1))
        if not einsum:
            k, v = (b.expand(b.reshape(x, (H, 1, M, w)), (H, G, M, w)) for x, w in ((k, D), (v, E)))
        own = "hgjd" if not einsum else "hjd"
        s = b.op("mul", b.einsum(["hgid", own], "hgij", q, k), 0.25)
        p = b.op("exp", b.op("sub", s, lse))
        dp = b.einsum(["hgie", own.replace("d", "e")], "hgij", do, v)
        ds = b.op("mul", b.op("mul", p, b.op("sub", dp, delta)), 0.25)

        def of_keys(weights: Node, rows: Node, name: str) -> Node:
            if einsum:
                return b.einsum(["hgij", "hgid"], "hjd", weights, rows, name=name)
            return b.reduce("sum", b.op("matmul", transposed(b, weights), rows), [1], name=name)

        return in_order(
            order,
            lambda: b.einsum(["hgij", own], "hgid", ds, k, name="dq"),
            lambda: of_keys(ds, q, "dk"),
            lambda: of_keys(p, do, "dv"),
        )

    made, existed = check(make)
    assert len(streamed(made)) == 2, [(r.name, r.status, r.reason) for r in made.regions]
    assert no_pairs(existed, H * G * N * M)


# ------------------------------------------------------------------------------------------------ no softmax, other axes


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_outputs_of_several_axes_without_a_softmax(order: Sequence[int]) -> None:
    """Gates without a normaliser: columns of two widths, a number per row, and a region of the keys."""

    def make(b: GraphBuilder, dtype: DType) -> list[Node]:
        q, q2 = inputs(b, dtype, "q q2", H, N, D)
        k, k2 = inputs(b, dtype, "k k2", H, M, D)
        v, u = b.input("v", dtype, (H, M, E)), b.input("u", dtype, (H, N, 8))
        gate = b.op("sigmoid", product(b, q, k))
        return in_order(
            order,
            lambda: b.op("matmul", gate, v, name="o"),
            lambda: b.op("matmul", b.op("mul", gate, product(b, q2, k2)), k, name="o2"),
            lambda: b.op("matmul", transposed(b, gate), u, name="of_keys"),
        )

    made, existed = check(make)
    assert sorted(sorted(names) for names in streamed(made)) == [["o", "o2"], ["of_keys"]]
    assert no_pairs(existed)


# ------------------------------------------------------------------------------------------------ sums that are written out


def test_distances_and_a_small_network_over_pairs_are_computed_in_the_tile() -> None:
    def make(b: GraphBuilder, dtype: DType) -> list[Node]:
        q, k, v = b.input("q", dtype, (H, N, D)), b.input("k", dtype, (H, M, D)), b.input("v", dtype, (H, M, E))
        x, y = b.input("x", dtype, (N, 3)), b.input("y", dtype, (M, 3))
        w, c, w2 = b.input("w", dtype, (3, 10)), b.input("c", dtype, (10,)), b.input("w2", dtype, (10, H))
        apart = b.op("sub", b.reshape(x, (N, 1, 3)), b.reshape(y, (1, M, 3)))
        distance = b.reduce("sum", b.op("mul", apart, apart), [-1])
        hidden = b.op("max", b.op("add", b.op("matmul", apart, b.expand(b.reshape(w, (1, 3, 10)), (N, 3, 10))), c), 0.0)
        learned = b.permute(b.reshape(b.op("matmul", b.reshape(hidden, (N * M, 10)), w2), (N, M, H)), (2, 0, 1))
        s = b.op("add", b.op("sub", product(b, q, k), distance), learned)
        return [b.op("matmul", b.op("softmax", s, axis=-1), v)]

    made, existed = check(make)
    assert len(streamed(made)) == 1 and made.regions[0].stored == () and no_pairs(existed)


# ------------------------------------------------------------------------------------------------ what is stored is named


def named(make: Build) -> list[tuple[str, int | None, str]]:
    """What the regions of a graph say that they read, held against what there was when they ran."""
    made, existed = check(make)
    said = [(s.name, s.bytes, s.reason) for r in made.regions if r.status == "streamed" for s in r.stored]
    inputs_read = {n for r in made.regions for n in r.inputs}
    large = {n.name for n in inputs_read if n.op != "input" and integer(elements(n.type.shape), {}) >= H * N * M}
    assert large == {name for name, _, _ in said} and large <= {n.name for nodes in existed for n in nodes}
    return said


def attended(b: GraphBuilder, dtype: DType, more: Callable[[Node, Node, Node], list[Node]]) -> list[Node]:
    """Attention whose scores and results `more` goes on with: (scores, weights, values)."""
    q, k, v = b.input("q", dtype, (H, N, D)), b.input("k", dtype, (H, M, D)), b.input("v", dtype, (H, M, E))
    s = product(b, q, k)
    return more(s, b.op("softmax", s, axis=-1), v)


def test_a_product_that_is_returned_as_well_is_read_and_named() -> None:
    def make(b: GraphBuilder, dtype: DType) -> list[Node]:
        second = b.op("matmul", b.input("q2", dtype, (H, N, D)), b.input("k2", dtype, (H, D, M)), name="second")
        return attended(
            b, dtype, lambda s, p, v: [second, b.op("matmul", p, v, name="o"), b.op("matmul", b.op("mul", p, second), v)]
        )

    ((name, size, reason),) = named(make)
    assert (name, size) == ("second", 4 * H * N * M) and "returned" in reason


def test_a_long_sum_for_each_pair_is_named() -> None:
    def make(b: GraphBuilder, dtype: DType) -> list[Node]:
        x, y = b.input("x", dtype, (H, N, 1, 64)), b.input("y", dtype, (H, 1, M, 64))
        near = b.reduce("sum", b.op("abs", b.op("sub", x, y)), [-1], name="near")
        return attended(b, dtype, lambda s, p, v: [b.op("matmul", b.op("mul", p, near), v)])

    assert named(make) == [("near", 4 * H * N * M, "reduce near sums over 64 positions for each pair")]


def test_what_a_network_makes_of_numbers_given_for_each_pair_is_named() -> None:
    def make(b: GraphBuilder, dtype: DType) -> list[Node]:
        edges, w = b.input("edges", dtype, (H, N, M, 4)), b.input("w", dtype, (4,))
        bias = b.reduce("sum", b.op("mul", edges, w), [-1], name="bias")
        return attended(b, dtype, lambda s, p, v: [b.op("matmul", b.op("softmax", b.op("add", s, bias), axis=-1), v)])

    assert named(make) == [("bias", 4 * H * N * M, "it sums over what edges holds for each pair")]


def test_a_product_read_at_shifted_places_is_named() -> None:
    """Relative positions by padding and reshaping the product with a table."""

    def make(b: GraphBuilder, dtype: DType) -> list[Node]:
        q, k, v = b.input("q", dtype, (H, M, D)), b.input("k", dtype, (H, M, D)), b.input("v", dtype, (H, M, E))
        table = b.input("table", dtype, (M, D))
        far = b.einsum(["hid", "rd"], "hir", q, table, name="far")
        zero = integer_const(0)
        padded = b.op("pad", far, low=(zero, zero, integer_const(1)), high=(zero, zero, zero), value=0.0)
        shifted = b.slice(b.reshape(padded, (H, M + 1, M)), (0, 1, 0), (H, M, M))
        s = b.op("add", product(b, q, k), shifted)
        return [b.op("matmul", b.op("softmax", s, axis=-1), v)]

    made, _ = check(make)
    ((said,),) = [r.stored for r in made.regions]
    assert said.name == "far" and said.bytes == 4 * H * M * M and "shift" in said.reason


def test_tensors_given_from_outside_and_small_ones_are_not_named() -> None:
    def make(b: GraphBuilder, dtype: DType) -> list[Node]:
        bias = b.input("bias", dtype, (H, N, M))
        slope = b.op("exp", b.input("slope", dtype, (H, 1, 1)))
        return attended(b, dtype, lambda s, p, v: [b.op("matmul", b.op("mul", p, b.op("mul", bias, slope)), v)])

    made, _ = check(make)
    assert [r.stored for r in made.regions] == [()]


# ------------------------------------------------------------------------------------------------ what is too slow in a tile


def over_pairs(b: GraphBuilder, dtype: DType) -> list[Node]:
    """Attention with a bias that a small network makes of positions."""
    x, y, w = b.input("x", dtype, (N, 1, 1)), b.input("y", dtype, (1, M, 1)), b.input("w", dtype, (H, 1, 1, 4))
    bias = b.reduce("sum", b.op("tanh", b.op("mul", b.op("sub", x, y), w)), [-1], name="bias")
    return attended(b, dtype, lambda s, p, v: [b.op("matmul", b.op("softmax", b.op("add", s, bias), axis=-1), v)])


def test_what_is_slower_in_the_tile_than_unfused_is_stored_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost model is asked again without the sums in the tile; the region streams all the same."""
    own = driver.decide

    def declining(region: LoweredRegion, *rest: Any) -> driver.Decision:
        return replace(own(region, *rest), fuse="bias" in region.tensors, reason="the tile is too slow")

    made, existed = check(over_pairs)
    assert [r.stored for r in made.regions] == [()] and no_pairs(existed)
    monkeypatch.setattr(driver, "decide", declining)
    made, _ = check(over_pairs, fuse="auto")
    ((stored,),) = [r.stored for r in made.regions if r.status == "streamed"]
    assert stored.name == "bias" and "declined (the tile is too slow" in stored.reason


def test_a_product_in_float64_is_stored_and_named() -> None:
    def make(b: GraphBuilder, dtype: DType) -> list[Node]:
        q2, k2 = (b.cast(b.input(x, dtype, (H, n, D)), "f64") for x, n in (("q2", N), ("k2", M)))
        wide = b.op("matmul", q2, transposed(b, k2))
        second = b.op("add", b.cast(wide, dtype), 0.0, name="second") if dtype == "f64" else b.cast(wide, dtype, name="second")
        return attended(b, dtype, lambda s, p, v: [b.op("matmul", p, v), b.op("matmul", b.op("mul", p, second), v)])

    ((name, size, reason),) = named(make)
    assert (name, size) == ("second", 4 * H * N * M) and "float64" in reason
