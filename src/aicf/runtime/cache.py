"""The cache on disk: object code by what it was made from, and tuned schedules by what they are for.

A key is a hash of the kernel's structure, the target, and the sources and versions of everything that took part in making the
code. A file holds a magic line, the hash of its content and the content; what does not check is rebuilt, never trusted. Files
appear by an atomic rename, so any number of processes may fill one cache at once. `eviction` keeps it below its limit.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from aicf.runtime import eviction

FORMAT = b"aicf-object-1\n"
_KEEPER = eviction.Keeper()


def cache_dir() -> Path | None:
    """Where compiled kernels are kept: $AICF_CACHE_DIR, else the user's cache directory. None, and so no disk cache, when
    AICF_CACHE_DIR is set to nothing, and for a user without a home."""
    chosen = os.environ.get("AICF_CACHE_DIR")
    if chosen is not None:
        return Path(chosen) if chosen else None
    base = os.environ.get("XDG_CACHE_HOME")
    if base:
        return Path(base) / "aicf"
    try:
        return Path.home() / ".cache" / "aicf"
    except RuntimeError:  # a user id without an entry and without HOME, as in some containers
        return None


def key_of(*parts: str) -> str:
    """The cache key of everything that the object code depends on."""
    h = hashlib.sha256()
    for part in parts:
        data = part.encode()
        h.update(len(data).to_bytes(8, "little"))
        h.update(data)
    return h.hexdigest()


def read(key: str, kind: str = "o") -> bytes | None:
    """The content of that kind stored under `key`, or None when there is none or it does not check."""
    path = path_of(key, kind)
    if path is None:
        return None
    try:
        data = path.read_bytes()
    except OSError:
        return None
    head = len(FORMAT) + 32
    if not data.startswith(FORMAT) or hashlib.sha256(key.encode() + data[head:]).digest() != data[len(FORMAT) : head]:
        with contextlib.suppress(OSError):
            path.unlink()
        return None
    eviction.used(path)
    return data[head:]


def write(key: str, content: bytes, kind: str = "o") -> Path | None:
    """Stores what `read` gives back, and returns the file. A cache that cannot be written is no error (None): the work is done
    again next time."""
    root, path = cache_dir(), path_of(key, kind)
    if root is None or path is None:
        return None
    digest = hashlib.sha256(key.encode() + content).digest()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(FORMAT + digest + content)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
    except OSError:
        return None
    _KEEPER.wrote(root, len(FORMAT) + len(digest) + len(content))
    return path


def fetch(key: str, make: Callable[[], bytes]) -> tuple[bytes, bool]:
    """The object under `key`, made and stored when there is none; and whether it was there."""
    found = read(key)
    if found is not None:
        return found, True
    made = make()
    write(key, made)
    return made, False


def path_of(key: str, kind: str = "o") -> Path | None:
    """The file of an entry, whether there is one or not; None without a disk cache."""
    root = cache_dir()
    return None if root is None else root / key[:2] / f"{key}.{kind}"
