"""Element types, their order of promotion and their NumPy counterparts.

NumPy has no bfloat16: arrays of it are held as float32 whose values are bfloat16 numbers (see `round_to`).
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np

DType = Literal["bool", "u8", "i8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64"]
DTYPES: tuple[DType, ...] = get_args(DType)

_NUMPY: dict[DType, Any] = {
    "bool": np.bool_, "u8": np.uint8, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
    "f16": np.float16, "bf16": np.float32, "f32": np.float32, "f64": np.float64,
}  # fmt: skip
BYTES: dict[DType, int] = {
    "bool": 1, "u8": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "f16": 2, "bf16": 2, "f32": 4, "f64": 8,
}  # fmt: skip
ABSORBED = 104.0  # exp(-104) is 0 in f32: a term that far below another adds nothing (docs/theory.md, 6.3)
FINFO_MIN: dict[DType, float] = {
    "f16": -65504.0,
    "bf16": -3.3895313892515355e38,
    "f32": -3.4028234663852886e38,
    "f64": -1.7976931348623157e308,
}


def numpy_dtype(dtype: DType) -> Any:
    """The NumPy type that holds `dtype` (bf16: float32)."""
    return _NUMPY[dtype]


def is_float(dtype: DType) -> bool:
    return dtype in ("f16", "bf16", "f32", "f64")


def is_half(dtype: DType) -> bool:
    return dtype in ("f16", "bf16")


def is_int(dtype: DType) -> bool:
    return dtype in ("u8", "i8", "i16", "i32", "i64")


def wrapped(value: int, dtype: DType) -> int:
    """`value` as an integer of `dtype` holds it: the lowest bits, in two's complement."""
    width = 8 * BYTES[dtype]
    low = value & ((1 << width) - 1)
    return low - (1 << width) if dtype != "u8" and low >> (width - 1) else low


def promote(a: DType, b: DType) -> DType:
    """The common type of two operands, by category first and width second, as PyTorch and NumPy tensors promote."""
    if a == b:
        return a
    if {a, b} == {"f16", "bf16"}:
        return "f32"
    if {a, b} == {"u8", "i8"}:
        return "i16"
    return a if DTYPES.index(a) > DTYPES.index(b) else b


def round_to(array: Any, dtype: DType) -> Any:
    """`array` converted to `dtype`, rounding to nearest even (bf16 too, kept in float32)."""
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype != "bf16":
            return np.asarray(array).astype(_NUMPY[dtype])
        single = np.asarray(array, dtype=np.float32)
        bits = single.view(np.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
        return np.where(np.isnan(single), single, rounded.view(np.float32))
