"""Runs kernels in the interpreter of Kernel IR, with NumPy: slow, but it is what the language means, and it checks the promises
that a kernel makes. To look for a fault, give the target "interpreter" and compare."""

from pathlib import Path

from aicf.backends import Backend
from aicf.schedule.target import CpuTarget

# A small machine, so that small sizes have several tiles, with register blocks of a few rows.
TARGET = CpuTarget(
    "interpreter", cores=1, vector_bits=128, registers=16, fma_per_cycle=1, l1d=16 << 10, l2=64 << 10, l3=0, kind="interpreter"
)
BACKEND = Backend(
    name="interpreter",
    kinds=("interpreter",),
    machine="the interpreter",
    stages=(),
    memory="host",
    module="aicf.backends.interpreter.code",
    folder=Path(__file__).parent,
    libraries=("numpy",),
    targets=(TARGET,),
)
