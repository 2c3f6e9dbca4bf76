"""`scaled_dot_product_attention` and its parts, written in ops of the table.

    sdpa(q, k, v, mask)  ->  safe_softmax(where(mask, q k^T * scale, -inf)) v
"""

from __future__ import annotations

import math

from aicf.scalar import Const, DType, Expr, call, cast, const, integer_const
from aicf.semantic.builder import GraphBuilder
from aicf.semantic.graph import Node


def number(b: GraphBuilder, value: float, dtype: DType) -> Node:
    """A number as a tensor of rank 0."""
    return b.scalar(const(value, dtype))


def positions(b: GraphBuilder, length: Expr, axis: int, rank: int) -> Node:
    """0, 1, … along `axis`, of extent 1 along the other axes."""
    return b.reshape(b.iota(length), tuple(length if k == axis else integer_const(1) for k in range(rank)))


def matmul(b: GraphBuilder, x: Node, y: Node) -> Node:
    """A matrix product of operands of any rank from 1: a vector is a row on the left, a column on the right."""
    one = integer_const(1)
    row, column = x.type.rank == 1, y.type.rank == 1
    if row:
        x = b.reshape(x, (one, *x.type.shape))
    if column:
        y = b.reshape(y, (*y.type.shape, one))
    product = b.op("matmul", x, y)
    shape = list(product.type.shape)
    if column:
        shape.pop()
    if row:
        del shape[len(shape) - (1 if column else 2)]
    return b.reshape(product, shape)


def repeat_slices(b: GraphBuilder, x: Node, axis: int, repeats: Expr) -> Node:
    """Each slice along `axis` `repeats` times in a row: [a, b] -> [a, a, b, b]."""
    shape = x.type.shape
    apart = (*shape[: axis + 1], integer_const(1), *shape[axis + 1 :])
    repeated = (*shape[: axis + 1], repeats, *shape[axis + 1 :])
    merged = (*shape[:axis], call("mul", shape[axis], repeats), *shape[axis + 1 :])
    return b.reshape(b.expand(b.reshape(x, apart), repeated), merged)


def repeat_heads(b: GraphBuilder, x: Node, q: Node) -> Node:
    """`x` (keys or values [..., heads, length, width]) with each head repeated for the query heads of its group. Raises
    ValueError when the number of heads is not known to divide that of `q`."""
    heads, own = q.type.shape[-3], x.type.shape[-3]
    if heads is own:
        return x
    groups = call("floordiv", heads, own)
    if call("mul", groups, own) is not heads:
        raise ValueError("grouped heads whose number is not known to divide the number of query heads")
    return repeat_slices(b, x, x.type.rank - 3, groups)


def safe_softmax(b: GraphBuilder, x: Node, axis: int) -> Node:
    """Softmax in which a row of -inf alone gives zeros."""
    top = b.reduce("max", x, (axis,), keepdims=True)
    empty = b.op("eq", top, number(b, -math.inf, x.type.dtype))
    return b.op("where", empty, number(b, 0, x.type.dtype), b.op("softmax", x, axis=axis))


def inverse_root(b: GraphBuilder, width: Expr, dtype: DType) -> Node:
    """1 / sqrt(width)."""
    if isinstance(width, Const):
        return number(b, 1 / math.sqrt(float(width.value)) if width.value else math.inf, dtype)
    return b.scalar(cast(call("rsqrt", cast(width, "f64")), dtype))


def sdpa(
    b: GraphBuilder, q: Node, k: Node, v: Node, *,
    mask: Node | None = None, causal: bool = False, scale: Node | None = None, add_masks: bool = False,
) -> Node:  # fmt: skip
    """Attention of q [..., n, d], k [..., m, d] and v [..., m, e], with as many heads each, computed in their type.

    Rows of which every score is -inf, by a mask or by infinite operands, give zeros. `mask`: booleans (True: takes part) or
    numbers that are added, broadcast to the scores. `causal` counts from the top left. `scale`: 1 / sqrt(d) when None.
    `add_masks`: -inf is added where a mask hides, so that a hidden NaN stays NaN; otherwise -inf replaces the score, which is
    the same for finite scores.
    """
    dtype = q.type.dtype
    order = [*range(k.type.rank - 2), k.type.rank - 1, k.type.rank - 2]
    scores = b.op("matmul", q, b.permute(k, order))
    scores = b.op("mul", scores, inverse_root(b, q.type.shape[-1], dtype) if scale is None else scale)
    low = number(b, -math.inf, dtype)

    def masked(keep: Node) -> Node:
        if add_masks:
            return b.op("add", scores, b.op("where", keep, number(b, 0.0, dtype), low))
        return b.op("where", keep, scores, low)

    if causal:
        n, m = scores.type.shape[-2:]
        scores = masked(b.op("le", positions(b, m, 1, 2), positions(b, n, 0, 2)))
    if mask is not None:
        scores = masked(mask) if mask.type.dtype == "bool" else b.op("add", scores, b.cast(mask, dtype))
    return b.op("matmul", safe_softmax(b, scores, scores.type.rank - 1), v)
