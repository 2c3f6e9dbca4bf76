"""CPU backend: Kernel IR to machine code through LLVM (llvmlite), no C compiler involved."""

from aicf.backends.llvm.build import Compiled, build, emit, host_target, load

__all__ = ["Compiled", "build", "emit", "host_target", "load"]
