"""What the readers of single ops share: the graph under construction and PyTorch's rules of promotion.

PyTorch computes a result type from three classes of operands: tensors, tensors of rank 0, and Python numbers; a lower class
changes the result only by its category (bool < integer < float). Halves are computed in f32 and rounded once per op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from aicf.frontends.torch.fx.symbols import DTYPE_OF, Unreadable
from aicf.scalar import (
    Call,
    Const,
    DType,
    Expr,
    Load,
    Reduce,
    Var,
    cast,
    const,
    integer_const,
    is_float,
    is_half,
    is_int,
    promote,
)
from aicf.scalar import round_to as rounded
from aicf.semantic import GraphBuilder, Node, TensorType

Number: TypeAlias = "bool | int | float | Expr | Given"
Operand: TypeAlias = "Node | Number"
Handler: TypeAlias = "Callable[[Context, Args], Node | Sequence[Node | None] | None]"

EXPRESSIONS = (Const, Var, Load, Call, Reduce)
DROPOUT = "dropout is on, and kernels draw no random numbers: put the module into eval mode, or set dropout to 0"
MAX_FLOAT: dict[DType, float] = {"f16": 65504.0, "bf16": 3.3895313892515355e38, "f32": 3.4028234663852886e38,
                                 "f64": 1.7976931348623157e308}  # fmt: skip


@dataclass(frozen=True)
class Given:
    """A Python float that is known only when the graph runs; `node`: its float32 value as a tensor of rank 0."""

    node: Node


class Args:
    """The arguments of one call under the names of its ATen schema, defaults filled in."""

    def __init__(self, values: dict[str, Any], raw: dict[str, Any] | None = None) -> None:
        self._values = values
        self._raw = raw or {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self._values:
            raise AttributeError(name)
        return self._values[name]

    def get(self, name: str, default: Any = None) -> Any:
        value = self._values.get(name)
        return default if value is None else value

    def has(self, name: str) -> bool:
        """Whether the schema has an argument of this name."""
        return name in self._values

    def symbolic(self, name: str) -> Any:
        """The argument as PyTorch has it: a number, a SymInt, or a (fake) tensor."""
        raw = self._raw.get(name)
        return raw.meta.get("val") if isinstance(raw, torch.fx.Node) else raw

    def first(self) -> Any:
        return next(iter(self._values.values()))


class Context:
    """The builder, the op at hand (`fx`) and the type(s) that PyTorch says its result has (`out`). `strict`: composite ops are
    written out as PyTorch computes them also where an operand is NaN or infinite."""

    def __init__(self, builder: GraphBuilder, strict: bool = False) -> None:
        self.b = builder
        self.strict = strict
        self.fx: torch.fx.Node | None = None
        self.out_types: list[TensorType | None] = []

    @property
    def out(self) -> TensorType:
        """The type of the (first) result. Raises Unreadable when it has none."""
        if not self.out_types or self.out_types[0] is None:
            raise Unreadable("the result has no supported type")
        return self.out_types[0]

    # ---------------------------------------------------------------- numbers and promotion

    def number(self, value: Number, dtype: DType) -> Node:
        """A number as a tensor of rank 0."""
        if isinstance(value, Given):
            if dtype == "f64" or not is_float(dtype):
                raise Unreadable(f"a float that is known only when the graph runs is needed in {dtype}")
            return self.b.cast(value.node, dtype)
        if isinstance(value, EXPRESSIONS):
            return self.b.scalar(cast(value, dtype))
        return self.b.scalar(const(value, dtype))

    def operand(self, x: Operand, dtype: DType) -> Node:
        """`x` as a tensor of `dtype`."""
        return self.b.cast(x, dtype) if isinstance(x, Node) else self.number(x, dtype)

    def common(self, *operands: Operand) -> DType:
        """PyTorch's result type of the operands."""
        classes: list[DType | None] = [None, None, None]
        for x in operands:
            rank = 0 if not isinstance(x, Node) else 1 if x.type.rank == 0 else 2
            found = classes[rank]
            classes[rank] = _dtype(x) if found is None else promote(found, _dtype(x))
        result = _combine(classes[2], _combine(classes[1], classes[0]))
        assert result is not None
        return result

    def pointwise(self, fn: str, *operands: Operand, dtype: DType) -> Node:
        """`fn` of the operands converted to `dtype`. Where a number would lose digits in a half, the op is computed in f32."""
        compute = dtype
        if is_half(dtype) and any(_loses_digits(x, dtype) for x in operands):
            compute = "f32"
        result = self.b.op(fn, *(self.operand(x, compute) for x in operands))
        return self.b.cast(result, dtype)

    def arithmetic(self, fn: str, *operands: Operand) -> Node:
        """An arithmetic row in the type that PyTorch's promotion gives."""
        return self.pointwise(fn, *operands, dtype=self.common(*operands))

    def compare(self, fn: str, *operands: Operand) -> Node:
        common = self.common(*operands)
        return self.b.op(fn, *(self.operand(x, common) for x in operands))

    def floating(self, *operands: Operand) -> DType:
        """The result type of a function that gives floats: PyTorch's promotion, integers to the default type."""
        common = self.common(*operands)
        return common if is_float(common) else DTYPE_OF[torch.get_default_dtype()]

    def wide(self, f: Callable[..., Node], *operands: Operand, dtype: DType | None = None) -> Node:
        """`f` of the operands, computed in f32 where `dtype` is a half, rounded once."""
        dtype = dtype or self.floating(*operands)
        compute: DType = "f32" if is_half(dtype) else dtype
        return self.b.cast(f(*(self.operand(x, compute) for x in operands)), dtype)

    # ---------------------------------------------------------------- shapes

    def axis(self, dim: int, rank: int) -> int:
        return dim % max(rank, 1)

    def axes(self, dim: Any, rank: int) -> tuple[int, ...]:
        """A dim argument (None or empty: all) as a tuple of axes."""
        if dim is None or (isinstance(dim, list | tuple) and not dim):
            return tuple(range(rank))
        dims = dim if isinstance(dim, list | tuple) else (dim,)
        return tuple(sorted({self.axis(d, rank) for d in dims}))

    def full(self, value: Operand, type: TensorType) -> Node:
        """`value` everywhere."""
        return self.b.expand(self.operand(value, type.dtype), type.shape)

    def positions(self, length: Expr, axis: int, rank: int) -> Node:
        """0, 1, … along `axis`, of extent 1 along the other axes."""
        return self.b.reshape(self.b.iota(length), tuple(length if k == axis else integer_const(1) for k in range(rank)))


def _dtype(x: Operand) -> DType:
    if isinstance(x, Node):
        return x.type.dtype
    if isinstance(x, bool):
        return "bool"
    kind: DType = "i64" if isinstance(x, int) else x.dtype if isinstance(x, EXPRESSIONS) else "f64"
    return DTYPE_OF[torch.get_default_dtype()] if is_float(kind) else kind


def _combine(higher: DType | None, lower: DType | None) -> DType | None:
    if higher is None or lower is None:
        return higher or lower
    if is_float(higher):
        return higher
    if higher == "bool" or is_float(lower):
        return promote(higher, lower)
    return higher


def _loses_digits(x: Operand, dtype: DType) -> bool:
    if isinstance(x, Node):
        return x.type.rank == 0 and x.type.dtype in ("f32", "f64")
    if isinstance(x, (Given, *EXPRESSIONS)):
        return True
    value = float(x)
    return value == value and float(rounded(value, dtype)) != value


def is_integral(dtype: DType) -> bool:
    return is_int(dtype) or dtype == "bool"
