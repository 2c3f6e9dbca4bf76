"""An executable region on a device with memory of its own: tensors instead of addresses, scratch from the caller's allocator.

executable.launch([q, k, v], [o], sizes, empty)      launches on the current device and stream, and returns at once
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from aicf.backends.triton import emit
from aicf.backends.triton.build import compile_offline
from aicf.backends.triton.launch import CALLS, Empty, GpuKernel
from aicf.kernel import Kernel
from aicf.kernel.placement import placed
from aicf.runtime.executable import ArrayRef, Executable
from aicf.schedule.gpu import register_limit
from aicf.schedule.schedule import Schedule
from aicf.schedule.target import GpuTarget


def mapped(kernel: Kernel, schedule: Schedule, machine: GpuTarget) -> Kernel:
    """`kernel` mapped to blocks of warps as `schedule` says."""
    limit = register_limit(machine, schedule.warps)
    return placed(kernel, warps=schedule.warps, stages=schedule.stages, registers=limit)


def gpu_builder(schedule: Schedule, machine: GpuTarget) -> Callable[[Kernel], GpuKernel]:
    """Kernels mapped to blocks, not yet compiled: Triton does that on the first launch."""
    return lambda kernel: GpuKernel(mapped(kernel, schedule, machine))


@dataclass
class DeviceExecutable(Executable):
    """A lowered region for a GPU. `kernel` is the one for contiguous inputs, mapped to blocks."""

    machine: GpuTarget | None = None
    _bound: dict[tuple[int, ...], dict[str, int]] = field(default_factory=dict[tuple[int, ...], dict[str, int]])

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.machine is not None
        self.kernel = mapped(self.kernel, self.schedule, self.machine)

    def launch(self, inputs: Sequence[Any], outputs: Sequence[Any], sizes: Sequence[int], empty: Empty) -> None:
        """Computes `outputs` from `inputs` (tensors in the order of `input_names` and `output_names`); `sizes` in the order of
        `symbols`. The only memory asked for is scratch, from `empty`."""
        layout = self.layout([ArrayRef(0, tuple(t.shape), tuple(t.stride())) for t in inputs])
        _, _, built = self.variant(layout)
        assert isinstance(built, GpuKernel)
        key = tuple(sizes)
        bound = self._bound.get(key)
        if bound is None:
            if len(self._bound) >= CALLS:
                self._bound.clear()
            bound = self._bound[key] = self.sizes(dict(zip(self.symbols, sizes, strict=True)))
        tensors = dict(zip((*self.input_names, *self.output_names), (*inputs, *outputs), strict=True))
        built.launch(tensors, bound, {}, empty)

    def dump(self, stage: str) -> str:
        """The kernel as Triton source, or what Triton makes of it for the target without the device: ptx (AMD: its
        assembly), sass, or resources (registers, spills, shared memory, tensor-core instructions)."""
        source = emit(self.kernel)
        if stage == "triton":
            return source.text
        assert self.machine is not None
        built = [compile_offline(self.kernel, source, e, self.machine.arch, self.machine.warp) for e in source.entries]
        return "\n".join(b.text(stage) for b in built)
