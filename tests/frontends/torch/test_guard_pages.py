"""Nothing outside of a call's tensors is read or written: programs of every kind, with pages around each tensor that nobody may
touch (see `guarded.py`). A few of them here, others for each kind of processor and side; all of them by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends.llvm.paths import EXECUTABLE

PARTS = 64


@pytest.mark.skipif(sys.platform != "linux", reason="the pages are made with Linux's mprotect")
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("path", [p.name for p in EXECUTABLE])
def test_programs_between_guard_pages(path: str, side: str) -> None:
    part = 2 * [p.name for p in EXECUTABLE].index(path) + (side == "left")
    command = [sys.executable, "-m", "tests.frontends.torch.guarded", side, path, str(part), str(PARTS)]
    root = Path(__file__).parents[3]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 0 and "all done" in done.stdout, done.stdout[-1500:] + done.stderr[-3000:]
