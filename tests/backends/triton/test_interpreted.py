"""The tests of `interpreted.py`, in a process that starts with TRITON_INTERPRET=1."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PARTS = (
    "own_cases", "other_schedules or decode", "shared_cases", "attention or strides or bias or orders or skipped or summaries",
    "functions or integers or positions",
)  # fmt: skip


@pytest.mark.parametrize("part", PARTS)
def test_in_the_interpreter(part: str) -> None:
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    file = str(Path(__file__).with_name("interpreted.py"))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", file, "-k", part]
    root = Path(__file__).parents[3]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
