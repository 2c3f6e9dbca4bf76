"""Kernel IR to LLVM IR."""

from aicf.backends.llvm.codegen.module import Slots, emit_module, slots, worker_names
from aicf.backends.llvm.codegen.target import Target, vector_shape

__all__ = ["Slots", "Target", "emit_module", "slots", "vector_shape", "worker_names"]
