"""Lines of generated code, and the texts of expressions over tile axes."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from aicf.backends.triton.helpers import HELPERS, INTERPRETED
from aicf.scalar import DType

TYPE: dict[DType, str] = {
    "bool": "tl.int1", "u8": "tl.uint8", "i8": "tl.int8", "i16": "tl.int16", "i32": "tl.int32", "i64": "tl.int64",
    "f16": "tl.float16", "bf16": "tl.bfloat16", "f32": "tl.float32", "f64": "tl.float64",
}  # fmt: skip
_TAKEN = {*keyword.kwlist, *HELPERS, *INTERPRETED, "tl", "triton", "item", "again", "range", "float"}


def safe(name: str) -> str:
    """An identifier for `name` that means nothing else in generated code."""
    return name + "_" if name in _TAKEN else name


def grouped(text: str) -> str:
    """`text` as an operand: in parentheses when it holds an operator outside of all brackets."""
    depth = 0
    for c in text:
        depth += (c in "([") - (c in ")]")
        if c == " " and depth == 0:
            return f"({text})"
    return f"({text})" if text[:1] in "-~" else text


@dataclass(frozen=True)
class Value:
    """The text of a value and the tile axes that it has, in the order of its dimensions."""

    text: str
    axes: tuple[str, ...] = ()

    @property
    def atom(self) -> str:
        return grouped(self.text)

    def over(self, axes: tuple[str, ...]) -> str:
        """The text with a dimension for each of `axes` (those that it lacks have length 1); scalars stay scalars."""
        if not self.axes or self.axes == axes:
            return self.text
        own = [a for a in axes if a in self.axes]
        text = self.atom
        if tuple(own) != self.axes:
            order = ", ".join(str(self.axes.index(a)) for a in own)
            text = f"tl.trans({self.text})" if len(own) == 2 else f"tl.permute({self.text}, ({order}))"
        if len(own) == len(axes):
            return text
        return f"{text}[{', '.join(':' if a in own else 'None' for a in axes)}]"


@dataclass
class Writer:
    """Indented lines."""

    lines: list[str] = field(default_factory=list[str])
    depth: int = 1

    def put(self, line: str) -> None:
        self.lines.append("    " * self.depth + line if line else "")

    @contextmanager
    def indented(self) -> Iterator[None]:
        self.depth += 1
        yield
        self.depth -= 1

    def drop_unused(self, names: set[str]) -> None:
        """Removes the lines that only define one of `names` where nothing else uses it."""
        text = "\n".join(self.lines)
        for name in sorted(names):
            definition = re.compile(rf"^\s*{re.escape(name)} = ")
            uses = len(re.findall(rf"\b{re.escape(name)}\b", text))
            defined = [k for k, line in enumerate(self.lines) if definition.match(line)]
            if uses == len(defined):
                self.lines = [line for k, line in enumerate(self.lines) if k not in defined]
                text = "\n".join(self.lines)
