"""Scalar expressions to LLVM IR: every row of the function table, scalar where an operand is uniform, one vector wide elsewhere.

An `Evaluator` belongs to one point of a loop nest. It memoises subexpressions, so common ones are computed once, and
whatever does not depend on the vector axis stays scalar until an operation needs it as a vector.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from aicf.backends.llvm.codegen.mathlib import Maths
from aicf.backends.llvm.codegen.text import Function, float_text
from aicf.backends.llvm.codegen.values import Value, held, held_dtype
from aicf.scalar import Call, Const, DType, Expr, Load, Reduce, Var, is_float, is_int

_UNSIGNED = ("bool", "u8")
_COMPARE = {"lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}
_INTEGER_COMPARE = ("lt", "le", "gt", "ge", "eq", "ne")
_EXACT_IN_DOUBLE = 2**51
_LARGEST_POSITION = 2**44


def _exact_product(e: Expr) -> tuple[Expr, float] | None:
    """(x, c) when `e` is x times a power of two that is at most one, in f32: that product is not rounded (but for numbers so
    small that a sum with them is not either)."""
    if isinstance(e, Call) and e.fn == "mul" and e.dtype == "f32":
        for x, c in (e.args, e.args[::-1]):
            if isinstance(c, Const) and 0.0 < float(c.value) <= 1.0 and math.frexp(float(c.value))[0] == 0.5:
                return x, float(c.value)
    return None


class Evaluator:
    """Emits expressions. `lookup` gives variables, `read` gives loads (it is called with this evaluator).
    `lanes` may be a multiple of the machine's vector.
    Variables in `unbounded` may hold any value of their type; other i64 variables are sizes and positions."""

    def __init__(self, fn: Function, lookup: Callable[[Var], Value], read: Callable[[Load, Evaluator], Value],
                 unbounded: frozenset[str] = frozenset(), lanes: int = 0) -> None:  # fmt: skip
        self.fn = fn
        self.unbounded = unbounded
        self.lanes = lanes or fn.module.width
        self.lookup = lookup
        self.read = read
        # A cheaper way to compare positions, where there is one.
        self.compare: Callable[[Call, Evaluator], Value | None] | None = None
        # Expressions that are known to be at most zero, or NaN.
        self.at_most_zero: frozenset[Expr] = frozenset()
        self.memo: dict[Expr, Value] = {}
        self._wide: dict[Value, Value] = {}

    # ---------------------------------------------------------------- shapes and types

    def type(self, dtype: DType, vector: bool) -> str:
        return f"<{self.lanes} x {held(dtype)}>" if vector else held(dtype)

    def literal(self, value: bool | int | float, dtype: DType, vector: bool = False) -> str:
        if dtype == "bool":
            text = "true" if value else "false"
        elif is_int(dtype):
            text = str(int(value))
        else:
            text = float_text(float(value), held(dtype))
        return "<" + ", ".join([f"{held(dtype)} {text}"] * self.lanes) + ">" if vector else text

    def widen(self, v: Value) -> Value:
        """`v` in all lanes."""
        if v.vector:
            return v
        if v not in self._wide:
            if not v.text.startswith("%"):
                text = "<" + ", ".join([f"{held(v.dtype)} {v.text}"] * self.lanes) + ">"
            else:
                text = splat(self.fn, v.text, held(v.dtype), self.lanes)
            self._wide[v] = Value(text, v.dtype, True)
        return self._wide[v]

    def alike(self, *values: Value) -> list[Value]:
        """All scalar, or all vectors."""
        return [self.widen(v) for v in values] if any(v.vector for v in values) else list(values)

    def maths(self, dtype: DType, vector: bool) -> Maths:
        return Maths(self.fn, self.lanes if vector else None, held(dtype))

    # ---------------------------------------------------------------- expressions

    def value(self, e: Expr) -> Value:
        """The value of `e` here."""
        made = self.memo.get(e)
        if made is None:
            made = self.memo[e] = self._compute(e)
        return made

    def i64(self, e: Expr) -> int | str:
        """A scalar i64 operand, folded when `e` is a literal."""
        if isinstance(e, Const):
            return int(e.value)
        return self.convert(self.value(e), "i64").number

    def condition(self, e: Expr) -> str:
        """`e` as a scalar i1."""
        return self.convert(self.value(e), "bool").text

    def _compute(self, e: Expr) -> Value:
        match e:
            case Const():
                return Value(self.literal(e.value, e.dtype), e.dtype)
            case Var():
                return self.lookup(e)
            case Load():
                return self.read(e, self)
            case Reduce():
                return self._reduce(e)
            case Call(fn="cast"):
                return self.convert(self.value(e.args[0]), e.dtype, e.args[0])
            case Call():
                return self._call(e)

    def _call(self, e: Call) -> Value:
        if self.compare is not None and e.fn in _INTEGER_COMPARE and e.args[0].dtype == "i64":
            made = self.compare(e, self)
            if made is not None:
                return made
        if e.fn in ("add", "sub") and e.dtype == "f32":
            fused = self._fused(e)
            if fused is not None:
                return fused
        args = [self.value(a) for a in e.args]
        match e.fn:
            case "where":
                return self._where(e.dtype, args)
            case "lt" | "le" | "gt" | "ge" | "eq" | "ne":
                return self._comparison(e.fn, args)
            case "isnan" | "isinf":
                return self._test(e.fn, args[0])
            case _:
                operands = self.alike(*(self.convert(a, e.dtype) for a in args))
                vector = operands[0].vector
                texts = [o.text for o in operands]
                if e.dtype == "bool":
                    return Value(self._on_bools(e.fn, texts, vector), "bool", vector)
                if is_int(e.dtype):
                    return Value(self._on_ints(e, texts, vector), e.dtype, vector)
                return Value(self._on_floats(e, texts, vector), e.dtype, vector)

    def _fused(self, e: Call) -> Value | None:
        """A sum or difference with a product by a power of two, in one operation: the same number, as the product is exact."""
        for i, part in enumerate(e.args):
            operands = None if part in self.memo else _exact_product(part)
            if operands is None:
                continue
            x, c = operands
            x, other = self.alike(self.convert(self.value(x), "f32"), self.convert(self.value(e.args[1 - i]), "f32"))
            m = self.maths("f32", x.vector)
            if e.fn == "sub":
                c, other = (c, Value(m.neg(other.text), "f32", x.vector)) if i == 0 else (-c, other)
            return Value(m.fma(x.text, m.splat(c), other.text), "f32", x.vector)
        return None

    def _where(self, dtype: DType, args: list[Value]) -> Value:
        condition = self.convert(args[0], "bool")
        yes, no = self.alike(self.convert(args[1], dtype), self.convert(args[2], dtype))
        if condition.vector:
            yes, no = self.widen(yes), self.widen(no)
        kind, chooser = self.type(dtype, yes.vector), self.type("bool", condition.vector)
        text = self.fn.op(f"select {chooser} {condition.text}, {kind} {yes.text}, {kind} {no.text}")
        return Value(text, dtype, yes.vector)

    def _comparison(self, name: str, args: list[Value]) -> Value:
        a, b = self.alike(*args)
        kind = self.type(a.dtype, a.vector)
        if is_float(a.dtype):
            how = {"eq": "oeq", "ne": "une"}.get(name) or "o" + _COMPARE[name]
            text = self.fn.op(f"fcmp {how} {kind} {a.text}, {b.text}")
        else:
            sign = "u" if a.dtype in _UNSIGNED else "s"
            how = name if name in ("eq", "ne") else sign + _COMPARE[name]
            text = self.fn.op(f"icmp {how} {kind} {a.text}, {b.text}")
        return Value(text, "bool", a.vector)

    def _test(self, name: str, a: Value) -> Value:
        if not is_float(a.dtype):
            return Value("false", "bool")
        m = self.maths(a.dtype, a.vector)
        if name == "isnan":
            return Value(m.compare("uno", a.text, a.text), "bool", a.vector)
        return Value(m.compare("oeq", m.abs(a.text), m.splat(math.inf)), "bool", a.vector)

    def _on_bools(self, name: str, x: list[str], vector: bool) -> str:
        kind = self.type("bool", vector)
        match name:
            case "and" | "mul" | "min":
                return self.fn.op(f"and {kind} {x[0]}, {x[1]}")
            case "or" | "add" | "max":
                return self.fn.op(f"or {kind} {x[0]}, {x[1]}")
            case "xor":
                return self.fn.op(f"xor {kind} {x[0]}, {x[1]}")
            case "not":
                return self.fn.op(f"xor {kind} {x[0]}, {self.literal(True, 'bool', vector)}")
            case "abs" | "floor" | "ceil" | "trunc" | "round" | "sign":
                return x[0]
            case _:
                raise NotImplementedError(f"{name} of booleans has no meaning; cast them to an integer type first")

    def _on_ints(self, e: Call, x: list[str], vector: bool) -> str:
        fn, kind = self.fn, self.type(e.dtype, vector)
        less = "ult" if e.dtype in _UNSIGNED else "slt"
        match e.fn:
            case "add" | "sub" | "mul":
                return fn.op(f"{e.fn} {kind} {x[0]}, {x[1]}")
            case "and" | "or" | "xor":
                return fn.op(f"{e.fn} {kind} {x[0]}, {x[1]}")
            case "not":
                return fn.op(f"xor {kind} {x[0]}, {self.literal(-1, e.dtype, vector)}")
            case "neg":
                return fn.op(f"sub {kind} {self.literal(0, e.dtype, vector)}, {x[0]}")
            case "max" | "min":
                first = fn.op(f"icmp {less} {kind} {x[0]}, {x[1]}")
                a, b = (x[1], x[0]) if e.fn == "max" else (x[0], x[1])
                return fn.op(f"select {self.type('bool', vector)} {first}, {kind} {a}, {kind} {b}")
            case "abs" if e.dtype not in _UNSIGNED:
                below = fn.op(f"icmp slt {kind} {x[0]}, {self.literal(0, e.dtype, vector)}")
                negated = fn.op(f"sub {kind} {self.literal(0, e.dtype, vector)}, {x[0]}")
                return fn.op(f"select {self.type('bool', vector)} {below}, {kind} {negated}, {kind} {x[0]}")
            case "abs" | "floor" | "ceil" | "trunc" | "round":
                return x[0]
            case "sign":
                zero, one = self.literal(0, e.dtype, vector), self.literal(1, e.dtype, vector)
                test = self.type("bool", vector)
                above = fn.op(f"icmp ne {kind} {x[0]}, {zero}")
                positive = fn.op(f"select {test} {above}, {kind} {one}, {kind} {zero}")
                if e.dtype in _UNSIGNED:
                    return positive
                below = fn.op(f"icmp slt {kind} {x[0]}, {zero}")
                return fn.op(f"select {test} {below}, {kind} {self.literal(-1, e.dtype, vector)}, {kind} {positive}")
            case "floordiv" | "mod":
                return self._floor_divided(e, x, vector)
            case "pow":
                return self._power(e.dtype, x, vector)
            case _:
                raise NotImplementedError(f"{e.fn} of {e.dtype} is not in the table of functions")

    def _floor_divided(self, e: Call, x: list[str], vector: bool) -> str:
        """Quotient and remainder of floor division; 0 for a divisor of 0, as NumPy."""
        fn, kind, test = self.fn, self.type(e.dtype, vector), self.type("bool", vector)
        divisor = e.args[1]
        zero = self.literal(0, e.dtype, vector)
        if isinstance(divisor, Const) and int(divisor.value) > 0:
            n = int(divisor.value)
            if n & (n - 1) == 0:
                if e.fn == "mod":
                    return fn.op(f"and {kind} {x[0]}, {self.literal(n - 1, e.dtype, vector)}")
                shift = "lshr" if e.dtype in _UNSIGNED else "ashr"
                return fn.op(f"{shift} {kind} {x[0]}, {self.literal(n.bit_length() - 1, e.dtype, vector)}")
            by, by_zero = x[1], None
        else:
            by_zero = fn.op(f"icmp eq {kind} {x[1]}, {zero}")
            by = fn.op(f"select {test} {by_zero}, {kind} {self.literal(1, e.dtype, vector)}, {kind} {x[1]}")
        sign = "u" if e.dtype in _UNSIGNED else "s"
        quotient = fn.op(f"{sign}div {kind} {x[0]}, {by}")
        remainder = fn.op(f"sub {kind} {x[0]}, {fn.op(f'mul {kind} {quotient}, {by}')}")
        if sign == "s":
            inexact = fn.op(f"icmp ne {kind} {remainder}, {zero}")
            mixed = fn.op(f"icmp slt {kind} {fn.op(f'xor {kind} {remainder}, {by}')}, {zero}")
            fix = fn.op(f"and {test} {inexact}, {mixed}")
            if e.fn == "mod":
                fixed = fn.op(f"add {kind} {remainder}, {by}")
                result = fn.op(f"select {test} {fix}, {kind} {fixed}, {kind} {remainder}")
            else:
                fixed = fn.op(f"sub {kind} {quotient}, {self.literal(1, e.dtype, vector)}")
                result = fn.op(f"select {test} {fix}, {kind} {fixed}, {kind} {quotient}")
        else:
            result = remainder if e.fn == "mod" else quotient
        return result if by_zero is None else fn.op(f"select {test} {by_zero}, {kind} {zero}, {kind} {result}")

    def _power(self, dtype: DType, x: list[str], vector: bool) -> str:
        """Integer powers by squaring, as many steps as the exponent can have bits."""
        fn, kind, test = self.fn, self.type(dtype, vector), self.type("bool", vector)
        one = self.literal(1, dtype, vector)
        slots = [fn.alloca(kind) for _ in range(3)]
        for slot, start in zip(slots, (one, x[0], x[1]), strict=True):
            fn.do(f"store {kind} {start}, ptr {slot}")
        with fn.loop(0, {"i8": 7, "u8": 8, "i16": 15, "i32": 31}.get(dtype, 63)):
            result, base, exponent = (fn.op(f"load {kind}, ptr {s}") for s in slots)
            odd = fn.op(f"icmp ne {kind} {fn.op(f'and {kind} {exponent}, {one}')}, {self.literal(0, dtype, vector)}")
            product = fn.op(f"mul {kind} {result}, {base}")
            fn.do(f"store {kind} {fn.op(f'select {test} {odd}, {kind} {product}, {kind} {result}')}, ptr {slots[0]}")
            fn.do(f"store {kind} {fn.op(f'mul {kind} {base}, {base}')}, ptr {slots[1]}")
            fn.do(f"store {kind} {fn.op(f'lshr {kind} {exponent}, {one}')}, ptr {slots[2]}")
        return fn.op(f"load {kind}, ptr {slots[0]}")

    def _on_floats(self, e: Call, x: list[str], vector: bool) -> str:
        m = self.maths(e.dtype, vector)
        match e.fn:
            case "add" | "sub" | "mul" | "div":
                return m.binary("f" + e.fn, x[0], x[1])
            case "neg":
                return m.neg(x[0])
            case "abs":
                return m.abs(x[0])
            case "max":
                return m.maximum(x[0], x[1])
            case "min":
                return m.minimum(x[0], x[1])
            case "exp" if e.args[0] in self.at_most_zero:
                return m.decay(x[0])
            case "expm1" | "log1p" | "erf" | "sin" | "cos":
                return m.library(e.fn, x[0])
            case "sqrt":
                return m.intrinsic("sqrt", x[0])
            case "rsqrt":
                return m.div(m.splat(1.0), m.intrinsic("sqrt", x[0]))
            case "floor" | "ceil" | "trunc":
                return m.intrinsic(e.fn, x[0])
            case "round":
                return m.intrinsic("rint", x[0])
            case "pow":
                return self._float_power(e, m, x)
            case _:  # what is a few instructions more is a method of its own name
                made = getattr(m, e.fn, None)
                if made is None:
                    raise NotImplementedError(f"LLVM code for {e.fn} of {e.dtype}: add a method {e.fn} to Maths in mathlib.py")
                return made(*x)

    def _float_power(self, e: Call, m: Maths, x: list[str]) -> str:
        """pow, with the exponents that occur in models (2, 3) as products."""
        exponent = e.args[1]
        if isinstance(exponent, Const) and exponent.value in (2, 3):
            square = m.mul(x[0], x[0])
            return square if exponent.value == 2 else m.mul(square, x[0])
        return m.library("pow", x[0], x[1])

    def _reduce(self, e: Reduce) -> Value:
        """A loop with the partial result in a stack slot; as wide as its body."""
        fn = self.fn
        start: dict[str, float] = {"sum": 0, "prod": 1, "max": -math.inf, "min": math.inf, "any": 0, "all": 1}
        combine = {"sum": "add", "prod": "mul", "any": "or", "all": "and"}.get(e.op, e.op)
        extent = self.i64(e.extent)
        dtype = e.dtype
        slot = fn.alloca(self.type(dtype, True))
        initial = start[e.op]
        if is_int(dtype) and math.isinf(initial):
            initial = smallest(dtype) if initial < 0 else largest(dtype)
        fn.do(f"store {self.type(dtype, True)} {self.literal(initial, dtype, True)}, ptr {slot}")
        with fn.loop(0, extent) as step:
            inside = Evaluator(fn, self.lookup, self.read, self.unbounded, self.lanes)
            inside.memo = dict(self.memo)
            inside.memo[e.var] = Value(str(step), "i64")
            body = inside.widen(inside.value(e.body))
            old = fn.op(f"load {self.type(dtype, True)}, ptr {slot}")
            new = combined(self, combine, dtype, old, body.text, True)
            fn.do(f"store {self.type(dtype, True)} {new}, ptr {slot}")
        return Value(fn.op(f"load {self.type(dtype, True)}, ptr {slot}"), dtype, True)

    # ---------------------------------------------------------------- conversions

    def convert(self, v: Value, dtype: DType, source: Expr | None = None) -> Value:
        """`v` converted to `dtype`; halves are rounded to nearest even and kept in f32. `source` is `v`'s expression, whose
        range may allow a faster conversion."""
        if v.dtype == dtype:
            return v
        fn, old, new = self.fn, self.type(v.dtype, v.vector), self.type(dtype, v.vector)

        def done(text: str) -> Value:
            return Value(text, dtype, v.vector)

        if dtype == "bool":
            zero = self.literal(0, v.dtype, v.vector)
            return done(fn.op(f"fcmp une {old} {v.text}, {zero}" if is_float(v.dtype) else f"icmp ne {old} {v.text}, {zero}"))
        if is_float(dtype):
            target = held_dtype(dtype)
            wide = self._to_float(v, target, source)
            return done(self.rounded(wide, dtype, v.vector) if dtype != target else wide)
        if is_float(v.dtype):
            name = f"llvm.fptosi.sat.{self._suffix(dtype, v.vector)}.{self._suffix(v.dtype, v.vector)}"
            fn.module.declare(name, f"{new} ({old})")
            return done(fn.op(f"call {new} @{name}({old} {v.text})"))
        if not v.text.startswith("%") and not v.vector:
            return done(v.text if v.dtype != "bool" else str(int(v.text == "true")))
        before, after = (int(held(d)[1:]) for d in (v.dtype, dtype))
        if before == after:
            return done(v.text)
        op = "trunc" if before > after else "zext" if v.dtype in _UNSIGNED else "sext"
        return done(fn.op(f"{op} {old} {v.text} to {new}"))

    def _suffix(self, dtype: DType, vector: bool) -> str:
        name = {"float": "f32", "double": "f64"}.get(held(dtype), held(dtype))
        return f"v{self.lanes}{name}" if vector else name

    def _to_float(self, v: Value, dtype: DType, source: Expr | None) -> str:
        fn, old, new = self.fn, self.type(v.dtype, v.vector), self.type(dtype, v.vector)
        if held(v.dtype) == held(dtype):
            return v.text
        if is_float(v.dtype):
            return fn.op(f"{'fpext' if dtype == 'f64' else 'fptrunc'} {old} {v.text} to {new}")
        if v.vector and v.dtype == "i64" and source is not None and magnitude(source, self.unbounded) < _EXACT_IN_DOUBLE:
            # There is no vector conversion from i64 before AVX-512: the bits of 1.5 * 2^52 + x, less 1.5 * 2^52, are x.
            ints, doubles = f"<{self.lanes} x i64>", f"<{self.lanes} x double>"
            bits = fn.op(f"add {ints} {v.text}, {self.literal(0x4338000000000000, 'i64', True)}")
            near = fn.op(f"bitcast {ints} {bits} to {doubles}")
            exact = fn.op(f"fsub {doubles} {near}, {self.literal(6755399441055744.0, 'f64', True)}")
            return exact if dtype == "f64" else fn.op(f"fptrunc {doubles} {exact} to {new}")
        return fn.op(f"{'uitofp' if v.dtype in _UNSIGNED else 'sitofp'} {old} {v.text} to {new}")

    def rounded(self, text: str, dtype: DType, vector: bool) -> str:
        """An f32 (text) rounded to the half `dtype`, as f32."""
        fn, wide = self.fn, self.type("f32", vector)
        if dtype == "f16":
            half = f"<{self.lanes} x half>" if vector else "half"
            return fn.op(f"fpext {half} {fn.op(f'fptrunc {wide} {text} to {half}')} to {wide}")
        high = bf16_bits(fn, text, self.lanes if vector else None)
        ints = f"<{self.lanes} x i32>" if vector else "i32"
        return fn.op(f"bitcast {ints} {fn.op(f'and {ints} {high}, {self._splat_i32(-65536, vector)}')} to {wide}")

    def _splat_i32(self, value: int, vector: bool) -> str:
        return self.literal(value, "i32", vector)


def splat(fn: Function, scalar: str, kind: str, lanes: int) -> str:
    """A vector with `scalar` in all lanes."""
    one = fn.op(f"insertelement <{lanes} x {kind}> poison, {kind} {scalar}, i64 0")
    return fn.op(f"shufflevector <{lanes} x {kind}> {one}, <{lanes} x {kind}> poison, <{lanes} x i32> zeroinitializer")


def bf16_bits(fn: Function, text: str, lanes: int | None) -> str:
    """i32 whose upper half is the f32 `text` rounded to bf16 (to nearest even; NaN stays NaN)."""
    wide, ints, test = ("float", "i32", "i1") if lanes is None else (f"<{lanes} x float>", f"<{lanes} x i32>", f"<{lanes} x i1>")

    def c(value: int) -> str:
        return str(value) if lanes is None else "<" + ", ".join([f"i32 {value}"] * lanes) + ">"

    bits = fn.op(f"bitcast {wide} {text} to {ints}")
    odd = fn.op(f"and {ints} {fn.op(f'lshr {ints} {bits}, {c(16)}')}, {c(1)}")
    up = fn.op(f"add {ints} {fn.op(f'add {ints} {bits}, {c(0x7FFF)}')}, {odd}")
    nan = fn.op(f"fcmp uno {wide} {text}, {text}")
    quiet = fn.op(f"or {ints} {bits}, {c(0x400000)}")
    return fn.op(f"select {test} {nan}, {ints} {quiet}, {ints} {up}")


def smallest(dtype: DType) -> int:
    return {"bool": 0, "u8": 0, "i8": -(2**7), "i16": -(2**15), "i32": -(2**31), "i64": -(2**63)}[dtype]


def largest(dtype: DType) -> int:
    return {"bool": 1, "u8": 255, "i8": 2**7 - 1, "i16": 2**15 - 1, "i32": 2**31 - 1, "i64": 2**63 - 1}[dtype]


def combined(at: Evaluator, op: str, dtype: DType, a: str, b: str, vector: bool) -> str:
    """`op` (a row of the table with two operands) of two values of one shape, as an LLVM operand."""
    kind = at.type(dtype, vector)
    if is_float(dtype):
        m = at.maths(dtype, vector)
        return {"add": m.add, "mul": m.mul, "max": m.maximum, "min": m.minimum}[op](a, b)
    if op in ("max", "min"):
        how = ("u" if dtype in _UNSIGNED else "s") + ("gt" if op == "max" else "lt")
        first = at.fn.op(f"icmp {how} {kind} {a}, {b}")
        return at.fn.op(f"select {at.type('bool', vector)} {first}, {kind} {a}, {kind} {b}")
    if dtype == "bool":
        op = {"add": "or", "mul": "and"}.get(op, op)
    return at.fn.op(f"{op} {kind} {a}, {b}")


def magnitude(e: Expr, unbounded: frozenset[str]) -> float:
    """A bound of |e|: sizes and positions are below 2^44 (they count elements in memory); infinite when nothing is known."""
    match e:
        case Const():
            return abs(float(e.value))
        case Var():
            return _LARGEST_POSITION if e.dtype == "i64" and e.name not in unbounded else _of_type(e.dtype)
        case Call(fn="add" | "sub"):
            return magnitude(e.args[0], unbounded) + magnitude(e.args[1], unbounded)
        case Call(fn="mul"):
            return magnitude(e.args[0], unbounded) * magnitude(e.args[1], unbounded)
        case Call(fn="neg" | "abs" | "cast") if not is_float(e.args[0].dtype):
            return magnitude(e.args[0], unbounded)
        case Call(fn="max" | "min"):
            return max(magnitude(a, unbounded) for a in e.args)
        case Call(fn="where"):
            return max(magnitude(a, unbounded) for a in e.args[1:])
        case Call(fn="floordiv"):
            return magnitude(e.args[0], unbounded) + 1
        case Call(fn="mod"):
            return magnitude(e.args[1], unbounded)
        case _:
            return _of_type(e.dtype)


def _of_type(dtype: DType) -> float:
    return math.inf if is_float(dtype) or dtype == "i64" else float(largest(dtype) + 1)
