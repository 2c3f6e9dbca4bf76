"""What is known at one place of the program: loop variables, the extent of each axis there, tensors, and where tiles are."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from aicf.backends.llvm.codegen.layout import Layout, Plan
from aicf.backends.llvm.codegen.target import Target
from aicf.backends.llvm.codegen.text import I64, Function
from aicf.backends.llvm.codegen.values import Value, held, in_tile, tile_bytes
from aicf.kernel import Kernel, LoadTile, Stmt
from aicf.scalar import DType, Expr


class Index(NamedTuple):
    """A position on an axis, relative to its view: element `block * chunk + lane`."""

    block: I64
    lane: I64


@dataclass(frozen=True)
class View:
    """The part of an axis that is seen: `base` chunks into the tile, `length` elements of which the first `valid` exist."""

    base: I64
    length: int
    valid: I64


@dataclass(frozen=True)
class TensorRef:
    """A tensor parameter at run time: address, element strides, extents."""

    base: str
    strides: tuple[I64, ...]
    dtype: DType
    unit: int | None
    shape: tuple[Expr, ...]


@dataclass(frozen=True)
class Prefetch:
    """Memory to prefetch: `lines` cache lines from `pointer` on, in each of `rows` rows. `write`: it will be written.
    `when`: only if that holds."""

    pointer: str
    lines: int
    rows: int = 1
    row_bytes: I64 = 0
    write: bool = False
    when: str | None = None


@dataclass(frozen=True)
class Scope:
    """Names in force. Immutable: an inner scope is a changed copy. `at_most_zero` are differences of which that is known,
    `streamed` is the axis of the innermost stream; `loads` are the loads of the tiles that are read in place, `prefetches` what a
    statement prefetches, by its id. `item` are the statements of the work item, `upcoming` the loop variables of the one
    that this thread is likely to take next; `following` are the loop variables and the stream's origin of the stream's next tile,
    which is the next item's first one if `last` holds."""

    fn: Function
    kernel: Kernel
    plan: Plan
    target: Target
    buffer: str
    values: dict[str, Value]
    views: dict[str, View]
    tensors: dict[str, TensorRef]
    unbounded: frozenset[str] = field(default=frozenset())
    at_most_zero: frozenset[Expr] = field(default=frozenset())
    streamed: str | None = None
    loads: dict[str, LoadTile] = field(default_factory=dict[str, LoadTile])
    prefetches: dict[int, tuple[Prefetch, ...]] = field(default_factory=dict[int, tuple[Prefetch, ...]])
    item: tuple[Stmt, ...] = ()
    upcoming: dict[str, Value] = field(default_factory=dict[str, Value])
    following: dict[str, Value] = field(default_factory=dict[str, Value])
    last: str | None = None

    def bind(self, name: str, value: Value) -> Scope:
        return self.then({name: value})

    def see(self, axis: str, view: View) -> Scope:
        return replace(self, views={**self.views, axis: view})

    def then(self, values: dict[str, Value]) -> Scope:
        return replace(self, values={**self.values, **values})

    def vector_type(self, dtype: DType) -> str:
        """The LLVM type of a vector of `dtype`."""
        return f"<{self.target.lanes} x {held(dtype)}>"

    def origin(self, axis: str) -> I64:
        """The global position of the tile's first element."""
        value = self.values.get(axis + "0")
        return 0 if value is None else value.number

    def start(self, axis: str) -> I64:
        """The global position of the view's first element."""
        base = self.fn.mul(self.views[axis].base, self.plan.shapes[axis].chunk)
        return self.fn.add(self.origin(axis), base)

    def element(self, axis: str, at: Index) -> I64:
        """`at` as an element number within the view."""
        return self.fn.add(self.fn.mul(at.block, self.plan.shapes[axis].chunk), at.lane)

    def address(self, layout: Layout, where: dict[str, Index]) -> str:
        """Pointer to the element of a tile at `where` (all axes of the tile)."""
        fn = self.fn
        known, moving = 0, []
        for axis, stride in layout.stride.items():
            block = where[axis].block
            if axis not in layout.local:
                block = fn.add(block, self.views[axis].base)
            scale = stride if axis == layout.vector else stride * layout.shape[axis].chunk
            lane = 1 if axis == layout.vector else stride
            for part in (fn.mul(block, scale), fn.mul(where[axis].lane, lane)):
                if isinstance(part, int):
                    known += part
                else:
                    moving.append(part)
        total: I64 = 0
        for part in moving:
            total = fn.add(total, part)
        pointer = fn.pointer(self.buffer, total, in_tile(layout.dtype))
        return fn.pointer(pointer, layout.offset + known * tile_bytes(layout.dtype), "i8")
