"""Random expressions for property tests: every function of the table, every type, shared subexpressions, special constants."""

from __future__ import annotations

import math
import random

from aicf.scalar import DTYPES, FUNCTIONS, DType, Expr, call, cast, const, index, is_float, load, reduce, var
from aicf.scalar.expr import raw

FLOATS = (0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.1, -0.1, 1e-40, 3e38, 65504.0, math.inf, -math.inf, math.nan,
          1000.0001220703125, 1000.00006103515625, 1 / 3, 1e-300)  # fmt: skip
INTEGERS = (0, 1, -1, 2, -2, 7, 127, 128, 255, -(2**31), 2**62)


def literal(r: random.Random, dtype: DType) -> Expr:
    if dtype == "bool":
        return const(r.random() < 0.5, dtype)
    if not is_float(dtype):
        return const(r.choice(INTEGERS), dtype)
    value = r.choice(FLOATS) if r.random() < 0.7 else r.uniform(-2, 2)
    return const(value, dtype)


def leaf(r: random.Random) -> Expr:
    dtype = r.choice(DTYPES)
    match r.randrange(3):
        case 0:
            return literal(r, dtype)
        case 1:
            return var(f"{r.choice('xyz')}_{dtype}", dtype) if r.random() < 0.6 else index(r.choice("ij"))
        case _:
            return load(f"{r.choice('KV')}_{dtype}", tuple(index(r.choice("ij")) for _ in range(r.randrange(3))), dtype)


def expression(r: random.Random, nodes: int) -> Expr:
    """A random expression; operands are taken from what was made before, so that subexpressions are shared."""
    pool = [leaf(r) for _ in range(4)]
    for _ in range(nodes):
        kind = r.random()
        if kind < 0.15:
            made = leaf(r)
        elif kind < 0.3:
            made = cast(r.choice(pool), r.choice(DTYPES))
        elif kind < 0.36:
            d = index(f"d{r.randrange(3)}")
            made = reduce(r.choice(("sum", "max", "min", "prod", "any", "all")), d, cast(r.choice(pool), "i64"), r.choice(pool))
        elif kind < 0.4:
            made = load("T", (cast(r.choice(pool), "i64"),), "f16")
        else:
            fn = r.choice(list(FUNCTIONS))
            args = [r.choice(pool) for _ in range(FUNCTIONS[fn].arity)]
            if fn == "where":
                args[0] = cast(args[0], "bool")
            # As built, and as nothing simplifies it: printing must tell apart what is never built today.
            types: list[DType] = [a.dtype for a in args]
            dtype = FUNCTIONS[fn].result(*types)
            made = call(fn, *args) if r.random() < 0.5 and safe(fn, args) else raw(fn, tuple(args), dtype)
        pool.append(made)
        if len(pool) > 7:
            pool.pop(r.randrange(len(pool) - 1))
    return pool[-1]


def safe(fn: str, args: list[Expr]) -> bool:
    """Whether `call` folds it: NumPy has no integer power of negative exponents, and no bits of floats."""
    if fn in ("and", "or", "xor", "not"):
        return all(not is_float(a.dtype) for a in args)
    return fn not in ("pow", "neg", "sub", "floordiv", "mod", "sign") or all(is_float(a.dtype) for a in args)
