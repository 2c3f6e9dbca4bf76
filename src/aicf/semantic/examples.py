"""The user's example graph: scaled dot-product attention as the specification draws it."""

from __future__ import annotations

from collections.abc import Callable

from aicf.scalar import DType, Expr, index
from aicf.semantic.builder import GraphBuilder
from aicf.semantic.graph import Graph, Node

Mask = Callable[[GraphBuilder, Node, Node], Node]


def causal(b: GraphBuilder, query: Node, key: Node) -> Node:
    """A query sees itself and what came before."""
    return b.op("le", key, query)


def build_attention_semantic_graph(
    *,
    mask: str | Mask | None = "causal",
    dtype: DType = "f16",
    head_dim: int = 64,
    value_dim: int | None = None,
    batch: int | Expr | None = None,
    heads: int | Expr | None = None,
    queries: int | Expr | None = None,
    keys: int | Expr | None = None,
    scale: float | None = None,
) -> Graph:
    """softmax(mask(Q K^T * scale)) V with Q [B, H, N, d], K [B, H, M, d], V [B, H, M, dv].

    `mask`: "causal", None, or a function of (builder, query positions [N, 1], key positions [1, M]) that gives the pairs to
    keep. Sizes left out are symbols. `scale` is 1/sqrt(head_dim) unless given.
    """
    b = GraphBuilder()
    dims = [index("B") if batch is None else batch, index("H") if heads is None else heads]
    n = index("N") if queries is None else queries
    m = index("M") if keys is None else keys
    q = b.input("Q", dtype, (*dims, n, head_dim))
    k = b.input("K", dtype, (*dims, m, head_dim))
    v = b.input("V", dtype, (*dims, m, value_dim or head_dim))
    scores = b.op("matmul", q, b.permute(k, (0, 1, 3, 2), name="K_T"), name="Scores")
    scores = b.op("mul", scores, float(head_dim**-0.5 if scale is None else scale), name="Scaled")
    if mask is not None:
        query = b.reshape(b.iota(n, name="query"), (n, 1))
        key = b.reshape(b.iota(m, name="key"), (1, m))
        keep = (causal if mask == "causal" else mask)(b, query, key) if not isinstance(mask, str) else causal(b, query, key)
        scores = b.op("where", keep, scores, float("-inf"), name="Masked")
    probabilities = b.op("softmax", scores, axis=-1, name="Softmax")
    return b.output(b.op("matmul", probabilities, v, name="O"))
