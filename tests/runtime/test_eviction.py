"""The disk cache stays below its limit, whoever fills it, and nothing of anybody else's is ever deleted."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aicf.runtime import cache, eviction


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AICF_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv(eviction.VARIABLE, raising=False)
    monkeypatch.setattr(eviction, "KEPT", 1.0)
    return tmp_path / "cache"


def put(name: str, size: int, age: float, kind: str = "o") -> Path:
    path = cache.write(cache.key_of(name), bytes(size), kind)
    assert path is not None
    then = time.time() - age
    os.utime(path, (then, then))
    return path


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [("", 1 << 30), ("500M", 500 << 20), ("2G", 2 << 30), ("1.5 GiB", 3 << 29), ("64kb", 64 << 10), ("99", 99), ("none", None)],
)
def test_the_limit_is_read(text: str, bytes_: int | None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(eviction.VARIABLE, text)
    assert eviction.limit() == bytes_


@pytest.mark.parametrize("text", ["-1", "much", "1X", "1G2"])
def test_a_limit_that_is_no_size_is_said_and_the_default_is_used(text: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(eviction.VARIABLE, text)
    with pytest.warns(UserWarning, match="write a size such as 500M or 2G"):
        assert eviction.limit() == eviction.DEFAULT


def test_what_was_used_longest_ago_goes_first(root: Path):
    paths = [put(str(k), 1000, age=100 - k) for k in range(10)]
    cache.read(cache.key_of("0"))  # the oldest, and now the one used last
    left = eviction.evict(root, sum(p.stat().st_size for p in paths) - 1)
    assert [p.exists() for p in paths] == [True, False, *[True] * 8]
    assert left == sum(e.size for e in eviction.entries(root))


def test_below_the_limit_nothing_goes(root: Path):
    paths = [put(str(k), 1000, age=0) for k in range(3)]
    total = sum(p.stat().st_size for p in paths)
    assert eviction.evict(root, total) == total
    assert all(p.exists() for p in paths)


def test_kernels_go_before_schedules(root: Path):
    schedule = put("tuned", 100, age=1000, kind="schedule")
    kernel = put("kernel", 100, age=1)
    eviction.evict(root, kernel.stat().st_size)
    assert schedule.exists() and not kernel.exists()
    eviction.evict(root, 0)
    assert not schedule.exists()


def test_writing_keeps_the_cache_below_its_limit(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(eviction.VARIABLE, "40000")
    monkeypatch.setattr(cache, "_KEEPER", eviction.Keeper())
    for k in range(60):
        cache.write(cache.key_of(str(k)), bytes(1000))
        assert sum(e.size for e in eviction.entries(root)) <= 40000 * (1 + eviction.LOOK_AGAIN)
    assert cache.read(cache.key_of("59")) is not None and cache.read(cache.key_of("0")) is None


def test_without_a_limit_nothing_goes(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(eviction.VARIABLE, "none")
    monkeypatch.setattr(cache, "_KEEPER", eviction.Keeper())
    for k in range(20):
        cache.write(cache.key_of(str(k)), bytes(1000))
    assert len(eviction.entries(root)) == 20


def test_files_of_others_are_neither_counted_nor_deleted(root: Path):
    put("mine", 10, age=0)
    key = cache.key_of("other")
    elsewhere = "00" if key[:2] != "00" else "11"
    others = [
        root / "thesis.tex",
        root / "ab" / "notes.txt",
        root / key[:2] / key,
        root / "zz" / f"{key}.o",
        root / elsewhere / f"{key}.o",
    ]
    for p in others:
        p.parent.mkdir(parents=True, exist_ok=True)
        p.write_text("precious")
    assert len(eviction.entries(root)) == 1
    assert len(eviction.clear(root)) == 1
    assert all(p.read_text() == "precious" for p in others)
    assert eviction.entries(root) == []


def test_clearing_takes_the_kinds_that_are_asked_for(root: Path):
    kernel, schedule = put("k", 10, age=0), put("s", 10, age=0, kind="schedule")
    assert [e.path for e in eviction.clear(root, ["schedule"])] == [schedule]
    assert kernel.exists()
    assert [e.path for e in eviction.clear(root)] == [kernel]
    assert [*root.iterdir()] == []


def test_what_a_dead_process_left_unfinished_goes(root: Path):
    kept = put("k", 10, age=0)
    old, new = kept.parent / ".new-old", kept.parent / ".new-new"
    for p, age in ((old, 2 * eviction.ABANDONED), (new, 0.0)):
        p.write_bytes(b"half")
        os.utime(p, (time.time() - age, time.time() - age))
    eviction.evict(root, 0)
    assert not old.exists() and new.exists()


WRITER = """
import sys
from aicf.runtime import cache
for k in range(200):
    key = cache.key_of(sys.argv[1] + str(k % 50))
    made, _ = cache.fetch(key, lambda: (str(k % 50) * 2000).encode())
    assert made == (str(k % 50) * 2000).encode(), k
"""


def test_processes_that_fill_and_empty_one_cache_at_once_lose_nothing(root: Path):
    """Two of them write the same entries, the third one others; the limit is far below what they write."""
    env = {**os.environ, eviction.VARIABLE: "50000"}
    running = [subprocess.Popen([sys.executable, "-c", WRITER, name], env=env) for name in ("a", "a", "b")]
    assert [p.wait(120) for p in running] == [0, 0, 0]
    assert sum(e.size for e in eviction.entries(root)) <= 50000 * (1 + 3 * eviction.LOOK_AGAIN)


def test_a_user_without_a_home_has_no_disk_cache(monkeypatch: pytest.MonkeyPatch):
    for name in ("AICF_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert cache.cache_dir() is None
    assert cache.fetch(cache.key_of("k"), lambda: b"made") == (b"made", False)
