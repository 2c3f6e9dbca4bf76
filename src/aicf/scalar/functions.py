"""The closed table of scalar functions: one row each, with everything that analyses know of a function.

Everything that computes on numbers, in any level, is one of these rows; a backend that implements the table
implements every expression. A new function is a row here and an emission in each backend. NaN is propagated by `max` and `min`,
as `torch.maximum` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from aicf.scalar import rules
from aicf.scalar.dtypes import DType, is_float, promote

Kind = Literal["arithmetic", "float", "integer", "compare", "logic", "select", "test"]
FILL = -1e3  # numbers from here down are taken for fills of a mask


@dataclass(frozen=True)
class Function:
    """A scalar function: how it is written and computed, and the facts that analyses read.

    `monotone`: 1 where it increases in its only operand, -1 where it decreases, from `domain` on; below that it is NaN.
    `wraps`: on integers the exact result may lie outside of their type.
    `interval`: bounds from those of the operands (`bounds`). Functions that are monotone need none.
    `sign`: the result is positive always, where all operands are, or where any is.
    `infinite`: operands of which some are infinite never make NaN ("kept"), only where the others may be 0 or infinite too
    ("combined"), or nothing is known. For one operand it follows from the function's value at -inf.
    `pole`: the operand at one of whose values (0; the end of `domain`) the result is infinite.
    `masks`: what it makes of masks held as numbers 0 and 1 says which of them are set ("lattice"), or is a sum, a product or a
    quotient of them ("linear").
    `zero`: when a summand is 0 in a masked tile (`zero_where_masked`). For one operand it follows from the values at 0 and -inf.
    `cost`: a few instructions ("cheap"), an exponential ("exponential"), or of the price of one or more ("transcendental").
    `derivative`: the partial derivatives (`aicf.scalar.derivatives`); without one they are 0, as of a step.
    """

    name: str
    arity: int
    kind: Kind
    numpy: Callable[..., Any]
    symbol: str = ""
    monotone: Literal[-1, 0, 1] = 0
    commutes: bool = False
    domain: float = -math.inf
    wraps: bool = False
    interval: Callable[..., Any] | None = None
    sign: Literal["", "positive", "of all", "of any"] = ""
    infinite: Literal["", "kept", "combined"] = ""
    pole: int | None = None
    masks: Literal["", "lattice", "linear"] = ""
    zero: Callable[..., Any] | None = None
    cost: Literal["cheap", "exponential", "transcendental"] = "cheap"
    derivative: Callable[..., Any] | None = None

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

    def bounds(self, o: rules.Algebra[Any], *operands: tuple[Any, Any]) -> tuple[Any, Any] | None:
        """Bounds of the result over an algebra, from those of the operands; None where nothing is known. Integers are taken for
        unbounded: see `wraps`."""
        if self.interval is not None:
            return self.interval(o, *operands)
        return rules.monotone(o, self.name, self.monotone, self.domain, *operands) if self.monotone else None

    def at(self, x: float) -> float:
        """The value of a function of one operand, in fp32."""
        with np.errstate(all="ignore"):
            return float(self.numpy(np.float32(x)))

    @property
    def unary(self) -> bool:
        """Whether it makes a number of one number."""
        return self.arity == 1 and self.kind in ("arithmetic", "float")

    @cached_property
    def keeps_infinity(self) -> bool:
        """Whether a mask's -inf among the operands never makes NaN."""
        return self.infinite == "kept" or (self.unary and not math.isnan(self.at(-math.inf)))

    @cached_property
    def finite_where_masked(self) -> bool:
        """Whether -inf is made a number."""
        return self.unary and math.isfinite(self.at(-math.inf))

    @cached_property
    def zero_of_fill(self) -> bool:
        """Whether a mask's fill is made 0 in fp32: -inf, or a number from FILL down (which may have been rounded to bf16)."""
        return self.unary and self.at(-math.inf) == 0 and self.at(FILL * (1 - 2.0**-7)) == 0

    @cached_property
    def zero_of_zero(self) -> bool:
        return self.unary and self.at(0) == 0

    def zero_where_masked(self, ask: rules.Masked[Any], *operands: Any) -> Any:
        """When the result is 0 in a tile that a mask hides."""
        if self.zero is not None:
            return self.zero(ask, *operands)
        if self.zero_of_fill:
            return ask.filled(*operands)
        return ask.zero(*operands) if self.zero_of_zero else ask.never()


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
    """1 / (1 + exp(-x)), 0 from where exp(-x) overflows in the type of x, as in PyTorch (halves are computed as float32)."""
    x = np.asarray(x)
    kind = x.dtype if x.dtype.kind == "f" else np.dtype(np.float32)
    wide = x.astype(np.float64)
    with np.errstate(over="ignore"):
        y = 1 / (1 + np.exp(-wide))
    most = np.log(float(np.finfo(np.float64 if kind.itemsize > 4 else np.float32).max))
    return np.where(wide < -most, 0.0, y).astype(kind)


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
    Function("add", 2, "arithmetic", np.add, "+", commutes=True, wraps=True, interval=rules.add, sign="of all", infinite="kept",
             masks="lattice", zero=rules.zero_sum, derivative=rules.d_add),
    Function("sub", 2, "arithmetic", np.subtract, "-", wraps=True, interval=rules.sub, infinite="combined", masks="linear",
             zero=rules.zero_sum, derivative=rules.d_sub),
    Function("mul", 2, "arithmetic", np.multiply, "*", commutes=True, wraps=True, interval=rules.mul, sign="of all",
             infinite="combined", masks="lattice", zero=rules.zero_product, derivative=rules.d_mul),
    Function("div", 2, "float", _divide, "/", sign="of all", infinite="combined", pole=1, masks="linear",
             zero=rules.zero_quotient, derivative=rules.d_div),
    Function("neg", 1, "arithmetic", np.negative, "-", wraps=True, interval=rules.neg, masks="linear", derivative=rules.d_neg),
    Function("abs", 1, "arithmetic", np.abs, wraps=True, interval=rules.magnitude, sign="of all", derivative=rules.d_abs),
    Function("max", 2, "arithmetic", np.maximum, commutes=True, interval=rules.larger, sign="of any", infinite="kept",
             masks="lattice", zero=rules.zero_relu, derivative=rules.d_max),
    Function("min", 2, "arithmetic", np.minimum, commutes=True, interval=rules.smaller, sign="of all", infinite="kept",
             masks="lattice", derivative=rules.d_min),
    Function("floordiv", 2, "arithmetic", np.floor_divide, "//", interval=rules.quotient),
    Function("mod", 2, "arithmetic", np.mod, "%", interval=rules.remainder, derivative=rules.d_mod),
    Function("exp", 1, "float", _rounded_once(np.exp), monotone=1, sign="positive", cost="exponential",
             derivative=rules.d_exp),
    Function("exp2", 1, "float", _rounded_once(np.exp2), monotone=1, sign="positive", cost="exponential",
             derivative=rules.d_exp2),
    Function("expm1", 1, "float", _rounded_once(np.expm1), monotone=1, sign="of all", cost="exponential",
             derivative=rules.d_expm1),
    Function("log", 1, "float", _rounded_once(np.log), monotone=1, domain=0, pole=0, cost="transcendental",
             derivative=rules.d_log),
    Function("log2", 1, "float", _rounded_once(np.log2), monotone=1, domain=0, pole=0, cost="transcendental",
             derivative=rules.d_log2),
    Function("log1p", 1, "float", _rounded_once(np.log1p), monotone=1, domain=-1, sign="of all", pole=0, cost="transcendental",
             derivative=rules.d_log1p),
    Function("sqrt", 1, "float", np.sqrt, monotone=1, domain=0, sign="of all", derivative=rules.d_sqrt),
    # No pole: it divides by lengths of vectors, which are taken for more than 0 where a mask hides them.
    Function("rsqrt", 1, "float", _rounded_once(lambda x: 1 / np.sqrt(x)), monotone=-1, domain=0, sign="of all",
             derivative=rules.d_rsqrt),
    Function("tanh", 1, "float", _rounded_once(np.tanh), monotone=1, sign="of all", cost="transcendental",
             derivative=rules.d_tanh),
    Function("sigmoid", 1, "float", _sigmoid, monotone=1, sign="positive", cost="transcendental",
             derivative=rules.d_sigmoid),
    Function("softplus", 1, "float", _rounded_once(_softplus), monotone=1, sign="positive", cost="transcendental",
             derivative=rules.d_softplus),
    Function("erf", 1, "float", _erf, monotone=1, sign="of all", cost="transcendental", derivative=rules.d_erf),
    Function("sin", 1, "float", _rounded_once(np.sin), cost="transcendental", derivative=rules.d_sin),
    Function("cos", 1, "float", _rounded_once(np.cos), cost="transcendental", derivative=rules.d_cos),
    Function("pow", 2, "arithmetic", _rounded_once(np.power), "**", pole=0, cost="transcendental", derivative=rules.d_pow),
    Function("floor", 1, "arithmetic", np.floor, monotone=1),
    Function("ceil", 1, "arithmetic", np.ceil, monotone=1),
    Function("trunc", 1, "arithmetic", np.trunc, monotone=1),
    Function("round", 1, "arithmetic", np.rint, monotone=1),
    # Not `monotone`: PyTorch's sign of NaN is 0.
    Function("sign", 1, "arithmetic", np.sign, interval=rules.signs, sign="of all"),
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
    Function("where", 3, "select", np.where, zero=rules.zero_choice, derivative=rules.d_where),
    Function("inside", 2, "arithmetic", _inside, interval=rules.clamped),
    Function("isnan", 1, "test", np.isnan),
    Function("isinf", 1, "test", np.isinf),
]  # fmt: skip
FUNCTIONS: dict[str, Function] = {row.name: row for row in _ROWS}
COMPARISONS = tuple(row.name for row in _ROWS if row.kind == "compare")
