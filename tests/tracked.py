"""The project's own Python files. What users put beside them (a model, a notebook's helper, an example) is theirs: it is neither
linted nor run by `./dev test`."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "tests", "examples", "benchmarks", "docs")


def python_files(folders: Sequence[str] = FOLDERS, root: Path = ROOT) -> list[Path]:
    """The Python files below `folders` that git knows of, in order; all of them where this is no checkout."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *folders], cwd=root, capture_output=True, text=True, errors="surrogateescape"
    ) if (root / ".git").exists() else None  # fmt: skip
    if listed is None or listed.returncode != 0:
        return sorted(p for f in folders for p in (root / f).rglob("*.py"))
    return sorted(root / name for name in listed.stdout.split("\0") if name.endswith(".py") and (root / name).is_file())
