"""Text back to expressions: the inverse of `show` and `spell`.

    parse_expr("x * bf16(0.5) + K[b, j]", {"x": "bf16", "K": "f32"})
    parse_expr("max(x:f32, -0.0) ** 2.0")
    parse_expr("let $1 = i // 16; $2 = j // 16 in where($1 == $2, s:f32, -inf)")

    expression   let $1 = expression; $2 = expression … in expression, or operators, tightest last:
                 |   ^   &   < <= > >= == !=   + -   * / // %   - ~ (in front)   **
    operand      literal, `dtype(literal)`, `dtype(expression)` (a conversion), name, name[index, …], fn(operand, …),
                 (expression), `op(var < extent: body)` (a reduction), `fn.dtype(operand, …)` (a type that is not the usual one)
    name         a word, `any text` in backquotes; with its type behind it without a space: x:f32, K[b, j]:f16

A bare literal has the type of the first operand beside it that is no literal, where both are floats or both integers; else it is
f32, i64 or bool. Variables without a type are i64.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn, get_args

from aicf.scalar.build import call, cast
from aicf.scalar.dtypes import DTYPES, DType
from aicf.scalar.expr import LEVEL, Const, Expr, ReduceOp, const, kind_of, load, raw, reduce, taken, var
from aicf.scalar.functions import FUNCTIONS

_DTYPE = "|".join(DTYPES)
_TOKEN = re.compile(
    rf"\s*(?:(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)"
    rf"|(?P<name>[^\W\d]\w*|`[^`]*`)(?:(?::(?P<type>{_DTYPE})|\.(?P<result>{_DTYPE}))\b)?"
    rf"|(?P<let>\$\d+)"
    rf"|(?P<index>\])(?::(?P<of>{_DTYPE})\b)?"
    rf"|(?P<sign>\*\*|//|==|!=|<=|>=|[-+*/%&|^~<>()\[,:;=]))"
)
_BINARY = {f.symbol: name for name, f in FUNCTIONS.items() if f.arity == 2 and f.symbol}
_UNARY = {f.symbol: name for name, f in FUNCTIONS.items() if f.arity == 1 and f.symbol}
_REDUCTIONS: tuple[str, ...] = get_args(ReduceOp)


class ParseError(ValueError):
    """Text that is no expression; the message shows the place."""


@dataclass(frozen=True)
class _Literal:
    """A literal whose type is not settled yet."""

    value: bool | int | float


@dataclass(frozen=True)
class _Token:
    text: str
    kind: str  # number, name, let, index, sign, end
    start: int
    end: int
    type: DType | None = None  # behind a name or an index
    result: DType | None = None  # fn.dtype


def parse_expr(text: str, types: Mapping[str, DType] | None = None, *, simplify: bool = False) -> Expr:
    """The expression that `text` is of. `types`: of variables and tensors, where the text does not say.

    What `show` and `spell` print comes back as the very object. With `simplify` what people write is brought into normal form, as
    `call` does. Raises ParseError.
    """
    e, end = parse_prefix(text, 0, types, simplify=simplify)
    if text[end:].strip():
        _Parser(text, end, types or {}, simplify).fail("nothing more was expected")
    return e


def parse_prefix(
    text: str, start: int = 0, types: Mapping[str, DType] | None = None, *, simplify: bool = False
) -> tuple[Expr, int]:
    """The longest expression that begins at `start`, and where it ends: for texts that hold expressions among other things."""
    p = _Parser(text, start, types or {}, simplify)
    return p.typed(p.expression(0)), p.last


class _Parser:
    def __init__(self, text: str, start: int, types: Mapping[str, DType], simplify: bool) -> None:
        self.source = text
        self.types = types
        self.simplify = simplify
        self.named: dict[str, Expr] = {}
        self.last = start  # where the last token taken ends
        self.token = self.read(start)

    # ------------------------------------------------------------------------------------ tokens

    def read(self, at: int) -> _Token:
        m = _TOKEN.match(self.source, at)
        if m is None:
            return _Token("", "end", at, at)
        kind = next(k for k in ("number", "name", "let", "index", "sign") if m[k] is not None)
        found: dict[str | None, DType] = {x: x for x in DTYPES}
        return _Token(m[kind], kind, m.start(kind), m.end(), found.get(m["type"] or m["of"]), found.get(m["result"]))

    def take(self) -> _Token:
        token, self.last = self.token, self.token.end
        self.token = self.read(token.end)
        return token

    def at(self, text: str) -> bool:
        return self.token.kind in ("sign", "name", "index") and self.token.text == text

    def expect(self, text: str) -> _Token:
        if not self.at(text):
            self.fail(f"{text!r} was expected")
        return self.take()

    def fail(self, what: str) -> NoReturn:
        at = self.token.start if self.token.kind != "end" else len(self.source[: self.token.start].rstrip())
        low = max(0, at - 60)
        shown = self.source[low : at + 40].replace("\n", " ")
        raise ParseError(f"{what}, at column {at + 1}:\n  {shown}\n  {' ' * (at - low)}^")

    # ------------------------------------------------------------------------------------ grammar

    def expression(self, level: int) -> Expr | _Literal:
        if self.at("let"):
            return self.let()
        left = self.front()
        compared = False
        while True:
            fn = _BINARY.get(self.token.text) if self.token.kind == "sign" else None
            if fn is None or LEVEL[fn] < level:
                return left
            mine = LEVEL[fn]
            if compared and mine == LEVEL["lt"]:
                self.fail("comparisons are not chained: put brackets")
            compared = mine == LEVEL["lt"]
            self.take()
            left = self.made(fn, (left, self.expression(mine if fn == "pow" else mine + 1)))

    def let(self) -> Expr | _Literal:
        self.take()
        while True:
            name = self.take()
            if name.kind != "let":
                self.fail("a name such as $1 was expected")
            self.expect("=")
            self.named[name.text] = self.typed(self.expression(0))
            if self.at("in"):
                self.take()
                return self.expression(0)
            self.expect(";")

    def front(self) -> Expr | _Literal:
        """An operand with what stands in front of it."""
        token = self.token
        fn = _UNARY.get(token.text) if token.kind == "sign" else None
        if fn is None:
            return self.operand()
        self.take()
        if fn == "neg":
            value = self.number()
            if value is not None:
                literal = _Literal(-value)
                return self.made("neg", (self.power(_Literal(value)),)) if self.at("**") else literal
        return self.made(fn, (self.expression(LEVEL[fn]),))

    def power(self, base: Expr | _Literal) -> Expr | _Literal:
        self.expect("**")
        return self.made("pow", (base, self.expression(LEVEL["pow"])))

    def number(self) -> int | float | None:
        """The literal here, if there is one."""
        token = self.token
        if token.kind == "number":
            self.take()
            return int(token.text) if token.text.isdigit() else float(token.text)
        if token.kind == "name" and token.text in ("inf", "nan"):
            self.take()
            return math.inf if token.text == "inf" else math.nan
        return None

    def operand(self) -> Expr | _Literal:
        value = self.number()
        if value is not None:
            return _Literal(value)
        token = self.take()
        match token.kind:
            case "name" if token.text in ("true", "false"):
                return _Literal(token.text == "true")
            case "name" if self.at("(") and token.text[0] != "`":
                return self.called(token)
            case "name" if self.at("["):
                return self.element(token)
            case "name":
                name = token.text.strip("`")
                return var(name, token.type or self.types.get(name, "i64"))
            case "let":
                if token.text not in self.named:
                    self.back(token, f"{token.text} is not defined")
                return self.named[token.text]
            case "sign" if token.text == "(":
                inside = self.expression(0)
                self.expect(")")
                return inside
            case _:
                self.back(token, "an expression was expected")

    def back(self, token: _Token, what: str) -> NoReturn:
        self.token = token
        self.fail(what)

    def element(self, token: _Token) -> Expr:
        name = token.text.strip("`")
        self.expect("[")
        at: list[Expr] = []
        while not self.at("]"):
            at.append(self.typed(self.expression(0)))
            if not self.at("]"):
                self.expect(",")
        dtype = self.take().type or self.types.get(name)
        if dtype is None:
            self.back(token, f"the type of {name}'s elements is not known: write {name}[…]:f32")
        return load(name, tuple(at), dtype)

    def called(self, token: _Token) -> Expr | _Literal:
        self.expect("(")
        fn = token.text
        if token.result is None and fn in _REDUCTIONS and self.reduces():
            return self.reduction(fn)
        args: list[Expr | _Literal] = []
        while not self.at(")"):
            args.append(self.expression(0))
            if not self.at(")"):
                self.expect(",")
        self.take()
        if fn in DTYPES:
            if len(args) != 1:
                self.back(token, f"{fn}(…) converts one value, {len(args)} are given")
            (x,) = args
            return const(x.value, fn) if isinstance(x, _Literal) else cast(x, fn) if self.simplify else raw("cast", (x,), fn)
        if fn == "cast" and token.result is not None and len(args) == 1:
            return raw("cast", (self.typed(args[0]),), token.result)
        if fn not in FUNCTIONS:
            self.back(token, f"there is no function {fn}")
        if len(args) != FUNCTIONS[fn].arity:
            self.back(token, f"{fn} takes {FUNCTIONS[fn].arity} operands, {len(args)} are given")
        return self.made(fn, tuple(args), token.result)

    def reduces(self) -> bool:
        """Whether the bracket that was opened holds a reduction: a colon before its first comma or its end."""
        depth, at = 0, self.token
        while at.kind != "end":
            if at.text in ("(", "["):
                depth += 1
            elif at.text in (")", "]"):
                depth -= 1
            if depth < 0 or (depth == 0 and at.text == ","):
                return False
            if depth == 0 and at.text == ":":
                return True
            at = self.read(at.end)
        return False

    def reduction(self, op: str) -> Expr:
        name = self.take()
        if name.kind != "name":
            self.back(name, "a reduction is `sum(var < extent: body)`")
        over = var(name.text.strip("`"), name.type or self.types.get(name.text.strip("`"), "i64"))
        self.expect("<")
        extent = self.typed(self.expression(LEVEL["add"]))
        self.expect(":")
        body = self.typed(self.expression(0))
        self.expect(")")
        known: dict[str, ReduceOp] = {x: x for x in get_args(ReduceOp)}
        return reduce(known[op], over, extent, body)

    # ------------------------------------------------------------------------------------ types

    def typed(self, x: Expr | _Literal, among: DType | None = None) -> Expr:
        if not isinstance(x, _Literal):
            return x
        kind = kind_of(x.value)
        return const(x.value, kind if kind == "bool" else taken(kind, among))

    def made(self, fn: str, args: tuple[Expr | _Literal, ...], dtype: DType | None = None) -> Expr:
        beside = args[1:] if fn == "where" else args if len(args) > 1 else ()
        among: DType | None = next((a.dtype for a in beside if not isinstance(a, (_Literal, Const))), None)
        chosen = tuple(self.typed(a, None if fn == "where" and k == 0 else among) for k, a in enumerate(args))
        if self.simplify and dtype is None:
            return call(fn, *chosen)
        operands: list[DType] = [a.dtype for a in chosen]
        return raw(fn, chosen, dtype or FUNCTIONS[fn].result(*operands))

