"""ATen ops that move elements and compute nothing: views, permutations, slices, concatenation, padding, repetition.

Result shapes come from PyTorch's own shape propagation; only what cannot be seen there (orders, starts, steps) is read from
the arguments.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from aicf.frontends.torch.fx.symbols import Unreadable
from aicf.scalar import Const, Expr, call, integer_const, size
from aicf.semantic import Node
from aicf.semantic.sdpa import repeat_slices

from .context import Args, Context, Handler

ZERO = integer_const(0)


def _reshape(c: Context, a: Args) -> Node:
    return c.b.reshape(a.self, c.out.shape)


def _expand(c: Context, a: Args) -> Node:
    return c.b.expand(a.self, c.out.shape)


def _permute(c: Context, a: Args) -> Node:
    return c.b.permute(a.self, [c.axis(d, a.self.type.rank) for d in a.dims])


def _transpose(first: str, second: str) -> Handler:
    def read(c: Context, a: Args) -> Node:
        order = list(range(a.self.type.rank))
        if order:
            i, j = c.axis(getattr(a, first), len(order)), c.axis(getattr(a, second), len(order))
            order[i], order[j] = order[j], order[i]
        return c.b.permute(a.self, order)

    return read


def _swap_last(c: Context, a: Args) -> Node:
    order = list(range(a.self.type.rank))
    if len(order) >= 2:
        order[-2:] = order[:-3:-1]
    return c.b.permute(a.self, order)


def _reverse_axes(c: Context, a: Args) -> Node:
    return c.b.permute(a.self, range(a.self.type.rank)[::-1])


def _movedim(c: Context, a: Args) -> Node:
    rank = a.self.type.rank
    many = [x if isinstance(x, list | tuple) else (x,) for x in (a.source, a.destination)]
    source, target = ([c.axis(d, rank) for d in x] for x in many)
    order: list[int | None] = [None] * rank
    for s, t in zip(source, target, strict=True):
        order[t] = s
    rest = iter(k for k in range(rank) if k not in source)
    return c.b.permute(a.self, [next(rest) if k is None else k for k in order])


def window(c: Context, x: Node, axis: int, start: Expr, length: Expr, step: int = 1) -> Node:
    """start, start+step, … along one axis, everything along the others."""
    starts: list[Expr] = [ZERO] * x.type.rank
    lengths = list(x.type.shape)
    steps = [1] * x.type.rank
    if start is ZERO and step == 1 and length is lengths[axis]:
        return x
    starts[axis], lengths[axis], steps[axis] = start, length, step
    return c.b.slice(x, starts, lengths, steps)


def position(a: Args, name: str, axis: int, clamped: bool) -> Expr:
    """An argument that may count from the end, as a position along `axis` of `self`; `clamped`: it stops at the front.

    Raises Unreadable when its sign is not known.
    """
    value, given = a.symbolic(name), a.get(name, 0)
    if value is None:
        return ZERO
    if not isinstance(value, int | torch.SymInt):
        raise Unreadable(f"a {name} that is no integer")
    if statically_known_true(value >= 0):
        return size(given)
    if not statically_known_true(value < 0):
        raise Unreadable(f"a {name} of {given!r}, whose sign is not known")
    extent = a.self.type.shape[axis]
    start = call("add", extent, size(given))
    if not clamped or statically_known_true(a.symbolic("self").shape[axis] + value >= 0):
        return start
    return call("max", start, ZERO)


def _slice(c: Context, a: Args) -> Node:
    x: Node = a.self
    axis = c.axis(a.get("dim", 0), x.type.rank)
    step = a.get("step", 1)
    if not isinstance(step, int):
        raise Unreadable("a slice whose step is not a plain number")
    start, length = position(a, "start", axis, clamped=True), c.out.shape[axis]
    return window(c, x, axis, ZERO if length is ZERO else start, length, step)


def _narrow(c: Context, a: Args) -> Node:
    axis = c.axis(a.dim, a.self.type.rank)
    return window(c, a.self, axis, position(a, "start", axis, clamped=False), c.out.shape[axis])


def _select(c: Context, a: Args) -> Node:
    axis = c.axis(a.dim, a.self.type.rank)
    part = window(c, a.self, axis, position(a, "index", axis, clamped=False), integer_const(1))
    return c.b.reshape(part, c.out.shape)


def replaced(c: Context, a: Args, select: bool, part: Node) -> Node:
    """`self` of a view by select or slice with `part` in the place of what the view shows. Raises Unreadable."""
    whole: Node = a.self
    axis = c.axis(a.get("dim", 0), whole.type.rank)
    if not select and a.get("step", 1) != 1:
        raise Unreadable("a slice with steps that is changed in place")
    start = position(a, "index" if select else "start", axis, clamped=not select)
    extents = list(whole.type.shape)
    length = extents[axis]
    here = c.positions(length, axis, whole.type.rank)
    if select:
        extents[axis] = integer_const(1)
        return c.b.op("where", c.b.op("eq", here, c.number(start, "i64")), c.b.reshape(part, extents), whole)
    end = call("add", start, part.type.shape[axis])
    if start is ZERO and end is length:
        return part
    if part.op == "expand" and part.inputs[0].type.rank == 0:
        inside = c.b.op("and", c.b.op("ge", here, c.number(start, "i64")), c.b.op("lt", here, c.number(end, "i64")))
        return c.b.op("where", inside, part.inputs[0], whole)
    rest = call("sub", length, end)
    front = [] if start is ZERO else [window(c, whole, axis, ZERO, start)]
    return c.b.op("concat", *front, part, *([] if rest is ZERO else [window(c, whole, axis, end, rest)]), axis=axis)


def _parts(axis_name: str) -> Handler:
    """Pieces along one axis; their lengths are those that PyTorch gives."""

    def read(c: Context, a: Args) -> list[Node | None]:
        axis = c.axis(a.get(axis_name, 0), a.self.type.rank)
        start: Expr = ZERO
        found: list[Node | None] = []
        for kind in c.out_types:
            if kind is None:
                raise Unreadable("a piece of unsupported type")
            found.append(window(c, a.self, axis, start, kind.shape[axis]))
            start = call("add", start, kind.shape[axis])
        return found

    return read


def _unbind(c: Context, a: Args) -> list[Node | None]:
    axis = c.axis(a.get("dim", 0), a.self.type.rank)
    pieces = [window(c, a.self, axis, size(k), integer_const(1)) for k in range(len(c.out_types))]
    return [c.b.reshape(p, kind.shape) for p, kind in zip(pieces, c.out_types, strict=True) if kind is not None]


def _flip(c: Context, a: Args) -> Node:
    x: Node = a.self
    axes = {c.axis(d, x.type.rank) for d in a.dims}
    shape = x.type.shape
    starts = [call("sub", d, integer_const(1)) if k in axes else ZERO for k, d in enumerate(shape)]
    return c.b.slice(x, starts, shape, [-1 if k in axes else 1 for k in range(len(shape))])


def _cat(c: Context, a: Args) -> Node:
    # A one-dimensional empty tensor takes part in no concatenation, whatever the other shapes are.
    parts: list[Node] = [x for x in a.tensors if not (x.type.rank == 1 and x.type.shape[0] is ZERO and len(c.out.shape) > 1)]
    axis = c.axis(a.get("dim", 0), c.out.rank)
    parts = [c.b.cast(x, c.out.dtype) for x in parts]
    return parts[0] if len(parts) == 1 else c.b.op("concat", *parts, axis=axis)


def _stack(c: Context, a: Args) -> Node:
    axis = c.axis(a.get("dim", 0), c.out.rank)
    unit = tuple(integer_const(1) if k == axis else d for k, d in enumerate(c.out.shape))
    parts = [c.b.reshape(c.b.cast(x, c.out.dtype), unit) for x in a.tensors]
    return parts[0] if len(parts) == 1 else c.b.op("concat", *parts, axis=axis)


def _pad(c: Context, a: Args) -> Node:
    if a.get("mode", "constant") != "constant":
        raise Unreadable(f"padding of mode {a.mode!r}")
    rank = a.self.type.rank
    low: list[Expr] = [ZERO] * rank
    high: list[Expr] = [ZERO] * rank
    for k in range(len(a.pad) // 2):
        low[rank - 1 - k], high[rank - 1 - k] = size(a.pad[2 * k]), size(a.pad[2 * k + 1])
    return c.b.op("pad", a.self, low=tuple(low), high=tuple(high), value=a.get("value", 0))


def _repeat(c: Context, a: Args) -> Node:
    x: Node = a.self
    repeats = a.repeats if a.has("repeats") else a.dims
    lead = max(0, len(repeats) - x.type.rank)
    shape = (integer_const(1),) * lead + x.type.shape
    times = [size(r) for r in (1,) * (len(shape) - len(repeats)) + tuple(repeats)]
    apart = [d for n in shape for d in (integer_const(1), n)]
    spread = [d for r, n in zip(times, shape, strict=True) for d in (r, n)]
    return c.b.reshape(c.b.expand(c.b.reshape(x, apart), spread), c.out.shape)


def _repeat_interleave(c: Context, a: Args) -> Node:
    x: Node = a.self
    if isinstance(a.repeats, Node):
        raise Unreadable("repeat_interleave by a tensor")
    if a.get("dim") is None:
        x = c.b.reshape(x, (_count(x),))
    axis = c.axis(a.get("dim", 0), x.type.rank)
    return repeat_slices(c.b, x, axis, size(a.repeats))


def _count(x: Node) -> Expr:
    total: Expr = integer_const(1)
    for d in x.type.shape:
        total = call("mul", total, d)
    return total


def _roll(c: Context, a: Args) -> Node:
    x: Node = a.self
    shifts = a.shifts if isinstance(a.shifts, list | tuple) else [a.shifts]
    dims = a.get("dims", [])
    flat = not dims
    if flat:
        x, dims = c.b.reshape(x, (_count(x),)), [0]
    for shift, dim in zip(shifts, dims, strict=True):
        axis = c.axis(dim, x.type.rank)
        n = x.type.shape[axis]
        if not isinstance(shift, int) or not isinstance(n, Const) or int(n.value) == 0:
            raise Unreadable("a roll by an amount that is not known at compile time")
        by = shift % int(n.value)
        if by:
            tail = window(c, x, axis, size(int(n.value) - by), size(by))
            head = window(c, x, axis, ZERO, size(int(n.value) - by))
            x = c.b.op("concat", tail, head, axis=axis)
    return c.b.reshape(x, a.self.type.shape)


def _meshgrid(c: Context, a: Args) -> list[Node | None]:
    swap = a.get("indexing", "ij") == "xy" and len(a.tensors) >= 2
    rank = len(a.tensors)
    found: list[Node | None] = []
    for k, (x, kind) in enumerate(zip(a.tensors, c.out_types, strict=True)):
        axis = {0: 1, 1: 0}.get(k, k) if swap else k
        if kind is None:
            raise Unreadable("a grid of unsupported type")
        apart = tuple(d if n == axis else integer_const(1) for n, d in enumerate(kind.shape))
        assert len(apart) == rank
        found.append(c.b.expand(c.b.reshape(x, apart), kind.shape))
    return found


def _broadcast_tensors(c: Context, a: Args) -> Sequence[Node | None]:
    return [c.b.expand(x, kind.shape) if kind else None for x, kind in zip(a.tensors, c.out_types, strict=True)]


OPS: dict[str, Handler] = {
    "view": _reshape, "reshape": _reshape, "_unsafe_view": _reshape, "view_as": _reshape, "reshape_as": _reshape,
    "view_copy": _reshape, "_reshape_alias": _reshape, "_reshape_copy": _reshape,
    "flatten": _reshape, "unflatten": _reshape, "squeeze": _reshape, "unsqueeze": _reshape, "ravel": _reshape,
    "squeeze_copy": _reshape, "unsqueeze_copy": _reshape, "atleast_1d": _reshape, "atleast_2d": _reshape,
    "expand": _expand, "expand_as": _expand, "broadcast_to": _expand, "expand_copy": _expand,
    "permute": _permute, "permute_copy": _permute, "transpose": _transpose("dim0", "dim1"),
    "swapaxes": _transpose("axis0", "axis1"),
    "swapdims": _transpose("dim0", "dim1"), "t": _swap_last, "mT": _swap_last, "adjoint": _swap_last, "mH": _swap_last,
    "numpy_T": _reverse_axes, "movedim": _movedim, "moveaxis": _movedim,
    "slice": _slice, "narrow": _narrow, "select": _select,
    "split": _parts("dim"), "split_with_sizes": _parts("dim"), "chunk": _parts("dim"), "tensor_split": _parts("dim"),
    "unsafe_split": _parts("dim"), "unsafe_chunk": _parts("dim"), "unsafe_split_with_sizes": _parts("dim"), "unbind": _unbind,
    "flip": _flip, "cat": _cat, "concat": _cat, "concatenate": _cat, "stack": _stack,
    "pad": _pad, "constant_pad_nd": _pad, "repeat": _repeat, "tile": _repeat, "repeat_interleave": _repeat_interleave,
    "roll": _roll, "meshgrid": _meshgrid, "broadcast_tensors": _broadcast_tensors,
}  # fmt: skip
