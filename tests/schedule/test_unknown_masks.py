"""What is assumed of a mask whose empty tiles depend on tensors that are not known when a schedule is chosen."""

from __future__ import annotations

import pytest

from aicf.decide import ASSUMED_SKIPPED, Decision, decide
from aicf.mcir import AttentionPatternPass
from aicf.mcir.lowered import lowered_region
from aicf.mcir.passes.streaming_lowering import add_stream, derived, detected_meaning
from aicf.semantic import Graph, GraphBuilder

LENGTH = 2048


def attention(mask: str) -> Graph:
    """softmax(mask(q k^T)) v: `documents` compares ids of rows and keys, `padding` reads a flag per key."""
    b = GraphBuilder()
    q, k, v = (b.input(name, "f32", (1, 8, LENGTH, 64)) for name in "qkv")
    s = b.einsum(("bhid", "bhjd"), "bhij", q, k)
    if mask == "documents":
        ids = b.input("ids", "i64", (LENGTH,))
        kept = b.op("eq", b.reshape(ids, (LENGTH, 1)), b.reshape(ids, (1, LENGTH)))
        s = b.op("where", kept, s, b.constant(float("-inf"), "f32"))
    elif mask == "padding":
        s = b.op("where", b.reshape(b.input("real", "bool", (LENGTH,)), (1, LENGTH)), s, b.constant(float("-inf"), "f32"))
    p = b.op("exp", b.op("sub", s, b.reduce("max", s, (3,), True)))
    p = b.op("div", p, b.reduce("sum", p, (3,), True))
    return b.output(b.einsum(("bhij", "bhje"), "bhie", p, v))


def decision(mask: str, target: str) -> Decision:
    (region,) = AttentionPatternPass()(attention(mask)).regions
    streamed = add_stream(region, derived(detected_meaning(region)))
    return decide(lowered_region(streamed), target, None, 1, {})


def test_tiles_are_small_where_documents_may_hide_most():
    plain, documents, padding = (decision(mask, "avx2") for mask in ("none", "documents", "padding"))
    assert documents.problem.skipped == ASSUMED_SKIPPED and padding.problem.skipped == plain.problem.skipped == 0
    assert documents.schedule.tile_m * documents.schedule.tile_n < plain.schedule.tile_m * plain.schedule.tile_n / 4
    assert (padding.schedule.tile_m, padding.schedule.tile_n) == (plain.schedule.tile_m, plain.schedule.tile_n)


def test_an_assumption_is_no_reason_to_stream():
    """The prediction that decides whether to stream is that of a mask which hides nothing."""
    documents, plain = (decision(mask, "avx2") for mask in ("documents", "none"))
    assert " if the mask hides nothing, " in documents.reason and "hides nothing" not in plain.reason
    assert documents.prediction.seconds >= plain.prediction.seconds


@pytest.mark.parametrize("target", ["h100", "a100"])
def test_gpus_assume_nothing(target: str):
    assert decision("documents", target).problem.skipped == 0
