"""Running kernels on NumPy arrays through the CPU backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from aicf.backends.llvm.build import Compiled, build
from aicf.kernel import Kernel, allocate
from aicf.scalar import integer

from .paths import EXECUTABLE, Path

_path = EXECUTABLE[:1]  # what is compiled for: this processor as it is


@contextmanager
def compiling_for(path: Path) -> Iterator[None]:
    """Inside, `execute` compiles for the processor `path`."""
    global _path
    before, _path = _path, (path,)
    try:
        yield
    finally:
        _path = before


@cache
def _compiled(kernel: Kernel, path: Path) -> Compiled:
    return build(kernel, path.cpu, path.features)


def compiled(kernel: Kernel) -> Compiled:
    """`kernel` for the processor that is compiled for at present."""
    return _compiled(kernel, _path[0])


def execute(
    kernel: Kernel, given: dict[str, Any], sizes: Mapping[str, int], scalars: Mapping[str, float] | None = None, *,
    threads: int = 1, code: Compiled | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Run `kernel`; the outputs by name (bf16 as float32)."""
    made = {name: a for name, a in allocate(kernel, sizes, ("out", "scratch")).items() if name not in given}
    arrays = {**given, **made}
    held: dict[str, Any] = {}
    for p in kernel.tensors:
        array = arrays[p.name]
        assert array.shape == tuple(integer(e, sizes) for e in p.shape)
        if p.dtype == "bf16":
            array = np.ascontiguousarray((array.view(np.uint32) >> 16).astype(np.uint16))
        held[p.name] = array
    tensors = {name: (array.ctypes.data, tuple(s // array.itemsize for s in array.strides)) for name, array in held.items()}
    (code or compiled(kernel)).run(tensors, dict(sizes), dict(scalars or {}), threads)
    out: dict[str, Any] = {}
    for p in kernel.tensors:
        if p.role == "out":
            array = held[p.name]
            out[p.name] = (array.astype(np.uint32) << 16).view(np.float32) if p.dtype == "bf16" else array
    return out
