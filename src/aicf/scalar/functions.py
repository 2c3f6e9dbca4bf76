"""The closed table of scalar functions: one row each, with arity, result type and NumPy meaning.

Everything that computes on numbers, in any level, is one of these rows; a backend that implements the table
implements every expression. NaN is propagated by `max` and `min`, as `torch.maximum` does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from aicf.scalar.dtypes import DType, is_float, promote

Kind = Literal["arithmetic", "float", "integer", "compare", "logic", "select", "test"]


@dataclass(frozen=True)
class Function:
    """A scalar function. `monotone`: increasing in its (only) argument, which the tropical separation uses."""

    name: str
    arity: int
    kind: Kind
    numpy: Callable[..., Any]
    symbol: str = ""
    monotone: bool = False
    commutes: bool = False

    def result(self, *args: DType) -> DType:
        """The result type for operand types `args`."""
        match self.kind:
            case "compare" | "logic" | "test":
                # Bitwise logic on integers stays integer, as in PyTorch.
                if self.kind == "logic" and args[0] != "bool":
                    return args[0] if len(args) == 1 else promote(*args)
                return "bool"
            case "select":
                return promote(args[1], args[2])
            case "float":
                common = args[0] if len(args) == 1 else promote(*args)
                return common if is_float(common) else "f32"
            case _:
                return args[0] if len(args) == 1 else promote(*args)


def _erf(x: Any) -> Any:
    """erf to double precision: its Maclaurin series below 3, a continued fraction of erfc above."""
    x = np.asarray(x)
    y = np.abs(x.astype(np.float64))
    small = np.minimum(y, 3.0)
    term = small.copy()
    total = small.copy()
    for n in range(1, 80):
        term = term * -(small * small) / n
        total = total + term / (2 * n + 1)
    large = np.clip(y, 3.0, 30.0)
    tail = large
    for n in range(60, 0, -1):
        tail = large + (n / 2) / tail
    upper = 1.0 - np.exp(-large * large) / (np.sqrt(np.pi) * tail)
    value = np.where(y < 3.0, 2.0 / np.sqrt(np.pi) * total, upper)
    return np.where(np.isnan(x), x, np.copysign(value, x)).astype(x.dtype if x.dtype.kind == "f" else np.float32)


def _sigmoid(x: Any) -> Any:
    x = np.asarray(x)
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e)).astype(x.dtype if x.dtype.kind == "f" else np.float32)


def _softplus(x: Any) -> Any:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _rounded_once(apply: Callable[..., Any]) -> Callable[..., Any]:
    """`apply` computed in float64 where its operands are narrower. NumPy's own functions of float32 are off by up to three
    roundings, the same ones in every equal element, which a sum over a row adds up."""

    def once(*args: Any) -> Any:
        dtype = np.result_type(*args)
        if dtype.kind != "f" or dtype.itemsize > 4:
            return apply(*args)
        with np.errstate(over="ignore", under="ignore"):
            return np.asarray(apply(*(np.asarray(a, dtype=np.float64) for a in args))).astype(dtype)

    return once


def _logic(on_bool: Callable[..., Any], on_int: Callable[..., Any]) -> Callable[..., Any]:
    def apply(*args: Any) -> Any:
        return on_bool(*args) if all(np.asarray(a).dtype == np.bool_ for a in args) else on_int(*args)

    return apply


def _inside(x: Any, n: Any) -> Any:
    """x as an index of n elements, which it has to be. Where it is not the source raises; the number is the nearest that is one,
    for what reads memory before, or without, being told. Kernels hold it as a maximum and a minimum, with a `Check`."""
    return np.maximum(np.minimum(x, np.asarray(n) - 1), 0)


def _divide(a: Any, b: Any) -> Any:
    return np.true_divide(a, b)


_ROWS = [
    Function("add", 2, "arithmetic", np.add, "+", commutes=True),
    Function("sub", 2, "arithmetic", np.subtract, "-"),
    Function("mul", 2, "arithmetic", np.multiply, "*", commutes=True),
    Function("div", 2, "float", _divide, "/"),
    Function("neg", 1, "arithmetic", np.negative, "-"),
    Function("abs", 1, "arithmetic", np.abs),
    Function("max", 2, "arithmetic", np.maximum, commutes=True),
    Function("min", 2, "arithmetic", np.minimum, commutes=True),
    Function("floordiv", 2, "arithmetic", np.floor_divide, "//"),
    Function("mod", 2, "arithmetic", np.mod, "%"),
    Function("exp", 1, "float", _rounded_once(np.exp), monotone=True),
    Function("exp2", 1, "float", _rounded_once(np.exp2), monotone=True),
    Function("expm1", 1, "float", _rounded_once(np.expm1), monotone=True),
    Function("log", 1, "float", _rounded_once(np.log), monotone=True),
    Function("log2", 1, "float", _rounded_once(np.log2), monotone=True),
    Function("log1p", 1, "float", _rounded_once(np.log1p), monotone=True),
    Function("sqrt", 1, "float", np.sqrt, monotone=True),
    Function("rsqrt", 1, "float", _rounded_once(lambda x: 1 / np.sqrt(x))),
    Function("tanh", 1, "float", _rounded_once(np.tanh), monotone=True),
    Function("sigmoid", 1, "float", _rounded_once(_sigmoid), monotone=True),
    Function("softplus", 1, "float", _rounded_once(_softplus), monotone=True),
    Function("erf", 1, "float", _erf, monotone=True),
    Function("sin", 1, "float", _rounded_once(np.sin)),
    Function("cos", 1, "float", _rounded_once(np.cos)),
    Function("pow", 2, "arithmetic", _rounded_once(np.power), "**"),
    Function("floor", 1, "arithmetic", np.floor),
    Function("ceil", 1, "arithmetic", np.ceil),
    Function("trunc", 1, "arithmetic", np.trunc),
    Function("round", 1, "arithmetic", np.rint),
    Function("sign", 1, "arithmetic", np.sign),
    Function("lt", 2, "compare", np.less, "<"),
    Function("le", 2, "compare", np.less_equal, "<="),
    Function("gt", 2, "compare", np.greater, ">"),
    Function("ge", 2, "compare", np.greater_equal, ">="),
    Function("eq", 2, "compare", np.equal, "==", commutes=True),
    Function("ne", 2, "compare", np.not_equal, "!=", commutes=True),
    Function("and", 2, "logic", _logic(np.logical_and, np.bitwise_and), "&", commutes=True),
    Function("or", 2, "logic", _logic(np.logical_or, np.bitwise_or), "|", commutes=True),
    Function("xor", 2, "logic", _logic(np.logical_xor, np.bitwise_xor), "^", commutes=True),
    Function("not", 1, "logic", _logic(np.logical_not, np.invert), "~"),
    Function("where", 3, "select", np.where),
    Function("inside", 2, "arithmetic", _inside),
    Function("isnan", 1, "test", np.isnan),
    Function("isinf", 1, "test", np.isinf),
]
FUNCTIONS: dict[str, Function] = {row.name: row for row in _ROWS}
