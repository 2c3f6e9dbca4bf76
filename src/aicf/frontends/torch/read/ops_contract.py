"""ATen contractions: matrix products of every rank, einsum, and `scaled_dot_product_attention` written out.

linear(x, w, bias)  ->  matmul(x, permute(w)) + bias
scaled_dot_product_attention(q, k, v, mask)  ->  safe_softmax(where(mask, q k^T * scale, -inf)) v
"""

from __future__ import annotations

from string import ascii_letters
from typing import Any

from aicf.frontends.torch.fx.symbols import Unreadable
from aicf.scalar import integer_const, is_half
from aicf.semantic import Node, sdpa
from aicf.semantic.einsum import parse_einsum

from .context import DROPOUT, Args, Context, Handler
from .ops_reduce import wide_of

ONE = integer_const(1)


def matmul(c: Context, x: Node, y: Node) -> Node:
    """torch.matmul of any ranks >= 1."""
    if x.type.rank == 0 or y.type.rank == 0:
        raise Unreadable("matmul of a tensor of rank 0")
    return sdpa.matmul(c.b, x, y)


def _product(first: str, second: str) -> Handler:
    return lambda c, a: matmul(c, getattr(a, first), getattr(a, second))


def _linear(c: Context, a: Args) -> Node:
    weight = a.weight if a.weight.type.rank == 1 else c.b.permute(a.weight, (1, 0))
    result = matmul(c, a.input, weight)
    return result if a.get("bias") is None else c.b.op("add", result, a.bias)


def _scaled_sum(first: str, second: str, reduce_batch: bool = False) -> Handler:
    """beta * self + alpha * (x @ y); a beta of 0 ignores `self`, NaN included."""

    def read(c: Context, a: Args) -> Node:
        x, y = getattr(a, first), getattr(a, second)
        beta, alpha = a.get("beta", 1), a.get("alpha", 1)
        dtype = c.out.dtype
        plain = _is_one(alpha) and (_is_one(beta) or _is_zero(beta))
        if is_half(dtype) and not plain:
            x, y = c.b.cast(x, "f32"), c.b.cast(y, "f32")
        result = matmul(c, x, y)
        if reduce_batch:
            result = c.b.reduce("sum", result, (0,))
        kind = result.type.dtype
        if not _is_one(alpha):
            result = c.b.op("mul", result, c.number(alpha, kind))
        if not _is_zero(beta):
            bias = c.b.cast(a.self, kind)
            result = c.b.op("add", bias if _is_one(beta) else c.b.op("mul", bias, c.number(beta, kind)), result)
        return c.b.expand(c.b.cast(result, dtype), c.out.shape)

    return read


def _is_one(x: Any) -> bool:
    return isinstance(x, int | float) and x == 1


def _is_zero(x: Any) -> bool:
    return isinstance(x, int | float) and x == 0


def _outer(c: Context, a: Args) -> Node:
    second = a.vec2
    return c.b.op("mul", c.b.reshape(a.self, (*a.self.type.shape, ONE)), c.b.reshape(second, (ONE, *second.type.shape)))


def _inner(c: Context, a: Args) -> Node:
    y: Node = a.other
    if a.self.type.rank == 0 or y.type.rank == 0:
        return c.b.op("mul", a.self, y)
    if y.type.rank > 2:
        raise Unreadable("an inner product with a tensor of rank above 2")
    return matmul(c, a.self, y if y.type.rank == 1 else c.b.permute(y, (1, 0)))


# ------------------------------------------------------------------------------------------------ einsum


def _einsum(c: Context, a: Args) -> Node:
    operands = list(a.tensors)
    try:
        inputs, output = parse_einsum(a.equation, [x.type.rank for x in operands])
    except ValueError as e:
        raise Unreadable(str(e)) from None
    missing = set(output) - set("".join(inputs))
    if missing:
        raise Unreadable(f"einsum {a.equation!r}")
    return c.b.einsum(inputs, output, *operands)


def _tensordot(c: Context, a: Args) -> Node:
    x, y = a.self, a.other
    xs = [c.axis(d, x.type.rank) for d in a.dims_self]
    ys = [c.axis(d, y.type.rank) for d in a.dims_other]
    first = ascii_letters[: x.type.rank]
    second = list(ascii_letters[x.type.rank : x.type.rank + y.type.rank])
    for i, j in zip(xs, ys, strict=True):
        second[j] = first[i]
    output = "".join(l for k, l in enumerate(first) if k not in xs) + "".join(l for k, l in enumerate(second) if k not in ys)
    return c.b.einsum([first, "".join(second)], output, x, y)


# ------------------------------------------------------------------------------------------------ attention, written out


def _attention(c: Context, a: Args) -> Node:
    if a.get("dropout_p", 0.0) != 0:
        raise Unreadable(DROPOUT)
    return attention(c, a.query, a.key, a.value, a.get("attn_mask"), bool(a.get("is_causal", False)), a.get("scale"),
                     bool(a.get("enable_gqa", False)))  # fmt: skip


def _flash_attention(c: Context, a: Args) -> list[Node | None]:
    if a.get("dropout_p", 0.0) != 0:
        raise Unreadable(DROPOUT)
    found = attention(c, a.query, a.key, a.value, a.get("attn_mask"), bool(a.get("is_causal", False)), a.get("scale"), False)
    return [found, *[None] * (len(c.out_types) - 1)]


def attention(c: Context, q: Node, k: Node, v: Node, mask: Node | None, causal: bool, scale: Any, grouped: bool) -> Node:
    """PyTorch's scaled_dot_product_attention: f32 scores for halves. With a mask PyTorch adds -inf, where it matters."""
    dtype = q.type.dtype
    if grouped and q.type.rank >= 3:
        k, v = (repeat_heads(c, x, q) for x in (k, v))
    q, k, v = (wide_of(c, x) for x in (q, k, v))
    factor = None if scale is None else c.number(scale, q.type.dtype)
    return c.b.cast(sdpa.sdpa(c.b, q, k, v, mask=mask, causal=causal, scale=factor, add_masks=c.strict), dtype)


def repeat_heads(c: Context, x: Node, q: Node) -> Node:
    """`x` with each head repeated for the query heads of its group. Raises Unreadable."""
    try:
        return sdpa.repeat_heads(c.b, x, q)
    except ValueError as e:
        raise Unreadable(str(e)) from None


OPS: dict[str, Handler] = {
    "matmul": _product("self", "other"), "mm": _product("self", "mat2"), "bmm": _product("self", "mat2"),
    "mv": _product("self", "vec"), "dot": _product("self", "tensor"), "inner": _inner,
    "linear": _linear, "addmm": _scaled_sum("mat1", "mat2"), "baddbmm": _scaled_sum("batch1", "batch2"),
    "addbmm": _scaled_sum("batch1", "batch2", reduce_batch=True), "addmv": _scaled_sum("mat", "vec"),
    "outer": _outer, "ger": _outer, "einsum": _einsum, "tensordot": _tensordot,
    "scaled_dot_product_attention": _attention, "_scaled_dot_product_flash_attention_for_cpu": _flash_attention,
    "_scaled_dot_product_attention_math": _flash_attention,
}  # fmt: skip
