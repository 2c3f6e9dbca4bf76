"""After a fork: locks are free, a fork waits for what must not be cut in two, OpenMP's threads are not counted on."""

from __future__ import annotations

import os
import threading
import time

import pytest

from aicf.backends.llvm import threads
from aicf.runtime.forks import ForkLock, waited_for

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


def in_child(run: object) -> int:
    """The exit code of a forked child that calls `run`; it is ended where it hangs."""
    assert callable(run)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if run() else 2
        finally:
            os._exit(code)
    for _ in range(200):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return -9


def held_by_another_thread(lock: object, until: threading.Event) -> threading.Thread:
    taken = threading.Event()

    def hold() -> None:
        with lock:  # type: ignore[attr-defined]
            taken.set()
            until.wait(5)

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait(5)
    return thread


def test_a_lock_that_another_thread_held_is_free_in_the_child() -> None:
    lock, release = ForkLock(), threading.Event()
    holder = held_by_another_thread(lock, release)

    def takes() -> bool:
        with lock:
            return True

    try:
        assert in_child(takes) == 0
    finally:
        release.set()
        holder.join()
    with lock:
        pass


def test_a_fork_waits_for_work_that_must_not_be_cut() -> None:
    lock, done = waited_for(), list[bool]()

    def work() -> None:
        with lock:
            started.set()
            time.sleep(0.2)
            done.append(True)

    started = threading.Event()
    worker = threading.Thread(target=work)
    worker.start()
    started.wait(5)
    assert in_child(lambda: done == [True]) == 0
    worker.join()
    with lock:
        pass


def test_a_child_does_not_count_on_the_threads_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(threads._FOUND, "fork", 4711)
    assert threads.fork_address() == 4711
    assert in_child(lambda: threads.fork_address() == 0) == 0
    assert threads.fork_address() == 4711
