"""Running a kernel: its functions launched in order on the current device and stream.

    GpuKernel(kernel).launch({"Q": q, "K": k, "V": v, "O": o}, {"N": 4096, …}, {}, empty)

Tensors are whatever Triton takes (PyTorch's tensors: things with `data_ptr`, `dtype` and `stride()`); this module imports no
tensor library. A call allocates nothing but scratch tensors, through `empty`, and waits for nothing, so it can be captured in a
CUDA graph after a first call has compiled it.
"""

from __future__ import annotations

import hashlib
import linecache
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aicf.backends.triton.emit import Entry, Source, emit
from aicf.backends.triton.width import fits32
from aicf.kernel import Kernel
from aicf.scalar import DType, integer

CALLS = 256  # calls remembered per kernel; lengths that change every call do not pile up
Empty = Callable[[tuple[int, ...], DType], Any]


def interpreting() -> bool:
    """Whether Triton's interpreter runs kernels in this process (TRITON_INTERPRET=1 before Triton was imported)."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "y", "yes")


def load_module(source: Source) -> dict[str, Any]:
    """The functions of a generated module by name. Its text stays visible to tracebacks and to Triton, which reads it again."""
    name = f"<aicf {hashlib.sha256(source.text.encode()).hexdigest()[:16]}>"
    linecache.cache[name] = (len(source.text), None, source.text.splitlines(keepends=True), name)
    # Triton looks a function's module up by name for nothing but messages and its cache key.
    namespace: dict[str, Any] = {"__name__": "aicf_generated", "__file__": name}
    exec(compile(source.text, name, "exec"), namespace)
    return namespace


@dataclass
class GpuKernel:
    """A kernel and its Triton modules: with 32-bit offsets and with 64-bit ones, each made when first needed. Thread-safe."""

    kernel: Kernel
    interpreted: bool = field(default_factory=interpreting)
    _modules: dict[bool, tuple[Source, dict[str, Any]]] = field(default_factory=dict[bool, tuple[Source, dict[str, Any]]])
    _narrow: dict[tuple[Any, ...], bool] = field(default_factory=dict[tuple[Any, ...], bool])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def source(self, *, wide: bool = False) -> Source:
        """The generated module."""
        return self.module(wide)[0]

    def module(self, wide: bool) -> tuple[Source, dict[str, Any]]:
        """The generated module and its functions."""
        with self._lock:
            if wide not in self._modules:
                made = emit(self.kernel, wide=wide, interpreted=self.interpreted)
                self._modules[wide] = (made, load_module(made))
            return self._modules[wide]

    def launch(self, tensors: Mapping[str, Any], sizes: Mapping[str, int], scalars: Mapping[str, float], empty: Empty) -> None:
        """Runs the kernel. `tensors`: inputs and outputs by name; `empty(shape, dtype)` gives scratch memory on their device.

        Raises KeyError for a missing argument and ValueError for a stride that contradicts the kernel's `unit`.
        """
        given = dict(tensors)
        for t in self.kernel.tensors:
            if t.role == "scratch" and t.name not in given:
                given[t.name] = empty(tuple(integer(d, sizes) for d in t.shape), t.dtype)
        strides = {t.name: tuple(given[t.name].stride()) for t in self.kernel.tensors}
        for t in self.kernel.tensors:
            if t.unit is not None and strides[t.name][t.unit] != 1 and given[t.name].shape[t.unit] > 1:
                raise ValueError(
                    f"dimension {t.unit} of {t.name} has stride {strides[t.name][t.unit]}; "
                    f"kernel {self.kernel.name} was built for stride 1"
                )
        key = (tuple(sizes.values()), tuple(strides.values()))
        narrow = self._narrow.get(key)
        if narrow is None:
            if len(self._narrow) >= CALLS:
                self._narrow.clear()
            narrow = self._narrow[key] = fits32(self.kernel, sizes, strides)
        values: dict[str, Any] = {**sizes, **scalars, **given}
        for name, own in strides.items():
            values |= {f"{name}_stride_{k}": s for k, s in enumerate(own)}
        source, functions = self.module(not narrow)
        for entry in source.entries:
            count = programs(entry, sizes)
            if count:
                run = functions[entry.name][(count, 1, 1)]
                run(*(values[a] for a in entry.arguments), **options(entry))


def options(entry: Entry) -> dict[str, Any]:
    """What Triton is told about a function: its warps, its stages, the most registers of a thread, and that a product and a sum
    may become one FMA."""
    limit = {"maxnreg": entry.registers} if entry.registers else {}
    return {"num_warps": entry.warps, "num_stages": entry.stages, "enable_fp_fusion": True, **limit}


def programs(entry: Entry, sizes: Mapping[str, int]) -> int:
    """How many programs of a function a call starts."""
    count = 1
    for loop in entry.loops:
        count *= -(-integer(loop.extent, sizes) // loop.step)
    return count
