"""Kernels built for this processor, through the memory and disk caches."""

from __future__ import annotations

from typing import Any

from aicf.backends import llvm
from aicf.kernel import Kernel, kernel_fingerprint
from aicf.runtime.cache import key_of, read, write
from aicf.runtime.emitters import emitter
from aicf.runtime.forks import waited_for
from aicf.scalar import fingerprint

_BUILT: dict[str, Any] = {}
_LOCK = waited_for()


class Counts:
    """What this process did: kernels compiled, loaded from disk, found in memory."""

    compiled = 0
    loaded = 0
    reused = 0


def native_key(kernel: Kernel, target: llvm.Target) -> str:
    """What an object is kept under: all that its code depends on."""
    return key_of(kernel_fingerprint(kernel), fingerprint(target), emitter("llvm", ("llvmlite",)), llvm.llvm_version())


def build_native(kernel: Kernel) -> Any:
    """The compiled kernel for the processor of this process. Equal kernels are built once, whatever they came from."""
    key = native_key(kernel, llvm.host_target())
    found = _BUILT.get(key)
    if found is not None:
        Counts.reused += 1
        return found
    with _LOCK:
        found = _BUILT.get(key)
        if found is None:
            found = _BUILT[key] = _fetched(kernel, key)
    return found


def forget() -> None:
    """Forgets what is built in memory, as a new process would: for measuring what building and loading take."""
    with _LOCK:
        _BUILT.clear()


def _fetched(kernel: Kernel, key: str) -> Any:
    stored = read(key)
    if stored is not None:
        try:
            made = llvm.load(kernel, stored)
        except RuntimeError:
            stored = None  # an object that does not link is as good as none
        else:
            Counts.loaded += 1
            return made
    made = llvm.build(kernel)
    Counts.compiled += 1
    write(key, made.object)
    return made
