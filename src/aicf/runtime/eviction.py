"""The size of the disk cache: what is in it, what goes when it is full, and what `aicf cache clear` deletes.

When a write makes the cache larger than its limit, the entries used longest ago are deleted until nine tenths of the limit are
left. Reading an entry sets its time of change, which is what "used" means here. Compiled kernels go first: a kernel is made again
in a second, a schedule that `aicf tune` found takes minutes. Only files that this cache wrote are ever counted or deleted.

Any number of processes may do this at once: a file that another one deleted first is as good as deleted, and one that is deleted
between two reads is made again. A process looks at the folder when it first writes, and again after it wrote a sixteenth of the
limit, so n processes that write at once stay below the limit and n sixteenths of it.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "AICF_CACHE_LIMIT"
DEFAULT = 1 << 30
KEPT = 0.9  # of the limit, when entries are deleted
LOOK_AGAIN = 1 / 16  # of the limit, written by this process
ABANDONED = 3600.0  # seconds after which an unfinished file belongs to a process that died
LAST = ("schedule",)  # kinds that go last
_ENTRY = re.compile(r"[0-9a-f]{64}\.([a-z]+)")
_UNFINISHED = ".new-"
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?", re.IGNORECASE)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True)
class Entry:
    """A file of the cache: its kind ("o" for object code), bytes, and when it was last used (seconds since the epoch)."""

    path: Path
    kind: str
    size: int
    used: float


def limit() -> int | None:
    """The most bytes that the cache keeps: $AICF_CACHE_LIMIT ("500M", "2G", "12345"), else 1 GiB. None: no limit ("none")."""
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return DEFAULT
    if text.lower() == "none":
        return None
    found = _SIZE.fullmatch(text)
    if found is None:
        warnings.warn(f"{VARIABLE}={text}: write a size such as 500M or 2G, or none; 1G is used", stacklevel=2)
        return DEFAULT
    return int(float(found[1]) * _UNITS[found[2].upper()])


def entries(root: Path) -> list[Entry]:
    """What the cache in the folder `root` holds, in no order. Files of others are left out."""
    listed: list[Entry] = []
    for folder in _folders(root):
        with contextlib.suppress(OSError), os.scandir(folder) as files:
            for file in files:
                name = _ENTRY.fullmatch(file.name)
                if name is not None and file.name.startswith(folder.name):
                    with contextlib.suppress(OSError):
                        stat = file.stat(follow_symlinks=False)
                        listed.append(Entry(Path(file.path), name[1], stat.st_size, stat.st_mtime))
    return listed


def used(path: Path) -> None:
    """Notes that an entry was read."""
    with contextlib.suppress(OSError):
        os.utime(path)


def evict(root: Path, most: int) -> int:
    """Deletes what was used longest ago where the cache is larger than `most` bytes; returns how many bytes are left."""
    kept = entries(root)
    total = sum(e.size for e in kept)
    if total <= most:
        return total
    _sweep(root)
    for e in sorted(kept, key=lambda e: (e.kind in LAST, e.used)):
        if total <= KEPT * most:
            break
        if _deleted(e.path):
            total -= e.size
    return total


def clear(root: Path, kinds: Iterable[str] | None = None) -> list[Entry]:
    """Deletes the entries of `kinds` (all when None) and returns those that are gone. The folder itself stays."""
    wanted = None if kinds is None else frozenset(kinds)
    gone = [e for e in entries(root) if (wanted is None or e.kind in wanted) and _deleted(e.path)]
    _sweep(root)
    for folder in _folders(root):
        with contextlib.suppress(OSError):  # not empty
            folder.rmdir()
    return gone


class Keeper:
    """Keeps caches below the limit: told of every write of this process, it looks at the folder when that may be needed."""

    def __init__(self) -> None:
        self._left: dict[Path, float] = {}  # bytes that may be written before the folder is looked at
        self._lock = threading.Lock()

    def wrote(self, root: Path, size: int) -> None:
        """Takes note of `size` bytes written below `root`."""
        most = limit()
        if most is None:
            return
        with self._lock:
            left = self._left.get(root, 0.0) - size
            self._left[root] = left
            if left > 0:
                return
            total = evict(root, most)
            self._left[root] = max(0.0, min(LOOK_AGAIN * most, most - total))


def _folders(root: Path) -> list[Path]:
    try:
        with os.scandir(root) as found:
            return [Path(f.path) for f in found if re.fullmatch("[0-9a-f]{2}", f.name) and f.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _deleted(path: Path) -> bool:
    try:
        path.unlink()
    except FileNotFoundError:
        return True  # by another process
    except OSError:
        return False
    return True


def _sweep(root: Path) -> None:
    """Deletes what processes that died were writing."""
    limit_of_age = time.time() - ABANDONED
    for folder in _folders(root):
        for file in folder.glob(f"{_UNFINISHED}*"):
            with contextlib.suppress(OSError):
                if file.stat().st_mtime < limit_of_age:
                    file.unlink()
