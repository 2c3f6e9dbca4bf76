"""Tensor types: an element type and a shape whose dims are integers or expressions of size symbols."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aicf.scalar import Const, DType, Expr, call, integer_const, show, size


@dataclass(frozen=True)
class Location:
    """Where an op comes from: the user's file and line, the function, and the op's own name in the source framework."""

    file: str = ""
    line: int = 0
    function: str = ""
    op: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.file else ""
        return " ".join(x for x in (place, f"in {self.function}" if self.function else "", self.op) if x) or "unknown place"


@dataclass(frozen=True)
class TensorType:
    """`dtype[shape]`; prints as `f32[2, N, 64]`."""

    dtype: DType
    shape: tuple[Expr, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(show(d) for d in self.shape)}]"


def tensor_type(dtype: DType, shape: Iterable[int | Expr]) -> TensorType:
    """A tensor type from integers and expressions."""
    return TensorType(dtype, tuple(size(d) for d in shape))


ONE = integer_const(1)


def is_one(dim: Expr) -> bool:
    return isinstance(dim, Const) and dim.value == 1


def product(dims: Iterable[Expr]) -> Expr:
    """The number of elements of a shape."""
    total: Expr = ONE
    for d in dims:
        total = call("mul", total, d)
    return total


def broadcast(*shapes: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The common shape by NumPy's rule. Raises ValueError naming the two dims that differ."""
    rank = max((len(s) for s in shapes), default=0)
    out: list[Expr] = []
    for k in range(rank):
        dim: Expr = ONE
        for s in shapes:
            at = k - (rank - len(s))
            if at < 0 or is_one(s[at]):
                continue
            if is_one(dim):
                dim = s[at]
            elif dim is not s[at]:
                raise ValueError(f"dims {show(dim)} and {show(s[at])} do not broadcast (axis {k} of {rank})")
        out.append(dim)
    return tuple(out)
