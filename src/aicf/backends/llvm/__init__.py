"""CPU backend: Kernel IR to machine code through LLVM (llvmlite), no C compiler involved."""

from aicf.backends.llvm.build import Compiled, build, emit, host_target, llvm_version, load
from aicf.backends.llvm.codegen import Target

__all__ = ["Compiled", "Target", "build", "emit", "host_target", "llvm_version", "load"]
