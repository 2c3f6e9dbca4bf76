"""The disk cache: what is damaged is rebuilt, never trusted; processes lose nothing; an unwritable cache is no error."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from aicf.runtime import cache


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AICF_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_keys_depend_on_every_part_and_its_borders() -> None:
    assert cache.key_of("ab", "c") != cache.key_of("a", "bc") != cache.key_of("abc")


def test_what_is_written_is_read() -> None:
    key = cache.key_of("kernel")
    assert cache.read(key) is None
    cache.write(key, b"\x00code\xff")
    assert cache.read(key) == b"\x00code\xff"


@pytest.mark.parametrize("damage", [lambda d: d[:-1], lambda d: d[:40] + b"X" + d[41:], lambda d: b"", lambda d: b"junk" + d])
def test_a_damaged_entry_is_rebuilt(own_cache: Path, damage: Callable[[bytes], bytes]) -> None:
    key = cache.key_of("kernel")
    cache.write(key, b"code" * 20)
    (file,) = own_cache.rglob("*.o")
    file.write_bytes(damage(file.read_bytes()))
    assert cache.read(key) is None
    made, found = cache.fetch(key, lambda: b"again")
    assert (made, found) == (b"again", False)
    assert cache.fetch(key, lambda: b"never") == (b"again", True)


def test_an_entry_under_another_name_is_not_taken(own_cache: Path) -> None:
    one, two = cache.key_of("one"), cache.key_of("two")
    cache.write(one, b"code")
    (file,) = own_cache.rglob("*.o")
    target = own_cache / two[:2] / f"{two}.o"
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(file, target)
    assert cache.read(two) is None


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("AICF_CACHE_DIR", str(blocked))
    assert cache.fetch(cache.key_of("k"), lambda: b"made") == (b"made", False)
    monkeypatch.setenv("AICF_CACHE_DIR", "")
    assert cache.cache_dir() is None
    assert cache.fetch(cache.key_of("k"), lambda: b"made") == (b"made", False)


WRITER = """
import sys
from aicf.runtime import cache
for k in range(60):
    key = cache.key_of(str(k))
    made, _ = cache.fetch(key, lambda: (str(k) * 4000).encode())
    assert made == (str(k) * 4000).encode(), k
"""


def test_two_processes_fill_one_cache(own_cache: Path) -> None:
    processes = [subprocess.Popen([sys.executable, "-c", WRITER], env={**os.environ}) for _ in range(2)]
    assert [p.wait(60) for p in processes] == [0, 0]
    for k in range(60):
        assert cache.read(cache.key_of(str(k))) == (str(k) * 4000).encode()
    assert not list(own_cache.rglob(".new-*"))


def test_threads_fill_one_cache() -> None:
    failures: list[object] = []

    def work() -> None:
        for k in range(40):
            got, _ = cache.fetch(cache.key_of(str(k)), lambda k=k: bytes([k]) * 1000)
            if got != bytes([k]) * 1000:
                failures.append(k)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


def test_without_a_home_there_is_no_cache_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user id that no user has, as containers give it."""
    pwd = pytest.importorskip("pwd")

    def nobody(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in ("AICF_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert cache.cache_dir() is None
    assert cache.read(cache.key_of("k")) is None
    assert cache.fetch(cache.key_of("k"), lambda: b"made") == (b"made", False)


@pytest.mark.parametrize("home", ["/proc/none/such", "/dev/null/home"])
def test_a_home_that_cannot_be_written_is_no_error(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AICF_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", home)
    monkeypatch.setenv("TMPDIR", home)
    assert cache.fetch(cache.key_of("k"), lambda: b"made") == (b"made", False)
