"""An executable region on a device with memory of its own: tensors instead of addresses, scratch from the caller's allocator.

executable.launch([q, k, v], [o], sizes, empty)      launches on the current device and stream, and returns at once
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aicf.backends.manifest import DeviceKernel, Empty
from aicf.kernel import Kernel, OutOfRange
from aicf.runtime.checks import check_kernel
from aicf.runtime.executable import ArrayRef, Executable, Layout
from aicf.runtime.indices import needed
from aicf.scalar import integer

CALLS = 256  # calls remembered per kernel; lengths that change every call do not pile up


@dataclass
class DeviceExecutable(Executable):
    """A kernel for a device, mapped to blocks of warps; its backend compiles it on the first launch."""

    _checkers: dict[tuple[Layout, tuple[int, ...]], DeviceKernel] = field(
        default_factory=dict[tuple[Layout, tuple[int, ...]], DeviceKernel]
    )
    _open: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict[tuple[int, ...], tuple[int, ...]])
    _bound: dict[tuple[int, ...], dict[str, int]] = field(default_factory=dict[tuple[int, ...], dict[str, int]])

    def launch(
        self, inputs: Sequence[Any], outputs: Sequence[Any], sizes: Sequence[int], empty: Empty, *, checked: bool = True
    ) -> None:  # fmt: skip
        """Computes `outputs` from `inputs` (tensors in the order of `input_names` and `output_names`); `sizes` in the order of
        `symbols`. The only memory asked for is scratch, from `empty`. Where the source reads by indices that may be out of range
        they are looked at first, which waits for the device, and IndexError is raised; not so without `checked` (a stream that
        is being captured cannot be waited for): then a wrong index reads the nearest element."""
        layout = self.layout([ArrayRef(0, tuple(t.shape), tuple(t.stride())) for t in inputs])
        kernel, made = self.variant(layout)
        built: DeviceKernel = made
        key = tuple(sizes)
        bound = self._bound.get(key)
        if bound is None:
            if len(self._bound) >= CALLS:
                self._bound.clear()
            bound = self._bound[key] = self.sizes(dict(zip(self.symbols, sizes, strict=True)))
        tensors = dict(zip((*self.input_names, *self.output_names), (*inputs, *outputs), strict=True))
        if kernel.checks and checked:
            self._check(kernel, layout, tensors, bound, empty)
        built.launch(tensors, bound, {}, empty)

    def _check(
        self, kernel: Kernel, layout: Layout, tensors: Mapping[str, Any], sizes: Mapping[str, int], empty: Empty
    ) -> None:  # fmt: skip
        """Runs the checks of the kernel for a layout that the sizes leave open, and waits for what they find."""
        call = tuple(sizes.values())
        numbers = self._open.get(call)
        if numbers is None:
            once, always = needed(kernel, sizes)
            numbers = (*once, *always)
        if not numbers:
            return
        checker = self._checkers.get((layout, numbers))
        if checker is None:
            checker = self._checkers[layout, numbers] = self.backend.device_code.build(check_kernel(kernel, numbers))
        given = {t.name: tensors[t.name] for t in checker.kernel.tensors if t.role == "in"}
        results = [t for t in checker.kernel.tensors if t.role == "out"]
        made = {t.name: empty(tuple(integer(d, sizes) for d in t.shape), t.dtype) for t in results}
        checker.launch({**given, **made}, sizes, {}, empty)
        for k in numbers:
            c, extent = kernel.checks[k], integer(kernel.checks[k].extent, sizes)
            low, high = int(made[f"lowest_{k}"].min()), int(made[f"highest_{k}"].max())
            if low < (-extent if c.wraps else 0) or high >= extent:
                raise self.named(OutOfRange(c, low, high, extent))
        if len(self._open) >= CALLS:
            self._open.clear()
        self._open[call] = tuple(needed(kernel, sizes)[1])

    def unfit(self, device: str) -> str | None:
        """Why this cannot run on tensors of that kind of device ("cuda", "cpu"); None where it can."""
        return self.backend.device_code.unfit(device)
