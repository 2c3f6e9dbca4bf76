"""Kernel IR: a small closed language of tile statements over named memory spaces."""

from aicf.kernel.ir import (
    Axis,
    Contract,
    Fill,
    Kernel,
    LoadTile,
    Loop,
    Map,
    Parallel,
    Phase,
    Reduce,
    Retry,
    Rows,
    ScalarParam,
    Stmt,
    StoreTile,
    Stream,
    Summary,
    TensorParam,
    Tile,
    inner,
    statements,
    written,
)
from aicf.kernel.printer import print_kernel

__all__ = [
    "Axis", "Contract", "Fill", "Kernel", "LoadTile", "Loop", "Map", "Parallel", "Phase", "Reduce", "Retry", "Rows",
    "ScalarParam", "Stmt", "StoreTile", "Stream", "Summary", "TensorParam", "Tile", "inner", "print_kernel", "statements", "written",
]  # fmt: skip
