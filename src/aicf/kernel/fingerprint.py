"""What a kernel is kept under: a hash of its structure, down to the bits of every constant."""

from __future__ import annotations

from dataclasses import replace

from aicf.kernel.ir import Kernel
from aicf.scalar import fingerprint


def kernel_fingerprint(kernel: Kernel) -> str:
    """The same for the same kernel in every process, and different for kernels that differ in anything but their header lines,
    which say where a kernel came from; code does not depend on them."""
    return fingerprint(replace(kernel, header=()))
