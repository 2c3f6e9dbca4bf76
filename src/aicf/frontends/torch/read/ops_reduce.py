"""ATen reductions, softmax and its kin, norms."""

from __future__ import annotations

import math
from typing import Any

from aicf.frontends.torch.fx.symbols import DTYPE_OF, Unreadable
from aicf.scalar import DType, Expr, call, cast, integer_const, is_float, is_half
from aicf.semantic import Node
from aicf.semantic.sdpa import safe_softmax

from .context import Args, Context, Handler


def count_over(x: Node, axes: tuple[int, ...]) -> Expr:
    total: Expr = integer_const(1)
    for k in axes:
        total = call("mul", total, x.type.shape[k])
    return total


def _dtype(a: Args) -> DType | None:
    dtype = a.get("dtype")
    if dtype is not None and dtype not in DTYPE_OF:
        raise Unreadable(f"element type {dtype} is not supported")
    return None if dtype is None else DTYPE_OF[dtype]


def _input(c: Context, a: Args) -> Node:
    dtype = _dtype(a)
    return a.self if dtype is None else c.b.cast(a.self, dtype)


def _reduce(op: str) -> Handler:
    def read(c: Context, a: Args) -> Node:
        x = _input(c, a)
        return c.b.reduce(op, x, c.axes(a.get("dim"), x.type.rank), bool(a.get("keepdim", False)))

    return read


def _with_index(op: str) -> Handler:
    """max.dim and min.dim: the values are read, the positions are not."""

    def read(c: Context, a: Args) -> list[Node | None]:
        axes = (c.axis(a.dim, a.self.type.rank),)
        return [c.b.reduce(op, a.self, axes, bool(a.get("keepdim", False))) if a.self.type.rank else a.self, None]

    return read


def _extremum(op: str) -> Handler:
    with_index, plain = _with_index(op), _reduce(op)

    def read(c: Context, a: Args) -> Any:
        return with_index(c, a) if a.has("dim") else plain(c, a)

    return read


def _aminmax(c: Context, a: Args) -> list[Node | None]:
    axes, keep = c.axes(a.get("dim"), a.self.type.rank), bool(a.get("keepdim", False))
    return [c.b.reduce("min", a.self, axes, keep), c.b.reduce("max", a.self, axes, keep)]


def wide_of(c: Context, x: Node) -> Node:
    return c.b.cast(x, "f32") if is_half(x.type.dtype) else x


def mean(c: Context, x: Node, axes: tuple[int, ...], keepdims: bool) -> Node:
    """The mean in the type of `x`."""
    total = c.b.reduce("sum", x, axes, keepdims)
    return c.b.op("div", total, c.number(count_over(x, axes), x.type.dtype))


def _mean(c: Context, a: Args) -> Node:
    x = _input(c, a)
    if not is_float(x.type.dtype):
        raise Unreadable("a mean of integers")
    axes = c.axes(a.get("dim"), x.type.rank)
    return c.b.cast(mean(c, wide_of(c, x), axes, bool(a.get("keepdim", False))), x.type.dtype)


def _variance(c: Context, x: Node, a: Args) -> tuple[Node, Node]:
    """(variance, mean) of `x` in its type."""
    axes, keep = c.axes(a.get("dim"), x.type.rank), bool(a.get("keepdim", False))
    correction = a.get("correction", None)
    if correction is None:
        correction = 0 if a.has("unbiased") and a.unbiased is False else 1
    centre = mean(c, x, axes, True)
    distance = c.b.op("sub", x, centre)
    total = c.b.reduce("sum", c.b.op("mul", distance, distance), axes, keep)
    count = call("sub", cast(count_over(x, axes), "f64"), cast(_number(correction), "f64"))
    # A negative number of degrees of freedom counts as none, as in PyTorch.
    degrees = c.number(call("max", count, cast(integer_const(0), "f64")), x.type.dtype)
    return c.b.op("div", total, degrees), c.b.reshape(centre, total.type.shape)


def _number(value: Any) -> Expr:
    if not isinstance(value, int | float) or not float(value).is_integer():
        raise Unreadable(f"a variance with a correction of {value}")
    return integer_const(int(value))


def _spread(root: bool, with_mean: bool) -> Handler:
    def read(c: Context, a: Args) -> Any:
        dtype = a.self.type.dtype
        if not is_float(dtype):
            raise Unreadable("a variance of integers")
        spread, centre = _variance(c, wide_of(c, a.self), a)
        if root:
            spread = c.b.op("sqrt", spread)
        spread = c.b.cast(spread, dtype)
        return [spread, c.b.cast(centre, dtype)] if with_mean else spread

    return read


def _norm(c: Context, a: Args) -> Node:
    order = a.get("ord", None) if a.has("ord") else a.get("p", 2)
    order = 2 if order is None else order
    x = _input(c, a)
    dtype = x.type.dtype
    if not is_float(dtype) or not isinstance(order, int | float):
        raise Unreadable(f"a norm of order {order}")
    axes, keep = c.axes(a.get("dim"), x.type.rank), bool(a.get("keepdim", False))
    x, b = wide_of(c, x), c.b
    if order == 2:
        result = b.op("sqrt", b.reduce("sum", b.op("mul", x, x), axes, keep))
    elif order == 1:
        result = b.reduce("sum", b.op("abs", x), axes, keep)
    elif order in (math.inf, -math.inf):
        result = b.reduce("max" if order > 0 else "min", b.op("abs", x), axes, keep)
    else:
        raise Unreadable(f"a norm of order {order}")
    return b.cast(result, dtype)


# ------------------------------------------------------------------------------------------------ softmax and its kin


def _softmax(op: str) -> Handler:
    def read(c: Context, a: Args) -> Node:
        x = c.b.cast(_input(c, a), c.out.dtype)
        if x.type.rank == 0:
            raise Unreadable("a softmax of a tensor of rank 0")
        return c.b.op(op, x, axis=c.axis(a.dim, x.type.rank))

    return read


def _safe_softmax(c: Context, a: Args) -> Node:
    x = c.b.cast(_input(c, a), c.out.dtype)
    return safe_softmax(c.b, x, c.axis(a.dim, x.type.rank))


def _logsumexp(c: Context, a: Args) -> Node:
    axes = c.axes(a.dim, a.self.type.rank)
    if len(axes) != 1 or not is_float(a.self.type.dtype):
        raise Unreadable("logsumexp over several axes")
    return c.b.op("logsumexp", a.self, axis=axes[0], keepdims=bool(a.get("keepdim", False)))


def _count_nonzero(c: Context, a: Args) -> Node:
    x = c.b.cast(c.b.cast(a.self, "bool"), "i64")
    return c.b.reduce("sum", x, c.axes(a.get("dim"), x.type.rank))


OPS: dict[str, Handler] = {
    "sum": _reduce("sum"), "mean": _mean, "amax": _reduce("max"), "amin": _reduce("min"), "prod": _reduce("prod"),
    "any": _reduce("any"), "all": _reduce("all"), "max": _extremum("max"), "min": _extremum("min"), "aminmax": _aminmax,
    "var": _spread(root=False, with_mean=False), "std": _spread(root=True, with_mean=False),
    "var_mean": _spread(root=False, with_mean=True), "std_mean": _spread(root=True, with_mean=True),
    "norm": _norm, "linalg_vector_norm": _norm, "count_nonzero": _count_nonzero,
    "softmax": _softmax("softmax"), "_softmax": _softmax("softmax"), "special_softmax": _softmax("softmax"),
    "log_softmax": _softmax("log_softmax"), "_log_softmax": _softmax("log_softmax"),
    "special_log_softmax": _softmax("log_softmax"), "_safe_softmax": _safe_softmax, "logsumexp": _logsumexp,
    "special_logsumexp": _logsumexp,
}  # fmt: skip
