"""Calling compiled code: arguments into an array of words, buffers from a pool, threads from `threads.py`."""

from __future__ import annotations

import ctypes
import struct
from collections import deque
from collections.abc import Iterable

from aicf.backends.llvm.codegen import Slots
from aicf.backends.llvm.codegen.checks import FAULTS
from aicf.backends.llvm.codegen.module import BUFFERS, CHECKS, HEADER, STRIDE
from aicf.backends.llvm.threads import fork_address, run_workers
from aicf.kernel import Kernel, OutOfRange
from aicf.scalar import DType, integer, is_float

_CODES: dict[DType, str] = {
    "bool": "q", "u8": "B", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "f16": "f", "bf16": "f", "f32": "f", "f64": "d",
}  # fmt: skip
_ALIGN = 4096
_ONLY_CHECKS = 1 << 62


def scalar_word(value: float | int, dtype: DType) -> int:
    """A scalar's bits in the low end of a 64-bit word (halves as f32)."""
    number = float(value) if is_float(dtype) else int(value)
    return int.from_bytes(struct.pack("<" + _CODES[dtype], number).ljust(8, b"\0"), "little", signed=True)


class Buffer:
    """Memory for the threads of a call, from a page's start on."""

    def __init__(self, size: int) -> None:
        self._raw = ctypes.create_string_buffer(size + _ALIGN)
        self.address = -(-ctypes.addressof(self._raw) // _ALIGN) * _ALIGN


class Pool:
    """Working buffers by size, kept for the next call. Threads may take from a deque and put back as they like."""

    def __init__(self, keep: int = 4) -> None:
        self.keep = keep
        self.free: dict[int, deque[Buffer]] = {}

    def of(self, size: int) -> deque[Buffer]:
        """The free buffers of a size; past `keep` of them the oldest goes."""
        return self.free.setdefault(size, deque(maxlen=self.keep))

    def clear(self) -> None:
        """Free all buffers that no call is using."""
        for kept in list(self.free.values()):
            kept.clear()


POOL = Pool()


class Launcher:
    """Calls one compiled kernel. `entry` runs everything; `workers` are for runs without a shared thread pool."""

    def __init__(self, kernel: Kernel, slots: Slots, entry: int, workers: tuple[int, ...], buffer: int) -> None:
        self.kernel = kernel
        self.slots = slots
        self.workers = workers
        # A page more keeps one thread's buffer from following another's at a power of two.
        self.stride = -(-max(buffer, 64) // _ALIGN) * _ALIGN + 128
        self._buffers: dict[int, deque[Buffer]] = {}
        self.checks = bool(kernel.checks)
        self.entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)(entry)

    def words(
        self, tensors: dict[str, tuple[int, tuple[int, ...]]], sizes: dict[str, int], scalars: dict[str, float | int]
    ) -> list[int]:
        """The call's words, buffers and counters still empty; all checks are asked for."""
        words = [0] * self.slots.words
        words[CHECKS] = -1
        for t in self.kernel.tensors:
            address, strides = tensors[t.name]
            if len(strides) != len(t.shape):
                raise ValueError(f"{t.name} has {len(strides)} strides, kernel {self.kernel.name} wants {len(t.shape)}")
            if t.unit is not None and strides[t.unit] != 1 and integer(t.shape[t.unit], sizes) > 1:
                raise ValueError(
                    f"dimension {t.unit} of {t.name} has stride {strides[t.unit]}, "
                    f"kernel {self.kernel.name} was built for stride 1"
                )
            at = self.slots.tensors[t.name]
            words[at] = address
            words[at + 1 : at + 1 + len(strides)] = strides
        for name, at in self.slots.sizes.items():
            words[at] = sizes[name]
        for s in self.kernel.scalars:
            words[self.slots.scalars[s.name]] = scalar_word(scalars[s.name], s.dtype)
        return words

    def ask(self, words: list[int], checks: Iterable[int]) -> None:
        """Of the kernel's checks run those alone whose numbers these are."""
        words[CHECKS] = sum(1 << k for k in checks)

    def try_checks(self, words: list[int], threads: int) -> None:
        """Runs the checks that `words` ask for, and nothing else. Raises OutOfRange as a call does."""
        alone = list(words)
        alone[FAULTS] = _ONLY_CHECKS  # a fault keeps everything but checks from running
        self.start(Frame(alone), threads)

    def place(self, tensor: str) -> int:
        """Which of the words is a tensor's address."""
        return self.slots.tensors[tensor]

    def run(
        self,
        tensors: dict[str, tuple[int, tuple[int, ...]]],
        sizes: dict[str, int],
        scalars: dict[str, float | int],
        threads: int,
    ) -> None:
        """One call from dictionaries."""
        self.call(self.words(tensors, sizes, scalars), threads)

    def call(self, words: list[int], threads: int) -> None:
        """One call from prepared words (see `words`); the list is not changed and may be used by several threads at once."""
        self.start(Frame(words), threads)

    def frame(self, words: list[int]) -> Frame:
        """`words` in memory, for calls with `start`, one at a time."""
        return Frame(words)

    def start(self, frame: Frame, threads: int) -> None:
        """One call from a frame of words, which no other call may be using."""
        # No function of Python's more than there must be: each costs a microsecond in what torch.compile has compiled.
        kept = self._buffers.get(threads)
        if kept is None:
            kept = self._buffers[threads] = POOL.of(self.stride * max(threads, 1))
        try:
            buffer = kept.pop()
        except IndexError:
            buffer = Buffer(self.stride * max(threads, 1))
        try:
            frame.words[BUFFERS] = buffer.address
            frame.words[STRIDE] = self.stride
            fork = fork_address() if threads > 1 else 0
            if threads > 1 and fork == 0:
                run_workers(self.workers, frame.address, threads)
            else:
                self.entry(frame.address, fork, threads)
        finally:
            kept.append(buffer)
        if self.checks and frame.words[FAULTS] & ~_ONLY_CHECKS:
            raise self._fault(frame)

    def _fault(self, frame: Frame) -> OutOfRange:
        words = frame.words
        number = next(k for k in range(len(self.kernel.checks)) if words[FAULTS] >> k & 1)
        check, place = self.kernel.checks[number], self.slots.checks[number]
        sizes = {name: words[at] for name, at in self.slots.sizes.items()}
        return OutOfRange(check, words[place], words[place + 1], integer(check.extent, sizes))


class Frame:
    """A call's words where compiled code finds them."""

    def __init__(self, words: list[int]) -> None:
        # The array starts on a cache line, so that the counters have one of their own.
        self._raw = ctypes.create_string_buffer(8 * len(words) + 64)
        self.address = -(-ctypes.addressof(self._raw) // 64) * 64
        self.words = (ctypes.c_int64 * len(words)).from_address(self.address)
        self.words[:] = words


__all__ = ["HEADER", "POOL", "Frame", "Launcher", "scalar_word"]
