"""Kernels in host memory built by a backend, through the memory and disk caches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from aicf.backends.manifest import Backend, HostKernel
from aicf.kernel import Kernel, kernel_fingerprint
from aicf.runtime.cache import key_of, read, write
from aicf.runtime.emitters import emitter
from aicf.runtime.forks import waited_for

_BUILT: dict[str, HostKernel] = {}
_LOCK = waited_for()


class Counts:
    """What this process did: kernels compiled, loaded from disk, found in memory."""

    compiled = 0
    loaded = 0
    reused = 0


def code_key(backend: Backend, kernel: Kernel, identity: str) -> str:
    """What code is kept under: all that it depends on. `identity`: the backend's machine, as its module tells it."""
    return key_of(backend.name, kernel_fingerprint(kernel), identity, emitter(backend))


def builder(backend: Backend) -> Callable[[Kernel], HostKernel]:
    """A function that builds kernels. Equal kernels are built once, whatever they came from."""
    return partial(_build, backend)


def forget() -> None:
    """Forgets what is built in memory, as a new process would: for measuring what building and loading take."""
    with _LOCK:
        _BUILT.clear()


def _build(backend: Backend, kernel: Kernel) -> HostKernel:
    key = code_key(backend, kernel, backend.host_code.identity())
    built = _BUILT.get(key)
    if built is not None:
        Counts.reused += 1
        return built
    with _LOCK:
        built = _BUILT.get(key)
        if built is None:
            built = _BUILT[key] = _fetched(backend, kernel, key)
    return built


def _fetched(backend: Backend, kernel: Kernel, key: str) -> HostKernel:
    code = backend.host_code
    stored = read(key)
    if stored is not None:
        try:
            made = code.load(kernel, stored)
        except RuntimeError:
            stored = None  # an object that does not link is as good as none
        else:
            Counts.loaded += 1
            return made
    made = code.build(kernel)
    Counts.compiled += 1
    if made.object:
        write(key, made.object)
    return made
