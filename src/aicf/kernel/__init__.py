"""Kernel IR: a small closed language of tile statements over named memory spaces."""

from aicf.kernel.fingerprint import kernel_fingerprint
from aicf.kernel.indices import OutOfRange
from aicf.kernel.interpreter import allocate, run_kernel
from aicf.kernel.ir import (
    Axis,
    Check,
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
    RowBlock,
    ScalarParam,
    Stmt,
    StoreTile,
    Stream,
    Summary,
    TensorParam,
    Tile,
    bodies,
    inner,
    reads,
    statements,
    written,
)
from aicf.kernel.lowering import Binding, KernelLoweringError, bound_kernel, lower_to_kernel
from aicf.kernel.printer import print_kernel, print_statement
from aicf.kernel.trace import Trace
from aicf.kernel.verifier import KernelError, check_kernel, verify_kernel

__all__ = [
    "Axis", "Binding", "Check", "Contract", "Fill", "Kernel", "KernelError", "KernelLoweringError", "LoadTile", "Loop", "Map",
    "OutOfRange", "Parallel", "Phase", "Reduce", "Retry", "RowBlock", "ScalarParam", "Stmt", "StoreTile", "Stream", "Summary",
    "TensorParam", "Tile", "Trace", "allocate", "bodies", "bound_kernel", "check_kernel", "inner",
    "kernel_fingerprint", "lower_to_kernel", "print_kernel", "print_statement", "reads", "run_kernel",
    "statements", "verify_kernel", "written",
]  # fmt: skip
