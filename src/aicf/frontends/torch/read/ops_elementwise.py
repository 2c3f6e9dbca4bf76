"""Element-wise ATen ops: arithmetic, comparisons, logic, activations and casts.

Single rows of the scalar table stay in the tensors' own type; what is spelled with several rows is computed in f32 for halves
and rounded once, as PyTorch's CPU kernels do.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from aicf.frontends.torch.fx.symbols import DTYPE_OF, Unreadable
from aicf.scalar import FUNCTIONS, DType, is_float, is_int
from aicf.semantic import GraphBuilder, Node, activations

from .context import DROPOUT, MAX_FLOAT, Args, Context, Handler, Number, is_integral

Maths = Callable[[Context, Node], Node]


def _scaled(c: Context, x: Node | Number, alpha: Number, dtype: DType) -> Node:
    """`alpha * x`, in f32 for halves."""
    compute: DType = "f32" if dtype in ("f16", "bf16") else dtype
    return c.b.op("mul", c.operand(x, compute), c.operand(alpha, compute))


def _add(fn: str, first: str, second: str) -> Handler:
    def read(c: Context, a: Args) -> Node:
        x, y, alpha = getattr(a, first), getattr(a, second), a.get("alpha", 1)
        dtype = c.common(x, y)
        if isinstance(alpha, int | float) and alpha == 1:
            if dtype == "bool":
                if fn == "sub":
                    raise Unreadable("PyTorch does not subtract booleans")
                return c.b.op("or", c.operand(x, dtype), c.operand(y, dtype))
            return c.pointwise(fn, x, y, dtype=dtype)
        compute: DType = "f32" if dtype in ("f16", "bf16") else dtype
        return c.b.cast(c.b.op(fn, c.operand(x, compute), _scaled(c, y, alpha, dtype)), dtype)

    return read


def _mul(c: Context, a: Args) -> Node:
    dtype = c.common(a.self, a.other)
    if dtype == "bool":
        return c.b.op("and", c.operand(a.self, dtype), c.operand(a.other, dtype))
    return c.pointwise("mul", a.self, a.other, dtype=dtype)


def _div(c: Context, a: Args) -> Node:
    mode = a.get("rounding_mode")
    if mode is None:
        return c.pointwise("div", a.self, a.other, dtype=c.floating(a.self, a.other))
    if mode == "floor":
        return _floor_divide(c, a)
    dtype = c.common(a.self, a.other)
    x, y = c.operand(a.self, dtype), c.operand(a.other, dtype)
    if is_float(dtype):
        return c.wide(lambda p, q: c.b.op("trunc", c.b.op("div", p, q)), x, y, dtype=dtype)
    b = c.b
    quotient = b.op("floordiv", b.op("abs", x), b.op("abs", y))
    negative = b.op("ne", b.op("lt", x, c.number(0, dtype)), b.op("lt", y, c.number(0, dtype)))
    return b.op("where", negative, b.op("neg", quotient), quotient)


def _floor_divide(c: Context, a: Args) -> Node:
    return c.pointwise("floordiv", a.self, a.other, dtype=c.common(a.self, a.other))


def _remainder(c: Context, a: Args) -> Node:
    return c.pointwise("mod", a.self, a.other, dtype=c.common(a.self, a.other))


def _fmod(c: Context, a: Args) -> Node:
    dtype = c.common(a.self, a.other)
    b, x, y = c.b, c.operand(a.self, dtype), c.operand(a.other, dtype)
    rest = b.op("mod", b.op("abs", x), b.op("abs", y))
    return b.op("where", b.op("lt", x, c.number(0, dtype)), b.op("neg", rest), rest)


def _pow(c: Context, a: Args) -> Node:
    base, exponent = (a.self, a.exponent)
    dtype = c.common(base, exponent)
    if isinstance(base, Node) and isinstance(exponent, int | float) and not isinstance(exponent, bool):
        x, b = c.operand(base, dtype), c.b
        if exponent == 1:
            return x
        if exponent == 2:
            return b.op("mul", x, x)
        if is_float(dtype):
            match exponent:
                case 0:
                    return c.full(1, x.type)
                case 0.5:
                    return b.op("sqrt", x)
                case -0.5:
                    return b.op("rsqrt", x)
                case -1:
                    return b.op("div", c.number(1, dtype), x)
                case 3:
                    return c.wide(lambda y: b.op("mul", b.op("mul", y, y), y), x, dtype=dtype)
                case -2:
                    return c.wide(lambda y: b.op("div", c.number(1, y.type.dtype), b.op("mul", y, y)), x, dtype=dtype)
                case _:
                    pass
    return c.pointwise("pow", base, exponent, dtype=dtype)


def _compare(fn: str) -> Handler:
    return lambda c, a: c.compare(fn, a.self, a.other)


def _logical(fn: str) -> Handler:
    def read(c: Context, a: Args) -> Node:
        operands = [a.self] if fn == "not" else [a.self, a.other]
        return c.b.op(fn, *(c.operand(x, "bool") for x in operands))

    return read


def _bitwise(fn: str) -> Handler:
    def read(c: Context, a: Args) -> Node:
        if fn == "not":
            return c.b.op("not", a.self)
        dtype = c.common(a.self, a.other)
        return c.b.op(fn, c.operand(a.self, dtype), c.operand(a.other, dtype))

    return read


def _extremum(fn: str) -> Handler:
    return lambda c, a: c.arithmetic(fn, a.self, a.other)


def _rounding(fn: str) -> Handler:
    """floor, ceil, trunc, round: integers are left alone."""

    def read(c: Context, a: Args) -> Node:
        if a.get("decimals", 0) != 0:
            raise Unreadable("rounding to decimals")
        return c.b.op(fn, a.self) if is_float(a.self.type.dtype) else a.self

    return read


def _float(fn: str) -> Handler:
    """A row that gives floats, of one operand or two."""

    def read(c: Context, a: Args) -> Node:
        operands = [a.self] if FUNCTIONS[fn].arity == 1 else [a.self, a.other]
        return c.pointwise(fn, *operands, dtype=c.floating(*operands))

    return read


def _formula(f: Maths) -> Handler:
    """Several rows of one operand."""
    return lambda c, a: c.wide(lambda x: f(c, x), a.self)


def _shared(f: Callable[[GraphBuilder, Node], Node]) -> Handler:
    """A formula that frontends share."""
    return lambda c, a: c.wide(lambda x: f(c.b, x), a.self)


def _const(c: Context, like: Node, value: float) -> Node:
    return c.number(value, like.type.dtype)


def _times(c: Context, x: Node, value: float) -> Node:
    return c.b.op("mul", x, _const(c, x, value))


def _clip(c: Context, x: Node, low: float, high: float) -> Node:
    return activations.clip(c.b, x, _const(c, x, low), _const(c, x, high))


def _reciprocal(c: Context, a: Args) -> Node:
    dtype = c.floating(a.self)
    return c.b.op("div", c.number(1, dtype), c.operand(a.self, dtype))


def _square(c: Context, a: Args) -> Node:
    return c.b.op("mul", a.self, a.self)


def _rsub(c: Context, a: Args) -> Node:
    return _add("sub", "other", "self")(c, a)  # type: ignore[return-value]


def _gelu(c: Context, a: Args) -> Node:
    approximate = a.get("approximate", "none") == "tanh"
    return c.wide(lambda x: activations.gelu(c.b, x, approximate=approximate), a.self)


def _softplus(c: Context, a: Args) -> Node:
    beta, threshold = a.get("beta", 1), a.get("threshold", 20)

    def f(x: Node) -> Node:
        return activations.softplus(c.b, x, 1.0 if beta == 1 else _const(c, x, beta), _const(c, x, threshold))

    return c.wide(f, a.self)


def _leaky_relu(c: Context, a: Args) -> Node:
    slope = a.get("negative_slope", 0.01)
    return c.wide(lambda x: activations.leaky_relu(c.b, x, _const(c, x, slope)), a.self)


def _elu(c: Context, a: Args) -> Node:
    given = (a.get("alpha", 1), a.get("scale", 1), a.get("input_scale", 1))
    return c.wide(lambda x: activations.elu(c.b, x, *(_const(c, x, value) for value in given)), a.self)


def _celu(c: Context, a: Args) -> Node:
    alpha = a.get("alpha", 1.0)
    return c.wide(lambda x: activations.elu(c.b, x, _const(c, x, alpha), 1.0, _const(c, x, 1 / alpha)), a.self)


def _relu(c: Context, a: Args) -> Node:
    return c.b.op("max", a.self, c.number(0, a.self.type.dtype))


def _hardtanh(c: Context, a: Args) -> Node:
    return _clip(c, a.self, a.get("min_val", -1), a.get("max_val", 1))


def _clamp(c: Context, a: Args) -> Node:
    low, high = a.get("min"), a.get("max")
    dtype = c.common(*(x for x in (a.self, low, high) if x is not None))
    x = c.operand(a.self, dtype)
    if low is not None:
        x = c.b.op("max", x, c.operand(low, dtype))
    return x if high is None else c.b.op("min", x, c.operand(high, dtype))


def _where(c: Context, a: Args) -> Node | None:
    if a.get("other") is None:
        raise Unreadable("where with one argument has a size that depends on data")
    x = a.get("self") if a.get("input") is None else a.input
    dtype = c.common(x, a.other)
    return c.b.op("where", c.operand(a.condition, "bool"), c.operand(x, dtype), c.operand(a.other, dtype))


def _masked_fill(c: Context, a: Args) -> Node:
    x = a.self
    return c.b.op("where", c.operand(a.mask, "bool"), c.operand(a.value, x.type.dtype), x)


def _addc(fn: str) -> Handler:
    def read(c: Context, a: Args) -> Node:
        value = a.get("value", 1)
        dtype = c.common(a.self, a.tensor1, a.tensor2)

        def f(x: Node, p: Node, q: Node) -> Node:
            term = c.b.op(fn, p, q)
            if not (isinstance(value, int | float) and value == 1):
                term = c.b.op("mul", c.operand(value, term.type.dtype), term)
            return c.b.op("add", x, term)

        return c.wide(f, a.self, a.tensor1, a.tensor2, dtype=dtype)

    return read


def _lerp(c: Context, a: Args) -> Node:
    b = c.b

    def f(x: Node, end: Node, weight: Node) -> Node:
        span = b.op("sub", end, x)
        below = b.op("add", x, b.op("mul", weight, span))
        above = b.op("sub", end, b.op("mul", span, b.op("sub", _const(c, x, 1), weight)))
        small = b.op("lt", b.op("abs", weight), _const(c, x, 0.5))
        return b.op("where", small, below, above)

    return c.wide(f, a.self, a.end, a.weight, dtype=c.common(a.self, a.end))


def _nan_to_num(c: Context, a: Args) -> Node:
    x, b = a.self, c.b
    dtype = x.type.dtype
    if is_integral(dtype):
        return x
    largest = MAX_FLOAT[dtype]
    inf = c.number(math.inf, dtype)
    y = b.op("where", b.op("isnan", x), c.number(a.get("nan", 0.0), dtype), x)
    y = b.op("where", b.op("eq", x, inf), c.number(a.get("posinf", largest), dtype), y)
    return b.op("where", b.op("eq", x, b.op("neg", inf)), c.number(a.get("neginf", -largest), dtype), y)


def _test(fn: str) -> Handler:
    def read(c: Context, a: Args) -> Node:
        if is_integral(a.self.type.dtype):
            return c.full(False, c.out)
        return c.b.op(fn, a.self)

    return read


def _isfinite(c: Context, a: Args) -> Node:
    if is_integral(a.self.type.dtype):
        return c.full(True, c.out)
    return c.b.op("not", c.b.op("or", c.b.op("isnan", a.self), c.b.op("isinf", a.self)))


def _is_infinity(value: float) -> Handler:
    def read(c: Context, a: Args) -> Node:
        if is_integral(a.self.type.dtype):
            return c.full(False, c.out)
        return c.b.op("eq", a.self, c.number(value, a.self.type.dtype))

    return read


def _abs(c: Context, a: Args) -> Node:
    return a.self if a.self.type.dtype in ("bool", "u8") else c.b.op("abs", a.self)


def _tan(c: Context, x: Node) -> Node:
    return c.b.op("div", c.b.op("sin", x), c.b.op("cos", x))


def _log10(c: Context, x: Node) -> Node:
    return _times(c, c.b.op("log2", x), math.log10(2))


def _frac(c: Context, x: Node) -> Node:
    return c.b.op("sub", x, c.b.op("trunc", x))


def _threshold(c: Context, a: Args) -> Node:
    x = a.self
    return c.b.op("where", c.b.op("le", x, c.number(a.threshold, x.type.dtype)), c.number(a.value, x.type.dtype), x)


def _shift(left: bool) -> Handler:
    def read(c: Context, a: Args) -> Node:
        if not isinstance(a.other, int):
            raise Unreadable("a shift by a tensor")
        return c.b.op("mul" if left else "floordiv", a.self, c.number(2**a.other, a.self.type.dtype))

    return read


# ------------------------------------------------------------------------------------------------ casts and no-ops


def _same(c: Context, a: Args) -> Node:
    return a.first()


def _to(c: Context, a: Args) -> Node:
    return c.b.cast(a.first(), c.out.dtype)


def _type_as(c: Context, a: Args) -> Node:
    return c.b.cast(a.self, a.other.type.dtype)


def _dropout(c: Context, a: Args) -> Node:
    if a.get("train", False) and a.get("p", 0.5) != 0:
        raise Unreadable(DROPOUT)
    return a.input if a.has("input") else a.self  # in place


def _native_dropout(c: Context, a: Args) -> list[Node | None]:
    if (a.get("train") is None or a.train) and a.get("p", 0.5) != 0:
        raise Unreadable(DROPOUT)
    return [a.input, c.full(True, c.out_types[1]) if c.out_types[1] else None]


def _copy(c: Context, a: Args) -> Node:
    """`self.copy_(src)`: the values of `src` in the type and shape of `self`."""
    return c.b.expand(c.b.cast(a.src, a.self.type.dtype), a.self.type.shape)


def _fill(c: Context, a: Args) -> Node:
    return c.full(a.value, a.self.type)


def _zero(c: Context, a: Args) -> Node:
    return c.full(0, a.self.type)


def _promoted(c: Context, a: Args) -> Node:
    """`_to_copy` and `to` with no dtype keep the type."""
    dtype = a.get("dtype")
    if isinstance(dtype, torch.dtype) and dtype not in DTYPE_OF:
        raise Unreadable(f"element type {dtype} is not supported")
    return c.operand(a.first(), DTYPE_OF[dtype] if dtype is not None else c.out.dtype)  # a number, where vmap copies one


def _sign(c: Context, a: Args) -> Node:
    return a.self if a.self.type.dtype == "bool" else c.b.op("sign", a.self)


def _neg(c: Context, a: Args) -> Node:
    if not (is_float(a.self.type.dtype) or is_int(a.self.type.dtype)):
        raise Unreadable("PyTorch does not negate booleans")
    return c.b.op("neg", a.self)


OPS: dict[str, Handler] = {
    "add": _add("add", "self", "other"), "sub": _add("sub", "self", "other"), "subtract": _add("sub", "self", "other"),
    "rsub": _rsub, "mul": _mul, "multiply": _mul, "div": _div, "divide": _div, "true_divide": _div,
    "floor_divide": _floor_divide, "remainder": _remainder, "fmod": _fmod, "pow": _pow, "square": _square,
    "neg": _neg, "negative": _neg, "abs": _abs, "absolute": _abs, "sign": _sign, "reciprocal": _reciprocal,
    "maximum": _extremum("max"), "minimum": _extremum("min"), "max.other": _extremum("max"), "min.other": _extremum("min"),
    "exp": _float("exp"), "exp2": _float("exp2"), "expm1": _float("expm1"), "log": _float("log"), "log2": _float("log2"),
    "log1p": _float("log1p"), "log10": _formula(_log10), "sqrt": _float("sqrt"), "rsqrt": _float("rsqrt"),
    "sin": _float("sin"), "cos": _float("cos"), "tan": _formula(_tan), "tanh": _float("tanh"), "sigmoid": _float("sigmoid"),
    "erf": _float("erf"), "floor": _rounding("floor"), "ceil": _rounding("ceil"), "trunc": _rounding("trunc"),
    "fix": _rounding("trunc"), "round": _rounding("round"), "frac": _formula(_frac),
    "lt": _compare("lt"), "le": _compare("le"), "gt": _compare("gt"), "ge": _compare("ge"), "eq": _compare("eq"),
    "ne": _compare("ne"), "less": _compare("lt"), "less_equal": _compare("le"), "greater": _compare("gt"),
    "greater_equal": _compare("ge"), "not_equal": _compare("ne"),
    "logical_not": _logical("not"), "logical_and": _logical("and"), "logical_or": _logical("or"),
    "logical_xor": _logical("xor"),
    "bitwise_not": _bitwise("not"), "bitwise_and": _bitwise("and"), "bitwise_or": _bitwise("or"),
    "bitwise_xor": _bitwise("xor"), "__and__": _bitwise("and"), "__or__": _bitwise("or"), "__xor__": _bitwise("xor"),
    "__lshift__": _shift(True), "__rshift__": _shift(False), "bitwise_left_shift": _shift(True),
    "bitwise_right_shift": _shift(False),
    "isnan": _test("isnan"), "isinf": _test("isinf"), "isfinite": _isfinite, "isposinf": _is_infinity(math.inf),
    "isneginf": _is_infinity(-math.inf), "nan_to_num": _nan_to_num,
    "relu": _relu, "relu6": lambda c, a: _clip(c, a.self, 0, 6), "hardtanh": _hardtanh, "gelu": _gelu,
    "silu": _shared(activations.silu), "mish": _shared(activations.mish), "softplus": _softplus, "leaky_relu": _leaky_relu,
    "elu": _elu, "hardsigmoid": _shared(activations.hard_sigmoid),
    "hardswish": _shared(activations.hard_swish), "log_sigmoid": _shared(activations.log_sigmoid),
    "threshold": _threshold, "selu": _shared(activations.selu), "celu": _celu,
    "clamp": _clamp, "clip": _clamp, "clamp_min": _clamp, "clamp_max": _clamp,
    "where": _where, "masked_fill": _masked_fill, "addcmul": _addc("mul"), "addcdiv": _addc("div"), "lerp": _lerp,
    "_to_copy": _promoted, "to": _promoted, "type_as": _type_as, "clone": _same, "contiguous": _same, "detach": _same,
    "alias": _same, "lift_fresh": _same, "lift_fresh_copy": _same, "lift": _same, "positive": _same, "resolve_conj": _same,
    "resolve_neg": _same, "dropout": _dropout, "feature_dropout": _dropout, "alpha_dropout": _dropout,
    "native_dropout": _native_dropout, "copy": _copy, "fill": _fill, "zero": _zero, "cpu": _same, "real": _same,
    "float": _to, "half": _to, "double": _to, "int": _to, "long": _to, "bool": _to, "conj": _same, "_conj": _same,
}  # fmt: skip
