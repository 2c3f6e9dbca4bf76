"""Small device functions that generated modules define, for what Triton's core language lacks.

One that has the name of a row of the function table is that function. Libraries of one vendor (libdevice) are not used: the same
text runs on NVIDIA, on AMD and in Triton's interpreter.
"""

from __future__ import annotations

# Helper name -> (names of helpers it needs, text). `{rounded}` has no place here: helpers compute in their argument's type.
HELPERS: dict[str, tuple[tuple[str, ...], str]] = {
    "larger": ((), """\
@triton.jit
def larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
"""),
    "smaller": ((), """\
@triton.jit
def smaller(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
"""),
    "reduce_max": (("larger",), """\
@triton.jit
def reduce_max(x, axis: tl.constexpr):
    return tl.reduce(x, axis, larger)
"""),
    "reduce_min": (("smaller",), """\
@triton.jit
def reduce_min(x, axis: tl.constexpr):
    return tl.reduce(x, axis, smaller)
"""),
    "floordiv": ((), """\
@triton.jit
def floordiv(a, b):
    # Triton's // rounds towards zero.
    q = a // b
    return tl.where((q * b != a) & ((a < 0) != (b < 0)), q - 1, q)
"""),
    "mod": ((), """\
@triton.jit
def mod(a, b):
    r = a % b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)
"""),
    "expm1": ((), """\
@triton.jit
def expm1(x):
    # The Taylor series where exp(x) - 1 would cancel.
    s = 1.0 + x * (1.0 / 9)
    s = 1.0 + x * (1.0 / 8) * s
    s = 1.0 + x * (1.0 / 7) * s
    s = 1.0 + x * (1.0 / 6) * s
    s = 1.0 + x * (1.0 / 5) * s
    s = 1.0 + x * (1.0 / 4) * s
    s = 1.0 + x * (1.0 / 3) * s
    s = 1.0 + x * (1.0 / 2) * s
    return tl.where(tl.abs(x) < 0.5, x * s, tl.exp(x) - 1.0)
"""),
    "log1p": ((), """\
@triton.jit
def log1p(x):
    # Kahan: the rounding of 1 + x cancels in the quotient.
    u = 1.0 + x
    exact = (u == 1.0) | (u == float("inf"))
    return tl.where(exact, x, tl.log(u) * (x / tl.where(exact, 1.0, u - 1.0)))
"""),
    "tanh": (("expm1",), """\
@triton.jit
def tanh(x):
    t = expm1(-2.0 * tl.abs(x))
    y = t / (t + 2.0)
    return tl.where(x < 0, y, -y)
"""),
    "sigmoid": ((), """\
@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))
"""),
    "softplus": (("log1p", "larger"), """\
@triton.jit
def softplus(x):
    return larger(x, 0.0) + log1p(tl.exp(-tl.abs(x)))
"""),
    "trunc": ((), """\
@triton.jit
def trunc(x):
    return tl.where(x < 0, tl.ceil(x), tl.floor(x))
"""),
    "round_even": ((), """\
@triton.jit
def round_even(x):
    # Adding 1.5 * 2**23 leaves no bits for a fraction.
    return tl.where(tl.abs(x) < 4194304.0, (x + 12582912.0) - 12582912.0, x)
"""),
    "sign": ((), """\
@triton.jit
def sign(x):
    return tl.where(x > 0, 1.0, tl.where(x < 0, -1.0, x))
"""),
    "power": ((), """\
@triton.jit
def power(x, y):
    # |x|**y = 2**(n y) 2**(y log2(|x| / 2**n)), and what the products lose to rounding put back.
    a = tl.abs(x)
    l = tl.log2(a)
    n = tl.where(tl.abs(l) < 126.0, tl.floor(l + 0.5), 0.0)
    u = y * tl.log2(a * tl.exp2(-n))
    t = y * n
    p = tl.where(tl.abs(y) == float("inf"), tl.where(a == 1.0, 0.0, y * l), t + u)
    lost = tl.where(tl.abs(p) < float("inf"), ((t - p) + u) + tl.fma(y, n, -t), 0.0)
    r = tl.exp2(p) * (1.0 + 0.6931472 * lost)
    whole = tl.floor(y) == y
    odd = whole & (tl.floor(y * 0.5) * 2.0 != y)
    r = tl.where(x < 0, tl.where(whole, tl.where(odd, -r, r), float("nan")), r)
    return tl.where(y == 0.0, 1.0, tl.where(x == 1.0, 1.0, r))
"""),
    "whole_power": ((), """\
@triton.jit
def whole_power(x, y):
    # Integers, y >= 0: squaring, one bit of y at a time.
    r = x * 0 + 1
    for _ in range(32):
        r = tl.where((y & 1) != 0, r * x, r)
        x = x * x
        y = y >> 1
    return r
"""),
}  # fmt: skip

# What Triton's interpreter gets wrong or takes too long for, said in another way (never used for code that runs on a GPU).
INTERPRETED: dict[str, tuple[tuple[str, ...], str]] = {
    "reduce_max": ((), """\
@triton.jit
def reduce_max(x, axis: tl.constexpr):
    return tl.where(tl.sum((x != x).to(tl.int32), axis) != 0, float("nan"), tl.max(x, axis))
"""),
    "reduce_min": ((), """\
@triton.jit
def reduce_min(x, axis: tl.constexpr):
    return tl.where(tl.sum((x != x).to(tl.int32), axis) != 0, float("nan"), tl.min(x, axis))
"""),
    "as_bf16": ((), """\
@triton.jit
def as_bf16(x):
    bits = x.to(tl.int32, bitcast=True)
    even = (bits + 32767 + ((bits >> 16) & 1)) & -65536
    return tl.where(x != x, x, even.to(tl.float32, bitcast=True))
"""),
}  # fmt: skip
