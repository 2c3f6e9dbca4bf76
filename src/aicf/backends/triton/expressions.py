"""Scalar expressions of Kernel IR over tile axes, as Triton text.

    where(i >= j, s / 8.0, -inf)   ->   tl.where(i[:, None] >= j[None, :], s / 8.0, float("-inf"))

Every subexpression has only the axes that it depends on and gets the others where it meets them. Halves are held in f32: what the
expression rounds to a half is rounded. Shared subexpressions and loads become variables of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from aicf.backends.triton.functions import apply
from aicf.backends.triton.text import TYPE, Value, Writer, grouped, safe
from aicf.kernel import TensorParam
from aicf.scalar import Call, Const, DType, Expr, Load, Reduce, Var, children, is_float, is_half, is_int, walk


@dataclass
class Names:
    """What expressions see: texts of scalar variables, tiles and positions with their axes, parameters."""

    tensors: dict[str, TensorParam]
    scalars: dict[str, str] = field(default_factory=dict[str, str])
    tiles: dict[str, tuple[Value, DType]] = field(default_factory=dict[str, tuple[Value, DType]])
    positions: set[str] = field(default_factory=set[str])
    guard: str = ""  # a scalar condition without which nothing may be loaded
    order: tuple[str, ...] = ()  # all axes, the order in which subexpressions keep theirs


class Expressions:
    """Writes expressions. `mask` gives the condition under which the lanes of some axes exist, as a value, or None."""

    def __init__(
        self, names: Names, writer: Writer, mask: Callable[[tuple[str, ...]], Value | None], *, interpreted: bool
    ) -> None:  # fmt: skip
        self.names, self.writer, self.mask, self.interpreted = names, writer, mask, interpreted
        self.helpers: set[str] = set()
        self.used: set[str] = set()  # parameters: tensors, strides, sizes and scalars
        self.early: dict[Expr, Value] = {}  # loads that were made at the start of a loop's body
        self.count = 0

    # ------------------------------------------------------------------------------------------ names

    def fresh(self) -> str:
        self.count += 1
        return f"x{self.count}"

    def use(self, name: str) -> str:
        self.used.add(name)
        return name

    # ------------------------------------------------------------------------------------------ values

    def value(self, e: Expr, order: tuple[str, ...]) -> Value:
        """`e` as a value whose axes are a part of `order`, in that order."""
        uses: dict[Expr, int] = {}
        for node in walk(e):
            for c in children(node):
                uses[c] = uses.get(c, 0) + 1
        done: dict[Expr, Value] = {}
        for node in walk(e):
            if node in self.early:
                done[node] = self.early[node]
                continue
            made = self._one(node, done, order)
            shared = uses.get(node, 0) > 1 and isinstance(node, Call) and not self._trivial(node)
            if (isinstance(node, Load) and (node is not e or not order)) or shared:
                made = self.named(made)
            done[node] = made
        return done[e]

    def named(self, v: Value) -> Value:
        """A variable that holds `v`."""
        name = self.fresh()
        self.writer.put(f"{name} = {v.text}")
        return Value(name, v.axes)

    def scalar(self, e: Expr) -> str:
        """`e`, which has no axes, as text."""
        return self.value(e, ()).text

    @staticmethod
    def _trivial(node: Call) -> bool:
        return node.fn == "cast" and is_half(node.args[0].dtype) and node.dtype == "f32"

    def _one(self, node: Expr, done: dict[Expr, Value], order: tuple[str, ...]) -> Value:
        match node:
            case Const():
                return Value(literal(node))
            case Var():
                return self._var(node)
            case Load():
                return self.load(node.tensor, [done[x] for x in node.index], order)
            case Call(fn="cast"):
                return self._cast(node, done[node.args[0]])
            case Call():
                return self._call(node, [done[x] for x in node.args], order)
            case Reduce():
                raise ValueError("a Reduce inside a tile expression; Kernel IR has statements for it")

    def _var(self, node: Var) -> Value:
        if node.name in self.names.tiles:
            value, held = self.names.tiles[node.name]
            return Value(f"{value.atom}.to(tl.float32)", value.axes) if is_half(held) else value
        if node.name in self.names.positions:
            return Value(safe(node.name), (node.name,))
        if node.name in self.names.scalars:
            return Value(self.names.scalars[node.name])
        return Value(self.use(safe(node.name)))

    def _call(self, node: Call, args: list[Value], order: tuple[str, ...]) -> Value:
        axes = tuple(a for a in order if any(a in v.axes for v in args))
        texts = [v.over(axes) for v in args]
        if self.interpreted and axes and node.fn in ("and", "or", "xor"):
            # The interpreter keeps a comparison of two scalars in the scalars' type, which has no such operation.
            texts = [t if v.axes else f"tl.where({t}, True, False)" for t, v in zip(texts, args, strict=True)]
        nonnegative = node.fn in ("floordiv", "mod") and all(_nonnegative(a) for a in node.args)
        text, helpers = apply(node.fn, texts, node.dtype, node.args[0].dtype, nonnegative=nonnegative)
        self.helpers |= set(helpers)
        if is_half(node.dtype):
            text = self.rounded(text, node.dtype)
        return Value(text, axes)

    def rounded(self, text: str, dtype: DType) -> str:
        """An f32 text rounded to a half and held in f32 again."""
        if dtype == "bf16" and self.interpreted:
            self.helpers.add("as_bf16")
            return f"as_bf16({text})"
        return f"{grouped(text)}.to({TYPE[dtype]}).to(tl.float32)"

    def _cast(self, node: Call, arg: Value) -> Value:
        source, target = node.args[0].dtype, node.dtype
        held = "f32" if is_half(source) else source
        text = arg.text
        if target == "bool":
            return Value(f"{arg.atom} != 0", arg.axes)
        if is_half(target):
            if held != "f32":
                text = self.convert(arg, "f32")
            return Value(self.rounded(text, target), arg.axes)
        if target == held or (is_int(source) and target == "i64" and not any(isinstance(x, Load) for x in walk(node))):
            return arg
        return Value(self.convert(arg, target), arg.axes)

    def convert(self, v: Value, dtype: DType) -> str:
        """A value as another type, as text."""
        return f"{v.atom}.to({TYPE[dtype]})" if v.axes else f"tl.cast({v.text}, {TYPE[dtype]})"

    # ------------------------------------------------------------------------------------------ memory

    def pointer(self, tensor: str, at: Sequence[Value], axes: tuple[str, ...]) -> Value:
        """The address of `tensor[at]`, scalar parts first. Its axes are those that the indices have."""
        param = self.names.tensors[tensor]
        scalars: list[str] = []
        tiles: list[tuple[str, tuple[str, ...]]] = []
        for k, v in enumerate(at):
            if v.text == "0":
                continue
            text = v.text
            if param.unit != k:
                text = f"{grouped(v.text)} * {self.use(f'{safe(tensor)}_stride_{k}')}"
                if v.axes:
                    tiles.append((f"({text})", v.axes))
                    continue
            if v.axes:
                tiles.append((grouped(text), v.axes))
            else:
                scalars.append(text)
        have = tuple(a for a in axes if any(a in own for _, own in tiles))
        spread = [Value(text, own).over(have) for text, own in tiles]
        return Value(" + ".join([self.use(safe(tensor)), *scalars, *spread]), have)

    def load(self, tensor: str, at: Sequence[Value], axes: tuple[str, ...]) -> Value:
        """One element per lane: nothing is read for lanes that do not exist. Halves come as f32."""
        pointer = self.pointer(tensor, at, axes)
        mask = self.mask(pointer.axes)
        guards = [g for g in (self.names.guard, mask.over(pointer.axes) if mask is not None else "") if g]
        extra = ""
        if guards:
            text = guards[0] if len(guards) == 1 else " & ".join(f"({g})" for g in guards)
            extra = f", mask={text}, other=0" + (".0" if is_float(self.names.tensors[tensor].dtype) else "")
        text = f"tl.load({pointer.text}{extra})"
        return Value(f"{text}.to(tl.float32)" if is_half(self.names.tensors[tensor].dtype) else text, pointer.axes)


def literal(c: Const) -> str:
    """A constant as Python text."""
    if isinstance(c.value, bool):
        return str(c.value)
    if isinstance(c.value, float):
        if math.isnan(c.value) or math.isinf(c.value):
            return f'float("{c.value}")'
        return repr(c.value) if c.dtype != "f32" else _shortest(c.value)
    return str(c.value)


def _shortest(value: float) -> str:
    """The shortest text of an f32 value that reads back as the same f32 value."""
    text = f"{value:.9g}"
    return text if any(x in text for x in ".en") else text + ".0"


def _nonnegative(e: Expr) -> bool:
    """Known to be >= 0: positions, origins, sizes, and what sums, products, quotients and remainders make of them."""
    match e:
        case Const():
            return e.value >= 0
        case Var():
            return e.dtype == "i64"
        case Call(fn="add" | "mul" | "floordiv" | "min" | "max"):
            return all(_nonnegative(a) for a in e.args)
        case Call(fn="mod"):
            return _nonnegative(e.args[1])
        case Call(fn="cast"):
            return _nonnegative(e.args[0]) and e.args[0].dtype == "i64"
        case _:
            return False
