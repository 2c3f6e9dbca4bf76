"""The scalar functions as Triton text.

    exp(x) -> tl.exp(x)        tanh(x) -> tanh(x), with `tanh` (`helpers.py`) defined at the head of the module
"""

from __future__ import annotations

from aicf.backends.triton.helpers import HELPERS, INTERPRETED
from aicf.backends.triton.text import grouped
from aicf.scalar import DType, is_float

_BINARY = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
    "and": "&", "or": "|", "xor": "^",
}  # fmt: skip
_CORE = {"exp": "tl.exp", "exp2": "tl.exp2", "log": "tl.log", "log2": "tl.log2", "sqrt": "tl.sqrt", "rsqrt": "tl.rsqrt",
         "sin": "tl.sin", "cos": "tl.cos", "erf": "tl.erf", "abs": "tl.abs"}  # fmt: skip
_ROUND = {"floor": "tl.floor", "ceil": "tl.ceil", "trunc": "trunc", "round": "round_even"}

Text = tuple[str, tuple[str, ...]]


def apply(fn: str, args: list[str], dtype: DType, operand: DType, *, nonnegative: bool) -> Text:
    """(text, helpers used) of `fn` applied to the texts `args`. `operand`: the type of the first argument; `nonnegative`: integer
    operands are known to be >= 0, where rounding towards zero is rounding down."""
    raw = args[0]
    inside = ", ".join(args)
    a, b = grouped(args[0]), grouped(args[1]) if len(args) > 1 else ""
    real = is_float(operand)
    if fn in _BINARY:
        return f"{a} {_BINARY[fn]} {b}", ()
    if fn in _CORE:
        return f"{_CORE[fn]}({raw})", ()
    if fn in _ROUND:
        helper = _ROUND[fn] if not _ROUND[fn].startswith("tl.") else ""
        return (raw, ()) if not real else (f"{_ROUND[fn]}({raw})", (helper,) if helper else ())
    match fn:
        case "neg":
            return f"-{a}", ()
        case "max" | "min":
            if real:
                name = "larger" if fn == "max" else "smaller"
                return f"{name}({inside})", (name,)
            if operand == "bool":
                return f"{a} {'|' if fn == 'max' else '&'} {b}", ()
            return f"tl.{fn}imum({inside})", ()
        case "floordiv":
            if real:
                return f"tl.floor({a} / {b})", ()
            return (f"{a} // {b}", ()) if nonnegative else (f"floordiv({inside})", ("floordiv",))
        case "mod":
            if real:
                return f"{a} - tl.floor({a} / {b}) * {b}", ()
            return (f"{a} % {b}", ()) if nonnegative else (f"mod({inside})", ("mod",))
        case "pow":
            name = "power" if real else "whole_power"
            return f"{name}({inside})", (name,)
        case "sign":
            return (f"sign({raw})", ("sign",)) if real else (f"({a} > 0).to(tl.int32) - ({a} < 0).to(tl.int32)", ())
        case "not":
            return (f"{a} == 0", ()) if dtype == "bool" else (f"~{a}", ())
        case "where":
            return f"tl.where({inside})", ()
        case "isnan":
            return f"{a} != {a}", ()
        case "isinf":
            return f'tl.abs({raw}) == float("inf")', ()
        case _ if fn in HELPERS:
            return f"{fn}({inside})", (fn,)
        case _:
            raise KeyError(f"no Triton text for the function {fn}: add a function of that name to helpers.py")


def module_helpers(used: set[str], *, interpreted: bool) -> list[str]:
    """The texts of the helpers in `used` and of those that they need, each before its users."""
    table = {**HELPERS, **INTERPRETED} if interpreted else HELPERS
    done: dict[str, str] = {}

    def add(name: str) -> None:
        needs, text = table[name]
        for other in needs:
            add(other)
        done.setdefault(name, text)

    for name in sorted(used):
        add(name)
    return list(done.values())
