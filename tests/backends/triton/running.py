"""Running kernels on NumPy arrays through Triton's interpreter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from aicf.backends.triton.launch import GpuKernel
from aicf.frontends.torch.fx.symbols import TORCH_DTYPE
from aicf.kernel import Kernel, allocate
from aicf.scalar import DType


def empty(shape: tuple[int, ...], dtype: DType) -> torch.Tensor:
    """Scratch memory, poisoned: nothing may depend on what was there."""
    made = torch.empty(shape, dtype=TORCH_DTYPE[dtype])
    return made.fill_(float("nan") if made.is_floating_point() else 113 if dtype != "bool" else True)


def execute(
    kernel: Kernel, given: Mapping[str, Any], sizes: Mapping[str, int], scalars: Mapping[str, float] | None = None, *,
    wide: bool | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Run `kernel`; the outputs by name (bf16 as float32). `wide`: 64-bit positions whatever the sizes."""
    arrays = {**given, **{n: a for n, a in allocate(kernel, sizes, ("out",)).items() if n not in given}}
    tensors: dict[str, torch.Tensor] = {}
    for p in kernel.tensors:
        if p.name in arrays:
            held = torch.from_numpy(np.asarray(arrays[p.name]))
            tensors[p.name] = held.to(TORCH_DTYPE[p.dtype]) if held.dtype != TORCH_DTYPE[p.dtype] else held
    made = GpuKernel(kernel, interpreted=True)
    if wide is not None:
        made._narrow = _Always(not wide)  # the memory of which width a call needs
    made.launch(tensors, sizes, dict(scalars or {}), empty)
    return {p.name: tensors[p.name].float().numpy() if p.dtype == "bf16" else tensors[p.name].numpy()
            for p in kernel.tensors if p.role == "out"}  # fmt: skip


class _Always(dict[Any, bool]):
    def __init__(self, value: bool) -> None:
        super().__init__()
        self.value = value

    def get(self, key: Any, default: Any = None) -> bool:
        return self.value
