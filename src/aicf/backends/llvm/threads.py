"""Threads for generated code: the process' own OpenMP pool when one is loaded, Python threads otherwise.

PyTorch brings a libgomp whose threads are already running and pinned as the user wanted; starting a second pool beside it would
oversubscribe the cores. `fork_address` is the address of its GOMP_parallel(fn, data, threads, flags).

The threads of that pool do not live on in a forked child (a worker of a DataLoader), where the library would wait for them for
ever: there each call starts threads of its own.
"""

from __future__ import annotations

import ctypes
import os
import threading
from functools import cache

from aicf.backends.llvm.codegen.module import HEADER, ITEM, THREAD, THREADS


def loaded_library(stem: str) -> str | None:
    """The path of an already loaded shared library whose file name starts with `stem`; None when there is none."""
    try:
        with open("/proc/self/maps") as maps:
            paths = {line.split(maxsplit=5)[-1].strip() for line in maps if "/" in line}
    except OSError:
        return None
    found = sorted(p for p in paths if os.path.basename(p).startswith(stem))
    # Of several, the one that PyTorch brought is the one whose threads are running.
    return next((p for p in found if "torch" in p), found[0] if found else None)


_FOUND: dict[str, int] = {}
_FORKED: list[bool] = []  # not empty in a forked child

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _FORKED.append(True))


def fork_address() -> int:
    """The address of GOMP_parallel in the loaded libgomp, 0 when there is none (looked for again until there is) and in a forked
    child."""
    if _FORKED:
        return 0
    address = _FOUND.get("fork", 0)
    if address == 0:
        path = loaded_library("libgomp")
        if path is not None:
            address = ctypes.cast(ctypes.CDLL(path).GOMP_parallel, ctypes.c_void_p).value or 0
            _FOUND["fork"] = address
    return address


@cache
def _worker(address: int):
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)


def run_workers(workers: tuple[int, ...], words: int, threads: int) -> None:
    """Run each worker function on `threads` Python threads, one function after the other; foreign calls release the GIL."""
    counters = (ctypes.c_int64 * HEADER).from_address(words)
    for address in workers:
        counters[ITEM] = 0
        counters[THREAD] = 0
        counters[THREADS] = threads
        run_alike(address, words, threads)


def run_alike(address: int, data: int, threads: int) -> None:
    """Run the function at `address` on `data` in every one of `threads` Python threads, the caller's among them."""
    call = _worker(address)
    started = [threading.Thread(target=call, args=(data,)) for _ in range(threads - 1)]
    for thread in started:
        thread.start()
    call(data)
    for thread in started:
        thread.join()


def default_threads() -> int:
    """Threads to use when nobody says: what OpenMP was told, else the cores this process may run on."""
    told = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    if told.isdigit() and int(told) > 0:
        return int(told)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
