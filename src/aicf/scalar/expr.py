"""The expression nodes, interned: equal expressions are the same object, so comparing and hashing cost nothing.

    Const 0.125 · Var i · Load bias[h, i, j] · Call add(x, y) · Reduce sum over d < 64 of q[i, d] * k[j, d]

Build with functions (`const`, `var`, `load`, `reduce` here; `call` and `cast` in `build.py`, which fold constants and
bring integer arithmetic into one normal form), never with the classes. Casts are `Call("cast", (x,), dtype)`. Copies and what is
unpickled are the same objects again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from aicf.scalar.dtypes import DType, is_float, is_half, is_int, round_to, wrapped
from aicf.scalar.functions import FUNCTIONS

ReduceOp = Literal["sum", "max", "min", "prod", "any", "all"]


@dataclass(frozen=True, eq=False, slots=True)
class Const:
    """A literal of type `dtype`."""

    value: bool | int | float
    dtype: DType

    def __reduce__(self) -> tuple[object, ...]:
        return const, (self.value, self.dtype)

    def __repr__(self) -> str:
        return show(self)


@dataclass(frozen=True, eq=False, slots=True)
class Var:
    """A name bound elsewhere: an index variable, a size, a run-time scalar, a carried state or a tile's element."""

    name: str
    dtype: DType

    def __reduce__(self) -> tuple[object, ...]:
        return var, (self.name, self.dtype)

    def __repr__(self) -> str:
        return show(self)


@dataclass(frozen=True, eq=False, slots=True)
class Load:
    """One element of the tensor named `tensor`; `index` has one integer expression per dimension."""

    tensor: str
    index: tuple[Expr, ...]
    dtype: DType

    def __reduce__(self) -> tuple[object, ...]:
        return load, (self.tensor, self.index, self.dtype)

    def __repr__(self) -> str:
        return show(self)


@dataclass(frozen=True, eq=False, slots=True)
class Call:
    """A function of `functions.FUNCTIONS`, or `cast`, applied to `args`."""

    fn: str
    args: tuple[Expr, ...]
    dtype: DType

    def __reduce__(self) -> tuple[object, ...]:
        return raw, (self.fn, self.args, self.dtype)

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

    def __reduce__(self) -> tuple[object, ...]:
        return reduce, (self.op, self.var, self.extent, self.body)

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
    """The literal `value`, rounded to `dtype`; integers wrap around. There is one NaN: its sign and payload mean nothing here."""
    if dtype == "bool":
        value = bool(value)
    elif is_int(dtype):
        value = wrapped(int(value), dtype)
    else:
        value = float(round_to(float(value), dtype))
        value = math.nan if math.isnan(value) else value
    # -0.0 == 0.0 and nan != nan, so the key holds the text of a float, which is exact.
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


def unknown(e: Expr, known: Container[Expr]) -> Iterator[Expr]:
    """The distinct subexpressions of `e` that are not `known` and not only inside of what is, operands before users. What is
    computed once per node and kept costs no more than the new nodes, whoever asks."""
    if e in known:
        return
    seen: set[Expr] = set()
    stack: list[tuple[Expr, bool]] = [(e, False)]
    while stack:
        node, ready = stack.pop()
        if ready:
            yield node
        elif node not in seen and node not in known:
            seen.add(node)
            stack.append((node, True))
            stack.extend((c, False) for c in reversed(children(node)))


_FREE: dict[Expr, frozenset[Var]] = {}


def variables(e: Expr) -> frozenset[Var]:
    """The free variables of `e` (a Reduce binds its own)."""
    for node in unknown(e, _FREE):
        match node:
            case Var():
                _FREE[node] = frozenset({node})
            case Reduce():
                _FREE[node] = _FREE[node.extent] | (_FREE[node.body] - {node.var})
            case _:
                _FREE[node] = frozenset[Var]().union(*(_FREE[c] for c in children(node)))
    return _FREE[e]


def in_a_branch(e: Expr, v: Var) -> bool:
    """Whether `v` stands in a branch of a `where` of `e`, so that the NaN that it makes there may be dropped."""
    chosen = (x for x in walk(e) if isinstance(x, Call) and x.fn == "where")
    return any(v in variables(branch) for x in chosen for branch in x.args[1:])


def reads(e: Expr) -> bool:
    """Whether `e` loads anything."""
    for node in unknown(e, _READS):
        _READS[node] = isinstance(node, Load) or any(_READS[c] for c in children(node))
    return _READS[e]


_READS: dict[Expr, bool] = {}

# ------------------------------------------------------------------------------------------------ text

LEVEL = {"or": 1, "xor": 2, "and": 3, "lt": 4, "le": 4, "gt": 4, "ge": 4, "eq": 4, "ne": 4,
         "add": 5, "sub": 5, "mul": 6, "div": 6, "floordiv": 6, "mod": 6, "neg": 7, "not": 7, "pow": 8}  # fmt: skip
WORDS = ("true", "false", "inf", "nan", "let", "in")  # what a name is put in quotes for
TREE = 160  # nodes, each as often as it is written, up to which an expression is one line without names
INLINE = 40  # nodes of a line with names
HEAVIEST = 10_000  # nodes that are counted, each as often as it is written


def number(value: bool | int | float, dtype: DType = "f64") -> str:
    """A literal as people write it: `inf`, `-inf`, `nan`, and floats with the fewest digits that no other number of `dtype`
    has."""
    if isinstance(value, (bool, int)):
        return str(value).lower() if isinstance(value, bool) else str(value)
    if dtype == "f32" and math.isfinite(value):
        return str(np.float32(value))
    if is_half(dtype) and math.isfinite(value) and not (value.is_integer() and abs(value) < 1e6):
        shorter = (float(f"{value:.{n}g}") for n in range(1, 9))
        return repr(next((x for x in shorter if float(round_to(x, dtype)) == value), value))
    return repr(value)


def kind_of(value: bool | int | float) -> DType:
    """The type of a literal that stands alone."""
    return "bool" if isinstance(value, bool) else "i64" if isinstance(value, int) else "f32"


def taken(kind: DType, among: DType | None) -> DType:
    """The type that a bare literal has, `kind` by itself, where its first peer that is no literal has the type `among`."""
    alike = among is not None and ((is_float(kind) and is_float(among)) or (is_int(kind) and is_int(among)))
    return among if alike and among is not None else kind


def weight(e: Expr) -> int:
    """The number of nodes of `e` written out, shared ones as often as they occur; not more than HEAVIEST."""
    for node in unknown(e, _WEIGHTS):
        _WEIGHTS[node] = min(HEAVIEST, 1 + sum(_WEIGHTS[c] for c in children(node)))
    return _WEIGHTS[e]


_WEIGHTS: dict[Expr, int] = {}


def show(e: Expr, level: int = 0, among: DType | None = None) -> str:
    """The text of `e`; `level` is the precedence of the place that it is put in, `among` the type that a literal has there by
    itself.

    Given the types of its names, no other expression has the same text. A large one gets names for what it holds more than
    once, so that the text is as long as it has nodes: `let $1 = i // 16; $2 = j // 16 in where($1 == $2, x, y)`.
    """
    return _Text(None).whole(e, level, among)


def spell(e: Expr, types: Mapping[str, DType] | None = None) -> str:
    """As `show`, with the types of names too, for `parse_expr` to read: `x:f32 * K[b, j]:f16`. Variables without one are i64;
    names in `types` need none where it is theirs."""
    return _Text(types or {}).whole(e, 0)


class _Text:
    def __init__(self, types: Mapping[str, DType] | None) -> None:
        self.types = types
        self.names: dict[Expr, str] = {}

    def whole(self, e: Expr, level: int, among: DType | None = None) -> str:
        if weight(e) <= TREE:
            return self.text(e, level, among)
        nodes = list(unknown(e, ()))
        uses = Counter(c for node in nodes for c in children(node))
        inline: dict[Expr, int] = {}
        lines: list[str] = []
        for node in nodes:
            inline[node] = 1 + sum(1 if c in self.names else inline[c] for c in children(node))
            if node is not e and ((uses[node] > 1 and inline[node] > 3) or inline[node] > INLINE):
                line = self.text(node, 0)
                self.names[node] = f"${len(lines) + 1}"
                lines.append(f"{self.names[node]} = {line}")
        text = f"let {'; '.join(lines)} in {self.text(e, 0)}"
        return f"({text})" if level else text

    def name(self, name: str, dtype: DType, usual: DType | None) -> str:
        plain = name.isidentifier() or self.types is None
        text = name if plain and name not in WORDS else f"`{name}`"
        return text if self.types is None else text + self.type(name, dtype, usual)

    def type(self, name: str, dtype: DType, usual: DType | None) -> str:
        return "" if self.types is None or self.types.get(name, usual) == dtype else f":{dtype}"

    def text(self, e: Expr, level: int, among: DType | None = None) -> str:
        if e in self.names:
            return self.names[e]
        match e:
            case Const():
                text = number(e.value, e.dtype)
                if taken(kind_of(e.value), among) != e.dtype:
                    return f"{e.dtype}({text})"
                return f"({text})" if text[0] == "-" and level > LEVEL["neg"] else text
            case Var():
                return self.name(e.name, e.dtype, "i64")
            case Load():
                at = ", ".join(self.text(i, 0) for i in e.index)
                quoted = e.tensor if e.tensor.isidentifier() or self.types is None else f"`{e.tensor}`"
                return f"{quoted}[{at}]{self.type(e.tensor, e.dtype, None)}"
            case Reduce():
                over = self.name(e.var.name, e.var.dtype, "i64")
                return f"{e.op}({over} < {self.text(e.extent, LEVEL['add'])}: {self.text(e.body, 0)})"
            case Call():
                return self.call(e, level)

    def call(self, e: Call, level: int) -> str:
        # Operands with a type in common: a literal has that of the first that is none.
        alike = e.args[1:] if e.fn == "where" else e.args if len(e.args) > 1 else ()
        among: DType | None = next((a.dtype for a in alike if not isinstance(a, Const)), None)

        def operand(k: int, at: int = 0) -> str:
            return self.text(e.args[k], at, None if e.fn == "where" and k == 0 else among)

        if e.fn == "cast" and not any(isinstance(a, Const) for a in e.args):
            return f"{e.dtype}({operand(0)})"
        types: list[DType] = [a.dtype for a in e.args]
        typed = e.fn == "cast" or FUNCTIONS[e.fn].result(*types) != e.dtype
        mine = LEVEL.get(e.fn)
        if typed or mine is None:
            operands = ", ".join(operand(k) for k in range(len(e.args)))
            return f"{e.fn}.{e.dtype}({operands})" if typed else f"{e.fn}({operands})"
        symbol = FUNCTIONS[e.fn].symbol
        if len(e.args) == 1:
            inner = operand(0, mine)
            # -2.0 is a literal, and so the negation of 2.0 (or of 2.0 ** x) has brackets.
            text = symbol + (f"({inner})" if inner[0].isdigit() or inner.startswith(("inf", "nan")) else inner)
        else:
            # As in Python: powers are read from the right, all else from the left; comparisons are not chained.
            left, right = (mine + 1, mine) if e.fn == "pow" else (mine + 1 if mine == LEVEL["lt"] else mine, mine + 1)
            text = f"{operand(0, left)} {symbol} {operand(1, right)}"
        return f"({text})" if mine < level else text
