"""Reads and masks at one place of an element-wise loop nest: outer axes at one index, the vector axis at one vector of lanes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from aicf.backends.llvm.codegen.expressions import Evaluator, bf16_bits, splat
from aicf.backends.llvm.codegen.layout import Layout
from aicf.backends.llvm.codegen.partial_vectors import first_elements
from aicf.backends.llvm.codegen.scope import Index, Scope, TensorRef
from aicf.backends.llvm.codegen.text import I64, Function
from aicf.backends.llvm.codegen.values import Value, held, in_tile, stored
from aicf.kernel import Tile
from aicf.scalar import BYTES, Call, Const, DType, Expr, Load, Var, affine, call, index

LINE = 64  # bytes of a cache line


class Slot(NamedTuple):
    """Vector number `word` of block `block` of the vector axis."""

    block: I64
    word: int


@dataclass
class LaneAccess:
    """`where` holds the outer axes; `axis` and `slot` the vector axis (None: everything is scalar). `cache` holds the vectors of
    tiles that are still in registers."""

    scope: Scope
    where: dict[str, Index]
    axis: str | None
    slot: Slot
    tiles: dict[str, Tile]
    cache: dict[str, Value] = field(default_factory=dict)
    _mask: str | bool | None = False

    def evaluator(self) -> Evaluator:
        made = Evaluator(self.scope.fn, self.lookup, self.load, self.scope.unbounded)
        made.at_most_zero = self.scope.at_most_zero
        return made

    # ---------------------------------------------------------------- lanes

    @property
    def _shape(self):
        assert self.axis is not None
        return self.scope.plan.shapes[self.axis]

    def first(self) -> I64:
        """Element number, within the view, of the slot's first lane."""
        assert self.axis is not None
        fn = self.scope.fn
        return fn.add(fn.mul(self.slot.block, self._shape.chunk), self.slot.word * self.scope.target.lanes)

    def existing(self) -> I64:
        """How many lanes of the slot exist (may be below 0 or above the number of lanes)."""
        assert self.axis is not None
        fn, lanes = self.scope.fn, self.scope.target.lanes
        left = fn.sub(self.scope.views[self.axis].valid, self.first())
        if (self.slot.word + 1) * lanes > self._shape.chunk:
            left = fn.minimum(left, self._shape.chunk - self.slot.word * lanes)
        return left

    def full(self) -> bool:
        """Whether all lanes are known to exist."""
        if self.axis is None:
            return True
        lanes = self.scope.target.lanes
        view = self.scope.views[self.axis]
        if (self.slot.word + 1) * lanes > self._shape.chunk or not isinstance(view.valid, int):
            return False
        first = self.first()
        if isinstance(first, int):
            return first + lanes <= view.valid
        return view.valid % self._shape.chunk == 0

    def mask(self) -> str | None:
        """The vector of i1 that says which lanes exist, None when all do."""
        if self._mask is False:
            self._mask = None if self.full() else self._lanes_below(self.existing())
        assert not isinstance(self._mask, bool)
        return self._mask

    def _lanes_below(self, count: I64) -> str:
        fn, lanes = self.scope.fn, self.scope.target.lanes
        if isinstance(count, int):
            return "<" + ", ".join(f"i1 {'true' if i < count else 'false'}" for i in range(lanes)) + ">"
        narrow = splat(fn, fn.op(f"trunc i64 {count} to i32"), "i32", lanes)
        numbers = "<" + ", ".join(f"i32 {i}" for i in range(lanes)) + ">"
        return fn.op(f"icmp slt <{lanes} x i32> {numbers}, {narrow}")

    def positions(self) -> Value:
        """Global positions of the lanes; a lane that does not exist repeats the last one that does, so it may be used to read."""
        assert self.axis is not None
        fn, lanes = self.scope.fn, self.scope.target.lanes
        start = fn.add(self.scope.start(self.axis), self.first())
        kind = f"<{lanes} x i64>"
        numbers = "<" + ", ".join(f"i64 {i}" for i in range(lanes)) + ">"
        if not self.full():
            last = fn.maximum(fn.sub(self.existing(), 1), 0)
            limit = splat(fn, str(last), "i64", lanes)
            below = fn.op(f"icmp slt {kind} {numbers}, {limit}")
            numbers = fn.op(f"select <{lanes} x i1> {below}, {kind} {numbers}, {kind} {limit}")
            # A slot of which no lane exists stands at the view's last element.
            start = fn.minimum(start, fn.sub(fn.add(self.scope.start(self.axis), self.scope.views[self.axis].valid), 1))
        text = fn.op(f"add {kind} {splat(fn, str(start), 'i64', lanes)}, {numbers}")
        return Value(text, "i64", True)

    # ---------------------------------------------------------------- variables

    def lookup(self, v: Var) -> Value:
        if v.name in self.tiles:
            return self.tile(self.tiles[v.name])
        if v.name in self.scope.values:
            return self.scope.values[v.name]
        if self.axis == v.name:
            return self.positions()
        if v.name in self.where:
            element = self.scope.element(v.name, self.where[v.name])
            return Value(str(self.scope.fn.add(self.scope.start(v.name), element)), "i64")
        raise KeyError(
            f"{v.name} is neither a tile, a loop variable, a size, a scalar nor an axis of this statement "
            f"of kernel {self.scope.kernel.name}"
        )

    def tile(self, tile: Tile) -> Value:
        """A tile's element (or vector of elements) here."""
        if tile.name in self.cache:
            return self.cache[tile.name]
        layout = self.scope.plan.of(tile)
        fn, lanes = self.scope.fn, self.scope.target.lanes
        kind = in_tile(layout.dtype)
        if self.axis is not None and self.axis in tile.axes:
            if layout.vector == self.axis:
                pointer = self.scope.address(layout, self.place(layout, self.slot.word * lanes))
                text = fn.op(f"load <{lanes} x {kind}>, ptr {pointer}, align {_align(kind, lanes)}")
            else:
                text = f"<{lanes} x {kind}> poison".split("> ")[1]
                for lane in range(lanes):
                    at = min(self.slot.word * lanes + lane, self._shape.chunk - 1)
                    one = fn.op(f"load {kind}, ptr {self.scope.address(layout, self.place(layout, at))}")
                    text = fn.op(f"insertelement <{lanes} x {kind}> {text}, {kind} {one}, i64 {lane}")
            vector = True
        else:
            text = fn.op(f"load {kind}, ptr {self.scope.address(layout, self.place(layout, 0))}")
            vector = False
        if tile.dtype == "bool":
            zero = "zeroinitializer" if vector else "0"
            text = fn.op(f"icmp ne {f'<{lanes} x i8>' if vector else 'i8'} {text}, {zero}")
        return Value(text, tile.dtype, vector)

    def place(self, layout: Layout, lane: int) -> dict[str, Index]:
        """The indices of a tile here, `lane` on the vector axis."""
        return {a: Index(self.slot.block, lane) if a == self.axis else self.where[a] for a in layout.stride}

    # ---------------------------------------------------------------- tensors

    def load(self, e: Load, at: Evaluator) -> Value:
        """Elements of a tensor: one, a contiguous vector, a strided vector or a gather, as the index allows."""
        tensor = self.scope.tensors[e.tensor]
        span = self.span(tensor, e.index, at)
        if isinstance(span, Spread):
            return self._gather(tensor, span.offsets(self))
        if span.step == 0:
            return read_scalar(self.scope, tensor, span.offset)
        mask = self.mask()
        if span.step == 1 and (mask is None or tensor.dtype in ("f32", "f64", "i32", "i64")):
            return self._contiguous(tensor, span.offset, mask)
        if mask is None:
            return self._gather(tensor, self.strided(span))
        fn, lanes, kind = self.scope.fn, self.scope.target.lanes, stored(tensor.dtype)
        arguments = f"ptr {fn.pointer(tensor.base, span.offset, kind)}, i64 {span.step}, i64 {self.existing()}"
        text = fn.op(f"call fastcc <{lanes} x {kind}> @{first_elements(fn.module, kind, lanes)}({arguments})")
        return from_stored(self.scope, text, tensor.dtype, True)

    def span(self, tensor: TensorRef, index_: tuple[Expr, ...], at: Evaluator) -> Span | Spread:
        """How the element offset of `index_` runs along the lanes."""
        fn = self.scope.fn
        position = None if self.axis is None else index(self.axis)
        parts = [None if position is None else affine(e, (position,)) for e in index_]
        offset: I64 = 0
        step: I64 = 0
        uneven: list[tuple[str, I64]] = []
        for e, part, stride in zip(index_, parts, tensor.strides, strict=True):
            if part is not None:
                (coefficient,), rest = part
                low, slope = at.value(rest), at.value(coefficient)
                if not low.vector and not slope.vector:
                    slope64 = at.i64(coefficient)
                    step = fn.add(step, fn.mul(slope64, stride))
                    offset = fn.add(offset, fn.mul(at.i64(rest), stride))
                    continue
            whole = at.convert(at.value(e), "i64")
            if whole.vector:
                uneven.append((whole.text, stride))
            else:
                offset = fn.add(offset, fn.mul(whole.number, stride))
        if self.axis is not None:
            # `step` counts from the axis' position 0: move to the first lane.
            start = fn.add(self.scope.start(self.axis), self.first())
            offset = fn.add(offset, fn.mul(step, start))
        return Spread(offset, step, tuple(uneven)) if uneven else Span(offset, step)

    def _contiguous(self, tensor: TensorRef, offset: I64, mask: str | None) -> Value:
        fn, lanes, kind = self.scope.fn, self.scope.target.lanes, stored(tensor.dtype)
        pointer = fn.pointer(tensor.base, offset, kind)
        wide = f"<{lanes} x {kind}>"
        if mask is None:
            text = fn.op(f"load {wide}, ptr {pointer}, align {_align(kind, 1)}")
        else:
            suffix = f"v{lanes}{ {'float': 'f32', 'double': 'f64', 'half': 'f16'}.get(kind, kind) }".replace(" ", "")
            name = f"llvm.masked.load.{suffix}.p0"
            fn.module.declare(name, f"{wide} (ptr, i32 immarg, <{lanes} x i1>, {wide})")
            text = fn.op(
                f"call {wide} @{name}(ptr {pointer}, i32 {_align(kind, 1)}, <{lanes} x i1> {mask}, {wide} zeroinitializer)"
            )
        return from_stored(self.scope, text, tensor.dtype, True)

    def clamped(self, lane: int) -> I64:
        """`lane`, or the last lane that exists."""
        if self.full():
            return lane
        fn = self.scope.fn
        return fn.minimum(lane, fn.maximum(fn.sub(self.existing(), 1), 0))

    def strided(self, span: Span) -> list[I64]:
        fn = self.scope.fn
        if self.full():
            return [fn.add(span.offset, fn.mul(span.step, lane)) for lane in range(self.scope.target.lanes)]
        # Move a slot without any lane back to the view's last element, as `positions` does.
        left = self.existing()
        back = fn.minimum(fn.sub(left, 1), 0)
        start = fn.add(span.offset, fn.mul(span.step, back))
        return [fn.add(start, fn.mul(span.step, self.clamped(lane))) for lane in range(self.scope.target.lanes)]

    def _gather(self, tensor: TensorRef, offsets: list[I64]) -> Value:
        fn, lanes, kind = self.scope.fn, self.scope.target.lanes, stored(tensor.dtype)
        text = "poison"
        for lane, offset in enumerate(offsets):
            one = fn.op(f"load {kind}, ptr {fn.pointer(tensor.base, offset, kind)}")
            text = fn.op(f"insertelement <{lanes} x {kind}> {text}, {kind} {one}, i64 {lane}")
        return from_stored(self.scope, text, tensor.dtype, True)


@dataclass
class LaneGroup:
    """Several vectors of the same row as one value, as wide as all of them: what each statement does is spread over independent
    vectors, which hides the latency of long chains such as exp."""

    parts: list[LaneAccess]

    def evaluator(self) -> Evaluator:
        scope = self.parts[0].scope
        lanes = scope.target.lanes * len(self.parts)
        made = Evaluator(scope.fn, self.lookup, self.load, scope.unbounded, lanes)
        made.compare = self.compare
        made.at_most_zero = scope.at_most_zero
        return made

    def lookup(self, v: Var) -> Value:
        return self.joined([p.lookup(v) for p in self.parts])

    def load(self, e: Load, at: Evaluator) -> Value:
        parts = []
        known = {x: v for x, v in at.memo.items() if not v.vector}
        for p in self.parts:
            inside = p.evaluator()
            inside.memo.update(known)  # the variables of reductions, and whatever else is the same for all accesses
            parts.append(p.load(e, inside))
            known.update((x, v) for x, v in inside.memo.items() if not v.vector)
        return self.joined(parts)

    def joined(self, parts: list[Value]) -> Value:
        """One wide vector; a scalar stays one."""
        if not parts[0].vector:
            return parts[0]
        scope = self.parts[0].scope
        text = joined(scope.fn, [v.text for v in parts], held(parts[0].dtype), scope.target.lanes)
        return Value(text, parts[0].dtype, True)

    def elements(self) -> list[int] | None:
        """Element numbers, within the view, of all lanes, when they are known; -1 for lanes that no element has."""
        first = [p.first() for p in self.parts]
        lanes, (axis, scope) = self.parts[0].scope.target.lanes, (self.parts[0].axis, self.parts[0].scope)
        if axis is None or not all(isinstance(x, int) for x in first):
            return None
        chunk = scope.plan.shapes[axis].chunk
        return [
            x + lane if p.slot.word * lanes + lane < chunk else -1
            for p, x in zip(self.parts, first, strict=True)
            if isinstance(x, int)
            for lane in range(lanes)
        ]

    def mask(self) -> str | None:
        """The lanes that exist, None when all do."""
        if all(p.full() for p in self.parts):
            return None
        scope, axis = self.parts[0].scope, self.parts[0].axis
        numbers = self.elements()
        if numbers is not None and axis is not None:
            # One comparison of constants with the number of elements that exist.
            valid = scope.views[axis].valid
            texts = [i if i >= 0 else 2**31 - 1 for i in numbers]
            return self._against(texts, "slt", valid)
        masks = [p.mask() for p in self.parts]
        ones = "<" + ", ".join(["i1 true"] * scope.target.lanes) + ">"
        return joined(scope.fn, [m or ones for m in masks], "i1", scope.target.lanes)

    def _against(self, numbers: list[int], how: str, limit: I64) -> str:
        """Constants compared with one number of any size, in i32: the number is brought to their range first."""
        fn = self.parts[0].scope.fn
        near = fn.maximum(fn.minimum(limit, 2**30), -(2**30))
        narrow = str(near) if isinstance(near, int) else fn.op(f"trunc i64 {near} to i32")
        kind = f"<{len(numbers)} x i32>"
        constants = "<" + ", ".join(f"i32 {i}" for i in numbers) + ">"
        return fn.op(f"icmp {how} {kind} {constants}, {splat(fn, narrow, 'i32', len(numbers))}")

    def compare(self, e: Call, at: Evaluator) -> Value | None:
        """A comparison of i64s whose difference is affine in the vector axis, done in i32: `j <= i` is `lane <= i - j0`."""
        axis, scope = self.parts[0].axis, self.parts[0].scope
        numbers = self.elements()
        if axis is None or numbers is None:
            return None
        part = affine(call("sub", *e.args), (index(axis),))
        if part is None or not isinstance(part[0][0], Const):
            return None
        slope, rest = int(part[0][0].value), part[1]
        if slope == 0 or abs(slope) * (max(numbers) + 1) >= 2**30 or at.value(rest).vector:
            return None
        fn = scope.fn
        start = fn.add(at.i64(rest), fn.mul(scope.start(axis), slope))
        how = {"lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge", "eq": "eq", "ne": "ne"}[e.fn]
        text = self._against([slope * max(i, 0) for i in numbers], how, fn.sub(0, start))
        return Value(text, "bool", True)

    def split(self, v: Value) -> list[Value]:
        """The vectors of a wide value, one a point."""
        if not v.vector or len(self.parts) == 1:
            return [v] * len(self.parts)
        scope = self.parts[0].scope
        lanes, kind = scope.target.lanes, held(v.dtype)
        wide = f"<{lanes * len(self.parts)} x {kind}>"
        return [
            Value(
                scope.fn.op(
                    f"shufflevector {wide} {v.text}, {wide} poison, "
                    f"<{lanes} x i32> <{', '.join(f'i32 {i + k * lanes}' for i in range(lanes))}>"
                ),
                v.dtype,
                True,
            )
            for k in range(len(self.parts))
        ]


def joined(fn: Function, parts: list[str], kind: str, lanes: int) -> str:
    """Vectors of `lanes` side by side; their number is a power of two."""
    while len(parts) > 1:
        order = ", ".join(f"i32 {i}" for i in range(2 * lanes))
        old = f"<{lanes} x {kind}>"
        parts = [
            fn.op(f"shufflevector {old} {a}, {old} {b}, <{2 * lanes} x i32> <{order}>")
            for a, b in zip(parts[::2], parts[1::2], strict=True)
        ]
        lanes *= 2
    return parts[0]


class Span(NamedTuple):
    """Element offset of the first lane and the distance between lanes."""

    offset: I64
    step: I64


class Spread(NamedTuple):
    """Offsets that are not affine in the lane: vectors of indices, each with its dimension's stride."""

    offset: I64
    step: I64
    parts: tuple[tuple[str, I64], ...]

    def offsets(self, point: LaneAccess) -> list[I64]:
        fn, lanes = point.scope.fn, point.scope.target.lanes
        base = [self.offset] * lanes if self.step == 0 else point.strided(Span(self.offset, self.step))
        for lane in range(lanes):
            for vector, stride in self.parts:
                one = fn.op(f"extractelement <{lanes} x i64> {vector}, i64 {lane}")
                base[lane] = fn.add(base[lane], fn.mul(one, stride))
        return base


def _align(kind: str, lanes: int) -> int:
    return {"i1": 1, "i8": 1, "i16": 2, "half": 2, "i32": 4, "float": 4, "i64": 8, "double": 8}[kind] * lanes


def read_scalar(scope: Scope, tensor: TensorRef, offset: I64) -> Value:
    """One element of a tensor."""
    kind = stored(tensor.dtype)
    text = scope.fn.op(f"load {kind}, ptr {scope.fn.pointer(tensor.base, offset, kind)}")
    return from_stored(scope, text, tensor.dtype, False)


def from_stored(scope: Scope, text: str, dtype: str, vector: bool) -> Value:
    """A tensor element (or vector) as it is computed with: halves widened, bytes tested."""
    return from_memory(scope.fn, text, dtype, scope.target.lanes if vector else None)


def from_memory(fn: Function, text: str, dtype: str, n: int | None) -> Value:
    """`from_stored`, of a vector of `n` elements or of one."""
    vector = n is not None

    def kind(name: str) -> str:
        return f"<{n} x {name}>" if vector else name

    match dtype:
        case "f16":
            return Value(fn.op(f"fpext {kind('half')} {text} to {kind('float')}"), "f16", vector)
        case "bf16":
            wide = fn.op(f"zext {kind('i16')} {text} to {kind('i32')}")
            sixteen = "<" + ", ".join(["i32 16"] * n) + ">" if n is not None else "16"
            bits = fn.op(f"shl {kind('i32')} {wide}, {sixteen}")
            return Value(fn.op(f"bitcast {kind('i32')} {bits} to {kind('float')}"), "bf16", vector)
        case "bool":
            return Value(fn.op(f"icmp ne {kind('i8')} {text}, {'zeroinitializer' if vector else '0'}"), "bool", vector)
        case _:
            return Value(text, dtype, vector)  # type: ignore[arg-type]


def vector_at(fn: Function, pointer: str, dtype: DType, lanes: int) -> str:
    """A vector of a tensor's elements as they are computed with."""
    text = fn.op(f"load <{lanes} x {stored(dtype)}>, ptr {pointer}, align {BYTES[dtype]}")
    return from_memory(fn, text, dtype, lanes).text


def to_stored(scope: Scope, v: Value, dtype: str, at: Evaluator) -> tuple[str, str]:
    """(text, LLVM type) of a value converted to tensor element type `dtype`."""
    fn, n = scope.fn, scope.target.lanes

    def kind(name: str) -> str:
        return f"<{n} x {name}>" if v.vector else name

    match dtype:
        case "f16":
            single = at.convert(v, "f32").text if held(v.dtype) != "float" else v.text
            return fn.op(f"fptrunc {kind('float')} {single} to {kind('half')}"), kind("half")
        case "bf16":
            single = at.convert(v, "f32").text if held(v.dtype) != "float" else v.text
            high = bf16_bits(fn, single, n if v.vector else None)
            sixteen = "<" + ", ".join(["i32 16"] * n) + ">" if v.vector else "16"
            shifted = fn.op(f"lshr {kind('i32')} {high}, {sixteen}")
            return fn.op(f"trunc {kind('i32')} {shifted} to {kind('i16')}"), kind("i16")
        case "bool":
            return fn.op(f"zext {kind('i1')} {at.convert(v, 'bool').text} to {kind('i8')}"), kind("i8")
        case _:
            converted = at.convert(v, dtype)  # type: ignore[arg-type]
            return converted.text, kind(held(dtype))  # type: ignore[arg-type]
