"""The small closed vocabularies of the Memory-Centric IR: where a value lives, what a node does, element type names.

Both enums are strings, so `"load_tile"` and `MCNodeOp.LOAD_TILE` are interchangeable everywhere.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

from aicf.scalar import DType, Expr

Dim: TypeAlias = "int | Expr"
Shape: TypeAlias = "tuple[Dim, ...]"


class Residency(str, Enum):
    """Where a value lives. On a CPU `shared` is a core-private buffer meant to stay in cache, `register` a register block."""

    GLOBAL = "global"
    SHARED = "shared"
    REGISTER = "register"

    def __str__(self) -> str:
        return self.value


class MCNodeOp(str, Enum):
    """What a node does to tiles. The first five are the whole life of a FlashAttention-like tile. In a region that is no
    attention compute_score is called contract_tile, accumulate_output accumulate_state, and update_softmax update_state."""

    LOAD_TILE = "load_tile"
    COMPUTE_SCORE = "compute_score"
    UPDATE_SOFTMAX = "update_softmax"
    ACCUMULATE_OUTPUT = "accumulate_output"
    STORE_TILE = "store_tile"
    INIT_STATE = "init_state"
    UPDATE_STATE = "update_state"
    COMBINE_STATE = "combine_state"
    MAP_TILE = "map_tile"
    CONTRACT_TILE = "contract_tile"
    ACCUMULATE_STATE = "accumulate_state"

    def __str__(self) -> str:
        return self.value


class RegionKind(str, Enum):
    """How much of the execution structure a region has: a meaning, a stream over it, or tiles of that stream."""

    EXECUTION = "execution"
    STREAMING = "streaming"
    TILE = "tile"

    def __str__(self) -> str:
        return self.value


_TO_MC: dict[DType, str] = {
    "bool": "bool", "u8": "uint8", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
    "f16": "fp16", "bf16": "bf16", "f32": "fp32", "f64": "fp64",
}  # fmt: skip
_FROM_MC: dict[str, DType] = {name: dtype for dtype, name in _TO_MC.items()}
MC_DTYPES: tuple[str, ...] = tuple(_FROM_MC)


def mc_dtype(dtype: DType) -> str:
    """The name that MCIR prints for an element type: f16 -> fp16, f32 -> fp32, i64 -> int64."""
    return _TO_MC[dtype]


def scalar_dtype(name: str) -> DType:
    """The element type behind an MCIR name: fp16 -> f16. Raises ValueError for a name that MCIR does not have."""
    found = _FROM_MC.get(name)
    if found is None:
        raise ValueError(f"unknown element type {name!r}; MCIR has {', '.join(MC_DTYPES)}")
    return found
