"""Kernels built for this processor, through the memory and disk caches."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from aicf.backends import llvm
from aicf.kernel import Kernel, print_kernel
from aicf.runtime.cache import key_of, read, write

_BUILT: dict[str, Any] = {}
_LOCK = threading.Lock()


class Counts:
    """What this process did: kernels compiled, loaded from disk, found in memory."""

    compiled = 0
    loaded = 0
    reused = 0


@cache
def _versions() -> str:
    found: list[str] = []
    for name in ("aicf", "llvmlite"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"{name} unknown")
    return ", ".join(found) + ", " + _sources()


def _sources() -> str:
    """A hash of the emitter itself: an object made by other code is stale, whatever its version says."""
    h = hashlib.sha256()
    for file in sorted(Path(llvm.__file__).parent.rglob("*.py")):
        h.update(file.read_bytes())
    return h.hexdigest()[:16]


def build_native(kernel: Kernel) -> Any:
    """The compiled kernel for the processor of this process. Kernels of the same text are built once, whatever they came from."""
    target = llvm.host_target()
    # Header lines say where a kernel came from; code does not depend on them.
    text = print_kernel(replace(kernel, header=()))
    key = key_of(text, target.triple, target.cpu, target.features, _versions())
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
