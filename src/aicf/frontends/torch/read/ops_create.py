"""ATen ops that make tensors from numbers and positions: ranges, constants, identity, triangles."""

from __future__ import annotations

from aicf.frontends.torch.fx.symbols import Unreadable
from aicf.scalar import Const, integer_const, is_float
from aicf.semantic import Node

from .context import EXPRESSIONS, Args, Context, Handler, Number, is_integral


def _is(value: Number, wanted: int) -> bool:
    return (isinstance(value, int | float) and value == wanted) or (isinstance(value, Const) and value.value == wanted)


def _arange(c: Context, a: Args) -> Node:
    start, step = a.get("start", 0), a.get("step", 1)
    (length,) = c.out.shape
    dtype = c.out.dtype
    index = c.b.iota(length)
    if all(isinstance(x, int) or (isinstance(x, EXPRESSIONS) and is_integral(x.dtype)) for x in (start, step)):
        x = index
        if not _is(step, 1):
            x = c.b.op("mul", x, c.number(step, "i64"))
        if not _is(start, 0):
            x = c.b.op("add", x, c.number(start, "i64"))
        return c.b.cast(x, dtype)
    # PyTorch computes start + step * i in double and rounds once.
    x = c.b.op("mul", c.b.cast(index, "f64"), c.number(step, "f64"))
    return c.b.cast(c.b.op("add", c.number(start, "f64"), x), dtype)


def _filled(value: Number) -> Handler:
    return lambda c, a: c.full(value, c.out)


def _full(c: Context, a: Args) -> Node:
    return c.full(a.fill_value, c.out)


def _scalar_tensor(c: Context, a: Args) -> Node:
    return c.number(a.s, c.out.dtype)


def _eye(c: Context, a: Args) -> Node:
    n, m = c.out.shape
    return c.b.cast(c.b.op("eq", c.positions(n, 0, 2), c.positions(m, 1, 2)), c.out.dtype)


def _triangle(keep: str) -> Handler:
    """tril keeps j - i <= diagonal, triu keeps j - i >= diagonal; the rest is 0."""

    def read(c: Context, a: Args) -> Node:
        x: Node = a.self
        rows, columns = x.type.shape[-2:]
        diagonal = a.get("diagonal", 0)
        i, j = c.positions(rows, 0, 2), c.positions(columns, 1, 2)
        if not _is(diagonal, 0):
            i = c.b.op("add", i, c.number(diagonal, "i64"))
        return c.b.op("where", c.b.op(keep, j, i), x, c.number(0, x.type.dtype))

    return read


def _linspace(c: Context, a: Args) -> Node:
    """start + i * step from the front, end - (n-1-i) * step from the middle on, as PyTorch computes it."""
    (length,) = c.out.shape
    if (
        not isinstance(length, Const)
        or not all(isinstance(x, int | float) for x in (a.start, a.end))
        or not is_float(c.out.dtype)
    ):
        raise Unreadable("linspace between ends that are not plain numbers")
    n = int(length.value)
    if n < 2:
        return c.full(a.start, c.out)
    b = c.b
    step = c.number((a.end - a.start) / (n - 1), "f64")
    i = b.iota(length)
    forward = b.op("add", c.number(float(a.start), "f64"), b.op("mul", b.cast(i, "f64"), step))
    left = b.cast(b.op("sub", c.number(n - 1, "i64"), i), "f64")
    backward = b.op("sub", c.number(float(a.end), "f64"), b.op("mul", left, step))
    return b.cast(b.op("where", b.op("lt", i, c.number(n // 2, "i64")), forward, backward), c.out.dtype)


def _one_hot(c: Context, a: Args) -> Node:
    *lead, classes = c.out.shape
    where = c.b.reshape(a.self, (*lead, integer_const(1)))
    return c.b.cast(c.b.op("eq", where, c.positions(classes, len(lead), len(lead) + 1)), c.out.dtype)


OPS: dict[str, Handler] = {
    "arange": _arange, "full": _full, "full_like": _full, "new_full": _full, "zeros": _filled(0), "zeros_like": _filled(0),
    "new_zeros": _filled(0), "ones": _filled(1), "ones_like": _filled(1), "new_ones": _filled(1), "scalar_tensor": _scalar_tensor,
    "eye": _eye, "tril": _triangle("le"), "triu": _triangle("ge"), "linspace": _linspace, "one_hot": _one_hot,
}  # fmt: skip
