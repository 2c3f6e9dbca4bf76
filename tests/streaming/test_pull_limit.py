"""A chain of products that doubles at every step does not take the compiler down with it."""

from __future__ import annotations

import time

from aicf.semantic import GraphBuilder
from aicf.streaming.recognise import recognise


def test_a_doubling_chain_ends() -> None:
    b = GraphBuilder()
    x = b.input("x", "f32", (8, 8))
    for _ in range(40):  # every element needs two different elements of the step before: 2^40 without a limit
        x = b.op("matmul", b.op("tanh", b.op("add", x, b.permute(x, (1, 0)))), x)
    b.output(x)
    begin = time.perf_counter()
    recognise(b.graph.nodes, b.graph.outputs)
    assert time.perf_counter() - begin < 120
