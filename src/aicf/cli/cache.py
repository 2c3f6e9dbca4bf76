"""`aicf cache`: the disk cache's folder, what is in it, and deleting that."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path

from aicf.cli.errors import OK, CommandError
from aicf.cli.progress import say
from aicf.report import size_text
from aicf.runtime import eviction, tuned
from aicf.runtime.cache import cache_dir


def run(options: Namespace) -> int:
    """Prints the folder or its contents, or deletes what is in it."""
    if options.action != "clear" and (options.kernels or options.schedules):
        raise CommandError("--kernels and --schedules choose what `aicf cache clear` deletes")
    root = cache_dir()
    if root is None:
        say("there is no disk cache: AICF_CACHE_DIR is set to nothing, or this user has no home")
        return OK
    if options.action == "path":
        print(root)
    elif options.action == "size":
        print("\n".join(contents(root)))
    else:
        wanted = ["o"] if options.kernels else [tuned.KIND] if options.schedules else None
        print(f"deleted {counted(eviction.clear(root, wanted))} from {root}")
    return OK


def contents(root: Path) -> list[str]:
    """What the cache holds, line by line."""
    entries, most = eviction.entries(root), eviction.limit()
    bound = "none" if most is None else size_text(most)
    return [f"folder   {root}", f"holds    {counted(entries)}", f"limit    {bound} ({eviction.VARIABLE})"]


def counted(entries: Iterable[eviction.Entry]) -> str:
    """How many kernels and schedules, and how many bytes."""
    entries = list(entries)
    schedules = sum(e.kind == tuned.KIND for e in entries)
    kernels = len(entries) - schedules
    parts = [f"{n} {what}{'' if n == 1 else 's'}" for n, what in ((kernels, "kernel"), (schedules, "tuned schedule"))]
    return f"{' and '.join(parts)}, {size_text(sum(e.size for e in entries))}"
