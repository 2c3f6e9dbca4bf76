"""ATen ops that read by index: advanced indexing, index_select, gather, embedding."""

from __future__ import annotations

from aicf.scalar import is_int
from aicf.semantic import Node

from .context import Args, Context, Handler
from .symbols import Unreadable


def _integer_indices(*indices: Node) -> None:
    if not all(is_int(i.type.dtype) for i in indices):
        raise Unreadable("an index by a boolean mask, whose result has a size that depends on data")


def _index(c: Context, a: Args) -> Node:
    """`x[i, :, j]`: index tensors broadcast together; apart from each other their axes go to the front."""
    chosen = [(axis, i) for axis, i in enumerate(a.indices) if i is not None]
    axes = tuple(axis for axis, _ in chosen)
    _integer_indices(*(i for _, i in chosen))
    if not axes:
        return a.self
    adjacent = axes == tuple(range(axes[0], axes[0] + len(axes)))
    return c.b.op("take", a.self, *(i for _, i in chosen), axes=axes, position=axes[0] if adjacent else 0)


def _index_select(c: Context, a: Args) -> Node:
    _integer_indices(a.index)
    axis = c.axis(a.dim, a.self.type.rank)
    index = c.b.reshape(a.index, (c.out.shape[axis],))
    return c.b.op("take", a.self, index, axes=(axis,), position=axis)


def _gather(c: Context, a: Args) -> Node:
    _integer_indices(a.index)
    return c.b.op("gather", a.self, a.index, axis=c.axis(a.dim, a.self.type.rank))


def _take_along_dim(c: Context, a: Args) -> Node:
    if a.get("dim") is None:
        raise Unreadable("take_along_dim over a flattened tensor")
    _integer_indices(a.indices)
    axis = c.axis(a.dim, a.self.type.rank)
    shape = c.out.shape
    data = c.b.expand(a.self, tuple(a.self.type.shape[k] if k == axis else d for k, d in enumerate(shape)))
    return c.b.op("gather", data, c.b.expand(a.indices, shape), axis=axis)


def _embedding(c: Context, a: Args) -> Node:
    return c.b.op("take", a.weight, a.indices, axes=(0,), position=0)


OPS: dict[str, Handler] = {
    "index": _index, "_unsafe_index": _index, "index_select": _index_select, "gather": _gather, "take_along_dim": _take_along_dim,
    "embedding": _embedding,
}  # fmt: skip
