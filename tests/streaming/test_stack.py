"""One query per head, keys shared by a group of heads: the heads become the rows of one tile."""

from __future__ import annotations

import numpy as np
import torch

from aicf.driver import ArrayRef, Options, RegionResult, compile_graph
from aicf.mcir.passes.streaming_lowering import detected_meaning
from aicf.scalar import show
from aicf.semantic import Graph, GraphBuilder, Node
from tests.contract import assert_contract


def decode(heads: int, shared: int, queries: int = 1, keys: int = 100) -> Graph:
    b = GraphBuilder()
    q, k, v = (b.input(n, "f32", (2, h, m, 64)) for n, h, m in (("q", heads, queries), ("k", shared, keys), ("v", shared, keys)))

    def repeated(x: Node) -> Node:
        wide = b.expand(b.reshape(x, (2, shared, 1, keys, 64)), (2, shared, heads // shared, keys, 64))
        return b.reshape(wide, (2, heads, keys, 64))

    s = b.op("mul", b.op("matmul", q, b.permute(repeated(k), (0, 1, 3, 2))), 0.125)
    return b.output(b.op("matmul", b.op("softmax", s, axis=-1), repeated(v), name="o"))


def run(result: RegionResult, values: list[np.ndarray]) -> np.ndarray:
    assert result.executable is not None
    out = np.empty((*values[0].shape[:-1], 64), np.float32)
    refs = [ArrayRef(a.ctypes.data, a.shape, tuple(s // 4 for s in a.strides)) for a in (*values, out)]
    result.executable.run(refs[:3], refs[3:])
    return out


def check(graph: Graph, heads: int, shared: int, queries: int) -> None:
    """By the numeric contract, over several draws: few rows have few errors, and their largest is a matter of chance."""
    result = compile_graph(graph, Options(fuse="always")).regions[0]
    ours: list[np.ndarray] = []
    unfused: list[np.ndarray] = []
    exact: list[np.ndarray] = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        shapes = ((heads, queries), (shared, 100), (shared, 100))
        values = [rng.standard_normal((2, h, m, 64)).astype(np.float32) for h, m in shapes]
        ours.append(run(result, values))
        for made, dtype in ((unfused, torch.float32), (exact, torch.float64)):
            q, k, v = (torch.from_numpy(x.repeat(heads // x.shape[1], 1)).to(dtype) for x in values)
            made.append(((q @ k.mT * 0.125).softmax(-1) @ v).numpy())
    assert_contract(np.stack(ours), np.stack(unfused), np.stack(exact), "f32")


def test_heads_of_a_group_become_rows() -> None:
    graph = decode(8, 2)
    result = compile_graph(graph, Options(fuse="always")).regions[0]
    assert result.region is not None
    found = detected_meaning(result.region)
    assert show(found.extents[found.row]) == "4"
    assert show(found.scores[0].row) == "q[b, h * 4 + i, 0, d]"
    assert show(found.scores[0].key) == "k[b, h, j, d]"
    check(graph, 8, 2, 1)


def test_all_heads_share_one_key_head() -> None:
    check(decode(6, 1), 6, 1, 1)


def test_nothing_is_stacked_with_own_keys_or_several_queries() -> None:
    for graph, shape in ((decode(4, 4), (4, 4, 1)), (decode(8, 2, queries=3), (8, 2, 3))):
        result = compile_graph(graph, Options(fuse="always")).regions[0]
        assert result.region is not None
        assert "h * " not in show(detected_meaning(result.region).scores[0].row)
        check(graph, *shape)
