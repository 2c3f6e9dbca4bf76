"""Normalising rewrites: fewer nodes, the same values."""

from __future__ import annotations

import numpy as np

from aicf.semantic import GraphBuilder, print_graph, run_graph


def build(share: bool):
    b = GraphBuilder(share=share)
    x, y = b.input("x", "f32", (2, 3, 4)), b.input("y", "f32", (4, 3))
    turned = b.permute(b.permute(x, (0, 2, 1)), (0, 2, 1))
    flat = b.reshape(b.reshape(turned, (6, 4)), (2, 12))
    wide = b.expand(b.expand(b.reshape(y, (1, 4, 3)), (2, 4, 3)), (2, 4, 3))
    one = b.op("matmul", x, wide)
    two = b.op("matmul", turned, wide)
    return b.output(b.op("add", one, two), flat)


EXPECTED = """\
graph(%x: f32[2, 3, 4], %y: f32[4, 3])
  %permute = permute(%x) {perm=[0, 2, 1]} : f32[2, 4, 3]
  %reshape = reshape(%x) {shape=[6, 4]} : f32[6, 4]
  %reshape_1 = reshape(%x) {shape=[2, 12]} : f32[2, 12]
  %reshape_2 = reshape(%y) {shape=[1, 4, 3]} : f32[1, 4, 3]
  %expand = expand(%reshape_2) {shape=[2, 4, 3]} : f32[2, 4, 3]
  %matmul = matmul(%x, %expand) : f32[2, 3, 3]
  %add = add(%matmul, %matmul) : f32[2, 3, 3]
  return %add, %reshape_1
"""


def test_the_normalised_graph_is_this() -> None:
    assert print_graph(build(share=True)) == EXPECTED


def test_values_are_the_same() -> None:
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(s).astype(np.float32) for s in ((2, 3, 4), (4, 3))]
    for got, want in zip(run_graph(build(True), values), run_graph(build(False), values), strict=True):
        np.testing.assert_array_equal(got, want)


def test_constants_are_shared_by_value_and_inputs_never() -> None:
    b = GraphBuilder(share=True)
    assert b.constant(np.ones(3), "f32") is b.constant(np.ones(3), "f32")
    assert b.constant(np.ones(3), "f32") is not b.constant(np.ones(3), "f16")
    assert b.input("x", "f32", (3,)) is not b.input("x", "f32", (3,))
