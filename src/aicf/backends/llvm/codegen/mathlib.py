"""Elementary functions as LLVM IR: vector polynomials in f32 where speed counts, the C math library lane by lane elsewhere.

Each takes and returns SSA names of one LLVM type (`float` or a vector of it); constants are splatted. Special values are exact:
NaN stays NaN, infinities go to their limits. Results below the smallest normal number may be flushed to zero by `decay`, where
they stand beside a 1.
Polynomial coefficients are minimax fits (Lawson iteration on Chebyshev nodes) made for this file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from aicf.backends.llvm.codegen.shuffles import looked_up
from aicf.backends.llvm.codegen.text import Function, Module, bits_of, float_text

# exp(r) = 1 + r + r² q(r), coefficients of q, on |r| <= ln2/2, relative error 3e-9.
_EXP = (0.49999993431891215, 0.16666520396770734, 0.041668390831316446, 0.008368745320051954, 0.0013814537893664571)
# The same polynomial for 2^r, |r| <= 1/2.
_EXP2 = tuple(c * math.log(2) ** k for k, c in enumerate((1.0, 1.0, *_EXP)))
# 2^r = 1 + r q(r), coefficients of q, on |r| <= 1/16, error 3e-8.
_EXP2_NEAR = (0.6931471721320107, 0.2402576333580222, 0.05551147486275687)
# log(1+f) = f - f²/2 + f³ p(f) on [sqrt(1/2)-1, sqrt(2)-1].
_LOG = (
    0.33333310438441316, -0.24999986625689788, 0.2000222670357344, -0.16669249462796984, 0.14218655431568586,
    -0.12384370297599372, 0.11873016268979988, -0.11789695574574481, 0.06915146949852424,
)  # fmt: skip
# tanh(x) = x + x³ p(x²) on |x| <= 0.625.
_TANH = (
    -0.33333330802643624, 0.13333206005454043, -0.053946762736515934, 0.021700701615145174, -0.008177394597974681,
    0.002142958754752986,
)  # fmt: skip
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_LOG2E = 1.4426950408889634
_BIAS = 127  # of the exponent of f32


class Maths:
    """Operations on values of one shape: `lanes` None for a scalar, else vectors of that many."""

    def __init__(self, fn: Function, lanes: int | None, element: str = "float") -> None:
        self.fn = fn
        self.lanes = lanes
        self.element = element
        self.type = element if lanes is None else f"<{lanes} x {element}>"
        self.bits = "i32" if element == "float" else "i64"
        self.ints = self.bits if lanes is None else f"<{lanes} x {self.bits}>"
        self.bools = "i1" if lanes is None else f"<{lanes} x i1>"
        self.suffix = (
            {"float": "f32", "double": "f64"}[element] if lanes is None else f"v{lanes}{'f32' if element == 'float' else 'f64'}"
        )

    def splat(self, value: float) -> str:
        text = float_text(value, self.element)
        return text if self.lanes is None else "<" + ", ".join([f"{self.element} {text}"] * self.lanes) + ">"

    def splat_int(self, value: int) -> str:
        return str(value) if self.lanes is None else "<" + ", ".join([f"{self.bits} {value}"] * self.lanes) + ">"

    def binary(self, op: str, a: str, b: str) -> str:
        return self.fn.op(f"{op} {self.type} {a}, {b}")

    def add(self, a: str, b: str) -> str:
        return self.binary("fadd", a, b)

    def sub(self, a: str, b: str) -> str:
        return self.binary("fsub", a, b)

    def mul(self, a: str, b: str) -> str:
        return self.binary("fmul", a, b)

    def div(self, a: str, b: str) -> str:
        return self.binary("fdiv", a, b)

    def neg(self, a: str) -> str:
        return self.fn.op(f"fneg {self.type} {a}")

    def fma(self, a: str, b: str, c: str) -> str:
        return self.intrinsic("fma", a, b, c)

    def intrinsic(self, name: str, *args: str, flags: str = "") -> str:
        full = f"llvm.{name}.{self.suffix}"
        self.fn.module.declare(full, f"{self.type} ({', '.join([self.type] * len(args))})")
        return self.fn.op(f"call {flags}{self.type} @{full}({', '.join(f'{self.type} {a}' for a in args)})")

    def compare(self, how: str, a: str, b: str) -> str:
        return self.fn.op(f"fcmp {how} {self.type} {a}, {b}")

    def select(self, c: str, a: str, b: str) -> str:
        return self.fn.op(f"select {self.bools} {c}, {self.type} {a}, {self.type} {b}")

    def at_least(self, low: float, x: str) -> str:
        """max(low, x), NaN kept: the operand order is that of the hardware's maximum."""
        limit = self.splat(low)
        return self.select(self.compare("ogt", limit, x), limit, x)

    def at_most(self, high: float, x: str) -> str:
        limit = self.splat(high)
        return self.select(self.compare("olt", limit, x), limit, x)

    def maximum(self, a: str, b: str) -> str:
        """NaN if either is NaN (zeros of either sign are equal)."""
        return self.intrinsic("maximum", a, b, flags="nsz ")

    def minimum(self, a: str, b: str) -> str:
        return self.intrinsic("minimum", a, b, flags="nsz ")

    def abs(self, a: str) -> str:
        return self.intrinsic("fabs", a)

    def to_bits(self, a: str) -> str:
        return self.fn.op(f"bitcast {self.type} {a} to {self.ints}")

    def from_bits(self, a: str) -> str:
        return self.fn.op(f"bitcast {self.ints} {a} to {self.type}")

    def int_op(self, op: str, a: str, b: str) -> str:
        return self.fn.op(f"{op} {self.ints} {a}, {b}")

    def polynomial(self, x: str, coefficients: Sequence[float]) -> str:
        total = self.splat(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            total = self.fma(total, x, self.splat(c))
        return total

    def library(self, name: str, *args: str) -> str:
        """The C function `name`, lane by lane (in a helper function, so that it is emitted once)."""
        scalar = name + ("f" if self.element == "float" else "")
        self.fn.module.declare(scalar, f"{self.element} ({', '.join([self.element] * len(args))})")
        if self.lanes is None:
            return self.fn.op(f"call {self.element} @{scalar}({', '.join(f'{self.element} {a}' for a in args)})")
        helper = per_lane(self.fn.module, scalar, self.element, self.lanes, len(args))
        return self.fn.op(f"call {self.type} @{helper}({', '.join(f'{self.type} {a}' for a in args)})")

    # ---------------------------------------------------------------- functions

    def exp(self, x: str) -> str:
        """exp(x), results below the smallest normal number rounded as they should be."""
        if self.element == "double":
            return self.library("exp", x)
        x = self.at_most(89.0, self.at_least(-104.0, x))
        shifted, n = self._rounded(lambda magic: self.fma(x, self.splat(_LOG2E), magic), 2 * _BIAS)
        r = self.fma(n, self.splat(-_LN2_HIGH), x)
        r = self.fma(n, self.splat(-_LN2_LOW), r)
        return self._scaled_twice(self.polynomial(r, (1.0, 1.0, *_EXP)), shifted)

    def decay(self, x: str) -> str:
        """exp(x) of x <= 0: the weight of a number below the maximum.

        The reduced argument is x log2(e) - n with log2(e) as one f32, off by 1.3e-8 |x|; times e^x that is below 5e-9 of the
        largest weight.
        """
        if self.element == "double":
            return self.library("exp", x)
        log2e = self.splat(_LOG2E)
        if self.lanes is not None and self.fn.module.lookup is not None:
            return self._decay_by_table(x, log2e)
        # n of -127 gives a power of 0; what x log2(e) rounds to -126 is as exact as a subnormal result can be.
        x = self.at_least(-88.0, x)
        shifted, n = self._rounded(lambda magic: self.fma(x, log2e, magic), _BIAS)
        power = self.from_bits(self.int_op("shl", self.to_bits(shifted), self.splat_int(23)))
        return self.mul(self.polynomial(self.fma(x, log2e, self.neg(n)), _EXP2), power)

    def _decay_by_table(self, x: str, log2e: str) -> str:
        """`decay` with powers of two from a register: x log2(e) = n + k/8 + r, as many steps as lanes, so that a shorter
        polynomial does. The sum with `magic` rounds to eighths; its low bits, shifted to the exponent, are n and on top of the
        fraction k, which the table's numbers lack. From -127 on, as where x is -inf, the power is 0."""
        assert self.lanes is not None
        width = self.fn.module.width
        step = width.bit_length() - 1
        x = self.at_least(-127.0 / _LOG2E, x)
        magic = self.splat(1.5 * 2.0 ** (23 - step))
        shifted = self.fma(x, log2e, magic)
        r = self.fma(x, log2e, self.neg(self.sub(shifted, magic)))
        numbers = [bits_of(2.0 ** (k / width)) - (k << (23 - step)) for k in range(width)]
        table = f"<{width} x float>", "<" + ", ".join(f"i32 {n}" for n in numbers) + ">"
        index = self.to_bits(shifted)
        found = looked_up(self.fn, self.fn.op(f"bitcast <{width} x i32> {table[1]} to {table[0]}"), index, self.lanes)
        exponent = self.int_op("shl", index, self.splat_int(23 - step))
        power = self.from_bits(self.int_op("add", self.to_bits(found), exponent))
        return self.fma(power, self.mul(r, self.polynomial(r, _EXP2_NEAR)), power)

    def exp2(self, x: str) -> str:
        if self.element == "double":
            return self.library("exp2", x)
        x = self.at_most(129.0, self.at_least(-150.0, x))
        shifted, n = self._rounded(lambda magic: self.add(x, magic), 2 * _BIAS)
        return self._scaled_twice(self.polynomial(self.sub(x, n), _EXP2), shifted)

    def _rounded(self, add: Callable[[str], str], bias: int) -> tuple[str, str]:
        """A number rounded to an integer n: (a float whose low bits are n + bias, n). Adding 1.5 * 2^23 rounds; the bias on top
        of it makes those bits an exponent: with one bias of f32 that of 2^n, with two that of a power which is made of two."""
        magic = self.splat(12582912.0 + bias)
        shifted = add(magic)
        return shifted, self.sub(shifted, magic)

    def _scaled_twice(self, x: str, shifted: str) -> str:
        """x * 2^n, n + 2 * bias in the low bits of `shifted`: as the product with two powers, which are normal numbers where 2^n
        need not be one. So 2^128 overflows by the product only, and results lose digits gradually at the low end."""
        both = self.to_bits(shifted)
        half = self.int_op("lshr", both, self.splat_int(1))
        for exponent in (half, self.int_op("sub", both, half)):
            x = self.mul(x, self.from_bits(self.int_op("shl", exponent, self.splat_int(23))))
        return x

    def log(self, x: str) -> str:
        return self.library("log", x) if self.element == "double" else self._log(x, 1.0)

    def log2(self, x: str) -> str:
        return self.library("log2", x)

    def _log(self, x: str, scale: float) -> str:
        tiny = self.compare("olt", x, self.splat(1.1754943508222875e-38))
        normal = self.select(tiny, self.mul(x, self.splat(2.0**23)), x)
        bits = self.to_bits(normal)
        # Subtracting the bits of sqrt(1/2) puts the mantissa into [sqrt(1/2), sqrt(2)).
        offset = self.int_op("sub", bits, self.splat_int(0x3F3504F3))
        exponent = self.int_op("ashr", offset, self.splat_int(23))
        mantissa = self.int_op("and", offset, self.splat_int(0x007FFFFF))
        m = self.from_bits(self.int_op("add", mantissa, self.splat_int(0x3F3504F3)))
        e = self.fn.op(f"sitofp {self.ints} {exponent} to {self.type}")
        e = self.select(tiny, self.sub(e, self.splat(23.0)), e)
        f = self.sub(m, self.splat(1.0))
        z = self.mul(f, f)
        y = self.mul(self.mul(f, z), self.polynomial(f, _LOG))
        y = self.fma(e, self.splat(_LN2_LOW), y)
        y = self.fma(z, self.splat(-0.5), y)
        y = self.add(f, y)
        y = self.fma(e, self.splat(_LN2_HIGH), y)
        # log(inf) = inf, log(NaN) = NaN; log(0) = -inf, log of a negative number = NaN.
        finite = self.compare("olt", x, self.splat(float("inf")))
        y = self.select(finite, y, x)
        zero = self.compare("oeq", x, self.splat(0.0))
        y = self.select(zero, self.splat(float("-inf")), y)
        below = self.compare("olt", x, self.splat(0.0))
        return self.select(below, self.splat(float("nan")), y)

    def sigmoid(self, x: str) -> str:
        """1 / (1 + exp(-x)), as PyTorch has it: 0 from where exp(-x) overflows. exp(x) / (1 + exp(x)) goes further down, so that
        a sum of such weights would be a number where it is 0, and 0 / 0, in the source."""
        one = self.splat(1.0)
        return self.div(one, self.add(one, self.exp(self.neg(x))))

    def tanh(self, x: str) -> str:
        if self.element == "double":
            return self.library("tanh", x)
        y = self.abs(x)
        z = self.mul(x, x)
        small = self.fma(self.mul(x, z), self.polynomial(z, _TANH), x)
        e = self.exp(self.add(y, y))
        large = self.sub(self.splat(1.0), self.div(self.splat(2.0), self.add(e, self.splat(1.0))))
        large = self.intrinsic("copysign", large, x)
        return self.select(self.compare("olt", y, self.splat(0.625)), small, large)

    def softplus(self, x: str) -> str:
        e = self.library("log1p", self.exp(self.neg(self.abs(x))))
        return self.add(self.maximum(x, self.splat(0.0)), e)

    def sign(self, x: str) -> str:
        zero = self.splat(0.0)
        below = self.select(self.compare("olt", x, zero), self.splat(-1.0), x)
        return self.select(self.compare("ogt", x, zero), self.splat(1.0), below)

    def _remainder(self, a: str, b: str) -> tuple[str, str]:
        """(fmod(a, b), whether it must be moved to the sign of the divisor)."""
        r = self.library("fmod", a, b)
        zero = self.splat(0.0)
        nonzero = self.compare("one", r, zero)
        opposite = self.fn.op(f"xor {self.bools} {self.compare('olt', r, zero)}, {self.compare('olt', b, zero)}")
        return r, self.fn.op(f"and {self.bools} {nonzero}, {opposite}")

    def mod(self, a: str, b: str) -> str:
        """The remainder with the sign of the divisor."""
        r, moved = self._remainder(a, b)
        zero = self.splat(0.0)
        fixed = self.select(moved, self.add(r, b), r)
        return self.select(self.compare("oeq", r, zero), self.intrinsic("copysign", zero, b), fixed)

    def floordiv(self, a: str, b: str) -> str:
        """floor of the exact quotient, by way of the exact remainder; a / b itself where b is 0."""
        r, moved = self._remainder(a, b)
        quotient = self.div(self.sub(a, r), b)
        quotient = self.select(moved, self.sub(quotient, self.splat(1.0)), quotient)
        nearest = self.intrinsic("floor", quotient)
        up = self.compare("ogt", self.sub(quotient, nearest), self.splat(0.5))
        whole = self.select(up, self.add(nearest, self.splat(1.0)), nearest)
        plain = self.div(a, b)
        whole = self.select(self.compare("oeq", quotient, self.splat(0.0)), self.intrinsic("copysign", whole, plain), whole)
        return self.select(self.compare("oeq", b, self.splat(0.0)), plain, whole)


def per_lane(module: Module, scalar: str, element: str, lanes: int, arity: int) -> str:
    """An internal function that applies `scalar` to each lane of its vector arguments."""
    key = ("lanes", scalar, lanes, arity)
    if key in module.made:
        return module.made[key]
    name = f"lanes{lanes}_{scalar}"
    kind = f"<{lanes} x {element}>"
    fn = Function(module, name, ", ".join(f"{kind} %a{i}" for i in range(arity)), kind, internal=True, inline=False)
    slots = [fn.alloca(kind) for _ in range(arity + 1)]
    for i in range(arity):
        fn.do(f"store {kind} %a{i}, ptr {slots[i]}")
    with fn.loop(0, lanes) as lane:
        parts = [fn.op(f"load {element}, ptr {fn.pointer(s, lane, element)}") for s in slots[:-1]]
        result = fn.op(f"call {element} @{scalar}({', '.join(f'{element} {p}' for p in parts)})")
        fn.do(f"store {element} {result}, ptr {fn.pointer(slots[-1], lane, element)}")
    fn.do(f"ret {kind} {fn.op(f'load {kind}, ptr {slots[-1]}')}")
    module.made[key] = name
    return name
