"""An executable region: from addresses and strides of actual tensors to a launched kernel.

The kernel is specialised on which dimension of each tensor is contiguous, and on nothing else that changes between calls:
lengths,
batches, heads and strides are arguments. A layout seen for the first time builds (or loads from the cache) its kernel once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from aicf.backends.manifest import Backend, DeviceKernel, Frame, HostKernel, Launcher
from aicf.kernel import Kernel, OutOfRange, Parallel, Phase, Stream, statements
from aicf.kernel.lowering import Binding
from aicf.kernel.placement import with_units
from aicf.kernel.summaries import summary_values
from aicf.runtime.forks import ForkLock
from aicf.runtime.indices import needed
from aicf.scalar import BYTES, evaluate, integer, numpy_dtype, variables
from aicf.schedule.target import Target

MOST_COUNTED = 1 << 24  # tiles that differ


class ArrayRef(NamedTuple):
    """A tensor in memory: address of its first element, shape, and strides in elements."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """All of a call but its addresses: for the same strides and sizes only these change. `frames`: words in memory that no call
    is using."""

    launcher: Launcher
    words: list[int]
    places: tuple[int, ...]
    scratch: tuple[tuple[int, int], ...]  # (place, bytes)
    frames: list[Frame] = field(default_factory=list[Frame])


Builder = Callable[[Kernel], HostKernel] | Callable[[Kernel], DeviceKernel]
PLANS = 256  # calls remembered per executable; lengths that change every call do not pile up
Layout = tuple[int | None, ...]


@dataclass
class Executable:
    """A kernel ready to run on tensors of any size of its class. `kernel` is the one for contiguous inputs, `binding` what its
    names stand for; `backend` makes its code, for `machine`, by `builder`. Thread-safe."""

    kernel: Kernel
    binding: Binding
    backend: Backend
    machine: Target
    builder: Builder
    threads: int
    _variants: dict[Layout, tuple[Kernel, Any]] = field(default_factory=dict[Layout, "tuple[Kernel, Any]"])
    _plans: dict[tuple[object, ...], Plan] = field(default_factory=dict[tuple[object, ...], Plan])
    _lock: ForkLock = field(default_factory=ForkLock)

    def __post_init__(self) -> None:
        self.input_names = list(self.binding.inputs)
        self.output_names = list(self.binding.outputs)
        self.symbols = sorted({v.name for e in self.binding.sizes.values() for v in variables(e)})

    def layout(self, inputs: Sequence[ArrayRef]) -> Layout:
        """For each input the dimension that is contiguous, preferring the last; None when there is none."""
        return tuple(_unit(a) for a in inputs)

    def variant(self, layout: Layout) -> tuple[Kernel, Any]:
        """The kernel for a layout and its code, built on first use."""
        variant = self._variants.get(layout)
        if variant is None:
            with self._lock:
                variant = self._variants.get(layout)
                if variant is None:
                    kernel = with_units(self.kernel, dict(zip(self.input_names, layout, strict=True)))
                    variant = self._variants[layout] = (kernel, self.builder(kernel))
        return variant

    def dump(self, stage: str) -> str:
        """The kernel for contiguous inputs at a stage of its backend. ValueError for a stage of another one."""
        return self.backend.dump(self.kernel, stage, self.machine)

    def sizes(self, values: Mapping[str, int]) -> dict[str, int]:
        """The kernel's sizes for values of the source graph's size symbols."""
        return {name: integer(e, values) for name, e in self.binding.sizes.items()}

    def run(self, inputs: Sequence[ArrayRef], outputs: Sequence[ArrayRef], sizes: Sequence[int] = ()) -> None:
        """Computes `outputs` from `inputs` (in the order of `input_names`, `output_names`); `sizes` in the order of `symbols`.
        Raises IndexError, before anything is computed, where the source reads by an index that is out of range."""
        arrays = (*inputs, *outputs)
        self.call([a.address for a in arrays], tuple([a.strides for a in arrays]), tuple(sizes), lambda: (inputs, outputs))

    def call(
        self,
        addresses: Sequence[int],
        strides: tuple[tuple[int, ...], ...],
        sizes: tuple[int, ...],
        arrays: Callable[[], tuple[Sequence[ArrayRef], Sequence[ArrayRef]]],
    ) -> None:
        """As `run`, from the addresses and strides of inputs and outputs; `arrays` makes the whole description of both, which is
        asked for when strides or sizes are new."""
        plan = self._plans.get((strides, sizes))
        if plan is None:
            plan = self._plan(*arrays(), sizes)
            if len(self._plans) >= PLANS:
                self._plans.clear()
            self._plans[strides, sizes] = plan
        try:
            frame = plan.frames.pop()
        except IndexError:  # the first call, or as many at a time as there were never before
            frame = plan.launcher.frame(plan.words)
        words = frame.words
        for place, address in zip(plan.places, addresses, strict=True):
            words[place] = address
        kept: list[Any] = []
        for place, count in plan.scratch:
            kept.append(np.empty(count, dtype=np.uint8))
            words[place] = kept[-1].ctypes.data
        try:
            plan.launcher.start(frame, self.threads)
        except OutOfRange as wrong:
            raise self.named(wrong) from None
        plan.frames.append(frame)

    def _plan(self, inputs: Sequence[ArrayRef], outputs: Sequence[ArrayRef], sizes: Sequence[int]) -> Plan:
        kernel, made = self.variant(self.layout(inputs))
        built: HostKernel = made
        bound = self.sizes(dict(zip(self.symbols, sizes, strict=True)))
        names = (*self.input_names, *self.output_names)
        tensors = {n: (0, tuple(a.strides)) for n, a in zip(names, (*inputs, *outputs), strict=True)}
        scratch: list[tuple[int, int]] = []
        for t in kernel.tensors:
            if t.role == "scratch":
                shape = [integer(d, bound) for d in t.shape]
                tensors[t.name] = (0, contiguous(shape))
                scratch.append((built.launcher.place(t.name), int(np.prod(shape)) * np.dtype(numpy_dtype(t.dtype)).itemsize))
        words = built.launcher.words(tensors, bound, {})
        if kernel.checks:
            once, always = needed(kernel, bound)
            if once:
                built.launcher.ask(words, once)
                try:
                    built.launcher.try_checks(words, self.threads)
                except OutOfRange as wrong:
                    raise self.named(wrong) from None
            built.launcher.ask(words, always)
        return Plan(built.launcher, words, tuple(built.launcher.place(n) for n in names), tuple(scratch))

    def named(self, wrong: OutOfRange) -> IndexError:
        """An index out of range, with the source graph's names of tensors."""
        return IndexError(wrong.told(dict(self.binding.inputs)))

    def scratch_bytes(self, sizes: Mapping[str, int]) -> int:
        """Bytes of scratch tensors in global memory for given kernel sizes."""
        return sum(
            BYTES[t.dtype] * int(np.prod([integer(d, sizes) for d in t.shape]))
            for t in self.kernel.tensors
            if t.role == "scratch"
        )


def _unit(a: ArrayRef) -> int | None:
    for k in range(len(a.shape) - 1, -1, -1):
        if a.strides[k] == 1 and a.shape[k] > 1:
            return k
    # Dimensions of one element have any stride; the last one counts as contiguous when nothing else does.
    for k in range(len(a.shape) - 1, -1, -1):
        if a.strides[k] == 1:
            return k
    return None


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    strides = [1] * len(shape)
    for k in range(len(shape) - 2, -1, -1):
        strides[k] = strides[k + 1] * shape[k + 1]
    return tuple(strides)


def tile_counts(kernel: Kernel, sizes: Mapping[str, int], tensors: Mapping[str, Any]) -> dict[str, int]:
    """How many tiles of a call are empty, partial and full, by evaluating the kernel's own phase conditions over the grid of
    tiles.

    `sizes`: kernel sizes; `tensors`: arrays by kernel name, needed when the mask reads tensors. Raises ValueError when there are
    too many tiles to look at.
    """
    (item,) = [s for s in kernel.body if isinstance(s, Parallel)][:1]
    streams = [s for s in statements(item.body) if isinstance(s, Stream)]
    # Key-major: the stream over keys with one over rows inside; the others only lay out states. Query-major: there is one.
    stream = next((s for s in streams if any(_inside(p) for p in s.phases)), streams[0])
    walked = [stream, *(s for p in stream.phases[:1] for s in (_inside(p),) if s is not None)]
    arrays = dict(tensors)
    for s in kernel.summaries:
        arrays[s.param] = summary_values(kernel, s, {k: np.int64(v) for k, v in sizes.items()}, arrays)
    loops = {v.var.name: np.arange(0, integer(v.extent, sizes), v.step) for v in item.loops}
    for axis in (kernel.axis(s.axis) for s in walked):
        loops[axis.name + "0"] = np.arange(0, integer(axis.extent, sizes), axis.tile)
    # Items that no condition tells apart are counted once.
    told = {v.name for s in walked for e in (s.lo, s.hi, *(p.when for p in s.phases)) for v in variables(e)}
    alike = math.prod(len(at) for name, at in loops.items() if name not in told and name != stream.axis + "0")
    loops = {name: at for name, at in loops.items() if name in told or name == stream.axis + "0"}
    shape = [len(at) for at in loops.values()]
    if math.prod(shape) > MOST_COUNTED:
        raise ValueError(f"{math.prod(shape)} tiles are more than are counted ({MOST_COUNTED})")
    env: dict[str, Any] = {k: np.int64(v) for k, v in sizes.items()} | {"skipping": np.int64(1)}
    env |= dict(zip(loops, np.meshgrid(*loops.values(), indexing="ij", sparse=True), strict=True))
    counts = {"empty": 0, "partial": 0, "full": 0}

    def walk_phases(s: Stream, left: Any) -> None:
        low, high = (evaluate(e, env, arrays) for e in (s.lo, s.hi))
        origin = env[s.axis + "0"]
        left = left & (origin >= low) & (origin < high)
        for phase in s.phases:
            holds = left & evaluate(phase.when, env, arrays)
            inner = _inside(phase)
            if inner is not None:
                walk_phases(inner, holds)
            elif phase.body:
                counts[phase.name] += int(holds.sum())
            left = left & ~holds

    walk_phases(stream, np.ones(shape, dtype=bool))
    # Cut keys: every part walks its own share of the tiles.
    parts = len(loops.get("part", (0,)))
    counts["empty"] = math.prod(shape) // parts - counts["partial"] - counts["full"]
    return {kind: alike * n for kind, n in counts.items()}


def _inside(phase: Phase) -> Stream | None:
    """The stream in a phase of another one."""
    return next((s for s in statements(phase.body) if isinstance(s, Stream)), None)
