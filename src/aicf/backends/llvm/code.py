"""What the manifest needs of this backend: `aicf.backends.manifest.HostCode`, for the processor of this process."""

from __future__ import annotations

from aicf.backends.llvm import build as building
from aicf.backends.llvm.build import Compiled
from aicf.backends.llvm.codegen import Target as Processor
from aicf.backends.llvm.codegen import emit_module
from aicf.kernel import Kernel
from aicf.scalar import fingerprint
from aicf.schedule.target import CpuTarget, Target


def identity(processor: Processor | None = None) -> str:
    """The processor (this one when None) and the LLVM that makes the code: llvmlite can be built with several."""
    return f"{fingerprint(processor or building.host_target())} {building.llvm_version()}"


def build(kernel: Kernel) -> Compiled:
    """The kernel compiled and linked."""
    return building.build(kernel)


def load(kernel: Kernel, code: bytes) -> Compiled:
    """The kernel linked from an object that `build` made. RuntimeError where that does not link."""
    return building.load(kernel, code)


def dump(kernel: Kernel, stage: str, target: Target) -> str:
    """The LLVM IR as emitted, or the assembly, for the CPU that `target` describes. What runs is always made for the processor of
    this process."""
    assert isinstance(target, CpuTarget)
    processor = building.processor_of(target)
    return emit_module(kernel, processor) if stage == "llvm" else building.assembly(kernel, processor)
