"""Lowered and scheduled modules of many kinds, for tests that hold of every module: masks, orders, splits, targets, outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from aicf.mcir import AttentionPatternPass, MCModule, lower_attention_to_streaming, run_streaming_lowering_pass
from aicf.scalar import DType
from aicf.schedule import Problem, choose, named_target
from aicf.semantic import Graph, GraphBuilder, Node, build_attention_semantic_graph

BATCH, HEADS, ROWS, KEYS, WIDTH, VALUES = 1, 2, 37, 45, 8, 12


@dataclass(frozen=True)
class Case:
    """A graph of a type, its schedule's target (None: the specification's fixed tiles) and decisions, and arrays for its
    inputs."""

    make: Callable[[DType], Graph]
    target: str | None = None
    decisions: str = ""

    @property
    def graph(self) -> Graph:
        return self.make("f32")

    @property
    def exact(self) -> Graph:
        """The graph in float64."""
        return self.make("f64")

    def module(self) -> MCModule:
        """A fresh module; tests break it at will."""
        detected = AttentionPatternPass()(self.graph)
        if self.target is None:
            return run_streaming_lowering_pass(detected)
        problem = Problem(ROWS, KEYS, BATCH * HEADS, widths=(WIDTH,), value_widths=(VALUES,))
        schedule = choose(problem, named_target(self.target), self.decisions or None)
        for region in detected.regions:
            lower_attention_to_streaming(region, schedule)
        return detected

    def inputs(self) -> list[Any]:
        rng = np.random.default_rng(7)
        return [_array(rng, n) for n in self.graph.inputs]


def _array(rng: np.random.Generator, node: Node) -> Any:
    shape = [int(getattr(d, "value", 0)) for d in node.type.shape]
    if node.type.dtype == "bool":
        return rng.random(shape) < 0.7
    if node.type.dtype == "i64":
        return np.sort(rng.integers(0, 4, shape))
    return rng.standard_normal(shape).astype(np.float32)


Mask = Callable[[GraphBuilder, Node], Node]


def attention(mask: Mask | None = None, *, outputs: str = "o", fill: float = float("-inf"), dtype: DType = "f32") -> Graph:
    """softmax(mask(q k^T 0.35)) v. `outputs`: o, and l for the log-sum-exp of each row; `fill` 0: the mask is the new score."""
    b = GraphBuilder()
    q = b.input("q", dtype, (BATCH, HEADS, ROWS, WIDTH))
    k = b.input("k", dtype, (BATCH, HEADS, KEYS, WIDTH))
    v = b.input("v", dtype, (BATCH, HEADS, KEYS, VALUES))
    s = b.op("mul", b.einsum(("bhid", "bhjd"), "bhij", q, k), 0.35)
    if mask is not None:
        s = mask(b, s) if fill == 0 else b.op("where", mask(b, s), s, b.constant(fill, dtype))
    top = b.reduce("max", s, (3,), True)
    p = b.op("exp", b.op("sub", s, top))
    total = b.reduce("sum", p, (3,), True)
    made = [b.einsum(("bhij", "bhje"), "bhie", b.op("div", p, total), v)]
    if "l" in outputs:
        made.append(b.op("add", b.op("log", total), top))
    b.output(*made)
    return b.graph


def reductions(dtype: DType) -> Graph:
    """The maximum of each row of scores and the sum of those above 0, without values: no attention."""
    b = GraphBuilder()
    x = b.input("x", dtype, (ROWS, WIDTH))
    w = b.input("w", dtype, (KEYS, WIDTH))
    s = b.einsum(("id", "jd"), "ij", x, w)
    b.output(b.reduce("max", s, (1,), True), b.reduce("sum", b.op("max", s, 0.0), (1,), True))
    return b.graph


def _of(mask: Mask, dtype: DType, *, outputs: str = "o", fill: float = float("-inf")) -> Graph:
    return attention(mask, outputs=outputs, fill=fill, dtype=dtype)


def positions(b: GraphBuilder) -> tuple[Node, Node]:
    return b.reshape(b.iota(ROWS), (ROWS, 1)), b.reshape(b.iota(KEYS), (1, KEYS))


def causal(b: GraphBuilder, s: Node) -> Node:
    i, j = positions(b)
    return b.op("le", j, i)


def window(b: GraphBuilder, s: Node) -> Node:
    i, j = positions(b)
    return b.op("and", b.op("le", j, i), b.op("le", b.op("sub", i, j), 9))


def padding(b: GraphBuilder, s: Node) -> Node:
    return b.reshape(b.input("real", "bool", (KEYS,)), (1, KEYS))


def documents(b: GraphBuilder, s: Node) -> Node:
    ids = b.input("ids", "i64", (KEYS,))
    rows = b.input("row_ids", "i64", (ROWS,))
    return b.op("eq", b.reshape(rows, (ROWS, 1)), b.reshape(ids, (1, KEYS)))


def bias(b: GraphBuilder, s: Node) -> Node:
    return b.op("add", s, b.input("bias", s.type.dtype, (HEADS, ROWS, KEYS)))


SMALL = "tile_m=16,tile_n=8,rows=4"
CASES: dict[str, Case] = {
    "specification": Case(lambda dtype: build_attention_semantic_graph()),
    "specification without a mask": Case(lambda dtype: build_attention_semantic_graph(mask=None)),
    "causal": Case(partial(_of, causal), "avx2", SMALL),
    "causal, finite fill": Case(partial(_of, causal, fill=-1e4), "avx2", SMALL),
    "window, keys outside": Case(partial(_of, window), "avx2", SMALL + ",order=kv_major"),
    "padding, split": Case(partial(_of, padding), "avx2", SMALL + ",kv_split=3"),
    "documents": Case(partial(_of, documents), "avx512", SMALL),
    "bias, two outputs": Case(partial(_of, bias, outputs="ol", fill=0), "avx2", SMALL),
    "reductions of scores": Case(reductions, "avx2", SMALL),
    "causal on a gpu": Case(partial(_of, causal), "h100", "tile_m=64,tile_n=32,warps=2"),
}
