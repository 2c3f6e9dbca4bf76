"""LLVM IR as text: a function under construction, with constants folded in address arithmetic.

Scalar i64 operands are Python integers while they are known and SSA names (`%12`) once they are not, so strides inside tiles
end up as immediate displacements without an optimiser having to find them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

I64: TypeAlias = "int | str"


def float_text(value: float, kind: str = "float") -> str:
    """A literal of type `kind`: LLVM writes floats as the hexadecimal of the double of equal value."""
    if kind == "float":
        value = struct.unpack("<f", struct.pack("<f", value))[0] if abs(value) <= 3.4028235677973366e38 else value
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def bits_of(value: float) -> int:
    """The bits of the nearest f32."""
    return struct.unpack("<I", struct.pack("<f", value))[0]


@dataclass
class Module:
    """Functions, declarations and the target that they are for. Internal functions are made once per key. `lookup`: see
    `Target.lookup`."""

    width: int
    registers: int
    lookup: str | None = None
    functions: list[Function] = field(default_factory=list)
    declared: dict[str, str] = field(default_factory=dict)
    made: dict[tuple[object, ...], str] = field(default_factory=dict)

    def declare(self, name: str, signature: str) -> str:
        """Declare an external function; `signature` is `ret (args)`."""
        result, arguments = signature.split(" (", 1)
        self.declared[name] = f"declare {result} @{name}({arguments}"
        return name

    def text(self, triple: str, header: tuple[str, ...] = ()) -> str:
        out = [f"; {line}" for line in header]
        out += [f'target triple = "{triple}"', ""]
        out += [self.declared[n] for n in sorted(self.declared)]
        for function in self.functions:
            out += ["", function.text()]
        return "\n".join(out) + "\n"


class Function:
    """One function being written: straight-line appends, structured loops and branches."""

    def __init__(self, module: Module, name: str, params: str, result: str = "void", *, internal: bool = False,
                 fast: bool = False, inline: bool | None = None, group: int = 0) -> None:  # fmt: skip
        """`fast`: internal, and called with `fastcc`. `group`: the attributes that it has (see `module.attributes`)."""
        self.module = module
        self.name = name
        hint = {None: "", True: "alwaysinline ", False: "noinline "}[inline]
        linkage = "internal fastcc " if fast else "internal " if internal else ""
        self.head = f"define {linkage}{result} @{name}({params}) {hint}nounwind #{group} {{"
        self.lines: list[str] = []
        self.allocas: list[str] = []
        self.block = "entry"
        self._count = 0
        module.functions.append(self)

    def text(self) -> str:
        return "\n".join([self.head, "entry:", *self.allocas, *self.lines, "}"])

    # ---------------------------------------------------------------- lines

    def name_of(self, stem: str = "v") -> str:
        self._count += 1
        return f"%{stem}{self._count}"

    def op(self, text: str) -> str:
        """Append `name = text`; the new name."""
        name = self.name_of()
        self.lines.append(f"  {name} = {text}")
        return name

    def do(self, text: str) -> None:
        self.lines.append("  " + text)

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")
        self.block = name

    def new_label(self, stem: str) -> str:
        self._count += 1
        return f"{stem}{self._count}"

    def jump(self, target: str) -> None:
        self.do(f"br label %{target}")

    def alloca(self, kind: str) -> str:
        name = self.name_of("slot")
        self.allocas.append(f"  {name} = alloca {kind}, align 64")
        return name

    # ---------------------------------------------------------------- i64 arithmetic

    def add(self, a: I64, b: I64) -> I64:
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        if a == 0:
            return b
        return a if b == 0 else self.op(f"add i64 {a}, {b}")

    def sub(self, a: I64, b: I64) -> I64:
        if isinstance(a, int) and isinstance(b, int):
            return a - b
        return a if b == 0 else self.op(f"sub i64 {a}, {b}")

    def mul(self, a: I64, b: I64) -> I64:
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        if a == 0 or b == 0:
            return 0
        if a == 1:
            return b
        return a if b == 1 else self.op(f"mul i64 {a}, {b}")

    def minimum(self, a: I64, b: I64) -> I64:
        if isinstance(a, int) and isinstance(b, int):
            return min(a, b)
        return self.op(f"select i1 {self.compare('slt', a, b)}, i64 {a}, i64 {b}")

    def maximum(self, a: I64, b: I64) -> I64:
        if isinstance(a, int) and isinstance(b, int):
            return max(a, b)
        return self.op(f"select i1 {self.compare('sgt', a, b)}, i64 {a}, i64 {b}")

    def compare(self, how: str, a: I64, b: I64) -> str:
        return self.op(f"icmp {how} i64 {a}, {b}")

    def ceil_div(self, a: I64, b: int) -> I64:
        """ceil(a / b) for a >= 0."""
        if isinstance(a, int):
            return -(-a // b)
        return a if b == 1 else self.op(f"udiv i64 {self.add(a, b - 1)}, {b}")

    def pointer(self, base: str, offset: I64, kind: str) -> str:
        """`base` plus `offset` elements of type `kind`."""
        return base if offset == 0 else self.op(f"getelementptr {kind}, ptr {base}, i64 {offset}")

    def prefetch(self, pointer: str, *, nearness: int, write: bool = False) -> None:
        """Ask for the cache line at `pointer`: into the first cache (`nearness` 3) or the second (2). Any address is harmless."""
        self.module.declare("llvm.prefetch.p0", "void (ptr, i32 immarg, i32 immarg, i32 immarg)")
        self.do(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 {int(write)}, i32 {nearness}, i32 1)")

    # ---------------------------------------------------------------- control

    def barrier(self) -> None:
        """Keep what is before from being mixed with what is after. It is no instruction, but an order for the code generator,
        which else starts all independent vectors at once and has no registers left for them."""
        self.do('fence syncscope("singlethread") acq_rel')

    @contextmanager
    def loop(self, start: I64, stop: I64, step: I64 = 1) -> Iterator[I64]:
        """for iv in range(start, stop, step); a single known iteration is not a loop."""
        if isinstance(start, int) and isinstance(stop, int) and isinstance(step, int) and start < stop <= start + step:
            yield start
            return
        head, body, done = self.new_label("loop"), self.new_label("body"), self.new_label("done")
        before = self.block
        self.jump(head)
        self.label(head)
        iv, at = self.name_of("i"), len(self.lines)
        self.lines.append("")
        inside = self.compare("slt", iv, stop)
        self.do(f"br i1 {inside}, label %{body}, label %{done}")
        self.label(body)
        yield iv
        following = self.op(f"add nsw i64 {iv}, {step}")
        latch = self.block
        self.jump(head)
        self.lines[at] = f"  {iv} = phi i64 [ {start}, %{before} ], [ {following}, %{latch} ]"
        self.label(done)

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """if condition: …"""
        then, done = self.new_label("then"), self.new_label("fi")
        self.do(f"br i1 {condition}, label %{then}, label %{done}")
        self.label(then)
        yield
        self.jump(done)
        self.label(done)
