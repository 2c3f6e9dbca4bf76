"""Building, printing and refusing: the graph as people see it."""

from __future__ import annotations

import numpy as np
import pytest

from aicf.scalar import index
from aicf.semantic import GraphBuilder, GraphError, Location, bind_sizes, build_attention_semantic_graph, print_graph, run_graph

EXAMPLE = """\
graph(%Q: f16[B, H, N, 64], %K: f16[B, H, M, 64], %V: f16[B, H, M, 64])
  %K_T = permute(%K) {perm=[0, 1, 3, 2]} : f16[B, H, 64, M]
  %Scores = matmul(%Q, %K_T) : f16[B, H, N, M]
  %scalar = scalar() {value=0.125} : f16[]
  %Scaled = mul(%Scores, %scalar) : f16[B, H, N, M]
  %query = iota() {length=N, dtype=i64} : i64[N]
  %reshape = reshape(%query) {shape=[N, 1]} : i64[N, 1]
  %key = iota() {length=M, dtype=i64} : i64[M]
  %reshape_1 = reshape(%key) {shape=[1, M]} : i64[1, M]
  %le = le(%reshape_1, %reshape) : bool[N, M]
  %scalar_1 = scalar() {value=-inf} : f16[]
  %Masked = where(%le, %Scaled, %scalar_1) : f16[B, H, N, M]
  %Softmax = softmax(%Masked) {axis=-1} : f16[B, H, N, M]
  %O = matmul(%Softmax, %V) : f16[B, H, N, 64]
  return %O
"""


def test_the_example_prints_whole() -> None:
    assert print_graph(build_attention_semantic_graph()) == EXAMPLE


def test_the_example_runs_as_softmax_attention() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(s).astype(np.float32) for s in ((1, 2, 5, 64), (1, 2, 7, 64), (1, 2, 7, 64)))
    got = run_graph(build_attention_semantic_graph(dtype="f32"), [q, k, v])[0]
    s = q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2) * 0.125
    s = np.where(np.arange(7)[None] <= np.arange(5)[:, None], s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    want = p / p.sum(-1, keepdims=True) @ v
    assert np.abs(got - want).max() <= 8 * np.finfo(np.float32).eps * np.abs(v).max()


def test_wrong_operands_name_op_operands_and_place() -> None:
    b = GraphBuilder()
    b.location = Location("model.py", 12, "forward", "aten.matmul")
    x, y = b.input("x", "f32", (2, 3)), b.input("y", "f32", (4, 5))
    with pytest.raises(GraphError, match=r"matmul\(x: f32\[2, 3\], y: f32\[4, 5\]\).*model\.py:12 in forward"):
        b.op("matmul", x, y)
    assert [n.name for n in b.graph.nodes] == ["x", "y"]


def test_symbolic_views_must_keep_the_count() -> None:
    b = GraphBuilder()
    n = index("N")
    x = b.input("x", "f32", (n, 4))
    assert b.reshape(x, (2, n, 2)).type.shape[1] is n
    with pytest.raises(GraphError, match="element counts differ"):
        b.reshape(x, (n, 5))


def test_sizes_bind_from_shapes() -> None:
    g = build_attention_semantic_graph()
    shapes = [np.zeros((2, 3, 5, 64)), np.zeros((2, 3, 7, 64)), np.zeros((2, 3, 7, 64))]
    assert bind_sizes(g.inputs, shapes) == {"B": 2, "H": 3, "N": 5, "M": 7}
    with pytest.raises(ValueError, match="size M is 7 elsewhere, 8 here"):
        bind_sizes(g.inputs, [*shapes[:2], np.zeros((2, 3, 8, 64))])
