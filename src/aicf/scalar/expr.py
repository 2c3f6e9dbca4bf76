"""The expression nodes, interned: equal expressions are the same object, so comparing and hashing cost nothing.

    Const 0.125 · Var i · Load bias[h, i, j] · Call add(x, y) · Reduce sum over d < 64 of q[i, d] * k[j, d]

Build with functions (`const`, `var`, `load`, `reduce` here; `call` and `cast` in `build.py`, which fold constants and
bring integer arithmetic into one normal form), never with the classes. Casts are `Call("cast", (x,), dtype)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from aicf.scalar.dtypes import DType, is_int, round_to
from aicf.scalar.functions import FUNCTIONS

ReduceOp = Literal["sum", "max", "min", "prod", "any", "all"]


@dataclass(frozen=True, eq=False, slots=True)
class Const:
    """A literal of type `dtype`."""

    value: bool | int | float
    dtype: DType

    def __repr__(self) -> str:
        return show(self)


@dataclass(frozen=True, eq=False, slots=True)
class Var:
    """A name bound elsewhere: an index variable, a size, a run-time scalar, a carried state or a tile's element."""

    name: str
    dtype: DType

    def __repr__(self) -> str:
        return show(self)


@dataclass(frozen=True, eq=False, slots=True)
class Load:
    """One element of the tensor named `tensor`; `index` has one integer expression per dimension."""

    tensor: str
    index: tuple[Expr, ...]
    dtype: DType

    def __repr__(self) -> str:
        return show(self)


@dataclass(frozen=True, eq=False, slots=True)
class Call:
    """A function of `functions.FUNCTIONS`, or `cast`, applied to `args`."""

    fn: str
    args: tuple[Expr, ...]
    dtype: DType

    def __repr__(self) -> str:
        return show(self)


@dataclass(frozen=True, eq=False, slots=True)
class Reduce:
    """`op` over `var` in [0, extent) of `body`."""

    op: ReduceOp
    var: Var
    extent: Expr
    body: Expr
    dtype: DType

    def __repr__(self) -> str:
        return show(self)


Expr: TypeAlias = Const | Var | Load | Call | Reduce

_INTERNED: dict[tuple[object, ...], Expr] = {}


def intern(key: tuple[object, ...], make: Callable[[], Expr]) -> Expr:
    found = _INTERNED.get(key)
    if found is None:
        found = _INTERNED.setdefault(key, make())
    return found


def const(value: bool | int | float, dtype: DType) -> Const:
    """The literal `value`, rounded to `dtype`."""
    if dtype == "bool":
        value = bool(value)
    elif is_int(dtype):
        value = int(value)
    else:
        value = float(round_to(float(value), dtype))
    # -0.0 == 0.0 and nan != nan, so the key holds the text of a float.
    made = intern(("const", repr(value), dtype), lambda: Const(value, dtype))
    assert isinstance(made, Const)
    return made


def integer_const(value: int) -> Const:
    return const(value, "i64")


def var(name: str, dtype: DType) -> Var:
    made = intern(("var", name, dtype), lambda: Var(name, dtype))
    assert isinstance(made, Var)
    return made


def index(name: str) -> Var:
    """An index variable (or any integer symbol) called `name`."""
    return var(name, "i64")


def size(value: int | Expr) -> Expr:
    """A dimension: an integer or an expression of size symbols."""
    return integer_const(value) if isinstance(value, int) else value


def load(tensor: str, at: tuple[Expr, ...], dtype: DType) -> Load:
    made = intern(("load", tensor, at, dtype), lambda: Load(tensor, at, dtype))
    assert isinstance(made, Load)
    return made


def reduce(op: ReduceOp, over: Var, extent: Expr, body: Expr) -> Expr:
    return intern(("reduce", op, over, extent, body), lambda: Reduce(op, over, extent, body, body.dtype))


def raw(fn: str, args: tuple[Expr, ...], dtype: DType) -> Expr:
    """`Call(fn, args)` with no simplification; the builders in `build.py` are what to use."""
    return intern(("call", fn, args, dtype), lambda: Call(fn, args, dtype))


# ------------------------------------------------------------------------------------------------ traversal


def children(e: Expr) -> tuple[Expr, ...]:
    match e:
        case Load():
            return e.index
        case Call():
            return e.args
        case Reduce():
            return (e.extent, e.body)
        case _:
            return ()


def walk(e: Expr) -> Iterator[Expr]:
    """Every distinct subexpression of `e`, operands before users."""
    seen: set[Expr] = set()
    stack: list[tuple[Expr, bool]] = [(e, False)]
    while stack:
        node, ready = stack.pop()
        if ready:
            yield node
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((c, False) for c in children(node))


_FREE: dict[Expr, frozenset[Var]] = {}


def variables(e: Expr) -> frozenset[Var]:
    """The free variables of `e` (a Reduce binds its own)."""
    found = _FREE.get(e)
    if found is not None:
        return found
    for node in walk(e):
        if node in _FREE:
            continue
        match node:
            case Var():
                _FREE[node] = frozenset({node})
            case Reduce():
                _FREE[node] = _FREE[node.extent] | (_FREE[node.body] - {node.var})
            case _:
                _FREE[node] = frozenset[Var]().union(*(_FREE[c] for c in children(node)))
    return _FREE[e]


# ------------------------------------------------------------------------------------------------ text

_LEVEL = {"or": 1, "xor": 2, "and": 3, "lt": 4, "le": 4, "gt": 4, "ge": 4, "eq": 4, "ne": 4,
          "add": 5, "sub": 5, "mul": 6, "div": 6, "floordiv": 6, "mod": 6, "neg": 7, "not": 7, "pow": 8}  # fmt: skip


def number(value: bool | int | float) -> str:
    """A literal as people write it: `inf`, `-inf`, `nan`, and floats in their shortest form."""
    if isinstance(value, (bool, int)):
        return str(value).lower() if isinstance(value, bool) else str(value)
    short = f"{value:.8g}"
    return short if "." in short or "e" in short or "n" in short else short + ".0"


def show(e: Expr, level: int = 0) -> str:
    """The text of `e`; `level` is the precedence of the place that it is put in."""
    match e:
        case Const():
            return number(e.value)
        case Var():
            return e.name
        case Load():
            return f"{e.tensor}[{', '.join(show(i) for i in e.index)}]"
        case Reduce():
            return f"{e.op}({e.var.name} < {show(e.extent)}: {show(e.body)})"
        case Call(fn="cast"):
            return f"{e.dtype}({show(e.args[0])})"
        case Call():
            mine = _LEVEL.get(e.fn)
            if mine is None:
                return f"{e.fn}({', '.join(show(a) for a in e.args)})"
            symbol = FUNCTIONS[e.fn].symbol
            if len(e.args) == 1:
                text = symbol + show(e.args[0], mine)
            else:
                text = f"{show(e.args[0], mine)} {symbol} {show(e.args[1], mine + 1)}"
            return f"({text})" if mine < level else text
