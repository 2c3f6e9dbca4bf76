"""A chain of products that doubles at every step does not take the compiler down with it."""

from __future__ import annotations

import time

from aicf.semantic import GraphBuilder, Refusal
from aicf.streaming.recognise import Recognised, recognise


def test_a_doubling_chain_ends() -> None:
    b = GraphBuilder()
    x = b.input("x", "f32", (8, 8))
    for _ in range(40):  # every element needs two different elements of the step before: 2^40 without a limit
        x = b.op("matmul", b.op("tanh", b.op("add", x, b.permute(x, (1, 0)))), x)
    b.output(x)
    begin = time.perf_counter()
    recognise(b.graph.nodes, b.graph.outputs)
    assert time.perf_counter() - begin < 120


def test_a_recurrence_written_out_ends_and_attention_beside_it_is_found() -> None:
    b = GraphBuilder()
    q, x, k, v = (b.input(name, "f32", (8, 8)) for name in "qxkv")
    x = b.op("matmul", x, b.permute(k, (1, 0)))
    for _ in range(2000):  # deeper than Python's stack
        x = b.op("tanh", b.op("add", b.op("exp", x), q))
    scores = b.op("softmax", b.op("matmul", q, b.permute(k, (1, 0))), axis=1)
    b.output(b.op("matmul", x, v), b.op("matmul", scores, v))
    found = recognise(b.graph.nodes, b.graph.outputs)
    assert [type(f) for f in found] == [Refusal, Recognised]
    assert isinstance(found[0], Refusal) and "too large a computation" in found[0].reason
