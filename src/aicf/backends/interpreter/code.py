"""`aicf.backends.manifest.HostCode` by interpretation: a call's words become arrays over the tensors' memory, and Kernel IR
runs on those."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from aicf.kernel import Kernel, TensorParam, run_kernel
from aicf.scalar import BYTES, integer, is_float, numpy_dtype, round_to
from aicf.schedule.target import Target


@dataclass(frozen=True)
class Interpreted:
    """A kernel to interpret; nothing of it is worth keeping on disk."""

    launcher: Launcher
    object: bytes = b""


@dataclass
class Frame:
    """A call's words."""

    words: list[int]


def identity() -> str:
    """Nothing but NumPy's version, which the manifest names."""
    return ""


def build(kernel: Kernel) -> Interpreted:
    """The kernel, ready to be interpreted."""
    return Interpreted(Launcher(kernel))


def load(kernel: Kernel, code: bytes) -> Interpreted:
    """Nothing was kept, so nothing can be loaded."""
    raise RuntimeError("the interpreter keeps no code")


def dump(kernel: Kernel, stage: str, target: Target) -> str:
    """There is no stage below Kernel IR."""
    raise ValueError(f"the interpreter has no stage {stage}")


class Launcher:
    """Calls one kernel. The words are, for each tensor, its address and its strides, then sizes, then scalars as doubles."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.places: dict[str, int] = {}
        at = 0
        for t in kernel.tensors:
            self.places[t.name] = at
            at += 1 + len(t.shape)
        self.sizes = at

    def words(
        self,
        tensors: Mapping[str, tuple[int, tuple[int, ...]]],
        sizes: Mapping[str, int],
        scalars: Mapping[str, float | int],
    ) -> list[int]:
        """The call's words."""
        given = [tensors[t.name] for t in self.kernel.tensors]
        numbers = [_bits(float(scalars[s.name])) for s in self.kernel.scalars]
        return [*(w for address, strides in given for w in (address, *strides)), *(sizes[n] for n in self.kernel.sizes), *numbers]

    def place(self, tensor: str) -> int:
        """Which of the words is a tensor's address."""
        return self.places[tensor]

    def ask(self, words: list[int], checks: Iterable[int]) -> None:
        """Nothing: the interpreter runs all checks of a kernel with every call, those that need not be run included."""

    def try_checks(self, words: list[int], threads: int) -> None:
        """Nothing, for the same reason: `start` runs them before anything else."""

    def frame(self, words: list[int]) -> Frame:
        """A copy of `words`."""
        return Frame(list(words))

    def start(self, frame: Frame, threads: int) -> None:
        """One call, on one thread. Raises OutOfRange where an index is out of range, ValueError where the kernel does not keep a
        promise that it makes."""
        words = frame.words
        sizes = dict(zip(self.kernel.sizes, words[self.sizes :], strict=False))
        numbers = words[self.sizes + len(sizes) :]
        scalars = {
            s.name: _double(n) if is_float(s.dtype) else int(_double(n))
            for s, n in zip(self.kernel.scalars, numbers, strict=True)
        }
        memory = {t.name: array_of(t, words, self.places[t.name], sizes) for t in self.kernel.tensors}
        # bf16 is float32 to the interpreter: read from, and written to, a copy.
        arrays = {t.name: _widened(memory[t.name]) if t.dtype == "bf16" else memory[t.name] for t in self.kernel.tensors}
        run_kernel(self.kernel, arrays, sizes, scalars)
        for t in self.kernel.tensors:
            if t.dtype == "bf16" and t.role != "in":
                memory[t.name][...] = (round_to(arrays[t.name], "bf16").view(np.uint32) >> 16).astype(np.uint16)


def array_of(t: TensorParam, words: list[int], at: int, sizes: Mapping[str, int]) -> Any:
    """The tensor's elements as an array over its memory; bf16 as its bits."""
    shape = tuple(integer(d, sizes) for d in t.shape)
    strides = words[at + 1 : at + 1 + len(shape)]
    dtype = np.dtype(np.uint16 if t.dtype == "bf16" else numpy_dtype(t.dtype))
    assert dtype.itemsize == BYTES[t.dtype]
    if 0 in shape:
        return np.empty(shape, dtype)
    last = sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    raw = (ctypes.c_uint8 * ((last + 1) * dtype.itemsize)).from_address(words[at])
    flat = np.frombuffer(memoryview(raw), dtype)
    return np.lib.stride_tricks.as_strided(flat, shape, [s * dtype.itemsize for s in strides])


def _widened(bits: Any) -> Any:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _bits(value: float) -> int:
    return int.from_bytes(struct.pack("<d", value), "little", signed=True)


def _double(word: int) -> float:
    return struct.unpack("<d", word.to_bytes(8, "little", signed=True))[0]
