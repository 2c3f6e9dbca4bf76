"""Locks that a fork of the process leaves usable in the child.

A child has one thread, the one that forked. A lock that another thread held at that moment stays held there, and what it guards
may be half done.
"""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import AbstractContextManager
from types import TracebackType


class ForkLock:
    """A lock that is free in a child of this process. For what is whole at any time (a dictionary that is only added to)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _EXISTING.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._lock.release()

    def renew(self) -> None:
        """A free lock in the place of one whose holder is gone."""
        self._lock = threading.Lock()


_EXISTING: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def waited_for() -> AbstractContextManager[object]:
    """A lock that a fork waits for. For what must not be cut in two (LLVM at work, which has locks of its own)."""
    lock = threading.RLock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock


def _renew_all() -> None:
    for lock in list(_EXISTING):
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
