"""CPU backend: Kernel IR to machine code through LLVM (llvmlite), no C compiler involved."""

from pathlib import Path

from aicf.backends import Backend

BACKEND = Backend(
    name="llvm",
    kinds=("cpu",),
    machine="a CPU",
    stages=("llvm", "asm"),
    memory="host",
    module="aicf.backends.llvm.code",
    folder=Path(__file__).parent,
    libraries=("llvmlite",),
)
