"""What the manifest needs of this backend: `aicf.backends.manifest.DeviceCode`."""

from __future__ import annotations

from aicf.backends.triton.build import compile_offline
from aicf.backends.triton.emit import emit
from aicf.backends.triton.launch import GpuKernel, interpreting
from aicf.kernel import Kernel
from aicf.schedule.target import GpuTarget, Target


def build(kernel: Kernel) -> GpuKernel:
    """The kernel; Triton compiles it on the first launch."""
    return GpuKernel(kernel)


def unfit(device: str) -> str | None:
    """Triton runs kernels on the CPU only where it interprets them."""
    if device != "cpu" or interpreting():
        return None
    return (
        "this kernel is for a GPU and its tensors are on the CPU: give CUDA tensors, leave the option `target` out to run on "
        "the CPU, or set TRITON_INTERPRET=1 before Triton is imported to run it in Triton's interpreter"
    )


def dump(kernel: Kernel, stage: str, target: Target) -> str:
    """The kernel as Triton source, or what Triton makes of it for the target without the device: ptx (AMD: its assembly), sass,
    or resources (registers, spills, shared memory, tensor-core instructions)."""
    source = emit(kernel)
    if stage == "triton":
        return source.text
    assert isinstance(target, GpuTarget)
    return "\n".join(compile_offline(kernel, source, e, target.arch, target.warp).text(stage) for e in source.entries)
