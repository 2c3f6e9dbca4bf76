"""Which executable a backend's kernels have: by the memory that their tensors live in."""

from __future__ import annotations

from aicf.backends.manifest import backend_for
from aicf.kernel import Kernel
from aicf.kernel.lowering import Binding
from aicf.runtime.building import builder
from aicf.runtime.device import DeviceExecutable
from aicf.runtime.executable import Executable
from aicf.schedule.target import Target


def executable_for(kernel: Kernel, binding: Binding, machine: Target, threads: int) -> Executable:
    """`kernel` ready to run on `machine`; code is built when it first runs. ValueError when no backend makes code for it."""
    backend = backend_for(machine)
    if backend.memory == "device":
        return DeviceExecutable(kernel, binding, backend, machine, backend.device_code.build, 1)
    return Executable(kernel, binding, backend, machine, builder(backend), threads)
