"""Sizes and types: PyTorch's symbolic integers as scalar expressions, its fake tensors as tensor types.

    s0*s1 + 2  ->  s0 * s1 + 2          FloorDiv(s0, 4)  ->  s0 // 4          FloatPow(ToFloat(s77), -0.5)  ->  f64(s77) ** -0.5

Size symbols keep PyTorch's names. Integers are polynomials with `//`, `%`, `min` and `max`; floats are f64, as Python's
are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from aicf.scalar import Const, DType, Expr, call, cast, const, index, integer_const
from aicf.semantic import TensorType

DTYPE_OF: dict[torch.dtype, DType] = {
    torch.bool: "bool", torch.uint8: "u8", torch.int8: "i8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64",
    torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32", torch.float64: "f64",
}  # fmt: skip
TORCH_DTYPE: dict[DType, torch.dtype] = {ours: theirs for theirs, ours in DTYPE_OF.items()}


class Unreadable(Exception):
    """A value that has no counterpart in the Semantic IR; the message says why, for people."""


def from_symbolic(value: Any) -> Expr:
    """The expression of a Python number, SymInt, SymFloat or SymBool. Raises Unreadable."""
    if isinstance(value, bool):
        return const(value, "bool")
    if isinstance(value, int):
        return integer_const(value)
    if isinstance(value, float):
        return const(value, "f64")
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return from_sympy(value.node.expr)
    raise Unreadable(f"{type(value).__name__} is no number")


_CONVERTED: dict[Any, Expr] = {}


def from_sympy(e: Any) -> Expr:
    """The expression of a SymPy expression over size symbols. Raises Unreadable for a function outside the scalar table."""
    made = _CONVERTED.get(e)
    if made is None:
        made = _CONVERTED[e] = _convert(e)
    return made


def _fold(fn: str, args: list[Expr]) -> Expr:
    total = args[0]
    for a in args[1:]:
        total = call(fn, total, a)
    return total


def _power(base: Expr, exponent: Expr) -> Expr:
    return call("pow", base, exponent)


def _float(fn: str) -> Callable[..., Expr]:
    def apply(*args: Expr) -> Expr:
        return call(fn, *(cast(a, "f64") for a in args))

    return apply


def _modular(a: Expr, b: Expr, c: Expr) -> Expr:
    return call("mod", call("floordiv", a, b), c)


def _ceil_div(a: Expr, b: Expr) -> Expr:
    return call("floordiv", call("sub", call("add", a, b), integer_const(1)), b)


def _to_int(fn: str) -> Callable[[Expr], Expr]:
    return lambda a: cast(call(fn, a), "i64")


# PyTorch's own SymPy functions, by class name.
_FUNCTIONS: dict[str, Callable[..., Expr]] = {
    "FloorDiv": lambda a, b: call("floordiv", a, b),
    "CleanDiv": lambda a, b: call("floordiv", a, b),
    "CeilDiv": _ceil_div,
    "Mod": lambda a, b: call("mod", a, b),
    "PythonMod": lambda a, b: call("mod", a, b),
    "ModularIndexing": _modular,
    "ToFloat": lambda a: cast(a, "f64"),
    "FloatTrueDiv": _float("div"),
    "IntTrueDiv": _float("div"),
    "FloatPow": _float("pow"),
    "PowByNatural": _power,
    "OpaqueUnaryFn_sqrt": _float("sqrt"),
    "OpaqueUnaryFn_exp": _float("exp"),
    "OpaqueUnaryFn_log": _float("log"),
    "OpaqueUnaryFn_log2": _float("log2"),
    "OpaqueUnaryFn_tanh": _float("tanh"),
    "OpaqueUnaryFn_sin": _float("sin"),
    "OpaqueUnaryFn_cos": _float("cos"),
    "TruncToInt": _to_int("trunc"),
    "FloorToInt": _to_int("floor"),
    "CeilToInt": _to_int("ceil"),
    "RoundToInt": _to_int("round"),
    "TruncToFloat": _float("trunc"),
}
_COMPARE = {"Equality": "eq", "Unequality": "ne", "StrictLessThan": "lt", "LessThan": "le", "StrictGreaterThan": "gt",
            "GreaterThan": "ge"}  # fmt: skip


def _convert(e: Any) -> Expr:
    name = type(e).__name__
    if isinstance(e, sympy.Symbol):
        text = str(e)
        if text.startswith("z"):
            raise Unreadable(f"{text} is a floating point number, not a size")
        return index(text)
    if isinstance(e, sympy.Integer | int):
        return integer_const(int(e))
    if (
        isinstance(e, sympy.Float | sympy.Rational)
        or e in (sympy.oo, -sympy.oo)
        or name in ("IntInfinity", "NegativeIntInfinity")
    ):
        return const(float(e), "f64")
    if e is sympy.true or e is sympy.false:
        return const(bool(e), "bool")
    if isinstance(e, sympy.Mul):
        # A polynomial times a rational number is an integer that happens to be divisible.
        rational, rest = e.as_coeff_Mul()
        if isinstance(rational, sympy.Rational) and rational.q != 1 and rest.is_integer:
            return call("floordiv", call("mul", from_sympy(rest), integer_const(int(rational.p))), integer_const(int(rational.q)))
    args = [from_sympy(a) for a in e.args]
    if isinstance(e, sympy.Add):
        return _fold("add", args)
    if isinstance(e, sympy.Mul):
        return _fold("mul", args)
    if isinstance(e, sympy.Pow):
        exponent = e.args[1]
        if isinstance(exponent, sympy.Integer) and 0 < int(exponent) <= 8:
            return _fold("mul", [args[0]] * int(exponent))
        raise Unreadable(f"no integer meaning for {e}")
    if isinstance(e, sympy.Max) or name == "Max":
        return _fold("max", args)
    if isinstance(e, sympy.Min) or name == "Min":
        return _fold("min", args)
    if name in _COMPARE:
        return call(_COMPARE[name], *args)
    if name in _FUNCTIONS:
        return _FUNCTIONS[name](*args)
    raise Unreadable(f"no scalar meaning for {name}: {e}")


class Dims:
    """Dimensions of one graph, each known in one form: what PyTorch's guards prove equal becomes the same expression.

    With the guard `s34 % s37 == 0`, `s34 // s37 * s37` and `s34` are both `s34`.
    """

    def __init__(self) -> None:
        self._known: dict[Any, Expr] = {}
        self._by_hint: dict[int | None, list[tuple[torch.SymInt, Expr]]] = {}

    def expression(self, value: int | torch.SymInt) -> Expr:
        """The expression of a dimension. Raises Unreadable."""
        if not isinstance(value, torch.SymInt):
            return from_symbolic(value)
        key = value.node.expr
        made = self._known.get(key)
        if made is None:
            made = self._known[key] = self._find(value)
        return made

    def _find(self, value: torch.SymInt) -> Expr:
        made = from_symbolic(value)
        if isinstance(made, Const):
            return made
        others = self._by_hint.setdefault(value.node.hint if value.node.has_hint() else None, [])
        for other, known in others:
            if statically_known_true(value == other):
                return known
        others.append((value, made))
        return made


def is_positive(value: torch.SymInt) -> bool:
    """Whether PyTorch knows that a size is at least 1: so it is for those of inputs, for those that depend on data if the program
    says so (`torch._check`)."""
    return bool(value.node.shape_env.bound_sympy(value.node.expr).lower >= 1)


def type_of(value: torch.Tensor, dims: Dims) -> TensorType:
    """The type of a (fake) tensor. Raises Unreadable for element types and layouts that the Semantic IR does not have."""
    if value.dtype not in DTYPE_OF:
        raise Unreadable(f"element type {str(value.dtype).removeprefix('torch.')} is not supported")
    if value.layout is not torch.strided:
        raise Unreadable(f"layout {str(value.layout).removeprefix('torch.')} is not supported")
    return TensorType(DTYPE_OF[value.dtype], tuple(dims.expression(d) for d in value.shape))
