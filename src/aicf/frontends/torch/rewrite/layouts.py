"""The memory order of the dimensions of a region's output.

    %o = matmul(%p, %v)                        [B, H, N, D]
    %t = transpose.int(%o, 1, 2)               [B, N, H, D]      the kernel writes %o in memory order B, N, H, D;
    %r = reshape(%t, [B, N, H * D])                              the reshape is then a view, where eager copies

A tensor that is not row-major in PyTorch keeps its layout, since views may depend on it.
"""

from __future__ import annotations

from typing import Any

import torch

from aicf.frontends.torch.run.region_op import Order

aten = torch.ops.aten
# Ops that give a row-major tensor, and are a view where theirs is one already.
_ROW_MAJOR = (aten.reshape.default, aten.contiguous.default, aten.flatten.using_ints)


def memory_order(node: torch.fx.Node) -> Order:
    """The dimensions of the tensor of `node`, outermost in memory first: its own order where that is not row-major, else the one
    that its only reader wants, else row-major."""
    value: Any = node.meta["val"]
    rows = tuple(range(value.dim()))
    own = stride_order(value)
    return own if own != rows else _wanted(node, rows)


def stride_order(value: Any) -> Order:
    """Dimensions by decreasing stride; those of one element, whose stride says nothing, stay where they are."""
    if value.is_contiguous():
        return tuple(range(value.dim()))
    return tuple(sorted(range(value.dim()), key=lambda k: (-_hint(value.stride(k)), k)))


def _wanted(node: torch.fx.Node, rows: Order) -> Order:
    order = rows
    # With a single reader at each step nobody can tell a view from the copy that it replaces.
    while len(node.users) == 1:
        (user,) = node.users
        if user.target in _ROW_MAJOR and user.args[0] is node:
            # Of a dimension of one element a reshape may be a view as it is, with strides that a copy would not have.
            return order if user.meta["val"].is_contiguous() else rows
        step = _permutation(user, len(rows))
        if step is None:
            break
        order = tuple(order[k] for k in step)
        node = user
    return rows


def _permutation(node: torch.fx.Node, rank: int) -> Order | None:
    """The order in which `node` takes its operand's dimensions, None when it does something else."""
    if node.target is aten.permute.default:
        dims: Any = node.args[1]
        return tuple(int(d) % rank for d in dims)
    if node.target is aten.transpose.int:
        a, b = (int(x) % rank for x in node.args[1:3])  # type: ignore[arg-type]
        order = list(range(rank))
        order[a], order[b] = b, a
        return tuple(order)
    return None


def _hint(stride: Any) -> int:
    return stride.node.hint if isinstance(stride, torch.SymInt) else int(stride)
