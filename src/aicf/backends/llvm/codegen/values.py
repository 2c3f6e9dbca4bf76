"""Typed SSA values, scalar or one vector wide, and their LLVM types. Halves are held in f32 everywhere."""

from __future__ import annotations

from typing import NamedTuple

from aicf.backends.llvm.codegen.text import I64
from aicf.scalar import DType, is_float

_HELD: dict[DType, str] = {
    "bool": "i1", "u8": "i8", "i8": "i8", "i16": "i16", "i32": "i32", "i64": "i64",
    "f16": "float", "bf16": "float", "f32": "float", "f64": "double",
}  # fmt: skip
_STORED: dict[DType, str] = {**_HELD, "bool": "i8", "f16": "half", "bf16": "i16"}


class Value(NamedTuple):
    """An operand: its text, element type, and whether it is a vector of the target's lanes."""

    text: str
    dtype: DType
    vector: bool = False

    @property
    def number(self) -> I64:
        """A scalar integer for address arithmetic: the number where it is known, else its name."""
        return self.text if self.text.startswith("%") else int(self.text)


def held(dtype: DType) -> str:
    """The LLVM type in which values of `dtype` are computed."""
    return _HELD[dtype]


def stored(dtype: DType) -> str:
    """The LLVM type of `dtype` in tensors."""
    return _STORED[dtype]


def in_tile(dtype: DType) -> str:
    """The LLVM type of `dtype` in tile buffers: as held, bool as bytes."""
    return "i8" if dtype == "bool" else _HELD[dtype]


def tile_bytes(dtype: DType) -> int:
    return {"i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "float": 4, "double": 8}[held(dtype)]


def held_dtype(dtype: DType) -> DType:
    """The type as which `dtype` is computed: halves as f32."""
    return "f32" if is_float(dtype) and dtype != "f64" else dtype
