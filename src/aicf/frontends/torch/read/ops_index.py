"""ATen ops that read by index: advanced indexing, index_select, gather, embedding."""

from __future__ import annotations

from aicf.frontends.torch.fx.symbols import Unreadable
from aicf.scalar import Const, integer_const, is_int
from aicf.semantic import Node
from aicf.semantic.types import is_one

from .context import Args, Context, Handler


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
    return c.b.op("take", a.self, index, axes=(axis,), position=axis, wraps=False)


def _gather(c: Context, a: Args) -> Node:
    _integer_indices(a.index)
    return c.b.op("gather", a.self, a.index, axis=c.axis(a.dim, a.self.type.rank), wraps=False)


def _take_along_dim(c: Context, a: Args) -> Node:
    if a.get("dim") is None:
        raise Unreadable("take_along_dim over a flattened tensor")
    _integer_indices(a.indices)
    axis = c.axis(a.dim, a.self.type.rank)
    shape = c.out.shape
    length = a.self.type.shape[axis]
    data = c.b.expand(a.self, tuple(length if k == axis else d for k, d in enumerate(shape)))
    # PyTorch takes any number, modulo the length.
    divisor = length.value if isinstance(length, Const) else c.b.cast(c.b.scalar(length), a.indices.type.dtype)
    indices = c.b.op("mod", a.indices, divisor)
    return c.b.op("gather", data, c.b.expand(indices, shape), axis=axis)


def _index_put(c: Context, a: Args) -> Node:
    """`x[mask] = number` is a selection; what writes to other places is not followed."""
    chosen = [(axis, i) for axis, i in enumerate(a.indices) if i is not None]
    value: Node = a.get("values")
    if a.get("accumulate") or len(chosen) != 1 or chosen[0][1].type.dtype != "bool" or not all(map(is_one, value.type.shape)):
        raise Unreadable("writing by index, save of one number where a mask holds,")
    axis, mask = chosen[0]
    shape = a.self.type.shape
    if mask.type.shape != shape[axis : axis + mask.type.rank]:
        raise Unreadable("writing by a mask of another shape")
    mask = c.b.reshape(mask, (*mask.type.shape, *[integer_const(1)] * (len(shape) - axis - mask.type.rank)))
    number = c.b.cast(c.b.reshape(value, ()), a.self.type.dtype)
    return c.b.op("where", mask, number, a.self)


def _embedding(c: Context, a: Args) -> Node:
    return c.b.op("take", a.weight, a.indices, axes=(0,), position=0, wraps=False)


OPS: dict[str, Handler] = {
    "index": _index, "_unsafe_index": _index, "index_select": _index_select, "gather": _gather, "take_along_dim": _take_along_dim,
    "embedding": _embedding, "index_put": _index_put,
}  # fmt: skip
