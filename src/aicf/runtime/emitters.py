"""What code that is kept depends on beside its kernel: the sources that emit it, and the versions of what they call.

An object that other code made is stale, whatever a version number says, so the key of everything kept holds a hash of all files
that emission may depend on.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from aicf.backends.manifest import Backend

PACKAGE = Path(__file__).parents[1]
# What every backend may import (`tests/runtime/test_identity.py` holds them to it); its own folder comes on top.
COMMON = ("scalar/*.py", "kernel/*.py", "errors.py", "backends/*.py", "schedule/target.py")


def emitter(backend: Backend, package: Path = PACKAGE) -> str:
    """One text for the code that `backend` makes kernels with, and for the versions of the libraries that it calls."""
    libraries = ", ".join(f"{x} {_version(x)}" for x in ("aicf", *backend.libraries))
    return f"{sources(package, *COMMON)} {sources(backend.folder, '**/*.py')}, {libraries}"


@cache
def sources(root: Path, *patterns: str) -> str:
    """A hash of the files under `root` that match, by name and content."""
    h = hashlib.sha256()
    for file in sorted({f for p in patterns for f in root.glob(p)}):
        content = file.read_bytes()
        h.update(f"{file.relative_to(root).as_posix()} {len(content)}\n".encode())
        h.update(content)
    return h.hexdigest()


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "unknown"
