"""The code blocks of a page, run in order in one fresh process, and the outputs that stand below them.

    ```python            runs in the page's process: later blocks see earlier names
    ```bash              runs in a shell, in the same empty folder; `python` and `aicf` are this checkout's
    ```text              directly below one of these: what it prints, exactly

Other blocks are read by people only. `current(page)` is the page with the outputs that its code has now.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_RUNS = ("python", "bash")

# What the fresh process does: it reads [[language, code, line], ...] and answers with what each printed.
_PROCESS = r"""
import contextlib, io, json, linecache, subprocess, sys
exchange, page, path = sys.argv[1:]
names = {"__name__": "__main__"}
printed = []
text = open(path).read()
linecache.cache[page] = (len(text), None, text.splitlines(True), page)  # source lines are those of the page
for language, code, line in json.load(open(exchange)):
    if language == "python":
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile("\n" * (line - 1) + code, page, "exec"), names)
        printed.append(out.getvalue())
    else:
        shell = 'python() { "%s" "$@"; }; aicf() { python -m aicf "$@"; }; set -e -o pipefail\n' % sys.executable + code
        done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{page}:{line}: {done.stderr}")
        printed.append(done.stdout)
json.dump(printed, open(exchange, "w"))
"""


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, text, first line in the page, and where its text lies in the page's."""

    language: str
    code: str
    line: int
    start: int
    end: int
    fence: int


class PageFault(Exception):
    """A page whose code does not run: what Python said."""


def blocks(text: str) -> list[Block]:
    """All fenced blocks of a page, in order."""
    return [
        Block(m[1], m[2], text.count("\n", 0, m.start(2)) + 1, m.start(2), m.end(2), m.start()) for m in _BLOCK.finditer(text)
    ]


def current(page: Path) -> str:
    """The text of `page` with the outputs of its code as they are now. Raises PageFault where a block does not run."""
    text = page.read_text()
    found = blocks(text)
    runs = [b for b in found if b.language in _RUNS]
    printed = dict(zip(runs, _printed(page, runs), strict=True))
    for block, below in reversed(list(pairwise(found))):
        if block in printed and below.language == "text" and not text[block.end + len("```") : below.fence].strip():
            text = text[: below.start] + _clean(printed[block]) + text[below.end :]
    return text


def _clean(printed: str) -> str:
    lines = [line.rstrip() for line in printed.strip("\n").splitlines()]
    return "".join(f"{line}\n" for line in lines)


def _printed(page: Path, runs: list[Block]) -> list[str]:
    if not runs:
        return []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "work"
        work.mkdir()
        exchange = Path(folder) / "blocks.json"
        exchange.write_text(json.dumps([[b.language, b.code, b.line] for b in runs]))
        command = [sys.executable, "-c", _PROCESS, str(exchange), page.name, str(page)]
        done = subprocess.run(command, cwd=work, env=_environment(), capture_output=True, text=True)
        if done.returncode != 0:
            raise PageFault(f"{page.name} does not run:\n{done.stdout}{done.stderr}")
        return json.loads(exchange.read_text())


def _environment() -> Mapping[str, str]:
    path = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    # Without a C++ compiler PyTorch compiles nothing beside the kernels: pages run quickly and alike everywhere.
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in path if p), "CXX": "/there/is/no/compiler"}
