"""What code that is kept depends on beside its kernel: the sources that emit it, and the versions of what they call.

An object that other code made is stale, whatever a version number says, so the key of everything kept holds a hash of all files
that emission may depend on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
# What every backend may import (`tests/runtime/test_identity.py` holds them to it); its own folder comes on top.
COMMON = ("scalar/*.py", "kernel/*.py", "kernel/lowering/expressions.py", "errors.py")


def emitter(backend: str, libraries: Sequence[str]) -> str:
    """One text for the code of a backend (a folder of `aicf.backends`) and for the versions of `libraries`."""
    return f"{sources(*COMMON, f'backends/{backend}/**/*.py')}, {', '.join(f'{x} {_version(x)}' for x in ('aicf', *libraries))}"


@cache
def sources(*patterns: str) -> str:
    """A hash of the package's files that match, by name and content."""
    h = hashlib.sha256()
    for file in sorted({f for p in patterns for f in PACKAGE.glob(p)}):
        content = file.read_bytes()
        h.update(f"{file.relative_to(PACKAGE).as_posix()} {len(content)}\n".encode())
        h.update(content)
    return h.hexdigest()


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "unknown"
